/* core/job/ports.h - at which ports the ranks of a job's attempt may meet.
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

/* Candidate number `skip` (from 0) of an attempt. Clusters on one machine must not look at the same
 * ports: each counts from one of its own, which its Controller's address gives. `job`: a number of
 * the job; jobs and attempts begin seven and one apart. */
uint16_t hl_ports_candidate(const char *controller, uint64_t job, int attempt, uint64_t skip);

/* An Agent was asked which candidates are free. */
enum hl_ports_next {
    HL_PORTS_SETTLED, /* the one it names */
    HL_PORTS_BLIND,   /* it can't tell: the first candidate, untried */
    HL_PORTS_AGAIN,   /* the same ones */
    HL_PORTS_ONWARD,  /* the candidates after these: all are in use */
};

enum hl_ports_next hl_ports_after(hl_status answer);

#endif
