#include "core/placement/params.h"

#include <stdbool.h>
#include <stddef.h>

#define SECOND_MS INT64_C(1000)
#define HOUR_MS   (3600 * SECOND_MS)
#define DAY_MS    (24 * HOUR_MS)

/* One row per parameter; integers are counts and durations in ms. */
struct param_row {
    const char *name; /* as the option will be called */
    size_t offset;
    bool is_integer;
    double value, min, max;
};

#define NUMBER(field, value, min, max)                                                             \
    {                                                                                              \
        "policy." #field, offsetof(struct hl_placement_params, field), false, (value), (min),      \
            (max)                                                                                  \
    }
#define INTEGER(field, value, min, max)                                                            \
    {                                                                                              \
        "policy." #field, offsetof(struct hl_placement_params, field), true, (value), (min), (max) \
    }

static const struct param_row rows[] = {
    INTEGER(window_ms, 300 * SECOND_MS, SECOND_MS, DAY_MS),
    INTEGER(tau_ms, 120 * SECOND_MS, SECOND_MS, DAY_MS),
    NUMBER(alpha, 0.7, 0, 1000),
    NUMBER(beta, 0.3, 0, 1000),
    NUMBER(stability_half, 20, 1e-3, 1e9),
    INTEGER(stability_tau_ms, 600 * SECOND_MS, SECOND_MS, 30 * DAY_MS),
    INTEGER(fluidity_tau_ms, HOUR_MS, SECOND_MS, 30 * DAY_MS),
    NUMBER(fluidity_high, 3, 0, 1e9),
    NUMBER(high_pct, 85, 1, 100),
    NUMBER(low_pct, 70, 0, 100),
    NUMBER(warm_heat, 0.15, 0, 1e9),
    NUMBER(cool_heat, 0.05, 0, 1e9),
    NUMBER(migrate_base, 20, 1, 1e9),
    NUMBER(spread_accesses, 5, 1, 1e9),
    INTEGER(spread_servers, 3, 2, 3),
    NUMBER(recall_share, 0.5, 0, 1),
    INTEGER(residence_ms, 60 * SECOND_MS, 0, DAY_MS),
    INTEGER(archive_ms, HOUR_MS, SECOND_MS, 365 * DAY_MS),
    INTEGER(flap_ms, 300 * SECOND_MS, 0, DAY_MS),
};

static int64_t *integer_of(const struct hl_placement_params *params, const struct param_row *row)
{
    return (int64_t *)((char *)params + row->offset);
}

static double *number_of(const struct hl_placement_params *params, const struct param_row *row)
{
    return (double *)((char *)params + row->offset);
}

void hl_placement_params_init(struct hl_placement_params *params)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        if (rows[i].is_integer)
            *integer_of(params, &rows[i]) = (int64_t)rows[i].value;
        else
            *number_of(params, &rows[i]) = rows[i].value;
    }
}

/* `low` is below `high`: with both the same, every access would move something. */
static hl_status check_order(const char *low_name, double low, const char *high_name, double high)
{
    if (low < high)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s %g is not below %s %g: lower the first or raise the second",
                   low_name, low, high_name, high);
}

hl_status hl_placement_params_check(const struct hl_placement_params *params)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct param_row *row = &rows[i];
        double value = row->is_integer ? (double)*integer_of(params, row) : *number_of(params, row);
        if (!(value >= row->min && value <= row->max)) /* NaN, too */
            return hl_fail(HL_EINVAL, "%s is %g: it must be a number from %g to %g", row->name,
                           value, row->min, row->max);
    }
    if (params->alpha == 0 && params->beta == 0)
        return hl_fail(HL_EINVAL, "policy.alpha and policy.beta are both 0: no shard would ever "
                                  "have any heat; raise one of them");
    HL_TRY(check_order("policy.low_pct", params->low_pct, "policy.high_pct", params->high_pct));
    return check_order("policy.cool_heat", params->cool_heat, "policy.warm_heat",
                       params->warm_heat);
}
