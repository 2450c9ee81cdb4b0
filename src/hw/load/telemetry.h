/* hw/load/telemetry.h - what a node is doing: its processors, memory, GPUs, network ports, slots
 * and running containers, and the problems with them since the start.
 *
 * A reading is shared: a caller that asks again within the period gets the last one. Its time is
 * that of the answer, from which other nodes learn this node's clock.
 *
 * Owns:    the counters of the previous reading, from which shares and rates are computed.
 * Threads: any; a lock is held for a whole reading, so that two concurrent callers do not split one
 *          interval.
 * Errors:  HL_EIO names the file that can't be read. What a machine does not have is not an error.
 * Units:   as struct Telemetry of helios.capnp: bytes, percent, ms since 1970.
 * Limits:  a reading has at most 64 slots, HL_NICS_MAX ports, HL_NVML_GPUS_MAX GPUs,
 *          HL_CONTAINER_LOADS_MAX containers and 16 troubles; left_out counts the others.
 */
#ifndef HL_HW_LOAD_TELEMETRY_H
#define HL_HW_LOAD_TELEMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/buf.h"
#include "base/status.h"

#define HL_TELEMETRY_SLOTS_MAX    64
#define HL_TELEMETRY_TROUBLES_MAX 16

struct hl_telemetry;

struct hl_telemetry_opts {
    const char *proc;                     /* "/proc" */
    const char *sys;                      /* "/sys" */
    const char *nvml;                     /* library; "" = don't read GPUs */
    const struct hl_api_slot_list *slots; /* copied */
    bool own_numa;                        /* the slots' numbers are this machine's NUMA nodes */
    const char *log_dir;                  /* where the output of ranks is kept; "" = don't check */
    uint64_t log_free_bytes;              /* less free space there is a trouble; 0 = never */
    const char *backbone;                 /* interface on it; "" = the loopback */
    uint64_t backbone_bits;               /* capacity of its line per second; 0 = unknown */
    int period_ms;
};

/* All texts of the options are copied. */
hl_status hl_telemetry_open(const struct hl_telemetry_opts *opts,
                            struct hl_telemetry **out) HL_CHECK;
/* NULL is fine. */
void hl_telemetry_close(struct hl_telemetry *t);
/* Shares cover the time since the previous reading; cpu_busy_percent of the first reading covers
 * the time since boot. */
hl_status hl_telemetry_read(struct hl_telemetry *t,
                            const struct hl_api_container_status_list *containers,
                            struct hl_arena *arena, struct hl_api_telemetry *out) HL_CHECK;

/* telemetry_metrics.c: families of /metrics, without names of jobs. */
hl_status hl_telemetry_gauges(const struct hl_api_telemetry *t, struct hl_buf *out) HL_CHECK;

#endif
