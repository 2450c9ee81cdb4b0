/* Reading without messages: find the entry, copy the bytes and compute their CRC in one pass, then
 * check the generation again. A reader makes no system call and writes nothing: its mapping is
 * read-only.
 *
 *     reader, any thread of any process       owner, under its lock
 *     ---------------------------------       ------------------------------------------
 *     find: load gen (even, else again)       change an entry: store gen odd
 *           load id, offset, CRCs                              store the fields
 *           load gen: the same, else again                     store gen even, 2 higher
 *     read: copy bytes, computing their CRC   free: state FREED under a new gen; the bytes
 *           fence                                   stay for the quarantine, and while
 *           load gen: equal to ref.gen?             they are pinned
 *             yes: the CRC decides
 *             no:  HL_ESTALE, whatever the CRC: the bytes may be another shard's
 *
 * A copy may take longer than the quarantine. Therefore the generation is compared after it, and a
 * view that hands out a pointer (hl_pool_view_data) needs a pin.
 *
 * Loads can't detect that the owner has died. Therefore every read compares the incarnation (its
 * line is in the cache anyway), and hl_pool_view_alive checks the age of the heartbeat. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "mem/chunks.h"
#include "mem/pool/pool_private.h"
#include "os/file.h"
#include "os/map_guard.h"
#include "os/shm.h"

/* Constant after the open, except for `refs`: any thread can use a view without a lock. */
struct hl_pool_view {
    const uint8_t *base;
    const struct hl_pool_super *super;
    const struct hl_pool_entry *index;
    uint64_t slots;
    uint64_t file_size;
    uint64_t incarnation; /* the owner's at the open; a different one makes the view stale */
    atomic_uint refs;     /* the last put unmaps */
    int fd;               /* opened read-only */
    int guard;
};

hl_status hl_pool_view_open(int fd, struct hl_pool_view **out)
{
    struct stat sb;
    void *base = NULL;
    if (fstat(fd, &sb) != 0)
        return hl_fail(HL_EIO, "stat the pool's descriptor: %m");
    if (sb.st_size < (off_t)HL_POOL_UNIT)
        return hl_fail(HL_EINVAL, "the descriptor is not one of a Helios pool");
    struct hl_pool_view *v = calloc(1, sizeof(*v));
    if (v == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a view of the pool");
    v->file_size = (uint64_t)sb.st_size;
    v->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    hl_status st = v->fd >= 0 ? hl_shm_map(fd, v->file_size, false, &base)
                              : hl_fail(hl_status_of_errno(errno), "copy a descriptor: %m");
    if (st != HL_OK) {
        hl_closep(&v->fd);
        free(v);
        return st;
    }
    v->base = base;
    v->guard = hl_map_guard_add(base, v->file_size, v->fd, false);
    v->super = base;
    atomic_init(&v->refs, 1);
    st = pool_super_check(v->super, v->file_size, "the mapped pool");
    v->incarnation = POOL_GET(v->super->incarnation);
    if (st == HL_OK && v->incarnation == 0)
        st = hl_fail(HL_EUNAVAIL, "the mapped pool has no owner at the moment");
    if (st != HL_OK) {
        hl_pool_view_put(v);
        return st;
    }
    v->slots = v->super->index_slots;
    v->index = (const struct hl_pool_entry *)(v->base + v->super->index_offset);
    hl_shm_prefault(base, v->super->data_offset, false);
    *out = v;
    return HL_OK;
}

struct hl_pool_view *hl_pool_view_get(struct hl_pool_view *view)
{
    atomic_fetch_add_explicit(&view->refs, 1, memory_order_relaxed);
    return view;
}

void hl_pool_view_put(struct hl_pool_view *view)
{
    if (view == NULL || atomic_fetch_sub_explicit(&view->refs, 1, memory_order_acq_rel) != 1)
        return;
    hl_map_guard_remove(view->guard);
    hl_shm_unmap((void *)view->base, view->file_size);
    hl_closep(&view->fd);
    free(view);
}

static uint64_t heartbeat_age(const struct hl_pool_view *v)
{
    uint64_t beat = POOL_GET(v->super->heartbeat_ns);
    uint64_t now = hl_now_ns();
    return now > beat ? now - beat : 0;
}

void hl_pool_view_info(const struct hl_pool_view *view, struct hl_pool_view_info *out)
{
    *out = (struct hl_pool_view_info){
        .uuid = view->super->uuid,
        .incarnation = view->incarnation,
        .capacity = view->super->capacity,
        .heartbeat_age_ns = heartbeat_age(view),
    };
}

static hl_status check_owner(const struct hl_pool_view *v)
{
    if (hl_map_guard_damaged(v->guard))
        return hl_fail(HL_EUNAVAIL,
                       "the pool's file was truncated while it was mapped; connect to it again");
    if (POOL_GET(v->super->incarnation) == v->incarnation)
        return HL_OK;
    return hl_fail(HL_ESTALE, "the pool's owner has restarted or ended; connect to it again");
}

hl_status hl_pool_view_alive(const struct hl_pool_view *view)
{
    HL_TRY(check_owner(view));
    uint64_t age = heartbeat_age(view);
    if (age <= HEARTBEAT_OLD_NS)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL, "helios-l3d has shown no sign of life for %" PRIu64 " ms",
                   age / HL_NS_PER_MS);
}

hl_status hl_pool_view_find(const struct hl_pool_view *view, struct hl_id id,
                            struct hl_pool_ref *out)
{
    HL_TRY(check_owner(view));
    struct hl_pool_ref r;
    hl_status st = pool_lookup(view->index, view->slots, id, &r);
    if (st == HL_EBUSY)
        return hl_fail(st, "the pool's index is being changed; look up shard %s again",
                       hl_id_format(id).s);
    if (st == HL_ENOENT)
        return hl_fail(st, "shard %s is not in the pool", hl_id_format(id).s);
    if (st != HL_OK || !pool_extent_fits(view->super, r.offset, r.size))
        return hl_fail(HL_ECORRUPT, "the pool's index entry of shard %s is damaged",
                       hl_id_format(id).s);
    *out = r;
    return HL_OK;
}

hl_status hl_pool_view_check(const struct hl_pool_view *view, const struct hl_pool_ref *ref)
{
    HL_TRY(check_owner(view));
    if (ref->slot < view->slots && POOL_GET(view->index[ref->slot].gen) == ref->gen)
        return HL_OK;
    return hl_fail(HL_ESTALE, "shard %s was freed; look it up again", hl_id_format(ref->id).s);
}

hl_status hl_pool_view_bounds(const struct hl_pool_view *view, const struct hl_pool_ref *ref)
{
    if (pool_extent_fits(view->super, ref->offset, ref->size))
        return HL_OK;
    return hl_fail(HL_EPROTO,
                   "shard %s: %" PRIu64 " bytes at %" PRIu64 " are not in the mapped pool",
                   hl_id_format(ref->id).s, ref->size, ref->offset);
}

const void *hl_pool_view_data(const struct hl_pool_view *view, const struct hl_pool_ref *ref)
{
    return view->base + ref->offset;
}

const uint32_t *hl_pool_view_chunk_crcs(const struct hl_pool_view *view,
                                        const struct hl_pool_ref *ref)
{
    return (const uint32_t *)(view->base + ref->offset + hl_pool_table_offset(ref->size));
}

/* For a shard of one chunk the entry's own CRC saves a cache miss on the table. */
static uint32_t chunk_crc(const struct hl_pool_view *v, const struct hl_pool_ref *r, uint64_t chunk)
{
    return r->size <= HL_CHUNK ? r->crc32 : hl_pool_view_chunk_crcs(v, r)[chunk];
}

/* A wrong CRC means nothing once the bytes belong to another shard. */
static hl_status fail_chunk(const struct hl_pool_view *v, const struct hl_pool_ref *r,
                            uint64_t chunk)
{
    pool_acquire_fence();
    HL_TRY(hl_pool_view_check(v, r));
    return hl_fail(HL_ECORRUPT,
                   "shard %s: chunk %" PRIu64 " of %" PRIu64 " in the pool fails its CRC",
                   hl_id_format(r->id).s, chunk, hl_chunk_count(r->size));
}

/* Checks that the reference's generation is current and that its extent lies within the mapping. */
static hl_status check_ref(const struct hl_pool_view *v, const struct hl_pool_ref *r)
{
    HL_TRY(hl_pool_view_check(v, r));
    if (!pool_extent_fits(v->super, r->offset, r->size))
        return hl_fail(HL_EINVAL, "the reference of shard %s points outside the pool",
                       hl_id_format(r->id).s);
    return HL_OK;
}

hl_status hl_pool_view_read(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                            uint64_t offset, void *buf, size_t len)
{
    uint64_t bad = 0;
    struct hl_chunks c = {ref->size, ref->crc32, hl_pool_view_chunk_crcs(view, ref)};
    HL_TRY(check_ref(view, ref));
    HL_TRY(hl_chunks_range(ref->id, ref->size, offset, len));
    if (!hl_chunks_copy(&c, view->base + ref->offset, offset, buf, len, &bad)) {
        HL_TRY(check_owner(view));
        return fail_chunk(view, ref, bad);
    }
    pool_acquire_fence();
    return hl_pool_view_check(view, ref);
}

hl_status hl_pool_view_map_private(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                   struct hl_pool_private *out)
{
    struct hl_pool_private m;
    HL_TRY(check_ref(view, ref));
    uint64_t before = ref->offset % hl_shm_granule(view->fd);
    HL_TRY(hl_shm_map_private(view->fd, ref->offset - before, before + ref->size, &m.base, &m.len));
    m.data = (uint8_t *)m.base + before;
    *out = m;
    return HL_OK;
}

void hl_pool_view_unmap_private(struct hl_pool_private *mapping)
{
    hl_shm_unmap(mapping->base, mapping->len);
    *mapping = (struct hl_pool_private){0};
}

hl_status hl_pool_view_verify(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                              uint32_t *bad_chunk)
{
    return hl_pool_view_verify_at(view, ref, view->base + ref->offset, bad_chunk);
}

hl_status hl_pool_view_verify_at(const struct hl_pool_view *view, const struct hl_pool_ref *ref,
                                 const void *bytes, uint32_t *bad_chunk)
{
    HL_TRY(check_ref(view, ref));
    uint64_t chunks = hl_chunk_count(ref->size);
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t len = i + 1 < chunks ? HL_CHUNK : ref->size - i * HL_CHUNK;
        const uint8_t *data = (const uint8_t *)bytes + i * HL_CHUNK;
        if (hl_crc32(0, data, len) == chunk_crc(view, ref, i))
            continue;
        hl_status st = fail_chunk(view, ref, i);
        if (st == HL_ECORRUPT && bad_chunk != NULL)
            *bad_chunk = (uint32_t)i;
        return st;
    }
    pool_acquire_fence();
    return hl_pool_view_check(view, ref);
}
