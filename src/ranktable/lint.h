/* ranktable/lint.h - finds faults in a rank table, or in the manifest of a job that needs one, for
 * the collective library of one chip. Each fault is reported as one sentence.
 *
 * Rules: HCCL's "rank table" chapters for A2, A3 and Ascend 950, what its parser refuses
 * (topoinfo_ranktableConcise.cc), and MindCluster's parameters of a Volcano Job. docs/ranktable.md
 * names the sources.
 *
 * Owns:    the text of a report; the input is borrowed.
 * Threads: any. Pure.
 * Errors:  HL_ENOMEM. Faults of the input are in the report.
 * Units:   none.
 * Limits:  HL_RANKTABLE_FAULTS_MAX sentences; further faults are counted.
 */
#ifndef HL_RANKTABLE_LINT_H
#define HL_RANKTABLE_LINT_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

#define HL_RANKTABLE_FAULTS_MAX 100

enum hl_ranktable_chip {
    HL_RANKTABLE_A2, /* Ascend 910B: format 1.0 */
    HL_RANKTABLE_A3, /* Ascend 910C in super pods: 1.2, or 1.0 for servers outside of one */
    HL_RANKTABLE_A5, /* Ascend 950: 2.0 */
};

struct hl_ranktable_report {
    char *text; /* one sentence per line; never NULL */
    size_t faults;
    size_t servers, devices; /* number of those read */
};

hl_status hl_ranktable_chip_parse(const char *name, enum hl_ranktable_chip *out) HL_CHECK;
/* Checks a table: the file that RANK_TABLE_FILE names, or the text of hccl.json in a ConfigMap. */
hl_status hl_ranktable_lint(enum hl_ranktable_chip chip, const char *text, size_t len,
                            struct hl_ranktable_report *out) HL_CHECK;
/* Checks the objects of a manifest, in their order: a job and the ConfigMap for its table. */
hl_status hl_ranktable_lint_job(enum hl_ranktable_chip chip, const json_t *const *objects,
                                size_t count, struct hl_ranktable_report *out) HL_CHECK;
void hl_ranktable_report_fini(struct hl_ranktable_report *r);

#endif
