/* hybridps/adam/split.h - splits one range of elements among several threads.
 *
 * Owns:    its threads, for the duration of one call.
 * Threads: any; calls are independent.
 * Errors:  none: if a thread can't be started, the calling thread does its part.
 * Units:   elements.
 * Limits:  HL_SPLIT_THREADS_MAX threads.
 */
#ifndef HL_HYBRIDPS_ADAM_SPLIT_H
#define HL_HYBRIDPS_ADAM_SPLIT_H

#include <stddef.h>

#define HL_SPLIT_THREADS_MAX 256

/* fn works on blocks [first, last). */
typedef void (*hl_split_fn)(void *arg, size_t first, size_t last);

/* Runs fn on all `blocks`, divided into equal runs among `threads` (0 = one per CPU that this
 * thread may use). */
void hl_split(size_t blocks, int threads, hl_split_fn fn, void *arg);

#endif
