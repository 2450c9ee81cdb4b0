#include "whatif/whatif.h"

#include <math.h>
#include <string.h>

#include "whatif/bound.h"
#include "whatif/placed.h"
#include "whatif/tiers.h"

static const char *const names[] = {
#define X(name, text) [HL_WHATIF_##name] = (text),
    HL_WHATIF_MAP(X)
#undef X
};

const char *hl_whatif_policy_name(enum hl_whatif_policy policy)
{
    return names[policy];
}

bool hl_whatif_policy_find(const char *name, enum hl_whatif_policy *out)
{
    for (unsigned i = 0; i < HL_WHATIF_POLICIES; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum hl_whatif_policy)i;
            return true;
        }
    return false;
}

static hl_status check_world(const struct hl_whatif_world *w)
{
    static const char *const paths[HL_MOVE_PATHS] = {"inside", "migration", "backbone", "archive"};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        if (!(w->rates[i] >= 1) || isinf(w->rates[i]))
            return hl_fail(HL_EINVAL,
                           "the rate of path %s is %g bytes per second: it must be at least 1",
                           paths[i], w->rates[i]);
    if (w->pass_ms < 1)
        return hl_fail(HL_EINVAL, "a pass every %lld ms: it must be at least 1",
                       (long long)w->pass_ms);
    const double shares[] = {w->keep_pct, w->keep_l1_pct};
    for (unsigned i = 0; i < HL_ARRAY_LEN(shares); i++)
        if (!(shares[i] >= 0 && shares[i] <= 100))
            return hl_fail(
                HL_EINVAL,
                "%g %% of a node's memory for copies that reads leave: it must be 0 to 100",
                shares[i]);
    return hl_placement_params_check(&w->params);
}

static hl_status run_checked(const struct hl_access_trace *trace,
                             const struct hl_whatif_world *world, enum hl_whatif_policy policy,
                             struct hl_whatif_result *out)
{
    switch (policy) {
    case HL_WHATIF_HELIOS:
        return hl_placed_run(trace, world, out);
    case HL_WHATIF_OPTIMAL:
        return hl_bound_run(trace, world, out);
    case HL_WHATIF_LRU:
        return hl_tiers_run(trace, world, HL_CACHE_LRU, out);
    case HL_WHATIF_LFU:
        return hl_tiers_run(trace, world, HL_CACHE_LFU, out);
    case HL_WHATIF_SIEVE:
        return hl_tiers_run(trace, world, HL_CACHE_SIEVE, out);
    case HL_WHATIF_S3FIFO:
        return hl_tiers_run(trace, world, HL_CACHE_S3FIFO, out);
    case HL_WHATIF_WTINYLFU:
        return hl_tiers_run(trace, world, HL_CACHE_WTINYLFU, out);
    case HL_WHATIF_GDSF:
        return hl_tiers_run(trace, world, HL_CACHE_GDSF, out);
    default:
        return hl_tiers_run(trace, world, HL_CACHE_STATIC, out);
    }
}

hl_status hl_whatif_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                        enum hl_whatif_policy policy, struct hl_whatif_result *out)
{
    HL_TRY(check_world(world));
    if (trace->count == 0)
        return hl_fail(HL_EINVAL, "the trace has no accesses");
    return run_checked(trace, world, policy, out);
}
