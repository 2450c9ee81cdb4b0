/* core/copies/route.h - the path that bytes take between two tiers, and why: one pure table.
 *
 * A path covers one step. If a transfer needs several (migrating device data goes through host
 * memory, an archived shard is loaded into L3 first), the answer says in which tier and on which
 * side the step ends; hl_route_next() gives the query for the next step.
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
    HL_LINK_TCP,  /* the backbone, without RDMA verbs */
    HL_LINK_NONE, /* they don't */
    HL_LINK_COUNT
};

/* What is known about the direct path between the two sides; see hl_route_health. */
enum hl_route_direct {
    HL_DIRECT_GOOD,
    HL_DIRECT_FAILED, /* it failed recently */
    HL_DIRECT_RETRY,  /* it failed, but it is time to try again */
    HL_DIRECT_COUNT
};

struct hl_route_query {
    enum hl_api_operation op;
    enum hl_api_tier source, target;
    enum hl_route_link link;
    bool migration_net;    /* the migration network reaches the peer */
    enum hl_nic_class nic; /* NIC beside the device involved; of two devices, the target's */
    bool device_direct;    /* every device involved lets the NIC access its memory */
    enum hl_route_direct direct;
};

struct hl_route {
    enum hl_api_route_path path;
    enum hl_api_route_reason reason;
    enum hl_api_tier
        lands;      /* tier in which this step ends (for HL_API_ROUTE_PATH_NONE: the source) */
    bool at_target; /* on the target's side; if false, on the source's */
};

struct hl_route hl_route_choose(const struct hl_route_query *q);
/* If `step`, chosen for `q`, leaves more to do: returns true and fills in *next. */
bool hl_route_next(const struct hl_route_query *q, struct hl_route step,
                   struct hl_route_query *next);

/* The reason as a clause for people; "" if there is none. */
const char *hl_route_reason_text(enum hl_api_route_reason reason);
enum hl_plane hl_route_plane_of(enum hl_api_route_path path);
/* The description of a transfer, and its plane, from the query that decided its path. */
struct hl_transfer hl_route_transfer(const struct hl_route_query *q);

/* Health of one direct path: after a failure it is not used for a while, and longer after each
 * further failure. All zero = good. */
struct hl_route_health {
    uint64_t retry_at_ms;
    uint64_t backoff_ms; /* 0 = no failure since the last success */
};

/* The pause is first_ms after the first failure in a row, doubles with each further one, and is at
 * most max_ms. */
void hl_route_health_failed(struct hl_route_health *h, uint64_t now_ms, uint64_t first_ms,
                            uint64_t max_ms);
void hl_route_health_worked(struct hl_route_health *h);
enum hl_route_direct hl_route_health_at(const struct hl_route_health *h, uint64_t now_ms);

#endif
