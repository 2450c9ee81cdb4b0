/* Plans of cuts, kept for the next cut with the same layouts.
 *
 *     entries   key --> entry, in the order of their last use       under `lock`
 *       entry   users > 0: cuts work by its plan       users == 0: may be dropped, oldest first
 *
 *     get: found, or made --> users + 1 ... put: users - 1 --over the limit--> freed
 *
 * A plan does not change once it is made, so cuts read it without the lock: their `users` keeps it.
 * `making` is held while a plan is made, so that two cuts with the same key make it only once.
 * `lock` is not held then: existing plans can still be found, put back and counted. Take `making`
 * before `lock`. */
#include "l3d/cut_plans.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

struct entry {
    struct cut_plan plan; /* must be first */
    struct hl_digest key;
    uint64_t bytes;
    unsigned users;
    UT_hash_handle hh; /* the longest unused first */
};

struct cut_plans {
    pthread_mutex_t making; /* one plan at a time */
    pthread_mutex_t lock;   /* guards all members below */
    struct entry *entries;
    uint64_t limit;
    struct cut_plans_info info;
};

/* ---- size of a plan -------------------------------------------------------------------------- */

static uint64_t tensors_bytes(const struct hl_tensor *list, size_t count)
{
    uint64_t bytes = count * sizeof(*list);
    for (size_t i = 0; i < count; i++)
        bytes += strlen(list[i].name) + 1;
    return bytes;
}

static uint64_t layout_bytes(const struct hl_partition_plan *p)
{
    return p->shard_count * sizeof(*p->shards) + tensors_bytes(p->tensors, p->tensor_count) +
           (p->tensor_count + 1) * sizeof(*p->op_first) + p->op_count * sizeof(*p->ops) +
           p->equal_count * sizeof(*p->equal);
}

static uint64_t moves_bytes(const struct hl_reshard_plan *p)
{
    return p->shard_count * sizeof(*p->shards) +
           p->tensor_count * (sizeof(*p->same) + sizeof(*p->op_first)) +
           p->op_count * sizeof(*p->ops);
}

static uint64_t plan_bytes(const struct cut_plan *p)
{
    return sizeof(struct entry) + layout_bytes(&p->whole.ranks) + layout_bytes(&p->whole.whole) +
           tensors_bytes(p->whole.logical.tensors, p->whole.logical.count) +
           moves_bytes(&p->whole.plan) + layout_bytes(&p->state.a) + layout_bytes(&p->state.b) +
           tensors_bytes(p->state.logical, p->state.logical_count) + moves_bytes(&p->state_plan);
}

/* ---- the entries ----------------------------------------------------------------------------- */

static void entry_free(struct entry *e)
{
    hl_reshard_fini(&e->plan.state_plan);
    hl_reshard_state_fini(&e->plan.state);
    hl_whole_fini(&e->plan.whole);
    free(e);
}

/* Call with the lock held. Plans in use may exceed the limit. */
static void drop_unused(struct cut_plans *c)
{
    struct entry *e, *next;
    HASH_ITER (hh, c->entries, e, next) {
        if (c->info.bytes <= c->limit)
            return;
        if (e->users > 0)
            continue;
        HASH_DEL(c->entries, e);
        c->info.bytes -= e->bytes;
        entry_free(e);
    }
}

static hl_status make_entry(struct hl_digest key, cut_plan_make make, void *arg, struct entry **out)
{
    struct entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the plan of a cut");
    hl_status st = make(arg, &e->plan);
    if (st != HL_OK) {
        entry_free(e);
        return st;
    }
    hl_hf_config_fini(&e->plan.whole.config); /* no longer needed: the moves contain everything */
    e->key = key;
    e->bytes = plan_bytes(&e->plan);
    *out = e;
    return HL_OK;
}

/* NULL: the plan has to be made. */
static const struct cut_plan *use_entry(struct cut_plans *c, struct hl_digest key)
{
    struct entry *e;
    pthread_mutex_lock(&c->lock);
    HASH_FIND(hh, c->entries, &key, sizeof(key), e);
    if (e != NULL) {
        HASH_DEL(c->entries, e); /* moves it to the end */
        HASH_ADD(hh, c->entries, key, sizeof(e->key), e);
        c->info.reused++;
        e->users++;
    }
    pthread_mutex_unlock(&c->lock);
    return e != NULL ? &e->plan : NULL;
}

static const struct cut_plan *add_entry(struct cut_plans *c, struct entry *e)
{
    pthread_mutex_lock(&c->lock);
    HASH_ADD(hh, c->entries, key, sizeof(e->key), e);
    c->info.bytes += e->bytes;
    c->info.made++;
    e->users++;
    pthread_mutex_unlock(&c->lock);
    return &e->plan;
}

hl_status cut_plans_create(uint64_t limit, struct cut_plans **out)
{
    struct cut_plans *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for plans of cuts");
    c->limit = limit;
    pthread_mutex_init(&c->making, NULL);
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return HL_OK;
}

void cut_plans_destroy(struct cut_plans *c)
{
    if (c == NULL)
        return;
    c->limit = 0;
    drop_unused(c);
    pthread_mutex_destroy(&c->lock);
    pthread_mutex_destroy(&c->making);
    free(c);
}

hl_status cut_plans_get(struct cut_plans *c, struct hl_digest key, cut_plan_make make, void *arg,
                        const struct cut_plan **out)
{
    struct entry *made;
    hl_status st = HL_OK;
    const struct cut_plan *plan = use_entry(c, key);
    if (plan == NULL) {
        pthread_mutex_lock(&c->making);
        plan = use_entry(c, key);
        if (plan == NULL && (st = make_entry(key, make, arg, &made)) == HL_OK)
            plan = add_entry(c, made);
        pthread_mutex_unlock(&c->making);
    }
    if (st == HL_OK)
        *out = plan;
    return st;
}

void cut_plans_put(struct cut_plans *c, const struct cut_plan *plan)
{
    if (plan == NULL)
        return;
    pthread_mutex_lock(&c->lock);
    ((struct entry *)plan)->users--;
    drop_unused(c);
    pthread_mutex_unlock(&c->lock);
}

void cut_plans_info(struct cut_plans *c, struct cut_plans_info *out)
{
    pthread_mutex_lock(&c->lock);
    *out = c->info;
    pthread_mutex_unlock(&c->lock);
}
