/* The archive's claim (its owner): a small JSON object beside the shards. A claim that exists but
 * can't be read counts as damage, not as absence: no cluster may sweep an archive whose owner is
 * unreadable. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "api/types.h"
#include "base/log.h"
#include "mem/archive/ops.h"

hl_status archive_claim_parse(const char *text, size_t len, struct hl_archive_claim *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_archive_claim claim = {0};
    struct hl_api_archive_owner owner;
    json_error_t e;
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (doc == NULL)
        return hl_fail(HL_ECORRUPT, "line %d: %s", e.line, e.text);
    hl_status st = hl_api_record_from_json(&hl_api_archive_owner_type, doc, &arena, &owner);
    json_decref(doc);
    HL_TRY(st);
    HL_TRY(hl_id_parse(owner.cluster, &claim.cluster));
    if (hl_id_is_none(claim.cluster))
        return hl_fail(HL_ECORRUPT, "'cluster' must not be 0");
    claim.revision = owner.revision;
    *out = claim;
    return HL_OK;
}

hl_status archive_read_claim(struct hl_archive *a)
{
    char text[HL_ARCHIVE_CLAIM_MAX];
    size_t len = 0;
    if (!a->claim_found)
        return HL_OK;
    HL_TRY(a->ops->claim_read(a, text, sizeof(text), &len));
    if (archive_claim_parse(text, len, &a->claim) == HL_OK)
        return HL_OK;
    hl_warn("the archive's helios-cluster.json can't be read, it counts as damaged error=\"%s\"",
            hl_error_text());
    hl_error_clear();
    a->claim = (struct hl_archive_claim){.damaged = true};
    return HL_OK;
}

void hl_archive_claimed(struct hl_archive *a, struct hl_archive_claim *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->claim;
    pthread_mutex_unlock(&a->lock);
}

/* In an S3 store, another daemon may have written it since. */
static void note_owner(struct hl_archive *a, const struct hl_archive_claim *there)
{
    pthread_mutex_lock(&a->lock);
    bool same = hl_id_equal(a->claim.cluster, there->cluster);
    if (!same) {
        a->claim = *there;
        a->claim.taken = true;
    }
    pthread_mutex_unlock(&a->lock);
    if (!same)
        hl_error("the archive has another owner now, see " HL_ARCHIVE_CLAIM " cluster=%s",
                 hl_id_format(there->cluster).s);
}

hl_status hl_archive_claim_keep(struct hl_archive *a)
{
    struct hl_archive_claim claim, there;
    char text[HL_ARCHIVE_CLAIM_MAX];
    size_t len;
    hl_archive_claimed(a, &claim);
    hl_status st = a->ops->claim_read(a, text, sizeof(text), &len);
    if (st == HL_ENOENT && hl_id_is_none(claim.cluster))
        return HL_OK;
    if (st == HL_ENOENT) {
        hl_warn("the archive's " HL_ARCHIVE_CLAIM " is gone and is written again");
        return hl_archive_claim(a, &claim);
    }
    HL_TRY(st);
    if (archive_claim_parse(text, len, &there) == HL_OK)
        note_owner(a, &there);
    return HL_OK;
}

hl_status hl_archive_claim(struct hl_archive *a, const struct hl_archive_claim *claim)
{
    char text[200];
    int len = snprintf(text, sizeof(text), "{\"cluster\": \"%s\", \"revision\": %" PRIu64 "}\n",
                       hl_id_format(claim->cluster).s, claim->revision);
    HL_TRY(a->ops->claim_write(a, text, (size_t)len));
    pthread_mutex_lock(&a->lock);
    a->claim = (struct hl_archive_claim){.cluster = claim->cluster, .revision = claim->revision};
    pthread_mutex_unlock(&a->lock);
    return HL_OK;
}
