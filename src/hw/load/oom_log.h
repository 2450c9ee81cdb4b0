/* hw/load/oom_log.h - what the kernel's log says of a process that it killed for want of memory:
 * one process, or any of a control group, as a child of a rank.
 *
 * Owns:    nothing.
 * Threads: any. Never blocks.
 * Errors:  HL_EPERM: the log is closed to this user; HL_EIO names the file.
 * Units:   us since the boot, as the log has them.
 * Limits:  the log is a ring: old lines are gone. Where this machine is a container itself, the
 *          log's process numbers are not ours: there the group counts.
 */
#ifndef HL_HW_LOAD_OOM_LOG_H
#define HL_HW_LOAD_OOM_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_OOM_LOG "/dev/kmsg"

struct hl_oom_query {
    int pid;           /* 0 = none */
    const char *group; /* last part of the path of its control group; "" = none */
    uint64_t since_us;
};

/* The newest line that says that such a process was killed; "" when there is none. */
hl_status hl_oom_log_find(const char *path, const struct hl_oom_query *query, char *out,
                          size_t cap) HL_CHECK;

#endif
