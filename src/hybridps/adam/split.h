/* hybridps/adam/split.h - one range of elements, worked on by several threads.
 *
 * Owns:    its threads for the time of one call.
 * Threads: any; calls are independent.
 * Errors:  none: where a thread can't be started, the caller's does its part.
 * Units:   elements.
 * Limits:  HL_SPLIT_THREADS_MAX threads.
 */
#ifndef HL_HYBRIDPS_ADAM_SPLIT_H
#define HL_HYBRIDPS_ADAM_SPLIT_H

#include <stddef.h>

#define HL_SPLIT_THREADS_MAX 256

/* fn works on blocks [first, last). */
typedef void (*hl_split_fn)(void *arg, size_t first, size_t last);

/* All `blocks`, dealt out in equal runs to `threads` (0 = one per CPU this thread may use). */
void hl_split(size_t blocks, int threads, hl_split_fn fn, void *arg);

#endif
