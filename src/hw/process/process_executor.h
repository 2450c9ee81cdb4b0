/* hw/process/process_executor.h - containers as plain processes: one shim per container.
 *
 * The shim (this program started again with "shim DIR") is an independent daemon: it creates the
 * control group, starts the ranks, waits for them, ends them as a gang, and writes DIR/status.json
 * on every change. The executor only watches, so it may die and come back: a running shim holds a
 * lock on DIR/shim.pid, and is found again by pid and start time.
 *
 *   STATE/executor.lock          held by the executor
 *   STATE/containers/ID/spec.json status.json status.reserve shim.pid shim.log cgroup stop
 *                       rank-N.log work/
 *
 * Ranks write into pipes, and the shim copies their output to rank-N.log, the only place where it
 * is kept. When the disk is full the shim keeps reading, and status.json carries a warning.
 * status.reserve is space for status.json on a full disk.
 *
 * Owns:    STATE/containers and a watcher thread.
 * Threads: see hw/executor.h; hl_shim_main owns its whole process.
 * Errors:  a shim that ends without a result (kill -9) takes its ranks with it, and the container
 *          is failed with a message.
 * Units:   milliseconds.
 * Limits:  see hw/executor.h.
 */
#ifndef HL_HW_PROCESS_PROCESS_EXECUTOR_H
#define HL_HW_PROCESS_PROCESS_EXECUTOR_H

#include "hw/executor.h"

/* Descriptors that a shim inherits. */
#define HL_SHIM_LOCK_FD  3
#define HL_SHIM_READY_FD 4

/* The body of `helios-agent shim DIR`: returns the exit status of the process. */
int hl_shim_main(const char *dir);

#endif
