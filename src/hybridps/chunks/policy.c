#include "hybridps/chunks/policy.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan.h"

/* What the policy remembers of a chunk; `uses` is a ring of the uses within the window. */
struct memory {
    uint64_t loaded, used; /* numbers of events */
    uint64_t last;         /* number of a moment */
    uint64_t *uses;
    size_t first, count, cap;
};

struct rule {
    const char *name;
    double (*rank)(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty);
};

struct hl_policy {
    const struct rule *rule;
    struct hl_policy_options o;
    struct memory *chunks;
    size_t count;
    uint64_t events;
};

static double rank_fifo(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    (void)now, (void)dirty;
    return -(double)p->chunks[chunk].loaded;
}

static double rank_lru(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    (void)now, (void)dirty;
    return -(double)p->chunks[chunk].used;
}

static void forget_old(struct hl_policy *p, struct memory *m, uint64_t now)
{
    while (m->count > 0 && (double)(now - m->uses[m->first]) >= p->o.window) {
        m->first = (m->first + 1) % m->cap;
        m->count--;
    }
}

static double rank_heat(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    struct memory *m = &p->chunks[chunk];
    (void)dirty;
    forget_old(p, m, now);
    return -(p->o.alpha * (double)m->count / p->o.window +
             p->o.beta * exp(-(double)(now - m->last) / p->o.tau));
}

/* splitmix64 */
static double rank_random(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    uint64_t x = p->o.seed + UINT64_C(0x9e3779b97f4a7c15) * (++p->events + chunk);
    (void)now, (void)dirty;
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ x >> 31) >> 11);
}

static double rank_opt(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    if (p->o.plan == NULL)
        return rank_lru(p, chunk, now, dirty);
    return hl_chunk_plan_rank(p->o.plan, chunk, dirty);
}

static const struct rule rules[] = {
    {"opt", rank_opt},   {"lru", rank_lru},       {"fifo", rank_fifo},
    {"heat", rank_heat}, {"random", rank_random},
};

hl_status hl_policy_create(const char *name, const struct hl_policy_options *options,
                           struct hl_policy **out)
{
    const struct rule *rule = NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(rules); i++)
        if (strcmp(rules[i].name, name) == 0)
            rule = &rules[i];
    if (rule == NULL)
        return hl_fail(HL_EINVAL, "policy \"%s\" is not one of opt, lru, fifo, heat, random", name);
    struct hl_policy *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a policy");
    p->rule = rule;
    if (options != NULL)
        p->o = *options;
    if (!(p->o.window > 0)) {
        p->o.alpha = 0.7;
        p->o.beta = 0.3;
        p->o.window = 300;
        p->o.tau = 60;
    }
    *out = p;
    return HL_OK;
}

void hl_policy_destroy(struct hl_policy *p)
{
    if (p == NULL)
        return;
    for (size_t i = 0; i < p->count; i++)
        free(p->chunks[i].uses);
    free(p->chunks);
    free(p);
}

const char *hl_policy_name(const struct hl_policy *p)
{
    return p->rule->name;
}

hl_status hl_policy_grow(struct hl_policy *p, size_t count)
{
    if (count <= p->count)
        return HL_OK;
    struct memory *m = realloc(p->chunks, count * sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a policy");
    memset(m + p->count, 0, (count - p->count) * sizeof(*m));
    p->chunks = m;
    p->count = count;
    return HL_OK;
}

void hl_policy_set_plan(struct hl_policy *p, struct hl_chunk_plan *plan)
{
    p->o.plan = plan;
}

void hl_policy_loaded(struct hl_policy *p, uint32_t chunk)
{
    p->chunks[chunk].loaded = ++p->events;
}

/* If there is no memory to record a use, it is not counted: that makes the rank less exact, but
 * nothing incorrect. */
static void remember_use(struct hl_policy *p, struct memory *m, uint64_t now)
{
    forget_old(p, m, now);
    if (m->count == m->cap) {
        size_t cap = m->cap == 0 ? 8 : m->cap * 2;
        uint64_t *uses = malloc(cap * sizeof(*uses));
        if (uses == NULL)
            return;
        for (size_t i = 0; i < m->count; i++)
            uses[i] = m->uses[(m->first + i) % m->cap];
        free(m->uses);
        m->uses = uses;
        m->first = 0;
        m->cap = cap;
    }
    m->uses[(m->first + m->count++) % m->cap] = now;
}

void hl_policy_used(struct hl_policy *p, uint32_t chunk, uint64_t now)
{
    struct memory *m = &p->chunks[chunk];
    m->used = ++p->events;
    m->last = now;
    if (p->rule->rank == rank_heat)
        remember_use(p, m, now);
    if (p->o.plan != NULL)
        hl_chunk_plan_used(p->o.plan, chunk);
}

double hl_policy_rank(struct hl_policy *p, uint32_t chunk, uint64_t now, bool dirty)
{
    return p->rule->rank(p, chunk, now, dirty);
}
