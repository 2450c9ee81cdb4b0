/* core/queue/queue.h - decides which pending gang starts next, and which running gangs are
 * preempted for it.
 *
 * All pending gangs form one line: first damaged ones that restart, then those for which others
 * were preempted, then by priority, then by fair share among the queues, then by time of
 * submission. A pass goes through the line once. Each gang either starts as a whole or is passed
 * over for a reason (enum hl_api_wait_reason). In addition:
 *
 * - The first gang that does not fit gets a reservation: the slots it will get once enough running
 *   gangs have reached their time limits. Later gangs start only outside the reservation, or if
 *   they end before it begins (EASY backfill).
 * - A gang preempts gangs of lower priority, but only if it then fits. It preempts as few as
 *   possible, and prefers those that lose the least work.
 * - A queue never holds more slots than its quota; a gang that waits for quota blocks the later
 *   gangs of its queue.
 *
 * The line depends only on its input: a restarted Controller rebuilds the same line from its
 * records. The planner decides what fits (struct hl_queue_planner).
 *
 * Owns:    a pass owns its decisions until hl_queue_pass_fini; the input belongs to the caller.
 * Threads: one at a time. Pure apart from what the planner does.
 * Errors:  HL_ENOMEM; HL_EINVAL says what is wrong with a list of queues; the planner's errors.
 * Units:   ms since 1970, slots, slot milliseconds.
 * Limits:  HL_QUEUES_MAX queues.
 */
#ifndef HL_CORE_QUEUE_QUEUE_H
#define HL_CORE_QUEUE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

#define HL_QUEUE_NAME_MAX   63
#define HL_QUEUES_MAX       64
#define HL_PRIORITY_MAX     1000 /* the minimum is -1000 */
#define HL_QUEUE_WEIGHT_MAX 1000000
#define HL_QUEUE_QUOTA_MAX  100000000

/* ---- queues ---------------------------------------------------------------------------------- */

struct hl_queue {
    char name[HL_QUEUE_NAME_MAX + 1];
    int quota; /* slots, 0 = none */
    int weight;
    bool preempts; /* its gangs may preempt others, and be preempted */
};

struct hl_queues {
    struct hl_queue list[HL_QUEUES_MAX]; /* the first is the default, for jobs that name none */
    int count;
};

/* Parses "prod weight=4, dev quota=16 preempt=off". *out is overwritten on HL_OK only. */
hl_status hl_queues_parse(const char *text, struct hl_queues *out) HL_CHECK;
/* Index of the queue of that name ("" = the first), -1 when there is none. */
int hl_queues_find(const struct hl_queues *queues, const char *name);

/* ---- what gangs have used ----------------------------------------------------------------------
 */

/* Slots of one job over time. */
struct hl_queue_use {
    int slots;           /* of its last attempt */
    int64_t placed_ms;   /* when it got its slots; 0 = never */
    int64_t released_ms; /* 0 = it still holds them */
    int64_t before;      /* slot ms of earlier attempts */
};

/* The use that counts now, in slots: past use decays by half every half_life_ms. With half_life_ms
 * 0 the past does not count. */
double hl_queue_used(const struct hl_queue_use *use, int64_t now_ms, int64_t half_life_ms);

/* What remains of a use that counted `used` that long ago, if nothing has been held since. */
double hl_queue_faded(double used, int64_t ago_ms, int64_t half_life_ms);

/* ---- a pass ------------------------------------------------------------------------------------
 */

enum hl_queue_phase { HL_QUEUE_PENDING, HL_QUEUE_RUNS, HL_QUEUE_STOPS };

struct hl_queue_gang {
    enum hl_queue_phase phase;
    int queue;
    int priority;
    int slots;
    int64_t seq; /* order of submission */

    /* of a pending gang */
    int shape;        /* gangs of the same shape fit the same places; from 0, < shapes */
    int64_t since_ms; /* when it began to wait */
    enum hl_api_wait_reason
        blocked;  /* a reason known to the caller that holds it back, whatever is free */
    bool damaged; /* it ran, was damaged by a loss, and should run again soon */

    /* of a gang that holds slots */
    int64_t placed_ms;
    int64_t saved_ms; /* its work up to then is saved and not lost with it */
    bool stays;       /* it must not be preempted */

    int64_t limit_ms; /* its time limit, counted from when it was placed; 0 = none */
    int preemptor;    /* the pending gang for which it was or is being stopped; -1 = none */
};

/* Finds places for gangs. A failure ends the pass. Slots that were taken or reserved are no longer
 * free. */
struct hl_queue_planner {
    void *ctx;
    /* Whether the pending gang fits the free slots. The place found is remembered until the next
     * call. */
    hl_status (*fit)(void *ctx, int gang, bool *fits);
    /* Gives the gang the place that `fit` found last, unchanged. */
    hl_status (*take)(void *ctx, int gang);
    /* Counts the slots of a gang that holds some as free, or stops doing so; reserved slots never
     * count as free. */
    void (*lend)(void *ctx, int gang, bool lent);
    /* Keeps the place found last for the gang, while reservations are on. of_old: instead keeps
     * those of its former slots that are free. */
    hl_status (*reserve)(void *ctx, int gang, bool of_old);
    /* Turns reservations on or off; they are on at the start. */
    void (*reservations)(void *ctx, bool on);
};

struct hl_queue_input {
    const struct hl_queues *queues;
    const struct hl_queue_gang *gangs;
    int count;
    int shapes;
    int free_slots;     /* on servers that are ready */
    const double *used; /* by queue: sum of hl_queue_used over its jobs */
    int64_t now_ms;
    int64_t age_ms;   /* a waiting gang gains one priority in the line per this time; 0 = never */
    int64_t grace_ms; /* time that ranks get to stop */
    bool preempt;
};

/* The decision about one gang. */
struct hl_queue_verdict {
    enum hl_api_wait_reason reason; /* NONE: it starts, or is not waiting */
    int place;                      /* in the line, from 1; 0 = it is not waiting */
    int other;        /* the gang that the reason refers to, or for which it stops; -1 = none */
    int64_t start_ms; /* estimate; 0 = unknown */
    bool starts;      /* it starts, and the planner has taken its slots */
    bool stops;       /* it must stop to make room for `other` */
};

struct hl_queue_pass {
    struct hl_queue_verdict *verdicts; /* in the order of the gangs */
    int *line;                         /* the pending gangs in the order of the line */
    int line_count;
};

/* Decides about all pending gangs. Ending the planner's reservations is up to the planner. */
hl_status hl_queue_pass(const struct hl_queue_input *in, const struct hl_queue_planner *planner,
                        struct hl_queue_pass *out) HL_CHECK;
void hl_queue_pass_fini(struct hl_queue_pass *pass);

#endif
