/* controller/background.h - what takes longer than the loop may stand still: it runs in a thread of
 * the loop's pool, on copies.
 *
 *     loop    background_start ------------------------> done
 *     thread                   '--run, on copies only--'
 *
 * Owns:    nothing: the task is the first member of what `done` frees.
 * Threads: background_start and `done` on the loop; `run` in any other thread.
 * Errors:  `done` is told what `run` returned, with hl_error_text(), or HL_ECANCELED.
 * Units:   none.
 * Limits:  as many at once as libuv's pool has threads (4); the others wait.
 */
#ifndef HL_CONTROLLER_BACKGROUND_H
#define HL_CONTROLLER_BACKGROUND_H

#include <uv.h>

#include "base/status.h"

struct hl_controller;

struct background {
    uv_work_t work;
    struct hl_controller *c;
    hl_status (*run)(struct background *task);
    /* Once, and never inside background_start; begins with controller_stopped. */
    void (*done)(struct background *task, hl_status st);
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* `run` and `done` are set. The Controller outlives `done`. On a failure neither is called. */
hl_status background_start(struct hl_controller *c, struct background *task) HL_CHECK;

#endif
