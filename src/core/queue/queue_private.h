/* What the files of this folder share: pass.c goes through the line that line.c makes, asks
 * victims.c whom to stop, and estimate.c when those start that wait. */
#ifndef HL_CORE_QUEUE_PRIVATE_H
#define HL_CORE_QUEUE_PRIVATE_H

#include "core/queue/queue.h"

/* Pending gangs in their order, into line[]; how many. */
hl_status hl_queue_line(const struct hl_queue_input *in, int *line, int *count) HL_CHECK;

/* Gangs that may be stopped for one that does not fit. */
struct hl_queue_victims {
    const struct hl_queue_input *in;
    const struct hl_queue_planner *planner;
    int gang;
    int slots;       /* they have to bring at least so many */
    int *candidates; /* by what is lost with them, least first */
    int count;
    int *chosen; /* room for `count` */
    int chosen_count;
    int *questions; /* that the searches of this pass may still put to the planner */
};

/* Chooses the fewest, then those with the least lost work: exactly while that takes few questions,
 * else a set of which none can be left out. chosen_count 0: it does not fit without all of them
 * either. Nothing stays lent. */
hl_status hl_queue_choose(struct hl_queue_victims *v) HL_CHECK;

/* What is known when all of the line have their verdict. */
struct hl_queue_estimate {
    const struct hl_queue_input *in;
    const int *line;
    int line_count;
    struct hl_queue_verdict *verdicts; /* whose start_ms is filled in where it is 0 */
    const bool *never;                 /* by shape: it waits for more than slots */
    int free_slots;
};

/* When gangs may start that wait for slots. */
hl_status hl_queue_estimate(const struct hl_queue_estimate *e) HL_CHECK;
/* When a gang that holds slots gives them back; INT64_MAX: nobody knows. */
int64_t hl_queue_end_ms(const struct hl_queue_input *in, const struct hl_queue_verdict *verdicts,
                        int gang);
/* Slot ms that are lost with a gang. */
double hl_queue_lost_work(const struct hl_queue_input *in, int gang);

#endif
