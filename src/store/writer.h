/* store/writer.h - commits on a thread of their own, so that a slow disk does not block a loop.
 *
 * Batches are committed in the order in which they were put. What waits while the disk is busy is
 * committed together (one fsync); when that fails, each batch is tried alone, so that one that can
 * not be written costs no other.
 *
 * Owns:    the thread and the queue; the store is borrowed until stop is back.
 * Threads: every function on the loop's thread; `done` runs there too, in the order of put.
 * Errors:  those of hl_store_commit(), given to `done` with their text.
 * Units:   ms.
 * Limits:  none on the queue: who puts waits for `done` before it puts the same object again. A
 *          commit that takes longer than HL_STORE_SLOW_MS is logged.
 */
#ifndef HL_STORE_WRITER_H
#define HL_STORE_WRITER_H

#include "os/loop.h"
#include "store/store.h"

#define HL_STORE_SLOW_MS 2000

struct hl_store_writer;
/* `text` is borrowed for the call. */
typedef void (*hl_store_written)(void *arg, hl_status st, const char *text);

hl_status hl_store_writer_start(struct hl_store *store, struct hl_loop *loop,
                                struct hl_store_writer **out) HL_CHECK;
/* NULL is fine. Waits until everything that was put is committed or refused; each `done` still
 * runs, from the loop. */
void hl_store_writer_stop(struct hl_store_writer *w);
/* The operations are read before this returns. `done` runs exactly once, never inside of this. */
void hl_store_writer_put(struct hl_store_writer *w, const struct hl_store_op *ops, size_t n,
                         hl_store_written done, void *arg);

#endif
