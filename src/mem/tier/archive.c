/* The archive as a tier: L4. A slot is memory until seal puts it into the archive in one piece.
 *
 * What was found in the archive when the tier was opened has its CRC in its header, and no chunk
 * CRCs: they are learned by the first read, which goes over all of it. While the tier is open
 * nobody else puts into the archive or removes from it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "mem/archive/ops.h"
#include "mem/tier/index.h"

#define LIST_PAGE 64

struct archive_tier {
    struct hl_tier_store store;
    struct hl_tier_index index;
    struct hl_archive *archive;
};

static struct archive_tier *archive_of(struct hl_tier_store *t)
{
    return (struct archive_tier *)t;
}

static void archive_close(struct hl_tier_store *t)
{
    hl_tier_index_fini(&archive_of(t)->index);
    hl_tier_fini(t);
    free(t);
}

static uint64_t archive_room(const struct hl_tier_store *t, uint64_t size)
{
    (void)t;
    return size;
}

/* ---- writing --------------------------------------------------------------------------------- */

static hl_status archive_reserve(struct hl_tier_store *t, struct hl_tier_slot *slot, int near)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e;
    (void)near;
    HL_TRY(hl_tier_index_add(&a->index, slot->id, slot->size, slot->size, &e));
    e->medium = malloc(slot->size);
    if (e->medium == NULL) {
        hl_tier_index_remove(&a->index, e);
        return hl_fail(HL_ENOMEM, "memory for shard %s of %" PRIu64 " bytes on its way to %s",
                       hl_id_format(slot->id).s, slot->size, t->name);
    }
    slot->host = e->medium;
    slot->tag = e->slot;
    slot->handle = e;
    return HL_OK;
}

static hl_status archive_seal(struct hl_tier_store *t, const struct hl_tier_slot *slot,
                              uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                              struct hl_tier_ref *ref)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e = slot->handle;
    uint32_t *kept = malloc(chunks * sizeof(*kept));
    if (kept == NULL)
        return hl_fail(HL_ENOMEM, "checksums of shard %s", hl_id_format(slot->id).s);
    memcpy(kept, chunk_crcs, chunks * sizeof(*kept));
    hl_tier_index_begin(&a->index);
    hl_status st = hl_archive_put(a->archive, slot->id, e->medium, slot->size, crc32);
    if (st == HL_OK) {
        free(e->medium);
        e->medium = NULL;
        hl_tier_index_seal(&a->index, e, crc32, kept, ref);
    }
    hl_tier_index_end(&a->index);
    if (st != HL_OK)
        free(kept);
    return st;
}

static void archive_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    hl_tier_index_remove(&archive_of(t)->index, slot->handle);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct source {
    struct hl_archive *archive;
    const struct hl_tier_entry *entry;
};

static hl_status fetch_entry(void *arg, uint64_t offset, void *dst, uint64_t len, uint32_t *crc)
{
    const struct source *s = arg;
    return s->archive->ops->read(s->archive, s->entry->id, s->entry->size, offset, dst, len, crc);
}

/* All of the entry, chunk by chunk: its chunk CRCs to `crcs`, their sum to *crc. */
static hl_status sum_up(struct archive_tier *a, const struct hl_tier_entry *e, uint32_t *crcs,
                        uint32_t *crc)
{
    struct source s = {a->archive, e};
    HL_AUTO(hl_freep) void *piece = malloc(e->size < HL_CHUNK ? e->size : HL_CHUNK);
    if (piece == NULL)
        return hl_fail(HL_ENOMEM, "read shard %s", hl_id_format(e->id).s);
    for (uint64_t i = 0; i < hl_chunk_count(e->size); i++) {
        uint64_t len = hl_chunk_len(e->size, i);
        HL_TRY(fetch_entry(&s, i * HL_CHUNK, piece, len, &crcs[i]));
        *crc = i == 0 ? crcs[0] : hl_crc32_combine(*crc, crcs[i], len);
    }
    return HL_OK;
}

static hl_status learn_chunks(struct archive_tier *a, struct hl_tier_entry *e)
{
    uint32_t recorded = 0, crc = 0;
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(hl_chunk_count(e->size) * sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "checksums of shard %s", hl_id_format(e->id).s);
    hl_status st = hl_archive_crc(a->archive, e->id, &recorded);
    if (st != HL_OK && st != HL_ENOENT)
        return st;
    HL_TRY(sum_up(a, e, crcs, &crc));
    /* One without checksums in its header is taken as it is; the metadata know its CRC. */
    if (st == HL_OK && crc != recorded)
        return hl_fail(HL_ECORRUPT,
                       "shard %s in %s has CRC %08" PRIx32 ", its header says %08" PRIx32
                       "; take another copy and drop this one",
                       hl_id_format(e->id).s, a->store.name, crc, recorded);
    hl_tier_index_learn(&a->index, e, crc, hl_steal(&crcs));
    return HL_OK;
}

/* The held entry's CRC, from the header where it can be. */
static hl_status learn_crc(struct archive_tier *a, struct hl_tier_entry *e)
{
    uint32_t crc;
    if (hl_tier_index_crc_known(&a->index, e))
        return HL_OK;
    hl_status st = hl_archive_crc(a->archive, e->id, &crc);
    if (st == HL_ENOENT)
        return learn_chunks(a, e);
    HL_TRY(st);
    hl_tier_index_learn(&a->index, e, crc, NULL);
    return HL_OK;
}

static hl_status look_up(struct archive_tier *a, struct hl_id id, int pin, struct hl_tier_ref *out)
{
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold(&a->index, id, &e));
    hl_status st = learn_crc(a, e);
    if (st == HL_OK)
        *out = pin ? hl_tier_index_pin(&a->index, e) : hl_tier_index_ref(&a->index, e);
    hl_tier_index_release(&a->index, e);
    return st;
}

static hl_status archive_find(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return look_up(archive_of(t), id, 0, out);
}

static hl_status archive_pin(struct hl_tier_store *t, struct hl_id id, struct hl_tier_ref *out)
{
    return look_up(archive_of(t), id, 1, out);
}

static void archive_unpin(struct hl_tier_store *t, const struct hl_tier_ref *ref)
{
    hl_tier_index_unpin(&archive_of(t)->index, ref);
}

static hl_status read_held(struct archive_tier *a, struct hl_tier_entry *e, uint64_t offset,
                           void *dst, size_t len)
{
    struct source s = {a->archive, e};
    if (hl_tier_index_chunks(&a->index, e) == NULL)
        HL_TRY(learn_chunks(a, e));
    struct hl_chunks c = {e->size, hl_tier_index_ref(&a->index, e).crc32,
                          hl_tier_index_chunks(&a->index, e)};
    return hl_tier_read_checked(e->id, &c, offset, dst, len, fetch_entry, &s);
}

static hl_status archive_read(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                              uint64_t offset, void *dst, size_t len)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold_ref(&a->index, ref, &e));
    hl_status st = read_held(a, e, offset, dst, len);
    hl_tier_index_release(&a->index, e);
    return st;
}

static hl_status archive_chunk_crcs(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                                    uint32_t *out)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold_ref(&a->index, ref, &e));
    hl_status st = hl_tier_index_chunks(&a->index, e) == NULL ? learn_chunks(a, e) : HL_OK;
    if (st == HL_OK)
        memcpy(out, hl_tier_index_chunks(&a->index, e), hl_chunk_count(e->size) * sizeof(*out));
    hl_tier_index_release(&a->index, e);
    return st;
}

static hl_status archive_drop(struct hl_tier_store *t, struct hl_id id)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e;
    hl_tier_index_begin(&a->index);
    hl_status st = hl_tier_index_drop(&a->index, id, &e);
    if (st == HL_OK) {
        st = hl_archive_remove(a->archive, id);
        if (st == HL_OK || st == HL_ENOENT)
            hl_tier_index_remove(&a->index, e);
        else
            hl_tier_index_restore(&a->index, e);
    }
    hl_tier_index_end(&a->index);
    return st;
}

/* One whose CRC can't be had is not shown; find says why. */
static size_t archive_list(struct hl_tier_store *t, uint64_t *cursor, struct hl_tier_ref *out,
                           size_t max)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *page[LIST_PAGE];
    size_t n = 0;
    do {
        size_t want = max - n < LIST_PAGE ? max - n : LIST_PAGE;
        size_t got = hl_tier_index_page(&a->index, cursor, page, want);
        for (size_t i = 0; i < got; i++) {
            if (learn_crc(a, page[i]) == HL_OK)
                out[n++] = hl_tier_index_ref(&a->index, page[i]);
            hl_tier_index_release(&a->index, page[i]);
        }
    } while (*cursor != 0 && n < max);
    return n;
}

/* ---- accounting ------------------------------------------------------------------------------ */

static void archive_counts(struct hl_tier_store *t, struct hl_tier_counts *out)
{
    hl_tier_index_counts(&archive_of(t)->index, out);
}

static void archive_backing(struct hl_tier_store *t, char *out, size_t len)
{
    snprintf(out, len, "%s", archive_of(t)->archive->ops->scheme);
}

static hl_status archive_compare_counts(void *arg, const struct hl_tier_counts *c)
{
    struct archive_tier *a = arg;
    struct hl_archive_info info;
    hl_archive_stat(a->archive, &info);
    if (info.count == c->shards && info.used_bytes == c->used - c->writing)
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "%s: the archive has %" PRIu64 " shards of %" PRIu64
                   " bytes, the tier counts %" PRIu64 " of %" PRIu64,
                   a->store.name, info.count, info.used_bytes, c->shards, c->used - c->writing);
}

static hl_status archive_audit(struct hl_tier_store *t)
{
    return hl_tier_index_audit(&archive_of(t)->index, archive_compare_counts, archive_of(t));
}

static const struct hl_tier_ops archive_ops = {
    .close = archive_close,
    .room = archive_room,
    .reserve = archive_reserve,
    .seal = archive_seal,
    .abort = archive_abort,
    .find = archive_find,
    .pin = archive_pin,
    .unpin = archive_unpin,
    .read = archive_read,
    .chunk_crcs = archive_chunk_crcs,
    .drop = archive_drop,
    .list = archive_list,
    .counts = archive_counts,
    .backing = archive_backing,
    .audit = archive_audit,
};

static hl_status adopt_shard(void *arg, struct hl_id id, uint64_t size)
{
    struct archive_tier *a = arg;
    return hl_tier_index_adopt(&a->index, id, size, size);
}

hl_status hl_tier_over_archive(struct hl_archive *archive, const char *name,
                               const struct hl_tier_limits *limits, struct hl_tier_store **out)
{
    struct hl_archive_info info;
    hl_archive_stat(archive, &info);
    struct archive_tier *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return hl_fail(HL_ENOMEM, "tier %s", name);
    a->archive = archive;
    hl_status st =
        hl_tier_init(&a->store, &archive_ops, HL_API_TIER_L4, name, info.quota_bytes, limits);
    if (st != HL_OK) {
        free(a);
        return st;
    }
    hl_tier_index_init(&a->index, a->store.name, -1);
    st = hl_archive_list(archive, adopt_shard, a);
    if (st != HL_OK) {
        hl_tier_close(&a->store);
        return st;
    }
    *out = &a->store;
    return HL_OK;
}
