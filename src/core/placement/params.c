#include "core/placement/params.h"

#include <stdbool.h>
#include <stddef.h>

#define SECOND_MS INT64_C(1000)
#define HOUR_MS   (3600 * SECOND_MS)
#define DAY_MS    (24 * HOUR_MS)

/* One row per parameter; integers are counts and durations in ms. Defaults and ranges are those of
 * the options in controller/conf.c, which a test compares. */
struct param_row {
    const char *name; /* of the option */
    size_t offset;
    bool is_integer;
    const char *unit;
    double value, min, max;
};

#define ROW(name, field, is_integer, unit, value, min, max)                                        \
    {                                                                                              \
        "policy." #name, offsetof(struct hl_placement_params, field), (is_integer), (unit),        \
            (value), (min), (max)                                                                  \
    }
#define NUMBER(field, value, min, max)  ROW(field, field, false, "", value, min, max)
#define INTEGER(field, value, min, max) ROW(field, field, true, "", value, min, max)
#define DURATION(name, value, min, max) ROW(name, name##_ms, true, " ms", value, min, max)

static const struct param_row rows[] = {
    DURATION(window, 300 * SECOND_MS, SECOND_MS, DAY_MS),
    DURATION(tau, 120 * SECOND_MS, SECOND_MS, DAY_MS),
    NUMBER(alpha, 0.7, 0, 1000),
    NUMBER(beta, 0.3, 0, 1000),
    NUMBER(stability_half, 20, 1e-3, 1e9),
    DURATION(stability_tau, 600 * SECOND_MS, SECOND_MS, 30 * DAY_MS),
    DURATION(fluidity_tau, HOUR_MS, SECOND_MS, 30 * DAY_MS),
    NUMBER(fluidity_high, 3, 0, 1e9),
    NUMBER(high_pct, 85, 1, 100),
    NUMBER(low_pct, 70, 0, 100),
    NUMBER(warm_heat, 0.15, 0, 1e9),
    NUMBER(cool_heat, 0.05, 0, 1e9),
    NUMBER(migrate_base, 20, 1, 1e9),
    NUMBER(spread_accesses, 5, 1, 1e9),
    INTEGER(spread_servers, 3, 2, 3),
    NUMBER(recall_share, 0.5, 0, 1),
    DURATION(residence, 60 * SECOND_MS, 0, DAY_MS),
    DURATION(archive, HOUR_MS, SECOND_MS, 365 * DAY_MS),
    DURATION(flap, 300 * SECOND_MS, 0, DAY_MS),
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
            return hl_fail(HL_EINVAL, "%s is %g%s: it must be a number from %g to %g%s", row->name,
                           value, row->unit, row->min, row->max, row->unit);
    }
    if (params->alpha == 0 && params->beta == 0)
        return hl_fail(HL_EINVAL, "policy.alpha and policy.beta are both 0: no shard would ever "
                                  "have any heat; raise one of them");
    HL_TRY(check_order("policy.low_pct", params->low_pct, "policy.high_pct", params->high_pct));
    return check_order("policy.cool_heat", params->cool_heat, "policy.warm_heat",
                       params->warm_heat);
}
