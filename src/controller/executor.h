/* controller/executor.h - the interface to what runs a job's containers: the Agents of this
 * cluster's nodes (jobs/agents.c) or Kubernetes (controller/kube/executor.c).
 *
 * core/job/jobstate.h decides what a job's state is and what comes next, and jobs.c stores it. An
 * executor starts and stops containers, and reports what happened to them with job_event. A job
 * stays with the executor to which it was submitted (jobs_create says which one gets new jobs).
 *
 *     jobs --carry_out, watch, retry--> executor --job_event--> jobs
 *
 * Owns:    the table owns the jobs. A job may be gone when a call is answered, so calls keep its
 *          id. An executor owns job.gang, from admit or restore to release; it only reads the rest.
 * Threads: the Controller's loop.
 * Errors:  as each function says; later failures are events of the job.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_EXECUTOR_H
#define HL_CONTROLLER_EXECUTOR_H

#include <jansson.h>
#include <stdbool.h>
#include <uthash.h>

#include "api/types.h"
#include "core/job/job.h"
#include "core/job/jobstate.h"
#include "core/ledger/ledger.h"

struct gang;
struct rank_watch;
struct hl_controller;
struct queue_shape;
struct hl_rpc_call;
struct job_waiter;
struct job_images;

/* The part of a job's record that changes; run NULL: no record. */
struct job_record {
    json_t *run;    /* core/job/jobstate.h */
    json_t *events; /* List(JobEvent) */
};

/* Why a pending job waits, according to the last pass over the line (jobs/queue.c). */
struct job_wait {
    enum hl_api_wait_reason reason; /* NONE: no pass has seen it yet */
    enum hl_api_wait_reason told;   /* the reason in its record */
    int place;                      /* in the line, from 1 */
    int stops;                      /* number of jobs that stop for it */
    int64_t start_ms;               /* estimate; 0 = unknown */
    char other[HL_JOB_ID_MAX + 1];  /* the job that the reason refers to; "" = none */
    char text[HL_JOB_TEXT_MAX];     /* what the planner or the catalogue said */
};

/* State of a gang that changes its size (jobs/resize.c). */
struct job_elastic {
    bool *asked; /* by rank: a joining rank has asked for its place; NULL: none joins */
    char *lost;  /* LOST=ADDRESS lines for the servers that the attempt has lost; NULL: none */
    /* steady clock: last search for slots, last repetition of stops */
    int64_t looked_ms, stopped_ms;
};

/* The attempt and container that have rank 0; attempt 0 = none. */
struct master_place {
    int attempt, container;
};

/* MASTER_PORT (jobs/master_port.c). */
struct job_port {
    int number;                  /* 0 = chosen blindly */
    struct master_place settled; /* the place for which it was chosen */
    struct master_place asked;   /* the place for which an Agent is looking for a port */
    int skip;                    /* number of candidates tried */
};

/* A job: what was requested, and its progress. */
struct job {
    char id[HL_JOB_ID_MAX + 1];
    struct hl_job spec;
    struct hl_jobrun run;
    struct hl_api_job_doc doc; /* data that is stored once, next to the spec */
    struct hl_arena doc_arena;
    json_t *doc_json; /* both, as stored */
    json_t *events;   /* List(JobEvent), the newest JOB_EVENTS_MAX */
    /* as last written to the store; none = never written, so the job is unknown there */
    struct job_record saved;
    int64_t seq;
    struct job_port port;
    uint64_t read_ns;              /* when a log of it was last asked for; 0 = not yet */
    int64_t load_version;          /* the version this attempt's ranks load; -1 = none */
    bool unsaved;                  /* the store refused the last change: actions wait */
    struct job_record saving;      /* being written, while its actions wait; else none */
    bool keep;                     /* something besides the run has changed */
    bool behind;                   /* the job changed after `saving` was made */
    bool resume;                   /* actions were dropped: hl_jobrun_resume repeats them */
    bool forgetting;               /* its record is being deleted */
    int64_t ended_steady_ms;       /* for its age; 0 = no round has seen its end yet */
    struct job_waiter *waiters;    /* calls that are answered once `saving` is durable */
    bool held, stepped;            /* job_events_hold is active; events came since then */
    struct hl_job_actions actions; /* the actions of these events */
    bool marked;                   /* the planner sees its slots as held */
    bool *starting;                /* per container: a start call is in flight */
    unsigned char *table_sent;     /* per container: jobs/rank_tables.c */
    const struct job_executor *executor;
    /* what its placement depends on (jobs/queue.c); NULL = not known yet */
    struct queue_shape *shape;
    struct job_wait wait;
    int gang_index;           /* its index in the current pass */
    struct gang *gang;        /* kube_executor's data; NULL: not its job */
    int gang_made;            /* the last attempt whose gang existed; 0 = none */
    int looked_attempt;       /* the last attempt whose placement gang_watch was told */
    int told_attempt;         /* the last attempt that was reported while it ran (jobs/planned.c) */
    int placed_here;          /* the last attempt that this Controller has placed; 0 = none */
    struct rank_watch *watch; /* jobs/rank_watch.c; NULL: nothing was seen yet */
    struct job_elastic elastic;
    char *table;             /* rank table of this attempt; NULL = not made yet, "" = can't be */
    struct hl_ledger ledger; /* jobs/ledger.c */
    int64_t ledger_version;  /* its newest version that the ledger has seen */
    struct job_failure *failures; /* newest first: jobs/failures.c */
    int failure_looked;           /* the last attempt that was searched for its first failure */
    /* jobs/images.c; NULL: nothing is known yet. */
    struct job_images *images;
    struct hl_controller *controller;
    UT_hash_handle hh;
    UT_hash_handle hh_key; /* if it has one: by its idempotency key */
    bool has_key;
};

/* Which part of which rank's output is requested. */
struct log_query {
    int index, rank; /* container of the plan, and one of its ranks */
    int attempt;
    int64_t offset; /* < 0 counts from the end */
    int64_t max_bytes;
    struct hl_api_controller_read_log_results about; /* the answer, except for the bytes */
};

struct job_executor {
    enum hl_job_executor kind;
    /* Called when the Controller starts, with its options; returns HL_OK also if they don't ask for
     * this executor. NULL: nothing to start. */
    hl_status (*start)(struct hl_controller *c) HL_CHECK;
    /* Called when the Controller ends, even if nothing was started. NULL: nothing to stop. */
    void (*stop)(struct hl_controller *c);
    /* Called at every tick, for all of its jobs. NULL: not needed. */
    void (*tick)(struct hl_controller *c);
    /* Adds what `helios info` shows about it; strings are in the arena. NULL: nothing. */
    void (*tell)(const struct hl_controller *c, struct hl_arena *arena,
                 struct hl_api_cluster_info *io);
    /* It queues placed gangs itself and detects lost nodes itself, so only deadlines stated in the
     * job file apply. */
    bool has_deadlines;
    /* A job is being submitted: writes its identification into j->doc; the strings live as long as
     * the job. */
    hl_status (*admit)(struct job *j) HL_CHECK;
    /* HL_ENOENT: another executor has admitted the stored job. */
    hl_status (*restore)(struct job *j) HL_CHECK;
    /* Plans where the job would run now. HL_EINVAL: it can't run here at all. */
    hl_status (*plan)(struct hl_controller *c, const struct hl_job *spec, const char *id,
                      int attempt, struct hl_plan **out) HL_CHECK;
    /* Starts and stops containers as the actions say. The job has been saved. */
    void (*carry_out)(struct job *j, const struct hl_job_actions *actions);
    /* Called when the store has the job's current state. NULL: not needed. */
    void (*saved)(struct job *j);
    /* Called at every tick for a job that has not ended: finds what was lost. NULL: not needed. */
    void (*watch)(struct job *j);
    /* Called at every tick for a saved job: retries what failed for a temporary reason. NULL: not
     * needed. */
    void (*retry)(struct job *j);
    /* Adds what is known about container `index` of `run` beyond the job's own data. */
    void (*describe)(const struct job *j, const struct hl_jobrun *run, int index,
                     struct hl_arena *arena, struct hl_api_container_status *io);
    /* Writes what a running or starting job waits for into cap bytes; "" = nothing. NULL: it never
     * waits. */
    void (*waits_for)(const struct job *j, char *out, size_t cap);
    /* Answers the call. */
    void (*read_log)(struct job *j, struct hl_rpc_call *call, const struct log_query *query);
    /* True: the job must not be forgotten yet. NULL: it never needs an ended job. */
    bool (*needs)(const struct job *j);
    /* The job is being forgotten: drops what was kept for it. */
    void (*forget)(const struct job *j);
    /* The rules for pods in a job file; borrowed until it stops. NULL: it has no pods. */
    struct hl_podspec_rules (*pod_rules)(const struct hl_controller *c);
    /* Frees what admit or restore made, when the job is freed. NULL: nothing to free. */
    void (*release)(struct job *j);
};

/* Handles an event of the job: its state changes at once; the actions are carried out when its
 * record is durable. */
void job_event(struct job *j, struct hl_job_event *ev);
/* Events between hold and go are written together, and carried out only after that. */
void job_events_hold(struct job *j);
void job_events_go(struct job *j);
/* Writes changes that were not made by an event, then carries out what the job's state requires. */
void job_keep(struct job *j);
/* The store has the job's current state, so actions may be carried out. */
bool job_is_saved(const struct job *j);
/* Borrowed, NULL when unknown. */
struct job *job_by_id(const struct hl_controller *c, const char *id);
/* For loops: the first, then j->hh.next. NULL: there is none. */
struct job *jobs_first(const struct hl_controller *c);
/* The spec of a container of the placed attempt; borrows from the job. */
struct hl_api_container_spec job_container_spec(const struct job *j, int index,
                                                struct hl_arena *arena);

#endif
