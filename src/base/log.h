/* base/log.h - one line per event: a sentence, then key=value pairs.
 *
 * Owns:    the sink (a FILE or stderr) and the level.
 * Threads: any; a line is written with one write under stdio's lock.
 * Errors:  none; a line that can't be written is dropped.
 * Units:   timestamps are UTC with milliseconds.
 * Limits:  a line is truncated at 2 KiB. At most 50 lines per second are written for one message
 *          (one format string); the first one after that says how many were left out.
 */
#ifndef HL_BASE_LOG_H
#define HL_BASE_LOG_H

#include <stdbool.h>

#include "base/status.h"

enum hl_log_level { HL_LOG_ERROR, HL_LOG_WARN, HL_LOG_INFO, HL_LOG_DEBUG };

/* program: name shown in every line ("controller"); borrowed for the lifetime of the process. */
void hl_log_init(const char *program, enum hl_log_level level);
void hl_log_set_level(enum hl_log_level level);
/* Whether lines of this level are written. */
bool hl_log_shows(enum hl_log_level level);
/* Level by name ("error", "warn", "info", "debug"). */
hl_status hl_log_level_parse(const char *text, enum hl_log_level *out) HL_CHECK;
/* Number of error and warning lines so far: tests fail on unexpected ones. */
unsigned hl_log_count(enum hl_log_level level);

void hl_log_write(enum hl_log_level level, const char *fmt, ...) HL_PRINTF(2, 3);

#define hl_error(...) hl_log_write(HL_LOG_ERROR, __VA_ARGS__)
#define hl_warn(...)  hl_log_write(HL_LOG_WARN, __VA_ARGS__)
#define hl_info(...)  hl_log_write(HL_LOG_INFO, __VA_ARGS__)
#define hl_debug(...) hl_log_write(HL_LOG_DEBUG, __VA_ARGS__)

#endif
