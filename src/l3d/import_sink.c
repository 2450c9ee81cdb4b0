/* The pool as the target into which imports and cuts put their shards. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/text.h"
#include "core/catalog/derived_id.h"
#include "l3d/imports_private.h"
#include "l3d/l4.h"

#define CANCEL_LOOK_MS                                                                             \
    20 /* longest wait before the next look at `cancel`, a flag that wakes no thread */

/* What one rank reads is placed on one NUMA node, and the ranks of a stage are spread over all
 * nodes. */
static int node_for(const struct hl_l3d *d, const struct hl_import_shard *s)
{
    return d->regions[(size_t)(s->pp + s->tp) % d->region_count].numa_id;
}

static hl_status sink_alloc(void *arg, const struct hl_import_shard *shard,
                            struct hl_import_slot *out)
{
    struct import *im = arg;
    struct hl_l3d *d = im->daemon;
    struct l4_want want = {
        .size = shard->size_bytes, .near = node_for(d, shard), .cancel = &im->cancel};
    if (im->is_cut)
        want.id = hl_id_derived(
            im->cut_number, atomic_fetch_add_explicit(&im->cut_shards, 1, memory_order_relaxed));
    struct hl_pool_extent *extent = malloc(sizeof(*extent));
    if (extent == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a shard of %llu bytes",
                       (unsigned long long)want.size);
    hl_status st = l4_alloc(d, &want, extent);
    if (st != HL_OK) {
        free(extent);
        return st;
    }
    *out = (struct hl_import_slot){.id = extent->id, .ptr = extent->ptr, .handle = extent};
    return HL_OK;
}

static hl_status sink_seal(void *arg, struct hl_import_slot *slot, uint32_t crc32,
                           const uint32_t *chunk_crcs, size_t chunks)
{
    const struct import *im = arg;
    HL_TRY(hl_pool_seal(im->daemon->pool, slot->handle, crc32, chunk_crcs, chunks, NULL));
    free(slot->handle);
    slot->handle = NULL;
    return HL_OK;
}

static void sink_abort(void *arg, struct hl_import_slot *slot)
{
    const struct import *im = arg;
    hl_pool_abort(im->daemon->pool, slot->handle);
    free(slot->handle);
    slot->handle = NULL;
}

static void sink_discard(void *arg, struct hl_import_slot *slot)
{
    const struct import *im = arg;
    l4_discard(im->daemon, slot->id);
}

struct hl_import_sink import_sink(struct import *im)
{
    return (struct hl_import_sink){im, sink_alloc, sink_seal, sink_abort, sink_discard};
}

void import_note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct import *im = arg;
    atomic_store_explicit(&im->done_bytes, done, memory_order_relaxed);
    atomic_store_explicit(&im->total_bytes, total, memory_order_relaxed);
}

/* What was just freed is still in quarantine. An import waits for that room, as a writer does. */
hl_status import_check_room(struct import *im, uint64_t need)
{
    struct hl_pool_info info;
    char text[4][32];
    uint64_t deadline = hl_now_ns() + l4_room_wait_ns(im->daemon);
    uint64_t seen = hl_pool_changes(im->daemon->pool);
    hl_pool_info(im->daemon->pool, &info);
    if (l4_makes_room(im->daemon, need))
        return HL_OK; /* if it can't after all, the copy fails */
    while (need > info.free && need <= info.free + info.quarantined && hl_now_ns() < deadline &&
           !atomic_load_explicit(&im->cancel, memory_order_relaxed)) {
        hl_pool_wait_change(im->daemon->pool, seen, hl_now_ns() + CANCEL_LOOK_MS * HL_NS_PER_MS);
        seen = hl_pool_changes(im->daemon->pool);
        hl_pool_info(im->daemon->pool, &info);
    }
    if (atomic_load_explicit(&im->cancel, memory_order_relaxed))
        return hl_fail(HL_ECANCELED, "the import was cancelled");
    if (need > info.free)
        return hl_fail(HL_ENOSPC,
                       "model '%s' needs %s, but %s of %s are free in the pool and %s are in "
                       "quarantine (l3.quarantine); remove models (`helios model rm`) or make the "
                       "pool larger (`helios up --l3-size`, option l3.size)",
                       im->model, hl_format_bytes(need, text[0], sizeof(text[0])),
                       hl_format_bytes(info.free, text[1], sizeof(text[1])),
                       hl_format_bytes(info.capacity, text[2], sizeof(text[2])),
                       hl_format_bytes(info.quarantined, text[3], sizeof(text[3])));
    return HL_OK;
}
