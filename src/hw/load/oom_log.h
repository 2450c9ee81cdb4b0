/* hw/load/oom_log.h - what the kernel's log says about a process that was OOM-killed: one process,
 * or any of a control group, such as a child of a rank.
 *
 * Owns:    nothing.
 * Threads: any. Never blocks.
 * Errors:  HL_EPERM: the log is closed to this user; HL_EIO names the file.
 * Units:   us since boot, as in the log.
 * Limits:  the log is a ring, so old lines are lost. If this machine is itself a container, the
 *          log's process numbers are not ours, and only the group identifies a process.
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

/* Finds the newest line that says that such a process was killed; "" when there is none. */
hl_status hl_oom_log_find(const char *path, const struct hl_oom_query *query, char *out,
                          size_t cap) HL_CHECK;

#endif
