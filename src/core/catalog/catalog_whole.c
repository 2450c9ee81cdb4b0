/* Which versions are whole: all their records are readable, and every shard is in some tier. */
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32.h"
#include "core/catalog/catalog_private.h"

#define SKIPPED_TOLD 8 /* at most this many versions are named in one sentence */

size_t hl_version_damaged_records(const struct hl_version_rec *v)
{
    size_t n = v->records_missing + v->damaged;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->damaged;
    return n;
}

uint32_t hl_shards_sum(struct hl_shard_rec *const *list, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const struct hl_shard_rec *s = list[i];
        const uint64_t words[] = {
            htole64(s->id.hi),
            htole64(s->id.lo),
            htole64((uint64_t)(uint32_t)s->pp << 32 | (uint32_t)s->tp),
            htole64(s->size_bytes),
            htole64((uint64_t)s->crc32 << 32 | s->tensors),
        };
        const uint64_t ep = htole64((uint64_t)s->ep); /* records of earlier releases have no ep */
        uint32_t crc = hl_crc32(0, words, sizeof(words));
        crc = hl_crc32(crc, &ep, s->ep != 0 ? sizeof(ep) : 0);
        sum += hl_crc32(crc, s->part, strlen(s->part));
    }
    return sum;
}

struct hl_shards_stated hl_version_stated(const struct hl_version_rec *v)
{
    size_t n = v->state == HL_API_VERSION_STATE_FAILED ? 0 : v->shard_count;
    return (struct hl_shards_stated){
        .count = n,
        .sum = v->state == HL_API_VERSION_STATE_VISIBLE ? (int64_t)hl_shards_sum(v->shards, n) : -1,
    };
}

size_t hl_version_lost(const struct hl_version_rec *v)
{
    size_t n = v->records_missing;
    for (size_t i = 0; i < v->shard_count; i++)
        n += v->shards[i]->lost || v->shards[i]->damaged;
    return n;
}

bool hl_version_has_all_records(const struct hl_version_rec *v)
{
    return hl_version_damaged_records(v) == 0 && !v->records_differ;
}

bool hl_version_whole(const struct hl_version_rec *v)
{
    return hl_version_has_all_records(v) && hl_version_lost(v) == 0;
}

const char *hl_version_trouble(const struct hl_version_rec *v, char *buf, size_t cap)
{
    size_t damaged = hl_version_damaged_records(v), lost = hl_version_lost(v);
    if (v->damaged)
        snprintf(buf, cap, "its record in the Controller's store is damaged");
    else if (damaged > 0)
        snprintf(buf, cap, "the records of %zu of its %zu shards are damaged or missing", damaged,
                 v->shard_count + v->records_missing);
    else if (v->records_differ)
        snprintf(buf, cap, "the records of its shards differ from those that were stored with it");
    else if (lost > 0)
        snprintf(buf, cap, "%zu of its %zu shards are lost", lost, v->shard_count);
    else
        snprintf(buf, cap, "%s", "");
    return buf;
}

struct hl_version_rec *hl_catalog_newest(const struct hl_model_rec *m)
{
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        if (v->state == HL_API_VERSION_STATE_VISIBLE && hl_version_whole(v))
            return v;
    return NULL;
}

const char *hl_catalog_skipped(const struct hl_model_rec *m, char *buf, size_t cap)
{
    size_t at = 0;
    int told = 0;
    char why[160];
    buf[0] = '\0';
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (v->state != HL_API_VERSION_STATE_VISIBLE)
            continue;
        if (hl_version_whole(v))
            break;
        if (told++ == SKIPPED_TOLD || at >= cap)
            break;
        at += (size_t)snprintf(buf + at, cap - at, "%sversion %" PRId64 ": %s", at > 0 ? ", " : "",
                               v->number, hl_version_trouble(v, why, sizeof(why)));
    }
    return buf;
}
