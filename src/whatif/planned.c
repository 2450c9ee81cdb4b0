#include "whatif/planned.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <uthash.h>

#include "core/placement/ahead.h"

enum planned_state { WANTED, COMING, THERE };

struct hl_planned_shard {
    struct planned_key {
        uint32_t shard, node;
    } key;

    enum planned_state state;
    bool wanted; /* false: it is fetched in vain */
    UT_hash_handle hh;
};

static struct hl_planned_shard *planned_find(const struct hl_planned *x, uint32_t node,
                                             uint32_t shard)
{
    const struct planned_key key = {shard, node};
    struct hl_planned_shard *s;
    HASH_FIND(hh, x->table, &key, sizeof(key), s);
    return s;
}

static void planned_remove(struct hl_planned *x, struct hl_planned_shard *s)
{
    HASH_DEL(x->table, s);
    free(s);
}

static uint64_t bytes_of(const struct hl_planned *x, const struct hl_planned_shard *s)
{
    return x->trace->sizes[s->key.shard];
}

/* Removes the copy from the node's L2. */
static void give_room(struct hl_planned *x, struct hl_planned_shard *s)
{
    x->limits[s->key.node].l2_used -= bytes_of(x, s);
    planned_remove(x, s);
}

static void plan_off(struct hl_planned *x, const struct hl_access_plan *plan)
{
    struct hl_planned_shard *s = planned_find(x, plan->node, plan->shard);
    if (s == NULL)
        return;
    s->wanted = false;
    if (s->state == COMING) /* a copy on its way still arrives */
        return;
    x->vain_bytes += s->state == THERE ? bytes_of(x, s) : 0;
    if (s->state == THERE)
        give_room(x, s);
    else
        planned_remove(x, s);
}

static hl_status plan_on(struct hl_planned *x, const struct hl_access_plan *plan)
{
    struct hl_planned_shard *s = planned_find(x, plan->node, plan->shard);
    if (s != NULL) {
        s->wanted = true;
        return HL_OK;
    }
    if ((s = calloc(1, sizeof(*s))) == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a plan");
    s->key = (struct planned_key){plan->shard, plan->node};
    s->wanted = true;
    HASH_ADD(hh, x->table, key, sizeof(s->key), s);
    return HL_OK;
}

static hl_status begin_move(struct hl_planned *x, const struct hl_ahead_move *move, double now_s)
{
    struct hl_planned_shard *s = planned_find(x, move->goal.node, (uint32_t)move->shard.lo);
    struct hl_link_move m = {.shard = s->key.shard,
                             .node = move->goal.node,
                             .serial = x->serial,
                             .size_bytes = move->size_bytes,
                             .ready_s = now_s};
    if (move->from.tier == HL_API_TIER_L4)
        m.stages[m.stage_count++] = hl_links_of(HL_MOVE_ARCHIVE, 0);
    m.stages[m.stage_count++] = hl_links_of(
        move->from.tier <= HL_API_TIER_L2 ? HL_MOVE_MIGRATION : HL_MOVE_BACKBONE, move->goal.node);
    s->state = COMING;
    return hl_links_move(x->links, &m);
}

/* Fetches the shards of plans [first, end), in the order and within the room that the Controller
 * would use. */
static hl_status fetch_plans(struct hl_planned *x, uint32_t first, uint32_t end, double now_s)
{
    const uint32_t nodes = x->trace->nodes.count;
    HL_AUTO(hl_freep) struct hl_ahead_shard *list = calloc(end - first + 1, sizeof(*list));
    HL_AUTO(hl_freep) uint64_t *l2_free = calloc(nodes + 1, sizeof(*l2_free));
    HL_AUTO(hl_freep) bool *takes = calloc(nodes + 1, sizeof(*takes));
    struct hl_ahead_world world = {.l2_free = l2_free, .takes = takes, .node_count = nodes};
    struct hl_ahead plan;
    size_t count = 0;
    if (list == NULL || l2_free == NULL || takes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu32 " plans", end - first);
    for (; first < end; first++) {
        const struct hl_access_plan *p = &x->trace->plans[first];
        const struct hl_planned_shard *s = planned_find(x, p->node, p->shard);
        if (!p->is_off && s != NULL && s->state == WANTED)
            list[count++] = (struct hl_ahead_shard){.id = {.lo = p->shard},
                                                    .size_bytes = x->trace->sizes[p->shard],
                                                    .place = x->nearest(x->arg, p->shard, p->node),
                                                    .node = p->node,
                                                    .rank = p->node};
    }
    for (uint32_t i = 0; i < nodes; i++) {
        const struct hl_node_limits *l = &x->limits[i];
        takes[i] = true;
        l2_free[i] = l->l2_used < l->l2_bytes ? l->l2_bytes - l->l2_used : 0;
    }
    for (int i = 0; i < HL_MOVE_PATHS; i++) {
        world.rates[i] = x->rates[i];
        world.shared[i] = i == HL_MOVE_ARCHIVE ? x->rates[i] : HUGE_VAL;
    }
    const int64_t now_ms = (int64_t)(now_s * 1e3);
    const struct hl_ahead_gang gang = {list, count, now_ms};
    HL_TRY(hl_ahead_plan(&gang, &world, now_ms, &plan));
    hl_status st = HL_OK;
    for (size_t i = 0; st == HL_OK && i < plan.count; i++)
        st = begin_move(x, &plan.moves[i], now_s);
    hl_ahead_fini(&plan);
    return st;
}

static double plan_s(const struct hl_planned *x, uint32_t plan)
{
    int64_t ns = x->trace->plans[plan].at_ns - x->trace->rows[0].at_ns;
    return ns > 0 ? (double)ns / 1e9 : 0;
}

double hl_planned_next_s(const struct hl_planned *x)
{
    return x->next < x->trace->plan_count ? plan_s(x, x->next) : HUGE_VAL;
}

hl_status hl_planned_advance(struct hl_planned *x, double now_s)
{
    while (hl_planned_next_s(x) <= now_s) {
        uint32_t first = x->next;
        double at_s = hl_planned_next_s(x);
        for (; x->next < x->trace->plan_count && plan_s(x, x->next) <= at_s; x->next++) {
            const struct hl_access_plan *p = &x->trace->plans[x->next];
            if (p->is_off)
                plan_off(x, p);
            else
                HL_TRY(plan_on(x, p));
        }
        if (x->fetches)
            HL_TRY(fetch_plans(x, first, x->next, at_s));
    }
    return HL_OK;
}

void hl_planned_landed(struct hl_planned *x, const struct hl_link_move *move)
{
    struct hl_planned_shard *s = planned_find(x, move->node, move->shard);
    x->ahead_bytes += move->size_bytes;
    if (s->wanted) {
        s->state = THERE;
        x->limits[move->node].l2_used += move->size_bytes;
        return;
    }
    x->vain_bytes += move->size_bytes;
    planned_remove(x, s);
}

bool hl_planned_read(struct hl_planned *x, uint16_t node, uint32_t shard, bool local)
{
    struct hl_planned_shard *s = planned_find(x, node, shard);
    if (s == NULL || !s->wanted)
        return false;
    bool there = s->state == THERE;
    x->planned_bytes += bytes_of(x, s);
    x->local_bytes += there || local ? bytes_of(x, s) : 0;
    s->wanted = false;
    if (there)
        give_room(x, s);
    else if (s->state == WANTED)
        planned_remove(x, s);
    return there;
}

void hl_planned_end(struct hl_planned *x)
{
    struct hl_planned_shard *s, *next;
    HASH_ITER (hh, x->table, s, next) {
        x->vain_bytes += s->state == THERE ? bytes_of(x, s) : 0;
        planned_remove(x, s);
    }
}

void hl_planned_fini(struct hl_planned *x)
{
    struct hl_planned_shard *s, *next;
    HASH_ITER (hh, x->table, s, next) {
        planned_remove(x, s);
    }
}
