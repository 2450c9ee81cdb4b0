/* Moves of shards: the journal and the copies wing carry out what the engine (core/migration) asks
 * for, and every answer goes back to the engine.
 *
 *     pass.c, moveShard --moves_order--> engine --WRITE, ERASE--> journal.c
 *                                          ^   |--COPY, STOP---> copies_bring, copies_stop
 *                                          |   |--CHECK--------> copies_confirm
 *                                          |   |--DROP---------> copies_drop
 *                                          |   '--SWITCHED, REVERTED, ENDED--> life of the shard
 *                                          '-------- answer */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/placement/placement_private.h"
#include "os/loop.h"

#define MOVES_MAX  4096
#define DUE_MIN_MS 5

/* An answer that the engine waits for. */
struct asking {
    struct hl_controller *c;
    struct hl_id id;
    uint64_t order;
    enum hl_move_path path;
    uint64_t pace; /* of a copy, in bytes per second; 0: none */
};

static struct asking *asking_new(struct hl_controller *c, const struct hl_move_action *a)
{
    struct asking *x = malloc(sizeof(*x));
    if (x != NULL)
        *x = (struct asking){.c = c,
                             .id = a->rec.order.id,
                             .order = a->order,
                             .path = hl_rules_path(a->rec.order.from, a->rec.order.goal)};
    return x;
}

static struct hl_migration *engine_of(struct hl_controller *c)
{
    return &c->placement->moves;
}

/* ---- places ---------------------------------------------------------------------------------- */

/* False: its node is no longer known. */
static bool place_find(struct hl_controller *c, struct hl_id shard, struct hl_place at,
                       struct place *out)
{
    struct place places[PLACES_MAX];
    const struct placed_node *n = placed_node_at(c, at.node);
    *out = (struct place){.tier = (enum hl_api_tier)at.tier};
    if (at.tier != HL_API_TIER_L1 && at.tier != HL_API_TIER_L2)
        return true;
    if (n == NULL || n->node == NULL)
        return false;
    out->node = n->node;
    size_t count = copies_places(c, shard, HL_API_TIER_L1, places, PLACES_MAX);
    for (size_t i = 0; i < count && i < PLACES_MAX; i++)
        if (places[i].tier == out->tier && places[i].node == out->node)
            *out = places[i]; /* the table's entry includes the device */
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void on_journaled(void *arg, hl_status st, const char *text)
{
    struct asking x = *(struct asking *)arg;
    free(arg);
    if (controller_stopped(x.c))
        return;
    if (st != HL_OK)
        hl_warn("journal of moves was not written error=\"%s\"", text);
    hl_migration_journaled(engine_of(x.c), x.id, x.order, st, placement_now_ms());
    moves_run(x.c);
}

/* Tells the log and the caller that waits for the move. */
static void copy_failed(struct hl_controller *c, struct hl_id move, const char *text)
{
    hl_info("copy of a move failed move=%s error=\"%s\"", hl_id_format(move).s, text);
    for (struct move_call *x = c->placement->calls; x != NULL; x = x->next)
        if (hl_id_equal(x->id, move))
            snprintf(x->why, sizeof(x->why), "%s", text);
}

static void on_brought(void *arg, hl_status st, const char *text, const struct hl_api_copy *copy)
{
    struct asking x = *(struct asking *)arg;
    free(arg);
    if (st == HL_ECANCELED) /* the Controller was stopped: touch nothing of it */
        return;
    if (st == HL_OK)
        budget_measure(x.c->placement, x.path, x.pace, copy);
    else
        copy_failed(x.c, x.id, text);
    hl_migration_copied(engine_of(x.c), x.id, x.order, st, copy != NULL ? copy->size_bytes : 0,
                        copy != NULL ? copy->crc32 : 0, placement_now_ms());
    moves_run(x.c);
}

/* Holders may have been lost since the switch, so the old copy may be needed after all. */
static hl_status check_old_copy(struct hl_controller *c, struct hl_id move,
                                const struct confirmed_copy *copies, size_t count)
{
    const struct hl_move_rec *rec = hl_migration_by_id(engine_of(c), move);
    struct place old;
    if (rec == NULL || rec->phase != HL_MOVE_PHASE_CLEANING ||
        !place_find(c, rec->order.shard, rec->order.from, &old))
        return HL_OK;
    hl_status st = durability_spares(c, rec->order.shard, &old, copies, count);
    if (st == HL_ECONFLICT)
        hl_info("old copy of a move stays move=%s why=\"%s\"", hl_id_format(move).s,
                hl_error_text());
    hl_migration_keep(engine_of(c), move, st == HL_ECONFLICT);
    return st == HL_ECONFLICT ? HL_OK : st;
}

static void on_confirmed(void *arg, hl_status st, const char *text,
                         const struct confirmed_copy *copies, size_t count)
{
    struct asking x = *(struct asking *)arg;
    struct hl_move_copy list[PLACES_MAX];
    size_t n = 0;
    free(arg);
    if (st == HL_ECANCELED)
        return;
    if (st == HL_OK && (st = check_old_copy(x.c, x.id, copies, count)) != HL_OK)
        text = hl_error_text();
    if (st != HL_OK)
        hl_debug("not all holders of a copy have answered: %s", text);
    for (size_t i = 0; i < count && n < PLACES_MAX; i++) {
        if (copies[i].place.node != NULL && copies[i].place.node->gone)
            continue;
        list[n++] = (struct hl_move_copy){.place = placed_place(x.c, &copies[i].place),
                                          .domain = copies_domain(x.c, &copies[i].place),
                                          .size_bytes = copies[i].size_bytes,
                                          .crc32 = copies[i].crc32};
    }
    hl_migration_checked(engine_of(x.c), x.id, x.order, st, list, n, placement_now_ms());
    moves_run(x.c);
}

static void on_dropped(void *arg, hl_status st, const char *text, bool dropped)
{
    struct asking x = *(struct asking *)arg;
    (void)dropped;
    free(arg);
    if (st == HL_ECANCELED)
        return;
    if (st != HL_OK)
        hl_info("old copy of a move was not dropped yet move=%s error=\"%s\"", hl_id_format(x.id).s,
                text);
    hl_migration_dropped(engine_of(x.c), x.id, x.order, st, placement_now_ms());
    moves_run(x.c);
}

/* ---- actions --------------------------------------------------------------------------------- */

/* The action failed before it could be sent: the engine is told at once. */
static void action_failed(struct hl_controller *c, const struct hl_move_action *a, hl_status st)
{
    struct hl_migration *m = engine_of(c);
    struct hl_id id = a->rec.order.id;
    int64_t now = placement_now_ms();
    switch (a->kind) {
    case HL_MOVE_WRITE:
    case HL_MOVE_ERASE:
        hl_migration_journaled(m, id, a->order, st, now);
        break;
    case HL_MOVE_COPY:
        hl_migration_copied(m, id, a->order, st, 0, 0, now);
        break;
    case HL_MOVE_CHECK:
        hl_migration_checked(m, id, a->order, st, NULL, 0, now);
        break;
    default:
        hl_migration_dropped(m, id, a->order, st, now);
        break;
    }
}

/* Between two nodes' memories the holder sends; what goes from a node to L3 is written; everything
 * else is read by the receiver. */
static enum hl_api_operation operation_of(const struct hl_move_order *o)
{
    bool from_node = o->from.node != HL_READER_NONE, to_node = o->goal.node != HL_READER_NONE;
    if (from_node && to_node && o->from.node != o->goal.node)
        return HL_API_OPERATION_MIGRATE;
    return from_node && !to_node ? HL_API_OPERATION_WRITE : HL_API_OPERATION_READ;
}

static hl_status copy_begin(struct hl_controller *c, const struct hl_move_order *o,
                            struct asking *x)
{
    struct place goal;
    if (!place_find(c, o->shard, o->goal, &goal))
        return hl_fail(HL_EUNAVAIL, "the destination node is no longer known");
    x->pace = budget_pace(c, o);
    return copies_bring(c,
                        &(struct copies_order){.id = o->id,
                                               .shard = o->shard,
                                               .goal = goal,
                                               .op = operation_of(o),
                                               .bytes_per_s = x->pace,
                                               .gives_way = o->priority == PRIORITY_WARM},
                        on_brought, x);
}

static void copy_stop(struct hl_controller *c, const struct hl_move_order *o)
{
    struct place at[2];
    size_t n = place_find(c, o->shard, o->from, &at[0]);
    n += place_find(c, o->shard, o->goal, &at[n]);
    copies_stop(c, o->id, at, n);
}

static hl_status check_begin(struct hl_controller *c, const struct hl_move_order *o, void *x)
{
    struct place also[2];
    size_t n = place_find(c, o->shard, o->from, &also[0]);
    n += place_find(c, o->shard, o->goal, &also[n]);
    return copies_confirm(c, o->shard, also, n, on_confirmed, x);
}

static hl_status drop_begin(struct hl_controller *c, const struct hl_move_action *a, void *x)
{
    struct place at;
    if (!place_find(c, a->rec.order.shard, a->place, &at))
        return hl_fail(HL_ENOENT, "the node is no longer known");
    if (at.node == NULL)
        HL_TRY(claim_check(c));
    else if (!node_ready(at.node))
        return hl_fail(HL_EUNAVAIL, "node %s is unreachable", at.node->name);
    return copies_drop(c, a->rec.order.shard, &at, on_dropped, x);
}

static void action_ask(struct hl_controller *c, const struct hl_move_action *a)
{
    struct asking *x = asking_new(c, a);
    hl_status st = x != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for a step of a move");
    if (st == HL_OK && a->kind == HL_MOVE_COPY)
        st = copy_begin(c, &a->rec.order, x);
    else if (st == HL_OK && a->kind == HL_MOVE_CHECK)
        st = check_begin(c, &a->rec.order, x);
    else if (st == HL_OK && a->kind == HL_MOVE_DROP)
        st = drop_begin(c, a, x);
    else if (st == HL_OK)
        st = move_record_write(c, &a->rec, a->kind == HL_MOVE_ERASE, on_journaled, x);
    if (st == HL_OK)
        return;
    hl_debug("step of a move failed: %s", hl_error_text());
    if (a->kind == HL_MOVE_COPY)
        copy_failed(c, a->rec.order.id, hl_error_text());
    free(x);
    action_failed(c, a, st);
}

/* ---- the end --------------------------------------------------------------------------------- */

static const char *end_text(hl_status st, char *buf, size_t cap)
{
    if (st == HL_OK)
        return "";
    snprintf(buf, cap, "the move was undone: %s",
             st == HL_ECANCELED   ? "it was cancelled"
             : st == HL_ETIMEDOUT ? "it took too long"
             : st == HL_EUNAVAIL  ? "a holder does not answer"
             : st == HL_ECORRUPT  ? "the copy differs from the catalogue"
             : st == HL_ENOSPC    ? "there is no room"
             : st == HL_ENOENT    ? "the shard, or a copy of it, no longer exists"
             : st == HL_ESTALE    ? "a daemon was restarted, or the source replaced, meanwhile"
                                  : hl_status_text(st));
    return buf;
}

static struct hl_api_shard_move move_of(struct hl_controller *c, const struct hl_move_rec *rec,
                                        struct hl_arena *arena)
{
    const struct hl_move_order *o = &rec->order;
    bool ordered = o->reason >= HL_LIFE_EVENTS;
    int64_t now = placement_now_ms();
    return (struct hl_api_shard_move){
        .id = hl_id_print(o->id, arena),
        .shard = hl_id_print(o->shard, arena),
        .phase = hl_move_phase_text(rec->phase),
        .from_tier = (enum hl_api_tier)o->from.tier,
        .from_node = placed_node_name(c, o->from.node),
        .tier = (enum hl_api_tier)o->goal.tier,
        .node = placed_node_name(c, o->goal.node),
        .keep_source = o->keep_source,
        .reason = !ordered                           ? hl_life_event_text(o->reason)
                  : o->priority == PRIORITY_PREFETCH ? "prefetch"
                  : o->priority == PRIORITY_UNREAD   ? "prefetched in vain"
                  : o->priority == PRIORITY_WARM     ? "pool is warmed"
                                                     : "ordered",
        .value = o->value,
        .limit = o->limit,
        .numbers = ordered ? "" : hl_life_event_numbers(o->reason),
        .gain_seconds = o->gain_s,
        .cost_seconds = o->cost_s,
        .seconds = rec->began_ms != 0 ? (double)(now - rec->began_ms) / 1e3 : 0,
        .priority = o->priority,
        .size_bytes = o->size_bytes,
        .began_ms = rec->began_ms != 0 ? placement_wall_ms(rec->began_ms) : 0,
        .error = ""};
}

static struct hl_api_shard_move ended_of(struct hl_controller *c, const struct ended_move *e,
                                         struct hl_arena *arena)
{
    struct hl_api_shard_move move = move_of(c, &e->rec, arena);
    move.seconds = e->seconds;
    move.began_ms = e->began_ms;
    move.error = e->error;
    return move;
}

static void calls_answer(struct hl_controller *c, struct ended_move *e, hl_status st)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    for (struct move_call **at = &c->placement->calls, *x; (x = *at) != NULL;) {
        if (!hl_id_equal(x->id, e->rec.order.id)) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        if ((st == HL_EUNSUPPORTED || st == HL_EUNAVAIL) && x->why[0] != '\0')
            snprintf(e->error, sizeof(e->error), "the move was undone: %s", x->why);
        if (st == HL_OK)
            hl_reply_controller_move_shard(
                x->call, &(struct hl_api_controller_move_shard_results){ended_of(c, e, &arena)});
        else
            hl_rpc_reject(x->call, st, e->error);
        free(x);
    }
}

static void move_ended(struct hl_controller *c, const struct hl_move_action *a)
{
    struct placement *p = c->placement;
    struct ended_move *e = &p->ended[p->ended_count++ % MOVES_ENDED];
    const struct hl_move_rec *rec = &a->rec;
    int64_t now = placement_now_ms();
    *e = (struct ended_move){
        .rec = *rec,
        .began_ms = placement_wall_ms(rec->began_ms != 0 ? rec->began_ms : now),
        .seconds = rec->began_ms != 0 ? (double)(now - rec->began_ms) / 1e3 : 0};
    char text[sizeof(e->error)];
    snprintf(e->error, sizeof(e->error), "%s", end_text(a->status, text, sizeof(text)));
    hl_info(
        "move ended id=%s shard=%s to=%s%s%s seconds=%.3f%s%s%s%s", hl_id_format(rec->order.id).s,
        hl_id_format(rec->order.shard).s, hl_api_tier_name((enum hl_api_tier)rec->order.goal.tier),
        rec->order.goal.node != HL_READER_NONE ? "@" : "",
        placed_node_name(c, rec->order.goal.node), e->seconds, e->error[0] != '\0' ? " why=\"" : "",
        e->error, e->error[0] != '\0' ? "\"" : "", a->left ? " left=1" : "");
    budget_move_ended(c, rec);
    life_ended(c, a);
    calls_answer(c, e, a->status);
}

static void action_take(struct hl_controller *c, const struct hl_move_action *a)
{
    switch (a->kind) {
    case HL_MOVE_SWITCHED:
        life_switched(c, &a->rec);
        break;
    case HL_MOVE_ENDED:
        move_ended(c, a);
        break;
    case HL_MOVE_STOP:
        copy_stop(c, &a->rec.order);
        break;
    case HL_MOVE_REVERTED: /* the move's end reports what exists then */
        break;
    default:
        action_ask(c, a);
        break;
    }
}

static void on_due(void *arg)
{
    struct hl_controller *c = arg;
    controller_check_clocks(c);
    moves_tick(c);
}

/* Every wait of a move has a deadline; if this timer can't be set, the next tick handles it. */
static void wait_for_due(struct hl_controller *c)
{
    struct placement *p = c->placement;
    int64_t due = hl_migration_due(&p->moves), now = placement_now_ms();
    hl_timer_destroy(p->moves_timer);
    p->moves_timer = NULL;
    if (due != INT64_MAX && !c->closing &&
        hl_timer_create(c->opts.loop, due - now > DUE_MIN_MS ? (uint64_t)(due - now) : DUE_MIN_MS,
                        0, on_due, c, &p->moves_timer) != HL_OK)
        hl_debug("no timer for moves: %s", hl_error_text());
}

/* An action may cause an event at once, whose actions are carried out here, too. */
void moves_run(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_move_action a;
    if (p->moves_running)
        return;
    p->moves_running = true;
    while (hl_migration_next(&p->moves, &a))
        action_take(c, &a);
    p->moves_running = false;
    wait_for_due(c);
}

void moves_tick(struct hl_controller *c)
{
    hl_migration_tick(engine_of(c), placement_now_ms());
    moves_run(c);
}

/* ---- orders ---------------------------------------------------------------------------------- */

hl_status moves_prepare(struct hl_controller *c, struct hl_id shard, struct hl_place from,
                        struct hl_place goal, struct hl_move_order *out)
{
    struct place places[PLACES_MAX];
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, shard);
    if (s == NULL)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version; `helios shard ls` lists shards",
                       hl_id_format(shard).s);
    if (copies_are_dropping(c, shard)) /* both would count on each other's copy */
        return hl_fail(HL_EBUSY, "a copy of shard %s is being dropped; try again",
                       hl_id_format(shard).s);
    const struct placed_node *n = placed_node_at(c, goal.node);
    const struct place at = {.tier = (enum hl_api_tier)goal.tier,
                             .node = n != NULL ? n->node : NULL};
    HL_TRY(copies_fit(c, shard, &at));
    bool below = from.tier == HL_API_TIER_L3 || from.tier == HL_API_TIER_L4;
    *out = (struct hl_move_order){.id = hl_id_random(),
                                  .shard = shard,
                                  .from = from,
                                  .goal = goal,
                                  /* A node keeps the copy below the one it loads. Ranks read L2,
                                   * not L1, unless they map device memory. */
                                  .keep_source = goal.tier < from.tier &&
                                                 (below || goal.tier == HL_API_TIER_L1),
                                  .reason = HL_LIFE_EVENTS,
                                  .size_bytes = s->size_bytes,
                                  .crc32 = s->crc32,
                                  .copy_ms = c->opts.copy_timeout_ms};
    size_t count = copies_places(c, shard, HL_API_TIER_L1, places, PLACES_MAX);
    for (size_t i = 0; i < count && i < PLACES_MAX; i++) {
        struct hl_place has = placed_place(c, &places[i]);
        out->goal_had |= has.tier == goal.tier && has.node == goal.node;
    }
    return HL_OK;
}

hl_status moves_order(struct hl_controller *c, const struct hl_move_order *order)
{
    HL_TRY(hl_migration_order(engine_of(c), order, placement_now_ms()));
    moves_run(c);
    return HL_OK;
}

hl_status moves_configure(struct hl_controller *c)
{
    struct placement *p = c->placement;
    const struct hl_placement_conf *conf = &p->conf;
    struct hl_migration_opts opts = {
        .moves_max = MOVES_MAX,
        .in_flight = (uint32_t)conf->moves,
        .per_node = (uint32_t)conf->moves_per_node,
        .domains = 1,
        .wait_ms = conf->clean_ms,
        .copy_ms = c->opts.copy_timeout_ms > 0 ? c->opts.copy_timeout_ms : 1,
        .stop_ms = c->opts.rpc_timeout_ms > 0 ? c->opts.rpc_timeout_ms : 1,
        .grace_ms = conf->grace_ms,
        .clean_ms = conf->clean_ms,
        .retry_ms = conf->retry_ms};
    for (int i = 0; i < HL_MOVE_PATHS; i++)
        opts.per_path[i] = (uint32_t)conf->moves;
    if (p->moves.opts.in_flight != 0)
        return hl_migration_configure(&p->moves, &opts);
    /* Its fencing numbers stay in here: holders go by the Controller's epoch (claim.h), and the
     * orders of one Controller arrive over one connection. */
    return hl_migration_init(&p->moves, &opts, 1, placement_now_ms());
}

void moves_stop(struct hl_controller *c)
{
    struct placement *p = c->placement;
    hl_timer_destroy(p->moves_timer);
    p->moves_timer = NULL;
    while (p->calls != NULL) {
        struct move_call *x = p->calls;
        p->calls = x->next;
        hl_rpc_reject(x->call, HL_ECANCELED,
                      "the Controller is shutting down; the move continues when it is back");
        free(x);
    }
}

static bool placement_hides(const struct hl_controller *c, struct hl_id id, enum hl_api_tier tier,
                            const struct node *node)
{
    struct hl_controller *own = (struct hl_controller *)c;
    const struct place at = {.tier = tier, .node = (struct node *)node};
    return c->placement != NULL && c->placement->moves.count > 0 &&
           hl_migration_hides(&c->placement->moves, id, placed_place(own, &at));
}

static bool placement_moves(const struct hl_controller *c, struct hl_id id)
{
    return c->placement != NULL && hl_migration_find(&c->placement->moves, id) != NULL;
}

const struct copy_events placement_copy_events = {.changed = placement_follow,
                                                  .swept = placement_follow_later,
                                                  .hidden = placement_hides,
                                                  .moves = placement_moves};

/* ---- methods --------------------------------------------------------------------------------- */

static hl_status parse_goal(struct hl_controller *c,
                            const struct hl_api_controller_move_shard_params *p,
                            struct hl_place *out)
{
    bool at_l3 = p->tier == HL_API_TIER_L3 || p->tier == HL_API_TIER_L4;
    struct place at = {.tier = p->tier};
    if (at_l3 && p->node[0] != '\0')
        return hl_fail(HL_EINVAL, "%s is at the L3 host, not at node '%.100s'",
                       hl_api_tier_name(p->tier), p->node);
    if (!at_l3 && (at.node = node_find(c, p->node)) == NULL)
        return hl_fail(HL_ENOENT, "there is no node '%.100s'; `helios nodes` lists them", p->node);
    if (at.node != NULL)
        HL_TRY(node_takes(at.node));
    if (p->tier == HL_API_TIER_L4 && !pool_has_archive(c))
        return hl_fail(HL_EUNSUPPORTED, "the L3 daemon has no archive");
    *out = placed_place(c, &at);
    return HL_OK;
}

/* The archive has no rate, and holders would take a move below PACE_MIN for silence. */
static hl_status check_pace(struct hl_place from, struct hl_place goal, uint64_t bytes_per_s)
{
    if (bytes_per_s > 0 && bytes_per_s < PACE_MIN)
        return hl_fail(HL_EINVAL,
                       "a rate of %" PRIu64 " bytes per second for a move: it must be %u (8Mbit) "
                       "or more, or 0 for no limit",
                       bytes_per_s, PACE_MIN);
    if (bytes_per_s > 0 && hl_rules_path(from, goal) == HL_MOVE_ARCHIVE)
        return hl_fail(
            HL_EUNSUPPORTED,
            "a move between L3 and L4 uses no network of Helios: order it without a rate");
    return HL_OK;
}

static hl_status move_ordered(struct hl_controller *c,
                              const struct hl_api_controller_move_shard_params *p,
                              struct hl_move_order *order)
{
    struct hl_id id;
    struct hl_place goal;
    HL_TRY(hl_id_parse(p->id, &id));
    HL_TRY(parse_goal(c, p, &goal));
    if (goal.node == HL_READER_NONE)
        HL_TRY(claim_check(c));
    const struct hl_placed_shard *s = placement_find(c, id);
    if (s == NULL)
        return hl_fail(HL_ENOENT,
                       "shard %s is in no visible version, or has no copy that can be read", p->id);
    if (s->pinned)
        return hl_fail(HL_ECONFLICT, "shard %s is pinned; `helios %s unpin` ends that", p->id,
                       pin_has_shard(c, id) ? "shard" : "model");
    if (s->place.tier == goal.tier && s->place.node == goal.node)
        return hl_fail(HL_EEXIST, "shard %s is already there", p->id);
    HL_TRY(check_pace(s->place, goal, p->bytes_per_s));
    HL_TRY(moves_prepare(c, id, s->place, goal, order));
    struct place goes, comes;
    if (!order->keep_source && place_find(c, id, s->place, &goes) &&
        place_find(c, id, goal, &comes))
        HL_TRY(durability_lets_go(c, id, &goes, &comes));
    order->priority = UINT8_MAX;
    order->bytes_per_s = p->bytes_per_s;
    order->copy_ms += copy_paced_ms(order->size_bytes, p->bytes_per_s);
    return HL_OK;
}

void method_move_shard(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_move_shard_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct move_call *x = calloc(1, sizeof(*x));
    struct hl_move_order order;
    hl_status st =
        x != NULL ? move_ordered(c, p, &order) : hl_fail(HL_ENOMEM, "out of memory for a move");
    if (st == HL_OK)
        st = hl_migration_order(engine_of(c), &order, placement_now_ms());
    if (st != HL_OK) {
        call_reject(call, st);
        free(x);
        return;
    }
    *x = (struct move_call){.id = order.id, .call = call, .next = c->placement->calls};
    c->placement->calls = x;
    moves_run(c);
}

void method_list_moves(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_moves_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_arena *arena = hl_rpc_call_arena(call);
    struct placement *x = c->placement;
    struct hl_api_shard_move_list list = {
        hl_arena_array(arena, x->moves.count + MOVES_ENDED, sizeof(*list.items)), 0};
    const struct hl_rule_world world = {.params = &x->core.params,
                                        .backbone_busy_pct = backbone_busy_pct(c)};
    (void)p;
    for (uint32_t i = 0; list.items != NULL && i < x->moves.count; i++)
        list.items[list.count++] = move_of(c, hl_migration_at(&x->moves, i), arena);
    for (unsigned i = 0; list.items != NULL && i < MOVES_ENDED && i < x->ended_count; i++)
        list.items[list.count++] =
            ended_of(c, &x->ended[(x->ended_count - 1 - i) % MOVES_ENDED], arena);
    hl_reply_controller_list_moves(call,
                                   &(struct hl_api_controller_list_moves_results){
                                       .moves = list,
                                       .rest = budget_rest_text(c),
                                       .backbone_percent = world.backbone_busy_pct,
                                       .threshold_accesses = hl_rules_migrate_threshold(&world)});
}

void method_cancel_move(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_cancel_move_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_id id;
    hl_status st = hl_id_parse(p->id, &id);
    const struct hl_move_rec *rec = st == HL_OK ? hl_migration_find(engine_of(c), id) : NULL;
    if (st == HL_OK && rec == NULL)
        rec = hl_migration_by_id(engine_of(c), id);
    if (st == HL_OK && rec == NULL)
        st = hl_fail(HL_ENOENT, "no move in flight has the id %s, or moves a shard with that id",
                     p->id);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    struct hl_api_shard_move move = move_of(c, rec, hl_rpc_call_arena(call));
    st = hl_migration_cancel(engine_of(c), rec->order.id, placement_now_ms());
    if (st == HL_OK)
        hl_reply_controller_cancel_move(call,
                                        &(struct hl_api_controller_cancel_move_results){move});
    else
        call_reject(call, st);
    moves_run(c);
}
