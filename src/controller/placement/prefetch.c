/* Prefetch by plan: what the ranks of a gang will read is moved to their nodes' L2 before and while
 * its containers start.
 *
 *     jobs --each--> gang_look --new, or planned otherwise--> hl_ahead_plan --> fetches
 *                       |                                                         | each tick
 *                       | it runs: how much is there is told, once                v
 *                       |                                                    moves (moves.c)
 *                       '--not visited any more, or planned otherwise--> its moves are cancelled;
 *                          after policy.residence copies that were never read go back to L3
 *
 * A fetch is a move that keeps its source. It has a higher priority than the policy's moves and a
 * lower one than ordered moves. The plan is soft state: a restarted Controller makes it again, and
 * the moves in its journal continue. If placement.policy is `observe`, the plan is only logged. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/placement/placement_private.h"
#include "core/catalog/catalog.h"
#include "core/model/part.h"
#include "core/placement/ahead.h"

#define OUTSTANDING    64 /* moves of a gang that are waiting or in flight */
#define TRIES_MAX      3
#define MOVES_BUSY     256 /* number of moves of all kinds above which no copy goes back */
#define FIRST_RATE     1e9 /* bytes per second, for a path that nothing has measured */
#define SHARDS_OF_RANK 64  /* initial room */

/* A shard that ranks on one node read. */
struct fetch {
    struct hl_id shard;
    uint64_t size_bytes;
    uint16_t node;
    unsigned tries;
    struct hl_id move; /* none: not ordered */
};

struct prefetch {
    char job[HL_CATALOG_KEY_MAX];
    int attempt;
    uint64_t plan;       /* hash of which rank reads what, and where */
    bool awaits_node;    /* one of its nodes was not there then: it is planned again with it */
    struct fetch *reads; /* all reads, by node and id */
    size_t read_count;
    struct fetch *fetches; /* those whose copy was missing when it was planned, in order of need */
    size_t fetch_count;
    uint64_t bytes;      /* of `reads` */
    int64_t since_ms;    /* when it was planned */
    int64_t starting_ms; /* since when its containers may start; 0 = not yet */
    int64_t over_ms;     /* since when it is no longer wanted; 0 = still wanted */
    size_t ended;        /* fetches that are dealt with, once it is over */
    bool seen;           /* in the current tick */
    bool runs, told;
    struct prefetch *prev, *next;
};

/* ---- what is there --------------------------------------------------------------------------- */

/* On the pool's host the pool is mapped, so L3 is as near as the node's own memory. */
static bool is_at(const struct hl_controller *c, const struct place *p, const struct node *node)
{
    const struct place own = {.tier = HL_API_TIER_L2, .node = (struct node *)node};
    return p->node != NULL ? p->node == node
                           : p->tier == HL_API_TIER_L3 && pool_info(c) != NULL &&
                                 copies_domain(c, p) == copies_domain(c, &own);
}

static bool is_in_l2(const struct hl_controller *c, const struct place *p, const struct node *node)
{
    (void)c;
    return p->node == node && p->tier == HL_API_TIER_L2;
}

/* True if there is a copy of the shard in that tier or below for which `is` returns true. */
static bool
has_copy(struct hl_controller *c, struct hl_id shard, uint16_t node, enum hl_api_tier at_least,
         bool (*is)(const struct hl_controller *, const struct place *, const struct node *))
{
    struct place places[PLACES_MAX];
    const struct placed_node *at = placed_node_at(c, node);
    if (at == NULL || at->node == NULL)
        return false;
    size_t n = copies_places(c, shard, at_least, places, PLACES_MAX);
    for (size_t i = 0; i < n && i < PLACES_MAX; i++)
        if (is(c, &places[i], at->node))
            return true;
    return false;
}

static bool node_has(struct hl_controller *c, struct hl_id shard, uint16_t node)
{
    return has_copy(c, shard, node, HL_API_TIER_L1, is_at);
}

static uint64_t bytes_there(struct hl_controller *c, const struct fetch *list, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += node_has(c, list[i].shard, list[i].node) ? list[i].size_bytes : 0;
    return bytes;
}

/* ---- the plan -------------------------------------------------------------------------------- */

struct ahead_list {
    struct hl_ahead_shard *items;
    size_t count, room;
};

static hl_status list_add(struct ahead_list *l, const struct hl_ahead_shard *s)
{
    if (l->count == l->room) {
        size_t room = l->room == 0 ? SHARDS_OF_RANK : 2 * l->room;
        struct hl_ahead_shard *more = realloc(l->items, room * sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for what a gang reads");
        l->items = more;
        l->room = room;
    }
    l->items[l->count++] = *s;
    return HL_OK;
}

/* The optimizer share of another data rank is not read. */
static bool is_read(const struct hl_shard_rec *s, const struct planned_gang *g,
                    const struct planned_rank *r)
{
    const struct hl_part part = hl_part_of(s->part);
    return part.kind != HL_PART_OPTIM || part.dp_size == 1 || part.dp_size != g->dp_size ||
           part.dp == r->dp;
}

/* The nearest copy, seen from the node; L3 if the shard is not placed yet. */
static struct hl_place source_of(struct hl_controller *c, struct hl_id shard, uint16_t node)
{
    const struct hl_placed_shard *s = placement_find(c, shard);
    if (node_has(c, shard, node))
        return (struct hl_place){.node = node, .tier = HL_API_TIER_L2};
    return s != NULL ? s->place : (struct hl_place){.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
}

static hl_status list_rank(struct hl_controller *c, const struct hl_version_rec *v,
                           const struct planned_gang *g, const struct planned_rank *r,
                           struct ahead_list *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_position position;
    const struct placed_node *n = placed_node_need(c, r->node);
    if (n == NULL)
        return HL_OK;
    HL_TRY(hl_version_position(v, &g->split, r->pp, r->tp, r->ep, &arena, &position));
    for (size_t i = 0; i < position.count; i++) {
        const struct hl_shard_rec *s = position.parts[i].shard;
        if (is_read(s, g, r))
            HL_TRY(list_add(out, &(struct hl_ahead_shard){.id = s->id,
                                                          .size_bytes = s->size_bytes,
                                                          .place = source_of(c, s->id, n->index),
                                                          .node = n->index,
                                                          .rank = r->rank}));
    }
    return HL_OK;
}

/* If a version has to be cut first, there is nothing yet that could be moved. */
static hl_status list_gang(struct hl_controller *c, const struct planned_gang *g,
                           struct ahead_list *out)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    HL_TRY(hl_catalog_model(&c->catalog, g->model, &m));
    HL_TRY(hl_catalog_version(m, g->version, &v));
    for (size_t i = 0; i < g->rank_count; i++)
        HL_TRY(list_rank(c, v, g, &g->ranks[i], out));
    return HL_OK;
}

static hl_status plan_gang(struct hl_controller *c, const struct ahead_list *list,
                           struct hl_ahead *out)
{
    const struct placement *p = c->placement;
    const uint32_t count = p->core.node_count;
    HL_AUTO(hl_freep) uint64_t *l2_free = calloc(count + 1, sizeof(*l2_free));
    HL_AUTO(hl_freep) bool *takes = calloc(count + 1, sizeof(*takes));
    struct hl_ahead_world world = {.l2_free = l2_free, .takes = takes, .node_count = count};
    if (l2_free == NULL || takes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %u nodes", count);
    for (uint32_t i = 0; i < count; i++) {
        const struct placed_node *n = placed_node_at(c, (uint16_t)i);
        takes[i] = n != NULL && placed_node_takes(c, n) && copies_room(n->node, &l2_free[i]);
    }
    for (int i = 0; i < HL_MOVE_PATHS; i++) {
        world.rates[i] = p->used_rates[i] > 0 ? p->used_rates[i] : FIRST_RATE;
        world.shared[i] = HUGE_VAL;
    }
    const int64_t now = placement_now_ms();
    const struct hl_ahead_gang gang = {list->items, list->count, now};
    return hl_ahead_plan(&gang, &world, now, out);
}

static int compare_reads(const void *left, const void *right)
{
    const struct fetch *a = left, *b = right;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return memcmp(&a->shard, &b->shard, sizeof(a->shard));
}

/* A shard that several ranks of a node read counts once. */
static void reads_take(struct prefetch *x, const struct ahead_list *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++)
        x->reads[i] = (struct fetch){.shard = list->items[i].id,
                                     .size_bytes = list->items[i].size_bytes,
                                     .node = list->items[i].node};
    qsort(x->reads, list->count, sizeof(*x->reads), compare_reads);
    for (size_t i = 0; i < list->count; i++)
        if (kept == 0 || compare_reads(&x->reads[kept - 1], &x->reads[i]) != 0)
            x->reads[kept++] = x->reads[i];
    x->read_count = kept;
    x->bytes = 0;
    for (size_t i = 0; i < kept; i++)
        x->bytes += x->reads[i].size_bytes;
}

static hl_status prefetch_take(struct prefetch *x, const struct ahead_list *list,
                               const struct hl_ahead *plan)
{
    x->reads = calloc(list->count + 1, sizeof(*x->reads));
    x->fetches = calloc(plan->count + 1, sizeof(*x->fetches));
    if (x->reads == NULL || x->fetches == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for what a gang reads");
    reads_take(x, list);
    for (size_t i = 0; i < plan->count; i++)
        x->fetches[x->fetch_count++] = (struct fetch){.shard = plan->moves[i].shard,
                                                      .size_bytes = plan->moves[i].size_bytes,
                                                      .node = plan->moves[i].goal.node};
    return HL_OK;
}

/* ---- its moves ------------------------------------------------------------------------------- */

static const struct hl_move_rec *fetch_move(const struct hl_controller *c, const struct fetch *f)
{
    const struct hl_move_rec *rec =
        hl_id_is_none(f->move) ? NULL : hl_migration_find(&c->placement->moves, f->shard);
    return rec != NULL && hl_id_equal(rec->order.id, f->move) ? rec : NULL;
}

/* Cancels moves that have become useless: the plan has changed, or the job is over. */
static void prefetch_cancel(struct hl_controller *c, struct prefetch *x)
{
    for (size_t i = 0; i < x->fetch_count; i++) {
        const struct hl_move_rec *rec = fetch_move(c, &x->fetches[i]);
        if (rec == NULL)
            continue;
        if (rec->began_ms == 0)
            hl_budget_take(&c->placement->budget, hl_rules_path(rec->order.from, rec->order.goal),
                           -(int64_t)rec->order.size_bytes);
        if (hl_migration_cancel(&c->placement->moves, rec->order.id, placement_now_ms()) != HL_OK)
            hl_debug("a fetch was not cancelled: %s", hl_error_text());
    }
    moves_run(c);
}

/* The policy's moves of the shard are cancelled; for other moves the fetch waits. */
static bool shard_is_free(struct hl_controller *c, const struct fetch *f)
{
    const struct hl_move_rec *rec = hl_migration_find(&c->placement->moves, f->shard);
    if (rec != NULL && rec->order.reason < HL_LIFE_EVENTS && rec->order.goal.node != f->node &&
        hl_migration_cancel(&c->placement->moves, rec->order.id, placement_now_ms()) != HL_OK)
        hl_debug("a move was not cancelled for a fetch: %s", hl_error_text());
    return hl_migration_find(&c->placement->moves, f->shard) == NULL;
}

static bool path_has_budget(const struct hl_budget *b, enum hl_move_path path)
{
    return isinf(b->limits.rates[path]) || b->bytes[path] > 0;
}

static hl_status fetch_order(struct hl_controller *c, struct fetch *f)
{
    struct placement *p = c->placement;
    const struct hl_placed_shard *s = placement_find(c, f->shard);
    const struct hl_place goal = {.node = f->node, .tier = HL_API_TIER_L2};
    struct hl_move_order order;
    if (s == NULL)
        return hl_fail(HL_ENOENT, "shard %s has no copy that can be read",
                       hl_id_format(f->shard).s);
    enum hl_move_path path = hl_rules_path(s->place, goal);
    if (!path_has_budget(&p->budget, path))
        return hl_fail(HL_EBUSY, "the network's budget is used up");
    HL_TRY(moves_prepare(c, f->shard, s->place, goal, &order));
    order.keep_source = true;
    order.priority = PRIORITY_PREFETCH;
    order.copy_ms = budget_copy_ms(c, &order);
    f->move = order.id;
    HL_TRY(moves_order(c, &order));
    hl_budget_take(&p->budget, path, (int64_t)f->size_bytes);
    return HL_OK;
}

static void fetch_go(struct hl_controller *c, struct fetch *f, size_t *outstanding)
{
    if (fetch_move(c, f) != NULL) {
        (*outstanding)++;
        return;
    }
    if (f->tries >= TRIES_MAX || *outstanding >= OUTSTANDING || node_has(c, f->shard, f->node) ||
        !shard_is_free(c, f))
        return;
    hl_status st = fetch_order(c, f);
    if (st == HL_OK)
        (*outstanding)++;
    else
        hl_debug("a shard is not fetched ahead: %s", hl_error_text());
    f->tries += st != HL_EBUSY;
}

static void prefetch_go(struct hl_controller *c, struct prefetch *x)
{
    int64_t budget[HL_MOVE_PATHS];
    size_t outstanding = 0;
    hl_budget_look(&c->placement->budget, placement_now_ms(), budget); /* fills it */
    for (size_t i = 0; i < x->fetch_count; i++)
        fetch_go(c, &x->fetches[i], &outstanding);
}

/* ---- gangs ----------------------------------------------------------------------------------- */

/* Nothing can be moved to a node that is not there, nor can its containers start. */
static bool node_is_there(const struct hl_controller *c, const char *name)
{
    const struct node *n = node_find(c, name);
    return n != NULL && node_ready(n);
}

static uint64_t plan_hash(const struct hl_controller *c, const struct planned_gang *g)
{
    uint64_t hash = hl_hash_add(HL_HASH_START, &g->version, sizeof(g->version));
    for (size_t i = 0; i < g->rank_count; i++) {
        const bool there = node_is_there(c, g->ranks[i].node);
        hash = hl_hash_add(hash, &there, sizeof(there));
        hash = hl_hash_add(hash, &g->ranks[i].rank, sizeof(g->ranks[i].rank));
        hash = hl_hash_add(hash, g->ranks[i].node, strlen(g->ranks[i].node) + 1);
    }
    return hash;
}

static struct prefetch *prefetch_find(const struct hl_controller *c, const char *job, int attempt)
{
    struct prefetch *x = c->placement->prefetches;
    while (x != NULL && (x->over_ms != 0 || x->attempt != attempt || strcmp(x->job, job) != 0))
        x = x->next;
    return x;
}

static struct prefetch *prefetch_new(struct hl_controller *c, const struct planned_gang *g)
{
    struct prefetch *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return NULL;
    snprintf(x->job, sizeof(x->job), "%s", g->job);
    x->attempt = g->attempt;
    x->since_ms = placement_now_ms();
    DL_APPEND(c->placement->prefetches, x);
    return x;
}

static void prefetch_free(struct hl_controller *c, struct prefetch *x)
{
    DL_DELETE(c->placement->prefetches, x);
    free(x->reads);
    free(x->fetches);
    free(x);
}

static void log_plan(const struct prefetch *x, const struct hl_ahead *plan, bool on)
{
    hl_info("gang %s prefetched job=%s attempt=%d bytes=%" PRIu64 " local=%" PRIu64
            " shards=%zu no_room=%" PRIu64,
            on ? "is" : "would be", x->job, x->attempt, x->bytes, plan->local, plan->count,
            plan->no_room);
}

static void prefetch_plan(struct hl_controller *c, struct prefetch *x, const struct planned_gang *g,
                          uint64_t hash)
{
    struct ahead_list list = {0};
    struct hl_ahead plan = {0};
    x->plan = hash;
    for (size_t i = 0; i < g->rank_count; i++)
        x->awaits_node |= !node_is_there(c, g->ranks[i].node);
    hl_status st = list_gang(c, g, &list);
    if (st == HL_OK)
        st = plan_gang(c, &list, &plan);
    if (st == HL_OK)
        st = prefetch_take(x, &list, &plan);
    if (st == HL_OK)
        log_plan(x, &plan, strcmp(c->placement->conf.policy, "on") == 0);
    else
        hl_debug("nothing is fetched ahead job=%s: %s", g->job, hl_error_text());
    hl_ahead_fini(&plan);
    free(list.items);
}

static void prefetch_retire(struct hl_controller *c, struct prefetch *x)
{
    x->over_ms = placement_now_ms();
    prefetch_cancel(c, x);
}

/* The gang's prefetch, planned for its current state. */
static struct prefetch *prefetch_need(struct hl_controller *c, const struct planned_gang *g)
{
    struct prefetch *old = prefetch_find(c, g->job, g->attempt), *x;
    uint64_t hash = plan_hash(c, g);
    if (old != NULL && old->plan == hash)
        return old;
    if ((x = prefetch_new(c, g)) == NULL)
        return NULL;
    if (old != NULL) {
        x->starting_ms = old->starting_ms;
        prefetch_retire(c, old);
    }
    prefetch_plan(c, x, g, hash);
    return x;
}

/* A gang that already runs when it is first seen gets no prefetch. */
static void gang_look(struct hl_controller *c, const struct planned_gang *g)
{
    struct prefetch *x = g->runs ? prefetch_find(c, g->job, g->attempt) : prefetch_need(c, g);
    if (x == NULL)
        return;
    x->seen = true;
    x->runs = g->runs;
    if (g->starts && x->starting_ms == 0)
        x->starting_ms = placement_now_ms();
}

/* ---- unused copies --------------------------------------------------------------------------- */

static bool is_wanted(const struct hl_controller *c, const struct fetch *f)
{
    const struct prefetch *x;
    DL_FOREACH (c->placement->prefetches, x) {
        if (x->over_ms == 0 && x->read_count > 0 &&
            bsearch(f, x->reads, x->read_count, sizeof(*f), compare_reads) != NULL)
            return true;
    }
    return false;
}

/* Sends an unread copy back; the policy itself has no reason to move what was never read. False:
 * the shard is being moved now, call again. */
static bool fetch_end(struct hl_controller *c, const struct prefetch *x, const struct fetch *f)
{
    const struct hl_place from = {.node = f->node, .tier = HL_API_TIER_L2};
    const struct hl_place goal = {.node = HL_READER_NONE, .tier = HL_API_TIER_L3};
    const struct hl_placed_shard *s = placement_find(c, f->shard);
    struct hl_move_order order;
    if (hl_id_is_none(f->move) || s == NULL || s->use.last_ms >= x->since_ms || is_wanted(c, f))
        return true;
    if (hl_migration_find(&c->placement->moves, f->shard) != NULL)
        return false;
    if (!has_copy(c, f->shard, f->node, HL_API_TIER_L2, is_in_l2))
        return true;
    hl_status st = moves_prepare(c, f->shard, from, goal, &order);
    if (st == HL_OK) {
        order.priority = PRIORITY_UNREAD;
        order.copy_ms = budget_copy_ms(c, &order);
        st = moves_order(c, &order);
    }
    if (st != HL_OK)
        hl_debug("shards that were fetched in vain were not dropped: %s", hl_error_text());
    return true;
}

/* Waits first: the gang's next attempt, or another job, may want the same data soon. */
static void prefetch_end(struct hl_controller *c, struct prefetch *x)
{
    const struct placement *p = c->placement;
    if (placement_now_ms() - x->over_ms < p->conf.params.residence_ms)
        return;
    while (x->ended < x->fetch_count) {
        if (p->moves.count >= MOVES_BUSY || !fetch_end(c, x, &x->fetches[x->ended]))
            return;
        x->ended++;
    }
    prefetch_free(c, x);
}

/* ---- ticks ----------------------------------------------------------------------------------- */

static void prefetch_tell(struct hl_controller *c, struct prefetch *x)
{
    char all[32], there[32], fetched[32], text[160];
    uint64_t bytes = bytes_there(c, x->reads, x->read_count);
    uint64_t ahead = bytes_there(c, x->fetches, x->fetch_count);
    x->told = true;
    if (x->bytes == 0)
        return;
    snprintf(text, sizeof(text),
             "%s of %s (%.1f%%) were in its nodes' memory when all containers ran, %s of them "
             "fetched ahead",
             hl_format_bytes(bytes, there, sizeof(there)),
             hl_format_bytes(x->bytes, all, sizeof(all)), 100 * (double)bytes / (double)x->bytes,
             hl_format_bytes(ahead, fetched, sizeof(fetched)));
    c->placement->gangs->tell(c, x->job, "prefetched", text);
}

static void prefetch_tick(struct hl_controller *c, struct prefetch *x, bool on)
{
    if (x->over_ms == 0 && !x->seen)
        prefetch_retire(c, x);
    if (x->over_ms != 0 && on)
        prefetch_end(c, x);
    else if (x->over_ms != 0)
        prefetch_free(c, x);
    else if (on && x->runs && !x->told)
        prefetch_tell(c, x);
    else if (on && !x->runs)
        prefetch_go(c, x);
}

void prefetch_run(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct prefetch *x, *next;
    const bool on = strcmp(p->conf.policy, "on") == 0 && claim_ok(c, NULL, 0);
    const bool off = strcmp(p->conf.policy, "off") == 0;
    if (p->gangs == NULL || p->prefetch_looks || pool_info(c) == NULL)
        return;
    p->prefetch_looks = true;
    DL_FOREACH (p->prefetches, x) {
        x->seen = false;
    }
    if (!off)
        p->gangs->each(c, gang_look);
    p->prefetch_looked = true;
    DL_FOREACH_SAFE (p->prefetches, x, next) {
        prefetch_tick(c, x, on);
    }
    p->prefetch_looks = false;
}

void prefetches_fini(struct hl_controller *c)
{
    while (c->placement->prefetches != NULL)
        prefetch_free(c, c->placement->prefetches);
}

/* ---- waiting containers ---------------------------------------------------------------------- */

static bool prefetch_is_over(struct hl_controller *c, const struct prefetch *x)
{
    if (x->awaits_node)
        return false;
    for (size_t i = 0; i < x->fetch_count; i++) {
        const struct fetch *f = &x->fetches[i];
        bool comes = f->tries < TRIES_MAX || fetch_move(c, f) != NULL;
        if (comes && !node_has(c, f->shard, f->node))
            return false;
    }
    return true;
}

static bool gang_may_start(struct hl_controller *c, const char *job, int attempt)
{
    const struct placement *p = c->placement;
    if (p->conf.prefetch_wait_ms == 0 || strcmp(p->conf.policy, "on") != 0)
        return true;
    const struct prefetch *x = prefetch_find(c, job, attempt);
    if (x == NULL) /* unless no gang was looked at yet, it reads no shards */
        return p->prefetch_looked || placement_now_ms() - p->started_ms >= p->conf.prefetch_wait_ms;
    return placement_now_ms() - x->starting_ms >= p->conf.prefetch_wait_ms ||
           prefetch_is_over(c, x);
}

const struct gang_watch placement_gang_watch = {.look = prefetch_run, .may_start = gang_may_start};

void placement_gangs(struct hl_controller *c, const struct gang_source *source)
{
    c->placement->gangs = source;
}
