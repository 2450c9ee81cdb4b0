/* os/loop.h - the daemon's main loop: libuv plus a thread-safe mailbox.
 *
 * Owns:    the uv loop. Handles made on hl_loop_uv() belong to their maker.
 * Threads: everything runs on the thread in hl_loop_run(); only hl_loop_post() and hl_loop_stop()
 *          may be called from elsewhere. State owned by a loop asserts HL_ON_LOOP(loop).
 * Errors:  HL_ENOMEM, HL_EIO from libuv.
 * Units:   milliseconds.
 * Limits:  posted tasks are unbounded in number; they run in order.
 */
#ifndef HL_OS_LOOP_H
#define HL_OS_LOOP_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "base/status.h"

struct hl_loop;
struct hl_timer;
typedef void (*hl_loop_fn)(void *arg);

hl_status hl_loop_create(struct hl_loop **out) HL_CHECK;
/* NULL is fine. Closes what is left on the loop. */
void hl_loop_destroy(struct hl_loop *loop);
uv_loop_t *hl_loop_uv(struct hl_loop *loop);
/* Runs until hl_loop_stop(). */
hl_status hl_loop_run(struct hl_loop *loop) HL_CHECK;
void hl_loop_stop(struct hl_loop *loop);
/* Runs fn(arg) on the loop's thread, after the current callback. Never blocks, never runs it
 * inline. */
void hl_loop_post(struct hl_loop *loop, hl_loop_fn fn, void *arg);
/* Drops tasks posted with `arg` that have not run yet. Called on the loop's thread by an owner of
 * `arg` that ends before the loop; no thread may post with `arg` after that. */
void hl_loop_cancel(struct hl_loop *loop, const void *arg);
bool hl_loop_is_current(const struct hl_loop *loop);
#define HL_ON_LOOP(loop) assert(hl_loop_is_current(loop))

/* Calls fn(arg) in `delay_ms`, then every `repeat_ms` (0 = once). End it with hl_timer_destroy. */
hl_status hl_timer_create(struct hl_loop *loop, uint64_t delay_ms, uint64_t repeat_ms,
                          hl_loop_fn fn, void *arg, struct hl_timer **out) HL_CHECK;
void hl_timer_destroy(struct hl_timer *t);
/* SIGTERM and SIGINT stop the loop. */
hl_status hl_loop_stop_on_signals(struct hl_loop *loop) HL_CHECK;

#endif
