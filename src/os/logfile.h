/* os/logfile.h - a log file of limited size, to which a daemon redirects stdout and stderr.
 *
 * When the file reaches its maximum size, PATH.1 becomes PATH.2 and so on, the file becomes PATH.1,
 * and stdout and stderr go to a new file. Output of libraries counts and is rotated, too. A file
 * exists at PATH at all times, unless the file system has no hard links.
 *
 * Owns:    the timer. stdout and stderr stay redirected after the stop.
 * Threads: the loop's.
 * Errors:  HL_EIO, HL_EPERM, HL_ENOENT for a file that can't be opened; later ones are logged, and
 *          the current file is used further.
 * Units:   bytes.
 * Limits:  the size is checked at start and once a second, so it may be exceeded in between.
 */
#ifndef HL_OS_LOGFILE_H
#define HL_OS_LOGFILE_H

#include <stdint.h>

#include "base/status.h"
#include "os/loop.h"

struct hl_logfile;

/* path "": stdout and stderr are left alone, *out is NULL. max_bytes 0: never rotate. keep: maximum
 * number of old files. */
hl_status hl_logfile_start(struct hl_loop *loop, const char *path, uint64_t max_bytes, int keep,
                           struct hl_logfile **out) HL_CHECK;
/* NULL is fine. */
void hl_logfile_stop(struct hl_logfile *f);

#endif
