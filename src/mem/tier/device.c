/* Device memory as a tier: L1. Every shard is a block of its own. The index and the chunk CRCs are
 * kept here, since a device keeps none. A read copies to the host and checks the bytes there. The
 * blocks die with the device, so nothing is adopted. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/log.h"
#include "mem/device/device.h"
#include "mem/tier/indexed.h"

struct device_tier {
    struct hl_tier_indexed base; /* must be first */
    struct hl_device *device;
    uint64_t granule;
    char backing[64];
};

static struct device_tier *device_of(struct hl_tier_store *t)
{
    return (struct device_tier *)t;
}

static struct hl_device_block *block_of(const struct hl_tier_entry *e)
{
    return e->medium;
}

/* A block that can't be freed stays with the device until the device is closed. */
static void give_back(struct device_tier *d, const struct hl_tier_entry *e)
{
    if (hl_device_free(d->device, block_of(e)) != HL_OK)
        hl_warn("a block of device tier %s was not freed: %s", d->base.store.name, hl_error_text());
}

static void device_close(struct hl_tier_store *t)
{
    struct device_tier *d = device_of(t);
    struct hl_tier_entry *e, *next;
    HASH_ITER (hh, d->base.index.by_id, e, next)
        give_back(d, e);
    hl_tier_index_fini(&d->base.index);
    hl_tier_fini(t);
    free(d);
}

static uint64_t device_room(const struct hl_tier_store *t, uint64_t size)
{
    uint64_t granule = ((const struct device_tier *)t)->granule;
    return (size + granule - 1) / granule * granule;
}

/* ---- writing --------------------------------------------------------------------------------- */

static hl_status device_reserve(struct hl_tier_store *t, struct hl_tier_slot *slot, int numa_node)
{
    struct device_tier *d = device_of(t);
    struct hl_tier_entry *e;
    (void)numa_node;
    HL_AUTO(hl_freep) struct hl_device_block *block = calloc(1, sizeof(*block));
    if (block == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a slot for shard %s",
                       hl_id_format(slot->id).s);
    hl_tier_index_begin(&d->base.index);
    hl_status st =
        hl_tier_index_add(&d->base.index, slot->id, slot->size, device_room(t, slot->size), &e);
    if (st == HL_OK) {
        st = hl_device_alloc(d->device, slot->size, HL_DEVICE_ANYWHERE, block);
        if (st == HL_OK) {
            slot->host = block->host;
            slot->offset = e->offset = block->offset;
            slot->tag = e->slot;
            e->medium = hl_steal(&block);
            slot->handle = e->medium;
        } else {
            hl_tier_index_remove(&d->base.index, e);
        }
    }
    hl_tier_index_end(&d->base.index);
    return st;
}

/* The entry of an open slot; the slot keeps its place in the index. */
static struct hl_tier_entry *entry_of(struct device_tier *d, const struct hl_tier_slot *slot)
{
    return hl_tier_index_at(&d->base.index, slot->tag);
}

static hl_status device_fill(struct hl_tier_store *t, const struct hl_tier_slot *slot,
                             uint64_t offset, const void *src, size_t len)
{
    return len > 0 ? hl_device_copy_in(device_of(t)->device, slot->handle, offset, src, len)
                   : HL_OK;
}

static hl_status device_seal(struct hl_tier_store *t, const struct hl_tier_slot *slot,
                             uint32_t crc32, const uint32_t *chunk_crcs, size_t chunks,
                             struct hl_tier_ref *ref)
{
    struct device_tier *d = device_of(t);
    uint32_t *kept;
    HL_TRY(hl_tier_indexed_keep_crcs(slot->id, chunk_crcs, chunks, &kept));
    hl_tier_index_seal(&d->base.index, entry_of(d, slot), crc32, kept, ref);
    return HL_OK;
}

static void device_abort(struct hl_tier_store *t, const struct hl_tier_slot *slot)
{
    struct device_tier *d = device_of(t);
    struct hl_tier_entry *e = entry_of(d, slot);
    hl_tier_index_begin(&d->base.index);
    give_back(d, e);
    hl_tier_index_remove(&d->base.index, e);
    hl_tier_index_end(&d->base.index);
}

/* ---- sealed copies --------------------------------------------------------------------------- */

static hl_status device_fetch(struct hl_tier_indexed *t, const struct hl_tier_entry *e,
                              uint64_t offset, void *dst, uint64_t len, uint32_t *crc)
{
    HL_TRY(hl_device_copy_out(device_of(&t->store)->device, block_of(e), offset, dst, len));
    *crc = hl_crc32(0, dst, len);
    return HL_OK;
}

static hl_status device_remove(struct hl_tier_indexed *t, const struct hl_tier_entry *e)
{
    return hl_device_free(device_of(&t->store)->device, block_of(e));
}

static hl_status device_share(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                              struct hl_device_share *out)
{
    struct device_tier *d = device_of(t);
    struct hl_tier_entry *e;
    HL_TRY(hl_tier_index_hold_ref(&d->base.index, ref, &e));
    hl_status st = hl_device_export(d->device, block_of(e), out);
    hl_tier_index_release(&d->base.index, e);
    return st;
}

/* ---- accounting ------------------------------------------------------------------------------ */

static void device_backing(struct hl_tier_store *t, char *out, size_t len)
{
    snprintf(out, len, "%s", device_of(t)->backing);
}

/* The device may have other blocks that are not the tier's. */
static hl_status device_compare_counts(void *arg, const struct hl_tier_counts *c)
{
    struct device_tier *d = arg;
    struct hl_device_info info;
    hl_device_info(d->device, &info);
    if (info.used < c->used)
        return hl_fail(HL_ECORRUPT,
                       "%s: the device has %" PRIu64 " bytes in use, the tier counts %" PRIu64,
                       d->base.store.name, info.used, c->used);
    return hl_device_audit(d->device);
}

static size_t device_regions(struct hl_tier_store *t, struct hl_pool_region *out, size_t max,
                             int *numa_id)
{
    (void)out;
    (void)max;
    *numa_id = device_of(t)->base.index.numa_id;
    return 0;
}

static const struct hl_tier_medium device_medium = {
    .fetch = device_fetch, .remove = device_remove, .compare_counts = device_compare_counts};

static const struct hl_tier_ops device_ops = {
    .close = device_close,
    .room = device_room,
    .reserve = device_reserve,
    .fill = device_fill,
    .seal = device_seal,
    .abort = device_abort,
    .find = hl_tier_indexed_find,
    .pin = hl_tier_indexed_pin,
    .unpin = hl_tier_indexed_unpin,
    .read = hl_tier_indexed_read,
    .chunk_crcs = hl_tier_indexed_chunk_crcs,
    .share = device_share,
    .drop = hl_tier_indexed_drop,
    .list = hl_tier_indexed_list,
    .counts = hl_tier_indexed_counts,
    .backing = device_backing,
    .regions = device_regions,
    .audit = hl_tier_indexed_audit,
};

hl_status hl_tier_device_block(struct hl_tier_store *t, const struct hl_tier_ref *ref,
                               struct hl_device_block *out)
{
    struct hl_tier_entry *e;
    if (t->ops != &device_ops)
        return hl_fail(HL_EUNSUPPORTED, "%s %s is not on a device", hl_api_tier_name(t->tier),
                       t->name);
    HL_TRY(hl_tier_index_hold_ref(&device_of(t)->base.index, ref, &e));
    *out = *block_of(e);
    hl_tier_index_release(&device_of(t)->base.index, e);
    return HL_OK;
}

hl_status hl_tier_over_device(struct hl_device *device, const char *name,
                              const struct hl_tier_limits *limits, struct hl_tier_store **out)
{
    struct hl_device_info info;
    hl_device_info(device, &info);
    struct device_tier *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating tier %s", name);
    hl_status st =
        hl_tier_init(&d->base.store, &device_ops, HL_API_TIER_L1, name, info.capacity, limits);
    if (st != HL_OK) {
        free(d);
        return st;
    }
    d->device = device;
    d->granule = info.granule > 0 ? info.granule : 1;
    memcpy(d->backing, info.backing, sizeof(d->backing));
    hl_tier_indexed_init(&d->base, &device_medium, info.numa);
    *out = &d->base.store;
    return HL_OK;
}
