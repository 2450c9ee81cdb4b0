/* core/failure/failure.h - finds which rank of an attempt failed first, and what is recorded about
 * it.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   ms since 1970; bytes.
 * Limits:  HL_FAILURE_LINES lines and HL_FAILURE_LOG_MAX bytes of a log are kept.
 */
#ifndef HL_CORE_FAILURE_FAILURE_H
#define HL_CORE_FAILURE_FAILURE_H

#include <stddef.h>
#include <stdint.h>

#include "api/types.h"

#define HL_FAILURE_LINES   200
#define HL_FAILURE_LOG_MAX ((size_t)64 << 10)

/* Keeps the earlier of *first and this container's failure, and counts the others. *first has
 * time_ms 0 as long as none is known. ahead_ms: how far the clock of the container's node is ahead
 * of ours. Texts are borrowed from the status. */
void hl_failure_consider(struct hl_api_job_failure *first,
                         const struct hl_api_container_status *status, const char *node,
                         int64_t ahead_ms);
/* The failure kind of the container's rank that failed first; *rank is -1 if it was not a rank. */
enum hl_api_failure_kind hl_failure_kind(const struct hl_api_container_status *status, int *rank);
/* The failure as a sentence: "rank 3 on node-1 was killed by signal 9 for want of memory".
 * Truncated to cap bytes. */
void hl_failure_sentence(const struct hl_api_job_failure *f, char *out, size_t cap);
/* Offset at which the last HL_FAILURE_LINES lines of a text begin, at most HL_FAILURE_LOG_MAX bytes
 * from its end. */
size_t hl_failure_tail(const char *text, size_t len);

#endif
