/* Stores shards of the pool in the archive. */

#include "base/clock.h"
#include "base/crc32.h"
#include "base/plane.h"
#include "l3d/l4.h"
#include "l3d/l4_private.h"

/* If the archive has a network of its own, we don't count it: its transfers end on this host. */
void l4_count_transfer(enum hl_api_tier source, enum hl_api_tier target, uint64_t size,
                       uint64_t begun_ns, hl_status st)
{
    struct hl_transfer t = hl_route_transfer(&(struct hl_route_query){
        .op = source == HL_API_TIER_L4 ? HL_API_OPERATION_READ : HL_API_OPERATION_WRITE,
        .source = source,
        .target = target,
        .link = HL_LINK_HERE});
    t.sent = target == HL_API_TIER_L4;
    t.bytes = st == HL_OK ? size : 0;
    t.ns = hl_now_ns() - begun_ns;
    t.status = st;
    hl_plane_count(&t);
}

bool l4_has(struct hl_l3d *d, struct hl_id id, uint64_t *size)
{
    struct hl_archive *a = l4_archive(d);
    return a != NULL && !l4_bad_has(d, id) && hl_archive_size(a, id, size) == HL_OK;
}

/* Removes a bad archived copy. What counts as bad may be read well later, by another mount or
 * network, so it only goes if the pool's copy is good. */
static hl_status make_way(struct hl_archive *a, const struct hl_pool_ref *ref, const char *bytes)
{
    if (hl_crc32(0, bytes, ref->size) != ref->crc32)
        return hl_fail(HL_ECORRUPT,
                       "shard %s: the copies in the pool and in the archive are both damaged",
                       hl_id_format(ref->id).s);
    (void)!hl_archive_remove(a, ref->id);
    hl_error_clear();
    return HL_OK;
}

hl_status l4_store_now(struct hl_l3d *d, struct hl_id id)
{
    struct hl_pool_ref ref;
    struct hl_archive *a;
    hl_status there = l4_look(d, id);
    if (there != HL_ENOENT && there != HL_ECORRUPT)
        return there;
    HL_TRY(l4_need(d, &a));
    HL_TRY(claim_sign(d, a));
    HL_TRY(hl_pool_pin(d->pool, id, 0, &ref));
    size_t len;
    const char *bytes = (const char *)hl_pool_base(d->pool, &len) + ref.offset;
    hl_status st = l4_bad_has(d, id) ? make_way(a, &ref, bytes) : HL_OK;
    if (st != HL_OK) {
        hl_pool_unpin(d->pool, &ref);
        return st;
    }
    uint64_t begun_ns = hl_now_ns();
    st = hl_archive_put(a, id, bytes, ref.size, ref.crc32);
    if (st != HL_EEXIST)
        l4_count_transfer(HL_API_TIER_L3, HL_API_TIER_L4, ref.size, begun_ns, st);
    hl_pool_unpin(d->pool, &ref);
    if (st == HL_OK) {
        l4_bad_clear(d, id);
        atomic_fetch_add(&d->l4->evictable, 1);
    }
    return st == HL_EEXIST && !l4_bad_has(d, id) ? HL_OK : st;
}
