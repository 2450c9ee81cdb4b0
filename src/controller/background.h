/* controller/background.h - runs work that would block the loop for too long in a thread of the
 * loop's pool, on copies.
 *
 *     loop    background_start ------------------------> done
 *     thread                   '--run, on copies only--'
 *
 * Owns:    nothing: the task is the first member of the struct that `done` frees.
 * Threads: background_start and `done` run on the loop; `run` in another thread.
 * Errors:  `done` gets the status of `run`, with hl_error_text(), or HL_ECANCELED.
 * Units:   none.
 * Limits:  as many tasks at once as libuv's pool has threads (4); the others wait.
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
    /* Called once, and never inside background_start; must begin with controller_stopped. */
    void (*done)(struct background *task, hl_status st);
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* Set `run` and `done` first. The Controller outlives `done`. On failure neither is called. */
hl_status background_start(struct hl_controller *c, struct background *task) HL_CHECK;

#endif
