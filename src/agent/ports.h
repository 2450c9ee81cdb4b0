/* agent/ports.h - TCP ports at which the ranks of a job meet.
 *
 * Owns:    which ports were given lately.
 * Threads: any.
 * Errors:  HL_EBUSY when none of those that were asked for is free.
 * Units:   TCP ports.
 * Limits:  the last ports that were given are remembered, for ten minutes each.
 */
#ifndef HL_AGENT_PORTS_H
#define HL_AGENT_PORTS_H

#include <pthread.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

/* What the Controller was told lately. */
struct ports {
    pthread_mutex_t lock;

    struct {
        int port;
        uint64_t until_ns;
    } given[64];

    size_t next;
};

/* The first one where no process listens, and which was not given out lately. */
hl_status ports_find(struct ports *p, struct hl_api_uint16_list wanted, uint16_t *out) HL_CHECK;

#endif
