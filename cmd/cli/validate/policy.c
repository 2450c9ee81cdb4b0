/* What the policy decides about shards that ranks of one node read. If it only observes, its
 * decision is judged, and an order carries it out. */
#include <math.h>
#include <string.h>

#include "cli/validate/validate.h"
#include "core/placement/lifecycle.h"

#define EMPTY_MS 10000

static const struct vnode *reader_of(const struct validation *v)
{
    return &v->facts.nodes[v->reader];
}

bool policy_is_on(const struct validation *v)
{
    return strcmp(v->facts.policy, "on") == 0;
}

static const char *how_far(const struct validation *v)
{
    return policy_is_on(v) ? "" : "; decided and not moved: placement.policy is observe";
}

hl_status policy_look(struct validation *v, const struct scratch_shard *s, struct hl_arena *arena,
                      struct hl_api_shard_placement *out)
{
    struct hl_api_controller_shard_placement_results r;
    HL_TRY(CLI_CALL(v->cli, shard_placement,
                    &(struct hl_api_controller_shard_placement_params){s->id}, arena, &r));
    *out = r.placement;
    return HL_OK;
}

bool policy_may_run(struct validation *v, struct found *f)
{
    if (strcmp(v->facts.policy, "off") == 0)
        (void)!found_missing(v, f, HL_API_VALIDATION_RESULT_OFF, "placement.policy is off");
    else if (v->reader < 0)
        (void)!found_missing(v, f, v->no_reader_result, "%s", v->no_reader);
    else
        return true;
    return false;
}

bool policy_has_l1(struct validation *v, struct found *f)
{
    if (!policy_may_run(v, f))
        return false;
    if (reader_of(v)->devices > 0)
        return true;
    (void)!found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT, "an L1 (agent.devices) on %s",
                         reader_of(v)->name);
    return false;
}

bool policy_has_time(struct validation *v, struct found *f, uint64_t wait_ms)
{
    uint64_t end = hl_now_ns() + (wait_ms + v->args->row_ms) * HL_NS_PER_MS;
    if (end <= v->end_ns) {
        v->row_end_ns = end;
        return true;
    }
    (void)!found_missing(
        v, f, HL_API_VALIDATION_RESULT_NO_TIME,
        "policy.residence keeps a shard in place for %.0f s; --time %.0fs is enough",
        (double)v->facts.residence_ms / 1e3, ceil((double)(end - v->begun_ns) / 1e9));
    return false;
}

/* ---- reads bring shards near ----------------------------------------------------------------- */

static bool is_at_reader(const struct validation *v, const struct hl_api_shard_placement *p,
                         enum hl_api_tier tier)
{
    return p->tier == tier && strcmp(p->node, reader_of(v)->name) == 0;
}

/* Whether the shard has moved there, or would. A shard in the node's L1 came through its L2, which
 * keeps a copy. */
static bool goes_to_reader(const struct validation *v, const struct hl_api_shard_placement *p,
                           enum hl_api_tier tier)
{
    const struct hl_api_shard_decision *d = &p->decision;
    if (policy_is_on(v))
        return is_at_reader(v, p, HL_API_TIER_L1) ||
               (is_at_reader(v, p, tier) && p->goal_tier == HL_API_TIER_UNSAID);
    return d->reason[0] != '\0' && d->tier == tier && strcmp(d->node, reader_of(v)->name) == 0;
}

/* Counts the hot shards that go there. The wait ends when all do, or when the row's time is
 * over. */
static hl_status await_hot(struct validation *v, enum hl_api_tier tier, struct hl_tally *out)
{
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_tally tally = {0};
        for (int i = SCRATCH_HOT; i < SCRATCH_COLD; i++) {
            struct hl_api_shard_placement p;
            HL_TRY(policy_look(v, &v->shards[i], &arena, &p));
            hl_tally_add(&tally, goes_to_reader(v, &p, tier));
            if (p.accesses > v->local.accesses)
                v->local.accesses = p.accesses;
        }
        *out = tally;
        if (tally.good == tally.all)
            return HL_OK;
        hl_status st = validate_pause(v);
        if (st == HL_ETIMEDOUT)
            return HL_OK; /* the figure shows it */
        HL_TRY(st);
    }
}

/* A shard that is read once should stay where it is. */
static hl_status look_at_cold(struct validation *v)
{
    for (int i = SCRATCH_COLD; i < SCRATCH_SMALL; i++) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_shard_placement p;
        if (v->shards[i].id[0] == '\0')
            continue;
        HL_TRY(policy_look(v, &v->shards[i], &arena, &p));
        hl_tally_add(&v->local.cold, p.accesses > 0 && !goes_to_reader(v, &p, HL_API_TIER_L2));
    }
    return HL_OK;
}

/* The Controller only counts reads of shards that it has placed: at its next pass, or on request.
 */
static hl_status place_all(struct validation *v)
{
    for (int i = 0; i < SCRATCH_KINDS; i++) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_shard_placement p;
        if (v->shards[i].id[0] != '\0')
            HL_TRY(policy_look(v, &v->shards[i], &arena, &p));
    }
    return HL_OK;
}

static hl_status order_to_reader(struct validation *v, const struct scratch_shard *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_move_shard_results r;
    const struct hl_api_controller_move_shard_params p = {
        .id = s->id, .node = reader_of(v)->name, .tier = HL_API_TIER_L2};
    return CLI_CALL_FOR(v->cli, move_shard, &p, validate_left_ms(v), &arena, &r);
}

/* Checks that the hot shards' copies in that tier are good; *tally counts the good ones. */
static hl_status verify_hot(struct validation *v, enum hl_api_tier tier, struct hl_tally *tally)
{
    for (int i = SCRATCH_HOT; i < SCRATCH_COLD; i++) {
        bool good = false;
        HL_TRY(order_verify(v, &v->shards[i], reader_of(v), tier, &good));
        tally->good -= !good && tally->good > 0;
    }
    return HL_OK;
}

hl_status policy_place(struct validation *v)
{
    struct localized *l = &v->local;
    if (!l->known) {
        HL_TRY(place_all(v));
        HL_TRY(readers_run(v));
        HL_TRY(await_hot(v, HL_API_TIER_L2, &l->hot));
        HL_TRY(look_at_cold(v));
        l->known = true;
        for (int i = SCRATCH_HOT; i < SCRATCH_COLD && l->hot.good == l->hot.all; i++)
            if (!policy_is_on(v))
                HL_TRY(order_to_reader(v, &v->shards[i]));
        l->placed = l->hot.good == l->hot.all;
        l->placed_ns = hl_now_ns();
        if (l->placed)
            HL_TRY(verify_hot(v, HL_API_TIER_L2, &l->hot));
    }
    return l->placed ? HL_OK
                     : hl_fail(HL_EIO, "the policy does not bring the shards that ranks "
                                       "read to their L2");
}

hl_status row_localize(struct validation *v, struct found *f)
{
    if (!policy_may_run(v, f))
        return HL_OK;
    hl_status st = policy_place(v);
    const struct localized *l = &v->local;
    if (!l->known)
        return st;
    found_text(v, f,
               "%u of %u shards that a rank on %s has read %u times go to its L2, %u of %u that it "
               "has read once stay in L3%s",
               l->hot.good, l->hot.all, reader_of(v)->name, l->accesses, l->cold.good, l->cold.all,
               policy_is_on(v) ? "" : "; decided, and then ordered: placement.policy is observe");
    found_judge(
        f, hl_tally_pct((struct hl_tally){l->hot.good + l->cold.good, l->hot.all + l->cold.all}));
    return HL_OK;
}

/* ---- the watermarks of L1 -------------------------------------------------------------------- */

double policy_l1_pct(const struct validation *v, uint64_t used)
{
    return 100.0 * (double)used / (double)reader_of(v)->l1_bytes;
}

hl_status row_low_water(struct validation *v, struct found *f)
{
    uint64_t used = 0;
    struct hl_tally tally = {0};
    if (!policy_has_l1(v, f))
        return HL_OK;
    HL_TRY(facts_l1_used(v, reader_of(v), &used));
    double pct = policy_l1_pct(v, used);
    if (pct >= v->facts.low_pct)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM,
                             "L1 of %s is %.1f %% used, not below %.4g %%", reader_of(v)->name, pct,
                             v->facts.low_pct);
    HL_TRY(policy_place(v));
    uint64_t settled = v->local.placed_ns + v->facts.residence_ms * HL_NS_PER_MS;
    uint64_t now = hl_now_ns();
    if (!policy_has_time(v, f, settled > now ? (settled - now) / HL_NS_PER_MS : 0))
        return HL_OK;
    HL_TRY(await_hot(v, HL_API_TIER_L1, &tally));
    if (policy_is_on(v) && tally.good == tally.all)
        HL_TRY(verify_hot(v, HL_API_TIER_L1, &tally));
    found_text(v, f, "L1 of %s is %.1f %% used: %u of %u hot shards of its L2 go there%s",
               reader_of(v)->name, pct, tally.good, tally.all, how_far(v));
    found_judge(f, hl_tally_pct(tally));
    return HL_OK;
}

/* The shards that fill L1, hot ones first, so that they have been there longest. */
struct filled {
    struct hl_l1_shard shards[SCRATCH_SMALL];
    int kinds[SCRATCH_SMALL];
    size_t count;
    uint64_t bytes;
    bool begun; /* one has left, so stabilities are from before that */
};

static hl_status fill_l1(struct validation *v, struct filled *l1)
{
    for (int i = SCRATCH_HOT; i < SCRATCH_SMALL; i++) {
        struct hl_api_copy copy;
        if (v->shards[i].id[0] == '\0')
            continue;
        HL_TRY(order_copy(v, &v->shards[i], reader_of(v), HL_API_TIER_L1, HL_API_OPERATION_READ,
                          &copy));
        l1->kinds[l1->count] = i;
        l1->shards[l1->count].set = i >= SCRATCH_COLD;
        l1->shards[l1->count++].bytes = v->shards[i].size;
        l1->bytes += v->shards[i].size;
    }
    return HL_OK;
}

/* Looks at all shards before the stored stabilities change. */
static hl_status look_at_filled(struct validation *v, struct filled *l1)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    double stability[SCRATCH_SMALL];
    bool any = false;
    for (size_t i = 0; i < l1->count; i++) {
        struct hl_api_shard_placement p;
        HL_TRY(policy_look(v, &v->shards[l1->kinds[i]], &arena, &p));
        bool relieves = strcmp(p.decision.reason, hl_life_event_text(HL_LIFE_ON_PRESSURE)) == 0;
        l1->shards[i].leaves = relieves || (policy_is_on(v) && p.tier != HL_API_TIER_L1);
        stability[i] = p.stability;
        any |= l1->shards[i].leaves;
    }
    for (size_t i = 0; i < l1->count && !l1->begun; i++)
        if (!any || !policy_is_on(v))
            l1->shards[i].stability = stability[i];
    l1->begun |= any && policy_is_on(v);
    return HL_OK;
}

static hl_status await_relief(struct validation *v, struct filled *l1, uint64_t used, uint64_t high,
                              bool *relieved)
{
    for (;;) {
        uint64_t now_used = 0;
        HL_TRY(look_at_filled(v, l1));
        HL_TRY(facts_l1_used(v, reader_of(v), &now_used));
        *relieved = hl_l1_is_relieved(l1->shards, l1->count, used, high) &&
                    (!policy_is_on(v) || now_used <= high);
        if (*relieved)
            return HL_OK;
        hl_status st = validate_pause(v);
        if (st == HL_ETIMEDOUT)
            return HL_OK; /* the figure shows it */
        HL_TRY(st);
    }
}

hl_status policy_empty_l1(struct validation *v)
{
    for (int i = SCRATCH_HOT; i < SCRATCH_SMALL; i++) {
        if (v->shards[i].id[0] == '\0')
            continue;
        hl_status st = order_drop(v, &v->shards[i], reader_of(v), HL_API_TIER_L1);
        for (; st == HL_ECONFLICT || st == HL_EBUSY;
             st = order_drop(v, &v->shards[i], reader_of(v), HL_API_TIER_L1))
            HL_TRY(validate_pause(v)); /* it is being moved */
        if (st != HL_OK && st != HL_ENOENT)
            return st;
    }
    return HL_OK;
}

static hl_status relieve_l1(struct validation *v, struct found *f)
{
    struct filled l1 = {0};
    uint64_t used = 0, high = (uint64_t)((double)reader_of(v)->l1_bytes * v->facts.high_pct / 100);
    bool relieved = false;
    unsigned leaving[2] = {0};
    HL_TRY(fill_l1(v, &l1));
    HL_TRY(facts_l1_used(v, reader_of(v), &used));
    used = used > l1.bytes ? used : l1.bytes; /* some may have left already */
    if (used <= high)
        return hl_fail(HL_EIO, "L1 of %s could not be filled above %.4g %%: %.1f %% is used",
                       reader_of(v)->name, v->facts.high_pct, policy_l1_pct(v, used));
    HL_TRY(await_relief(v, &l1, used, high, &relieved));
    for (size_t i = 0; i < l1.count; i++)
        leaving[l1.shards[i].set] += l1.shards[i].leaves;
    found_text(v, f,
               "%.1f %% of L1 of %s is used: %u shards of the set that was read seldom leave, %u "
               "of the one that was read often%s",
               policy_l1_pct(v, used), reader_of(v)->name, leaving[1], leaving[0], how_far(v));
    found_judge(f, relieved ? 100 : 0);
    return HL_OK;
}

hl_status row_high_water(struct validation *v, struct found *f)
{
    if (!policy_has_l1(v, f))
        return HL_OK;
    if (v->no_fill != NULL)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM, "%s", v->no_fill);
    HL_TRY(policy_place(v));
    hl_status st = relieve_l1(v, f);
    if (st == HL_ECANCELED)
        return st;
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", st != HL_OK ? hl_error_text() : "");
    v->row_end_ns = hl_now_ns() + EMPTY_MS * HL_NS_PER_MS; /* the row's own time may be over */
    hl_status emptied = policy_empty_l1(v);
    return st != HL_OK ? hl_fail(st, "%s", text) : emptied;
}
