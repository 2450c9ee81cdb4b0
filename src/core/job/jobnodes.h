/* core/job/jobnodes.h - what a node's report, or its silence, says about a job's containers.
 *
 * Owns:    nothing.
 * Threads: any. Pure: no I/O, no clock.
 * Errors:  none.
 * Units:   ms; of one clock.
 * Limits:  those of the job.
 */
#ifndef HL_CORE_JOB_JOBNODES_H
#define HL_CORE_JOB_JOBNODES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/job/jobstate.h"

/* How long a silent node is waited for. */
struct hl_patience {
    int64_t job_ms;     /* as the job says; < 0: it does not */
    int64_t default_ms; /* where it does not */
    int64_t lost_ms;    /* from then on a node gets no new containers; no job waits for less */
};

/* Silence after which the job gives up its containers on the node: at once where nothing is to be
 * saved, in a job that is being stopped or whose ranks have not begun there. */
int64_t hl_jobrun_patience_ms(const struct hl_jobrun *run, const char *node,
                              const struct hl_patience *patience);

/* No sign of life for longer than that: it gets no new containers. */
bool hl_node_is_lost(int64_t silent_ms, int64_t lost_after_ms);

struct hl_node_silence {
    bool lost; /* as hl_node_is_lost said */
    int64_t silent_ms;
};

/* The job does not wait for that container any longer, whose node is silent. */
bool hl_jobrun_gives_up(const struct hl_jobrun *run, int index,
                        const struct hl_node_silence *silence, const struct hl_patience *patience);

/* The container may run on its node, as far as anybody has said. */
bool hl_jobrun_may_run(const struct hl_jobrun *run, int index);
/* One of them may: the node must not be forgotten. */
bool hl_jobrun_needs_node(const struct hl_jobrun *run, const char *node);
/* The job counts on that container, wherever it runs; NULL: the job is unknown. */
bool hl_jobrun_wants(const struct hl_jobrun *run, int attempt, int index);
/* Nothing of the attempt is wanted any more. */
bool hl_jobrun_attempt_is_over(const struct hl_jobrun *run, int attempt);

/* The node reports all of its containers, and this one is not among them: it is gone. Not one whose
 * start is under way, or may be tried again. `starting`: a start call has no answer yet. */
bool hl_jobrun_is_absent(const struct hl_jobrun *run, int index, const char *node, bool starting);

/* A node reports a container that runs or starts and is not to: its job is unknown (NULL)
 * or has ended, or is in another attempt. */
bool hl_container_is_stray(const struct hl_jobrun *run, int attempt,
                           enum hl_api_container_state state);

/* A container that is over has been kept long enough; keep_ms 0 = for ever, finished_ms 0 = it is
 * not over. */
bool hl_container_is_stale(int64_t finished_ms, int64_t now_ms, int64_t keep_ms);

/* ---- which rank failed first ---- */

/* The rank and when it failed; rank -1: none is known. */
struct hl_rank_failure {
    int rank;
    int64_t at_ms;
};

#define HL_RANK_FAILURE_NONE ((struct hl_rank_failure){-1, INT64_MAX})

/* Container of the plan that holds a rank, -1 when it has none. */
int hl_plan_container_of(const struct hl_plan *plan, int rank);
/* Keeps the earliest of *first and the container's ranks. */
void hl_rank_fails_first(const struct hl_api_container_status *status,
                         struct hl_rank_failure *first);
/* By the containers' messages, where they begin with the rank: of pods nothing else is left. */
struct hl_rank_failure hl_jobrun_failed_rank(const struct hl_jobrun *run);

#endif
