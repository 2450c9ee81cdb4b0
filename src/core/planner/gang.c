/* Domains and blocks of a gang: a range for the whole gang, a range in it for each block, and there
 * the units.
 *
 * A block is what a rule for pipeline or data groups keeps together: all stages of one replica, or
 * all replicas of one stage. With rules for both, every rank is tied to every other: the wider rule
 * then applies to the gang, the narrower one to its blocks. */
#include "core/planner/gang.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATES 8 /* domains to try before the best one is taken */

struct blocks {
    struct hl_place_rule rule; /* level ANY: the gang is one block */
    bool stages;               /* a block is a stage, not a replica */
    int count, units;
};

struct gang {
    const struct hl_gang_shape *shape;
    int units, tail;           /* whole units; containers of a short last unit */
    enum hl_level unit_within; /* required of each unit */
    struct hl_place_rule rule; /* of the gang */
    struct blocks blocks;
};

static enum hl_level wider_level(enum hl_level a, enum hl_level b)
{
    return a == HL_LEVEL_ANY || b == HL_LEVEL_ANY ? HL_LEVEL_ANY : a > b ? a : b;
}

/* The rule that satisfies both. */
static struct hl_place_rule rule_meet(struct hl_place_rule a, struct hl_place_rule b)
{
    if (a.level == HL_LEVEL_ANY)
        return b;
    if (b.level == HL_LEVEL_ANY)
        return a;
    if (a.required != b.required)
        return a.required ? a : b;
    return a.level < b.level ? a : b;
}

static struct gang gang_of(const struct hl_gang_shape *shape)
{
    const struct hl_place_rules *r = &shape->rules;
    struct hl_place_rule pipeline = r->pipeline, data = r->data;
    struct gang g = {.shape = shape,
                     .units = shape->containers / shape->unit,
                     .tail = shape->containers % shape->unit,
                     .unit_within = r->tensor.required ? r->tensor.level : HL_LEVEL_ANY,
                     .rule = r->gang};
    int stages = shape->per_stage > 0 ? g.units / shape->per_stage : 1;
    if (shape->per_stage == 0) { /* its groups span several units */
        g.rule = rule_meet(g.rule, rule_meet(pipeline, data));
        pipeline = data = (struct hl_place_rule){0};
    }
    if (shape->per_stage == 1)
        data = (struct hl_place_rule){0};
    if (pipeline.level != HL_LEVEL_ANY && data.level != HL_LEVEL_ANY)
        g.rule = rule_meet(g.rule, (struct hl_place_rule){wider_level(pipeline.level, data.level),
                                                          pipeline.required && data.required});
    g.blocks.stages = pipeline.level == HL_LEVEL_ANY ||
                      (data.level != HL_LEVEL_ANY && data.level < pipeline.level);
    g.blocks.rule = g.blocks.stages ? data : pipeline;
    g.blocks.count = g.blocks.stages ? stages : shape->per_stage;
    g.blocks.units = g.blocks.stages ? shape->per_stage : stages;
    if (g.blocks.rule.level == HL_LEVEL_ANY)
        g.blocks = (struct blocks){.count = 1, .units = g.units};
    return g;
}

/* ---- what a range holds --------------------------------------------------------------------- */

static long block_slots(const struct gang *g)
{
    return (long)g->blocks.units * g->shape->unit;
}

/* How many blocks fit on servers of the range. */
static long server_blocks(const struct gang *g, const struct hl_place_view *v,
                          struct hl_place_range in)
{
    long n = 0;
    for (int k = 1; k <= v->most; k++)
        n += k / block_slots(g) * hl_place_view_count(v, k, in);
    return n;
}

static long blocks_max(const struct gang *g, const struct hl_place_view *v,
                       struct hl_place_range in)
{
    enum hl_level level = g->blocks.rule.level;
    long n = 0;
    if (level == HL_LEVEL_NUMA)
        return block_slots(g) == 1 ? hl_place_view_slots(v, in) : 0;
    if (level == HL_LEVEL_SERVER)
        return server_blocks(g, v, in);
    const struct hl_place_domains d = hl_place_domains_in(v->index, level, in);
    for (size_t i = d.first; i < d.end; i++) {
        const struct hl_place_range r = hl_place_range_of(&d.list[i], in);
        if (d.list[i].named)
            n += hl_units_max(v, r, g->shape->unit, g->unit_within) / g->blocks.units;
        else
            n += server_blocks(g, v, r);
    }
    return n;
}

static bool range_holds_units(const struct gang *g, const struct hl_place_view *v,
                              struct hl_place_range in)
{
    if (hl_place_view_slots(v, in) < g->shape->containers)
        return false;
    return g->unit_within == HL_LEVEL_ANY ||
           hl_units_max(v, in, g->shape->unit, g->unit_within) >= g->units + (g->tail > 0);
}

static bool range_holds_gang(const struct gang *g, const struct hl_place_view *v,
                             struct hl_place_range in)
{
    return range_holds_units(g, v, in) &&
           (!g->blocks.rule.required || blocks_max(g, v, in) >= g->blocks.count);
}

/* ---- domains -------------------------------------------------------------------------------- */

struct domain_test {
    const struct gang *g;
    bool block; /* of one block; otherwise of the whole gang */
};

static bool domain_holds(const struct domain_test *t, const struct hl_place_view *v,
                         struct hl_place_range in)
{
    const struct gang *g = t->g;
    if (!t->block)
        return range_holds_gang(g, v, in);
    return hl_place_view_slots(v, in) >= block_slots(g) &&
           hl_units_max(v, in, g->shape->unit, g->unit_within) >= g->blocks.units;
}

/* Finds the smallest server that holds it. */
static bool find_server(const struct domain_test *t, const struct hl_place_view *v,
                        struct hl_place_range in, struct hl_place_range *out)
{
    long slots = t->block ? block_slots(t->g) : t->g->shape->containers;
    for (long k = slots; k <= v->most; k++) {
        uint32_t pos = hl_place_view_first(v, (int)k, in);
        if (pos != UINT32_MAX) {
            *out = (struct hl_place_range){pos, pos + 1};
            return true;
        }
    }
    return false;
}

/* The range has enough servers to keep the stages of a replica apart. */
static bool range_has_apart(const struct gang *g, const struct hl_place_view *v,
                            struct hl_place_range in)
{
    long n = 0;
    for (int k = g->shape->unit; k <= v->most; k++)
        n += hl_place_view_count(v, k, in);
    return n >= g->blocks.units;
}

/* Domains of a level in a range that can hold it, the fullest first; at most CANDIDATES. */
struct candidates {
    struct hl_place_range list[CANDIDATES];
    long slots[CANDIDATES];
    int count;
};

static void candidate_add(struct candidates *c, struct hl_place_range r, long slots)
{
    int at = c->count;
    while (at > 0 && c->slots[at - 1] > slots)
        at--;
    if (at == CANDIDATES)
        return;
    int end = c->count < CANDIDATES ? c->count++ : CANDIDATES - 1;
    for (int i = end; i > at; i--) {
        c->list[i] = c->list[i - 1];
        c->slots[i] = c->slots[i - 1];
    }
    c->list[at] = r;
    c->slots[at] = slots;
}

static void find_domains(const struct domain_test *t, const struct hl_place_view *v,
                         enum hl_level level, struct hl_place_range in, struct candidates *out)
{
    struct hl_place_range server;
    out->count = 0;
    if (level >= HL_LEVEL_LEAF) {
        const struct hl_place_domains d = hl_place_domains_in(v->index, level, in);
        for (size_t i = d.first; i < d.end; i++) {
            const struct hl_place_range r = hl_place_range_of(&d.list[i], in);
            if (!d.list[i].named || !domain_holds(t, v, r))
                continue;
            long slots = hl_place_view_slots(v, r);
            if (t->block && !t->g->blocks.stages && !range_has_apart(t->g, v, r))
                slots += (long)1 << 40; /* last choice */
            candidate_add(out, r, slots);
        }
    }
    if (out->count == 0 && find_server(t, v, in, &server)) /* the server's leaf can be unknown */
        candidate_add(out, server, 0);
}

enum hl_level hl_gang_obstacle(const struct hl_gang_shape *shape, const struct hl_place_view *v)
{
    const struct gang g = gang_of(shape);
    const struct hl_place_range all = hl_place_view_all(v);
    struct candidates c;
    if (!range_holds_units(&g, v, all))
        return g.unit_within;
    if (g.blocks.rule.required && blocks_max(&g, v, all) < g.blocks.count)
        return g.blocks.rule.level;
    if (!g.rule.required)
        return HL_LEVEL_ANY;
    if (g.rule.level == HL_LEVEL_NUMA && shape->containers > 1)
        return HL_LEVEL_NUMA;
    find_domains(&(struct domain_test){.g = &g}, v, g.rule.level, all, &c);
    return c.count > 0 ? HL_LEVEL_ANY : g.rule.level;
}

/* ---- placing -------------------------------------------------------------------------------- */

/* The range of a block: a domain of its level, or of a wider level if the rule is only
 * preferred. */
static struct hl_place_range block_range(const struct gang *g, const struct hl_place_view *v,
                                         struct hl_place_range in)
{
    const struct domain_test t = {.g = g, .block = true};
    struct candidates c;
    for (enum hl_level l = g->blocks.rule.level; l != HL_LEVEL_ANY && l <= HL_LEVEL_SPINE; l++) {
        find_domains(&t, v, l, in, &c);
        if (c.count > 0)
            return c.list[0];
    }
    return in;
}

static hl_status gang_fill(const struct gang *g, struct hl_place_view *v, struct hl_place_range in,
                           uint32_t *where)
{
    for (int b = 0; b < g->blocks.count; b++) {
        bool one = g->blocks.count == 1, stages = g->blocks.stages;
        const struct hl_units u = {.unit = g->shape->unit,
                                   .count = g->blocks.units,
                                   .first = stages ? b * g->blocks.units : b,
                                   .stride = one || stages ? 1 : g->blocks.count,
                                   .tail = g->tail,
                                   .apart = !one && !stages           ? 1
                                            : g->shape->per_stage > 0 ? g->shape->per_stage
                                                                      : g->shape->containers,
                                   .within = g->unit_within};
        HL_TRY(hl_units_place(v, block_range(g, v, in), &u, where));
    }
    return HL_OK;
}

/* ---- score ---------------------------------------------------------------------------------- */

static int count_new(uint64_t *seen, uint32_t at, uint64_t stamp)
{
    int n = seen[at] != stamp;
    seen[at] = stamp;
    return n;
}

static void score_units(const struct hl_gang_shape *g, const struct hl_place_index *x,
                        const uint32_t *where, uint64_t *seen, struct hl_gang_score *out)
{
    uint64_t *leaves = seen + x->count;
    for (int c = 0; c < g->containers; c++) {
        uint64_t stamp = (uint64_t)(c / g->unit) + 1;
        out->servers += count_new(seen, where[c], stamp);
        out->leaves += count_new(leaves, x->leaf_of[where[c]], stamp);
    }
}

/* seen: the replica and stage last seen on each server. */
static void score_replicas(const struct hl_gang_shape *g, const uint32_t *where, uint64_t *seen,
                           struct hl_gang_score *out)
{
    int units = g->containers / g->unit;
    for (int r = 0; r < g->per_stage; r++)
        for (int u = r; u < units; u += g->per_stage)
            for (int i = 0; i < g->unit; i++) {
                uint64_t *at = &seen[where[u * g->unit + i]];
                uint64_t first = (uint64_t)r * (uint64_t)units + 1, stamp = first + (uint64_t)u;
                out->shared += *at >= first && *at != stamp;
                *at = stamp;
            }
}

hl_status hl_gang_score(const struct hl_gang_shape *g, const struct hl_place_index *x,
                        const uint32_t *where, struct hl_gang_score *out)
{
    size_t n = x->count + x->leaf_count + 1;
    HL_AUTO(hl_freep) uint64_t *seen = calloc(n, sizeof(*seen));
    if (seen == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    *out = (struct hl_gang_score){0};
    score_units(g, x, where, seen, out);
    memset(seen, 0, n * sizeof(*seen));
    score_replicas(g, where, seen, out);
    return HL_OK;
}

/* ---- the best of several ranges -------------------------------------------------------------- */

struct attempt {
    const struct gang *g;
    const struct hl_place_view *view;
    uint32_t *where, *other;    /* the best so far, and the one being tried */
    struct hl_gang_score score; /* of `where` */
    bool placed;
};

static bool score_is_worse(const struct hl_gang_score *a, const struct hl_gang_score *b)
{
    if (a->servers != b->servers)
        return a->servers > b->servers;
    return a->leaves != b->leaves ? a->leaves > b->leaves : a->shared > b->shared;
}

/* No other range could be better. */
static bool score_is_ideal(const struct gang *g, const struct hl_place_view *v,
                           const struct hl_gang_score *score)
{
    const struct hl_place_range all = hl_place_view_all(v);
    int unit = g->shape->unit, units = g->units + (g->tail > 0), most = v->most;
    while (most > 1 && hl_place_view_first(v, most, all) == UINT32_MAX)
        most--;
    return score->leaves == units && score->shared == 0 &&
           score->servers <= (long)(unit + most - 1) / most * g->units + (g->tail > 0);
}

/* Places the gang in the range. Keeps the result if it is better than the best so far, or with
 * `prefer` if it is as good. */
static hl_status attempt_range(struct attempt *a, struct hl_place_range in, bool prefer)
{
    HL_AUTO(hl_place_view_fini) struct hl_place_view copy = {0};
    struct hl_gang_score score;
    HL_TRY(hl_place_view_copy(&copy, a->view));
    HL_TRY(gang_fill(a->g, &copy, in, a->other));
    HL_TRY(hl_gang_score(a->g->shape, a->view->index, a->other, &score));
    if (a->placed &&
        (prefer ? score_is_worse(&score, &a->score) : !score_is_worse(&a->score, &score)))
        return HL_OK;
    uint32_t *worse = a->where;
    a->where = a->other;
    a->other = worse;
    a->score = score;
    a->placed = true;
    return HL_OK;
}

/* Tries the domains of the gang's own rule: at its level or, if it is only preferred, at a wider
 * one. */
static hl_status attempt_rule(struct attempt *a)
{
    const struct gang *g = a->g;
    const struct domain_test t = {.g = g};
    struct candidates c;
    for (enum hl_level l = g->rule.level; l != HL_LEVEL_ANY && l <= HL_LEVEL_SPINE; l++) {
        find_domains(&t, a->view, l, hl_place_view_all(a->view), &c);
        for (int i = 0; i < c.count; i++) {
            HL_TRY(attempt_range(a, c.list[i], false));
            if (score_is_ideal(g, a->view, &a->score))
                return HL_OK;
        }
        if (a->placed)
            return HL_OK;
    }
    return HL_OK;
}

/* Without any rule: prefers a single spine if that makes nothing more important worse. */
static hl_status attempt_spines(struct attempt *a)
{
    const struct domain_test t = {.g = a->g};
    struct candidates c;
    find_domains(&t, a->view, HL_LEVEL_SPINE, hl_place_view_all(a->view), &c);
    for (int i = 0; i < c.count && a->view->index->spine_count > 1; i++) {
        struct hl_gang_score before = a->score;
        HL_TRY(attempt_range(a, c.list[i], true));
        if (!score_is_worse(&a->score, &before) && !score_is_worse(&before, &a->score))
            return HL_OK; /* as good, and in one spine */
    }
    return HL_OK;
}

static hl_status attempt_all(struct attempt *a)
{
    HL_TRY(attempt_rule(a));
    if (a->placed)
        return HL_OK;
    HL_TRY(attempt_range(a, hl_place_view_all(a->view), false));
    return attempt_spines(a);
}

hl_status hl_gang_place(const struct hl_gang_shape *shape, const struct hl_place_view *v,
                        uint32_t *where)
{
    const struct gang g = gang_of(shape);
    size_t n = (size_t)shape->containers;
    HL_AUTO(hl_freep) uint32_t *lists = calloc(2 * n, sizeof(*lists));
    if (lists == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    struct attempt a = {.g = &g, .view = v, .where = lists, .other = lists + n};
    HL_TRY(attempt_all(&a));
    memcpy(where, a.where, n * sizeof(*where));
    return HL_OK;
}
