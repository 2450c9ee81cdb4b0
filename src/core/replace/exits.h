/* core/replace/exits.h - classifies why a process or a gang ended, and looks up what the job wants
 * done about it.
 *
 * A failure has one kind (enum hl_api_failure_kind). With `onFailure` a job file says what happens
 * after a failure of that kind, or after one exit code; a rule for an exit code takes precedence
 * over the rule for its kind. Without a rule, a mistake ends the job, because another start would
 * only repeat it; every other failure counts against the restart budget.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL says what is wrong with a rule.
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
    int code, signal; /* signal that ended it; 0 = none */
    bool oom;         /* the kernel's OOM killer has killed processes of its cgroup */
    bool saving;      /* it was writing a model version */
};

/* The kind of failure; UNSAID if it has not failed. */
enum hl_api_failure_kind hl_exit_kind_of(const struct hl_exit *e);

enum hl_failure_then {
    HL_FAILURE_UNSAID,
    HL_FAILURE_FAIL,   /* the job fails; no retry */
    HL_FAILURE_COUNT,  /* retry as long as the restart budget lasts */
    HL_FAILURE_IGNORE, /* retry, without using the budget */
};

/* All zero: the job file has no rules. */
struct hl_failure_rules {
    uint8_t kind[HL_API_FAILURE_KIND_COUNT]; /* enum hl_failure_then */
    uint8_t code[256];
};

/* Adds one row of onFailure. key: "memory" or "42"; then: "fail", "count" or "ignore". */
hl_status hl_failure_rules_set(struct hl_failure_rules *rules, const char *key,
                               const char *then) HL_CHECK;
/* What follows from a failure; never UNSAID. code: 0 if a signal ended the process, or it never
 * started. */
enum hl_failure_then hl_failure_rules_then(const struct hl_failure_rules *rules,
                                           enum hl_api_failure_kind kind, int code);

#define HL_FAILURE_RULE_MAX 16 /* bytes of a key or a word, including its NUL */

/* Iterates over the rows; start with *at = 0. False: there are no more. */
bool hl_failure_rules_next(const struct hl_failure_rules *rules, size_t *at,
                           char key[HL_FAILURE_RULE_MAX], const char **then);

#define HL_FAILURE_RULES_TEXT_MAX 4096

/* Prints the rules as "memory=fail 42=ignore", the form in which they are sent to the ranks' nodes;
 * parse reads it back. */
void hl_failure_rules_print(const struct hl_failure_rules *rules, char *out, size_t cap);
hl_status hl_failure_rules_parse(const char *text, struct hl_failure_rules *out) HL_CHECK;

#endif
