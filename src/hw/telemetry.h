/* hw/telemetry.h - what a node is doing, from /proc.
 *
 * Owns:    the counters of the previous reading, from which the busy share of the CPUs is made.
 * Threads: any; a probe locks itself.
 * Errors:  HL_EIO names the file that can't be read.
 * Units:   as struct Telemetry of helios.capnp: bytes, percent of all CPUs, ms since 1970.
 * Limits:  none.
 */
#ifndef HL_HW_TELEMETRY_H
#define HL_HW_TELEMETRY_H

#include <jansson.h>
#include <pthread.h>
#include <stdint.h>

#include "base/status.h"

struct hl_telemetry {
    int64_t time_ms;
    double load1;
    double cpu_busy_percent; /* since the previous reading; since boot at the first */
    uint64_t memory_total_bytes;
    uint64_t memory_available_bytes;
    uint64_t rx_bytes; /* all interfaces but loopback, since boot */
    uint64_t tx_bytes;
};

struct hl_telemetry_probe {
    pthread_mutex_t lock;
    char root[256];
    uint64_t busy, total; /* ticks */
    double last_percent;
};

/* root: "/proc", or a directory with such files for tests. */
void hl_telemetry_init(struct hl_telemetry_probe *p, const char *root);
void hl_telemetry_fini(struct hl_telemetry_probe *p);
hl_status hl_telemetry_read(struct hl_telemetry_probe *p, struct hl_telemetry *out) HL_CHECK;
/* struct Telemetry; new reference, NULL when out of memory. */
json_t *hl_telemetry_to_json(const struct hl_telemetry *t);

#endif
