/* hw/load/container_load.h - what running containers use: read from their control groups (v2, v1,
 * both), or from the process trees of their ranks if they have no control group of their own.
 *
 * Owns:    the processor time of the previous reading, by container.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM. A container whose processes have just ended is left out.
 * Units:   bytes; percent of one processor; ns.
 * Limits:  HL_CONTAINER_LOADS_MAX rows, others are counted in left_out; at most 65536 processes of
 *          the node are examined.
 */
#ifndef HL_HW_LOAD_CONTAINER_LOAD_H
#define HL_HW_LOAD_CONTAINER_LOAD_H

#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

#define HL_CONTAINER_LOADS_MAX 256

struct hl_container_before;

/* Zero-initialise. */
struct hl_container_probe {
    struct hl_container_before *before; /* by container */
    uint64_t read_ns;                   /* 0 = never */
};

/* proc: "/proc". */
hl_status hl_container_loads_read(struct hl_container_probe *p, const char *proc, uint64_t now_ns,
                                  const struct hl_api_container_status_list *containers,
                                  struct hl_arena *arena, struct hl_api_container_load_list *out,
                                  uint32_t *left_out) HL_CHECK;
void hl_container_probe_fini(struct hl_container_probe *p);

#endif
