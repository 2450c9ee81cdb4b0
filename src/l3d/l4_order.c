/* Which shards leave a full pool first, as the Controller last ordered. The Controller knows of
 * reads that make no call here, and which shards form a version; this daemon knows what was used
 * since. An order is valid for the time that its sender set. Without a Controller that renews it,
 * the least recently used shards leave.
 *
 * The loop sets the order, and workers that evict query it; hence order_lock, which is held for a
 * look-up and for the exchange of the table. */
#include <stdlib.h>
#include <uthash.h>

#include "base/clock.h"
#include "base/log.h"
#include "l3d/l4_private.h"

struct l4_rank {
    struct hl_id id;
    uint64_t rank;
    UT_hash_handle hh;
};

struct l4_order {
    struct l4_rank *ranks; /* a single allocation */
    struct l4_rank *table;
    uint64_t given_ns, until_ns;
};

static void order_free(struct l4_order *o)
{
    if (o == NULL)
        return;
    HASH_CLEAR(hh, o->table);
    free(o->ranks);
    free(o);
}

hl_status l4_order_give(struct hl_l3d *d, const struct hl_api_text_list *ids, uint64_t ttl_ms)
{
    struct l4_order *o = calloc(1, sizeof(*o)), *old;
    if (o != NULL)
        o->ranks = calloc(ids->count + 1, sizeof(*o->ranks));
    if (o == NULL || o->ranks == NULL) {
        free(o);
        return hl_fail(HL_ENOMEM, "out of memory for an order of %zu shards", ids->count);
    }
    for (size_t i = 0; i < ids->count; i++) {
        struct l4_rank *r = &o->ranks[i], *twin;
        hl_status st = hl_id_parse(ids->items[i], &r->id);
        if (st != HL_OK) {
            order_free(o);
            return st;
        }
        r->rank = i;
        HASH_FIND(hh, o->table, &r->id, sizeof(r->id), twin);
        if (twin == NULL)
            HASH_ADD(hh, o->table, id, sizeof(r->id), r);
    }
    o->given_ns = hl_now_ns();
    o->until_ns = o->given_ns + ttl_ms * HL_NS_PER_MS;
    pthread_mutex_lock(&d->l4->order_lock);
    old = d->l4->order;
    d->l4->order = o;
    pthread_mutex_unlock(&d->l4->order_lock);
    atomic_fetch_add_explicit(&d->l4->orders, 1, memory_order_relaxed);
    order_free(old);
    return HL_OK;
}

uint64_t l4_order_rank(void *arg, const struct hl_pool_ref *ref, uint64_t used_ns)
{
    struct hl_l3d *d = arg;
    uint64_t rank = UINT64_MAX;
    pthread_mutex_lock(&d->l4->order_lock);
    const struct l4_order *o = d->l4->order;
    struct l4_rank *r = NULL;
    if (o != NULL && hl_now_ns() < o->until_ns && used_ns <= o->given_ns)
        HASH_FIND(hh, o->table, &ref->id, sizeof(ref->id), r);
    if (r != NULL)
        rank = r->rank;
    pthread_mutex_unlock(&d->l4->order_lock);
    return rank;
}

void l4_order_fini(struct hl_l3d *d)
{
    order_free(d->l4->order);
    d->l4->order = NULL;
    pthread_mutex_destroy(&d->l4->order_lock);
}
