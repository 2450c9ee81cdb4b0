/* hw/process/systemd_scope.h - a scope of systemd's for the calling process.
 *
 * On a machine that systemd runs, the control groups are its own: it takes the cpuset controller
 * away from groups it did not make whenever it looks at its units, and bindings go with it. In a
 * scope with delegation it leaves what is below alone.
 *
 * Owns:    nothing; the scope ends with its last process.
 * Threads: any; the scope holds the whole process.
 * Errors:  HL_ENOENT (no system bus), HL_EIO (systemd or the bus refuse), HL_ETIMEDOUT.
 * Units:   milliseconds.
 * Limits:  names of 249 bytes: letters, digits, '.', '_', '-', ':'.
 * Source:  systemd's CGROUP_DELEGATION; org.freedesktop.systemd1(5), StartTransientUnit.
 */
#ifndef HL_HW_PROCESS_SYSTEMD_SCOPE_H
#define HL_HW_PROCESS_SYSTEMD_SCOPE_H

#include "base/status.h"

/* Moves the calling process into NAME.scope of helios.slice, with the controllers cpuset and memory
 * for groups of its own. Wants root. The system bus is that of DBUS_SYSTEM_BUS_ADDRESS, if set. */
hl_status hl_systemd_scope(const char *name, int timeout_ms) HL_CHECK;

#endif
