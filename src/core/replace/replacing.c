#include "core/replace/replacing.h"

#include <signal.h>
#include <stddef.h>

#define EX_FIRST 64 /* sysexits.h */
#define EX_LAST  78

enum hl_exit_kind hl_exit_kind_of(int code, int signal, bool oom)
{
    if (signal != 0)
        return oom && signal == SIGKILL ? HL_EXIT_MEMORY : HL_EXIT_SIGNAL;
    if (code == 0)
        return HL_EXIT_DONE;
    bool user = code == 2 || code == 126 || code == 127 || (code >= EX_FIRST && code <= EX_LAST);
    return user ? HL_EXIT_USER : HL_EXIT_PROGRAM;
}

const char *hl_exit_kind_name(enum hl_exit_kind kind)
{
    static const char *const names[] = {
        [HL_EXIT_DONE] = "done",     [HL_EXIT_USER] = "mistake",  [HL_EXIT_PROGRAM] = "exit",
        [HL_EXIT_SIGNAL] = "signal", [HL_EXIT_MEMORY] = "memory",
    };
    return names[kind];
}

static int64_t wait_of(int fruitless)
{
    int64_t ms = fruitless > 0 ? HL_REPLACE_WAIT_MS : 0;
    for (int i = 1; i < fruitless && ms < HL_REPLACE_WAIT_MAX_MS; i++)
        ms *= 2;
    return ms < HL_REPLACE_WAIT_MAX_MS ? ms : HL_REPLACE_WAIT_MAX_MS;
}

bool hl_replace_next(struct hl_replace_count *count, const struct hl_replace_rule *rule,
                     enum hl_exit_kind kind, bool made_steps, int64_t now_ms, int64_t *wait_ms)
{
    bool first = count->used == 0;
    if (kind == HL_EXIT_DONE || kind == HL_EXIT_USER)
        return false;
    if (!first && now_ms - count->last_ms >= rule->stable_ms) {
        *count = (struct hl_replace_count){0};
        first = true;
    }
    if (count->used >= rule->max)
        return false;
    count->fruitless = first || made_steps ? 0 : count->fruitless + 1;
    count->used++;
    count->last_ms = now_ms;
    *wait_ms = wait_of(count->fruitless);
    return true;
}
