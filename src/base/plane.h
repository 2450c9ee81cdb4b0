/* base/plane.h - the three networks, and one table of counters for all transfers on them.
 *
 * Every transfer is tagged with its plane and counted once, where it ends. Each process has one
 * table of counters; a daemon exports it as Prometheus text (metrics of its RPC, and /metrics where
 * an address is configured).
 *
 * Owns:    a process-wide table (the one global state beside the log).
 * Threads: any; counting takes no lock once a (op, path, reason) was seen.
 * Errors:  none; more than HL_PLANE_PATHS_MAX different paths are counted as "other".
 * Units:   bytes, nanoseconds, bits per second for line rates.
 * Limits:  HL_PLANE_PATHS_MAX (op, path, reason, result) combinations, as many (cause, path) ones;
 * words are copied, 31 bytes each.
 */
#ifndef HL_BASE_PLANE_H
#define HL_BASE_PLANE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HL_PLANE_PATHS_MAX 128
#define HL_PLANE_BUCKETS   28 /* of latency: bucket i counts transfers that took up to 2^i us / 4 */
#define HL_PLANE_PLACE     64

enum hl_plane {
    HL_PLANE_INSIDE,     /* within a host: no network */
    HL_PLANE_BACKBONE,   /* L3 and L2 reads and writes: TCP or RDMA */
    HL_PLANE_MIGRATION,  /* L2 to L2 between nodes: ZeroMQ */
    HL_PLANE_MANAGEMENT, /* heartbeats, telemetry, RPC */
    HL_PLANE_COUNT
};

const char *hl_plane_name(enum hl_plane plane); /* "backbone" */

/* One transfer that has ended, successfully or not. */
struct hl_transfer {
    enum hl_plane plane;
    const char *op;     /* "read", "write", "migrate"; "call", "answer" of RPC */
    const char *path;   /* words of core/copies/route.h, or the transport's: "shm", "rdma", "tcp",
                           "zmq", "rpc" */
    const char *reason; /* "" if none was decided */
    bool sent;          /* direction of the bytes: true = they left this process */
    uint64_t bytes;
    uint64_t ns; /* 0 = not timed */
    hl_status status;
};

/* Latencies of failed transfers are left out, because they only show how long the deadline was. */
void hl_plane_count(const struct hl_transfer *t);
/* The same for `ops` transfers at once, `t` holding the sum of their bytes and ns; latency may be
 * NULL. For hot paths that keep their own counts and add them from time to time. */
void hl_plane_add(const struct hl_transfer *t, uint64_t ops,
                  const uint64_t latency[HL_PLANE_BUCKETS]);
/* Adds only to helios_path_total: transfers that other processes reported. */
void hl_path_add(const char *op, const char *path, const char *reason, bool failed, uint64_t ops,
                 uint64_t bytes);
unsigned hl_plane_bucket(uint64_t ns);
/* Upper end of the bucket that holds the q-quantile (0..1), 0 when nothing was counted. */
double hl_plane_quantile_us(const uint64_t latency[HL_PLANE_BUCKETS], double q);
/* Sets the line rate, from the configuration; 0 = unknown, then no utilisation is shown. */
void hl_plane_set_rate(enum hl_plane plane, uint64_t bits_per_second);
/* Sets this process's place on that network, for people:
 * helios_plane_info{plane,address,interface}. */
void hl_plane_set_place(enum hl_plane plane, const char *address, const char *interface);
/* What was set for the plane: the line rate, 0 = unknown, and the interface, "" = the loopback. */
uint64_t hl_plane_line(enum hl_plane plane, char interface[HL_PLANE_PLACE]);

struct hl_plane_stats {
    uint64_t ops[2]; /* [received, sent] */
    uint64_t bytes[2];
    uint64_t failed;
    uint64_t rate;   /* bits per second, 0 = unknown */
    double busy_pct; /* of the rate, over the last whole second, the busier direction; -1 unknown */
    uint64_t latency[HL_PLANE_BUCKETS];
    uint64_t latency_ns;   /* sum over all timed transfers */
    double p50_us, p99_us; /* from the histogram: upper ends of buckets; 0 = nothing counted */
};

void hl_plane_stats(enum hl_plane plane, struct hl_plane_stats *out);
/* Counts why something was repaired, refused or given up: helios_fault_total{cause,path}. Words as
 * above. */
void hl_fault_count(const char *cause, const char *path);
void hl_fault_add(const char *cause, const char *path, uint64_t count);

struct hl_fault {
    char cause[32], path[32];
    uint64_t count;
};

/* Takes the faults counted since the last call, to report them to another process; at most
 * `max`. */
size_t hl_fault_take(struct hl_fault *out, size_t max);
/* Prometheus text of everything above, appended. */
hl_status hl_plane_metrics(struct hl_buf *out) HL_CHECK;
/* Appends the header of a metric family, for code that appends its own gauges. */
void hl_metric_family(struct hl_buf *out, const char *name, const char *type, const char *help);
/* Writes a label's value, escaped, into out[cap]; returns out. */
const char *hl_metric_label(const char *word, char *out, size_t cap);
/* PREFIX_bytes_total, _ops_total, _failed_total, _latency_seconds of every plane. */
void hl_plane_families(struct hl_buf *out, const char *prefix,
                       const struct hl_plane_stats stats[HL_PLANE_COUNT]);

#ifdef __cplusplus
}
#endif

#endif
