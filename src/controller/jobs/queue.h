/* controller/jobs/queue.h - the line of jobs that wait for slots: core/queue decides, and this
 * carries it out. Jobs whose executor has a queue of its own (Kubernetes) are in none of ours.
 *
 * A pass is made soon after something has changed, over all jobs as they are then. Nothing of the
 * line is stored: it follows from the jobs' records.
 *
 * Owns:    struct job_queue, and of each job its `shape` and `wait`.
 * Threads: the Controller's loop.
 * Errors:  a pass that fails is logged once, and made again with the next tick.
 * Units:   ms, ns.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_JOBS_QUEUE_H
#define HL_CONTROLLER_JOBS_QUEUE_H

#include "controller/jobs/jobs_private.h"
#include "core/queue/slots.h"

/* What the place of a gang depends on: jobs with the same have one. */
struct queue_shape {
    char *key;
    int id;
    int slots;                  /* that it needs */
    bool never;                 /* not even the idle cluster has them */
    uint64_t cluster;           /* that this was found out for */
    uint64_t pass;              /* for which `text` was made */
    int met;                    /* and how many reservations the gang would meet */
    int64_t until_ms;           /* when enough of them have ended; 0 = it does not wait for that */
    enum hl_plan_reason why;    /* it does not fit */
    int draining;               /* servers that are drained, whatever runs there */
    char text[HL_JOB_TEXT_MAX]; /* the same, in the planner's words */
    UT_hash_handle hh;
};

/* Of jobs of a queue that were forgotten: what counted of their use at a time. */
struct queue_past {
    double used;
    int64_t at_ms;
};

struct job_queue {
    struct hl_queues queues;
    struct queue_shape *shapes;
    uint64_t cluster;       /* which nodes and slots there are, as a number */
    struct hl_timer *timer; /* until the next pass; NULL: none is wanted */
    uint64_t passes;
    uint64_t ended_ns, cost_ns; /* of the last pass */
    uint64_t processor_ns;
    bool trouble;            /* trouble_is_new */
    int pending;             /* jobs, after the last pass */
    int fresh;               /* submitted since */
    int held[HL_QUEUES_MAX]; /* slots, by queue, at the last pass */
    struct queue_past past[HL_QUEUES_MAX];
};

/* One pass. */
struct queue_run {
    struct hl_controller *c;
    struct job **jobs; /* by gang */
    int count;
    int fresh;   /* jobs that are being stored, which no pass has seen */
    int told;    /* records of reasons that were written */
    bool untold; /* there are more to write */
    struct hl_queue_gang *gangs;
    struct hl_queue_slots slots;
    int64_t *windows; /* when reservations of nodes begin, each time once, in order */
    int window_count;
};

/* queue_planner.c */
/* Which nodes and slots there are, whatever is free, as a number; and slots that are free. */
uint64_t queue_cluster_mark(const struct hl_cluster *cluster, int *free_slots);
/* When reservations begin that are not over, each time once, in order; free(). */
hl_status queue_windows(const struct hl_cluster *cluster, int64_t now_ms, int64_t **out,
                        int *count) HL_CHECK;
/* How many slots a job needs in the cluster that has this mark. */
hl_status queue_shape_measure(struct job *j, uint64_t mark) HL_CHECK;
/* Why it does not fit, in the planner's words; asked once in a pass for those that meet as many
 * reservations. */
const char *queue_shape_text(struct job *j, int met);
/* What the cluster's slots are to a job now. */
struct hl_api_slot_count_list queue_count_slots(const struct hl_controller *c,
                                                struct hl_arena *arena);

/* queue_use.c */
/* What each queue has used, of jobs that are there and that were forgotten. */
void queue_find_used(const struct hl_controller *c, int64_t now_ms, double used[HL_QUEUES_MAX]);
/* The job is about to be forgotten: its use goes into `past`. */
void queue_past_add(const struct job *j, int64_t now_ms, struct queue_past past[HL_QUEUES_MAX]);
/* Records of what is another one in `past` than in the queue's. */
hl_status queue_past_records(const struct hl_controller *c,
                             const struct queue_past past[HL_QUEUES_MAX],
                             struct hl_records *records) HL_CHECK;

/* queue_reason.c: the last verdict in words. "" = none yet. */
void queue_reason(const struct job *j, char *out, size_t cap);
void queue_remedy(const struct job *j, char *out, size_t cap);
/* Its queue, "" = none of ours; borrowed. */
const char *job_queue_name(const struct job *j);

/* queue_methods.c */
/* There is its queue, whose quota it fits. */
hl_status queue_check(const struct hl_controller *c, const struct hl_job *spec,
                      const struct hl_plan *plan) HL_CHECK;
/* HL_EBUSY: as many jobs wait as may. */
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
