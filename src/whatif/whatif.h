/* whatif/whatif.h - computes what a trace of accesses would have cost under a policy: textbook
 * caches and the placement policy of the daemons, over the same tiers, rates and links, and a lower
 * bound.
 *
 *     L1 hit            no time
 *     L2 hit            its size over the rate inside the node
 *     other node, L3    its size over the node's backbone
 *     L4                the same, and its size over the archive's rate; the later end counts
 *     a write           its size over the node's backbone, to L3
 *
 * Reads queue on each link in the order of the trace; the policy's moves use the time that reads
 * leave. A load is all rows of one time and node; it waits for the last of its shards.
 *
 * Owns:    nothing; the trace is borrowed for the call.
 * Threads: one at a time. Pure: the clock is the trace's.
 * Errors:  HL_EINVAL for an invalid world; HL_ENOMEM.
 * Units:   bytes, bytes per second, seconds.
 * Limits:  those of a trace.
 */
#ifndef HL_WHATIF_WHATIF_H
#define HL_WHATIF_WHATIF_H

#include "core/placement/rules.h"
#include "whatif/access_trace.h"
#include "whatif/generate.h"

/* clang-format off */
#define HL_WHATIF_MAP(X)                                                                        \
    X(HELIOS,   "helios")                                                                       \
    X(LRU,      "lru")                                                                          \
    X(LFU,      "lfu")                                                                          \
    X(SIEVE,    "sieve")                                                                        \
    X(S3FIFO,   "s3fifo")                                                                       \
    X(WTINYLFU, "wtinylfu")                                                                     \
    X(GDSF,     "gdsf")                                                                         \
    X(STATIC,   "static")                                                                       \
    X(OPTIMAL,  "optimal")

/* clang-format on */

enum hl_whatif_policy {

#define X(name, text) HL_WHATIF_##name,
    HL_WHATIF_MAP(X)
#undef X
        HL_WHATIF_POLICIES
};

enum hl_found {
    HL_FOUND_L1,
    HL_FOUND_L2,
    HL_FOUND_OTHER,
    HL_FOUND_L3,
    HL_FOUND_L4,
    HL_FOUND_KINDS
};

struct hl_whatif_world {
    uint64_t l1_bytes, l2_bytes; /* of each node */
    uint64_t l3_bytes;
    double rates[HL_MOVE_PATHS]; /* of a node's links, and of the archive */
    int64_t pass_ms;             /* of helios: time between reports and passes */
    double keep_pct;             /* of helios: share of a node's L2 for copies that reads leave */
    double keep_l1_pct;          /* the same for L1 */
    bool moves;                  /* of helios: carry out the policy's decisions */
    bool warms;                  /* of helios: load the archive's versions into the pool */
    struct hl_placement_params params;
};

struct hl_whatif_result {
    uint64_t reads, writes, loads;
    uint64_t hits[HL_FOUND_KINDS];               /* of reads; 0 if only a bound is known */
    uint64_t read_bytes[HL_MOVE_PATHS];          /* over each path, by reads and writes */
    uint64_t moved_bytes[HL_MOVE_PATHS];         /* by moves of the policy */
    uint64_t moves;                              /* completed moves */
    uint64_t planned_bytes, planned_local_bytes; /* read by planned gangs; already local then */
    uint64_t ahead_bytes, vain_bytes;            /* of helios: prefetched for gangs; never read */
    double access_s;                             /* mean of all accesses */
    double wait_s, wait_mean_s, wait_p99_s;      /* of loads: sum, mean, 99th percentile */
    double again_p99_s; /* of loads that read nothing for the first time in the trace */
};

const char *hl_whatif_policy_name(enum hl_whatif_policy policy);
/* False: no policy has that name. */
bool hl_whatif_policy_find(const char *name, enum hl_whatif_policy *out);
/* For OPTIMAL only sum, mean and 99th percentile of waiting are known: no policy of the class in
 * docs/sim.md waits for less. */
hl_status hl_whatif_run(const struct hl_access_trace *trace, const struct hl_whatif_world *world,
                        enum hl_whatif_policy policy, struct hl_whatif_result *out) HL_CHECK;

#endif
