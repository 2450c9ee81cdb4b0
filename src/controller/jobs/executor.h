/* controller/jobs/executor.h - who runs the containers of a job: the Agents of this cluster's nodes
 * (jobs/agents.c) or Kubernetes (kube/executor.c).
 *
 * What a job is and what comes next is decided by core/jobstate.h and kept by jobs.c; an executor
 * makes and ends containers and tells by job_event what became of them. A job stays with the
 * executor it was submitted to; new ones go to controller->executor.
 *
 * Owns:    nothing: constant tables of functions.
 * Threads: the Controller's loop.
 * Errors:  as each function says; what fails later is an event of the job.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_JOBS_EXECUTOR_H
#define HL_CONTROLLER_JOBS_EXECUTOR_H

#include "api/types.h"
#include "core/jobstate.h"

struct hl_controller;
struct hl_rpc_call;
struct job;

/* Which part of whose output is asked for. */
struct log_ask {
    int index, rank; /* container of the plan, and one of its ranks */
    int attempt;
    int64_t offset; /* < 0 counts from the end */
    int64_t max_bytes;
    struct hl_api_controller_read_log_results about; /* what the answer says beside the bytes */
};

struct job_executor {
    enum hl_job_executor kind;
    /* Placed gangs wait in a queue of its own, and it knows by itself that a node is lost: of the
     * deadlines only those that the job's file states count. */
    bool has_deadlines;
    /* Ranks have the directories and the PATH of an image, not those of the submitter. */
    bool has_image;
    /* A job is being submitted: what it is known by is written into j->doc. */
    void (*admit)(struct job *j);
    /* True: the stored job is one that this executor has admitted. */
    bool (*restore)(struct job *j);
    /* Where the job would run now. HL_EINVAL: it can't be run here at all. */
    hl_status (*plan)(struct hl_controller *c, const struct hl_job *spec, const char *id,
                      int attempt, struct hl_plan **out) HL_CHECK;
    /* Have started and stopped what these actions say. The job is saved. */
    void (*carry_out)(struct job *j, const struct hl_job_actions *actions);
    /* The store has what the job is. NULL: nothing follows. */
    void (*saved)(struct job *j);
    /* With every tick, of a job that is not over: find what was lost. NULL: it needs no tick. */
    void (*watch)(struct job *j);
    /* With every tick, of a saved job: what failed for a reason that may pass. NULL: likewise. */
    void (*retry)(struct job *j);
    /* What is known of container `index` of `run` beside what the job remembers. */
    void (*describe)(const struct job *j, const struct hl_jobrun *run, int index,
                     struct hl_arena *arena, struct hl_api_container_status *io);
    /* What a job that is up waits for; "" = nothing. Into cap bytes. NULL: nothing ever. */
    void (*waits_for)(const struct job *j, char *out, size_t cap);
    /* Answers the call. */
    void (*read_log)(struct job *j, struct hl_rpc_call *call, const struct log_ask *ask);
    /* True: the job is not to be forgotten yet. NULL: it never needs one that is over. */
    bool (*needs)(const struct job *j);
    /* The job is forgotten: what was kept for it goes, too. */
    void (*forget)(const struct job *j);
};

extern const struct job_executor agents_executor;
extern const struct job_executor kube_executor;

#endif
