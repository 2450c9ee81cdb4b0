/* core/queue/queue.h - which pending gang starts next, and which running ones have to go for it.
 *
 * Pending gangs stand in one line: first those that were damaged and come back, then those for
 * which others were stopped, then by priority, then by fair share among the queues, then by
 * submission. A pass goes through the line once. A gang starts whole or not at all, or is passed
 * over for a reason (enum hl_api_wait_reason), and:
 *
 * - The first that does not fit gets a reservation: the slots that it will have when enough running
 *   gangs have reached their time limits. Later gangs start only beside it, or if they end before
 *   (EASY backfill).
 * - A gang of higher priority has lower ones stopped, but only if it fits then: as few as possible,
 *   of those with the least work to lose.
 * - A queue never holds more slots than its quota; who waits for quota lets nobody of its queue
 *   pass.
 *
 * The line is a value of its input: a Controller that starts again makes the same one from its
 * records. What fits is the planner's to say (struct hl_queue_planner).
 *
 * Owns:    the input is the caller's; a pass owns its decisions until hl_queue_pass_fini.
 * Threads: one at a time. Pure apart from what the planner does.
 * Errors:  HL_ENOMEM; HL_EINVAL names what of a list of queues is wrong; whatever the planner says.
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
#define HL_PRIORITY_MAX     1000 /* and -1000 */
#define HL_QUEUE_WEIGHT_MAX 1000000
#define HL_QUEUE_QUOTA_MAX  100000000

/* ---- queues ---------------------------------------------------------------------------------- */

struct hl_queue {
    char name[HL_QUEUE_NAME_MAX + 1];
    int quota; /* slots, 0 = none */
    int weight;
    bool preempts; /* its gangs have others stopped, and are stopped by others */
};

struct hl_queues {
    struct hl_queue list[HL_QUEUES_MAX]; /* the first is that of jobs that name none */
    int count;
};

/* "prod weight=4, dev quota=16 preempt=off". *out is overwritten on HL_OK only. */
hl_status hl_queues_parse(const char *text, struct hl_queues *out) HL_CHECK;
/* Index of the queue of that name ("" = the first), -1 when there is none. */
int hl_queues_find(const struct hl_queues *queues, const char *name);

/* ---- what gangs have used ----------------------------------------------------------------------
 */

/* Slots of one job over time. */
struct hl_queue_use {
    int slots;           /* of its last attempt */
    int64_t placed_ms;   /* when it got them; 0 = never */
    int64_t released_ms; /* 0 = it holds them */
    int64_t before;      /* slot ms of attempts before */
};

/* What of it counts now, in slots: each moment counts half as much after half_life_ms; 0: the past
 * does not count. */
double hl_queue_used(const struct hl_queue_use *use, int64_t now_ms, int64_t half_life_ms);

/* The same of what counted `used` so long ago, with nothing held since. */
double hl_queue_faded(double used, int64_t ago_ms, int64_t half_life_ms);

/* ---- a pass ------------------------------------------------------------------------------------
 */

enum hl_queue_phase { HL_QUEUE_PENDING, HL_QUEUE_RUNS, HL_QUEUE_STOPS };

struct hl_queue_gang {
    enum hl_queue_phase phase;
    int queue;
    int priority;
    int slots;
    int64_t seq; /* of the submission */

    /* of one that is pending */
    int shape;        /* gangs of one shape fit alike; from 0, < shapes */
    int64_t since_ms; /* it waits */
    enum hl_api_wait_reason
        blocked;  /* what the caller knows that holds it back, whatever is free */
    bool damaged; /* it ran, lost something, and is to run again soon */

    /* of one that holds slots */
    int64_t placed_ms;
    int64_t saved_ms; /* nothing of its work before is lost with it */
    bool stays;       /* it is not to be stopped for others */

    int64_t limit_ms; /* it ends by itself so long after it was placed; 0 = nobody knows */
    int preemptor;    /* the pending gang that it was or is stopped for; -1 = none */
};

/* Where gangs go. A failure ends the pass. Slots that were taken or reserved are not free any more.
 */
struct hl_queue_planner {
    void *ctx;
    /* Does the pending gang fit the free slots? Its place is remembered until the next question. */
    hl_status (*fit)(void *ctx, int gang, bool *fits);
    /* It gets the place that was found last, as it was found. */
    hl_status (*take)(void *ctx, int gang);
    /* The slots of a gang that holds some count as free, or do not any more; never those that are
     * reserved. */
    void (*lend)(void *ctx, int gang, bool lent);
    /* The place that was found last is kept for the gang, while the reservations are on. of_old:
     * what is free of the slots that it had before. */
    hl_status (*reserve)(void *ctx, int gang, bool of_old);
    /* Reservations are on at the beginning. */
    void (*reservations)(void *ctx, bool on);
};

struct hl_queue_input {
    const struct hl_queues *queues;
    const struct hl_queue_gang *gangs;
    int count;
    int shapes;
    int free_slots;     /* on servers that are ready */
    const double *used; /* by queue: hl_queue_used of all its jobs */
    int64_t now_ms;
    int64_t age_ms;   /* a gang that waits gains one priority in the line in so long; 0 = never */
    int64_t grace_ms; /* that ranks need to stop */
    bool preempt;
};

/* Of one gang. */
struct hl_queue_verdict {
    enum hl_api_wait_reason reason; /* NONE: it starts, or does not wait */
    int place;                      /* in the line, from 1; 0 = it does not wait */
    int other;        /* the gang that the reason speaks of, or that it stops for; -1 */
    int64_t start_ms; /* estimate; 0 = unknown */
    bool starts;      /* and the planner has taken its slots */
    bool stops;       /* it is to be stopped, for `other` */
};

struct hl_queue_pass {
    struct hl_queue_verdict *verdicts; /* as the gangs */
    int *line;                         /* the pending gangs in their order */
    int line_count;
};

/* Decides about all pending gangs. The planner's reservations are its own to end. */
hl_status hl_queue_pass(const struct hl_queue_input *in, const struct hl_queue_planner *planner,
                        struct hl_queue_pass *out) HL_CHECK;
void hl_queue_pass_fini(struct hl_queue_pass *pass);

#endif
