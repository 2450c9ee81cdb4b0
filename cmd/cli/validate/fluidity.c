/* A shard that the policy has moved often stays in L2, however hot it is, while another one of the
 * same set, which is as hot, goes to L1.
 *
 *     L1 full of pinned shards --the hot one is copied there--> above the watermark: it leaves
 *     --(again, until its fluidity is high)--> L1 is emptied, pins end; both settle
 *
 * Only moves of the policy count, so this needs placement.policy=on. */
#include <math.h>
#include <string.h>

#include "cli/validate/validate.h"

#define MARGIN 0.1 /* of fluidity, which falls while the shard settles */
#define TURNS  4   /* limit, in multiples of a move's usual time */
#define PASSES 3   /* intervals after which the policy has surely seen a shard */

static const struct scratch_shard *moved_of(const struct validation *v)
{
    return &v->shards[SCRATCH_HOT];
}

static const struct scratch_shard *control_of(const struct validation *v)
{
    return &v->shards[SCRATCH_HOT + 1];
}

static hl_status pin_shard(struct validation *v, const struct scratch_shard *s, bool pinned)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_pin_results r;
    const struct hl_api_controller_pin_params p = {.id = s->id, .pinned = pinned};
    return CLI_CALL(v->cli, pin, &p, &arena, &r);
}

/* Pinned shards neither leave L1 nor come there, so only the other one moves. */
static hl_status pin_others(struct validation *v, bool pinned)
{
    HL_TRY(pin_shard(v, control_of(v), pinned));
    for (unsigned i = 0; i < v->cold_count; i++)
        HL_TRY(pin_shard(v, &v->shards[SCRATCH_COLD + i], pinned));
    return HL_OK;
}

/* Gives up if that takes longer than usual: then the caller copies the shard again. */
static hl_status await_move(struct validation *v, uint64_t turn_ms, double *fluidity)
{
    double before = *fluidity;
    uint64_t end = hl_now_ns() + TURNS * turn_ms * HL_NS_PER_MS;
    do { /* the Controller sees the use of L1 with the next heartbeat */
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_shard_placement p;
        HL_TRY(validate_pause(v));
        HL_TRY(policy_look(v, moved_of(v), &arena, &p));
        *fluidity = p.fluidity;
        if (p.tier == HL_API_TIER_L2 && p.goal_tier == HL_API_TIER_UNSAID && p.fluidity > before)
            return HL_OK;
    } while (hl_now_ns() < end);
    return HL_OK;
}

static hl_status move_often(struct validation *v, const struct vnode *n, uint64_t turn_ms,
                            double *fluidity)
{
    struct hl_api_copy copy;
    HL_TRY(policy_empty_l1(v));
    HL_TRY(pin_others(v, true));
    for (unsigned i = 0; i < v->cold_count; i++)
        HL_TRY(order_copy(v, &v->shards[SCRATCH_COLD + i], n, HL_API_TIER_L1, HL_API_OPERATION_READ,
                          &copy));
    while (*fluidity < v->facts.fluidity_high + MARGIN) {
        HL_TRY(order_copy(v, moved_of(v), n, HL_API_TIER_L1, HL_API_OPERATION_READ, &copy));
        HL_TRY(await_move(v, turn_ms, fluidity));
    }
    HL_TRY(policy_empty_l1(v));
    return pin_others(v, false);
}

static hl_status is_in_l1(struct validation *v, const struct scratch_shard *s, bool *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard_placement p;
    HL_TRY(policy_look(v, s, &arena, &p));
    *out = p.tier == HL_API_TIER_L1 || p.goal_tier == HL_API_TIER_L1;
    return HL_OK;
}

/* Both shards have settled; if the control has moved, the policy has looked. */
static hl_status await_control(struct validation *v, uint64_t settled_ns, bool *control,
                               bool *moved)
{
    for (*control = false;;) {
        uint64_t passes = PASSES * v->facts.interval_ms * HL_NS_PER_MS;
        HL_TRY(is_in_l1(v, moved_of(v), moved));
        HL_TRY(is_in_l1(v, control_of(v), control));
        if (*moved || (*control && hl_now_ns() > settled_ns + passes))
            return HL_OK;
        hl_status st = validate_pause(v);
        if (st == HL_ETIMEDOUT)
            return HL_OK; /* the figure shows it */
        HL_TRY(st);
    }
}

hl_status row_fluidity(struct validation *v, struct found *f)
{
    double fluidity = 0;
    bool control = false, moved = false;
    if (!policy_has_l1(v, f))
        return HL_OK;
    if (!policy_is_on(v))
        return found_missing(v, f, HL_API_VALIDATION_RESULT_OFF,
                             "placement.policy is %s: only moves of the policy count as fluidity",
                             v->facts.policy);
    if (v->no_fill != NULL)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM, "%s", v->no_fill);
    HL_TRY(policy_place(v));
    uint64_t turn_ms = v->facts.grace_ms + PASSES * v->facts.interval_ms;
    uint64_t wait_ms = (uint64_t)(ceil(v->facts.fluidity_high) + 1) * turn_ms +
                       v->facts.residence_ms + PASSES * v->facts.interval_ms;
    if (!policy_has_time(v, f, wait_ms))
        return HL_OK;
    const struct vnode *n = &v->facts.nodes[v->reader];
    HL_TRY(move_often(v, n, turn_ms, &fluidity));
    uint64_t settled_ns = hl_now_ns() + v->facts.residence_ms * HL_NS_PER_MS;
    HL_TRY(await_control(v, settled_ns, &control, &moved));
    found_text(v, f,
               "after moves that give fluidity %.2f (high from %.4g) a hot shard %s, and one that "
               "was read as often but not moved %s",
               fluidity, v->facts.fluidity_high, moved ? "went to L1" : "stayed in L2",
               control ? "went to L1" : "stayed in L2");
    found_judge(f, !moved && control ? 100 : 0);
    return HL_OK;
}
