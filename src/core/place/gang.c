/* Domains and blocks of a gang: a range for the whole, a range for each block in it, units there.
 *
 * A block is what a rule for pipeline or data groups keeps together: all stages of one replica, or
 * all replicas of one stage. With rules for both every rank is tied to every other: the wider one
 * holds for the gang, the narrower one for its blocks. */
#include "core/place/gang.h"

#include <stdlib.h>
#include <string.h>

struct blocks {
    struct hl_place_rule rule; /* level ANY: the gang is one block */
    bool stages;               /* a block is a stage, not a replica */
    int count, units;
};

struct gang {
    const struct hl_gang_shape *shape;
    int units, tail;           /* whole ones; containers of a short last one */
    enum hl_level unit_within; /* required of each unit */
    struct hl_place_rule rule; /* of the gang */
    struct blocks blocks;
};

static enum hl_level wider(enum hl_level a, enum hl_level b)
{
    return a == HL_LEVEL_ANY || b == HL_LEVEL_ANY ? HL_LEVEL_ANY : a > b ? a : b;
}

/* Both must be kept. */
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
    if (shape->per_stage == 0) { /* its groups are cut across units */
        g.rule = rule_meet(g.rule, rule_meet(pipeline, data));
        pipeline = data = (struct hl_place_rule){0};
    }
    if (shape->per_stage == 1)
        data = (struct hl_place_rule){0};
    if (pipeline.level != HL_LEVEL_ANY && data.level != HL_LEVEL_ANY)
        g.rule = rule_meet(g.rule, (struct hl_place_rule){wider(pipeline.level, data.level),
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

/* Blocks in servers of the range. */
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
        const struct hl_place_range r = {d.list[i].lo, d.list[i].hi};
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
    bool block; /* of one block; else of the gang */
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

/* The smallest server that holds it. */
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

/* Enough servers for the stages of a replica to be apart. */
static bool range_has_apart(const struct gang *g, const struct hl_place_view *v,
                            struct hl_place_range in)
{
    long n = 0;
    for (int k = g->shape->unit; k <= v->most; k++)
        n += hl_place_view_count(v, k, in);
    return n >= g->blocks.units;
}

/* The fullest domain of that level in the range that holds it. */
static bool find_domain(const struct domain_test *t, const struct hl_place_view *v,
                        enum hl_level level, struct hl_place_range in, struct hl_place_range *out)
{
    long best = 0;
    bool found = false;
    if (level == HL_LEVEL_SERVER || level == HL_LEVEL_NUMA)
        return find_server(t, v, in, out);
    const struct hl_place_domains d = hl_place_domains_in(v->index, level, in);
    for (size_t i = d.first; i < d.end; i++) {
        const struct hl_place_range r = {d.list[i].lo, d.list[i].hi};
        if (!d.list[i].named || !domain_holds(t, v, r))
            continue;
        long slots = hl_place_view_slots(v, r);
        if (t->block && !t->g->blocks.stages && !range_has_apart(t->g, v, r))
            slots += (long)1 << 40; /* only if there is no other */
        if (!found || slots < best) {
            best = slots;
            *out = r;
            found = true;
        }
    }
    return found || find_server(t, v, in, out); /* its leaf need not be known */
}

enum hl_level hl_gang_obstacle(const struct hl_gang_shape *shape, const struct hl_place_view *v)
{
    const struct gang g = gang_of(shape);
    const struct hl_place_range all = hl_place_view_all(v);
    struct hl_place_range r;
    if (!range_holds_units(&g, v, all))
        return g.unit_within;
    if (g.blocks.rule.required && blocks_max(&g, v, all) < g.blocks.count)
        return g.blocks.rule.level;
    if (!g.rule.required)
        return HL_LEVEL_ANY;
    if (g.rule.level == HL_LEVEL_NUMA && shape->containers > 1)
        return HL_LEVEL_NUMA;
    return find_domain(&(struct domain_test){.g = &g}, v, g.rule.level, all, &r) ? HL_LEVEL_ANY
                                                                                 : g.rule.level;
}

/* ---- placing -------------------------------------------------------------------------------- */

/* Where a block goes: a domain of its level, of the next ones if that is only preferred. */
static struct hl_place_range block_range(const struct gang *g, const struct hl_place_view *v,
                                         struct hl_place_range in)
{
    const struct domain_test t = {.g = g, .block = true};
    struct hl_place_range r;
    for (enum hl_level l = g->blocks.rule.level; l != HL_LEVEL_ANY && l <= HL_LEVEL_SPINE; l++)
        if (find_domain(&t, v, l, in, &r))
            return r;
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

/* The range of the gang's own rule; false: it has none, or none holds it. */
static bool gang_range(const struct gang *g, const struct hl_place_view *v,
                       struct hl_place_range *out)
{
    const struct domain_test t = {.g = g};
    for (enum hl_level l = g->rule.level; l != HL_LEVEL_ANY && l <= HL_LEVEL_SPINE; l++)
        if (find_domain(&t, v, l, hl_place_view_all(v), out))
            return true;
        else if (g->rule.required)
            return false;
    return false;
}

static bool score_is_worse(const struct hl_gang_score *a, const struct hl_gang_score *b)
{
    if (a->servers != b->servers)
        return a->servers > b->servers;
    return a->leaves != b->leaves ? a->leaves > b->leaves : a->shared > b->shared;
}

/* Nobody asked for it: all in one spine, if nothing that counts more is worse then. */
static hl_status try_spine(const struct gang *g, const struct hl_place_view *v, uint32_t *where)
{
    const struct domain_test t = {.g = g};
    const struct hl_place_index *x = v->index;
    struct hl_gang_score all, one;
    struct hl_place_range in;
    if (x->spine_count < 2 || !find_domain(&t, v, HL_LEVEL_SPINE, hl_place_view_all(v), &in))
        return HL_OK;
    HL_AUTO(hl_freep) uint32_t *other = calloc((size_t)g->shape->containers, sizeof(*other));
    if (other == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    HL_AUTO(hl_place_view_fini) struct hl_place_view copy = {0};
    HL_TRY(hl_place_view_copy(&copy, v));
    HL_TRY(gang_fill(g, &copy, in, other));
    HL_TRY(hl_gang_score(g->shape, x, where, &all));
    HL_TRY(hl_gang_score(g->shape, x, other, &one));
    if (!score_is_worse(&one, &all))
        memcpy(where, other, (size_t)g->shape->containers * sizeof(*where));
    return HL_OK;
}

hl_status hl_gang_place(const struct hl_gang_shape *shape, const struct hl_place_view *v,
                        uint32_t *where)
{
    const struct gang g = gang_of(shape);
    struct hl_place_range in = hl_place_view_all(v);
    bool ruled = gang_range(&g, v, &in);
    HL_AUTO(hl_place_view_fini) struct hl_place_view copy = {0};
    HL_TRY(hl_place_view_copy(&copy, v));
    HL_TRY(gang_fill(&g, &copy, in, where));
    return ruled ? HL_OK : try_spine(&g, v, where);
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

/* seen: replica and stage that were on the server last. */
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
