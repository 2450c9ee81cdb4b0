/* ranktable/pod_private.h - what pod.c is given to read, wherever it comes from.
 *
 * Texts are borrowed of what was read, have no 0 behind them, and `at` is NULL when there is none.
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

/* Labels and annotations that are looked at; some may be either. */
enum pod_key {
    KEY_DEVICES, /* the newest of three */
    KEY_DEVICES_NPU,
    KEY_DEVICES_ATLAS,
    KEY_RANK,
    KEY_LABEL,
    KEY_VOLCANO_JOB, /* a job's name, in this order */
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
    bool asks; /* a container of it asks for devices */
};

#define POD_VIEW                                                                                   \
    {                                                                                              \
        .owners = HL_BUF(65536)                                                                    \
    }

/* A resource that its device plugin gives, and how much. */
bool pod_is_device(struct pod_text resource, struct pod_text amount);
/* The view is empty afterwards. */
hl_status pod_of_view(struct pod_view *v, struct hl_ranktable_pod **out) HL_CHECK;

#endif
