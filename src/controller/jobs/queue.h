/* controller/jobs/queue.h - the line of jobs that wait for slots: core/queue decides, and this
 * carries out the decisions. Jobs whose executor has its own queue (Kubernetes) are not in ours.
 *
 * A pass over all jobs is made soon after something has changed. The line is not stored: it follows
 * from the jobs' records.
 *
 * Owns:    struct job_queue, and each job's `shape` and `wait`.
 * Threads: the Controller's loop.
 * Errors:  a failed pass is logged once, and repeated at the next tick.
 * Units:   ms, ns.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_JOBS_QUEUE_H
#define HL_CONTROLLER_JOBS_QUEUE_H

#include "controller/jobs/jobs_private.h"
#include "core/queue/slots.h"

/* What the placement of a gang depends on; jobs with equal values share one. */
struct queue_shape {
    char *key;
    int id;
    int slots;                  /* slots that it needs */
    bool never;                 /* not even the idle cluster has them */
    uint64_t cluster;           /* mark of the cluster for which this was computed */
    uint64_t pass;              /* pass in which `text` was made */
    int met;                    /* and how many reservations the gang would then meet */
    int64_t until_ms;           /* when enough of them have ended; 0 = it does not wait for that */
    enum hl_plan_reason why;    /* why it does not fit */
    int draining;               /* servers that are drained, whatever runs there */
    char text[HL_JOB_TEXT_MAX]; /* the same, in the planner's words */
    UT_hash_handle hh;
};

/* The use of a queue's forgotten jobs, as it counted at some time. */
struct queue_past {
    double used;
    int64_t at_ms;
};

struct job_queue {
    struct hl_queues queues;
    struct queue_shape *shapes;
    uint64_t cluster;       /* mark of the cluster's nodes and slots */
    struct hl_timer *timer; /* until the next pass; NULL: none is wanted */
    uint64_t passes;
    uint64_t ended_ns, cost_ns; /* of the last pass */
    uint64_t processor_ns;
    bool trouble;            /* trouble_is_new */
    int pending;             /* pending jobs after the last pass */
    int fresh;               /* jobs submitted since then */
    int held[HL_QUEUES_MAX]; /* slots held, by queue, before the last pass */
    struct queue_past past[HL_QUEUES_MAX];
};

/* The state of one pass. */
struct queue_run {
    struct hl_controller *c;
    struct job **jobs; /* by gang */
    int count;
    int fresh;   /* jobs that are still being stored; no pass has seen them */
    int told;    /* number of reasons that were written to records */
    bool untold; /* there are more to write */
    struct hl_queue_gang *gangs;
    struct hl_queue_slots slots;
    int used[HL_QUEUES_MAX]; /* slots held, by queue, with those of gangs that start */
    int64_t *windows;        /* distinct start times of node reservations, in order */
    int window_count;
};

/* queue_planner.c */
/* A number that identifies the cluster's nodes and slots, whether free or not; also counts the free
 * slots. */
uint64_t queue_cluster_mark(const struct hl_cluster *cluster, int *free_slots);
/* Distinct start times of reservations that are not over, in order; free(). */
hl_status queue_windows(const struct hl_cluster *cluster, int64_t now_ms, int64_t **out,
                        int *count) HL_CHECK;
/* Slots without which the gang does not start: it takes spare slots only as far as there are any.
 */
int queue_needed_slots(const struct hl_plan *plan);
/* Computes how many slots a job needs in the cluster with this mark. */
hl_status queue_shape_measure(struct job *j, uint64_t mark) HL_CHECK;
/* Why the job does not fit, in the planner's words; computed once per pass for jobs that meet the
 * same number of reservations. */
const char *queue_shape_text(struct job *j, int met);
/* Counts the cluster's slots by their present state, for the API. */
struct hl_api_slot_count_list queue_count_slots(const struct hl_controller *c,
                                                struct hl_arena *arena);

/* queue_use.c */
/* Computes each queue's use, from existing and forgotten jobs. */
void queue_find_used(const struct hl_controller *c, int64_t now_ms, double used[HL_QUEUES_MAX]);
/* The job is about to be forgotten: adds its use to `past`. */
void queue_past_add(const struct job *j, int64_t now_ms, struct queue_past past[HL_QUEUES_MAX]);
/* Adds records for the entries of `past` that differ from the queue's. */
hl_status queue_past_records(const struct hl_controller *c,
                             const struct queue_past past[HL_QUEUES_MAX],
                             struct hl_records *records) HL_CHECK;

/* queue_reason.c: the last verdict in words; "" = none yet. */
void queue_reason(const struct job *j, char *out, size_t cap);
void queue_remedy(const struct job *j, char *out, size_t cap);
/* The job's queue, "" = none of ours; borrowed. */
const char *job_queue_name(const struct job *j);

/* queue_methods.c */
/* Checks that the job's queue exists, and that the job fits into its quota. */
hl_status queue_check(const struct hl_controller *c, const struct hl_job *spec,
                      const struct hl_plan *plan) HL_CHECK;
/* HL_EBUSY: the maximum number of jobs is already waiting. */
hl_status queue_admit(const struct hl_controller *c, const struct hl_job *spec) HL_CHECK;

static inline bool job_is_queued(const struct job *j)
{
    return !j->executor->has_deadlines;
}

static inline int queue_index(const struct job *j)
{
    int q = hl_queues_find(&j->controller->jobs->queue->queues, j->spec.queue);
    return q >= 0 ? q : 0; /* the list of queues was changed since it was submitted */
}

#endif
