/* core/job/jobstate.h - the life of a job: events in, actions out, nothing else.
 *
 *   pending --placed--> starting --all run--> running --all succeeded--> succeeded
 *      ^                   | one failed, node lost, deadline, cancel |
 *      |                   | preempted                               |
 *      +---- restart ---- stopping <------------------------------- +
 *                          +--> failed | cancelled
 *
 * The caller (Controller) feeds every event, saves hl_jobrun_to_json in its store, and only then
 * carries out the actions; all of them are idempotent, so that after a crash hl_jobrun_resume may
 * repeat them. A new attempt is placed only after every container of the old one has ended or its
 * node is lost, so two attempts are never wanted at once. Statuses may arrive late, twice or out of
 * order. The caller decides how long a node may be silent before it counts as lost.
 *
 * Depending on the policy for its kind, a failure counts against max_restarts, ends the job or is
 * ignored. Each further attempt that makes no new step is delayed longer. Once the gang has run for
 * stable_ms and has made a step that no attempt had made before, the counts of restarts and lost
 * nodes start at 0 again.
 *
 * A gang may change its size while it runs (core/planner/resize.h): it continues without replicas
 * that were lost with a node, and containers may join it and become members. A container keeps the
 * index that the plan gave it, even when others are removed; events, actions and ids refer to that
 * index. The state of a container that is not a member does not affect the gang.
 *
 * If a container ends in an unknown way (failure LOST, or its node no longer has it), a gang
 * that replaces ranks replaces it: a parked container takes over its ranks, or else a new
 * container, with a new index, takes over its slot.
 *
 * Owns:    the run owns its plan and containers.
 * Threads: one owner. Pure: time comes with the event.
 * Errors:  HL_ENOMEM (nothing changed), HL_ECONFLICT for a plan that was not asked for, HL_ECORRUPT
 *          for a malformed record.
 * Units:   ms since 1970.
 * Limits:  a failure message keeps 255 bytes.
 */
#ifndef HL_CORE_JOB_JOBSTATE_H
#define HL_CORE_JOB_JOBSTATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "core/planner/plan.h"
#include "core/replace/replacing.h"

#define HL_JOB_ID_MAX   95
#define HL_JOB_TEXT_MAX 512
/* Attempts that ended because a node was lost don't use up the job's restarts, but they have this
 * limit. */
#define HL_JOB_NODE_LOSSES_MAX 8
/* How often the ranks of one container may move to another one while its server still answers. */
#define HL_JOB_CONTAINER_LOSSES_MAX 8
/* A node's list that lacks a container which was confirmed less than this ago may be older than the
 * container. */
#define HL_JOB_ABSENT_GRACE_MS 3000

bool hl_job_state_ended(enum hl_api_job_state s);

struct hl_jobrun_container {
    char node[HL_NODE_NAME_MAX + 1];
    int numa_id;
    enum hl_api_container_state state;
    int exit_code;
    int signal;
    enum hl_api_failure_kind
        failure; /* kind of its failure; also unsaid in records from before this field existed */
    char message[HL_JOB_TEXT_MAX];
    int64_t started_ms, finished_ms;
    int64_t confirmed_ms; /* started_ms, corrected for jumps of the clock */
    int lost;             /* containers that had its ranks before it in this attempt */
};

/* What the job file says about failures; not part of the record. All zero: nothing. */
struct hl_jobrun_policy {
    int64_t stable_ms, backoff_ms, backoff_max_ms; /* as in struct hl_replace_rule */
    struct hl_failure_rules on_failure;
    bool replaces; /* the gang continues when one of its ranks is lost */
};

struct hl_jobrun {
    char id[HL_JOB_ID_MAX + 1];
    enum hl_api_job_state state;
    enum hl_api_job_goal goal;    /* why it is stopping */
    char reason[HL_JOB_TEXT_MAX]; /* why it waits, is stopping or has failed */
    int attempt;                  /* 1, 2, ...: the one placed, or to be placed next */
    char cause[HL_JOB_TEXT_MAX];  /* why this attempt was started; "" = it is the first */
    int max_restarts;
    bool restart_lost; /* start another attempt after a lost node */
    struct hl_jobrun_policy policy;
    struct hl_replace_count failed; /* its `used` counts restarts after failures of the program */
    int node_losses;                /* attempts lost with a node */
    int64_t reached; /* number of steps up to the highest one made before the last failure */
    enum hl_api_failure_kind last_failure;
    int64_t retry_ms; /* stopping: the next attempt starts no earlier; 0 = at once */
    int64_t start_timeout_ms, run_timeout_ms; /* 0 = none */
    int64_t stop_resend_ms;
    int64_t submitted_ms, started_ms, finished_ms; /* started: first time all ranks ran */
    int64_t deadline_ms; /* of this state; 0 = none. Pending: the end of the backoff */
    struct hl_plan
        *plan; /* of this attempt, or of the last one that ended; NULL before the first */
    struct hl_jobrun_container *containers;
    int container_count;
    /* the attempt they belong to; attempt - 1 while a restart waits for slots */
    int containers_attempt;
    bool slots_held; /* RELEASE not yet given */
    /* The job for which this one was preempted, and that job's attempt, kept until this job is
     * placed again; "" = it was not preempted. */
    char preemptor[HL_JOB_ID_MAX + 1];
    int preemptor_attempt;
    /* of its last attempt; released_ms 0 = it still holds its slots */
    int64_t placed_ms, released_ms;
    int64_t used_slot_ms; /* used by earlier attempts, and by the last one until counted_ms */
    /* since when it has its current number of slots; 0 = since it was placed */
    int64_t counted_ms;
    int resizes;        /* how often this attempt has changed its size */
    int64_t resized_ms; /* last change of its size, or attempt at one; 0 = none in this attempt */
};

struct hl_jobrun_opts {
    const char *id;
    int max_restarts;
    bool restart_lost;
    int64_t start_timeout_ms, run_timeout_ms, stop_resend_ms;
    struct hl_jobrun_policy policy;
};

enum hl_job_event_kind {
    HL_JOB_EV_SUBMITTED,  /* once, first */
    HL_JOB_EV_SLOTS,      /* slots or nodes have changed: a pending job may try again */
    HL_JOB_EV_PLACED,     /* plan: feasible, its slots are held; the run owns it on HL_OK */
    HL_JOB_EV_NOT_PLACED, /* text: why */
    HL_JOB_EV_CONTAINER, /* attempt, index, node, status from an Agent (or a start call that failed)
                          */
    HL_JOB_EV_ABSENT, /* attempt, index, node: the Agent doesn't have it, and no start is in flight
                       */
    HL_JOB_EV_NODE_SILENT, /* node; its containers may still run. text: what happens next */
    HL_JOB_EV_NODE_BACK,   /* node; it answered again in time */
    /* node; text: why, may be NULL. plan: the one with which a running gang continues */
    HL_JOB_EV_NODE_LOST,
    /* plan: the current one plus containers that join or are parked; owned likewise */
    HL_JOB_EV_GROW,
    HL_JOB_EV_RESIZED, /* plan: the joining containers are now members; likewise */
    HL_JOB_EV_DISMISS, /* the joining containers are to leave. text: why */
    HL_JOB_EV_FREED,   /* index: the slot of a container that has left is free */
    HL_JOB_EV_CANCEL,  /* text: by whom, may be NULL */
    /* it stops to make room for `attempt` of `preemptor`, and queues again. text: why */
    HL_JOB_EV_PREEMPT,
    HL_JOB_EV_TIMER, /* text: what a starting job waits for, may be NULL */
    HL_JOB_EV_COUNT
};

struct hl_job_event {
    enum hl_job_event_kind kind;
    int64_t now_ms;
    int attempt;
    int index;
    const char *node;
    const char *text; /* also the message of a container */
    const char *preemptor;
    enum hl_api_container_state container;
    int exit_code;
    int signal;
    enum hl_api_failure_kind failure; /* CONTAINER: kind of its failure, if it failed */
    int64_t reached; /* number of steps up to the highest one made; 0 = the job reports no steps */
    bool is_parked;  /* CONTAINER: it has no ranks */
    /* ABSENT: it came over the same channel as the container's earlier statuses */
    bool is_in_order;
    struct hl_plan *plan;
};

enum hl_job_action_kind {
    HL_JOB_DO_PLACE,   /* try hl_plan_make; answer with PLACED or NOT_PLACED */
    HL_JOB_DO_START,   /* container attempt/index on node */
    HL_JOB_DO_STOP,    /* container attempt/index on node; may be of an old attempt */
    HL_JOB_DO_RELEASE, /* every slot of `attempt` (run->plan still names them) */
    HL_JOB_DO_FREE,    /* the slot of container attempt/index, which has left; answer with FREED */
    HL_JOB_DO_RECORD,  /* a JobEvent: word, text */
};

struct hl_job_action {
    enum hl_job_action_kind kind;
    int attempt;
    int index;
    char node[HL_NODE_NAME_MAX + 1];
    const char *word; /* RECORD: "submitted", "placed", "running", ...; static */
    char text[HL_JOB_TEXT_MAX];
};

/* Zero-initialise; hl_jobrun_step appends. */
struct hl_job_actions {
    struct hl_job_action *list;
    size_t count, cap;
};

void hl_job_actions_fini(struct hl_job_actions *a);

struct hl_job;
/* The job's policy; must also be set in a run that was read from its record. */
struct hl_jobrun_policy hl_job_policy(const struct hl_job *job);

/* *run is overwritten. */
hl_status hl_jobrun_init(struct hl_jobrun *run, const struct hl_jobrun_opts *opts) HL_CHECK;
void hl_jobrun_fini(struct hl_jobrun *run);
hl_status hl_jobrun_step(struct hl_jobrun *run, const struct hl_job_event *ev,
                         struct hl_job_actions *out) HL_CHECK;
/* Repeats the actions that the state requires, after a restart of the Controller: place, start what
 * is not confirmed, stop what has not ended. */
hl_status hl_jobrun_resume(const struct hl_jobrun *run, struct hl_job_actions *out) HL_CHECK;
/* The index of the container at that position, as used in ids, events and actions. */
int hl_jobrun_index(const struct hl_jobrun *run, int position);
/* Since when it has its current number of slots. */
int64_t hl_jobrun_counted_ms(const struct hl_jobrun *run);
/* The backoff is not over: its next attempt must not be placed yet. */
bool hl_jobrun_backs_off(const struct hl_jobrun *run, int64_t now_ms);
/* When a TIMER event is due; INT64_MAX = never. */
int64_t hl_jobrun_next_ms(const struct hl_jobrun *run);
/* The caller was paused, or the wall clock was set: deadlines move by that time. The user's limit
 * on the job's run time also counts during a pause. */
void hl_jobrun_shift(struct hl_jobrun *run, int64_t paused_ms, int64_t stepped_ms);
/* jobstate_spare.c */
/* False if the container is parked, or its ranks have moved to another one. */
bool hl_jobrun_has_ranks(const struct hl_jobrun *run, int index);
bool hl_jobrun_is_parked(const struct hl_jobrun *run, int index);
/* The first running parked container at or after `at`; -1: there is none. */
int hl_jobrun_next_parked(const struct hl_jobrun *run, int at);
/* How many of the `wanted` parked containers the gang lacks; those that ended by themselves are not
 * replaced. */
int hl_jobrun_missing_spares(const struct hl_jobrun *run, int wanted);
/* The container was lost with its node and the gang continues without it; it is stopped when the
 * node answers again. */
bool hl_jobrun_is_left_over(const struct hl_jobrun *run, int index);
/* Containers that may still occupy their slot. */
int hl_jobrun_active(const struct hl_jobrun *run);

json_t *hl_jobrun_to_json(const struct hl_jobrun *run);
hl_status hl_jobrun_from_json(const json_t *doc, struct hl_jobrun *run) HL_CHECK;
/* The run's containers, as the API reports them; borrows the run's texts. */
struct hl_api_container_status_list hl_jobrun_containers(const struct hl_jobrun *run,
                                                         struct hl_arena *arena);

#endif
