/* ranktable/pod_private.h - the view of a pod that pod.c reads, whatever its encoding.
 *
 * Texts are borrowed from the input and not NUL-terminated; `at` is NULL for an absent one.
 * Threads: any.
 */
#ifndef HL_RANKTABLE_POD_PRIVATE_H
#define HL_RANKTABLE_POD_PRIVATE_H

#include "base/buf.h"
#include "ranktable/pod.h"

struct pod_text {
    const char *at;
    size_t len;
};

/* Labels and annotations that are read; some can be either. */
enum pod_key {
    KEY_DEVICES, /* the newest of three */
    KEY_DEVICES_NPU,
    KEY_DEVICES_ATLAS,
    KEY_RANK,
    KEY_LABEL,
    KEY_VOLCANO_JOB, /* the job's name is the first of these three */
    KEY_DEPLOYMENT,
    KEY_BATCH_JOB,
    KEY_TASK,
    KEY_TASK_INDEX,
    KEY_VERSION,
    KEY_INDEX,
    POD_KEYS,
};

extern const char *const pod_keys[POD_KEYS];

struct pod_view {
    struct pod_text name, ns, uid, ip;
    struct pod_text labels[POD_KEYS], annotations[POD_KEYS];
    struct hl_buf owners; /* as in struct hl_ranktable_pod */
    char born[32];
    bool gone;
    bool asks; /* one of its containers requests devices */
};

#define POD_VIEW                                                                                   \
    {                                                                                              \
        .owners = HL_BUF(65536)                                                                    \
    }

/* Whether this is a resource of the device plugin, and its amount is not 0. */
bool pod_is_device(struct pod_text resource, struct pod_text amount);
/* Makes the pod. The view is empty afterwards. */
hl_status pod_of_view(struct pod_view *v, struct hl_ranktable_pod **out) HL_CHECK;

#endif
