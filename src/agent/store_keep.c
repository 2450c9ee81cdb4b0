/* What reads of this node leave behind in its L2 and L1 (core/placement/keep.h): fetched once for
 * all readers that ask at the same time, and kept while the rule and the room allow.
 *
 *     reader --storeKeep--> job (store_jobs.c) --room, bytes, checks--> kept copy, known by its key
 *       |                                                                 ^
 *       '--storeReads, or by mapping it: touched -------------------------|
 *            the rule says who leaves when another one comes -------------|  evicted, free at once
 *            placed copies, puts, leases need room -----------------------'
 *
 *     where           L2: an extent of the pool in the state KEPT; the next Agent finds it
 *                     L1: a block of the device in a tier of its own beside that of placed copies
 *
 * A kept copy is in no list: the Controller neither counts on it nor drops it. When the Controller
 * reports that shards have left its catalogue, the Agent asks which ones (link.c). The rule knows a
 * shard by a key of 31 bits, derived from its id; of two shards with the same key the first is
 * kept.
 *
 *     a kept copy     kept --the rule--> evicted, or lingers while a rank has it pinned
 *       of a device   kept --the rule--> leaves --store_copy.c--> goes down: to the L2, if not
 *                      ^                   |                      there, and then as above
 *                      '---- is read ------'-- room is ordered --> evicted
 *
 * A lingering or leaving copy can still be read. If a shard is in a device and in the L2, the L2's
 * copy goes first, because reads find it in the device.
 *
 * `keep.lock` guards the rule, the tables and the counters. The locks of tiers and of the pool are
 * taken while holding it; bytes are never transferred under it. Loading jobs read `wanted` without
 * it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "base/plane.h"
#include "os/cond.h"

#define LIST_PAGE   256
#define TOUCHES_MAX 4    /* more reads at once add no information for the rule */
#define WASTE_MAX   4    /* multiple of its size that may be evicted for one long extent */
#define CANCEL_MS   2000 /* until loads have noticed that their room is needed */

enum kept_state { KEPT_STAYS, KEPT_LEAVES, KEPT_GOES_DOWN, KEPT_LINGERS };

struct kept {
    uint32_t key;
    struct hl_id id;
    uint64_t bytes; /* in whole units */
    enum kept_state state;
    bool fresh; /* of a device: only the read that had it loaded has it mapped */
    UT_hash_handle hh;
};

static uint32_t key_of(struct hl_id id)
{
    uint64_t mixed = id.hi ^ id.lo;
    return (uint32_t)(mixed ^ mixed >> 32) & INT32_MAX; /* never HL_CACHE_NONE */
}

/* The tier's number in the rule. */
static unsigned where_of(const struct store_tier *t)
{
    return (unsigned)(t - t->keep.store->tiers);
}

/* Where kept copies of the tier are written. */
static struct hl_tier_store *kept_store(const struct store_tier *t)
{
    return t->kept != NULL ? t->kept : t->t;
}

static uint64_t room_of(const struct store_tier *t, uint64_t size)
{
    return hl_tier_room(t->t, size);
}

static enum hl_pool_kept copy_evict(const struct store_tier *t, struct hl_id id)
{
    if (t->kept == NULL)
        return hl_pool_evict_kept(t->keep.store->pool, id);
    hl_status st = hl_tier_drop(t->kept, id);
    return st == HL_OK      ? HL_POOL_KEPT_EVICTED
           : st == HL_EBUSY ? HL_POOL_KEPT_PINNED
                            : HL_POOL_KEPT_NOT;
}

/* ---- the table, with the lock ---------------------------------------------------------------- */

static struct kept *kept_of_key(struct store_tier *t, uint32_t key)
{
    struct kept *x;
    HASH_FIND(hh, t->keep.table, &key, sizeof(key), x);
    return x;
}

static struct kept *kept_find(struct store_tier *t, struct hl_id id)
{
    struct kept *x = kept_of_key(t, key_of(id));
    return x != NULL && hl_id_equal(x->id, id) ? x : NULL;
}

/* True if another shard has the same key, in any tier. */
static bool kept_is_twin(struct store *s, struct hl_id id)
{
    for (size_t i = 0; i < s->tier_count; i++) {
        const struct kept *x = kept_of_key(&s->tiers[i], key_of(id));
        if (x != NULL && !hl_id_equal(x->id, id))
            return true;
    }
    return false;
}

static struct kept *kept_add(struct store_tier *t, struct hl_id id, uint64_t bytes)
{
    struct kept *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    *x = (struct kept){.key = key_of(id), .id = id, .bytes = bytes};
    HASH_ADD(hh, t->keep.table, key, sizeof(x->key), x);
    t->keep.bytes += bytes;
    return x;
}

static void kept_become(struct store_tier *t, struct kept *x, enum kept_state state)
{
    t->keep.lingering -= x->state == KEPT_LINGERS ? x->bytes : 0;
    t->keep.lingering += state == KEPT_LINGERS ? x->bytes : 0;
    t->keep.leaving -= x->state == KEPT_LEAVES;
    t->keep.leaving += state == KEPT_LEAVES;
    x->state = state;
}

static void kept_remove(struct store_tier *t, struct kept *x)
{
    kept_become(t, x, KEPT_STAYS);
    t->keep.bytes -= x->bytes;
    HASH_DEL(t->keep.table, x);
    free(x);
}

/* False: the copy is pinned, and lingers. */
static bool kept_evict(struct store_tier *t, struct kept *x)
{
    enum hl_pool_kept was = copy_evict(t, x->id);
    t->keep.store->keep.counts.evicted += was == HL_POOL_KEPT_EVICTED;
    if (was == HL_POOL_KEPT_PINNED)
        kept_become(t, x, KEPT_LINGERS);
    else
        kept_remove(t, x);
    return was != HL_POOL_KEPT_PINNED;
}

/* The rule gives the copy up: on the whole node, or in a device. */
static void on_left(void *arg, uint32_t key, unsigned where)
{
    struct store *s = arg;
    struct store_tier *t = &s->tiers[where];
    struct kept *x = kept_of_key(t, key);
    if (x == NULL || x->state == KEPT_LINGERS)
        return;
    if (where != HL_KEEP_L2 && hl_keep_has(&s->keep.rule, key))
        kept_become(t, x, KEPT_LEAVES);
    else
        (void)kept_evict(t, x);
}

/* Tells the rule which tiers no longer have a copy. */
static void rule_follow(struct store *s, uint32_t key)
{
    bool kept = false;
    for (unsigned i = 0; i < s->tier_count; i++) {
        const struct kept *x = kept_of_key(&s->tiers[i], key);
        bool here = x != NULL && x->state != KEPT_LINGERS;
        if (!here && i != HL_KEEP_L2 && hl_keep_device_of(&s->keep.rule, key) == i)
            hl_keep_remove(&s->keep.rule, i, key);
        kept |= here;
    }
    if (!kept)
        hl_keep_remove(&s->keep.rule, HL_KEEP_L2, key);
}

/* Removes the copies that the rule has given up and that can go now. */
static void end_left(struct store_tier *t)
{
    struct kept *x, *next;
    if (t->keep.lingering == 0 && t->keep.leaving == 0)
        return;
    HASH_ITER (hh, t->keep.table, x, next) {
        uint32_t key = x->key;
        if ((x->state == KEPT_LINGERS || x->state == KEPT_LEAVES) && kept_evict(t, x))
            rule_follow(t->keep.store, key); /* removes no other entry, so `next` stays valid */
    }
}

static double share_of(const struct store_tier *t)
{
    const struct store_opts *o = &t->keep.store->opts;
    if (t->tier == HL_API_TIER_L2)
        return o->l2_keep;
    return t->bounded ? o->l1_keep : 0;
}

/* How much the rule may fill now. The L2's tier counts copies that are being loaded as placed. */
static uint64_t keep_capacity(const struct store_tier *t)
{
    const struct tier_keep *k = &t->keep;
    struct hl_tier_usage u;
    hl_tier_usage(t->t, &u);
    uint64_t loading = t->kept == NULL ? k->loading_bytes : 0;
    uint64_t placed = u.used > loading ? u.used - loading : 0;
    uint64_t room = hl_keep_room(u.quota, share_of(t), placed);
    return room > k->lingering ? room - k->lingering : 0;
}

enum entry { ENTRY_READ, ENTRY_RAISED, ENTRY_DOWN };

static hl_status rule_enter(struct store_tier *t, uint32_t key, uint64_t bytes, enum entry how)
{
    struct hl_keep *rule = &t->keep.store->keep.rule;
    hl_keep_resize(rule, where_of(t), keep_capacity(t));
    if (how == ENTRY_DOWN)
        return HL_OK;
    return how == ENTRY_RAISED ? hl_keep_raise(rule, where_of(t), key, bytes)
                               : hl_keep_read(rule, where_of(t), key, bytes);
}

/* Puts a sealed copy under the rule, which may give it up at once. */
static void keep_enter(struct store_tier *t, struct hl_id id, uint64_t bytes, enum entry how)
{
    struct store *s = t->keep.store;
    uint32_t key = key_of(id);
    struct kept *x = kept_find(t, id);
    if (x != NULL) {
        kept_become(t, x, KEPT_STAYS);
    } else if (kept_is_twin(s, id) || kept_add(t, id, bytes) == NULL) {
        (void)copy_evict(t, id); /* another shard has the key, or no memory is left */
        return;
    }
    hl_status st = rule_enter(t, key, bytes, how);
    bool has = where_of(t) == HL_KEEP_L2 ? hl_keep_has(&s->keep.rule, key)
                                         : hl_keep_device_of(&s->keep.rule, key) == where_of(t);
    if (st != HL_OK || !has)
        on_left(s, key, where_of(t)); /* there is no room for it */
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Adopts what the previous Agent kept. */
static void adopt_kept(struct store *s)
{
    struct hl_pool_ref page[LIST_PAGE];
    struct store_tier *t = &s->tiers[0];
    uint64_t cursor = 0;
    do {
        size_t n = hl_pool_list_kept(s->pool, &cursor, page, LIST_PAGE);
        for (size_t i = 0; i < n; i++)
            keep_enter(t, page[i].id, room_of(t, page[i].size), ENTRY_READ);
    } while (cursor != 0);
}

hl_status store_keep_open(struct store *s)
{
    for (size_t i = 0; i < s->tier_count; i++)
        s->tiers[i].keep.store = s;
    if (s->pool == NULL)
        return HL_OK;
    HL_TRY(hl_keep_init(&s->keep.rule, (unsigned)s->tier_count - 1, on_left, s));
    pthread_mutex_lock(&s->keep.lock);
    adopt_kept(s);
    pthread_mutex_unlock(&s->keep.lock);
    return HL_OK;
}

/* The copies in the pool stay for the next Agent. */
void store_keep_close(struct store *s)
{
    struct kept *x, *next;
    for (size_t i = 0; i < s->tier_count; i++) {
        struct store_tier *t = &s->tiers[i];
        HASH_ITER (hh, t->keep.table, x, next) {
            HASH_DEL(t->keep.table, x);
            free(x);
        }
    }
    hl_keep_fini(&s->keep.rule);
}

bool store_keeps(const struct store *s)
{
    return s->pool != NULL && s->opts.l2_keep > 0;
}

bool store_keeps_in_devices(const struct store *s)
{
    bool bounded = false;
    for (size_t i = 0; i < s->tier_count; i++)
        bounded |= s->tiers[i].tier == HL_API_TIER_L1 && s->tiers[i].bounded;
    return bounded && s->opts.l1_keep > 0;
}

static struct hl_tier_ref ref_of(const struct store *s, const struct hl_pool_ref *r)
{
    return (struct hl_tier_ref){.id = r->id,
                                .size = r->size,
                                .offset = r->offset,
                                .crc32 = r->crc32,
                                .gen = r->gen,
                                .numa_id = hl_pool_numa_of(s->pool, r->offset),
                                .tag = (uint64_t)r->table_crc << 32 | r->slot};
}

bool store_keep_find(struct store *s, const struct store_tier *t, struct hl_id id,
                     struct hl_tier_ref *out)
{
    struct hl_pool_ref r;
    if (t->kept != NULL)
        return hl_tier_find(t->kept, id, out) == HL_OK;
    if (hl_pool_find_kept(s->pool, id, &r) != HL_OK)
        return false;
    *out = ref_of(s, &r);
    return true;
}

hl_status store_keep_pin(struct store *s, struct hl_id id, struct hl_tier_ref *out)
{
    struct hl_pool_ref r;
    HL_TRY(hl_pool_pin(s->pool, id, 0, &r));
    *out = ref_of(s, &r);
    return HL_OK;
}

/* ---- room for others ------------------------------------------------------------------------- */

/* Evicts the newest of the L2's copies that a device keeps, too: it will stay in the device for
 * longest. */
static void duplicate_evict(struct store_tier *l2)
{
    const struct hl_keep *rule = &l2->keep.store->keep.rule;
    struct kept *x, *before;
    if (l2->keep.table == NULL ||
        l2->keep.bytes - l2->keep.lingering <= hl_keep_used(rule, HL_KEEP_L2))
        return; /* the L2 has no duplicates */
    x = ELMT_FROM_HH(l2->keep.table->hh.tbl, l2->keep.table->hh.tbl->tail);
    for (; x != NULL; x = before) {
        before = x->hh.prev;
        if (x->state == KEPT_STAYS && hl_keep_device_of(rule, x->key) != 0 &&
            copy_evict(l2, x->id) != HL_POOL_KEPT_PINNED) {
            kept_remove(l2, x);
            return;
        }
    }
}

/* Evicts one more copy, or copies given up earlier. Returns their bytes; 0 = none can go. */
static uint64_t yield_one(struct store_tier *t)
{
    struct store *s = t->keep.store;
    pthread_mutex_lock(&s->keep.lock);
    uint64_t before = t->keep.bytes;
    end_left(t);
    if (t->keep.bytes == before && where_of(t) == HL_KEEP_L2)
        duplicate_evict(t);
    while (t->keep.bytes == before && hl_keep_evict(&s->keep.rule, where_of(t)))
        end_left(t); /* pinned copies only linger from now on */
    uint64_t left = before - t->keep.bytes;
    pthread_mutex_unlock(&s->keep.lock);
    return left;
}

static uint64_t read_locked(struct store *s, const uint64_t *count)
{
    pthread_mutex_lock(&s->keep.lock);
    uint64_t value = *count;
    pthread_mutex_unlock(&s->keep.lock);
    return value;
}

/* True if the tier would have that room without its kept and loading copies. Both numbers are read
 * under one hold of the lock, so that no load is in one of them only: load_begin. */
static bool would_fit(struct store_tier *t, uint64_t size)
{
    struct hl_tier_usage u;
    struct store_keep *k = &t->keep.store->keep;
    pthread_mutex_lock(&k->lock);
    hl_tier_usage(t->t, &u);
    uint64_t taken = u.used + u.quarantined, loading = t->kept == NULL ? t->keep.loading_bytes : 0;
    pthread_mutex_unlock(&k->lock);
    taken -= loading < taken ? loading : taken;
    return taken <= u.quota && room_of(t, size) <= u.quota - taken;
}

/* Waits for the end of a load, which gives its room back or leaves a copy that can be evicted.
 * `over` was read before the last attempt to take room. False: none runs, or the time is up. */
static bool await_load(struct store_tier *t, uint64_t over, uint64_t until_ns)
{
    struct store_keep *k = &t->keep.store->keep;
    bool in_time = true;
    pthread_mutex_lock(&k->lock);
    while (k->loads_over == over && t->keep.loading_bytes > 0 && in_time)
        in_time = hl_cond_wait_until(&k->load_over, &k->lock, until_ns) == 0;
    bool changed = k->loads_over != over;
    pthread_mutex_unlock(&k->lock);
    return changed && hl_now_ns() < until_ns;
}

/* True: there may be room now. */
static bool yield_room(struct store_tier *t, uint64_t size, uint64_t over, uint64_t until_ns)
{
    return would_fit(t, size) && (yield_one(t) > 0 || await_load(t, over, until_ns));
}

/* Room for what was ordered: in a tier, or for what another process writes into the pool. */
struct taking {
    struct store *s;
    struct store_tier *t;
    struct hl_id id;
    uint64_t size;
    int numa;
    struct hl_tier_slot *slot; /* NULL: use `extent` */
    struct hl_pool_extent *extent;
};

static hl_status take_once(const struct taking *x)
{
    return x->slot != NULL ? hl_tier_reserve(x->t->t, x->id, x->size, x->numa, x->slot)
                           : hl_pool_alloc_at(x->s->pool, x->id, x->size, x->numa, x->extent);
}

/* Evicts kept copies one by one until the order fits. */
static hl_status take_room(const struct taking *x)
{
    uint64_t until = hl_now_ns() + CANCEL_MS * HL_NS_PER_MS,
             over = read_locked(x->s, &x->s->keep.loads_over);
    hl_status st = take_once(x);
    if (st != HL_ENOSPC)
        return st;
    atomic_fetch_add_explicit(&x->s->keep.wanted, 1, memory_order_relaxed);
    for (bool more = true; st == HL_ENOSPC && more;) {
        more = yield_room(x->t, x->size, over, until);
        over = read_locked(x->s, &x->s->keep.loads_over);
        st = take_once(x); /* a load may have just ended */
    }
    atomic_fetch_sub_explicit(&x->s->keep.wanted, 1, memory_order_relaxed);
    return st;
}

hl_status store_reserve(struct store *s, struct store_tier *t, struct hl_id id, uint64_t size,
                        int numa, struct hl_tier_slot *out)
{
    return take_room(
        &(struct taking){.s = s, .t = t, .id = id, .size = size, .numa = numa, .slot = out});
}

hl_status store_alloc(void *arg, struct hl_id id, uint64_t size, struct hl_pool_extent *out)
{
    struct store *s = arg;
    struct hl_id name = hl_id_is_none(id) ? hl_id_random() : id;
    store_keep_place(s, name);
    return take_room(&(struct taking){
        .s = s, .t = &s->tiers[0], .id = name, .size = size, .numa = -1, .extent = out});
}

/* This takes two steps; a copy that is evicted in between is simply gone. */
void store_keep_place(struct store *s, struct hl_id id)
{
    struct hl_pool_ref ref;
    if (s->pool == NULL || hl_pool_find_kept(s->pool, id, &ref) != HL_OK ||
        hl_pool_place(s->pool, id) != HL_OK)
        return;
    store_keep_forget(s, &s->tiers[0], id);
    store_changed(s);
}

void store_keep_forget(struct store *s, struct store_tier *t, struct hl_id id)
{
    pthread_mutex_lock(&s->keep.lock);
    struct kept *x = kept_find(t, id);
    if (x != NULL) {
        (void)kept_evict(t, x);
        rule_follow(s, key_of(id));
    }
    pthread_mutex_unlock(&s->keep.lock);
}

/* ---- a load ---------------------------------------------------------------------------------- */

static bool keep_fits(struct store *s, struct store_tier *t, uint64_t size)
{
    pthread_mutex_lock(&s->keep.lock);
    if (where_of(t) == HL_KEEP_L2)
        end_left(t);
    bool fits = room_of(t, size) <= keep_capacity(t);
    pthread_mutex_unlock(&s->keep.lock);
    return fits;
}

/* A load counts as loading before it has its slot and until its slot is sealed or given back: an
 * order never takes it for a placed copy, which would not leave. While an order wants room, no load
 * begins: an order that meets none (yield_room) can rely on it. */
static hl_status load_begin(struct store *s, struct store_tier *t, uint64_t room)
{
    pthread_mutex_lock(&s->keep.lock);
    bool wanted = atomic_load_explicit(&s->keep.wanted, memory_order_relaxed) > 0;
    t->keep.loading_bytes += wanted ? 0 : room;
    pthread_mutex_unlock(&s->keep.lock);
    return wanted ? hl_fail(HL_ECANCELED, "an ordered copy needs its room") : HL_OK;
}

/* With the lock held. */
static void load_end(struct store *s, struct store_tier *t, uint64_t room)
{
    t->keep.loading_bytes -= room;
    s->keep.loads_over++;
    pthread_cond_broadcast(&s->keep.load_over);
}

hl_status store_keep_reserve(struct store *s, struct store_tier *t, struct hl_id id, uint64_t size,
                             int numa, struct hl_tier_slot *out)
{
    uint64_t room = room_of(t, size), gone = 0, one = 1;
    if (!keep_fits(s, t, size))
        return hl_fail(HL_ENOSPC,
                       "%s of node %s keeps no copy of %" PRIu64
                       " bytes: its share and the placed copies leave too little room",
                       hl_api_tier_name(t->tier), s->node, size);
    HL_TRY(load_begin(s, t, room));
    hl_status st = hl_tier_reserve(kept_store(t), id, size, numa, out);
    while (st == HL_ENOSPC && where_of(t) == HL_KEEP_L2 && gone < WASTE_MAX * room &&
           (one = yield_one(t)) > 0) {
        gone += one;
        st = hl_tier_reserve(kept_store(t), id, size, numa, out);
    }
    if (st == HL_OK) {
        out->kept = true;
        return HL_OK;
    }
    pthread_mutex_lock(&s->keep.lock);
    load_end(s, t, room);
    pthread_mutex_unlock(&s->keep.lock);
    return st;
}

void store_keep_loaded(struct store *s, struct store_tier *t, const struct hl_tier_slot *slot,
                       bool came_down, hl_status st)
{
    uint64_t room = room_of(t, slot->size);
    bool in_l2 = where_of(t) == HL_KEEP_L2;
    pthread_mutex_lock(&s->keep.lock);
    load_end(s, t, room);
    if (st == HL_OK) {
        s->keep.counts.loads += in_l2 && !came_down;
        keep_enter(t, slot->id, room, came_down ? ENTRY_DOWN : in_l2 ? ENTRY_READ : ENTRY_RAISED);
        struct kept *x = kept_find(t, slot->id);
        if (x != NULL)
            x->fresh = !in_l2;
    }
    pthread_mutex_unlock(&s->keep.lock);
}

/* ---- from a device down to the L2 ------------------------------------------------------------ */

bool store_keep_yield(struct store *s, struct store_tier *t, uint64_t size)
{
    if (where_of(t) == HL_KEEP_L2 || !keep_fits(s, t, size))
        return false;
    pthread_mutex_lock(&s->keep.lock);
    while (t->keep.leaving == 0 && hl_keep_evict(&s->keep.rule, where_of(t)))
        continue;
    bool some = t->keep.leaving > 0;
    pthread_mutex_unlock(&s->keep.lock);
    return some;
}

bool store_keep_leaving(struct store *s, struct store_tier *t, struct hl_id *out)
{
    bool found = false;
    pthread_mutex_lock(&s->keep.lock);
    for (struct kept *x = t->keep.table; x != NULL && t->keep.leaving > 0 && !found;
         x = x->hh.next) {
        found = x->state == KEPT_LEAVES;
        if (found) {
            *out = x->id;
            kept_become(t, x, KEPT_GOES_DOWN);
        }
    }
    pthread_mutex_unlock(&s->keep.lock);
    return found;
}

void store_keep_left(struct store *s, struct store_tier *t, struct hl_id id)
{
    pthread_mutex_lock(&s->keep.lock);
    struct kept *x = kept_find(t, id);
    if (x != NULL && x->state == KEPT_GOES_DOWN) { /* no read has kept it meanwhile */
        s->keep.counts.down += kept_find(&s->tiers[HL_KEEP_L2], id) != NULL;
        (void)kept_evict(t, x);
        rule_follow(s, key_of(id));
    }
    pthread_mutex_unlock(&s->keep.lock);
}

/* ---- reports of readers ---------------------------------------------------------------------- */

void store_keep_touch(struct store *s, struct store_tier *t, struct hl_id id, uint32_t count)
{
    pthread_mutex_lock(&s->keep.lock);
    struct kept *x = kept_find(t, id);
    if (x != NULL && x->fresh && count > 0) {
        x->fresh = false;
        count--;
    }
    s->keep.counts.hits += x != NULL ? count : 0;
    if (x != NULL && count > 0 && x->state != KEPT_STAYS)
        keep_enter(t, id, x->bytes, ENTRY_READ);
    else
        for (uint32_t i = 0; x != NULL && i < count && i < TOUCHES_MAX; i++)
            if (hl_keep_read(&s->keep.rule, where_of(t), x->key, x->bytes) != HL_OK)
                break;
    pthread_mutex_unlock(&s->keep.lock);
}

/* ---- reports of the Agent -------------------------------------------------------------------- */

hl_status store_keep_list(struct store *s, struct hl_arena *arena, struct hl_api_text_list *out)
{
    struct hl_api_text_list list = {0};
    size_t room = 1;
    pthread_mutex_lock(&s->keep.lock);
    for (size_t i = 0; i < s->tier_count; i++)
        room += HASH_COUNT(s->tiers[i].keep.table);
    list.items = hl_arena_array(arena, room, sizeof(*list.items));
    for (size_t i = 0; list.items != NULL && i < s->tier_count; i++)
        for (const struct kept *x = s->tiers[i].keep.table; x != NULL; x = x->hh.next)
            list.items[list.count++] = hl_id_print(x->id, arena);
    pthread_mutex_unlock(&s->keep.lock);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing %zu kept copies", room);
    *out = list;
    return HL_OK;
}
