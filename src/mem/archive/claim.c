/* Whose archive it is: a small JSON object beside the shards. What is there and can't be read is
 * damage, not absence: no cluster may sweep an archive with a damaged owner. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "mem/archive/ops.h"

bool archive_claim_parse(const char *text, size_t len, struct hl_archive_claim *out)
{
    const char *cluster = NULL;
    json_int_t revision = -1;
    struct hl_archive_claim claim = {{0, 0}, 0, false};
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    bool ok = doc != NULL &&
              json_unpack(doc, "{s:s s:I}", "cluster", &cluster, "revision", &revision) == 0 &&
              revision >= 0 && hl_id_parse(cluster, &claim.cluster) == HL_OK &&
              !hl_id_is_none(claim.cluster);
    hl_error_clear();
    json_decref(doc);
    if (!ok)
        return false;
    claim.revision = (uint64_t)revision;
    *out = claim;
    return true;
}

hl_status archive_read_claim(struct hl_archive *a)
{
    char text[HL_ARCHIVE_CLAIM_MAX];
    size_t len = 0;
    if (!a->claim_found)
        return HL_OK;
    HL_TRY(a->ops->claim_read(a, text, sizeof(text), &len));
    if (!archive_claim_parse(text, len, &a->claim))
        a->claim = (struct hl_archive_claim){.damaged = true};
    return HL_OK;
}

void hl_archive_claimed(struct hl_archive *a, struct hl_archive_claim *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->claim;
    pthread_mutex_unlock(&a->lock);
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
