/* core/job/gang.h - a job whose containers are pods of Kubernetes: what a pod says of its
 * container, when its node counts as lost, and which request comes next.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   attempts count from 1, 0 = none; ns of a clock that begins above 0.
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
    HL_POD_LOST,     /* as it says itself */
    HL_POD_REPLACED, /* by one that has not begun: the container's process is gone */
    HL_POD_NEWS,     /* its state is the container's next one */
};

/* have: the container's state. pod: of the pod now (WANTED: it waits; LOST: not by its program);
 * counts when it is there. */
enum hl_pod_turn hl_pod_judge(enum hl_api_container_state have, bool is_there,
                              enum hl_api_container_state pod);

/* The gang is to be there: as long as its pods may run. */
bool hl_gang_is_up(enum hl_api_job_state state);

/* What is known of one attempt. */
struct hl_gang_attempt {
    int attempt;
    bool there;   /* its Job, as the watch has shown */
    bool created; /* by us; the watch need not have shown it yet */
    bool deleted; /* by us */
    bool made;    /* it was there once, as the record of its job says */
    bool over;    /* it has succeeded and was kept for as long as it is to be, by us */
};

/* The attempt's Job must go: it is another than the job's now, or the job needs none. */
bool hl_gang_goes(const struct hl_gang_attempt *a, const struct hl_jobrun *run);
/* While stopping: a container without a pod has ended, for nobody makes the pod again. */
bool hl_gang_has_ended(const struct hl_gang_attempt *a);
/* Its Job went while nobody looked: whether its ranks have finished is not known. For a Controller
 * that comes back; a Job that was never made has had no ranks. */
bool hl_gang_vanished(const struct hl_gang_attempt *a, const struct hl_jobrun *run, bool has_pods);

/* A node as its condition Ready has it. */
struct hl_gang_node {
    bool silent; /* Unknown: its kubelet is not heard; or the node was removed */
    uint64_t since_ns;
};

/* Its pods count as lost. after_ns: how long it may be silent. */
bool hl_gang_node_lost(const struct hl_gang_node *node, uint64_t after_ns, uint64_t now_ns);

/* While stopping: a pod of a Job that is gone. Only its kubelet says that it has ended. */
struct hl_gang_ending {
    uint64_t gone_ns;  /* when the Job was seen to be gone */
    uint64_t grace_ns; /* what the pod's ranks have to end */
    bool node_lost;
};

enum hl_pod_end {
    HL_POD_END_WAIT,
    HL_POD_END_FORCE,   /* it is deleted without its kubelet */
    HL_POD_END_GIVE_UP, /* the job goes on without it */
};

/* How long a kubelet has to say so beside the grace, and then the API server to delete it. */
#define HL_GANG_CONFIRM_NS (30 * HL_NS_PER_S)

enum hl_pod_end hl_gang_pod_end(const struct hl_gang_ending *e, uint64_t now_ns);

/* Its Job has come to an end that no pod explains. The watch of pods may be behind that of Jobs,
 * and a pod that failed explains its Job's end: the attempt fails when this lasts for so long. */
#define HL_GANG_TROUBLE_NS (3 * HL_NS_PER_S)

/* True: it fails now. *since_ns: since when, 0 = there is no trouble. */
bool hl_gang_trouble(uint64_t *since_ns, bool has_trouble, uint64_t now_ns);

/* What was done for the job's attempt. */
struct hl_gang_done {
    bool maps_sent, table_sent, logs_kept;
    bool table_is_ours; /* else a controller of the devices' maker writes it */
};

/* Without its ConfigMaps no rank begins, and they come after the record: so there is one of each
 * gang whose ranks have begun. */
enum hl_gang_step {
    HL_GANG_REST,
    HL_GANG_CREATE,
    HL_GANG_RECORD, /* that its Job is made */
    HL_GANG_PUT_MAPS,
    HL_GANG_PUT_TABLE,
    HL_GANG_KEEP_LOGS,
};

/* The next request, when no attempt has to go. */
enum hl_gang_step hl_gang_next(const struct hl_jobrun *run, const struct hl_gang_attempt *now,
                               const struct hl_gang_done *done);

#endif
