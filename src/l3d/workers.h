/* l3d/workers.h - threads for work that waits for disks and networks, so that the loop does not.
 *
 * Owns:    its threads; a piece of work belongs to its caller, again from `done` on.
 * Threads: add and stop on the loop's thread; `run` in a worker, `done` on the loop.
 * Errors:  HL_ENOMEM at start.
 * Units:   none.
 * Limits:  work is done in the order it was added, by as many threads as were asked for.
 * See:     os/background.h, for what gives way to readers.
 */
#ifndef HL_L3D_WORKERS_H
#define HL_L3D_WORKERS_H

#include <stdbool.h>

#include "base/status.h"

struct hl_loop;
struct workers;

struct work {
    void (*run)(struct work *w);
    void (*done)(struct work *w);
    struct workers *owner;
    bool queued; /* no worker has taken it; under the owner's lock */
    struct work *prev, *next;
};

/* `background`: its threads give way to others. */
hl_status workers_start(struct hl_loop *loop, unsigned threads, bool background,
                        struct workers **out) HL_CHECK;
void workers_add(struct workers *ws, struct work *w);
/* To these workers, if no other one has taken it yet. */
void workers_move(struct workers *ws, struct work *w);
/* Returns when everything added is run and done. NULL is fine. */
void workers_stop(struct workers *ws);

#endif
