#include "core/placement/params.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/text.h"

enum param_kind { INT, DURATION, NUMBER, PERCENT }; /* types of values in HL_POLICY_MAP */

struct param_row {
    const char *name;
    size_t offset;
    enum param_kind kind;
    const char *text;
    double least, most;
};

#define X(kind, field, name, flag, text, least, most, help)                                        \
    {name, offsetof(struct hl_placement_params, field), (kind), (text), (least), (most)},
static const struct param_row rows[] = {HL_POLICY_MAP(X)};
#undef X

/* Counts and durations are integers. */
static bool is_integer(const struct param_row *row)
{
    return row->kind == INT || row->kind == DURATION;
}

static int64_t *integer_of(const struct hl_placement_params *params, const struct param_row *row)
{
    return (int64_t *)((char *)params + row->offset);
}

static double *number_of(const struct hl_placement_params *params, const struct param_row *row)
{
    return (double *)((char *)params + row->offset);
}

/* Can't fail: a test parses the defaults of all rows. */
static int64_t default_integer(const struct param_row *row)
{
    uint64_t value = 0;
    bool good = row->kind == INT ? hl_parse_number(row->text, INT64_MAX, &value)
                                 : hl_parse_duration_ms(row->text, &value) == HL_OK;
    return good ? (int64_t)value : -1;
}

void hl_placement_params_init(struct hl_placement_params *params)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        if (is_integer(&rows[i]))
            *integer_of(params, &rows[i]) = default_integer(&rows[i]);
        else
            *number_of(params, &rows[i]) = strtod(rows[i].text, NULL);
    }
}

/* `low` must be below `high`: if they were equal, every access would cause a move. */
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
        const char *unit = row->kind == DURATION ? " ms" : "";
        double value = is_integer(row) ? (double)*integer_of(params, row) : *number_of(params, row);
        if (!(value >= row->least && value <= row->most)) /* also rejects NaN */
            return hl_fail(HL_EINVAL, "%s is %g%s: it must be a number from %g to %g%s", row->name,
                           value, unit, row->least, row->most, unit);
    }
    if (!(params->stability_half > 0))
        return hl_fail(HL_EINVAL, "policy.stability_half is 0: it must be above 0");
    if (params->alpha == 0 && params->beta == 0)
        return hl_fail(HL_EINVAL, "policy.alpha and policy.beta are both 0: no shard would ever "
                                  "have any heat; raise one of them");
    HL_TRY(check_order("policy.low_pct", params->low_pct, "policy.high_pct", params->high_pct));
    return check_order("policy.cool_heat", params->cool_heat, "policy.warm_heat",
                       params->warm_heat);
}
