/* Limits how much of each network the policy's moves may use, and pauses them while ranks start or
 * wait for each other's parts of a save: then the ranks have the networks to themselves. Moves that
 * a person ordered are neither limited nor paused; nor are moves that fetch what the ranks will
 * read. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/placement/placement_private.h"

#define BURST_MS     1000
#define MEASURED_MIN (1u << 20) /* a smaller copy says nothing about the rate */
#define PACE_KEPT    0.5        /* a copy below this share of its pace was held up by its path */
#define GAIN_MIN     0.2        /* weight of a copy in the rate of its path, at least */

/* Bytes per second of each path, assumed until moves have measured it. */
static const double first_rates[HL_MOVE_PATHS] = {[HL_MOVE_INSIDE] = 8e9,
                                                  [HL_MOVE_MIGRATION] = 1e9,
                                                  [HL_MOVE_BACKBONE] = 1e9,
                                                  [HL_MOVE_ARCHIVE] = 5e8};

/* Moves within a node, or to the archive below the pool, use no network of Helios. */
static bool path_is_network(int path)
{
    return path == HL_MOVE_MIGRATION || path == HL_MOVE_BACKBONE;
}

hl_status budget_configure(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_budget_limits limits = {.burst_ms = BURST_MS};
    double rate = p->conf.rate > 0 ? (double)p->conf.rate / 8 : HUGE_VAL;
    for (int i = 0; i < HL_MOVE_PATHS; i++)
        limits.rates[i] = path_is_network(i) ? rate : HUGE_VAL;
    return p->budget.limits.burst_ms == 0
               ? hl_budget_init(&p->budget, &limits, placement_now_ms())
               : hl_budget_configure(&p->budget, &limits, placement_now_ms());
}

/* What a person orders is not limited by the budget. */
static bool order_is_budgeted(const struct hl_move_order *o)
{
    return o->priority != UINT8_MAX;
}

/* The rate of one move: its share of what the policy's moves in flight on that network may use
 * together. With shares they never exceed the limit, not even for a moment. A waiting move gets its
 * share when it begins. */
uint64_t budget_pace(const struct hl_controller *c, const struct hl_move_order *o)
{
    const struct placement *p = c->placement;
    const enum hl_move_path path = hl_rules_path(o->from, o->goal);
    uint64_t most = p->conf.rate / 8, beside = 0;
    if (!order_is_budgeted(o) || p->conf.rate == 0 || !path_is_network((int)path))
        return o->bytes_per_s;
    for (uint32_t i = 0; i < p->moves.count; i++) {
        const struct hl_move_rec *rec = hl_migration_at(&p->moves, i);
        beside += !hl_id_equal(rec->order.id, o->id) && order_is_budgeted(&rec->order) &&
                  (rec->phase == HL_MOVE_PHASE_DECIDED || rec->phase == HL_MOVE_PHASE_COPYING) &&
                  hl_rules_path(rec->order.from, rec->order.goal) == path;
    }
    uint64_t share = most / (1 + beside);
    return share > PACE_MIN ? share : PACE_MIN;
}

double budget_rate(const struct placement *p, int path)
{
    return p->measured[path] > 0 ? p->rates[path] : first_rates[path];
}

/* A copy that keeps to its pace says nothing about its path either: the path may be far faster. The
 * mean is geometric, and the assumed rate counts as the first copy: a single copy that was held up
 * must not rule a path out, since a path that is not used is not measured again. */
void budget_measure(struct placement *p, enum hl_move_path path, uint64_t pace,
                    const struct hl_api_copy *copy)
{
    if (copy->size_bytes < MEASURED_MIN || !(copy->seconds > 0))
        return;
    double rate = (double)copy->size_bytes / copy->seconds;
    if (pace > 0 && rate > PACE_KEPT * (double)pace)
        return;
    double before = budget_rate(p, (int)path);
    double gain = fmax(GAIN_MIN, 1.0 / (2.0 + (double)p->measured[path]++));
    p->rates[path] = before * pow(rate / before, gain);
}

/* The longest that such a move may take at its lowest rate. */
int64_t budget_copy_ms(const struct hl_controller *c, const struct hl_move_order *o)
{
    const struct placement *p = c->placement;
    uint64_t share = p->conf.rate / 8 / (uint64_t)p->conf.moves;
    if (p->conf.rate == 0 || !order_is_budgeted(o) ||
        !path_is_network((int)hl_rules_path(o->from, o->goal)))
        return o->copy_ms;
    return o->copy_ms + copy_paced_ms(o->size_bytes, share > PACE_MIN ? share : PACE_MIN);
}

void budget_move_ended(struct hl_controller *c, const struct hl_move_rec *rec)
{
    const struct hl_move_order *o = &rec->order;
    if (o->reason < HL_LIFE_EVENTS && rec->began_ms == 0)
        hl_budget_take(&c->placement->budget, hl_rules_path(o->from, o->goal),
                       -(int64_t)o->size_bytes);
}

/* True while a part of the version is committed and others are to come. A version that no
 * rank has continued for gc.grace is given up, here too. For a version older than this Controller,
 * the time is unknown until its next part arrives. */
static bool version_commits(const struct hl_controller *c, const struct hl_version_rec *v,
                            int64_t now_ms)
{
    return v->state == HL_API_VERSION_STATE_OPEN && v->committed_count > 0 && v->touched_ms != 0 &&
           now_ms - v->touched_ms <= c->opts.gc_grace_ms;
}

static bool save_commits(const struct hl_controller *c)
{
    int64_t now = hl_wall_ms();
    for (const struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (version_commits(c, v, now))
                return true;
    return false;
}

const char *budget_rest_text(const struct hl_controller *c)
{
    static const char *const texts[] = {[HL_REST_GANG_STARTS] = "a gang starts",
                                        [HL_REST_SAVE_COMMITS] = "a save commits",
                                        [HL_REST_GANG_STARTS | HL_REST_SAVE_COMMITS] =
                                            "a gang starts, and a save commits"};
    unsigned rests = c->placement->budget.rests;
    return rests != 0 ? texts[rests] : "";
}

void budget_rest(struct hl_controller *c)
{
    struct placement *p = c->placement;
    bool on = strcmp(p->conf.policy, "on") == 0; /* otherwise there is nothing to pause */
    unsigned before = p->budget.rests;
    hl_budget_rest(&p->budget, HL_REST_GANG_STARTS, on && p->gang_starts(c));
    hl_budget_rest(&p->budget, HL_REST_SAVE_COMMITS, on && save_commits(c));
    if (p->budget.rests == before)
        return;
    if (p->budget.rests != 0)
        hl_info("moves of the policy pause because=\"%s\"", budget_rest_text(c));
    else
        hl_info("moves of the policy continue");
    hl_migration_hold(&p->moves, p->budget.rests != 0 ? PRIORITY_PREFETCH : 0, placement_now_ms());
}
