/* hw/health/health.h - whether a node is fit to run ranks: a test of a few seconds.
 *
 *     row       it fails when
 *     memory    the slowest slot copies less than memory_least bytes per second of processor time
 *     checksum  a processor of a slot computes a wrong checksum of known bytes, or memory returns
 *               different bytes
 *     network   bytes sent to an interface's own address do not come back. This tests the kernel's
 *               loopback, not the wire; InfiniBand ports are only listed
 *     disk      the disk of log_dir has less free space than log_free_bytes, or can't be written
 *     script    the site's own script exits with a code other than 0, or takes too long
 *
 * Owns:    nothing beyond a call.
 * Threads: any; starts one thread per slot, one after the other. Blocks for at most deadline_ms
 *          plus one scheduling delay.
 * Errors:  HL_ENOMEM. Problems of the node are in the result.
 * Units:   bytes, bytes per second, ms.
 * Limits:  a row reports the worst slot or interface; HL_HEALTH_ROWS_MAX rows.
 */
#ifndef HL_HW_HEALTH_HEALTH_H
#define HL_HW_HEALTH_HEALTH_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

#define HL_HEALTH_ROWS_MAX 8

struct hl_health_opts {
    const struct hl_api_slot_list *slots;
    bool foreign_topology; /* the slots' processors are another machine's */
    bool busy;             /* ranks are running: skip tests that would slow them down */
    uint64_t memory_least; /* bytes per second; 0 = any */
    const char *log_dir;
    uint64_t log_free_bytes;
    const char *sys;    /* "/sys" */
    const char *script; /* path; "" = none */
    int deadline_ms;    /* of all rows together */
};

hl_status hl_health_test(const struct hl_health_opts *opts, struct hl_arena *arena,
                         struct hl_api_health *out) HL_CHECK;

#endif
