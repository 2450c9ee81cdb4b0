#include "core/replace/replacing.h"

static int64_t wait_of(const struct hl_replace_rule *rule, int fruitless)
{
    int64_t most = rule->backoff_max_ms > 0 ? rule->backoff_max_ms : HL_REPLACE_WAIT_MAX_MS;
    int64_t ms = rule->backoff_ms > 0 ? rule->backoff_ms : HL_REPLACE_WAIT_MS;
    if (fruitless == 0)
        return 0;
    for (int i = 1; i < fruitless && ms < most; i++)
        ms *= 2;
    return ms < most ? ms : most;
}

static bool is_stable(const struct hl_replace_count *count, const struct hl_replace_rule *rule,
                      bool made_steps, int64_t now_ms)
{
    return made_steps && rule->stable_ms > 0 && now_ms - count->last_ms >= rule->stable_ms;
}

bool hl_replace_next(struct hl_replace_count *count, const struct hl_replace_rule *rule,
                     enum hl_failure_then then, bool made_steps, int64_t now_ms, int64_t *wait_ms)
{
    if (then == HL_FAILURE_FAIL)
        return false;
    if (is_stable(count, rule, made_steps, now_ms))
        *count = (struct hl_replace_count){0};
    bool counts = then != HL_FAILURE_IGNORE;
    if (counts && count->used >= rule->max)
        return false;
    count->fruitless = count->losses == 0 || made_steps ? 0 : count->fruitless + 1;
    count->losses++;
    count->used += counts;
    count->last_ms = now_ms;
    *wait_ms = wait_of(rule, count->fruitless);
    return true;
}
