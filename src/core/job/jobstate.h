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
 * node is lost, so two attempts are never wanted at once. Statuses may come late, twice or out of
 * order. How long a node may be silent before it is lost is the caller's decision.
 *
 * A failure counts against max_restarts, ends the job or is passed over, as the policy says of its
 * kind. Attempts that bring no new step are waited for longer each time. Once the gang has run for
 * stable_ms, and made a step that no attempt had made, restarts and lost nodes count from 0 again.
 *
 * A gang may change its size while it runs (core/planner/resize.h): it goes on without replicas
 * that were lost with a node, and containers join it and become members. Containers have an index,
 * which is that of the plan: events, actions and ids speak of it, whatever was taken out before.
 * What a container is that is no member decides nothing about the gang.
 *
 * A container of which nobody knows how it ended (failure LOST, or its node has it no more) is
 * replaced in a gang that replaces ranks: what is parked takes its place, else another container,
 * with another index, its slot.
 *
 * Owns:    the run owns its plan and containers.
 * Threads: one owner. Pure: time comes with the event.
 * Errors:  HL_ENOMEM (nothing changed), HL_ECONFLICT for a plan nobody asked for, HL_ECORRUPT for a
 *          malformed record.
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
/* Attempts that ended because a node was lost don't use up the job's restarts, but end somewhere.
 */
#define HL_JOB_NODE_LOSSES_MAX 8
/* So often the ranks of one container go on in another one, of those whose server answers. */
#define HL_JOB_CONTAINER_LOSSES_MAX 8
/* A list without a container that was confirmed less than this ago may have been made before it. */
#define HL_JOB_ABSENT_GRACE_MS 3000

bool hl_job_state_ended(enum hl_api_job_state s);

struct hl_jobrun_container {
    char node[HL_NODE_NAME_MAX + 1];
    int numa_id;
    enum hl_api_container_state state;
    int exit_code;
    int signal;
    enum hl_api_failure_kind
        failure; /* failed: its kind; unsaid also of records before it was kept */
    char message[HL_JOB_TEXT_MAX];
    int64_t started_ms, finished_ms;
    int64_t confirmed_ms; /* started_ms, moved by gaps of the clocks */
    int lost;             /* containers before it that had its ranks in this attempt */
};

/* What the job file says of failures; not part of the record. Zero: nothing. */
struct hl_jobrun_policy {
    int64_t stable_ms, backoff_ms, backoff_max_ms; /* as in struct hl_replace_rule */
    struct hl_failure_rules on_failure;
    bool replaces; /* the gang goes on when a rank of it is lost */
};

struct hl_jobrun {
    char id[HL_JOB_ID_MAX + 1];
    enum hl_api_job_state state;
    enum hl_api_job_goal goal;    /* why it is stopping */
    char reason[HL_JOB_TEXT_MAX]; /* why it waits, stops or failed */
    int attempt;                  /* 1, 2, ...: the one placed, or to be placed next */
    char cause[HL_JOB_TEXT_MAX];  /* why this attempt was begun; "" = it is the first */
    int max_restarts;
    bool restart_lost; /* begin another attempt after a lost node */
    struct hl_jobrun_policy policy;
    struct hl_replace_count failed; /* used: restarts, for failures of the program */
    int node_losses;                /* attempts lost with a node */
    int64_t reached; /* steps, to the highest that was made before the last failure */
    enum hl_api_failure_kind last_failure;
    int64_t retry_ms; /* stopping: the next attempt begins not before; 0 = at once */
    int64_t start_timeout_ms, run_timeout_ms; /* 0 = none */
    int64_t stop_resend_ms;
    int64_t submitted_ms, started_ms, finished_ms; /* started: first time all ranks ran */
    int64_t deadline_ms; /* of this state; 0 = none. Pending: it backs off */
    struct hl_plan
        *plan; /* of this attempt, or of the last one that ended; NULL before the first */
    struct hl_jobrun_container *containers;
    int container_count;
    int containers_attempt; /* whose they are; attempt - 1 while a restart waits for slots */
    bool slots_held;        /* RELEASE not yet given */
    /* The job that it was stopped for, and that one's attempt, until it is placed again; "" = it
     * was not. */
    char preemptor[HL_JOB_ID_MAX + 1];
    int preemptor_attempt;
    int64_t placed_ms, released_ms; /* of its last attempt; released 0 = it holds its slots */
    int64_t used_slot_ms; /* of the attempts before that one, and of it until counted_ms */
    int64_t counted_ms;   /* since then it has as many slots as now; 0 = since it was placed */
    int resizes;          /* of this attempt: sizes that it had before */
    int64_t resized_ms; /* when its size was changed last, or was to be; 0 = not in this attempt */
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
    HL_JOB_EV_SLOTS,      /* slots or nodes changed: a pending job may try again */
    HL_JOB_EV_PLACED,     /* plan: feasible, its slots are held; taken over on HL_OK */
    HL_JOB_EV_NOT_PLACED, /* text: why */
    HL_JOB_EV_CONTAINER, /* attempt, index, node, status from an Agent (or a start call that failed)
                          */
    HL_JOB_EV_ABSENT, /* attempt, index, node: the Agent doesn't have it, and no start is under way
                       */
    HL_JOB_EV_NODE_SILENT, /* node; its containers may run on. text: what follows */
    HL_JOB_EV_NODE_BACK,   /* node; in time */
    HL_JOB_EV_NODE_LOST,   /* node; text: why, may be NULL. plan: a gang that runs goes on with that
                            */
    HL_JOB_EV_GROW,        /* plan: that of now with containers that join, or that are parked; taken
                              over likewise */
    HL_JOB_EV_RESIZED,     /* plan: those that joined are members; likewise */
    HL_JOB_EV_DISMISS,     /* those that join leave. text: why */
    HL_JOB_EV_FREED,       /* index: the slot is free of a container that has left */
    HL_JOB_EV_CANCEL,      /* text: by whom, may be NULL */
    HL_JOB_EV_PREEMPT, /* it stops for `preemptor` in its `attempt`, and waits again. text: why */
    HL_JOB_EV_TIMER,   /* text: what a job that is starting waits for, may be NULL */
    HL_JOB_EV_COUNT
};

struct hl_job_event {
    enum hl_job_event_kind kind;
    int64_t now_ms;
    int attempt;
    int index;
    const char *node;
    const char *text; /* message of a container too */
    const char *preemptor;
    enum hl_api_container_state container;
    int exit_code;
    int signal;
    enum hl_api_failure_kind failure; /* CONTAINER: its kind, where it has failed */
    int64_t reached;  /* steps, to the highest that the job has made; 0 = it tells none */
    bool is_parked;   /* CONTAINER: it has no ranks */
    bool is_in_order; /* ABSENT: it came the same way as what was heard of the container before */
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
/* Of a run that was read from its record, too. */
struct hl_jobrun_policy hl_job_policy(const struct hl_job *job);

/* *run is overwritten. */
hl_status hl_jobrun_init(struct hl_jobrun *run, const struct hl_jobrun_opts *opts) HL_CHECK;
void hl_jobrun_fini(struct hl_jobrun *run);
hl_status hl_jobrun_step(struct hl_jobrun *run, const struct hl_job_event *ev,
                         struct hl_job_actions *out) HL_CHECK;
/* What the state asks for again after the Controller was restarted: place, start what is not
 * confirmed, stop what has not ended. */
hl_status hl_jobrun_resume(const struct hl_jobrun *run, struct hl_job_actions *out) HL_CHECK;
/* Of the container at that position; what ids, events and actions say. */
int hl_jobrun_index(const struct hl_jobrun *run, int position);
/* Since when it has as many slots as now. */
int64_t hl_jobrun_counted_ms(const struct hl_jobrun *run);
/* Its next attempt is not to be placed yet. */
bool hl_jobrun_backs_off(const struct hl_jobrun *run, int64_t now_ms);
/* When a TIMER event is due; INT64_MAX = never. */
int64_t hl_jobrun_next_ms(const struct hl_jobrun *run);
/* The caller was paused, or the wall clock was set: what is judged by a deadline gets that time on
 * top. A limit of the user's for how long the job may run counts during a pause too. */
void hl_jobrun_shift(struct hl_jobrun *run, int64_t paused_ms, int64_t stepped_ms);
/* jobstate_spare.c */
/* False: a container that is parked, or whose ranks are on another one now. */
bool hl_jobrun_has_ranks(const struct hl_jobrun *run, int index);
bool hl_jobrun_is_parked(const struct hl_jobrun *run, int index);
/* The first such container that runs, from `at` on; -1: there is none. */
int hl_jobrun_next_parked(const struct hl_jobrun *run, int at);
/* How many of the parked containers that the gang is to have it has not; those that ended by
 * themselves are not replaced. */
int hl_jobrun_missing_spares(const struct hl_jobrun *run, int wanted);
/* It was lost with its node, and the gang goes on without it: when the node answers again it goes.
 */
bool hl_jobrun_is_left_over(const struct hl_jobrun *run, int index);
/* Containers that may still occupy their slot. */
int hl_jobrun_active(const struct hl_jobrun *run);

json_t *hl_jobrun_to_json(const struct hl_jobrun *run);
hl_status hl_jobrun_from_json(const json_t *doc, struct hl_jobrun *run) HL_CHECK;
/* What the run remembers of its containers; it borrows the run's texts. */
struct hl_api_container_status_list hl_jobrun_containers(const struct hl_jobrun *run,
                                                         struct hl_arena *arena);

#endif
