/* core/failure/failure.h - which rank of an attempt failed first, and what is kept of it.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms since 1970; bytes.
 * Limits:  HL_FAILURE_LINES lines and HL_FAILURE_LOG_MAX bytes are kept of a log.
 */
#ifndef HL_CORE_FAILURE_FAILURE_H
#define HL_CORE_FAILURE_FAILURE_H

#include <stddef.h>
#include <stdint.h>

#include "api/types.h"

#define HL_FAILURE_LINES   200
#define HL_FAILURE_LOG_MAX ((size_t)64 << 10)

/* *first has time_ms 0 as long as none is known. Keeps the earlier of itself and what this
 * container says, and counts the others. `ahead_ms`: the clock of the container's node before ours.
 * Texts are borrowed from the status. */
void hl_failure_consider(struct hl_api_job_failure *first,
                         const struct hl_api_container_status *status, const char *node,
                         int64_t ahead_ms);
/* Of the rank of a container that failed first; *rank is -1 where it is not one. */
enum hl_api_failure_kind hl_failure_kind(const struct hl_api_container_status *status, int *rank);
/* A sentence: "rank 3 on node-1 was killed by signal 9 for want of memory". Cut to cap bytes. */
void hl_failure_sentence(const struct hl_api_job_failure *f, char *out, size_t cap);
/* Where the last HL_FAILURE_LINES lines of a text begin, of at most HL_FAILURE_LOG_MAX bytes. */
size_t hl_failure_tail(const char *text, size_t len);

#endif
