/* ranktable/pod.h - what a rank table needs of a pod: a tenth of what the API server sends.
 *
 * Owns:    all texts, the instance.
 * Threads: any. Pure.
 * Errors:  HL_ENOMEM. What is wrong with the pod itself is in its `st` and `reason`.
 * Units:   none.
 * Limits:  those of annotation.h.
 */
#ifndef HL_RANKTABLE_POD_H
#include <stdbool.h>
#define HL_RANKTABLE_POD_H

#include "ranktable/table.h"

#define HL_RANKTABLE_LABEL       "ring-controller.atlas"
#define HL_RANKTABLE_LABEL_VALUE "ascend-910" /* the default */

struct hl_ranktable_pod {
    char *uid, *ns; /* the block of all texts down to `owners` begins at uid */
    char *job;      /* the job's name, from the labels; NULL = none */
    char *label;    /* value of HL_RANKTABLE_LABEL; NULL = none */
    char *task;     /* volcano.sh/task-spec; NULL = none */
    char *owners;   /* uids, each with a newline before and after */
    char born[32];  /* RFC 3339 in UTC, which sorts as text */
    bool gone;      /* is being deleted, or has failed */
    bool has_version;
    int64_t version;           /* volcano.sh/job-version; -1 = no number */
    int64_t task_index, index; /* Volcano's, and that of a batch Job; -1 = none */
    hl_status st;              /* HL_ENOENT: no annotation yet; HL_EINVAL: it can't be used */
    char *reason;
    struct hl_ranktable_instance instance; /* no group or place; index only if requested */
};

/* The members of a pod, and of the objects in it, that are read; those with a '*' are kept
 * whole. */
extern const char *const hl_ranktable_pod_members[];

hl_status hl_ranktable_pod_read(const json_t *from, struct hl_ranktable_pod **out) HL_CHECK;
/* The same for a pod in Protocol Buffers. HL_EPROTO: the bytes are not a pod. */
hl_status hl_ranktable_pod_decode(const char *bytes, size_t len,
                                  struct hl_ranktable_pod **out) HL_CHECK;
/* Orders by age, the oldest first; for qsort, with strcmp's result. */
int hl_ranktable_pod_order(const struct hl_ranktable_pod *a, const struct hl_ranktable_pod *b);
/* True: the table is the same with either of them. */
bool hl_ranktable_pod_equal(const struct hl_ranktable_pod *a, const struct hl_ranktable_pod *b);
/* NULL is fine. */
void hl_ranktable_pod_free(struct hl_ranktable_pod *p);

#endif
