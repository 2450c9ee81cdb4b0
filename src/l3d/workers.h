/* l3d/workers.h - threads for work that blocks on disks and networks, so that the loop does not
 * block.
 *
 * Owns:    its threads. A piece of work belongs to the workers from add until `done`, then again to
 *          its caller.
 * Threads: add and stop on the loop's thread; `run` in a worker, `done` on the loop.
 * Errors:  HL_ENOMEM at start.
 * Units:   none.
 * Limits:  work is started in the order in which it was added, on as many threads as requested.
 * See:     os/background.h, for work that yields to readers.
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
    bool queued; /* no worker has taken it yet; under the owner's lock */
    struct work *prev, *next;
};

/* `background`: its threads run at lower priority. */
hl_status workers_start(struct hl_loop *loop, unsigned threads, bool background,
                        struct workers **out) HL_CHECK;
void workers_add(struct workers *ws, struct work *w);
/* Moves work to these workers, unless a worker has already taken it. */
void workers_move(struct workers *ws, struct work *w);
/* Returns when all added work has run and is done. NULL is fine. */
void workers_stop(struct workers *ws);

#endif
