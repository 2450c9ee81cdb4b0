/* os/copy_measure.h - chooses the copy kernels that are fastest on this host.
 *
 * The first call of a process uses the choice that an earlier process of this boot stored, or
 * measures (about 30 ms, with 64 MiB for that time) and stores the result in XDG_RUNTIME_DIR, else
 * in /dev/shm. A stored choice is only valid for the same user, boot and processor; with any other
 * content of the file it measures again.
 *
 * Owns:    the kept file, .helios-copy-UID; it holds names and may be removed at any time.
 * Threads: any; the first call measures, others wait for it.
 * Errors:  none: without memory or a place to store the choice, the process does without.
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
/* Convert a choice to the stored text, and back; HL_EINVAL if it is from another host or not a
 * choice. */
hl_status hl_copy_choice_format(const struct hl_copy_choice *choice, struct hl_buf *out) HL_CHECK;
hl_status hl_copy_choice_parse(const char *text, struct hl_copy_choice *out) HL_CHECK;

#endif
