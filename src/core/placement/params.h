/* core/placement/params.h - the numbers that placement of shards is decided by.
 *
 * They may change while the daemon runs: check a new set, then put it in force with
 * hl_placement_configure.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL names the parameter, its value and what is allowed.
 * Units:   ms; percent of a capacity; accesses within the window.
 * Limits:  those of the rows in params.c.
 */
#ifndef HL_CORE_PLACEMENT_PARAMS_H
#define HL_CORE_PLACEMENT_PARAMS_H

#include <stdint.h>

#include "base/status.h"

struct hl_placement_params {
    /* HeatScore: alpha * N / T + beta * exp(-age / tau), T and age in seconds */
    int64_t window_ms; /* T */
    int64_t tau_ms;
    double alpha, beta;
    /* stability: N / (N + half) * 1 / (1 + CV of intervals) * (1 - exp(-residence / tau_s)) */
    double stability_half;
    int64_t stability_tau_ms;
    /* fluidity: moves, each of which counts for less with time */
    int64_t fluidity_tau_ms;
    double fluidity_high; /* from there on a shard stays in L2 */
    /* watermarks of L1 */
    double high_pct, low_pct;
    /* when heat makes a shard active, and when it cools */
    double warm_heat, cool_heat;
    /* accesses from other servers */
    double migrate_base;
    double spread_accesses; /* of one server, to be counted among those that read frequently */
    int64_t spread_servers; /* so many of them: to L3 */
    double recall_share;    /* readers are scattered where none has so much of all accesses */
    /* rest */
    int64_t residence_ms; /* a shard stays for so long where it came to */
    int64_t archive_ms;   /* idle in L3 for so long: to L4 */
    int64_t flap_ms; /* a node that left twice in it takes no shards until it has stayed so long
                      */
};

void hl_placement_params_init(struct hl_placement_params *params);
hl_status hl_placement_params_check(const struct hl_placement_params *params) HL_CHECK;

#endif
