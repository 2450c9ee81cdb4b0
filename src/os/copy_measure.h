/* os/copy_measure.h - chooses the copy kernels that are fastest on this host.
 *
 * The first call of a process takes the choice that an earlier process of this boot kept, or
 * measures (about 30 ms, 64 MiB for that long) and keeps what it found in XDG_RUNTIME_DIR, else in
 * /dev/shm. What is kept is of this user, this boot and this processor; anything else in the file
 * means to measure again.
 *
 * Owns:    the kept file, .helios-copy-UID; it holds names and may be removed at any time.
 * Threads: any; the first call measures, others wait for it.
 * Errors:  none: without memory or a place to keep the choice, the process does without.
 * Units:   bytes, ns.
 * Limits:  none.
 */
#ifndef HL_OS_COPY_MEASURE_H
#define HL_OS_COPY_MEASURE_H

#include "base/buf.h"
#include "base/copy.h"
#include "base/status.h"

void hl_copy_measure(void);

/* The parts, for tests and bench. */
/* False: not enough memory. */
bool hl_copy_measure_now(struct hl_copy_choice *out);
/* The text that is kept, and back; HL_EINVAL when it is not of this host or not a choice. */
hl_status hl_copy_choice_format(const struct hl_copy_choice *choice, struct hl_buf *out) HL_CHECK;
hl_status hl_copy_choice_parse(const char *text, struct hl_copy_choice *out) HL_CHECK;

#endif
