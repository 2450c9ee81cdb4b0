/* hw/process/systemd_scope.h - a systemd scope for the calling process.
 *
 * On a machine that runs systemd, systemd owns the control groups. Whenever it reviews its units,
 * it removes the cpuset controller from groups that it did not create, and the bindings are lost.
 * In a scope with delegation it leaves everything below alone.
 *
 * Owns:    nothing; the scope ends with its last process.
 * Threads: any; the scope applies to the whole process.
 * Errors:  HL_ENOENT (no system bus), HL_EIO (systemd or the bus refuses), HL_ETIMEDOUT.
 * Units:   milliseconds.
 * Limits:  names of 249 bytes: letters, digits, '.', '_', '-', ':'.
 * Source:  systemd's CGROUP_DELEGATION; org.freedesktop.systemd1(5), StartTransientUnit.
 */
#ifndef HL_HW_PROCESS_SYSTEMD_SCOPE_H
#define HL_HW_PROCESS_SYSTEMD_SCOPE_H

#include "base/status.h"

/* Moves the calling process into NAME.scope of helios.slice, with the controllers cpuset and memory
 * for groups below it. Requires root. Uses the system bus of DBUS_SYSTEM_BUS_ADDRESS, if set. */
hl_status hl_systemd_scope(const char *name, int timeout_ms) HL_CHECK;

#endif
