/* hw/process/process_executor.h - containers as plain processes: one shim per container.
 *
 * The shim (this program started again with "shim DIR") is a daemon of its own: it makes the
 * control group, starts the ranks, waits for them, ends them as a gang, and writes DIR/status.json
 * on every change. The executor only watches, so it may die and come back: a running shim holds a
 * lock on DIR/shim.pid and is found again by pid and start time.
 *
 *   STATE/executor.lock          held by the executor
 *   STATE/containers/ID/spec.json status.json status.reserve shim.pid shim.log cgroup stop
 *                       rank-N.log work/
 *
 * Ranks write into pipes; the shim writes what comes to rank-N.log, the only output that is kept.
 * Where the disk has no room it goes on reading, and status.json carries a warning; status.reserve
 * is space for status.json on a full disk.
 *
 * Owns:    STATE/containers, a watcher thread.
 * Threads: see hw/executor.h; hl_shim_main owns its whole process.
 * Errors:  a shim that ends without a result (kill -9) takes its ranks with it, and the container
 *          is failed with a message.
 * Units:   milliseconds.
 * Limits:  see hw/executor.h.
 */
#ifndef HL_HW_PROCESS_PROCESS_EXECUTOR_H
#define HL_HW_PROCESS_PROCESS_EXECUTOR_H

#include "hw/executor.h"

/* Descriptors a shim is born with. */
#define HL_SHIM_LOCK_FD  3
#define HL_SHIM_READY_FD 4

/* The body of `helios-agent shim DIR`: returns the exit status of the process. */
int hl_shim_main(const char *dir);

#endif
