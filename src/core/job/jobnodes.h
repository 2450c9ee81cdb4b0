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

/* How long to wait for a silent node. */
struct hl_patience {
    int64_t job_ms;     /* the job's own value; < 0: it has none */
    int64_t default_ms; /* used if the job has none */
    int64_t lost_ms;    /* after this time a node gets no new containers; no job waits for less */
};

/* How long a node may be silent before the job gives up its containers there. There is no extra
 * patience if there is nothing to save: when the job is being stopped, or its ranks have not
 * started there. */
int64_t hl_jobrun_patience_ms(const struct hl_jobrun *run, const char *node,
                              const struct hl_patience *patience);

/* The node has been silent for longer than lost_after_ms: it gets no new containers. */
bool hl_node_is_lost(int64_t silent_ms, int64_t lost_after_ms);

/* A call of an Agent that ended so is made again. HL_ECANCELED: the Agent registered at another
 * address meanwhile, which ends the calls of the old one. */
bool hl_node_call_retryable(hl_status st);

struct hl_node_silence {
    bool lost; /* result of hl_node_is_lost */
    int64_t silent_ms;
};

/* The job no longer waits for that container, whose node is silent. */
bool hl_jobrun_gives_up(const struct hl_jobrun *run, int index,
                        const struct hl_node_silence *silence, const struct hl_patience *patience);

/* As far as anyone has reported, the container may still run on its node. */
bool hl_jobrun_may_run(const struct hl_jobrun *run, int index);
/* Some container may still run on the node, so the node must not be forgotten. */
bool hl_jobrun_needs_node(const struct hl_jobrun *run, const char *node);
/* The job counts on that container, wherever it runs; NULL: the job is unknown. */
bool hl_jobrun_wants(const struct hl_jobrun *run, int attempt, int index);
/* No container of the attempt is needed any more. */
bool hl_jobrun_attempt_is_over(const struct hl_jobrun *run, int attempt);

/* The node has reported all of its containers without this one, so it is gone. False if its start
 * is in progress or may be retried. `starting`: a start call has no answer yet. */
bool hl_jobrun_is_absent(const struct hl_jobrun *run, int index, const char *node, bool starting);

/* A node reports a container that runs or starts but should not: its job is unknown (run is NULL),
 * has ended, or is in another attempt. */
bool hl_container_is_stray(const struct hl_jobrun *run, int attempt,
                           enum hl_api_container_state state);

/* A finished container has been kept long enough; keep_ms 0 = keep for ever, finished_ms 0 = it has
 * not finished. */
bool hl_container_is_stale(int64_t finished_ms, int64_t now_ms, int64_t keep_ms);

/* ---- which rank failed first ---- */

/* A rank and when it failed; rank -1: none is known. */
struct hl_rank_failure {
    int rank;
    int64_t at_ms;
};

#define HL_RANK_FAILURE_NONE ((struct hl_rank_failure){-1, INT64_MAX})

/* The plan's container that holds the rank; -1 if no container does. */
int hl_plan_container_of(const struct hl_plan *plan, int rank);
/* Sets *first to the earliest failure among *first and the container's ranks. */
void hl_rank_fails_first(const struct hl_api_container_status *status,
                         struct hl_rank_failure *first);
/* Finds the rank from the containers' messages, if they begin with its number. Nothing else remains
 * of pods. */
struct hl_rank_failure hl_jobrun_failed_rank(const struct hl_jobrun *run);

#endif
