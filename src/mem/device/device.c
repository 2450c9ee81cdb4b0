/* The accounting of every device: which blocks exist, where they are mapped, what is free.
 *
 *     slots[]   | gen odd: live | gen even: free | ...       a block's id = gen << 32 | slot
 *                                   '--next--> free ...      `spare`: the first free one
 *
 *     busy == 0        the block is not in use
 *     busy == n        n copies are in flight: it is neither freed nor remapped (use_slot)
 *     busy == CLAIMED  one call makes, frees or remaps it; any other gets HL_EBUSY (claim_slot)
 *
 * The generation shows that a block was freed. The back end allocates and frees the memory itself,
 * without the lock, while the slot is CLAIMED and its bytes are counted as used. No call waits for
 * another one. */
#include "mem/device/device_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

#define NONE    UINT32_MAX
#define CLAIMED UINT32_MAX /* busy: being made, freed or remapped */

static const struct device_ops *const back_ends[] = {&device_emu, &device_cuda};

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating device metadata");
}

hl_status hl_device_open(const char *spec, const struct hl_device_options *options,
                         struct hl_device **out)
{
    static const struct hl_device_options none;
    const struct device_ops *ops = NULL;
    size_t kind = strcspn(spec, ":");
    for (size_t i = 0; i < HL_ARRAY_LEN(back_ends); i++)
        if (strlen(back_ends[i]->kind) == kind && memcmp(back_ends[i]->kind, spec, kind) == 0)
            ops = back_ends[i];
    if (ops == NULL)
        return hl_fail(HL_EINVAL,
                       "device \"%s\": expected emu:BYTES[:nic=no][:numa=N] or cuda:WHICH[:BYTES]",
                       spec);
    if (options == NULL)
        options = &none;
    struct hl_device *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return fail_memory();
    *d = (struct hl_device){.ops = ops, .spare = NONE, .numa = -1};
    d->timeout_ms = options->timeout_ms > 0 ? options->timeout_ms : HL_DEVICE_TIMEOUT_MS;
    snprintf(d->name, sizeof(d->name), "%s", spec);
    pthread_mutex_init(&d->lock, NULL);
    hl_status st = ops->open(d, spec + kind, options);
    if (st != HL_OK) {
        pthread_mutex_destroy(&d->lock);
        free(d);
        return hl_fail_prefix(st, "device \"%s\": ", spec);
    }
    *out = d;
    return HL_OK;
}

static void drop_mem(struct hl_device *d, struct device_mem *m)
{
    if (m->address != 0)
        d->ops->unmap(d, m);
    d->ops->destroy(d, m);
}

/* No other call runs at the close, so the lock is not taken. The copies end first, because they use
 * the blocks; then come the blocks, then the address ranges they are mapped in. */
void hl_device_close(struct hl_device *d)
{
    if (d == NULL)
        return;
    d->ops->settle(d);
    for (uint32_t i = 0; i < d->slot_count; i++)
        if (d->slots[i].gen % 2 == 1)
            drop_mem(d, &d->slots[i].mem);
    for (size_t i = 0; i < d->range_count; i++)
        d->ops->unreserve(d, d->ranges[i].address, d->ranges[i].size);
    d->ops->close(d);
    pthread_mutex_destroy(&d->lock);
    free(d->slots);
    free(d->ranges);
    free(d);
}

void hl_device_info(struct hl_device *d, struct hl_device_info *out)
{
    struct hl_device_info info = {.capacity = d->capacity,
                                  .granule = d->granule,
                                  .numa = d->numa,
                                  .bounded = d->bounded,
                                  .nic_direct = d->nic_direct,
                                  .shareable = d->shareable,
                                  .ranges = d->has_ranges};
    snprintf(info.kind, sizeof(info.kind), "%s", d->ops->kind);
    snprintf(info.name, sizeof(info.name), "%s", d->name);
    snprintf(info.backing, sizeof(info.backing), "%s", d->backing);
    snprintf(info.pci, sizeof(info.pci), "%s", d->pci);
    pthread_mutex_lock(&d->lock);
    info.used = d->used;
    info.blocks = d->blocks;
    pthread_mutex_unlock(&d->lock);
    /* The back end has its own lock and reports its own memory; the two figures may be of different
     * moments. */
    d->ops->room(d, d->capacity - info.used, &info.free, &info.largest);
    *out = info;
}

/* ---- slots; the lock is held by all callers ---- */

static uint64_t id_of(const struct hl_device *d, const struct device_slot *s)
{
    return (uint64_t)s->gen << 32 | (uint32_t)(s - d->slots);
}

static struct hl_device_block block_view(const struct hl_device *d, const struct device_slot *s)
{
    return (struct hl_device_block){.id = id_of(d, s),
                                    .size = s->mem.size,
                                    .address = s->mem.address,
                                    .host = s->mem.host,
                                    .offset = s->mem.offset,
                                    .read_only = s->mem.imported};
}

/* Takes a slot, which is live from now on, and busy until its memory is allocated. */
static hl_status take_slot(struct hl_device *d, uint32_t *out)
{
    if (d->spare == NONE && d->slot_count == d->slot_cap) {
        uint32_t cap = d->slot_cap == 0 ? 64 : d->slot_cap * 2;
        struct device_slot *slots =
            cap > d->slot_cap && cap < NONE ? realloc(d->slots, cap * sizeof(*slots)) : NULL;
        if (slots == NULL)
            return fail_memory();
        d->slots = slots;
        d->slot_cap = cap;
    }
    /* slots[] may move: callers keep slot numbers across an unlock, never pointers. */
    uint32_t i = d->spare;
    if (i != NONE) {
        d->spare = d->slots[i].next;
    } else {
        i = d->slot_count++;
        d->slots[i] = (struct device_slot){0};
    }
    struct device_slot *s = &d->slots[i];
    *s = (struct device_slot){.gen = s->gen + 1, .busy = CLAIMED};
    d->blocks++;
    *out = i;
    return HL_OK;
}

/* The generation becomes even: from now on every id of the block is stale. */
static void give_slot(struct hl_device *d, uint32_t i)
{
    struct device_slot *s = &d->slots[i];
    *s = (struct device_slot){.gen = s->gen + 1, .next = d->spare};
    d->spare = i;
    d->blocks--;
}

static hl_status find_slot(struct hl_device *d, uint64_t id, uint32_t *out)
{
    uint32_t i = (uint32_t)id;
    if (i >= d->slot_count || d->slots[i].gen != id >> 32 || d->slots[i].gen % 2 == 0)
        return hl_fail(HL_ESTALE, "%s: there is no block %#" PRIx64 "; it was freed", d->name, id);
    *out = i;
    return HL_OK;
}

/* For a call that needs the block exclusively. */
static hl_status claim_slot(struct hl_device *d, uint64_t id, uint32_t *out)
{
    uint32_t i = 0;
    HL_TRY(find_slot(d, id, &i));
    if (d->slots[i].busy > 0)
        return hl_fail(HL_EBUSY, "%s: block %#" PRIx64 " has copies in flight", d->name, id);
    d->slots[i].busy = CLAIMED;
    *out = i;
    return HL_OK;
}

/* For a copy, during which the block must stay. */
static hl_status use_slot(struct hl_device *d, uint64_t id, uint32_t *out)
{
    uint32_t i = 0;
    HL_TRY(find_slot(d, id, &i));
    if (d->slots[i].busy >= CLAIMED - 1)
        return hl_fail(HL_EBUSY, "%s: block %#" PRIx64 " is being freed or remapped", d->name, id);
    d->slots[i].busy++;
    *out = i;
    return HL_OK;
}

/* The generation can't have changed: a block in use is not freed. */
static void leave_block(struct hl_device *d, uint64_t id)
{
    uint32_t i = (uint32_t)id;
    assert(d->slots[i].gen == id >> 32 && d->slots[i].busy > 0 && d->slots[i].busy != CLAIMED);
    d->slots[i].busy--;
}

/* Checks that `size` bytes at `at` are within a range and nothing else is mapped there. */
static hl_status check_place(struct hl_device *d, uint64_t at, uint64_t size)
{
    if (at == HL_DEVICE_ANYWHERE || at == HL_DEVICE_UNMAPPED)
        return HL_OK;
    const struct device_range *in = NULL;
    for (size_t i = 0; i < d->range_count; i++)
        if (at >= d->ranges[i].address && at - d->ranges[i].address < d->ranges[i].size)
            in = &d->ranges[i];
    if (in == NULL || size > in->size - (at - in->address) || at % d->granule != 0)
        return hl_fail(HL_EINVAL,
                       "%s: %" PRIu64 " bytes at %#" PRIx64 " are not whole granules of %" PRIu64
                       " in a reserved range",
                       d->name, size, at, d->granule);
    for (uint32_t i = 0; i < d->slot_count; i++) {
        const struct device_mem *m = &d->slots[i].mem;
        if (d->slots[i].gen % 2 == 1 && m->address != 0 && at < m->address + m->size &&
            m->address < at + size)
            return hl_fail(HL_EBUSY, "%s: a block is mapped at %#" PRIx64 " already", d->name,
                           m->address);
    }
    return HL_OK;
}

/* ---- blocks ---- */

/* Reserves under the lock all that the block will need (bytes, slot, addresses) before the driver
 * is called without it. A concurrent allocation sees them as taken and fails early. */
static hl_status take_room(struct hl_device *d, uint64_t size, uint64_t at, uint32_t *slot)
{
    uint64_t left = d->capacity - d->used;
    if (size > left)
        return hl_fail(HL_ENOSPC,
                       "%s: %" PRIu64 " bytes requested, %" PRIu64 " of %" PRIu64 " free", d->name,
                       size, left, d->capacity);
    HL_TRY(check_place(d, at, size));
    HL_TRY(take_slot(d, slot));
    d->used += size;
    /* The place is taken from now on, although nothing is mapped there yet. */
    struct device_mem *m = &d->slots[*slot].mem;
    m->size = size;
    m->address = at == HL_DEVICE_UNMAPPED ? 0 : at;
    return HL_OK;
}

static hl_status fill_block(struct hl_device *d, uint64_t at, struct device_mem *m)
{
    HL_TRY(d->ops->create(d, m));
    if (at == HL_DEVICE_UNMAPPED)
        return HL_OK;
    hl_status st = d->ops->map(d, m, at);
    if (st != HL_OK)
        d->ops->destroy(d, m);
    return st;
}

HL_CHECK static hl_status alloc_block(struct hl_device *d, uint64_t size, uint64_t at, bool closed,
                                      struct hl_device_block *out)
{
    if (size == 0 || size > INT64_MAX - d->granule)
        return hl_fail(HL_EINVAL, "%s: invalid block size of %" PRIu64 " bytes", d->name, size);
    if (at != HL_DEVICE_ANYWHERE && !d->has_ranges)
        return hl_fail(HL_EUNSUPPORTED, "%s: the driver can't map memory at a chosen address",
                       d->name);
    size = (size + d->granule - 1) / d->granule * d->granule;
    uint32_t i = 0;
    pthread_mutex_lock(&d->lock);
    hl_status st = take_room(d, size, at, &i);
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    /* The driver works on a copy, because slots[] may be reallocated meanwhile. */
    struct device_mem m = {
        .size = size, .address = at == HL_DEVICE_UNMAPPED ? 0 : at, .closed = closed};
    st = fill_block(d, at, &m);
    m.closed = false;
    pthread_mutex_lock(&d->lock);
    if (st == HL_OK) {
        d->slots[i].mem = m;
        d->slots[i].busy = 0;
        *out = block_view(d, &d->slots[i]);
    } else {
        d->used -= size;
        give_slot(d, i);
    }
    pthread_mutex_unlock(&d->lock);
    return st;
}

hl_status hl_device_alloc(struct hl_device *d, uint64_t size, uint64_t at,
                          struct hl_device_block *out)
{
    return alloc_block(d, size, at, false, out);
}

hl_status hl_device_alloc_closed(struct hl_device *d, uint64_t size, uint64_t at,
                                 struct hl_device_block *out)
{
    if (at == HL_DEVICE_ANYWHERE || at == HL_DEVICE_UNMAPPED)
        return hl_fail(HL_EINVAL, "%s: a closed block needs an address in a range", d->name);
    return alloc_block(d, size, at, true, out);
}

/* Claimed under the lock, freed without it, and given back under it: a driver call may take
 * milliseconds, during which copies of other blocks continue. `used` falls last, so no other call
 * gets room that is not free yet. */
hl_status hl_device_free(struct hl_device *d, const struct hl_device_block *block)
{
    uint32_t i = 0;
    pthread_mutex_lock(&d->lock);
    hl_status st = claim_slot(d, block->id, &i);
    struct device_mem m = st == HL_OK ? d->slots[i].mem : (struct device_mem){0};
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    drop_mem(d, &m);
    pthread_mutex_lock(&d->lock);
    if (!m.imported)
        d->used -= m.size;
    give_slot(d, i);
    pthread_mutex_unlock(&d->lock);
    return HL_OK;
}

/* From now on the place is taken for the claimed block. */
static hl_status take_place(struct hl_device *d, uint32_t i, uint64_t at)
{
    struct device_mem *m = &d->slots[i].mem;
    if (m->address != 0)
        return hl_fail(HL_EEXIST, "%s: the block is mapped at %#" PRIx64 " already", d->name,
                       m->address);
    HL_TRY(check_place(d, at, m->size));
    m->address = at;
    return HL_OK;
}

hl_status hl_device_map(struct hl_device *d, uint64_t at, struct hl_device_block *block)
{
    if (!d->has_ranges || at == HL_DEVICE_UNMAPPED)
        return hl_fail(HL_EUNSUPPORTED, "%s: a block can't be mapped there", d->name);
    uint32_t i = 0;
    struct device_mem m = {0};
    pthread_mutex_lock(&d->lock);
    hl_status st = claim_slot(d, block->id, &i);
    if (st == HL_OK) {
        m = d->slots[i].mem;
        st = take_place(d, i, at);
        d->slots[i].busy = st == HL_OK ? CLAIMED : 0;
    }
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    st = d->ops->map(d, &m, at);
    pthread_mutex_lock(&d->lock);
    d->slots[i].mem = m; /* a failed map leaves it unchanged */
    d->slots[i].busy = 0;
    if (st == HL_OK)
        *block = block_view(d, &d->slots[i]);
    pthread_mutex_unlock(&d->lock);
    return st;
}

hl_status hl_device_unmap(struct hl_device *d, struct hl_device_block *block)
{
    if (!d->has_ranges)
        return hl_fail(HL_EUNSUPPORTED, "%s: the driver can't unmap memory", d->name);
    uint32_t i = 0;
    pthread_mutex_lock(&d->lock);
    hl_status st = claim_slot(d, block->id, &i);
    struct device_mem m = st == HL_OK ? d->slots[i].mem : (struct device_mem){0};
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    if (m.address != 0)
        d->ops->unmap(d, &m);
    pthread_mutex_lock(&d->lock);
    d->slots[i].mem = m;
    d->slots[i].busy = 0;
    *block = block_view(d, &d->slots[i]);
    pthread_mutex_unlock(&d->lock);
    return HL_OK;
}

/* ---- ranges ---- */

hl_status hl_device_reserve(struct hl_device *d, uint64_t size, uint64_t *address)
{
    uint64_t at;
    if (!d->has_ranges)
        return hl_fail(HL_EUNSUPPORTED, "%s: the driver can't reserve addresses", d->name);
    if (size == 0 || size > INT64_MAX - d->granule)
        return hl_fail(HL_EINVAL, "%s: invalid range of %" PRIu64 " bytes", d->name, size);
    size = (size + d->granule - 1) / d->granule * d->granule;
    HL_TRY(d->ops->reserve(d, size, &at));
    hl_status st = HL_OK;
    pthread_mutex_lock(&d->lock);
    if (d->range_count == d->range_cap) {
        size_t cap = d->range_cap == 0 ? 16 : d->range_cap * 2;
        struct device_range *ranges = realloc(d->ranges, cap * sizeof(*ranges));
        if (ranges != NULL) {
            d->ranges = ranges;
            d->range_cap = cap;
        } else {
            st = fail_memory();
        }
    }
    if (st == HL_OK)
        d->ranges[d->range_count++] = (struct device_range){at, size};
    pthread_mutex_unlock(&d->lock);
    if (st != HL_OK)
        d->ops->unreserve(d, at, size);
    else
        *address = at;
    return st;
}

/* With the lock held. The range leaves the table before its addresses are released, so no block can
 * be mapped there in between. */
static hl_status unlist_range(struct hl_device *d, uint64_t address, struct device_range *out)
{
    for (size_t i = 0; i < d->range_count; i++) {
        struct device_range r = d->ranges[i];
        if (r.address != address)
            continue;
        for (uint32_t k = 0; k < d->slot_count; k++)
            if (d->slots[k].gen % 2 == 1 && d->slots[k].mem.address >= r.address &&
                d->slots[k].mem.address - r.address < r.size)
                return hl_fail(HL_EBUSY, "%s: blocks are mapped in the range at %#" PRIx64, d->name,
                               address);
        d->ranges[i] = d->ranges[--d->range_count];
        *out = r;
        return HL_OK;
    }
    return hl_fail(HL_ENOENT, "%s: no range was reserved at %#" PRIx64, d->name, address);
}

static hl_status take_range(struct hl_device *d, uint64_t address, struct device_range *out)
{
    pthread_mutex_lock(&d->lock);
    hl_status st = unlist_range(d, address, out);
    pthread_mutex_unlock(&d->lock);
    return st;
}

hl_status hl_device_unreserve(struct hl_device *d, uint64_t address)
{
    struct device_range r;
    HL_TRY(take_range(d, address, &r));
    d->ops->unreserve(d, r.address, r.size);
    return HL_OK;
}

hl_status hl_device_range_take(struct hl_device *d, uint64_t address)
{
    struct device_range r;
    HL_TRY(take_range(d, address, &r));
    hl_device_range_reset(d, r.address, r.size);
    return HL_OK;
}

void hl_device_range_reset(struct hl_device *d, uint64_t address, uint64_t size)
{
    if (d->ops->range_reset != NULL)
        d->ops->range_reset(d, address, size);
}

/* ---- copies ---- */

static hl_status check_copy(struct hl_device *d, const struct device_mem *m, uint64_t id,
                            uint64_t offset, size_t len, bool writing)
{
    if (offset > m->size || len > m->size - offset)
        return hl_fail(HL_EINVAL,
                       "%s: %zu bytes at %" PRIu64 " are not in a block of %" PRIu64 " bytes",
                       d->name, len, offset, m->size);
    if (m->address == 0)
        return hl_fail(HL_EINVAL, "%s: block %#" PRIx64 " is not mapped", d->name, id);
    if (writing && m->imported)
        return hl_fail(HL_EPERM, "%s: block %#" PRIx64 " belongs to another process", d->name, id);
    return HL_OK;
}

/* With the lock held. From here to leave_block the block counts as busy and the address stays
 * valid. */
static hl_status enter_block(struct hl_device *d, uint64_t id, uint64_t offset, size_t len,
                             bool writing, uint64_t *address)
{
    uint32_t i = 0;
    HL_TRY(use_slot(d, id, &i));
    hl_status st = check_copy(d, &d->slots[i].mem, id, offset, len, writing);
    if (st != HL_OK)
        leave_block(d, id);
    else
        *address = offset + (d->ops->reach != NULL ? d->ops->reach(d, &d->slots[i].mem)
                                                   : d->slots[i].mem.address);
    return st;
}

static void leave_both(struct hl_device *d, const uint64_t id[2])
{
    pthread_mutex_lock(&d->lock);
    for (int i = 0; i < 2; i++)
        if (id[i] != 0)
            leave_block(d, id[i]);
    pthread_mutex_unlock(&d->lock);
}

static hl_status enter_one(struct hl_device *d, uint64_t id, uint64_t offset, size_t len,
                           bool writing, uint64_t *address)
{
    pthread_mutex_lock(&d->lock);
    hl_status st = enter_block(d, id, offset, len, writing, address);
    pthread_mutex_unlock(&d->lock);
    return st;
}

static hl_status copy_now(struct hl_device *d, const struct device_op *op, uint64_t a, uint64_t b)
{
    hl_status st = op->len > 0 ? d->ops->copy(d, op) : HL_OK;
    /* The copy may still be running: its blocks stay busy for good, so they are not freed under
     * it. */
    if (st != HL_ETIMEDOUT)
        leave_both(d, (uint64_t[2]){a, b});
    return st;
}

hl_status hl_device_copy_in(struct hl_device *d, const struct hl_device_block *dst, uint64_t offset,
                            const void *src, size_t len)
{
    struct device_op op = {.dir = DEVICE_IN, .src = (uintptr_t)src, .len = len};
    HL_TRY(enter_one(d, dst->id, offset, len, 1, &op.dst));
    return copy_now(d, &op, dst->id, 0);
}

hl_status hl_device_copy_out(struct hl_device *d, const struct hl_device_block *src,
                             uint64_t offset, void *dst, size_t len)
{
    struct device_op op = {.dir = DEVICE_OUT, .dst = (uintptr_t)dst, .len = len};
    HL_TRY(enter_one(d, src->id, offset, len, 0, &op.src));
    return copy_now(d, &op, src->id, 0);
}

hl_status hl_device_copy_within(struct hl_device *d, const struct hl_device_block *dst,
                                uint64_t dst_offset, const struct hl_device_block *src,
                                uint64_t src_offset, size_t len)
{
    struct device_op op = {.dir = DEVICE_WITHIN, .len = len};
    pthread_mutex_lock(&d->lock);
    hl_status st = enter_block(d, dst->id, dst_offset, len, true, &op.dst);
    if (st == HL_OK) {
        st = enter_block(d, src->id, src_offset, len, false, &op.src);
        if (st != HL_OK)
            leave_block(d, dst->id);
    }
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    return copy_now(d, &op, dst->id, src->id);
}

static hl_status begin_copy(struct hl_device *d, const struct device_op *op, uint64_t id,
                            struct hl_device_copy *copy)
{
    struct hl_device_copy c = {.device = d, .blocks = {id, 0}};
    hl_status st = d->ops->begin(d, op, &c.handle);
    if (st != HL_OK)
        leave_both(d, c.blocks);
    else
        *copy = c;
    return st;
}

hl_status hl_device_begin_in(struct hl_device *d, const struct hl_device_block *dst,
                             uint64_t offset, const void *src, size_t len,
                             struct hl_device_copy *copy)
{
    struct device_op op = {.dir = DEVICE_IN, .src = (uintptr_t)src, .len = len};
    HL_TRY(enter_one(d, dst->id, offset, len, 1, &op.dst));
    return begin_copy(d, &op, dst->id, copy);
}

hl_status hl_device_begin_out(struct hl_device *d, const struct hl_device_block *src,
                              uint64_t offset, void *dst, size_t len, struct hl_device_copy *copy)
{
    struct device_op op = {.dir = DEVICE_OUT, .dst = (uintptr_t)dst, .len = len};
    HL_TRY(enter_one(d, src->id, offset, len, 0, &op.src));
    return begin_copy(d, &op, src->id, copy);
}

hl_status hl_device_wait(struct hl_device_copy *copy, int timeout_ms)
{
    struct hl_device *d = copy->device;
    if (d == NULL)
        return hl_fail(HL_EINVAL, "no copy is in flight");
    hl_status st = d->ops->wait(d, copy->handle, timeout_ms < 0 ? 0 : timeout_ms);
    if (st == HL_ETIMEDOUT)
        return st;
    leave_both(d, copy->blocks);
    *copy = (struct hl_device_copy){0};
    return st;
}

hl_status hl_device_quiesce(struct hl_device *d)
{
    return d->ops->quiesce == NULL ? HL_OK : d->ops->quiesce(d, d->timeout_ms);
}

hl_status hl_device_pin(struct hl_device *d, void *ptr, size_t len)
{
    return d->ops->pin(d, ptr, len);
}

void hl_device_unpin(struct hl_device *d, void *ptr)
{
    d->ops->unpin(d, ptr);
}

/* ---- other processes ---- */

hl_status hl_device_export(struct hl_device *d, const struct hl_device_block *block,
                           struct hl_device_share *share)
{
    uint32_t i = 0;
    int fd;
    if (!d->shareable)
        return hl_fail(HL_EUNSUPPORTED, "%s: the driver can't share memory with other processes",
                       d->name);
    pthread_mutex_lock(&d->lock);
    hl_status st = use_slot(d, block->id, &i);
    struct device_mem m = st == HL_OK ? d->slots[i].mem : (struct device_mem){0};
    pthread_mutex_unlock(&d->lock);
    HL_TRY(st);
    st = m.imported ? hl_fail(HL_EPERM, "%s: the block belongs to another process", d->name)
                    : d->ops->export(d, &m, &fd);
    leave_both(d, (uint64_t[2]){block->id, 0});
    if (st == HL_OK)
        *share = (struct hl_device_share){.fd = fd, .offset = m.offset, .size = m.size};
    return st;
}

hl_status hl_device_import(struct hl_device *d, const struct hl_device_share *share,
                           struct hl_device_block *out)
{
    struct device_mem m = {.size = share->size, .offset = share->offset, .imported = true};
    uint32_t i = 0;
    if (share->size == 0 || share->size % d->granule != 0 || share->offset % d->granule != 0 ||
        share->size > INT64_MAX || share->offset > INT64_MAX - share->size)
        return hl_fail(HL_EINVAL,
                       "%s: %" PRIu64 " bytes at %" PRIu64
                       " are not a block in granules of %" PRIu64,
                       d->name, share->size, share->offset, d->granule);
    HL_TRY(d->ops->import(d, share->fd, &m));
    pthread_mutex_lock(&d->lock);
    hl_status st = take_slot(d, &i);
    if (st == HL_OK) {
        d->slots[i].mem = m;
        d->slots[i].busy = 0;
        *out = block_view(d, &d->slots[i]);
    }
    pthread_mutex_unlock(&d->lock);
    if (st != HL_OK)
        drop_mem(d, &m);
    return st;
}

hl_status hl_device_audit(struct hl_device *d)
{
    uint64_t used = 0, blocks = 0;
    hl_status st = HL_OK;
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < d->slot_count; i++) {
        const struct device_slot *s = &d->slots[i];
        if (s->gen % 2 == 0)
            continue;
        blocks++;
        if (!s->mem.imported)
            used += s->mem.size;
    }
    if (used != d->used || blocks != d->blocks || used > d->capacity)
        st = hl_fail(HL_ECORRUPT,
                     "%s: %" PRIu64 " blocks of %" PRIu64 " bytes, the accounting says %" PRIu64
                     " of %" PRIu64,
                     d->name, blocks, used, d->blocks, d->used);
    pthread_mutex_unlock(&d->lock);
    return st;
}
