/* core/route.h - which way bytes go between two tiers, and why: one pure table.
 *
 * A path covers one step. Where a transfer needs several (device data that migrates goes through
 * host memory, an archived shard is loaded into L3 first), the answer says in which tier and on
 * which side the step ends; hl_route_next() is the question for the rest.
 *
 * Owns:    nothing; all texts are static.
 * Threads: any; struct hl_route_health: one at a time.
 * Errors:  none: every query has exactly one answer, and HL_PATH_NONE is one of them.
 * Units:   milliseconds of any monotonic clock; the caller gives the time.
 * Limits:  a transfer takes at most 4 steps.
 */
#ifndef HL_CORE_ROUTE_H
#define HL_CORE_ROUTE_H

#include <stdint.h>

#include "api/types.h"
#include "base/plane.h"
#include "core/topo.h"

enum hl_route_op {
    HL_ROUTE_READ,    /* the target's side asks for a copy: lowest latency */
    HL_ROUTE_WRITE,   /* the source's side delivers: highest bandwidth */
    HL_ROUTE_MIGRATE, /* the shard changes its place: from host to host */
    HL_ROUTE_OP_COUNT
};

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

/* clang-format off */
#define HL_ROUTE_PATH_MAP(X)                                \
    X(NONE,          "none")                                \
    X(LOCAL_COPY,    "local-copy")                          \
    X(MAPPED,        "mapped")        /* shared memory, read in place */          \
    X(DIRECT,        "direct")        /* RDMA between the memories themselves */  \
    X(PLANK,         "plank")         /* staged through host memory, overlapped */\
    X(TCP,           "tcp")           /* the owner takes part */    \
    X(UCX_TAGGED,    "ucx-tagged")                          \
    X(ZMQ,           "zmq")                                 \
    X(ARCHIVE_LOAD,  "archive-load")                        \
    X(ARCHIVE_STORE, "archive-store")

/* Word for metrics, sentence for people. */
#define HL_ROUTE_REASON_MAP(X)                                                                    \
    X(READ_TO_ARCHIVE, "read-to-archive", "a read ends in memory; the archive is filled by a "    \
      "write or a migration")                                                                     \
    X(UNREACHABLE, "unreachable", "the peer can't be reached on the backbone")                    \
    X(ARCHIVE_IN, "archive-in", "the archive is filled from the pool beside it")                  \
    X(ARCHIVE_OUT, "archive-out", "an archived shard is loaded into the pool and served there")   \
    X(SAME_HOST, "same-host", "both sides are in one host")                                       \
    X(SHARED_MEMORY, "shared-memory", "the memory is on this host and mapped")                    \
    X(HOST_FIRST, "host-first", "a migration goes from host to host: device data is copied to "   \
      "host memory first")                                                                        \
    X(MIGRATION_NET, "migration-net", "data between nodes is sent over the migration network")    \
    X(MIGRATION_NET_DOWN, "migration-net-down", "the migration network is down: sent over the "   \
      "backbone")                                                                                 \
    X(BACKBONE_DOWN, "backbone-down", "the backbone is down: device data is copied to host "      \
      "memory for the migration network")                                                         \
    X(BACKBONE_WRITE, "backbone-write", "writes to and from the pool are tagged messages on the " \
      "backbone")                                                                                 \
    X(ONE_SIDED, "one-sided", "RDMA reaches the memory")                                          \
    X(DIRECT_RETRY, "direct-retry", "direct failed before and is tried again")                    \
    X(DIRECT_FAILED, "direct-failed", "direct failed a short while ago")                          \
    X(NO_RDMA, "no-rdma", "the backbone has no RDMA to this peer")                                \
    X(NIC_CLASS, "nic-class", "the NIC is a ConnectX-4 or older: no RDMA into device memory")     \
    X(DEVICE, "device", "the device's memory can't be registered with the NIC")

/* clang-format on */

enum hl_route_path {

#define X(name, text) HL_PATH_##name,
    HL_ROUTE_PATH_MAP(X)
#undef X
        HL_PATH_COUNT
};

enum hl_route_reason {

#define X(name, word, text) HL_REASON_##name,
    HL_ROUTE_REASON_MAP(X)
#undef X
        HL_REASON_COUNT
};

struct hl_route_query {
    enum hl_route_op op;
    enum hl_api_tier source, target;
    enum hl_route_link link;
    int migration_net;     /* the migration network reaches the peer */
    enum hl_nic_class nic; /* beside the device that takes part; of two, the target's */
    int device_direct;     /* every device that takes part lets the NIC into its memory */
    enum hl_route_direct direct;
};

struct hl_route {
    enum hl_route_path path;
    enum hl_route_reason reason;
    enum hl_api_tier lands; /* tier in which this step ends (for HL_PATH_NONE: the source) */
    int at_target;          /* on the target's side; 0: on the source's */
};

struct hl_route hl_route_choose(const struct hl_route_query *q);
/* True and *next filled when `step`, chosen for `q`, leaves something to do. */
int hl_route_next(const struct hl_route_query *q, struct hl_route step,
                  struct hl_route_query *next);

const char *hl_route_op_name(enum hl_route_op op);             /* "read" */
const char *hl_route_path_name(enum hl_route_path path);       /* "plank" */
const char *hl_route_reason_name(enum hl_route_reason reason); /* "nic-class" */
const char *hl_route_reason_text(enum hl_route_reason reason); /* a clause */
enum hl_plane hl_route_plane_of(enum hl_route_path path);
/* The words of a transfer, and its plane, from the query that decided its path. */
struct hl_transfer hl_route_transfer(const struct hl_route_query *q);
/* The other way round; the _COUNT value for a word that is none. */
enum hl_route_op hl_route_op_by_name(const char *name);
enum hl_route_path hl_route_path_by_name(const char *name);
enum hl_route_reason hl_route_reason_by_name(const char *name);

/* Memory of one direct path: after a failure direct rests, longer after each further one. All zero
 * = good. */
struct hl_route_health {
    uint64_t retry_at_ms;
    uint64_t rest_ms; /* 0 = no failure since the last success */
};

/* first_ms after the first failure in a row, doubled with each, at most max_ms. */
void hl_route_health_failed(struct hl_route_health *h, uint64_t now_ms, uint64_t first_ms,
                            uint64_t max_ms);
void hl_route_health_worked(struct hl_route_health *h);
enum hl_route_direct hl_route_health_at(const struct hl_route_health *h, uint64_t now_ms);

#endif
