/* Simulates the Controller. Nodes report their reads once per pass, and a pass follows each report;
 * between passes, moves progress and end. Placed copies are in the nodes' memory as the policy
 * decides. The pool is a cache of its daemon: what is read from the archive passes through it, and
 * the shards that were read longest ago leave. */
#include "whatif/placed.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "core/cache/cache.h"
#include "core/placement/keep.h"
#include "core/placement/policy.h"
#include "whatif/loads.h"
#include "whatif/planned.h"
#include "whatif/tiers.h"
#include "whatif/warmed.h"

#define L1 HL_API_TIER_L1
#define L2 HL_API_TIER_L2
#define L3 HL_API_TIER_L3

#define KEPT_L1 1 /* the only device of a node, for its rules */
/* The policy's own moves have other serials. */
#define SERIAL_DOWN  UINT32_MAX       /* of copies that leave L1 for L2 */
#define SERIAL_AHEAD (UINT32_MAX - 1) /* of shards that are prefetched for gangs */
#define SERIAL_WARM  (UINT32_MAX - 2) /* of shards that are loaded into a pool that has room */

/* So many passes follow each other while nothing is read; after that only timers cause one. */
#define QUIET_PASSES 600

/* A node's reads since its last report, and the set of its newest load. */
struct node_reads {
    int64_t set_at_ns;
    uint32_t set;
    struct hl_report_entry *entries; /* age_ms is the time of the read, until the report is sent */
    uint32_t count, room;
    uint64_t sequence;
};

/* The copies that reads leave on a node. */
struct node_keep {
    struct placed *p;
    uint16_t node;
    struct hl_keep rule;
    struct hl_index_list down; /* shards that left L1 for L2 with the newest read */
};

struct placed {
    const struct hl_access_trace *trace;
    const struct hl_whatif_world *world;
    struct hl_loads *loads;
    struct hl_placement placement;
    struct hl_policy policy;
    struct hl_cache pool;
    struct node_keep *keeps; /* by node */
    hl_status keeps_st;      /* first error of their callbacks */
    struct hl_planned planned;
    struct hl_warmed warmed;
    struct hl_node_limits *limits;
    struct node_reads *reads;
    uint32_t *serials;          /* by shard: serial of its move in flight; others are void */
    struct hl_index_list clean; /* shards whose old copy is removed in the next pass */
    uint32_t serial;
    uint64_t reads_waiting;
    double next_pass_s;
    uint32_t quiet;
};

static struct hl_id id_of(uint32_t shard)
{
    return (struct hl_id){.hi = UINT64_C(0x5ad0) << 32, .lo = shard + 1};
}

static int64_t ms_of(double seconds)
{
    return (int64_t)(seconds * 1e3);
}

static const struct hl_placed_shard *placed_shard(const struct placed *p, uint32_t shard)
{
    return hl_placement_shard_find(&p->placement, id_of(shard));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static uint64_t *bytes_of(struct placed *p, struct hl_place place)
{
    if (place.tier == L1)
        return &p->limits[place.node].l1_used;
    return place.tier == L2 ? &p->limits[place.node].l2_used : NULL;
}

static void add_bytes(struct placed *p, struct hl_place place, uint64_t bytes)
{
    uint64_t *used = bytes_of(p, place);
    if (used != NULL)
        *used += bytes;
}

static void remove_bytes(struct placed *p, struct hl_place place, uint64_t bytes)
{
    uint64_t *used = bytes_of(p, place);
    if (used != NULL)
        *used -= bytes;
}

/* ---- moves ----------------------------------------------------------------------------------- */

/* Stops keeping a copy in L2 that is now placed; L1 still keeps what is placed in L2. */
static void keep_place(struct node_keep *k, enum hl_api_tier tier, uint32_t shard)
{
    if (tier == L1 || hl_keep_device_of(&k->rule, shard) == 0)
        hl_keep_remove(&k->rule, HL_KEEP_L2, shard);
}

static hl_status land_warmed(struct placed *p, const struct hl_link_move *move)
{
    bool hit;
    hl_warmed_landed(&p->warmed, move->shard);
    if (hl_cache_has(&p->pool, move->shard)) /* a read has loaded it meanwhile */
        return HL_OK;
    return hl_cache_access(&p->pool, move->shard, move->size_bytes, &hit);
}

/* The copy is complete; does what a node's report of it would do. */
static hl_status end_move(void *arg, const struct hl_link_move *move, double at_s)
{
    struct placed *p = arg;
    const struct hl_placed_shard *s = placed_shard(p, move->shard);
    for (unsigned i = 0; i < move->stage_count; i++) {
        unsigned path = move->stages[i] == hl_links_of(HL_MOVE_ARCHIVE, 0)
                            ? HL_MOVE_ARCHIVE
                            : (move->stages[i] - 1) % 3;
        p->loads->result.moved_bytes[path] += move->size_bytes;
    }
    if (move->serial == SERIAL_WARM)
        return land_warmed(p, move);
    if (move->serial == SERIAL_AHEAD)
        hl_planned_landed(&p->planned, move);
    if (p->serials[move->shard] != move->serial)
        return HL_OK;
    struct hl_place old = s->place;
    bool preheated = s->life.state == HL_LIFE_PREHEAT;
    struct hl_change change = {.at_ms = ms_of(at_s),
                               .event = preheated ? HL_LIFE_ON_LOADED : HL_LIFE_ON_SWITCHED,
                               .node = s->goal.node};
    HL_TRY(hl_placement_shard_change(&p->placement, s->id, &change));
    p->serials[move->shard] = 0;
    p->loads->result.moves++;
    add_bytes(p, s->place, s->size_bytes);
    if (s->place.tier == L1 || s->place.tier == L2) /* a kept copy becomes the placed one */
        keep_place(&p->keeps[s->place.node], s->place.tier, move->shard);
    bool hit;
    if (s->place.tier == L3)
        HL_TRY(hl_cache_access(&p->pool, move->shard, s->size_bytes, &hit));
    if (s->life.state == HL_LIFE_MIGRATED)
        return hl_index_list_add(&p->clean, move->shard);
    remove_bytes(p, old, s->size_bytes);
    return HL_OK;
}

static void add_stage(struct hl_link_move *m, enum hl_move_path path, uint16_t node)
{
    m->stages[m->stage_count++] = hl_links_of(path, node);
}

static hl_status start_move(struct placed *p, const struct hl_decision *d, double now_s)
{
    uint32_t shard = (uint32_t)(d->shard.lo - 1);
    struct hl_link_move m = {
        .shard = shard, .serial = ++p->serial, .size_bytes = d->size_bytes, .ready_s = now_s};
    bool from_node = d->from.tier == L1 || d->from.tier == L2;
    bool to_node = d->goal.tier == L1 || d->goal.tier == L2;
    uint16_t node = to_node ? d->goal.node : d->from.node;
    p->serials[shard] = m.serial;
    if (!from_node && d->goal.tier != HL_API_TIER_L4 && !hl_cache_has(&p->pool, shard))
        add_stage(&m, HL_MOVE_ARCHIVE, 0);
    if (from_node && to_node)
        add_stage(&m, d->from.node == d->goal.node ? HL_MOVE_INSIDE : HL_MOVE_MIGRATION, node);
    else if (from_node || to_node)
        add_stage(&m, HL_MOVE_BACKBONE, node);
    if (d->goal.tier == L2 && hl_keep_has(&p->keeps[node].rule, shard))
        m.stage_count = 0;
    if (m.stage_count == 0) /* it is already in the pool, or kept */
        return end_move(p, &m, now_s);
    return hl_links_move(&p->loads->links, &m);
}

static hl_status begin_decision(struct placed *p, const struct hl_decision *d, double now_s)
{
    uint32_t shard = (uint32_t)(d->shard.lo - 1);
    HL_TRY(hl_policy_begin(&p->placement, d, ms_of(now_s)));
    if (d->event == HL_LIFE_ON_IDLE) { /* it is archived already */
        hl_cache_remove(&p->pool, shard);
        return HL_OK;
    }
    if (d->event == HL_LIFE_ON_WARM)
        p->serials[shard] = 0; /* a copy in flight is no longer needed */
    if (d->from.tier == d->goal.tier && d->from.node == d->goal.node)
        return HL_OK;
    return start_move(p, d, now_s);
}

static bool decision_stays(const struct hl_decision *d)
{
    return d->from.tier == d->goal.tier && d->from.node == d->goal.node;
}

/* ---- a pass ---------------------------------------------------------------------------------- */

/* Removes old copies after the readers' grace, which is one pass. */
static hl_status clean_up(struct placed *p, double now_s)
{
    for (uint32_t i = 0; i < p->clean.count; i++) {
        const struct hl_placed_shard *s = placed_shard(p, p->clean.items[i]);
        struct hl_place old = s->goal;
        struct hl_change change = {.at_ms = ms_of(now_s),
                                   .event = s->place.tier == L3 ? HL_LIFE_ON_CLEANED_L3
                                                                : HL_LIFE_ON_CLEANED_L2,
                                   .node = old.node};
        HL_TRY(hl_placement_shard_change(&p->placement, s->id, &change));
        remove_bytes(p, old, s->size_bytes);
    }
    p->clean.count = 0;
    return HL_OK;
}

static hl_status send_reports(struct placed *p, double now_s)
{
    for (uint16_t node = 0; node < p->trace->nodes.count; node++) {
        struct node_reads *r = &p->reads[node];
        if (r->count == 0)
            continue;
        for (uint32_t i = 0; i < r->count; i++)
            r->entries[i].age_ms = (uint32_t)ms_of(now_s) - r->entries[i].age_ms;
        struct hl_report report = {
            .incarnation = 1, .sequence = ++r->sequence, .entries = r->entries, .count = r->count};
        enum hl_report_fate fate = hl_placement_report(&p->placement, node, &report, ms_of(now_s));
        if (fate != HL_REPORT_NEW)
            return hl_fail(HL_EINTERNAL, "report %" PRIu64 " of node %u: %s", r->sequence, node,
                           hl_report_fate_text(fate));
        r->count = 0;
    }
    p->reads_waiting = 0;
    return HL_OK;
}

/* The bytes that the links of a path can carry until the next pass, minus what already waits for
 * them. */
static int64_t budget_of(const struct placed *p, enum hl_move_path path)
{
    uint32_t links = path == HL_MOVE_ARCHIVE ? 1 : p->trace->nodes.count;
    double bytes = 0;
    for (uint32_t i = 0; i < links; i++)
        bytes += p->world->rates[path] * (double)p->world->pass_ms / 1e3 -
                 hl_links_backlog(&p->loads->links, hl_links_of(path, i));
    return bytes < 1e18 ? (int64_t)bytes : INT64_MAX;
}

/* Loads as much as the archive can deliver until the next pass and no other move needs. */
static hl_status warm_pool(struct placed *p, double now_s)
{
    int64_t budget = budget_of(p, HL_MOVE_ARCHIVE);
    uint32_t shard;
    while (budget > 0 && hl_warmed_next(&p->warmed, p->pool.used, &shard)) {
        struct hl_link_move m = {.shard = shard,
                                 .serial = SERIAL_WARM,
                                 .size_bytes = p->trace->sizes[shard],
                                 .ready_s = now_s};
        if (hl_cache_has(&p->pool, shard)) {
            hl_warmed_landed(&p->warmed, shard);
            continue;
        }
        add_stage(&m, HL_MOVE_ARCHIVE, 0);
        HL_TRY(hl_links_move(&p->loads->links, &m));
        budget -= (int64_t)m.size_bytes;
    }
    return HL_OK;
}

static hl_status make_pass(struct placed *p, double now_s)
{
    HL_TRY(clean_up(p, now_s));
    HL_TRY(send_reports(p, now_s));
    struct hl_policy_limits limits = {.nodes = p->limits, .node_count = p->trace->nodes.count};
    for (unsigned path = 0; path < HL_MOVE_PATHS; path++) {
        limits.rates[path] = p->world->rates[path];
        limits.budget[path] = budget_of(p, (enum hl_move_path)path);
    }
    limits.backbone_busy_pct = 0;
    HL_TRY(hl_policy_pass(&p->policy, &p->placement, &limits, false, ms_of(now_s)));
    for (size_t i = 0; i < p->policy.count; i++)
        if (p->world->moves || decision_stays(&p->policy.decisions[i]))
            HL_TRY(begin_decision(p, &p->policy.decisions[i], now_s));
    HL_TRY(warm_pool(p, now_s));
    p->quiet = p->policy.count > 0 ? 0 : p->quiet + 1;
    return HL_OK;
}

/* Without reads, moves and decisions, nothing changes before the next timer. */
static void skip_quiet_passes(struct placed *p, double now_s)
{
    double pass_s = (double)p->world->pass_ms / 1e3;
    bool busy = p->reads_waiting > 0 || p->loads->links.moves > 0 || p->clean.count > 0 ||
                (p->policy.open > 0 && p->quiet < QUIET_PASSES);
    if (busy)
        return;
    double until_s = fmin((double)hl_timers_next_ms(&p->policy.timers) / 1e3, now_s);
    if (until_s > p->next_pass_s)
        p->next_pass_s += (double)(uint64_t)((until_s - p->next_pass_s) / pass_s) * pass_s;
}

static hl_status advance_passes(struct placed *p, double now_s)
{
    double pass_s = (double)p->world->pass_ms / 1e3;
    while (p->next_pass_s <= now_s) {
        skip_quiet_passes(p, now_s);
        HL_TRY(hl_links_advance(&p->loads->links, p->next_pass_s, end_move, p));
        HL_TRY(make_pass(p, p->next_pass_s));
        p->next_pass_s += pass_s;
    }
    return hl_links_advance(&p->loads->links, now_s, end_move, p);
}

static hl_status advance_placed(void *arg, double now_s)
{
    struct placed *p = arg;
    for (double plan_s; (plan_s = hl_planned_next_s(&p->planned)) <= now_s;) {
        HL_TRY(advance_passes(p, plan_s));
        HL_TRY(hl_planned_advance(&p->planned, plan_s));
    }
    return advance_passes(p, now_s);
}

/* ---- accesses -------------------------------------------------------------------------------- */

static hl_status note_read(struct placed *p, const struct hl_access_row *row, int64_t now_ms)
{
    struct node_reads *r = &p->reads[row->node];
    if (r->count == r->room) {
        uint32_t room = r->room == 0 ? 64 : r->room * 2;
        struct hl_report_entry *more = realloc(r->entries, room * sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for a report of %" PRIu32 " reads", room);
        r->entries = more;
        r->room = room;
    }
    r->entries[r->count++] = (struct hl_report_entry){
        .shard = id_of(row->shard), .count = 1, .age_ms = (uint32_t)now_ms};
    p->reads_waiting++;
    return HL_OK;
}

/* What a node reads or writes at once for the first time forms a set, like the shards of a rank. */
static hl_status add_shard(struct placed *p, const struct hl_access_row *row, int64_t now_ms)
{
    struct hl_place in_l3 = {.node = HL_READER_NONE, .tier = L3};
    struct node_reads *r = &p->reads[row->node];
    struct hl_id id = id_of(row->shard);
    HL_TRY(hl_placement_shard_add(&p->placement, id, p->trace->sizes[row->shard], in_l3, now_ms));
    if (r->set == HL_SET_NONE || r->set_at_ns != row->at_ns) {
        HL_TRY(hl_placement_set_add(&p->placement, HL_SET_NONE, &r->set));
        r->set_at_ns = row->at_ns;
    }
    return hl_placement_set_join(&p->placement, id, r->set);
}

static bool is_in_l2(const struct node_keep *k, uint32_t shard)
{
    const struct hl_place place = placed_shard(k->p, shard)->place;
    return place.tier == L2 && place.node == k->node;
}

static void note_left(void *arg, uint32_t shard, unsigned where)
{
    struct node_keep *k = arg;
    if (where != HL_KEEP_L2 && hl_keep_has(&k->rule, shard) && k->p->keeps_st == HL_OK)
        k->p->keeps_st = hl_index_list_add(&k->down, shard);
}

/* Moves copies from L1 to L2, in parallel with reads. */
static hl_status carry_down(struct placed *p, struct node_keep *k, double now_s)
{
    for (uint32_t i = 0; i < k->down.count; i++) {
        struct hl_link_move m = {.shard = k->down.items[i],
                                 .serial = SERIAL_DOWN,
                                 .size_bytes = p->trace->sizes[k->down.items[i]],
                                 .ready_s = now_s};
        if (is_in_l2(k, m.shard)) {
            hl_keep_remove(&k->rule, HL_KEEP_L2, m.shard);
            continue;
        }
        add_stage(&m, HL_MOVE_INSIDE, k->node);
        HL_TRY(hl_links_move(&p->loads->links, &m));
    }
    k->down.count = 0;
    return p->keeps_st;
}

/* Copies that the node keeps have the room that placed copies leave. */
static hl_status read_kept(struct placed *p, const struct hl_access_row *row, enum hl_found *found)
{
    const struct hl_whatif_world *w = p->world;
    const struct hl_node_limits *l = &p->limits[row->node];
    struct node_keep *k = &p->keeps[row->node];
    uint64_t l1_room = hl_keep_room(w->l1_bytes, w->keep_l1_pct, l->l1_used);
    hl_keep_resize(&k->rule, KEPT_L1, l1_room);
    hl_keep_resize(&k->rule, HL_KEEP_L2, hl_keep_room(w->l2_bytes, w->keep_pct, l->l2_used));
    bool in_l2 = is_in_l2(k, row->shard), had = hl_keep_has(&k->rule, row->shard);
    bool in_l1 = hl_keep_device_of(&k->rule, row->shard) != 0;
    if (!in_l2 || l1_room > 0)
        HL_TRY(hl_keep_read(&k->rule, l1_room > 0 ? KEPT_L1 : HL_KEEP_L2, row->shard,
                            p->trace->sizes[row->shard]));
    if (in_l2 && hl_keep_device_of(&k->rule, row->shard) == 0)
        hl_keep_remove(&k->rule, HL_KEEP_L2, row->shard);
    *found = in_l1 ? HL_FOUND_L1 : had || in_l2 ? HL_FOUND_L2 : HL_FOUND_KINDS;
    return carry_down(p, k, hl_loads_seconds(p->trace, (uint32_t)(row - p->trace->rows)));
}

/* A reader tries its node's memory and then L3. It only learns of copies in other nodes if L3
 * fails. */
static hl_status access_placed(void *arg, const struct hl_access_row *row, enum hl_found *found)
{
    struct placed *p = arg;
    uint64_t bytes = p->trace->sizes[row->shard];
    int64_t now_ms = (row->at_ns - p->trace->rows[0].at_ns) / 1000000;
    bool hit;
    if (placed_shard(p, row->shard) == NULL)
        HL_TRY(add_shard(p, row, now_ms));
    if (row->is_write)
        return hl_cache_access(&p->pool, row->shard, bytes, &hit);
    HL_TRY(note_read(p, row, now_ms));
    struct hl_place place = placed_shard(p, row->shard)->place;
    if (place.tier == L1 && place.node == row->node) {
        *found = HL_FOUND_L1;
        (void)hl_planned_read(&p->planned, row->node, row->shard, true);
        return HL_OK;
    }
    HL_TRY(read_kept(p, row, found));
    if (hl_planned_read(&p->planned, row->node, row->shard, *found != HL_FOUND_KINDS) &&
        *found == HL_FOUND_KINDS)
        *found = HL_FOUND_L2;
    if (*found != HL_FOUND_KINDS)
        return HL_OK;
    HL_TRY(hl_cache_access(&p->pool, row->shard, bytes, &hit));
    *found = hit ? HL_FOUND_L3 : HL_FOUND_L4;
    return HL_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

static struct hl_place nearest_copy(void *arg, uint32_t shard, uint16_t node)
{
    const struct placed *p = arg;
    const struct hl_placed_shard *s = placed_shard(p, shard);
    if (hl_keep_has(&p->keeps[node].rule, shard) ||
        (s != NULL && s->place.tier <= L2 && s->place.node == node))
        return (struct hl_place){.node = node, .tier = L2};
    if (s != NULL && s->place.tier <= L2)
        return s->place;
    return (struct hl_place){.node = HL_READER_NONE,
                             .tier = hl_cache_has(&p->pool, shard) ? L3 : HL_API_TIER_L4};
}

static void tell_planned(struct placed *p)
{
    struct hl_whatif_result *r = &p->loads->result;
    hl_planned_end(&p->planned);
    r->planned_bytes = p->planned.planned_bytes;
    r->planned_local_bytes = p->planned.local_bytes;
    r->ahead_bytes = p->planned.ahead_bytes;
    r->vain_bytes = p->planned.vain_bytes;
}

static uint64_t pool_low_bytes(const struct hl_whatif_world *w)
{
    return (uint64_t)((double)w->l3_bytes * w->params.low_pct / 100);
}

static hl_status placed_init(struct placed *p)
{
    uint32_t shards = p->trace->shards.count, nodes = p->trace->nodes.count;
    p->limits = calloc(nodes, sizeof(*p->limits));
    p->reads = calloc(nodes, sizeof(*p->reads));
    p->serials = calloc(shards, sizeof(*p->serials));
    p->keeps = calloc(nodes, sizeof(*p->keeps));
    if (p->limits == NULL || p->reads == NULL || p->serials == NULL || p->keeps == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " shards on %" PRIu32 " nodes",
                       shards, nodes);
    HL_TRY(hl_cache_init(&p->pool, HL_CACHE_LRU, p->world->l3_bytes,
                         hl_tiers_typical_bytes(p->trace)));
    HL_TRY(hl_placement_init(&p->placement, &(struct hl_placement_opts){.params = p->world->params,
                                                                        .shards_max = shards}));
    for (uint32_t i = 0; i < nodes; i++) {
        uint16_t node;
        HL_TRY(hl_placement_node_add(&p->placement, 1, 0, &node));
        p->reads[i].set = HL_SET_NONE;
        p->limits[i] = (struct hl_node_limits){
            .l1_bytes = p->world->l1_bytes, .l2_bytes = p->world->l2_bytes, .takes = true};
        p->keeps[i].p = p;
        p->keeps[i].node = (uint16_t)i;
        HL_TRY(hl_keep_init(&p->keeps[i].rule, KEPT_L1, note_left, &p->keeps[i]));
    }
    if (p->world->warms)
        HL_TRY(hl_warmed_init(&p->warmed, p->trace, pool_low_bytes(p->world)));
    p->next_pass_s = (double)p->world->pass_ms / 1e3;
    p->planned = (struct hl_planned){.trace = p->trace,
                                     .links = &p->loads->links,
                                     .rates = p->world->rates,
                                     .limits = p->limits,
                                     .fetches = p->world->moves,
                                     .serial = SERIAL_AHEAD,
                                     .nearest = nearest_copy,
                                     .arg = p};
    return HL_OK;
}

static void placed_fini(struct placed *p)
{
    for (uint32_t i = 0; p->reads != NULL && i < p->trace->nodes.count; i++)
        free(p->reads[i].entries);
    for (uint32_t i = 0; p->keeps != NULL && i < p->trace->nodes.count; i++) {
        hl_keep_fini(&p->keeps[i].rule);
        hl_index_list_fini(&p->keeps[i].down);
    }
    free(p->keeps);
    free(p->reads);
    free(p->limits);
    free(p->serials);
    hl_planned_fini(&p->planned);
    hl_warmed_fini(&p->warmed);
    hl_index_list_fini(&p->clean);
    hl_cache_fini(&p->pool);
    hl_policy_fini(&p->policy);
    hl_placement_fini(&p->placement);
}

hl_status hl_placed_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                        struct hl_whatif_result *out)
{
    static const struct hl_load_ops ops = {.advance = advance_placed, .access = access_placed};
    struct hl_loads loads;
    struct placed p = {.trace = trace, .world = world, .loads = &loads};
    HL_TRY(hl_loads_init(&loads, trace, world));
    hl_status st = placed_init(&p);
    if (st == HL_OK)
        st = hl_loads_run(&loads, &ops, &p);
    if (st == HL_OK)
        tell_planned(&p);
    placed_fini(&p);
    if (st == HL_OK)
        *out = loads.result;
    hl_loads_fini(&loads);
    return st;
}
