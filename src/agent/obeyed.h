/* agent/obeyed.h - the Controller that this node obeys: the newest it has heard of, also after the
 * Agent was started again.
 *
 * Owns:    the file `controller` in the Agent's state directory.
 * Threads: any.
 * Errors:  HL_EPERM: it is an older one. That the file can't be written is a warning: the newest
 *          one is obeyed all the same, until this Agent ends.
 * Units:   none.
 * Limits:  an order that runs is not broken off by a newer Controller, but for drops: those are
 *          made under the lock.
 */
#ifndef HL_AGENT_OBEYED_H
#define HL_AGENT_OBEYED_H

#include <limits.h>
#include <pthread.h>

#include "core/migration/epoch.h"

struct obeyed {
    pthread_mutex_t lock;
    struct hl_epoch newest;
    char path[PATH_MAX];
};

/* As the Agent before this one has left it. */
void obeyed_init(struct obeyed *o, const char *state_dir);
void obeyed_fini(struct obeyed *o);
/* An order, a question, or the answer to a registration; cluster "": it is not said. */
hl_status obeyed_hear(struct obeyed *o, const char *cluster, uint64_t epoch) HL_CHECK;
/* The same; after HL_OK no newer one is heard before obeyed_end. */
hl_status obeyed_begin(struct obeyed *o, uint64_t epoch) HL_CHECK;
void obeyed_end(struct obeyed *o);

#endif
