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

#include <pthread.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

struct hl_telemetry_probe {
    pthread_mutex_t lock;
    char root[256];
    uint64_t busy, total; /* ticks */
    double last_percent;
};

/* root: "/proc", or a directory with such files for tests. */
void hl_telemetry_init(struct hl_telemetry_probe *p, const char *root);
void hl_telemetry_fini(struct hl_telemetry_probe *p);
/* cpu_busy_percent is since the previous reading; since boot at the first. */
hl_status hl_telemetry_read(struct hl_telemetry_probe *p, struct hl_api_telemetry *out) HL_CHECK;

#endif
