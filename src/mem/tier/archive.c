/* The archive as a tier: L4. A slot is memory until seal puts it into the archive in one piece.
 *
 * A shard found in the archive when the tier was opened has its CRC in its header, but no chunk
 * CRCs: the first read, which covers all of the shard, computes them. While the tier is open,
 * nothing else puts into the archive or removes from it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "mem/archive/archive.h"
#include "mem/tier/indexed.h"

struct archive_tier {
    struct hl_tier_indexed base; /* must be first */
    struct hl_archive *archive;
};

static struct archive_tier *archive_of(struct hl_tier_store *t)
{
    return (struct archive_tier *)t;
}

static void archive_close(struct hl_tier_store *t)
{
    hl_tier_index_fini(&archive_of(t)->base.index);
    hl_tier_fini(t);
    free(t);
}

static uint64_t archive_room(const struct hl_tier_store *t, uint64_t size)
{
    (void)t;
    return size;
}

/* ---- writing --------------------------------------------------------------------------------- */

static hl_status archive_reserve(struct hl_tier_store *t, struct hl_tier_slot *slot, int numa_node)
{
    struct archive_tier *a = archive_of(t);
    struct hl_tier_entry *e;
    (void)numa_node;
    HL_TRY(hl_tier_index_add(&a->base.index, slot->id, slot->size, slot->size, &e));
    e->medium = malloc(slot->size);
    if (e->medium == NULL) {
        hl_tier_index_remove(&a->base.index, e);
        return hl_fail(HL_ENOMEM,
                       "out of memory for shard %s of %" PRIu64 " bytes on its way to %s",
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
    uint32_t *kept;
    HL_TRY(hl_tier_indexed_keep_crcs(slot->id, chunk_crcs, chunks, &kept));
    hl_tier_index_begin(&a->base.index);
    hl_status st = hl_archive_put(a->archive, slot->id, e->medium, slot->size, crc32);
    if (st == HL_OK) {
        free(e->medium);
        e->medium = NULL;
        hl_tier_index_seal(&a->base.index, e, crc32, kept, ref);
    }
    hl_tier_index_end(&a->base.index);
    if (st != HL_OK)
        free(kept);
    return st;
}

static void archive_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    hl_tier_index_remove(&archive_of(t)->base.index, slot->handle);
}

/* ---- reading --------------------------------------------------------------------------------- */

static hl_status archive_fetch(struct hl_tier_indexed *t, const struct hl_tier_entry *e,
                               uint64_t offset, void *dst, uint64_t len, uint32_t *crc)
{
    return hl_archive_read(archive_of(&t->store)->archive, e->id, e->size, offset, dst, len, crc);
}

static hl_status archive_remove(struct hl_tier_indexed *t, const struct hl_tier_entry *e)
{
    return hl_archive_remove(archive_of(&t->store)->archive, e->id);
}

/* Reads the whole entry chunk by chunk; stores its chunk CRCs in `crcs` and their sum in *crc. */
static hl_status sum_up(struct archive_tier *a, const struct hl_tier_entry *e, uint32_t *crcs,
                        uint32_t *crc)
{
    HL_AUTO(hl_freep) void *piece = malloc(e->size < HL_CHUNK ? e->size : HL_CHUNK);
    if (piece == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading shard %s", hl_id_format(e->id).s);
    for (uint64_t i = 0; i < hl_chunk_count(e->size); i++) {
        uint64_t len = hl_chunk_len(e->size, i);
        HL_TRY(archive_fetch(&a->base, e, i * HL_CHUNK, piece, len, &crcs[i]));
        *crc = i == 0 ? crcs[0] : hl_crc32_combine(*crc, crcs[i], len);
    }
    return HL_OK;
}

static hl_status archive_learn_chunks(struct hl_tier_indexed *t, struct hl_tier_entry *e)
{
    struct archive_tier *a = archive_of(&t->store);
    uint32_t recorded = 0, crc = 0;
    HL_AUTO(hl_freep) uint32_t *crcs = malloc(hl_chunk_count(e->size) * sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of shard %s",
                       hl_id_format(e->id).s);
    hl_status st = hl_archive_crc(a->archive, e->id, &recorded);
    if (st != HL_OK && st != HL_ENOENT)
        return st;
    HL_TRY(sum_up(a, e, crcs, &crc));
    /* A shard without checksums in its header is accepted as it is; the metadata have its CRC. */
    if (st == HL_OK && crc != recorded)
        return hl_fail(HL_ECORRUPT,
                       "shard %s in %s has CRC %08" PRIx32 ", its header says %08" PRIx32
                       "; take another copy and drop this one",
                       hl_id_format(e->id).s, a->base.store.name, crc, recorded);
    hl_tier_index_learn(&a->base.index, e, crc, hl_steal(&crcs));
    return HL_OK;
}

/* Takes the CRC from the header if it has one. */
static hl_status archive_learn_crc(struct hl_tier_indexed *t, struct hl_tier_entry *e)
{
    struct archive_tier *a = archive_of(&t->store);
    uint32_t crc;
    hl_status st = hl_archive_crc(a->archive, e->id, &crc);
    if (st == HL_ENOENT)
        return archive_learn_chunks(t, e);
    HL_TRY(st);
    hl_tier_index_learn(&a->base.index, e, crc, NULL);
    return HL_OK;
}

/* ---- accounting ------------------------------------------------------------------------------ */

static void archive_backing(struct hl_tier_store *t, char *out, size_t len)
{
    struct hl_archive_info info;
    hl_archive_stat(archive_of(t)->archive, &info);
    snprintf(out, len, "%s", info.scheme);
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
                   a->base.store.name, info.count, info.used_bytes, c->shards,
                   c->used - c->writing);
}

static const struct hl_tier_medium archive_medium = {.fetch = archive_fetch,
                                                     .remove = archive_remove,
                                                     .learn_crc = archive_learn_crc,
                                                     .learn_chunks = archive_learn_chunks,
                                                     .compare_counts = archive_compare_counts};

static const struct hl_tier_ops archive_ops = {
    .close = archive_close,
    .room = archive_room,
    .reserve = archive_reserve,
    .seal = archive_seal,
    .abort = archive_abort,
    .find = hl_tier_indexed_find,
    .pin = hl_tier_indexed_pin,
    .unpin = hl_tier_indexed_unpin,
    .read = hl_tier_indexed_read,
    .chunk_crcs = hl_tier_indexed_chunk_crcs,
    .drop = hl_tier_indexed_drop,
    .list = hl_tier_indexed_list,
    .counts = hl_tier_indexed_counts,
    .backing = archive_backing,
    .audit = hl_tier_indexed_audit,
};

static hl_status adopt_shard(void *arg, struct hl_id id, uint64_t size)
{
    struct archive_tier *a = arg;
    return hl_tier_index_adopt(&a->base.index, id, size, size);
}

hl_status hl_tier_over_archive(struct hl_archive *archive, const char *name,
                               const struct hl_tier_limits *limits, struct hl_tier_store **out)
{
    struct hl_archive_info info;
    hl_archive_stat(archive, &info);
    struct archive_tier *a = calloc(1, sizeof(*a));
    if (a == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating tier %s", name);
    a->archive = archive;
    hl_status st =
        hl_tier_init(&a->base.store, &archive_ops, HL_API_TIER_L4, name, info.quota_bytes, limits);
    if (st != HL_OK) {
        free(a);
        return st;
    }
    hl_tier_indexed_init(&a->base, &archive_medium, -1);
    st = hl_archive_list(archive, adopt_shard, a);
    if (st != HL_OK) {
        hl_tier_close(&a->base.store);
        return st;
    }
    *out = &a->base.store;
    return HL_OK;
}
