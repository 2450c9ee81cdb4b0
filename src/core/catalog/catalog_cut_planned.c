/* Checks that the plan of a cut covers everything in the version: what the plan lacks would be
 * missing from the cut. A tensor that several stages hold identically is in the cut once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/model/layout.h"
#include "core/model/part.h"

static int place_order(const void *key, const void *element)
{
    const struct hl_partition_shard *p = key;
    const struct hl_shard_rec *s = *(struct hl_shard_rec *const *)element;
    return hl_part_at_order(&(struct hl_part_at){p->pp, p->tp, p->ep, p->part},
                            &(struct hl_part_at){s->pp, s->tp, s->ep, s->part});
}

struct hl_shard_rec *const *hl_version_shard_at(const struct hl_version_rec *v,
                                                const struct hl_partition_shard *at)
{
    return v->shard_count > 0
               ? bsearch(at, v->shards, v->shard_count, sizeof(*v->shards), place_order)
               : NULL;
}

/* `o` holds everything that `s` holds, identically. */
static bool is_in(const struct hl_shard_rec *s, const struct hl_shard_rec *o)
{
    size_t number = 0;
    if (s->layout == NULL || o->layout == NULL || s->tensor_crcs == NULL || o->tensor_crcs == NULL)
        return false;
    for (const char *line = s->layout; *line != '\0'; line += strcspn(line, "\n") + 1, number++) {
        const size_t len = strcspn(line, "\n");
        const char *at = o->layout;
        size_t k = 0;
        for (; *at != '\0' && (strcspn(at, "\n") != len || strncmp(at, line, len) != 0); k++)
            at += strcspn(at, "\n") + 1;
        if (*at == '\0' ||
            hl_layout_crc(s->tensor_crcs, number) != hl_layout_crc(o->tensor_crcs, k))
            return false;
    }
    return true;
}

/* For a shard of state: the plan covers the shard of its parameters. */
static bool is_planned(const struct hl_version_rec *v, const unsigned char *planned,
                       const struct hl_shard_rec *s)
{
    struct hl_partition_shard key = {.pp = s->pp, .tp = s->tp, .ep = s->ep};
    snprintf(key.part, sizeof(key.part), "%.*s", HL_PARTITION_PART_MAX - 1, hl_part_of(s->part).of);
    struct hl_shard_rec *const *at = hl_version_shard_at(v, &key);
    return at != NULL && planned[at - v->shards];
}

/* The plan covers an identical part of another stage, so the cut has it once. */
static bool is_repeated(const struct hl_version_rec *v, const unsigned char *planned,
                        const struct hl_shard_rec *s)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *o = v->shards[i];
        if (o->pp != s->pp && o->tp == s->tp && o->ep == s->ep && strcmp(o->part, s->part) == 0 &&
            is_planned(v, planned, o) && is_in(s, o))
            return true;
    }
    return false;
}

hl_status hl_version_check_planned(const struct hl_version_rec *v,
                                   const struct hl_partition_plan *plan, bool shares)
{
    HL_AUTO(hl_freep) unsigned char *planned = calloc(v->shard_count + 1, 1);
    const struct hl_api_split own = hl_version_split(v);
    char sizes[HL_SPLIT_TEXT_MAX];
    if (planned == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", v->shard_count);
    for (size_t i = 0; i < plan->shard_count; i++) {
        struct hl_shard_rec *const *at = hl_version_shard_at(v, &plan->shards[i]);
        if (at != NULL && (*at)->tensors == plan->shards[i].tensor_count)
            planned[at - v->shards] = 1;
    }
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        enum hl_part_kind kind = hl_part_of(s->part).kind;
        bool wanted = kind == HL_PART_MODEL || (kind == HL_PART_OPTIM && !shares);
        if (wanted && !is_planned(v, planned, s) && !is_repeated(v, planned, s))
            return hl_fail(
                HL_EUNSUPPORTED,
                "part %s at pp %d, tp %d is not one that the model's config asks for, where '%.*s' "
                "is the first of %u tensors: nothing says how they are cut; use %s, which the "
                "version was saved with",
                s->part, s->pp, s->tp, s->layout != NULL ? (int)strcspn(s->layout, "\t") : 1,
                s->layout != NULL ? s->layout : "?", s->tensors, hl_split_cut_text(&own, sizes));
    }
    return HL_OK;
}
