/* ranktable/pods.h - from a job and its pods, as the Kubernetes API gives them, to a rank table.
 *
 * Level-triggered: what is decided depends on what there is now and on nothing that was seen
 * before, so a controller may be stopped and started at any time. A table is "completed" only when
 * every replica of every task has a pod of the present incarnation with a device annotation that
 * holds. Rules: hccl-controller's user guide, section 3; which pods count is written at pod_counts.
 *
 * Owns:    nothing; objects are borrowed. A verdict owns its text.
 * Threads: any. Pure.
 * Errors:  none for what users wrote: the verdict says what is wrong. HL_ENOMEM.
 * Units:   none.
 * Limits:  a text of HL_RANKTABLE_BYTES_MAX, as a ConfigMap has 1 MiB; annotations of 64 KiB.
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
    HL_RANKTABLE_UNABLE,  /* until somebody mends what `reason` names */
    HL_RANKTABLE_COMPLETED,
};

struct hl_ranktable_verdict {
    enum hl_ranktable_state state;
    char *text; /* what the ConfigMap is to say; NULL = what it says already */
    size_t counted, wanted;
    char reason[HL_RANKTABLE_REASON_MAX]; /* why it is not completed; "" when it is */
};

enum hl_ranktable_kind { HL_RANKTABLE_VOLCANO, HL_RANKTABLE_BATCH, HL_RANKTABLE_DEPLOYMENT };

struct hl_ranktable_rules {
    const char *label_value; /* of HL_RANKTABLE_LABEL, on job, pods and ConfigMap */
    enum hl_ranktable_format format;
    uint32_t super_pod_servers;
};

/* The name of a job's ConfigMap, which is in its namespace. */
void hl_ranktable_config_map(const json_t *job, char *out, size_t cap);

/* `pods`: of any jobs. `said`: HL_RANKTABLE_KEY of the job's ConfigMap, or NULL. Ranks that it
 * gives to devices stay where nothing else decides. Writing the same again would only wake its
 * readers; as they may use nothing of an incomplete table, any of them says the same as another. */
hl_status hl_ranktable_judge(const struct hl_ranktable_rules *rules, enum hl_ranktable_kind kind,
                             const json_t *job, const struct hl_ranktable_pod *const *pods,
                             size_t count, const char *said,
                             struct hl_ranktable_verdict *out) HL_CHECK;
void hl_ranktable_verdict_fini(struct hl_ranktable_verdict *v);

#endif
