#include "core/copies/copyplan.h"

#include <string.h>

static bool same_host(const struct hl_copy_place *a, const struct hl_copy_place *b)
{
    return a->host[0] != '\0' && strcmp(a->host, b->host) == 0;
}

bool hl_copy_same_place(const struct hl_copy_place *a, const struct hl_copy_place *b)
{
    return a->tier == b->tier && a->node == b->node &&
           (a->device[0] == '\0' || b->device[0] == '\0' || strcmp(a->device, b->device) == 0);
}

int hl_copy_distance(const struct hl_copy_place *from, const struct hl_copy_place *goal,
                     enum hl_api_operation op)
{
    static const int cost[HL_API_TIER_COUNT] = {
        [HL_API_TIER_L1] = 2, [HL_API_TIER_L2] = 0, [HL_API_TIER_L3] = 1, [HL_API_TIER_L4] = 8};
    int far = cost[from->tier];
    if (op != HL_API_OPERATION_READ && from->tier == HL_API_TIER_L3)
        far += 4;
    if (goal->tier >= HL_API_TIER_L3) /* tries the pool first, then the archive */
        return from->tier == HL_API_TIER_L3 ? 0 : from->tier == HL_API_TIER_L4 ? 1 : 2 + far;
    if (from->node != NULL && from->node == goal->node)
        return far;
    return far + (same_host(from, goal) ? 10 : 20);
}

static struct hl_copy_move move_to(enum hl_copy_step step, const struct hl_copy_place *lands)
{
    return (struct hl_copy_move){step, *lands};
}

/* The host memory of the same place. */
static struct hl_copy_place place_beside(const struct hl_copy_place *place)
{
    return (struct hl_copy_place){
        .tier = HL_API_TIER_L2, .node = place->node, .host = place->host, .device = ""};
}

/* Moves a copy out of a node, from its L2; a copy in device memory goes to L2 first. */
static struct hl_copy_move move_out(const struct hl_copy_place *at, const struct hl_copy_place *to)
{
    struct hl_copy_place lifted = place_beside(at);
    return at->tier == HL_API_TIER_L1 ? move_to(HL_COPY_READ, &lifted) : move_to(HL_COPY_SEND, to);
}

/* Moves a copy into a node: the node reads it, or another node sends it. */
static struct hl_copy_move move_in(const struct hl_copy_place *at, const struct hl_copy_place *goal,
                                   enum hl_api_operation op)
{
    struct hl_copy_place landing = place_beside(goal);
    bool own = at->node == goal->node;
    if (at->tier == HL_API_TIER_L1 && !own)
        return move_out(at, &landing);
    if (own || at->tier == HL_API_TIER_L3 || op == HL_API_OPERATION_READ || same_host(at, goal))
        return move_to(HL_COPY_READ, goal);
    return move_out(at, &landing);
}

struct hl_copy_move hl_copy_next(const struct hl_copy_place *at, const struct hl_copy_place *goal,
                                 enum hl_api_operation op, bool copied)
{
    const struct hl_copy_place pool = {.tier = HL_API_TIER_L3, .host = "", .device = ""};
    if (copied && hl_copy_same_place(at, goal))
        return move_to(HL_COPY_DONE, at);
    if (at->tier == HL_API_TIER_L4 && goal->tier != HL_API_TIER_L4)
        return move_to(HL_COPY_LOAD, &pool);
    if (goal->node != NULL)
        return move_in(at, goal, op);
    if (at->node != NULL)
        return move_out(at, &pool);
    return move_to(goal->tier == HL_API_TIER_L4 ? HL_COPY_ARCHIVE : HL_COPY_LOAD, goal);
}

bool hl_copy_outlives(const struct hl_copy_place *other, const struct hl_copy_place *place)
{
    return other->tier != HL_API_TIER_L1 && !hl_copy_same_place(other, place);
}

bool hl_copy_is_confirmed(const struct hl_copy_place *other, const struct hl_copy_place *place)
{
    return place->tier != HL_API_TIER_L3 || other->tier != HL_API_TIER_L4;
}

bool hl_copy_blames_source(hl_status st)
{
    return hl_copy_may_help(st) || st == HL_EIO || st == HL_EPROTO;
}

bool hl_copy_may_help(hl_status st)
{
    return st == HL_ECORRUPT || st == HL_EUNAVAIL || st == HL_ETIMEDOUT || st == HL_ENOENT ||
           st == HL_ESTALE;
}

bool hl_copy_was_tried(hl_status st)
{
    return st != HL_ENOENT && st != HL_EINVAL && st != HL_EEXIST && st != HL_ENOSPC;
}
