#include "core/placement/rules.h"

#include <math.h>

#define L1 HL_API_TIER_L1
#define L2 HL_API_TIER_L2
#define L3 HL_API_TIER_L3
#define L4 HL_API_TIER_L4

/* From this number on, readers are called scattered. */
#define SCATTERED_MIN 3

/* The inputs of the rules, computed once per shard. */
struct judged {
    const struct hl_placed_shard *s;
    const struct hl_rule_world *world;
    int64_t now_ms;
    struct hl_reader_count readers[HL_READERS]; /* most frequent first */
    unsigned reader_count;
    uint16_t first_remote;     /* the most frequent reader on another server */
    double first, own, remote; /* accesses by first_remote, by the holder, and by all others */
    unsigned frequent;         /* number of other servers that read it frequently */
};

/* ---- seconds --------------------------------------------------------------------------------- */

static bool is_on_node(struct hl_place place)
{
    return place.tier == L1 || place.tier == L2;
}

static double path_seconds(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                           enum hl_move_path path)
{
    return (double)s->size_bytes / world->rates[path];
}

/* How long one read by a node takes if the shard is at `place`. */
static double read_seconds(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                           struct hl_place place, uint16_t node)
{
    bool here = is_on_node(place) && place.node == node;
    double seconds = here ? 0 : path_seconds(s, world, HL_MOVE_BACKBONE);
    if (place.tier == L4)
        seconds += path_seconds(s, world, HL_MOVE_ARCHIVE);
    if ((place.tier == L2 && here) || (place.tier == L1 && !here))
        seconds += path_seconds(s, world, HL_MOVE_INSIDE);
    return seconds;
}

double hl_rules_seconds(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                        struct hl_place goal)
{
    struct hl_place from = s->place;
    double seconds =
        from.tier == L1 || goal.tier == L1 ? path_seconds(s, world, HL_MOVE_INSIDE) : 0;
    if (from.tier == L4 || goal.tier == L4)
        seconds += path_seconds(s, world, HL_MOVE_ARCHIVE);
    if (is_on_node(from) && is_on_node(goal))
        return seconds + (from.node == goal.node ? 0 : path_seconds(s, world, HL_MOVE_MIGRATION));
    if (is_on_node(from) != is_on_node(goal))
        seconds += path_seconds(s, world, HL_MOVE_BACKBONE);
    return seconds;
}

enum hl_move_path hl_rules_path(struct hl_place from, struct hl_place goal)
{
    if (is_on_node(from) && is_on_node(goal))
        return from.node == goal.node ? HL_MOVE_INSIDE : HL_MOVE_MIGRATION;
    return is_on_node(from) != is_on_node(goal) ? HL_MOVE_BACKBONE : HL_MOVE_ARCHIVE;
}

static double readers_gain(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                           struct hl_place goal, const struct hl_reader_count *readers,
                           unsigned count)
{
    double gain = 0;
    for (unsigned i = 0; i < count; i++)
        gain += readers[i].count * (read_seconds(s, world, s->place, readers[i].node) -
                                    read_seconds(s, world, goal, readers[i].node));
    return gain;
}

double hl_rules_gain(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms)
{
    struct hl_reader_count readers[HL_READERS];
    unsigned n = hl_attributes_readers(&s->use, world->params, now_ms, readers);
    return readers_gain(s, world, goal, readers, n);
}

double hl_rules_cost(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                     struct hl_place goal, int64_t now_ms)
{
    return hl_rules_seconds(s, world, goal) *
           (1 + hl_attributes_fluidity(&s->use, world->params, now_ms));
}

double hl_rules_migrate_threshold(const struct hl_rule_world *world)
{
    double busy = world->backbone_busy_pct;
    busy = busy > 0 ? fmin(busy, 100) : 0; /* an unknown load counts as idle */
    return world->params->migrate_base * (1 + busy / 100);
}

/* ---- verdicts -------------------------------------------------------------------------------- */

/* The highest age of an access whose freshness alone gives `heat`; rounded down. */
static int64_t fresh_until_ms(const struct hl_placement_params *p, double heat)
{
    double age_ms = heat > 0 ? (double)p->tau_ms * log(p->beta / heat) : 0;
    return age_ms > 1 ? (int64_t)fmin(age_ms, 1e15) : 0;
}

void hl_rules_prepare(struct hl_rule_world *world)
{
    const struct hl_placement_params *p = world->params;
    world->warm_ms = fresh_until_ms(p, p->warm_heat);
    world->cool_ms = fresh_until_ms(p, p->cool_heat);
}

static bool is_fresh(const struct hl_placed_shard *s, int64_t until_ms, int64_t now_ms)
{
    return s->use.last_ms >= 0 && now_ms - s->use.last_ms < until_ms;
}

bool hl_rules_are_crowded(const struct hl_placed_shard *s, const struct hl_placement_params *params)
{
    uint32_t remote = 0, frequent = 0;
    for (unsigned i = 0; i < HL_READERS; i++) {
        const struct hl_reader *r = &s->use.readers[i];
        uint32_t most = (uint32_t)r->now + r->before;
        if (r->node == HL_READER_NONE || r->node == s->place.node)
            continue;
        remote += most;
        frequent += most >= params->spread_accesses;
    }
    return remote > params->migrate_base || frequent >= params->spread_servers;
}

static void look_at_readers(struct judged *j)
{
    const struct hl_placed_shard *s = j->s;
    j->reader_count = hl_attributes_readers(&s->use, j->world->params, j->now_ms, j->readers);
    for (unsigned i = 0; i < j->reader_count; i++) {
        const struct hl_reader_count *r = &j->readers[i];
        if (is_on_node(s->place) && r->node == s->place.node) {
            j->own = r->count;
            continue;
        }
        if (j->first_remote == HL_READER_NONE) {
            j->first_remote = r->node;
            j->first = r->count;
        }
        j->remote += r->count;
        j->frequent += r->count >= j->world->params->spread_accesses;
    }
}

static struct hl_verdict keep_place(const struct judged *j, int64_t recheck_ms)
{
    return (struct hl_verdict){
        .event = HL_LIFE_EVENTS, .goal = j->s->place, .recheck_ms = recheck_ms};
}

static struct hl_verdict follow_event(const struct judged *j, enum hl_life_event event,
                                      struct hl_place goal, double value, double limit)
{
    return (struct hl_verdict){
        .event = event, .goal = goal, .value = value, .limit = limit, .recheck_ms = j->now_ms};
}

static bool is_settled(const struct judged *j)
{
    return j->now_ms - j->s->use.placed_ms >= j->world->params->residence_ms;
}

static bool node_takes(const struct judged *j, uint16_t node)
{
    return node < j->world->node_count && j->world->takes[node];
}

/* Makes *v a move to `goal` if the move pays off; otherwise leaves *v untouched. */
static bool weigh_move(const struct judged *j, struct hl_place goal, struct hl_verdict *v)
{
    if (goal.tier == L2 && !node_takes(j, goal.node))
        return false;
    double gain = readers_gain(j->s, j->world, goal, j->readers, j->reader_count);
    double cost = hl_rules_cost(j->s, j->world, goal, j->now_ms);
    if (!(gain > cost))
        return false;
    v->goal = goal;
    v->gain_s = gain;
    v->cost_s = cost;
    return true;
}

/* For a shard on a node: the three rules about accesses from other servers. Of the state they only
 * check whether a move can begin. */
static bool judge_readers(const struct judged *j, struct hl_verdict *out)
{
    const struct hl_placement_params *params = j->world->params;
    const struct hl_place in_l3 = {.node = HL_READER_NONE, .tier = L3};
    if (j->frequent >= params->spread_servers) {
        *out =
            follow_event(j, HL_LIFE_ON_SPREAD, in_l3, j->frequent, (double)params->spread_servers);
        return true;
    }
    /* The threshold rises for shards that moved recently, so that a load that swings around it
     * moves nothing twice. */
    double fluidity = hl_attributes_fluidity(&j->s->use, params, j->now_ms);
    double threshold = hl_rules_migrate_threshold(j->world) * (1 + fluidity);
    if (!is_settled(j))
        return false;
    struct hl_verdict v = follow_event(j, HL_LIFE_ON_REMOTE, j->s->place, j->first, threshold);
    struct hl_place to_reader = {.node = j->first_remote, .tier = L2};
    if (j->first > threshold && weigh_move(j, to_reader, &v)) {
        *out = v;
        return true;
    }
    double share = j->readers[0].count / (j->own + j->remote);
    if (j->reader_count >= SCATTERED_MIN && j->remote > threshold && share < params->recall_share &&
        j->s->life.state != HL_LIFE_MIGRATING) {
        *out = follow_event(j, HL_LIFE_ON_RECALL, in_l3, share, params->recall_share);
        return true;
    }
    return false;
}

/* The earliest time of a verdict by judge_readers: without an event, counts only fall. */
static int64_t recheck_readers(const struct judged *j)
{
    return j->remote > j->world->params->migrate_base ? j->now_ms : INT64_MAX;
}

/* The earliest time at which heat is below the threshold. */
static int64_t recheck_heat(const struct judged *j)
{
    const struct hl_placement_params *params = j->world->params;
    const struct hl_attributes *use = &j->s->use;
    struct hl_count n = hl_attributes_counted(use, params, j->now_ms);
    double rest = params->cool_heat - params->alpha * n.count * 1e3 / (double)params->window_ms;
    int64_t drop_ms = n.next_drop_ms;
    if (!(rest > 0) || use->last_ms < 0 || params->beta <= rest)
        return drop_ms;
    double age_ms = (double)params->tau_ms * log(params->beta / rest);
    int64_t cool_ms = use->last_ms + (int64_t)fmin(age_ms, 1e15);
    return cool_ms < drop_ms ? cool_ms : drop_ms;
}

static int64_t earlier_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* For a shard on a node that does not move. */
static struct hl_verdict judge_heat(const struct judged *j, bool may_leave)
{
    const struct hl_placement_params *params = j->world->params;
    const struct hl_placed_shard *s = j->s;
    bool is_active = s->life.state == HL_LIFE_ACTIVE;
    if (is_active && is_fresh(s, j->world->cool_ms, j->now_ms))
        return keep_place(j, s->use.last_ms + j->world->cool_ms);
    double heat = hl_attributes_heat(&s->use, params, j->now_ms);
    if (!is_active && heat >= params->warm_heat)
        return follow_event(j, HL_LIFE_ON_WARM, s->place, heat, params->warm_heat);
    if (s->life.state != HL_LIFE_COOLING) {
        if (heat < params->cool_heat)
            return follow_event(j, HL_LIFE_ON_COOL, s->place, heat, params->cool_heat);
        return keep_place(j, recheck_heat(j));
    }
    int64_t since_ms = s->changed_ms > s->use.placed_ms ? s->changed_ms : s->use.placed_ms;
    if (!may_leave)
        return keep_place(j, INT64_MAX);
    if (j->now_ms - since_ms < params->residence_ms)
        return keep_place(j, since_ms + params->residence_ms);
    return follow_event(j, HL_LIFE_ON_LEAVE, (struct hl_place){.node = HL_READER_NONE, .tier = L3},
                        (double)(j->now_ms - since_ms) / 1e3, (double)params->residence_ms / 1e3);
}

/* ---- in L3 and L4 ---- */

/* One server makes most of the reads, so its L2 is the better place. */
static bool has_one_reader(const struct judged *j)
{
    return j->frequent < j->world->params->spread_servers &&
           j->readers[0].count >= j->world->params->recall_share * j->remote;
}

/* Where a shard that is read again goes: to its latest reader, or from L4 to L3 if it has many
 * readers. */
static struct hl_place reading_place(const struct judged *j)
{
    const struct hl_placed_shard *s = j->s;
    if (s->place.tier == L4 && (!has_one_reader(j) || !node_takes(j, s->use.last_reader)))
        return (struct hl_place){.node = HL_READER_NONE, .tier = L3};
    return (struct hl_place){.node = s->use.last_reader, .tier = L2};
}

static bool may_be_read_again(const struct judged *j)
{
    if (j->s->use.last_ms < 0 || j->s->pinned)
        return false;
    switch ((enum hl_life_state)j->s->life.state) {
    case HL_LIFE_CREATED:
    case HL_LIFE_WARM_L3:
        return true;
    case HL_LIFE_ARCHIVED_L3:
    case HL_LIFE_EXPIRED_L4:
        return j->s->use.last_ms > j->s->changed_ms;
    default:
        return false;
    }
}

static bool is_read_again(const struct judged *j)
{
    return j->reader_count > 0 && may_be_read_again(j);
}

/* It was moved there lately: by the policy, or by an order, after which its life begins again. */
static bool rests_in_l3(const struct judged *j)
{
    enum hl_life_state state = (enum hl_life_state)j->s->life.state;
    bool was_moved = state == HL_LIFE_WARM_L3 || (state == HL_LIFE_CREATED && j->s->use.moves > 0);
    return was_moved && !is_settled(j);
}

static bool judge_reading(const struct judged *j, struct hl_verdict *out)
{
    enum hl_life_state state = (enum hl_life_state)j->s->life.state;
    if (!is_read_again(j) || rests_in_l3(j))
        return false;
    enum hl_life_event event = state == HL_LIFE_CREATED ? HL_LIFE_ON_LOAD : HL_LIFE_ON_ACCESS;
    struct hl_verdict v = follow_event(j, event, j->s->place, j->remote, 1);
    struct hl_place goal = reading_place(j);
    if ((goal.tier == L2 && !has_one_reader(j)) || !weigh_move(j, goal, &v))
        return false;
    *out = v;
    return true;
}

/* When the recorded fluidity of `a` has fallen to `level`. */
static int64_t fluidity_falls_ms(const struct hl_attributes *a,
                                 const struct hl_placement_params *params, double level)
{
    if (!(level > 0))
        return INT64_MAX;
    double after_ms = (double)params->fluidity_tau_ms * log((double)a->recent_moves / level);
    return after_ms > 0 ? a->placed_ms + (int64_t)fmin(after_ms, 1e15) : a->placed_ms;
}

static int64_t later_of(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The earliest time at which a move pays off. Without an event the gain only falls, and the cost
 * falls to that of a shard that was never moved. */
static int64_t worth_ms(const struct judged *j, struct hl_place goal)
{
    double gain = readers_gain(j->s, j->world, goal, j->readers, j->reader_count);
    double least = hl_rules_seconds(j->s, j->world, goal);
    return gain > least ? fluidity_falls_ms(&j->s->use, j->world->params, gain / least - 1)
                        : INT64_MAX;
}

/* The earliest time of a verdict by judge_reading; shares of readers can change at any time. */
static int64_t recheck_reading(const struct judged *j)
{
    if (!is_read_again(j))
        return INT64_MAX;
    struct hl_place to_reader = {.node = j->s->use.last_reader, .tier = L2};
    struct hl_place to_l3 = {.node = HL_READER_NONE, .tier = L3};
    int64_t at_ms = worth_ms(j, to_reader);
    return j->s->place.tier == L4 ? earlier_of(at_ms, worth_ms(j, to_l3)) : at_ms;
}

static struct hl_verdict judge_below(struct judged *j)
{
    const struct hl_placement_params *params = j->world->params;
    const struct hl_placed_shard *s = j->s;
    enum hl_life_state state = (enum hl_life_state)s->life.state;
    struct hl_verdict v;
    if (may_be_read_again(j))
        look_at_readers(j);
    if (judge_reading(j, &v))
        return v;
    int64_t recheck = recheck_reading(j);
    if (state == HL_LIFE_WARM_L3) {
        double heat = hl_attributes_heat(&s->use, params, j->now_ms);
        if (heat < params->cool_heat)
            return follow_event(j, HL_LIFE_ON_COOL, s->place, heat, params->cool_heat);
        recheck = earlier_of(recheck, recheck_heat(j));
    }
    if (state == HL_LIFE_ARCHIVED_L3 && !s->pinned) {
        int64_t since_ms = s->use.last_ms > s->use.placed_ms ? s->use.last_ms : s->use.placed_ms;
        if (j->now_ms - since_ms >= params->archive_ms)
            return follow_event(
                j, HL_LIFE_ON_IDLE, (struct hl_place){.node = HL_READER_NONE, .tier = L4},
                (double)(j->now_ms - since_ms) / 1e3, (double)params->archive_ms / 1e3);
        recheck = earlier_of(recheck, since_ms + params->archive_ms);
    }
    return keep_place(j, recheck);
}

/* The shard was found on a node: a rank wrote it there, an order placed it there, or an earlier
 * Controller moved it. If it has a reader there, it is in its place. Without any reader it counts
 * as loaded after the time for which L3 keeps idle shards, so that it can cool and leave. */
static struct hl_verdict judge_created(struct judged *j)
{
    int64_t idle_ms = j->s->use.placed_ms + j->world->params->archive_ms;
    look_at_readers(j);
    return j->reader_count > 0 || j->now_ms >= idle_ms
               ? follow_event(j, HL_LIFE_ON_LOAD, j->s->place, j->own + j->remote, 1)
               : keep_place(j, idle_ms);
}

int64_t hl_rules_rests_until(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms)
{
    bool on_node = is_on_node(s->place);
    switch ((enum hl_life_state)s->life.state) {
    case HL_LIFE_ACTIVE:
        if (!is_fresh(s, world->cool_ms, now_ms) || (on_node && !s->pinned && s->crowded))
            return now_ms;
        return s->use.last_ms + world->cool_ms;
    case HL_LIFE_CREATED:
    case HL_LIFE_EXPIRED_L4:
        return on_node || s->use.last_ms >= 0 ? now_ms : INT64_MAX;
    case HL_LIFE_ARCHIVED_L3:
        if (on_node || s->use.last_ms >= 0)
            return now_ms;
        return s->pinned ? INT64_MAX : s->use.placed_ms + world->params->archive_ms;
    default:
        return now_ms;
    }
}

struct hl_verdict hl_rules_judge(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                                 int64_t now_ms)
{
    struct judged j = {.s = s, .world = world, .now_ms = now_ms, .first_remote = HL_READER_NONE};
    enum hl_life_state state = (enum hl_life_state)s->life.state;
    if (hl_life_is_moving(state) && state != HL_LIFE_MIGRATING)
        return keep_place(&j, INT64_MAX);
    if (!is_on_node(s->place)) /* active in L3: it came from L4 for many readers */
        return state == HL_LIFE_ACTIVE || state == HL_LIFE_COOLING ? judge_heat(&j, !s->pinned)
                                                                   : judge_below(&j);
    if (state == HL_LIFE_CREATED)
        return judge_created(&j);
    struct hl_verdict v;
    int64_t recheck = INT64_MAX;
    if (!s->pinned && hl_rules_are_crowded(s, world->params)) {
        look_at_readers(&j);
        if (judge_readers(&j, &v))
            return v;
        recheck = recheck_readers(&j);
    }
    if (state == HL_LIFE_MIGRATING) {
        double heat = hl_attributes_heat(&s->use, world->params, now_ms);
        if (heat >= world->params->warm_heat)
            return follow_event(&j, HL_LIFE_ON_WARM, s->place, heat, world->params->warm_heat);
        return keep_place(&j, recheck);
    }
    v = judge_heat(&j, !s->pinned);
    v.recheck_ms = v.event == HL_LIFE_EVENTS ? earlier_of(v.recheck_ms, recheck) : v.recheck_ms;
    return v;
}

/* ---- L1 -------------------------------------------------------------------------------------- */

struct hl_wish hl_rules_wish(const struct hl_placed_shard *s, const struct hl_rule_world *world,
                             int64_t now_ms)
{
    const struct hl_placement_params *params = world->params;
    const struct hl_wish none = {.recheck_ms = INT64_MAX};
    bool may = s->life.state == HL_LIFE_ACTIVE || s->life.state == HL_LIFE_WARM_L2;
    if (!may || s->place.tier != L2 || s->pinned ||
        (!is_fresh(s, world->warm_ms, now_ms) &&
         hl_attributes_heat(&s->use, params, now_ms) < params->warm_heat))
        return none;
    /* Counted in copies from L2 to L1: each read by this node saves one, each read by another node
     * costs one more. The gain rises to `own` if the reads of other nodes are forgotten first. */
    double own, others;
    hl_attributes_own(&s->use, params, now_ms, s->place.node, 1, &own, &others);
    if (!(own > 1)) /* only an event can change this */
        return none;
    double fluidity = hl_attributes_fluidity(&s->use, params, now_ms);
    int64_t at_ms = s->use.placed_ms + params->residence_ms;
    if (fluidity >= params->fluidity_high)
        at_ms = later_of(at_ms, fluidity_falls_ms(&s->use, params, params->fluidity_high));
    if (!(own > 1 + fluidity))
        at_ms = later_of(at_ms, fluidity_falls_ms(&s->use, params, own - 1));
    if (!(own - others > 1 + fluidity))
        at_ms =
            later_of(at_ms, hl_attributes_own_exceeds(&s->use, params, now_ms, s->place.node, 1));
    bool wishes = now_ms - s->use.placed_ms >= params->residence_ms &&
                  fluidity < params->fluidity_high && own - others > 1 + fluidity;
    if (wishes && s->size_bytes == 0) /* checked last: it is in another cache line */
        return none;
    return (struct hl_wish){.for_l1 = wishes, .recheck_ms = wishes ? INT64_MAX : at_ms};
}
