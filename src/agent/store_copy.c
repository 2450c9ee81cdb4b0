/* Making a copy: room in the target tier, the source opened, the way chosen, the bytes checked as
 * they land, and the copy sealed under the shard's own id. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "base/plane.h"

#define WINDOW  (8 * HL_POOL_CHUNK) /* between two looks at the clock */
#define WAIT_MS 10

struct making {
    struct store *s;
    const struct store_request *r;
    struct store_tier *target;
    struct hl_tier_slot slot;
    struct source src;
    struct hl_route route;
};

/* ---- the way --------------------------------------------------------------------------------- */

static struct hl_route choose(const struct making *m, enum hl_route_direct direct)
{
    const struct store_tier *device = m->target->tier == HL_TIER_L1 ? m->target : m->src.own;
    int is_device = device != NULL && device->tier == HL_TIER_L1;
    return hl_route_choose(&(struct hl_route_query){
        .op = m->r->op,
        .source = m->r->source_tier,
        .target = m->target->tier,
        .link = m->src.link,
        .nic = is_device ? device->nic : HL_NIC_OTHER,
        .device_direct = is_device && device->device_direct,
        .direct = direct,
    });
}

static void count(const struct making *m, hl_status st, uint64_t begun_ns)
{
    hl_plane_count(&(struct hl_transfer){.plane = hl_route_plane_of(m->route.path),
                                         .op = hl_route_op_name(m->r->op),
                                         .path = hl_route_path_name(m->route.path),
                                         .reason = hl_route_reason_name(m->route.reason),
                                         .bytes = st == HL_OK ? m->src.size : 0,
                                         .ns = hl_now_ns() - begun_ns,
                                         .status = st});
}

/* ---- the bytes ------------------------------------------------------------------------------- */

static hl_status land(struct making *m)
{
    for (uint64_t at = 0; at < m->src.size; at += WINDOW) {
        uint64_t n = m->src.size - at < WINDOW ? m->src.size - at : WINDOW;
        HL_TRY(source_read(m->s, &m->src, at, (uint8_t *)m->slot.host + at, (size_t)n));
    }
    return HL_OK;
}

/* ---- the room -------------------------------------------------------------------------------- */

static int nap(const struct store *s, const struct store_request *r)
{
    int ms;
    if (store_left(s, r, &ms) != HL_OK)
        return 0;
    nanosleep(&(struct timespec){.tv_nsec = WAIT_MS * 1000000L}, NULL);
    return 1;
}

/* 1: it is here, or has arrived by another way while we waited. What was dropped a moment ago still
 * rests: worth waiting for. */
static hl_status take_room(struct making *m, uint64_t size, struct hl_tier_ref *ref, int *here)
{
    for (;;) {
        struct hl_tier_usage u;
        *here = hl_tier_find(m->target->t, m->r->id, ref) == HL_OK;
        if (*here)
            return HL_OK;
        hl_status st = hl_tier_reserve(m->target->t, m->r->id, size, m->r->numa, &m->slot);
        if (st == HL_OK || (st != HL_ENOSPC && st != HL_EEXIST))
            return st;
        hl_tier_usage(m->target->t, &u);
        if (st == HL_ENOSPC && (u.quarantined == 0 || u.used + size > u.quota))
            return st;
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        if (!nap(m->s, m->r))
            return hl_fail(st, "%s", text);
    }
}

static hl_status fill(struct making *m, struct store_result *out)
{
    struct hl_tier_ref ref;
    uint64_t begun = hl_now_ns();
    m->route = choose(m, HL_DIRECT_GOOD);
    hl_status st = m->route.path == HL_PATH_NONE
                       ? hl_fail(HL_EUNSUPPORTED, "%s", hl_route_reason_text(m->route.reason))
                       : land(m);
    if (st == HL_OK)
        st = hl_tier_seal(m->target->t, &m->slot, m->src.crc32, m->src.crcs,
                          hl_pool_chunks(m->src.size), &ref);
    count(m, st, begun);
    HL_TRY(st);
    struct store_result how = {.path = hl_route_path_name(m->route.path),
                               .reason = hl_route_reason_name(m->route.reason),
                               .seconds = (double)(hl_now_ns() - begun) / 1e9,
                               .created_ms = hl_wall_ms()};
    memcpy(how.transport, m->src.transport, sizeof(how.transport));
    store_note(m->s, m->target, m->r->id, &how);
    store_describe(m->s, m->target, &ref, out);
    return HL_OK;
}

static hl_status make(struct making *m, struct store_result *out)
{
    struct hl_tier_ref ref;
    int here;
    HL_TRY(source_open(m->s, m->r, &m->src));
    hl_status st = take_room(m, m->src.size, &ref, &here);
    if (st == HL_OK && here) {
        store_describe(m->s, m->target, &ref, out);
    } else if (st == HL_OK) {
        st = fill(m, out);
        if (st != HL_OK) {
            char text[HL_ERROR_TEXT_MAX];
            snprintf(text, sizeof(text), "%s", hl_error_text());
            hl_tier_abort(m->target->t, &m->slot);
            hl_fail(st, "%s", text);
        }
    }
    source_close(m->s, &m->src);
    return st;
}

static const char *source_name(const struct store_request *r)
{
    return r->source_node[0] != '\0' ? r->source_node : "the pool's host";
}

hl_status store_copy_run(struct store *s, const struct store_request *r, struct store_result *out)
{
    struct making m = {.s = s, .r = r};
    struct hl_tier_ref ref;
    uint64_t begun = hl_now_ns();
    HL_TRY(store_tier_need(s, r->tier, r->device, r->numa, r->size, &m.target));
    if (hl_tier_find(m.target->t, r->id, &ref) == HL_OK) {
        store_describe(s, m.target, &ref, out);
        return HL_OK;
    }
    hl_status st = make(&m, out);
    if (st != HL_OK)
        return hl_fail_prefix(st,
                              "copy of shard %s from %s of %s to %s of %s failed after %.3f s: ",
                              hl_id_format(r->id).s, hl_tier_name(r->source_tier), source_name(r),
                              hl_tier_name(r->tier), s->node, (double)(hl_now_ns() - begun) / 1e9);
    store_changed(s);
    hl_info("copy made id=%s tier=%s device=%s bytes=%" PRIu64
            " path=%s reason=%s transport=%s seconds=%.3f",
            hl_id_format(r->id).s, hl_tier_name(r->tier), out->device, out->size, out->path,
            out->reason, out->transport, out->seconds);
    return HL_OK;
}
