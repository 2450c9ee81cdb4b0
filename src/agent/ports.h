/* agent/ports.h - finds TCP ports at which the ranks of a job can rendezvous.
 *
 * Owns:    the list of recently assigned ports.
 * Threads: any.
 * Errors:  HL_EBUSY if none of the requested ports is free.
 * Units:   TCP ports.
 * Limits:  the last assigned ports are remembered for ten minutes each.
 */
#ifndef HL_AGENT_PORTS_H
#define HL_AGENT_PORTS_H

#include <pthread.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

/* The ports recently reported to the Controller. */
struct ports {
    pthread_mutex_t lock;

    struct {
        int port;
        uint64_t until_ns;
    } given[64];

    size_t next;
};

/* Finds the first port on which no process listens and which was not assigned recently. */
hl_status ports_find(struct ports *p, struct hl_api_uint16_list wanted, uint16_t *out) HL_CHECK;

#endif
