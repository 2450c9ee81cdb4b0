/* Each generator advances a clock and appends rows. All draws come from one splitmix64, so that a
 * seed gives the same trace everywhere. */
#include "whatif/generate.h"
#include <stdio.h>
#include <string.h>

#define NS  INT64_C(1000000000)
#define MIB (UINT64_C(1) << 20)

/* training */
#define DATA_SHARDS      600
#define EPOCHS           6
#define STEP_NS          (4 * NS)
#define CHECKPOINT_STEPS 20
#define CHECKPOINT_PARTS 6
#define RESTART_IN       6 /* one of so many checkpoints is loaded */
#define LATE_IN          2 /* a node is late at one of so many restarts */
#define LATE_NS          (2 * NS)
#define PLAN_NS          NS /* after the checkpoint */
/* inference */
#define TENANTS     40
#define REQUESTS    4000
#define DRIFT_IN    15 /* one of so many requests changes ranks */
#define MODEL_PARTS 24
#define REQUEST_GAP (2 * NS)
/* scan */
#define HOT_SHARDS  300
#define COLD_SHARDS 2000
#define SCAN_IN     1500 /* one of so many reads begins a scan */
#define HOT_READS   20000
#define HOT_GAP     (NS / 10)
#define SCAN_BATCH  8

struct generator {
    struct hl_access_trace *trace;
    uint64_t state;
    int64_t now_ns;
    uint32_t nodes;
};

static uint64_t draw_number(struct generator *g) /* splitmix64 */
{
    uint64_t z = g->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t draw_below(struct generator *g, uint32_t count)
{
    return (uint32_t)((draw_number(g) >> 32) * count >> 32);
}

/* Advances the clock by 0.5 to 1.5 times `about_ns`. */
static void pass_time(struct generator *g, int64_t about_ns)
{
    g->now_ns += about_ns / 2 + (int64_t)draw_below(g, (uint32_t)(about_ns / 1000)) * 1000;
}

/* Draws a number in 0 .. count - 1, where rank r has the weight 1 / (r + 1). */
static uint32_t draw_rank(struct generator *g, uint32_t count)
{
    const uint64_t one = UINT64_C(1) << 32;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += one / (i + 1);
    uint64_t at = draw_number(g) % sum;
    for (uint32_t i = 0; i < count; i++) {
        if (at < one / (i + 1))
            return i;
        at -= one / (i + 1);
    }
    return count - 1;
}

static void shuffle_items(struct generator *g, uint32_t *items, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = draw_below(g, i), kept = items[i - 1];
        items[i - 1] = items[j];
        items[j] = kept;
    }
}

/* The size of a shard depends only on its number, so it is the same in every row. */
static uint64_t size_of(uint32_t number, uint32_t least_mib, uint32_t most_mib)
{
    uint64_t z = (number + 1) * UINT64_C(0xbf58476d1ce4e5b9);
    return (least_mib + (z >> 33) % (most_mib - least_mib + 1)) * MIB;
}

static hl_status add_row(struct generator *g, uint32_t node, const char *shard, uint64_t bytes,
                         bool is_write)
{
    char name[32];
    snprintf(name, sizeof(name), "node-%u", node);
    return hl_access_trace_add(g->trace, &(struct hl_trace_access){.at_ns = g->now_ns,
                                                                   .node = name,
                                                                   .shard = shard,
                                                                   .size_bytes = bytes,
                                                                   .is_write = is_write});
}

/* ---- training -------------------------------------------------------------------------------- */

static hl_status add_checkpoint(struct generator *g, uint32_t number, bool is_write)
{
    char name[64];
    for (uint32_t node = 0; node < g->nodes; node++)
        for (uint32_t part = 0; part < CHECKPOINT_PARTS; part++) {
            snprintf(name, sizeof(name), "checkpoint-%04u/node-%u/part-%u", number, node, part);
            HL_TRY(add_row(g, node, name, size_of(part, 200, 1000), is_write));
        }
    return HL_OK;
}

/* Plans (is_off: unplans) that ranks on node `at` load what `node` wrote. */
static hl_status plan_parts(struct generator *g, uint32_t number, uint32_t node, uint32_t at,
                            bool is_off)
{
    char name[32], shard[64];
    snprintf(name, sizeof(name), "node-%u", at);
    for (uint32_t part = 0; part < CHECKPOINT_PARTS; part++) {
        snprintf(shard, sizeof(shard), "checkpoint-%04u/node-%u/part-%u", number, node, part);
        HL_TRY(hl_access_trace_plan(
            g->trace, &(struct hl_trace_access){.at_ns = g->now_ns,
                                                .node = name,
                                                .shard = shard,
                                                .size_bytes = size_of(part, 200, 1000),
                                                .is_write = is_off}));
    }
    return HL_OK;
}

/* late: the first node is not ready. Its ranks are planned on another one, and on it when it is
 * ready. */
static hl_status plan_restart(struct generator *g, uint32_t number, bool late)
{
    const int64_t now_ns = g->now_ns;
    hl_status st = HL_OK;
    late = late && g->nodes > 1;
    g->now_ns += PLAN_NS;
    for (uint32_t node = 0; node < g->nodes; node++)
        HL_TRY(plan_parts(g, number, node, late && node == 0 ? 1 : node, false));
    g->now_ns += LATE_NS;
    if (late)
        st = plan_parts(g, number, 0, 1, true);
    if (late && st == HL_OK)
        st = plan_parts(g, number, 0, 0, false);
    g->now_ns = now_ns;
    return st;
}

static hl_status read_data(struct generator *g, uint32_t node, uint32_t shard)
{
    char name[64];
    snprintf(name, sizeof(name), "data/shard-%04u", shard);
    return add_row(g, node, name, size_of(shard, 128, 512), false);
}

static hl_status generate_training(struct generator *g)
{
    uint32_t order[DATA_SHARDS], step = 0, checkpoints = 0, restarts = 0;
    for (uint32_t i = 0; i < DATA_SHARDS; i++)
        order[i] = i;
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        shuffle_items(g, order, DATA_SHARDS);
        for (uint32_t i = 0; i < DATA_SHARDS; step++) {
            g->now_ns += STEP_NS;
            for (uint32_t node = 0; node < g->nodes && i < DATA_SHARDS; node++)
                HL_TRY(read_data(g, node, order[i++]));
            if (step % CHECKPOINT_STEPS != CHECKPOINT_STEPS - 1)
                continue;
            g->now_ns += STEP_NS / 2;
            HL_TRY(add_checkpoint(g, ++checkpoints, true));
            if (draw_below(g, RESTART_IN) != 0)
                continue;
            HL_TRY(plan_restart(g, checkpoints, ++restarts % LATE_IN == 0));
            pass_time(g, 60 * NS); /* the job starts again */
            HL_TRY(add_checkpoint(g, checkpoints, false));
        }
    }
    return HL_OK;
}

/* ---- inference ------------------------------------------------------------------------------- */

static hl_status load_model(struct generator *g, uint32_t node, uint32_t tenant)
{
    char name[64];
    uint32_t parts = 4 + (uint32_t)(size_of(tenant, 1, MODEL_PARTS) / MIB);
    for (uint32_t part = 0; part < parts; part++) {
        snprintf(name, sizeof(name), "tenant-%02u/part-%02u", tenant, part);
        HL_TRY(add_row(g, node, name, size_of(tenant * 64 + part, 64, 512), false));
    }
    return HL_OK;
}

static hl_status generate_inference(struct generator *g)
{
    uint32_t tenants[TENANTS];
    for (uint32_t i = 0; i < TENANTS; i++)
        tenants[i] = i;
    shuffle_items(g, tenants, TENANTS);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        pass_time(g, REQUEST_GAP);
        if (draw_below(g, DRIFT_IN) == 0) {
            uint32_t a = draw_below(g, TENANTS), b = draw_below(g, TENANTS), kept = tenants[a];
            tenants[a] = tenants[b];
            tenants[b] = kept;
        }
        uint32_t tenant = tenants[draw_rank(g, TENANTS)];
        /* one of the two nodes that serve the tenant */
        uint32_t node = (tenant * 7 + draw_below(g, 2) * 3) % g->nodes;
        HL_TRY(load_model(g, node, tenant));
    }
    return HL_OK;
}

/* ---- a scan and a hot set -------------------------------------------------------------------- */

static hl_status scan_cold(struct generator *g, uint32_t node)
{
    char name[64];
    for (uint32_t i = 0; i < COLD_SHARDS; i++) {
        if (i % SCAN_BATCH == 0)
            g->now_ns += NS;
        snprintf(name, sizeof(name), "cold/shard-%04u", i);
        HL_TRY(add_row(g, node, name, size_of(i, 64, 256), false));
    }
    return HL_OK;
}

static hl_status generate_scan(struct generator *g)
{
    char name[64];
    for (uint32_t i = 0; i < HOT_READS; i++) {
        pass_time(g, HOT_GAP);
        uint32_t shard = draw_rank(g, HOT_SHARDS);
        snprintf(name, sizeof(name), "hot/shard-%03u", shard);
        HL_TRY(add_row(g, draw_below(g, g->nodes), name, size_of(shard, 64, 1024), false));
        if (draw_below(g, SCAN_IN) == 0)
            HL_TRY(scan_cold(g, draw_below(g, g->nodes)));
    }
    return HL_OK;
}

bool hl_generate_find(const char *name, enum hl_generate_kind *out)
{
    static const char *const names[] = {[HL_GENERATE_TRAINING] = "training",
                                        [HL_GENERATE_INFERENCE] = "inference",
                                        [HL_GENERATE_SCAN] = "scan"};
    for (unsigned i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum hl_generate_kind)i;
            return true;
        }
    return false;
}

hl_status hl_generate(const struct hl_generate_opts *opts, struct hl_access_trace *trace)
{
    struct generator g = {.trace = trace, .state = opts->seed, .nodes = opts->nodes};
    if (opts->nodes == 0 || opts->nodes > HL_GENERATE_NODES_MAX)
        return hl_fail(HL_EINVAL, "a trace of %u nodes: 1 to %d", opts->nodes,
                       HL_GENERATE_NODES_MAX);
    switch (opts->kind) {
    case HL_GENERATE_TRAINING:
        return generate_training(&g);
    case HL_GENERATE_INFERENCE:
        return generate_inference(&g);
    default:
        return generate_scan(&g);
    }
}
