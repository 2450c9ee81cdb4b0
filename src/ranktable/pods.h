/* ranktable/pods.h - from a job and its pods, as the Kubernetes API gives them, to a rank table.
 *
 * Level-triggered: decisions depend only on the present state, so a controller can be stopped and
 * started at any time. A table is "completed" only if every replica of every task has a pod of the
 * present incarnation with a valid device annotation. Rules: hccl-controller's user guide, section
 * 3; pod_counts says which pods count.
 *
 * Owns:    nothing; objects are borrowed. A verdict owns its text.
 * Threads: any. Pure.
 * Errors:  HL_ENOMEM. Mistakes of users are no errors: the verdict names them.
 * Units:   none.
 * Limits:  tables of HL_RANKTABLE_BYTES_MAX, as a ConfigMap has 1 MiB; annotations of 64 KiB.
 */
#ifndef HL_RANKTABLE_PODS_H
#define HL_RANKTABLE_PODS_H

#include "ranktable/pod.h"

#define HL_RANKTABLE_KEY        "hccl.json"
#define HL_RANKTABLE_VOLUME     "ascend-910-config"
#define HL_RANKTABLE_BYTES_MAX  1000000
#define HL_RANKTABLE_REASON_MAX 512

enum hl_ranktable_state {
    HL_RANKTABLE_WAITING, /* for pods, or for their annotations */
    HL_RANKTABLE_UNABLE,  /* until an operator fixes what `reason` says */
    HL_RANKTABLE_COMPLETED,
};

struct hl_ranktable_verdict {
    enum hl_ranktable_state state;
    char *text; /* what to write to the ConfigMap; NULL = nothing */
    size_t counted, wanted;
    char reason[HL_RANKTABLE_REASON_MAX]; /* why the table is not completed; "" if it is */
};

enum hl_ranktable_kind { HL_RANKTABLE_VOLCANO, HL_RANKTABLE_BATCH, HL_RANKTABLE_DEPLOYMENT };

struct hl_ranktable_rules {
    const char *label_value; /* of HL_RANKTABLE_LABEL, on job, pods and ConfigMap */
    enum hl_ranktable_format format;
    uint32_t super_pod_servers;
};

/* Writes the name of a job's ConfigMap, which is in the job's namespace. */
void hl_ranktable_config_map(const json_t *job, char *out, size_t cap);

/* pods: can include pods of other jobs. said: HL_RANKTABLE_KEY of the job's ConfigMap, or NULL.
 * Where nothing else decides, devices keep the ranks that they have in `said`. The same text is not
 * written again, because that would only wake its readers. Readers must not use an incomplete
 * table, so all incomplete tables count as the same. */
hl_status hl_ranktable_judge(const struct hl_ranktable_rules *rules, enum hl_ranktable_kind kind,
                             const json_t *job, const struct hl_ranktable_pod *const *pods,
                             size_t count, const char *said,
                             struct hl_ranktable_verdict *out) HL_CHECK;
void hl_ranktable_verdict_fini(struct hl_ranktable_verdict *v);

#endif
