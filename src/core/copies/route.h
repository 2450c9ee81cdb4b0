/* core/copies/route.h - which way bytes go between two tiers, and why: one pure table.
 *
 * A path covers one step. Where a transfer needs several (device data that migrates goes through
 * host memory, an archived shard is loaded into L3 first), the answer says in which tier and on
 * which side the step ends; hl_route_next() is the question for the next step.
 *
 * Owns:    nothing; all texts are static.
 * Threads: any; struct hl_route_health: one at a time.
 * Errors:  none: every query has exactly one answer, and HL_API_ROUTE_PATH_NONE is one of them.
 * Units:   milliseconds of any monotonic clock; the caller gives the time.
 * Limits:  a transfer takes at most 4 steps.
 */
#ifndef HL_CORE_COPIES_ROUTE_H
#define HL_CORE_COPIES_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/plane.h"
#include "core/planner/topo.h"

/* How the two sides reach each other on the data backbone. */
enum hl_route_link {
    HL_LINK_HERE, /* one host, shared memory */
    HL_LINK_RDMA,
    HL_LINK_TCP,  /* the backbone without verbs */
    HL_LINK_NONE, /* not at all */
    HL_LINK_COUNT
};

/* What is known of the direct path between the two sides; see hl_route_health. */
enum hl_route_direct {
    HL_DIRECT_GOOD,
    HL_DIRECT_FAILED, /* a short while ago */
    HL_DIRECT_RETRY,  /* failed, and the time to try again has come */
    HL_DIRECT_COUNT
};

struct hl_route_query {
    enum hl_api_operation op;
    enum hl_api_tier source, target;
    enum hl_route_link link;
    bool migration_net;    /* the migration network reaches the peer */
    enum hl_nic_class nic; /* beside the device that takes part; of two, the target's */
    bool device_direct;    /* every device that takes part lets the NIC into its memory */
    enum hl_route_direct direct;
};

struct hl_route {
    enum hl_api_route_path path;
    enum hl_api_route_reason reason;
    enum hl_api_tier
        lands;      /* tier in which this step ends (for HL_API_ROUTE_PATH_NONE: the source) */
    bool at_target; /* on the target's side; 0: on the source's */
};

struct hl_route hl_route_choose(const struct hl_route_query *q);
/* True and *next filled when `step`, chosen for `q`, leaves something to do. */
bool hl_route_next(const struct hl_route_query *q, struct hl_route step,
                   struct hl_route_query *next);

/* A clause for people; "" where no reason was said. */
const char *hl_route_reason_text(enum hl_api_route_reason reason);
enum hl_plane hl_route_plane_of(enum hl_api_route_path path);
/* The words of a transfer, and its plane, from the query that decided its path. */
struct hl_transfer hl_route_transfer(const struct hl_route_query *q);

/* Health of one direct path: after a failure it is not used for a while, longer after each further
 * one. All zero = good. */
struct hl_route_health {
    uint64_t retry_at_ms;
    uint64_t backoff_ms; /* 0 = no failure since the last success */
};

/* first_ms after the first failure in a row, doubled with each, at most max_ms. */
void hl_route_health_failed(struct hl_route_health *h, uint64_t now_ms, uint64_t first_ms,
                            uint64_t max_ms);
void hl_route_health_worked(struct hl_route_health *h);
enum hl_route_direct hl_route_health_at(const struct hl_route_health *h, uint64_t now_ms);

#endif
