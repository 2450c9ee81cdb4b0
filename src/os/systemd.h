/* os/systemd.h - whether systemd manages the machine.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_OS_SYSTEMD_H
#define HL_OS_SYSTEMD_H

#include <stdbool.h>

/* Whether systemd manages this machine, as sd_booted(3) tells. */
bool hl_systemd_booted(void);

#endif
