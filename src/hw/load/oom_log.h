/* hw/load/oom_log.h - what the kernel's log says of a process that it killed for want of memory.
 *
 * Owns:    nothing.
 * Threads: any. Never blocks.
 * Errors:  HL_EPERM: the log is closed to this user; HL_EIO names the file.
 * Units:   us since the boot, as the log has them.
 * Limits:  the log is a ring: old lines are gone. Of a process in a namespace of its own the log
 *          has another number than its container.
 */
#ifndef HL_HW_LOAD_OOM_LOG_H
#define HL_HW_LOAD_OOM_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_OOM_LOG "/dev/kmsg"

/* The newest line at since_us or later that says that `pid` was killed; "" when there is none. */
hl_status hl_oom_log_find(const char *path, int pid, uint64_t since_us, char *out,
                          size_t cap) HL_CHECK;

#endif
