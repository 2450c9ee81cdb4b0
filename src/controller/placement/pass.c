/* A pass of the policy: which resources it may use, and what happens with its decisions.
 *
 *     only the state changes    carried out at once, even if the policy only observes
 *     a move                    placement.policy is on: ordered; else shown, and logged once
 *     of a shard that moves     one that leaves for L3 is cancelled; the next pass decides again */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"

#define LOGGED_MAX       20   /* decisions logged per pass */
#define RATE_CHANGED     0.25 /* a change by this fraction makes the policy judge all again */
#define WAITING_PER_TURN 4    /* moves that may wait for each one in flight */

/* ---- what it may use ------------------------------------------------------------------------- */

/* HybridPS chunks are outside the quota of shards, but use the same memory. */
static void add_tier(struct hl_node_limits *l, const struct hl_api_tier_info *t)
{
    bool chunks = t->kind[0] != '\0';
    uint64_t *bytes = t->tier == HL_API_TIER_L1 ? &l->l1_bytes : &l->l2_bytes;
    uint64_t *used = t->tier == HL_API_TIER_L1 ? &l->l1_used : &l->l2_used;
    if (!chunks)
        *bytes += t->quota_bytes;
    *used += t->used_bytes;
}

static struct hl_node_limits node_limits(const struct hl_controller *c, const struct placed_node *n)
{
    struct hl_node_limits l = {.takes = placed_node_takes(c, n)};
    const struct hl_api_tier_info_list *tiers = n->node != NULL ? &n->node->report.tiers : NULL;
    for (size_t i = 0; tiers != NULL && i < tiers->count; i++)
        add_tier(&l, &tiers->items[i]);
    return l;
}

/* The rate of a path, followed in steps only: each change makes the next pass a full one. */
static double rate_now(struct placement *p, int path)
{
    double rate = budget_rate(p, path), *used = &p->used_rates[path];
    if (fabs(rate - *used) > RATE_CHANGED * *used)
        *used = rate;
    return *used;
}

static hl_status pass_limits(struct hl_controller *c, int64_t now_ms, struct hl_policy_limits *out)
{
    struct placement *p = c->placement;
    uint32_t count = p->core.node_count;
    struct hl_node_limits *nodes = calloc(count + 1, sizeof(*nodes));
    if (nodes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the limits of %u nodes", count);
    for (uint32_t i = 0; i < count; i++)
        if (placed_node_at(c, (uint16_t)i) != NULL)
            nodes[i] = node_limits(c, placed_node_at(c, (uint16_t)i));
    p->busy_pct = backbone_busy_pct(c);
    *out = (struct hl_policy_limits){
        .nodes = nodes, .node_count = count, .backbone_busy_pct = p->busy_pct};
    for (int i = 0; i < HL_MOVE_PATHS; i++)
        out->rates[i] = rate_now(p, i);
    if (p->moves.count < (uint32_t)p->conf.moves * WAITING_PER_TURN)
        hl_budget_look(&p->budget, now_ms, out->budget);
    return HL_OK;
}

/* ---- what follows ---------------------------------------------------------------------------- */

static bool decision_stays(const struct hl_decision *d)
{
    return d->from.tier == d->goal.tier && d->from.node == d->goal.node;
}

/* The copy is already where it should be, so what counts as a move in the shard's life is over at
 * once. */
static void change_state(struct hl_controller *c, const struct hl_decision *d, int64_t now_ms)
{
    struct hl_placement *p = &c->placement->core;
    hl_status st = hl_policy_begin(p, d, now_ms);
    const struct hl_placed_shard *s = hl_placement_shard_find(p, d->shard);
    if (st == HL_OK && s != NULL && hl_life_is_moving((enum hl_life_state)s->life.state))
        st = hl_placement_shard_change(p, d->shard,
                                       &(struct hl_change){.at_ms = now_ms,
                                                           .event = s->life.state == HL_LIFE_PREHEAT
                                                                        ? HL_LIFE_ON_LOADED
                                                                        : HL_LIFE_ON_SWITCHED,
                                                           .node = d->goal.node});
    if (st != HL_OK)
        hl_debug("a decision was not carried out: %s", hl_error_text());
}

static void log_decision(const struct hl_controller *c, const struct hl_decision *d, bool goes)
{
    const char *from = placed_node_name(c, d->from.node), *goal = placed_node_name(c, d->goal.node);
    hl_info("shard %s id=%s from=%s%s%s to=%s%s%s because=\"%s\" numbers=\"%s\" value=%g limit=%g "
            "gain_s=%g cost_s=%g",
            goes ? "moves" : "would move", hl_id_format(d->shard).s,
            hl_api_tier_name((enum hl_api_tier)d->from.tier), from[0] != '\0' ? "@" : "", from,
            hl_api_tier_name((enum hl_api_tier)d->goal.tier), goal[0] != '\0' ? "@" : "", goal,
            hl_life_event_text(d->event), hl_life_event_numbers(d->event), d->value, d->limit,
            d->gain_s, d->cost_s);
}

/* True if the goal can take the shard, and versions.durability does not need the copy that the move
 * removes; what is loaded keeps its copy below. */
static bool may_go(struct hl_controller *c, const struct hl_decision *d)
{
    const struct placed_node *from = placed_node_at(c, d->from.node);
    const struct placed_node *goal = placed_node_at(c, d->goal.node);
    const struct place goes = {.tier = (enum hl_api_tier)d->from.tier,
                               .node = from != NULL ? from->node : NULL};
    const struct place comes = {.tier = (enum hl_api_tier)d->goal.tier,
                                .node = goal != NULL ? goal->node : NULL};
    if (copies_fit(c, d->shard, &comes) != HL_OK)
        return false;
    return d->goal.tier < d->from.tier || durability_lets_go(c, d->shard, &goes, &comes) == HL_OK;
}

/* Nothing goes to L4 without an archive; nor does a cut shard, because it can be made again. */
static bool has_way(struct hl_controller *c, const struct hl_decision *d)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, d->shard);
    return s != NULL &&
           (d->goal.tier != HL_API_TIER_L4 || (pool_has_archive(c) && s->cut == NULL)) &&
           may_go(c, d);
}

static uint8_t priority_of(enum hl_life_event event)
{
    static const uint8_t priorities[HL_LIFE_EVENTS] = {
        [HL_LIFE_ON_SPREAD] = 200,  [HL_LIFE_ON_PRESSURE] = 200, [HL_LIFE_ON_REMOTE] = 150,
        [HL_LIFE_ON_RECALL] = 120,  [HL_LIFE_ON_ACCESS] = 100,   [HL_LIFE_ON_LOAD] = 100,
        [HL_LIFE_ON_PREFETCH] = 80, [HL_LIFE_ON_LEAVE] = 40,     [HL_LIFE_ON_IDLE] = 20};
    return priorities[event];
}

/* True if the shard is being moved. If that move takes it to L3, it is cancelled, because the shard
 * is being read again. */
static bool interrupt_move(struct hl_controller *c, const struct hl_decision *d, int64_t now_ms)
{
    const struct hl_move_rec *rec = hl_migration_find(&c->placement->moves, d->shard);
    if (rec == NULL)
        return false;
    if (rec->order.reason == HL_LIFE_ON_LEAVE &&
        hl_migration_cancel(&c->placement->moves, rec->order.id, now_ms) != HL_OK)
        hl_debug("a move was not cancelled: %s", hl_error_text());
    return true;
}

static hl_status order_move(struct hl_controller *c, const struct hl_decision *d, int64_t now_ms)
{
    struct hl_move_order order;
    HL_TRY(moves_prepare(c, d->shard, d->from, d->goal, &order));
    order.reason = d->event;
    order.value = d->value;
    order.limit = d->limit;
    order.gain_s = d->gain_s;
    order.cost_s = d->copy_s;
    order.priority = priority_of(d->event);
    order.copy_ms = budget_copy_ms(c, &order);
    if (d->event != HL_LIFE_ON_IDLE) /* this state begins with the switch */
        HL_TRY(hl_policy_begin(&c->placement->core, d, now_ms));
    hl_status st = moves_order(c, &order);
    if (st == HL_OK)
        hl_budget_take(&c->placement->budget, hl_rules_path(d->from, d->goal),
                       (int64_t)d->size_bytes);
    if (st != HL_OK && d->event != HL_LIFE_ON_IDLE &&
        hl_placement_shard_change(&c->placement->core, d->shard,
                                  &(struct hl_change){.at_ms = now_ms,
                                                      .event = HL_LIFE_ON_UNDONE,
                                                      .node = d->goal.node}) != HL_OK)
        hl_debug("a decision was not taken back: %s", hl_error_text());
    return st;
}

/* True: it is worth a log line. */
static bool decide_move(struct hl_controller *c, const struct hl_decision *d, int64_t now_ms,
                        bool on)
{
    const struct noted_decision *noted = noted_find(c, d->shard);
    if (!has_way(c, d) || (noted != NULL && now_ms < noted->rests_ms))
        return false;
    bool is_new = noted_add(c, d, on);
    if (!on)
        return is_new;
    hl_status st = order_move(c, d, now_ms);
    if (st != HL_OK)
        hl_debug("a decision was not carried out: %s", hl_error_text());
    return st == HL_OK;
}

static void carry_out(struct hl_controller *c, int64_t now_ms)
{
    const struct hl_policy *y = &c->placement->policy;
    bool on = strcmp(c->placement->conf.policy, "on") == 0 && claim_ok(c, NULL, 0);
    unsigned fresh = 0;
    for (size_t i = 0; i < y->count; i++) {
        const struct hl_decision *d = &y->decisions[i];
        if (interrupt_move(c, d, now_ms))
            continue;
        if (decision_stays(d))
            change_state(c, d, now_ms);
        else if (decide_move(c, d, now_ms, on) && fresh++ < LOGGED_MAX)
            log_decision(c, d, on);
    }
    if (fresh > LOGGED_MAX)
        hl_info("more shards %s count=%u; `helios shard show ID` shows the decision about each",
                on ? "move" : "would move", fresh - LOGGED_MAX);
    noted_expire(c);
    moves_run(c);
}

void pass_run(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_policy_limits limits;
    int64_t now = placement_now_ms();
    if (strcmp(p->conf.policy, "off") == 0)
        return;
    hl_status st = pass_limits(c, now, &limits);
    if (st == HL_OK) {
        st = hl_policy_pass(&p->policy, &p->core, &limits, false, now);
        free((void *)limits.nodes);
    }
    if (trouble_is_new(&p->pass_trouble, st))
        hl_warn("the policy decides nothing error=\"%s\"", hl_error_text());
    if (st == HL_OK)
        carry_out(c, now);
    p->passes += st == HL_OK;
    pool_order_run(c);
}
