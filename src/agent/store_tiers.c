/* The table of a node's tiers: which one is meant, what each reports about itself, how a copy got
 * there, and that something changed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "agent/store_private.h"
#include "base/clock.h"
#include "core/copies/room.h"
#include "mem/tier/tier.h"

#define PACE_LOOK_NS (20 * HL_NS_PER_MS) /* a waiting copy may be stopped */

/* Call it when the change can be seen. The heartbeat reads the epoch before the Controller lists
 * the store: a change in between is in the list, or has a higher epoch and is listed next time. */
void store_changed(struct store *s)
{
    atomic_fetch_add_explicit(&s->epoch, 1, memory_order_relaxed);
    if (s->opts.changed != NULL)
        s->opts.changed(s->opts.arg);
}

hl_status store_left(const struct store *s, const struct store_request *r, int *ms)
{
    uint64_t now = hl_now_ns();
    if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
        return hl_fail(HL_ECANCELED, "the Agent of node %s is shutting down", s->node);
    if (r->keeps && atomic_load_explicit(&s->keep.wanted, memory_order_relaxed) > 0)
        return hl_fail(HL_ECANCELED, "an ordered copy needs its room");
    if (r->stop != NULL && atomic_load_explicit(r->stop, memory_order_relaxed))
        return hl_fail(HL_ECANCELED, "it was stopped");
    if (now >= r->deadline_ns)
        return hl_fail(HL_ETIMEDOUT, "the deadline passed");
    uint64_t left = (r->deadline_ns - now) / HL_NS_PER_MS;
    *ms = left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (int)left;
    return HL_OK;
}

bool store_pause(const struct store *s, const struct store_request *r)
{
    int left;
    if (store_left(s, r, &left) != HL_OK)
        return false;
    int ms = s->opts.pause_ms < left ? s->opts.pause_ms : left;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    return true;
}

hl_status store_pace(const struct store *s, const struct store_request *r, struct hl_pace *pace,
                     uint64_t bytes)
{
    int left;
    uint64_t wait_ns;
    hl_pace_sent(pace, bytes, hl_now_ns());
    while ((wait_ns = hl_pace_wait_ns(pace, hl_now_ns())) > 0) {
        HL_TRY(store_left(s, r, &left));
        long ns = (long)(wait_ns < PACE_LOOK_NS ? wait_ns : PACE_LOOK_NS);
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    }
    return HL_OK;
}

/* Each tier's use is read under its own lock, one after the other, and may change right after: this
 * is a choice, and only a reservation gives room. */
struct store_tier *store_tier_find(struct store *s, enum hl_api_tier tier, const char *device,
                                   int numa, uint64_t size)
{
    struct hl_tier_offer offers[HL_ARRAY_LEN(s->tiers)];
    struct hl_tier_usage u;
    for (size_t i = 0; i < s->tier_count; i++) {
        const struct store_tier *t = &s->tiers[i];
        hl_tier_usage(t->t, &u);
        offers[i] = (struct hl_tier_offer){t->tier, t->device, t->numa, u.quota, u.used};
    }
    int best =
        hl_tier_choose(offers, s->tier_count, &(struct hl_tier_need){tier, device, numa, size});
    return best >= 0 ? &s->tiers[best] : NULL;
}

hl_status store_tier_need(struct store *s, enum hl_api_tier tier, const char *device, int numa,
                          uint64_t size, struct store_tier **out)
{
    struct store_tier *t = store_tier_find(s, tier, device, numa, size);
    if (t == NULL && tier == HL_API_TIER_L1 && device[0] != '\0')
        return hl_fail(HL_ENOENT, "node %s has no device '%.90s'", s->node, device);
    if (t == NULL && tier == HL_API_TIER_L1)
        return hl_fail(HL_EUNSUPPORTED, "node %s has no L1; start its agent with --devices",
                       s->node);
    if (t == NULL)
        return hl_fail(HL_EUNSUPPORTED, "node %s has no %s; start its agent with --l2-size",
                       s->node, hl_api_tier_name(tier));
    *out = t;
    return HL_OK;
}

size_t store_tiers(struct store *s, struct hl_arena *arena, struct hl_api_tier_info *out)
{
    for (size_t i = 0; i < s->tier_count; i++) {
        const struct store_tier *t = &s->tiers[i];
        out[i] = hl_tier_info(t->t, arena);
        out[i].nic_class = t->tier == HL_API_TIER_L1 ? hl_nic_class_name(t->nic) : "";
        out[i].nic_direct = t->direct;
        if (t->kept != NULL) {
            struct hl_tier_usage u;
            hl_tier_usage(t->kept, &u);
            out[i].kept_bytes = u.used;
            out[i].kept_shards = u.shards;
        }
    }
    return s->tier_count;
}

void store_note(struct store *s, const struct store_tier *t, struct hl_id id,
                const struct store_result *how)
{
    struct store_note *n, *old = NULL;
    struct store_note_key key = {id, (uint64_t)(t - s->tiers)};
    n = how != NULL ? calloc(1, sizeof(*n)) : NULL;
    if (n != NULL) {
        n->key = key;
        n->path = how->path;
        n->reason = how->reason;
        memcpy(n->transport, how->transport, sizeof(n->transport));
        n->seconds = how->seconds;
        n->created_ms = how->created_ms;
    }
    pthread_mutex_lock(&s->lock);
    HASH_FIND(hh, s->notes, &key, sizeof(key), old);
    if (old != NULL)
        HASH_DEL(s->notes, old);
    if (n != NULL)
        HASH_ADD(hh, s->notes, key, sizeof(n->key), n);
    pthread_mutex_unlock(&s->lock);
    free(old);
}

/* The tier's information is authoritative. The note (store_private.h) is only shown to users; a
 * copy adopted from an earlier Agent has none. */
void store_describe(struct store *s, const struct store_tier *t, const struct hl_tier_ref *ref,
                    struct store_result *out)
{
    struct store_note *n = NULL;
    struct store_note_key key = {ref->id, (uint64_t)(t - s->tiers)};
    *out = (struct store_result){
        .tier = t->tier, .size = ref->size, .crc32 = ref->crc32, .numa = ref->numa_id};
    memcpy(out->device, t->device, sizeof(out->device));
    pthread_mutex_lock(&s->lock);
    HASH_FIND(hh, s->notes, &key, sizeof(key), n);
    if (n != NULL) {
        out->path = n->path;
        out->reason = n->reason;
        memcpy(out->transport, n->transport, sizeof(out->transport));
        out->seconds = n->seconds;
        out->created_ms = n->created_ms;
    }
    pthread_mutex_unlock(&s->lock);
}
