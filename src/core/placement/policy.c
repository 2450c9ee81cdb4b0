#include "core/placement/policy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DECISIONS_MIN 64
#define TIMERS_MIN    4096
#define PASS_MAX      0x7fffffff
#define FETCH_AHEAD   8 /* shards whose records are prefetched from memory */
#define DUE_AT_ONCE   64

void hl_policy_fini(struct hl_policy *y)
{
    hl_timers_fini(&y->timers);
    hl_index_list_fini(&y->now);
    free(y->decisions);
    hl_leaving_fini(&y->leaving);
    free(y->takes);
    free(y->l2_free);
    *y = (struct hl_policy){0};
}

uint64_t hl_policy_bytes(const struct hl_policy *y)
{
    return sizeof(*y) + hl_timers_bytes(&y->timers) + hl_index_list_bytes(&y->now) +
           y->room * sizeof(*y->decisions) + hl_leaving_bytes(&y->leaving) +
           (uint64_t)y->node_count * (sizeof(*y->takes) + sizeof(*y->l2_free));
}

/* One pass and its working state. */
struct passing {
    struct hl_policy *y;
    struct hl_placement *p;
    const struct hl_policy_limits *limits;
    struct hl_rule_world world;
    size_t looked;       /* shards examined in L1 or waiting for it */
    uint32_t relievable; /* one bit for each state in which a shard can move from L1 to L2 */
    uint64_t newcomers;  /* bytes of the shards of the last list that become active in this pass */
};

/* ---- decisions ------------------------------------------------------------------------------- */

static struct hl_decision *add_decision(struct hl_policy *y)
{
    if (y->count == y->room) {
        size_t room = y->room == 0 ? DECISIONS_MIN : y->room * 2;
        struct hl_decision *more = realloc(y->decisions, room * sizeof(*more));
        if (more == NULL)
            return NULL;
        y->decisions = more;
        y->room = room;
    }
    return &y->decisions[y->count++];
}

static bool is_same_place(struct hl_place a, struct hl_place b)
{
    return a.tier == b.tier && a.node == b.node;
}

static hl_status decide_on(struct passing *x, const struct hl_placed_shard *s,
                           const struct hl_verdict *v, double order)
{
    struct hl_decision *d = add_decision(x->y);
    if (d == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu decisions", x->y->count + 1);
    *d = (struct hl_decision){
        .shard = s->id,
        .event = v->event,
        .from = s->place,
        .goal = v->goal,
        .size_bytes = s->size_bytes,
        .value = v->value,
        .limit = v->limit,
        .gain_s = v->gain_s,
        .cost_s = v->cost_s,
        .copy_s = is_same_place(s->place, v->goal) ? 0 : hl_rules_seconds(s, &x->world, v->goal),
        .order = order};
    return HL_OK;
}

/* Lower is more urgent. */
static unsigned rank_of(enum hl_life_event event)
{
    static const uint8_t ranks[HL_LIFE_EVENTS] = {
        [HL_LIFE_ON_SPREAD] = 1,   [HL_LIFE_ON_PRESSURE] = 2, [HL_LIFE_ON_REMOTE] = 3,
        [HL_LIFE_ON_RECALL] = 4,   [HL_LIFE_ON_ACCESS] = 5,   [HL_LIFE_ON_LOAD] = 6,
        [HL_LIFE_ON_PREFETCH] = 7, [HL_LIFE_ON_LEAVE] = 8,    [HL_LIFE_ON_IDLE] = 9,
        [HL_LIFE_ON_WARM] = 10,    [HL_LIFE_ON_COOL] = 11};
    return ranks[event];
}

static int compare_decisions(const void *left, const void *right)
{
    const struct hl_decision *a = left, *b = right;
    unsigned ra = rank_of(a->event), rb = rank_of(b->event);
    if (ra != rb)
        return ra < rb ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    if (a->shard.hi != b->shard.hi)
        return a->shard.hi < b->shard.hi ? -1 : 1;
    return a->shard.lo < b->shard.lo ? -1 : a->shard.lo > b->shard.lo;
}

/* Reserves room in the destination's L2 and budget on the path there. */
static bool takes_room(struct passing *x, const struct hl_decision *d,
                       int64_t budget[HL_MOVE_PATHS])
{
    if (is_same_place(d->from, d->goal))
        return true;
    enum hl_move_path path = hl_rules_path(d->from, d->goal);
    uint64_t *l2_free = d->goal.tier == HL_API_TIER_L2 ? &x->y->l2_free[d->goal.node] : NULL;
    if (budget[path] <= 0 || (l2_free != NULL && *l2_free < d->size_bytes))
        return false;
    budget[path] -= (int64_t)d->size_bytes;
    if (l2_free != NULL)
        *l2_free -= d->size_bytes;
    return true;
}

static void keep_those_with_room(struct passing *x)
{
    struct hl_policy *y = x->y;
    int64_t budget[HL_MOVE_PATHS];
    memcpy(budget, x->limits->budget, sizeof(budget));
    size_t kept = 0;
    if (y->count > 0)
        qsort(y->decisions, y->count, sizeof(*y->decisions), compare_decisions);
    for (size_t i = 0; i < y->count; i++)
        if (takes_room(x, &y->decisions[i], budget))
            y->decisions[kept++] = y->decisions[i];
    y->deferred = y->count - kept;
    y->count = kept;
}

static uint64_t l1_use(const struct passing *x, uint32_t node)
{
    const struct hl_placement_node *n = &x->p->nodes[node];
    uint64_t use = x->limits->nodes[node].l1_used + n->l1_arriving;
    return use > n->l1_leaving ? use - n->l1_leaving : 0;
}

static uint64_t l1_high(const struct passing *x, uint32_t node)
{
    return (uint64_t)((double)x->limits->nodes[node].l1_bytes * x->p->params.high_pct / 100);
}

/* ---- each shard ------------------------------------------------------------------------------ */

static hl_status set_timer(struct passing *x, uint32_t index, struct hl_placed_shard *s,
                           int64_t at_ms)
{
    if (at_ms <= x->p->now_ms) {
        x->y->open++;
        hl_placement_touch(x->p, index);
        return HL_OK;
    }
    if (at_ms >= s->timer_ms) /* the timer set before judges it earlier */
        return HL_OK;
    s->timer_ms = at_ms < HL_TIME_MAX ? at_ms : HL_TIME_MAX - 1;
    return hl_timers_add(&x->y->timers, s->timer_ms, index);
}

/* The shard is in a list that the pass examines later. That is also where its wish to be in L1 is
 * evaluated, so that a full pass does not evaluate it for each shard. */
static bool stays_listed(const struct hl_placed_shard *s)
{
    enum hl_api_tier tier = s->place.tier;
    if (tier != HL_API_TIER_L1 && tier != HL_API_TIER_L2)
        return s->listed == HL_LISTED_NOWHERE;
    return s->listed_node == s->place.node && !s->pinned &&
           s->listed == (tier == HL_API_TIER_L1 ? HL_LISTED_IN_L1 : HL_LISTED_FOR_L1);
}

/* Demotion outranks cooling (3.3): if L1 is too full, a shard that would cool can be demoted in
 * this pass. */
static bool is_left_to_relief(const struct passing *x, const struct hl_placed_shard *s,
                              const struct hl_verdict *v)
{
    uint32_t node = s->place.node;
    return v->event == HL_LIFE_ON_COOL && s->place.tier == HL_API_TIER_L1 && !s->pinned &&
           node < x->limits->node_count && x->limits->nodes[node].l1_bytes > 0 &&
           l1_use(x, node) > l1_high(x, node);
}

/* Leaves the record unwritten if no decision or timer follows for the shard. */
static hl_status judge_shard(struct passing *x, uint32_t index, struct hl_placed_shard *s, bool all)
{
    if (s->touched || s->decided)
        s->touched = s->decided = false;
    if (s->life.lost)
        return HL_OK;
    x->y->judged++;
    int64_t until_ms = hl_rules_rests_until(s, &x->world, x->p->now_ms);
    bool rests = until_ms > x->p->now_ms;
    if (all && rests && stays_listed(s))
        return set_timer(x, index, s, until_ms);
    struct hl_verdict v = {.event = HL_LIFE_EVENTS, .recheck_ms = until_ms};
    if (!rests)
        v = hl_rules_judge(s, &x->world, x->p->now_ms);
    if (is_left_to_relief(x, s, &v))
        v = (struct hl_verdict){.event = HL_LIFE_EVENTS, .recheck_ms = x->p->now_ms};
    struct hl_wish wish = hl_rules_wish(s, &x->world, x->p->now_ms);
    enum hl_listed list = s->place.tier == HL_API_TIER_L1 ? HL_LISTED_IN_L1
                          : wish.for_l1                   ? HL_LISTED_FOR_L1
                                                          : HL_LISTED_NOWHERE;
    if (s->listed != list || (list != HL_LISTED_NOWHERE && s->listed_node != s->place.node))
        HL_TRY(hl_placement_list(x->p, index, list));
    HL_TRY(set_timer(x, index, s, v.recheck_ms < wish.recheck_ms ? v.recheck_ms : wish.recheck_ms));
    if (v.event == HL_LIFE_EVENTS)
        return HL_OK;
    s->decided = true;
    return decide_on(x, s, &v, v.cost_s > 0 ? -v.gain_s / v.cost_s : 0);
}

static bool are_timers_worn(const struct hl_policy *y, const struct hl_placement *p)
{
    return hl_timers_are_old(&y->timers, p->now_ms) ||
           y->timers.count / 2 > p->shards.count + TIMERS_MIN;
}

/* A full pass sets all timers again. */
static void clear_timers(struct passing *x)
{
    hl_timers_clear(&x->y->timers, x->p->now_ms);
    for (uint32_t i = 0; i < x->p->shards.end; i++)
        hl_shard_at(&x->p->shards, i)->timer_ms = HL_TIME_MAX;
}

/* Collects the timers that are due; also in a full pass, which sets them again. */
static hl_status collect_due(struct passing *x)
{
    struct hl_policy *y = x->y;
    struct hl_shard_timer due[DUE_AT_ONCE];
    uint32_t count;
    do {
        HL_TRY(hl_timers_take(&y->timers, x->p->now_ms, due, DUE_AT_ONCE, &count));
        for (uint32_t i = 0; i < count; i++)
            hl_shard_fetch_head(&x->p->shards, due[i].shard);
        for (uint32_t i = 0; i < count; i++) {
            struct hl_placed_shard *s = hl_shard_at(&x->p->shards, due[i].shard);
            if (!s->used || hl_timers_tick(&y->timers, s->timer_ms) != due[i].tick)
                continue; /* the shard was removed, or has an earlier timer now */
            s->timer_ms = HL_TIME_MAX;
            if (!s->touched)
                HL_TRY(hl_index_list_add(&y->now, due[i].shard));
            s->touched = true;
        }
    } while (count > 0);
    return HL_OK;
}

static hl_status judge_all(struct passing *x)
{
    const struct hl_shard_table *t = &x->p->shards;
    for (uint32_t i = 0; i < t->end; i++) {
        if (i + 2 * FETCH_AHEAD < t->end)
            hl_shard_fetch_head(t, i + 2 * FETCH_AHEAD);
        struct hl_placed_shard *s = hl_shard_at(t, i);
        if (s->used)
            HL_TRY(judge_shard(x, i, s, true));
        else if (s->touched)
            s->touched = false;
    }
    return HL_OK;
}

static hl_status judge_collected(struct passing *x)
{
    const struct hl_index_list *now = &x->y->now;
    for (uint32_t i = 0; i < now->count; i++) {
        if (i + 2 * FETCH_AHEAD < now->count)
            hl_shard_fetch_head(&x->p->shards, now->items[i + 2 * FETCH_AHEAD]);
        if (i + FETCH_AHEAD < now->count)
            hl_shard_fetch_rest(&x->p->shards, now->items[i + FETCH_AHEAD]);
        struct hl_placed_shard *s = hl_shard_at(&x->p->shards, now->items[i]);
        if (s->used)
            HL_TRY(judge_shard(x, now->items[i], s, false));
        else
            s->touched = false;
    }
    return HL_OK;
}

/* ---- the watermarks of L1 -------------------------------------------------------------------- */

static double leaving_order(const struct passing *x, const struct hl_placed_shard *s)
{
    double stability = hl_attributes_stability(&s->use, &x->p->params, x->p->now_ms);
    bool settled = x->p->now_ms - s->use.placed_ms >= x->p->params.residence_ms;
    return settled ? stability : 1 + stability;
}

static double coming_order(const struct passing *x, const struct hl_placed_shard *s)
{
    return -hl_attributes_heat(&s->use, &x->p->params, x->p->now_ms);
}

static uint32_t relievable_states(void)
{
    uint32_t states = 0;
    for (unsigned state = 0; state < HL_LIFE_STATES; state++)
        if (hl_life_section((enum hl_life_state)state, HL_LIFE_ON_PRESSURE)[0] != '\0')
            states |= UINT32_C(1) << state;
    return states;
}

/* The shard was found in L1 and no process reads it. Only an active shard can leave (3.5), so it
 * counts as loaded, and the next pass decides whether it is the first to leave. */
static hl_status load_unread(struct passing *x, const struct hl_placed_shard *s)
{
    struct hl_verdict v = {.event = HL_LIFE_ON_LOAD, .goal = s->place, .value = 0, .limit = 1};
    x->newcomers += s->size_bytes;
    return decide_on(x, s, &v, 0);
}

/* Fills y->leaving with the listed shards that do not move and have no other decision. For L1 it
 * includes those that stay, because they are a part of their sets. */
static hl_status collect_listed(struct passing *x, uint32_t node, enum hl_listed list)
{
    struct hl_policy *y = x->y;
    bool leave = list == HL_LISTED_IN_L1;
    const struct hl_index_list *listed = &x->p->nodes[node].lists[list];
    hl_leaving_clear(&y->leaving);
    x->newcomers = 0;
    x->looked += listed->count;
    for (uint32_t k = 0; k < listed->count; k++) {
        if (k + FETCH_AHEAD < listed->count)
            hl_shard_fetch(&x->p->shards, listed->items[k + FETCH_AHEAD]);
        uint32_t i = listed->items[k];
        const struct hl_placed_shard *s = hl_shard_at(&x->p->shards, i);
        bool stays = s->pinned || (leave && (x->relievable >> s->life.state & 1) == 0);
        bool is_new = s->life.state == HL_LIFE_CREATED;
        if (s->decided && is_new)
            x->newcomers += s->size_bytes;
        else if (leave && is_new && !s->pinned)
            HL_TRY(load_unread(x, s));
        if (s->decided || hl_life_is_moving((enum hl_life_state)s->life.state) ||
            (!leave && (stays || !hl_rules_wish(s, &x->world, x->p->now_ms).for_l1)))
            continue;
        struct hl_leaving l = {.id = s->id,
                               .shard = i,
                               .set = s->set - 1,
                               .version = hl_set_table_top(&x->p->sets, s->set - 1),
                               .stays = stays,
                               .order = leave ? leaving_order(x, s) : coming_order(x, s)};
        HL_TRY(hl_leaving_add(&y->leaving, &l));
    }
    return hl_leaving_order(&y->leaving, &x->p->sets, leave);
}

/* Demotes shards by whole sets until L1 is below its watermark. Newcomers can be the first to
 * leave, but only from the next pass on: if they alone exceed the watermark, no other shard leaves
 * for them. */
static hl_status relieve_l1(struct passing *x, uint32_t node, uint64_t use, uint64_t high,
                            double use_pct)
{
    struct hl_policy *y = x->y;
    struct hl_verdict v = {.event = HL_LIFE_ON_PRESSURE,
                           .goal = {.node = (uint16_t)node, .tier = HL_API_TIER_L2},
                           .value = use_pct,
                           .limit = x->p->params.high_pct};
    HL_TRY(collect_listed(x, node, HL_LISTED_IN_L1));
    if (use <= high + x->newcomers)
        return HL_OK;
    for (size_t i = 0; i < y->leaving.count && use > high; i++) {
        const struct hl_leaving *l = hl_leaving_at(&y->leaving, i);
        const struct hl_placed_shard *s = hl_shard_at(&x->p->shards, l->shard);
        if (l->stays)
            continue;
        HL_TRY(decide_on(x, s, &v, (double)i));
        use -= use < s->size_bytes ? use : s->size_bytes;
    }
    return HL_OK;
}

/* The end of the shards that move to L1 together: a set, or one shard without a set. */
static size_t end_of_coming(struct passing *x, size_t first, uint64_t *bytes)
{
    struct hl_leaving_list *list = &x->y->leaving;
    uint32_t set = hl_leaving_at(list, first)->set;
    size_t end = first;
    *bytes = 0;
    do
        *bytes += hl_shard_at(&x->p->shards, hl_leaving_at(list, end++)->shard)->size_bytes;
    while (end < list->count && set != HL_SET_NONE && hl_leaving_at(list, end)->set == set);
    return end;
}

static hl_status fill_l1(struct passing *x, uint32_t node, uint64_t use, uint64_t low,
                         uint64_t high)
{
    struct hl_policy *y = x->y;
    double capacity = (double)x->limits->nodes[node].l1_bytes;
    struct hl_verdict v = {.event = HL_LIFE_ON_PREFETCH,
                           .goal = {.node = (uint16_t)node, .tier = HL_API_TIER_L1},
                           .value = (double)use * 100 / capacity,
                           .limit = x->p->params.low_pct};
    HL_TRY(collect_listed(x, node, HL_LISTED_FOR_L1));
    uint64_t bytes;
    for (size_t i = 0, end; i < y->leaving.count && use < low; i = end) {
        end = end_of_coming(x, i, &bytes);
        if (bytes > high - use)
            continue;
        use += bytes;
        for (size_t k = i; k < end; k++) {
            uint32_t shard = hl_leaving_at(&y->leaving, k)->shard;
            const struct hl_placed_shard *s = hl_shard_at(&x->p->shards, shard);
            v.gain_s = hl_rules_gain(s, &x->world, v.goal, x->p->now_ms);
            v.cost_s = hl_rules_cost(s, &x->world, v.goal, x->p->now_ms);
            HL_TRY(decide_on(x, s, &v, (double)k));
        }
    }
    return HL_OK;
}

static hl_status keep_watermarks_of(struct passing *x, uint32_t node)
{
    const struct hl_node_limits *l = &x->limits->nodes[node];
    if (l->l1_bytes == 0)
        return HL_OK;
    uint64_t use = l1_use(x, node);
    uint64_t high = l1_high(x, node);
    uint64_t low = (uint64_t)((double)l->l1_bytes * x->p->params.low_pct / 100);
    if (use > high)
        return relieve_l1(x, node, use, high, (double)use * 100 / (double)l->l1_bytes);
    return use < low && x->y->takes[node] ? fill_l1(x, node, use, low, high) : HL_OK;
}

static hl_status keep_watermarks(struct passing *x)
{
    uint32_t n =
        x->limits->node_count < x->p->node_count ? x->limits->node_count : x->p->node_count;
    uint32_t i = 0, first = x->y->next_node;
    for (; i < n && x->looked < HL_POLICY_LOOK_MAX; i++)
        HL_TRY(keep_watermarks_of(x, (first + i) % n));
    x->y->next_node = n > 0 ? (first + i) % n : 0;
    return HL_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

static hl_status check_limits(const struct hl_policy_limits *limits)
{
    static const char *const names[HL_MOVE_PATHS] = {"inside", "migration", "backbone", "archive"};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        if (!(limits->rates[i] > 0) || isinf(limits->rates[i]))
            return hl_fail(HL_EINVAL,
                           "the measured rate of path %s is %g bytes per second: it "
                           "must be above 0",
                           names[i], limits->rates[i]);
    if (limits->node_count > HL_NODES_MAX)
        return hl_fail(HL_EINVAL, "limits for %u nodes: at most %u are allowed", limits->node_count,
                       HL_NODES_MAX);
    return HL_OK;
}

/* Computes what all verdicts depend on. *changed: it differs from the last pass. */
static hl_status prepare_world(struct passing *x, bool *changed)
{
    struct hl_policy *y = x->y;
    uint32_t n = x->limits->node_count;
    if (!y->primed || n != y->node_count) {
        bool *takes = calloc(n + 1, sizeof(*takes));
        uint64_t *l2_free = calloc(n + 1, sizeof(*l2_free));
        if (takes == NULL || l2_free == NULL) {
            free(takes);
            free(l2_free);
            return hl_fail(HL_ENOMEM, "out of memory allocating limits of %u nodes", n);
        }
        free(y->takes);
        free(y->l2_free);
        y->takes = takes;
        y->l2_free = l2_free;
        y->node_count = n;
        *changed = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct hl_node_limits *l = &x->limits->nodes[i];
        uint64_t used = l->l2_used + (i < x->p->node_count ? x->p->nodes[i].l2_arriving : 0);
        y->l2_free[i] = l->l2_bytes > used ? l->l2_bytes - used : 0;
        bool takes = l->takes && hl_placement_node_is_steady(x->p, (uint16_t)i);
        *changed |= y->takes[i] != takes;
        y->takes[i] = takes;
    }
    *changed |= memcmp(y->rates, x->limits->rates, sizeof(y->rates)) != 0 ||
                memcmp(&y->params, &x->p->params, sizeof(y->params)) != 0;
    memcpy(y->rates, x->limits->rates, sizeof(y->rates));
    y->params = x->p->params;
    x->world = (struct hl_rule_world){.params = &x->p->params,
                                      .rates = y->rates,
                                      .backbone_busy_pct = x->limits->backbone_busy_pct,
                                      .takes = y->takes,
                                      .node_count = n};
    hl_rules_prepare(&x->world);
    return HL_OK;
}

static hl_status run_pass(struct passing *x, bool full)
{
    struct hl_policy *y = x->y;
    bool changed = !y->primed;
    HL_TRY(prepare_world(x, &changed));
    y->primed = false;
    y->pass = y->pass % PASS_MAX + 1;
    y->count = y->judged = y->open = 0;
    if (y->failed || are_timers_worn(y, x->p)) {
        clear_timers(x);
        full = true;
    }
    bool most;
    hl_placement_take_touched(x->p, &y->now, &most);
    HL_TRY(collect_due(x));
    HL_TRY(full || changed || most ? judge_all(x) : judge_collected(x));
    HL_TRY(keep_watermarks(x));
    keep_those_with_room(x);
    y->primed = true;
    return HL_OK;
}

hl_status hl_policy_pass(struct hl_policy *y, struct hl_placement *p,
                         const struct hl_policy_limits *limits, bool full, int64_t now_ms)
{
    HL_TRY(check_limits(limits));
    hl_placement_advance(p, now_ms);
    struct passing x = {.y = y, .p = p, .limits = limits, .relievable = relievable_states()};
    hl_status st = run_pass(&x, full);
    y->failed = st != HL_OK;
    if (st != HL_OK)
        y->count = 0;
    return st;
}

hl_status hl_policy_begin(struct hl_placement *p, const struct hl_decision *decision,
                          int64_t now_ms)
{
    struct hl_change change = {.at_ms = now_ms,
                               .event = decision->event,
                               .node = decision->goal.node,
                               .value = decision->value,
                               .limit = decision->limit};
    return hl_placement_shard_move(p, decision->shard, &change, decision->goal);
}
