/* agent/obeyed.h - the Controller that this node obeys: the newest it has heard of, even across
 * restarts of the Agent.
 *
 * Owns:    the file `controller` in the Agent's state directory.
 * Threads: any.
 * Errors:  HL_EPERM: an older Controller. If the file can't be written, that is only a warning: the
 *          newest Controller is still obeyed until this Agent ends.
 * Units:   none.
 * Limits:  a running order is not aborted when a newer Controller appears. Drops are made under the
 *          lock, so no newer Controller is accepted during a drop.
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

/* Restores what the previous Agent stored. */
void obeyed_init(struct obeyed *o, const char *state_dir);
void obeyed_fini(struct obeyed *o);
/* Checks the epoch of an order, a question, or the answer to a registration; cluster "": not
 * stated. */
hl_status obeyed_hear(struct obeyed *o, const char *cluster, uint64_t epoch) HL_CHECK;
/* The same; after HL_OK no newer Controller is accepted before obeyed_end. */
hl_status obeyed_begin(struct obeyed *o, uint64_t epoch) HL_CHECK;
void obeyed_end(struct obeyed *o);

#endif
