#include "core/placement/budget.h"

#include <math.h>

#define BURST_MS_MAX (60 * INT64_C(1000))

static double bucket_size(const struct hl_budget_limits *limits, unsigned path)
{
    return limits->rates[path] * (double)limits->burst_ms / 1e3;
}

static hl_status check_limits(const struct hl_budget_limits *limits)
{
    static const char *const names[HL_MOVE_PATHS] = {"inside", "migration", "backbone", "archive"};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        if (!(limits->rates[i] >= 0)) /* also rejects NaN */
            return hl_fail(HL_EINVAL,
                           "the budget of path %s is %g bytes per second: it must be 0 or more",
                           names[i], limits->rates[i]);
    if (limits->burst_ms < 1 || limits->burst_ms > BURST_MS_MAX)
        return hl_fail(HL_EINVAL, "a burst of %lld ms: it must be from 1 to %lld",
                       (long long)limits->burst_ms, (long long)BURST_MS_MAX);
    return HL_OK;
}

static void fill_buckets(struct hl_budget *b, int64_t now_ms)
{
    if (now_ms <= b->at_ms)
        return;
    double seconds = (double)(now_ms - b->at_ms) / 1e3;
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        b->bytes[i] = fmin(b->bytes[i] + b->limits.rates[i] * seconds, bucket_size(&b->limits, i));
    b->at_ms = now_ms;
}

hl_status hl_budget_init(struct hl_budget *b, const struct hl_budget_limits *limits, int64_t now_ms)
{
    HL_TRY(check_limits(limits));
    *b = (struct hl_budget){.limits = *limits, .at_ms = now_ms};
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        b->bytes[i] = bucket_size(limits, i);
    return HL_OK;
}

hl_status hl_budget_configure(struct hl_budget *b, const struct hl_budget_limits *limits,
                              int64_t now_ms)
{
    HL_TRY(check_limits(limits));
    fill_buckets(b, now_ms);
    b->limits = *limits;
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        b->bytes[i] = fmin(b->bytes[i], bucket_size(limits, i));
    return HL_OK;
}

void hl_budget_rest(struct hl_budget *b, enum hl_rest why, bool rests)
{
    b->rests = rests ? b->rests | why : b->rests & ~(unsigned)why;
}

void hl_budget_look(struct hl_budget *b, int64_t now_ms, int64_t out[HL_MOVE_PATHS])
{
    fill_buckets(b, now_ms);
    for (unsigned i = 0; i < HL_MOVE_PATHS; i++)
        out[i] = b->rests != 0 ? 0 : b->bytes[i] >= 0x1p62 ? INT64_MAX : (int64_t)b->bytes[i];
}

void hl_budget_take(struct hl_budget *b, enum hl_move_path path, int64_t bytes)
{
    if (!isinf(b->limits.rates[path]))
        b->bytes[path] -= (double)bytes;
}
