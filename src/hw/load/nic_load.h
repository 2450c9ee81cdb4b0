/* hw/load/nic_load.h - traffic of a node's network ports, from sysfs: /sys/class/net and the ports
 * of /sys/class/infiniband. Rates cover the time since the previous reading.
 *
 * Owns:    the counters of the previous reading.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM. An unreadable file counts as 0.
 * Units:   bytes, bytes per second, ns.
 * Limits:  HL_NICS_MAX rows, physical NICs first; others are counted in left_out.
 */
#ifndef HL_HW_LOAD_NIC_LOAD_H
#define HL_HW_LOAD_NIC_LOAD_H

#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

#define HL_NICS_MAX 32

/* Zero-initialise. */
struct hl_nic_probe {
    struct {
        char name[64];
        uint64_t rx, tx;
    } before[HL_NICS_MAX];

    size_t count;
    uint64_t read_ns; /* 0 = never */
};

hl_status hl_nics_read(struct hl_nic_probe *p, const char *sys, uint64_t now_ns,
                       struct hl_arena *arena, struct hl_api_nic_load_list *out,
                       uint32_t *left_out) HL_CHECK;

#endif
