/* Makes a copy: takes room in the target tier, opens the source, chooses the route, checks the
 * bytes as they land, and seals the copy under the shard's own id.
 *
 * A copy thread makes one copy at a time, so a `making` needs no lock. The tiers have locks of
 * their own. A slot belongs to its thread alone until it is sealed: before that no reader finds the
 * shard there. All copies share only the health of direct paths, under the store's lock.
 *
 * Two jobs, or a job and a put from another node, may bring the same shard into the same tier. The
 * tier decides who is first; what a thread looked up before it reserved (copy_is_here) is only a
 * short cut. The second one waits until the first has sealed its copy, which is then the result of
 * both, or has given its slot back. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "base/plane.h"
#include "core/copies/copy_attempt.h"
#include "mem/plank/plank.h"

#define WINDOW  (8 * HL_CHUNK) /* between two checks of the clock */
#define DOWN_MS 2000           /* for a kept copy to move down to the L2 while a reader waits */

/* One copy on its way into a tier of this node; one thread has it.
 *
 *     take_room --> source_open --> choose_route --> bytes land, checked --> seal
 *        |              |               |  direct failed: fall_back, by TCP or the plank
 *        '--------------'---------------'--> abort: the slot is given back */
struct making {
    struct store *s;
    const struct store_request *r;
    struct store_tier *target;
    struct hl_tier_store *into; /* the target's store for placed copies, or for kept ones */
    struct hl_tier_slot slot;
    struct source src;
    struct hl_route route;
    struct hl_pace pace;
};

/* ---- the route ------------------------------------------------------------------------------- */

/* Whatever was ordered, this side fetches the bytes, so it is a read. */
static struct hl_route choose_route(const struct making *m, enum hl_route_direct direct)
{
    const struct store_tier *device = m->target->tier == HL_API_TIER_L1 ? m->target : m->src.own;
    bool is_device = device != NULL && device->tier == HL_API_TIER_L1;
    return hl_route_choose(&(struct hl_route_query){
        .op = HL_API_OPERATION_READ,
        .source = m->r->source_tier,
        .target = m->target->tier,
        .link = m->src.link,
        .nic = is_device ? device->nic : HL_NIC_OTHER,
        .device_direct = is_device && device->direct,
        .direct = direct,
    });
}

static void count_transfer(const struct making *m, hl_status st, uint64_t begun_ns)
{
    hl_plane_count(&(struct hl_transfer){.plane = hl_route_plane_of(m->route.path),
                                         .op = hl_api_operation_name(HL_API_OPERATION_READ),
                                         .path = hl_api_route_path_name(m->route.path),
                                         .reason = hl_api_route_reason_name(m->route.reason),
                                         .bytes = st == HL_OK ? m->src.size : 0,
                                         .ns = hl_now_ns() - begun_ns,
                                         .status = st});
}

/* ---- the bytes ------------------------------------------------------------------------------- */

/* The plank moves both legs at the same time, one of them on a thread of its own. They share no
 * part of `making` that changes: fetch uses the source, deliver the slot. */
static hl_status fetch_leg(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms)
{
    struct making *m = arg;
    (void)timeout_ms; /* the order's own deadline is checked instead */
    HL_TRY(source_read(m->s, &m->src, offset, staging, len));
    return store_pace(m->s, m->r, &m->pace, len);
}

static hl_status deliver_leg(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms)
{
    struct making *m = arg;
    (void)timeout_ms;
    return hl_tier_fill(m->into, &m->slot, offset, staging, len);
}

/* Lands the bytes through host memory, both legs at the same time. */
static hl_status land_staged(struct making *m)
{
    int ms;
    HL_TRY(store_left(m->s, m->r, &ms));
    return hl_plank_copy(m->target->plank,
                         &(struct hl_plank_job){.size = m->src.size,
                                                .fetch = {.move = fetch_leg, .arg = m},
                                                .deliver = {.move = deliver_leg, .arg = m},
                                                .timeout_ms = ms},
                         NULL);
}

/* Lands the bytes directly in the slot if the processor, or the NIC, can write there. */
static hl_status land_bytes(struct making *m)
{
    if (m->route.path == HL_API_ROUTE_PATH_PLANK || m->slot.host == NULL)
        return land_staged(m);

    uint64_t window = m->pace.bytes_per_s > 0 ? HL_CHUNK : WINDOW;
    for (uint64_t at = 0; at < m->src.size; at += window) {
        uint64_t n = m->src.size - at < window ? m->src.size - at : window;
        HL_TRY(source_read(m->s, &m->src, at, (uint8_t *)m->slot.host + at, (size_t)n));
        HL_TRY(store_pace(m->s, m->r, &m->pace, n));
    }
    return HL_OK;
}

/* ---- the direct path's health ---------------------------------------------------------------- */

/* The path from one peer into one tier, with the store's lock:
 *
 *     good (also: unknown) --failed--> direct is not tried, for retry_first_ms
 *        ^                                ^        | the time is over: copies try it again
 *        '------------ worked ------------|--------'
 *                                         '--failed again: twice as long, at most retry_max_ms */
static struct store_health *health_of(struct making *m, bool make)
{
    struct store_health *h = NULL;
    struct store_health_key key = {.tier = (uint64_t)(m->target - m->s->tiers)};
    snprintf(key.peer, sizeof(key.peer), "%s", m->r->source_data);
    HASH_FIND(hh, m->s->health, &key, sizeof(key), h);
    if (h == NULL && make && (h = calloc(1, sizeof(*h))) != NULL) {
        h->key = key;
        HASH_ADD(hh, m->s->health, key, sizeof(h->key), h);
    }
    return h;
}

static enum hl_route_direct direct_now(struct making *m)
{
    pthread_mutex_lock(&m->s->lock);
    const struct store_health *h = health_of(m, false);
    enum hl_route_direct direct =
        h == NULL ? HL_DIRECT_GOOD : hl_route_health_at(&h->direct, hl_now_ns() / HL_NS_PER_MS);
    pthread_mutex_unlock(&m->s->lock);
    return direct;
}

static void note_direct(struct making *m, hl_status st)
{
    const struct store_opts *o = &m->s->opts;
    pthread_mutex_lock(&m->s->lock);
    struct store_health *h = health_of(m, hl_copy_blames_path(st));
    if (h != NULL && hl_copy_blames_path(st))
        hl_route_health_failed(&h->direct, hl_now_ns() / HL_NS_PER_MS, o->retry_first_ms,
                               o->retry_max_ms);
    else if (h != NULL && st == HL_OK)
        hl_route_health_worked(&h->direct);
    pthread_mutex_unlock(&m->s->lock);
}

/* Counts the failed attempt; the copy continues on the remaining route. */
static void fall_back(struct making *m, hl_status st, uint64_t begun_ns)
{
    hl_warn("direct path from %s failed, not used for a while error=\"%s\"", m->r->source_data,
            hl_error_text());
    hl_fault_count("direct-failed", hl_api_route_path_name(m->route.path));
    count_transfer(m, st, begun_ns);
    m->route = choose_route(m, HL_DIRECT_FAILED);
    if (m->route.path == HL_API_ROUTE_PATH_TCP)
        source_ask(m->s, &m->src);
    else
        source_revive(&m->src);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* True if a copy is here already. Readers can use a kept copy; an order turns it into a placed one.
 */
static bool copy_is_here(const struct making *m, const struct store_tier *t,
                         struct hl_tier_ref *ref)
{
    if (t->tier == HL_API_TIER_L2 && !m->r->keeps)
        store_keep_place(m->s, m->r->id);
    return hl_tier_find(t->t, m->r->id, ref) == HL_OK ||
           (m->r->keeps && store_keep_find(m->s, t, m->r->id, ref));
}

/* Moves what the rule gives up in a device down to the L2. Copies that can't be moved leave the
 * device nevertheless. */
static void carry_down(struct store *s, struct store_tier *device)
{
    struct store_result out;
    struct hl_id id;
    while (store_keep_leaving(s, device, &id)) {
        const struct store_request down = {.id = id,
                                           .tier = HL_API_TIER_L2,
                                           .source_tier = HL_API_TIER_L1,
                                           .device = "",
                                           .source_device = device->device,
                                           .numa = -1,
                                           .source_node = s->node,
                                           .source_host = "",
                                           .source_rpc = "",
                                           .source_data = "",
                                           .source_socket = "",
                                           .op = HL_API_OPERATION_READ,
                                           .deadline_ns = hl_now_ns() + DOWN_MS * HL_NS_PER_MS,
                                           .keeps = true,
                                           .goes_down = true};
        if (store_copy_run(s, &down, &out) != HL_OK)
            hl_debug("kept copy leaves the node: %s", hl_error_text());
        store_keep_left(s, device, id);
    }
}

static hl_status reserve_slot(struct making *m, uint64_t size)
{
    m->into = m->r->keeps && m->target->kept != NULL ? m->target->kept : m->target->t;
    if (!m->r->keeps)
        return store_reserve(m->s, m->target, m->r->id, size, m->r->numa, &m->slot);
    for (;;) {
        hl_status st = store_keep_reserve(m->s, m->target, m->r->id, size, m->r->numa, &m->slot);
        if (st != HL_ENOSPC || !store_keep_yield(m->s, m->target, size))
            return st;
        carry_down(m->s, m->target);
    }
}

/* *here: the copy is here, or has arrived by another way while we waited. Copies that were just
 * dropped are still in quarantine: an order waits for their room, a reader does not. Another thread
 * may also seal or abort the same shard; a device's tier announces neither. */
static hl_status take_room(struct making *m, uint64_t size, struct hl_tier_ref *ref, int *here)
{
    for (;;) {
        struct hl_tier_usage u;
        *here = copy_is_here(m, m->target, ref);
        if (*here)
            return HL_OK;
        hl_status st = reserve_slot(m, size);
        hl_tier_usage(m->target->t, &u);
        if (st == HL_OK || (m->r->keeps && st == HL_ENOSPC) ||
            !hl_copy_room_may_come(st, &(struct hl_copy_room){.quota = u.quota,
                                                              .used = u.used,
                                                              .quarantined = u.quarantined,
                                                              .size = size}))
            return st;
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        if (!store_pause(m->s, m->r))
            return hl_fail(st, "%s", text);
    }
}

static hl_status fill_result(struct making *m, struct store_result *out)
{
    struct hl_tier_ref ref;
    uint64_t begun = hl_now_ns();
    m->route = choose_route(m, direct_now(m));
    hl_status st = m->route.path == HL_API_ROUTE_PATH_NONE
                       ? hl_fail(HL_EUNSUPPORTED, "%s", hl_route_reason_text(m->route.reason))
                       : land_bytes(m);
    if (m->route.path == HL_API_ROUTE_PATH_DIRECT) {
        note_direct(m, st);
        if (hl_copy_blames_path(st)) {
            fall_back(m, st, begun);
            begun = hl_now_ns();
            st = land_bytes(m);
        }
    }
    /* From here on the copy can be found. All bytes were checked as they landed. */
    if (st == HL_OK)
        st = hl_tier_seal(m->into, &m->slot, m->src.crc32, source_crcs(&m->src),
                          hl_chunk_count(m->src.size), &ref);
    count_transfer(m, st, begun);
    HL_TRY(st);
    struct store_result how = {.path = m->route.path,
                               .reason = m->route.reason,
                               .seconds = (double)(hl_now_ns() - begun) / 1e9,
                               .created_ms = hl_wall_ms()};
    memcpy(how.transport, m->src.transport, sizeof(how.transport));
    if (!m->r->keeps)
        store_note(m->s, m->target, m->r->id, &how);
    store_describe(m->s, m->target, &ref, out);
    out->path = how.path;
    out->reason = how.reason;
    memcpy(out->transport, how.transport, sizeof(out->transport));
    return HL_OK;
}

/* The rule may have given up other copies for this one. */
static void end_load(struct making *m, hl_status st)
{
    store_keep_loaded(m->s, m->target, &m->slot, m->r->goes_down, st);
    if (m->target->kept != NULL)
        carry_down(m->s, m->target);
}

/* Chooses the tier again: if the order did not give the shard's size, only the source knows it. */
static hl_status make_copy(struct making *m, struct store_result *out)
{
    struct hl_tier_ref ref;
    int here;
    const struct store_request *r = m->r;
    HL_TRY(source_open(m->s, r, &m->src));
    hl_status st = store_tier_need(m->s, r->tier, r->device, r->numa, m->src.size, &m->target);
    if (st == HL_OK)
        st = take_room(m, m->src.size, &ref, &here);
    if (st == HL_OK && here) {
        store_describe(m->s, m->target, &ref, out);
    } else if (st == HL_OK) {
        st = fill_result(m, out);
        if (st != HL_OK) {
            char text[HL_ERROR_TEXT_MAX];
            snprintf(text, sizeof(text), "%s", hl_error_text());
            hl_tier_abort(m->into, &m->slot);
            hl_fail(st, "%s", text);
        }
        if (r->keeps)
            end_load(m, st);
        else if (st == HL_OK)
            store_keep_forget(m->s, m->target, r->id); /* the placed copy replaces it */
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
    struct making m = {.s = s, .r = r, .pace = {.bytes_per_s = r->bytes_per_s}};
    struct hl_tier_ref ref;
    uint64_t begun = hl_now_ns();
    HL_TRY(store_tier_need(s, r->tier, r->device, r->numa, r->size, &m.target));
    for (size_t i = 0; i < s->tier_count; i++) {
        const struct store_tier *t = &s->tiers[i];
        if (t->tier == r->tier && (r->device[0] == '\0' || strcmp(r->device, t->device) == 0) &&
            copy_is_here(&m, t, &ref)) {
            store_describe(s, t, &ref, out);
            return HL_OK;
        }
    }
    hl_status st = make_copy(&m, out);
    if (st != HL_OK)
        return hl_fail_prefix(
            st, "copy of shard %s from %s of %s to %s of %s failed after %.3f s: ",
            hl_id_format(r->id).s, hl_api_tier_name(r->source_tier), source_name(r),
            hl_api_tier_name(r->tier), s->node, (double)(hl_now_ns() - begun) / 1e9);
    if (!r->keeps)
        store_changed(s);
    hl_log_write(r->keeps ? HL_LOG_DEBUG : HL_LOG_INFO,
                 "copy made id=%s tier=%s device=%s bytes=%" PRIu64
                 " path=%s reason=%s transport=%s seconds=%.3f",
                 hl_id_format(r->id).s, hl_api_tier_name(r->tier), out->device, out->size,
                 hl_api_route_path_name(out->path), hl_api_route_reason_name(out->reason),
                 out->transport, out->seconds);
    return HL_OK;
}

/* Loads into a device through the L2, which keeps its copy until it needs the room. */
static hl_status keep_in_device(struct store *s, const struct store_request *r,
                                struct store_result *out)
{
    struct store_request host = *r, device = *r;
    host.tier = HL_API_TIER_L2;
    host.device = "";
    HL_TRY(store_copy_run(s, &host, out));
    if (out->path == HL_API_ROUTE_PATH_UNSAID) /* the copy was in the L2 already */
        store_keep_touch(s, &s->tiers[0], r->id, 1);
    device.size = out->size;
    device.crc32 = out->crc32;
    device.source_tier = HL_API_TIER_L2;
    device.source_node = s->node;
    return store_copy_run(s, &device, out);
}

/* Reads from a device of this node if one has the shard: that is nearer than the reader's source.
 */
static hl_status keep_in_l2(struct store *s, const struct store_request *r,
                            struct store_result *out)
{
    struct store_request own = *r;
    struct hl_tier_ref ref;
    own.source_tier = HL_API_TIER_L1;
    own.source_node = s->node;
    for (size_t i = 1; i < s->tier_count; i++) {
        const struct store_tier *t = &s->tiers[i];
        own.source_device = t->device;
        if ((store_keep_find(s, t, r->id, &ref) || hl_tier_find(t->t, r->id, &ref) == HL_OK) &&
            store_copy_run(s, &own, out) == HL_OK)
            return HL_OK;
    }
    return store_copy_run(s, r, out);
}

hl_status store_keep_run(struct store *s, const struct store_request *r, struct store_result *out)
{
    return r->tier == HL_API_TIER_L1 ? keep_in_device(s, r, out) : keep_in_l2(s, r, out);
}
