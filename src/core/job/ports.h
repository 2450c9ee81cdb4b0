/* core/job/ports.h - chooses the port at which the ranks of a job's attempt rendezvous.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   TCP ports.
 * Limits:  HL_PORTS_FIRST to HL_PORTS_FIRST + HL_PORTS_COUNT - 1, below the ephemeral ports of
 *          Linux.
 */
#ifndef HL_CORE_JOB_PORTS_H
#define HL_CORE_JOB_PORTS_H

#include <stdint.h>

#include "base/status.h"

#define HL_PORTS_FIRST 20000
#define HL_PORTS_COUNT 10000

/* Candidate number `skip` (from 0) of an attempt. Clusters on one machine must not try the same
 * ports, so each starts at its own offset, derived from its Controller's address. `job`: the job's
 * number; the candidates of successive jobs start seven apart, those of attempts one apart. */
uint16_t hl_ports_candidate(const char *controller, uint64_t job, int attempt, uint64_t skip);

/* What to do with an Agent's answer to the question which candidates are free. */
enum hl_ports_next {
    HL_PORTS_SETTLED, /* use the port it names */
    HL_PORTS_BLIND,   /* it can't tell: use the first candidate, unchecked */
    HL_PORTS_AGAIN,   /* ask again about the same candidates */
    HL_PORTS_ONWARD,  /* all are in use: ask about the next candidates */
};

enum hl_ports_next hl_ports_after(hl_status answer);

#endif
