/* core/queue/queue_private.h - shared by the files of this folder.
 * The file pass.c goes through the line that line.c builds, asks victims.c which gangs to preempt,
 * and estimate.c when the waiting gangs will start.
 *
 * Threads: one at a time per queue.
 */
#ifndef HL_CORE_QUEUE_PRIVATE_H
#define HL_CORE_QUEUE_PRIVATE_H

#include "core/queue/queue.h"

/* Writes the pending gangs into line[] in their order, and their number into *count. */
hl_status hl_queue_line(const struct hl_queue_input *in, int *line, int *count) HL_CHECK;

/* The search for gangs to preempt for one that does not fit. */
struct hl_queue_victims {
    const struct hl_queue_input *in;
    const struct hl_queue_planner *planner;
    int gang;
    int slots;       /* the victims must free at least this many */
    int *candidates; /* by the work lost with them, least first */
    int count;
    int *chosen; /* room for `count` */
    int chosen_count;
    int *questions; /* how many more times the searches of this pass may ask the planner */
};

/* Chooses the fewest victims, and among equal numbers those with the least lost work. The choice is
 * exact while that takes few questions; otherwise it is a set from which none can be left out.
 * chosen_count 0: the gang would not fit even if all candidates went. Nothing stays lent. */
hl_status hl_queue_choose(struct hl_queue_victims *v) HL_CHECK;

/* What is known once every gang in the line has its verdict. */
struct hl_queue_estimate {
    const struct hl_queue_input *in;
    const int *line;
    int line_count;
    struct hl_queue_verdict *verdicts; /* a start_ms of 0 is filled in */
    const bool *never;                 /* by shape: more slots alone would not let it start */
    int free_slots;
};

/* Estimates when the gangs that wait for slots will start. */
hl_status hl_queue_estimate(const struct hl_queue_estimate *e) HL_CHECK;
/* When a gang that holds slots will release them; INT64_MAX: unknown. */
int64_t hl_queue_end_ms(const struct hl_queue_input *in, const struct hl_queue_verdict *verdicts,
                        int gang);
/* Slot ms of work that are lost if the gang is stopped. */
double hl_queue_lost_work(const struct hl_queue_input *in, int gang);

#endif
