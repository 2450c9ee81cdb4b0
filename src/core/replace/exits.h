/* core/replace/exits.h - why a process or a gang ended, and what a job wants done about it.
 *
 * A failure has one kind (enum hl_api_failure_kind). A job file says by `onFailure` what follows
 * from a kind, or from one exit code, which comes before its kind. Where it does not say, a mistake
 * ends the job, for another start makes it again, and everything else counts.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL says what of a rule is wrong.
 * Units:   none.
 * Limits:  exit codes 0 to 255.
 */
#ifndef HL_CORE_REPLACE_EXITS_H
#define HL_CORE_REPLACE_EXITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

struct hl_exit {
    int code, signal; /* signal: that ended it, 0 = none */
    bool oom;         /* the kernel has killed processes of its group for want of memory */
    bool saving;      /* it was writing a version */
};

/* UNSAID: it has not failed. */
enum hl_api_failure_kind hl_exit_kind_of(const struct hl_exit *e);

enum hl_failure_then {
    HL_FAILURE_UNSAID,
    HL_FAILURE_FAIL,   /* nothing is tried again */
    HL_FAILURE_COUNT,  /* again, as long as the budget lasts */
    HL_FAILURE_IGNORE, /* again, whatever was used of it */
};

/* Zero: the job file says nothing. */
struct hl_failure_rules {
    uint8_t kind[HL_API_FAILURE_KIND_COUNT]; /* enum hl_failure_then */
    uint8_t code[256];
};

/* A row of onFailure: "memory" or "42", and "fail", "count" or "ignore". */
hl_status hl_failure_rules_set(struct hl_failure_rules *rules, const char *key,
                               const char *then) HL_CHECK;
/* Never UNSAID. code: 0 where it ended by a signal, or never began. */
enum hl_failure_then hl_failure_rules_then(const struct hl_failure_rules *rules,
                                           enum hl_api_failure_kind kind, int code);

#define HL_FAILURE_RULE_MAX 16 /* bytes of a key or a word, with its NUL */

/* Row after row, from *at = 0 on; false: there are no more. */
bool hl_failure_rules_next(const struct hl_failure_rules *rules, size_t *at,
                           char key[HL_FAILURE_RULE_MAX], const char **then);

#define HL_FAILURE_RULES_TEXT_MAX 4096

/* "memory=fail 42=ignore", as ranks' nodes get it; and back. */
void hl_failure_rules_print(const struct hl_failure_rules *rules, char *out, size_t cap);
hl_status hl_failure_rules_parse(const char *text, struct hl_failure_rules *out) HL_CHECK;

#endif
