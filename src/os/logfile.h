/* os/logfile.h - a log file that a daemon keeps below a size: stdout and stderr go there.
 *
 * When the file has reached its size, PATH.1 becomes PATH.2 and so on, the file becomes PATH.1, and
 * stdout and stderr go to a new one. What libraries write counts and is rotated too. There is a
 * file at PATH all the time, unless the file system has no hard links.
 *
 * Owns:    the timer. stdout and stderr of the process stay what they are then.
 * Threads: the loop's.
 * Errors:  HL_EIO, HL_EPERM, HL_ENOENT for a file that can't be opened; later ones are logged, and
 *          the file goes on as it is.
 * Units:   bytes.
 * Limits:  the size is looked at first and once a second: what is written in between exceeds it.
 */
#ifndef HL_OS_LOGFILE_H
#define HL_OS_LOGFILE_H

#include <stdint.h>

#include "base/status.h"
#include "os/loop.h"

struct hl_logfile;

/* path "": stdout and stderr stay as they are, *out is NULL. max_bytes 0: never rotated. keep: how
 * many old files there are at most. */
hl_status hl_logfile_start(struct hl_loop *loop, const char *path, uint64_t max_bytes, int keep,
                           struct hl_logfile **out) HL_CHECK;
/* NULL is fine. */
void hl_logfile_stop(struct hl_logfile *f);

#endif
