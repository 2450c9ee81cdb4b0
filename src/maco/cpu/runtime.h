/* maco/cpu/runtime.h - runs anything that looks like a plan; used by maco_run, the demo and tests.
 *
 * Owns:    the runtime as helios/maco.h says; it keeps pointers into a source, under the source's
 *          serial.
 * Threads: one run at a time; maco_cancel from any thread.
 * Errors:  those of maco_run.
 * Units:   nanoseconds.
 * Limits:  HL_MACO_WORKERS workers, HL_MACO_GROUPS groups.
 */
#ifndef HL_MACO_CPU_RUNTIME_H
#define HL_MACO_CPU_RUNTIME_H

#include "base/status.h"
#include "helios/maco.h"
#include "maco/trace/trace.h"

#define HL_MACO_WORKERS 1024
#define HL_MACO_GROUPS  64

struct hl_maco_function {
    maco_function call;
    void *arg;
};

/* Tasks 0 <= i < n_tasks are in an order in which each comes after those it waits for. Everything
 * that a source points to must stay alive and unchanged while it runs, and until its order and
 * records have been read. */
struct hl_maco_source {
    maco_plan_view view;
    uint64_t serial;                          /* unique to the plan; not 0 */
    const struct hl_maco_function *functions; /* by `user` of CUSTOM_... */
    uint32_t n_functions;
    /* the plan that holds the functions, and the function that resolves them; NULL */
    const maco_plan *plan;
    hl_status (*function)(const maco_plan *plan, uint64_t user, maco_function *f, void **arg);
};

hl_status hl_maco_run_source(maco_runtime *r, const struct hl_maco_source *source) HL_CHECK;
/* The plan's tasks in an order of completion, which agrees with each worker's own order and puts no
 * task before one that it waited for. *n may be less than n_tasks after a failed run. Release with
 * free(). */
hl_status hl_maco_run_tasks(const maco_runtime *r, uint32_t **tasks, uint32_t *n) HL_CHECK;
/* The records of the last run. Release with free(). */
hl_status hl_maco_run_records(const maco_runtime *r, struct hl_maco_record **records,
                              size_t *n) HL_CHECK;

#endif
