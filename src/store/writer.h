/* store/writer.h - commits on a separate thread, so that a slow disk does not block a loop.
 *
 * Batches are committed in the order in which they were put. Batches that queue up while the disk
 * is busy are committed together (one fsync). If that fails, each batch is tried alone, so that one
 * bad batch does not fail the others.
 *
 * Owns:    the thread and the queue; the store is borrowed until stop returns.
 * Threads: call every function on the loop's thread; `done` runs there too, in the order of put.
 * Errors:  those of hl_store_commit(), passed to `done` with their text.
 * Units:   ms.
 * Limits:  the queue is unbounded; callers wait for `done` before they put the same object again. A
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
/* Waits until every put is committed or refused; each `done` still runs, on the loop. NULL is
 * allowed. */
void hl_store_writer_stop(struct hl_store_writer *w);
/* The operations are read before this returns. `done` runs exactly once, never inside this call. */
void hl_store_writer_put(struct hl_store_writer *w, const struct hl_store_op *ops, size_t n,
                         hl_store_written done, void *arg);

#endif
