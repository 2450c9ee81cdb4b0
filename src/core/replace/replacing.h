/* core/replace/replacing.h - a rank's process has ended: is another one started in its place, and
 * when?
 *
 * Owns:    nothing.
 * Threads: any. Pure: time is an argument.
 * Errors:  none.
 * Units:   ms of any clock that does not step.
 * Limits:  a wait is at most HL_REPLACE_WAIT_MAX_MS.
 */
#ifndef HL_CORE_REPLACE_REPLACING_H
#define HL_CORE_REPLACE_REPLACING_H

#include <stdbool.h>
#include <stdint.h>

#define HL_REPLACE_WAIT_MS     1000
#define HL_REPLACE_WAIT_MAX_MS 60000

/* Why a process ended, as far as its exit says. */
enum hl_exit_kind {
    HL_EXIT_DONE,    /* code 0 */
    HL_EXIT_USER,    /* a mistake that another start makes again: usage, data, configuration (2, 64
                        to 78 as in sysexits.h), a program that can't be run (126, 127) */
    HL_EXIT_PROGRAM, /* any other code */
    HL_EXIT_SIGNAL,
    HL_EXIT_MEMORY, /* killed for want of memory */
};

/* signal: that ended it, 0 = none. oom: the kernel has killed processes of its group. */
enum hl_exit_kind hl_exit_kind_of(int code, int signal, bool oom);
/* "exit", "signal", ...; static. */
const char *hl_exit_kind_name(enum hl_exit_kind kind);

struct hl_replace_rule {
    int max;           /* replacements within stable_ms; 0 = none */
    int64_t stable_ms; /* without a loss for so long, they count from 0 again */
};

/* Zero-initialise. */
struct hl_replace_count {
    int used;
    int fruitless; /* losses in a row with no step between */
    int64_t last_ms;
};

/* True: replace it after *wait_ms. The first time at once, also when the process had made steps;
 * from then on each wait is twice the one before. */
bool hl_replace_next(struct hl_replace_count *count, const struct hl_replace_rule *rule,
                     enum hl_exit_kind kind, bool made_steps, int64_t now_ms, int64_t *wait_ms);

#endif
