/* core/job/gang.h - decisions about a job whose containers are Kubernetes pods: what a pod's state
 * means for its container, when a node counts as lost, and which API request comes next.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   attempts count from 1, 0 = none; ns of a clock that starts above 0.
 * Limits:  none.
 */
#ifndef HL_CORE_JOB_GANG_H
#define HL_CORE_JOB_GANG_H

#include <stdbool.h>

#include "base/clock.h"
#include "core/job/jobstate.h"

enum hl_pod_turn {
    HL_POD_SAME,
    HL_POD_GONE,
    HL_POD_LOST,     /* the pod itself says so */
    HL_POD_REPLACED, /* by a pod that has not started yet: the container's process is gone */
    HL_POD_NEWS,     /* the pod's state becomes the container's state */
};

/* have: the state recorded for the container. pod: the state of the pod now (WANTED: it waits;
 * LOST: it failed, but not because of its program); ignored unless is_there. */
enum hl_pod_turn hl_pod_judge(enum hl_api_container_state have, bool is_there,
                              enum hl_api_container_state pod);

/* The gang's objects should exist, which is as long as its pods may run. */
bool hl_gang_is_up(enum hl_api_job_state state);

/* What is known about one attempt. */
struct hl_gang_attempt {
    int attempt;
    bool there;   /* its Job exists, according to the watch */
    bool created; /* we created it; the watch may not have shown it yet */
    bool deleted; /* we deleted it */
    bool made;    /* it existed at some time, according to the job's record */
    bool over;    /* it has succeeded, and we have kept it for the configured time */
};

/* The attempt's Job must be deleted: it is not the job's current attempt, or the job needs none. */
bool hl_gang_goes(const struct hl_gang_attempt *a, const struct hl_jobrun *run);
/* While stopping: a container without a pod has ended, because the pod will not be recreated. */
bool hl_gang_has_ended(const struct hl_gang_attempt *a);
/* The attempt's Job disappeared while no Controller was watching, so it is unknown whether its
 * ranks finished. For a restarted Controller; a Job that was never created had no ranks. */
bool hl_gang_vanished(const struct hl_gang_attempt *a, const struct hl_jobrun *run, bool has_pods);

/* A node according to its condition Ready. */
struct hl_gang_node {
    /* Ready is Unknown, because its kubelet does not report; or the node was removed */
    bool silent;
    uint64_t since_ns;
};

/* The node's pods count as lost. after_ns: how long it may be silent. */
bool hl_gang_node_lost(const struct hl_gang_node *node, uint64_t after_ns, uint64_t now_ns);

/* While stopping: a pod whose Job is gone. Only its kubelet can say that it has ended. */
struct hl_gang_ending {
    uint64_t gone_ns;  /* when the Job was found to be gone */
    uint64_t grace_ns; /* time that the pod's ranks have to end */
    bool node_lost;
};

enum hl_pod_end {
    HL_POD_END_WAIT,
    HL_POD_END_FORCE,   /* delete the pod without waiting for its kubelet */
    HL_POD_END_GIVE_UP, /* the job proceeds without waiting for the pod */
};

/* How long a kubelet has to confirm the end, in addition to the grace period; and after that, how
 * long the API server has to delete the pod. */
#define HL_GANG_CONFIRM_NS (30 * HL_NS_PER_S)

enum hl_pod_end hl_gang_pod_end(const struct hl_gang_ending *e, uint64_t now_ns);

/* A Job has ended, but no pod explains why. The pods' watch may lag behind the Jobs' watch, and a
 * failed pod would explain it. So the attempt fails only after this time without an explanation. */
#define HL_GANG_TROUBLE_NS (3 * HL_NS_PER_S)

/* True: the attempt fails now. *since_ns: when the trouble began; 0 = there is none. */
bool hl_gang_trouble(uint64_t *since_ns, bool has_trouble, uint64_t now_ns);

/* What has been done for the job's current attempt. */
struct hl_gang_done {
    bool maps_sent, table_sent, logs_kept;
    bool table_is_ours; /* if false, the device vendor's controller writes it */
};

/* No rank starts without the ConfigMaps, and they are written after the record. So every gang whose
 * ranks have started has a record. */
enum hl_gang_step {
    HL_GANG_REST,
    HL_GANG_CREATE,
    HL_GANG_RECORD, /* record that its Job was created */
    HL_GANG_PUT_MAPS,
    HL_GANG_PUT_TABLE,
    HL_GANG_KEEP_LOGS,
};

/* The next request, when no old attempt has to be deleted. */
enum hl_gang_step hl_gang_next(const struct hl_jobrun *run, const struct hl_gang_attempt *now,
                               const struct hl_gang_done *done);

#endif
