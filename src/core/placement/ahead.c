#include "core/placement/ahead.h"

#include <math.h>
#include <stdlib.h>

/* Share of a node's time that is planned as slack, because links are sometimes slower than
 * measured. */
#define SPARE 0.1

/* A shard to be fetched, and how long the fetch takes. */
struct fetch {
    const struct hl_ahead_shard *shard;
    uint64_t rank_bytes; /* total that its rank fetches to that node */
    enum hl_move_path path;
    double seconds;
};

void hl_ahead_fini(struct hl_ahead *a)
{
    free(a->moves);
    *a = (struct hl_ahead){0};
}

double hl_ahead_share(const struct hl_ahead *a)
{
    return a->bytes == 0 ? 1 : (double)(a->local + a->in_time) / (double)a->bytes;
}

static hl_status check_world(const struct hl_ahead_gang *gang, const struct hl_ahead_world *world)
{
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        if (!(world->rates[i] > 0) || !(world->shared[i] > 0))
            return hl_fail(HL_EINVAL,
                           "path %u has %g bytes per second on a node, %g on all: both "
                           "must be above 0",
                           i, world->rates[i], world->shared[i]);
    for (size_t i = 0; i < gang->count; i++)
        if (gang->shards[i].node >= world->node_count)
            return hl_fail(HL_EINVAL, "rank %u is planned on node %u of %u", gang->shards[i].rank,
                           gang->shards[i].node, world->node_count);
    return HL_OK;
}

/* ---- what is to be fetched ------------------------------------------------------------------- */

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_ids(struct hl_id a, struct hl_id b)
{
    return a.hi != b.hi ? compare_numbers(a.hi, b.hi) : compare_numbers(a.lo, b.lo);
}

/* Puts equal shards of a node side by side, the lowest rank first. */
static int compare_readers(const void *left, const void *right)
{
    const struct hl_ahead_shard *a = ((const struct fetch *)left)->shard;
    const struct hl_ahead_shard *b = ((const struct fetch *)right)->shard;
    int by = compare_numbers(a->node, b->node);
    by = by != 0 ? by : compare_ids(a->id, b->id);
    return by != 0 ? by : compare_numbers(a->rank, b->rank);
}

/* Sorts a node's ranks by the bytes they fetch, smallest first. */
static int compare_fetches(const void *left, const void *right)
{
    const struct fetch *a = left, *b = right;
    int by = compare_numbers(a->shard->node, b->shard->node);
    by = by != 0 ? by : compare_numbers(a->rank_bytes, b->rank_bytes);
    by = by != 0 ? by : compare_numbers(a->shard->rank, b->shard->rank);
    return by != 0 ? by : compare_ids(a->shard->id, b->shard->id);
}

static int compare_ranks(const void *left, const void *right)
{
    const struct hl_ahead_shard *a = ((const struct fetch *)left)->shard;
    const struct hl_ahead_shard *b = ((const struct fetch *)right)->shard;
    int by = compare_numbers(a->node, b->node);
    return by != 0 ? by : compare_numbers(a->rank, b->rank);
}

static bool is_there(const struct hl_ahead_shard *s)
{
    return (s->place.tier == HL_API_TIER_L1 || s->place.tier == HL_API_TIER_L2) &&
           s->place.node == s->node;
}

/* Counts bytes and keeps each missing shard of a node once, if it fits. */
static size_t keep_missing(struct fetch *list, size_t count, const struct hl_ahead_world *world,
                           struct hl_ahead *out)
{
    size_t kept = 0;
    uint64_t room = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hl_ahead_shard *s = list[i].shard;
        const struct hl_ahead_shard *before = i > 0 ? list[i - 1].shard : NULL;
        if (before == NULL || before->node != s->node)
            room = world->takes[s->node] ? world->l2_free[s->node] : 0;
        else if (hl_id_equal(before->id, s->id))
            continue;
        out->bytes += s->size_bytes;
        if (is_there(s)) {
            out->local += s->size_bytes;
        } else if (s->size_bytes > room) {
            out->no_room += s->size_bytes;
        } else {
            room -= s->size_bytes;
            list[kept++].shard = s;
        }
    }
    return kept;
}

static void sum_ranks(struct fetch *list, size_t count)
{
    for (size_t i = 0, end; i < count; i = end) {
        uint64_t bytes = 0;
        for (end = i; end < count && compare_ranks(&list[i], &list[end]) == 0; end++)
            bytes += list[end].shard->size_bytes;
        for (size_t k = i; k < end; k++)
            list[k].rank_bytes = bytes;
    }
}

/* ---- when ------------------------------------------------------------------------------------ */

static enum hl_move_path path_of(const struct hl_ahead_shard *s)
{
    if (s->place.tier == HL_API_TIER_L4)
        return HL_MOVE_ARCHIVE; /* to L3 and from there to the node */
    return hl_rules_path(s->place, (struct hl_place){.node = s->node, .tier = HL_API_TIER_L2});
}

/* Divides the rates of each path among the nodes that fetch on it. */
static void share_rates(const struct fetch *list, size_t count, const struct hl_ahead_world *world,
                        double rates[HL_MOVE_PATHS])
{
    unsigned users[HL_MOVE_PATHS] = {0};
    int64_t last[HL_MOVE_PATHS] = {-1, -1, -1, -1};
    for (size_t i = 0; i < count; i++) {
        enum hl_move_path path = path_of(list[i].shard);
        bool is_new = last[path] != list[i].shard->node; /* the list is sorted by node */
        users[path] += is_new;
        users[HL_MOVE_BACKBONE] += is_new && path == HL_MOVE_ARCHIVE;
        last[path] = list[i].shard->node;
    }
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        rates[i] = fmin(world->rates[i], world->shared[i] / fmax(users[i], 1));
}

static void time_fetches(struct fetch *list, size_t count, const double rates[HL_MOVE_PATHS])
{
    for (size_t i = 0; i < count; i++) {
        double bytes = (double)list[i].shard->size_bytes;
        list[i].path = path_of(list[i].shard);
        list[i].seconds = bytes / rates[list[i].path];
        if (list[i].path == HL_MOVE_ARCHIVE)
            list[i].seconds += bytes / rates[HL_MOVE_BACKBONE];
    }
}

/* Plans one node: each path starts as late as it can. */
static void plan_node(const struct fetch *list, size_t count, int64_t start_ms, int64_t now_ms,
                      struct hl_ahead *out)
{
    double at_ms[HL_MOVE_PATHS] = {0};
    for (size_t i = 0; i < count; i++)
        at_ms[list[i].path] += list[i].seconds * 1e3 * (1 + SPARE);
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        at_ms[i] = fmax((double)start_ms - at_ms[i], (double)now_ms);
    for (size_t i = 0; i < count; i++) {
        const struct hl_ahead_shard *s = list[i].shard;
        double end_ms = at_ms[list[i].path] + list[i].seconds * 1e3;
        out->moves[out->count++] =
            (struct hl_ahead_move){.shard = s->id,
                                   .size_bytes = s->size_bytes,
                                   .from = s->place,
                                   .goal = {.node = s->node, .tier = HL_API_TIER_L2},
                                   .path = list[i].path,
                                   .begin_ms = (int64_t)at_ms[list[i].path],
                                   .end_ms = (int64_t)ceil(end_ms)};
        out->in_time += end_ms <= (double)start_ms ? s->size_bytes : 0;
        at_ms[list[i].path] = end_ms;
    }
}

static int compare_moves(const void *left, const void *right)
{
    const struct hl_ahead_move *a = left, *b = right;
    if (a->begin_ms != b->begin_ms)
        return a->begin_ms < b->begin_ms ? -1 : 1;
    int by = compare_numbers(a->goal.node, b->goal.node);
    by = by != 0 ? by : (a->end_ms > b->end_ms) - (a->end_ms < b->end_ms);
    return by != 0 ? by : compare_ids(a->shard, b->shard);
}

static void plan_fetches(struct fetch *list, size_t count, const struct hl_ahead_gang *gang,
                         const struct hl_ahead_world *world, int64_t now_ms, struct hl_ahead *out)
{
    double rates[HL_MOVE_PATHS];
    qsort(list, count, sizeof(*list), compare_ranks);
    sum_ranks(list, count);
    qsort(list, count, sizeof(*list), compare_fetches);
    share_rates(list, count, world, rates);
    time_fetches(list, count, rates);
    for (size_t i = 0, end; i < count; i = end) {
        for (end = i; end < count && list[end].shard->node == list[i].shard->node;)
            end++;
        plan_node(list + i, end - i, gang->start_ms, now_ms, out);
    }
    qsort(out->moves, out->count, sizeof(*out->moves), compare_moves);
}

hl_status hl_ahead_plan(const struct hl_ahead_gang *gang, const struct hl_ahead_world *world,
                        int64_t now_ms, struct hl_ahead *out)
{
    HL_TRY(check_world(gang, world));
    struct hl_ahead plan = {0};
    if (gang->count == 0) {
        *out = plan;
        return HL_OK;
    }
    struct fetch *list = calloc(gang->count, sizeof(*list));
    plan.moves = calloc(gang->count, sizeof(*plan.moves));
    if (list == NULL || plan.moves == NULL) {
        free(list);
        hl_ahead_fini(&plan);
        return hl_fail(HL_ENOMEM, "out of memory planning the way of %zu shards", gang->count);
    }
    for (size_t i = 0; i < gang->count; i++)
        list[i].shard = &gang->shards[i];
    qsort(list, gang->count, sizeof(*list), compare_readers);
    size_t count = keep_missing(list, gang->count, world, &plan);
    if (count > 0)
        plan_fetches(list, count, gang, world, now_ms, &plan);
    free(list);
    *out = plan;
    return HL_OK;
}
