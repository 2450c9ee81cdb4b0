/* Cuts as members of their versions: the keys of their records, and their removal. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/catalog/catalog_cut.h"
#include "core/catalog/catalog_private.h"

size_t hl_cuts_shards(const struct hl_version_rec *v)
{
    size_t n = 0;
    for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next)
        n += cut->shard_count;
    return n;
}

void hl_cut_record_key(const struct hl_cut_rec *cut, char key[HL_CATALOG_KEY_MAX])
{
    const struct hl_api_split *s = &cut->split;
    char experts[48] = "";
    if (hl_split_ep(s) > 1 || hl_split_etp(s) != s->tp)
        snprintf(experts, sizeof(experts), "-ep%d-etp%d", hl_split_ep(s), hl_split_etp(s));
    snprintf(key, HL_CATALOG_KEY_MAX, "cut/%s/%010" PRId64 "/tp%d%s", cut->version->model->name,
             cut->version->number, s->tp, experts);
}

hl_status hl_cut_describe_removal(struct hl_records *r, const struct hl_cut_rec *cut)
{
    char key[HL_CATALOG_KEY_MAX];
    hl_cut_record_key(cut, key);
    return hl_records_add(r, NULL, "%s", key);
}

hl_status hl_cuts_describe_removal(struct hl_records *r, const struct hl_version_rec *v,
                                   struct hl_id *ids, size_t *n, uint64_t *bytes)
{
    for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next) {
        HL_TRY(hl_cut_describe_removal(r, cut));
        for (size_t i = 0; i < cut->shard_count; i++)
            ids[(*n)++] = cut->shards[i]->id;
        *bytes += hl_cut_bytes(cut);
    }
    return HL_OK;
}

void hl_cut_link(struct hl_catalog *c, struct hl_cut_rec *cut)
{
    for (size_t i = 0; i < cut->shard_count; i++)
        HASH_ADD(hh, c->shards, id, sizeof(struct hl_id), cut->shards[i]);
    cut->next = cut->version->cuts;
    cut->version->cuts = cut;
    hl_shards_came(c, cut->shards, cut->shard_count);
}

void hl_cut_unlink(struct hl_catalog *c, struct hl_cut_rec *cut)
{
    struct hl_cut_rec **at = &cut->version->cuts;
    while (*at != cut)
        at = &(*at)->next;
    *at = cut->next;
    hl_shards_unlink(c, cut->shards, cut->shard_count);
    hl_cut_rec_free(cut);
}

void hl_cuts_unlink(struct hl_catalog *c, struct hl_version_rec *v)
{
    while (v->cuts != NULL)
        hl_cut_unlink(c, v->cuts);
}
