/* controller/executor.h - who runs the containers of a job: the Agents of this cluster's nodes
 * (jobs/agents.c) or Kubernetes (kube/executor.c).
 *
 * What a job is and what comes next is decided by core/job/jobstate.h and kept by jobs.c; an
 * executor makes and ends containers and tells by job_event what became of them. A job stays with
 * the executor it was submitted to (jobs_create says who gets new ones).
 *
 *     jobs --carry_out, watch, retry--> executor --job_event--> jobs
 *
 * Owns:    the table owns the jobs: one may be gone when a call is answered, so calls keep its
 *          id. An executor owns job.gang, from admit or restore to release; the rest it reads.
 * Threads: the Controller's loop.
 * Errors:  as each function says; what fails later is an event of the job.
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

/* What changes in the record of a job; run NULL: none. */
struct job_record {
    json_t *run;    /* core/job/jobstate.h */
    json_t *events; /* List(JobEvent) */
};

/* Why a pending job waits, as the last pass over the line has it (jobs/queue.c). */
struct job_wait {
    enum hl_api_wait_reason reason; /* NONE: no pass has seen it yet */
    enum hl_api_wait_reason told;   /* the one in its record */
    int place;                      /* in the line, from 1 */
    int stops;                      /* jobs that stop for it */
    int64_t start_ms;               /* estimate; 0 = unknown */
    char other[HL_JOB_ID_MAX + 1];  /* the job that the reason speaks of; "" = none */
    char text[HL_JOB_TEXT_MAX];     /* what the planner or the catalogue said */
};

/* Of a gang that changes its size (jobs/resize.c). */
struct job_elastic {
    bool *asked; /* ranks that are to join have asked for their place, by their number; NULL: none
                    is */
    char *lost;  /* LOST=ADDRESS lines of the servers that the attempt has lost; NULL: none */
    int64_t looked_ms, stopped_ms; /* steady clock: slots were looked for, stops were said again */
};

/* Where rank 0 is: in which container of which attempt; attempt 0 = nowhere. */
struct master_place {
    int attempt, container;
};

/* MASTER_PORT (jobs/master_port.c). */
struct job_port {
    int number;                  /* 0 = chosen blindly */
    struct master_place settled; /* what it is for */
    struct master_place asked;   /* an Agent looks for one for that */
    int skip;                    /* candidates that were tried */
};

/* A job: what was asked, and how far it is. */
struct job {
    char id[HL_JOB_ID_MAX + 1];
    struct hl_job spec;
    struct hl_jobrun run;
    struct hl_api_job_doc doc; /* what is stored once, beside the spec */
    struct hl_arena doc_arena;
    json_t *doc_json;        /* both, as stored */
    json_t *events;          /* List(JobEvent), the newest JOB_EVENTS_MAX */
    struct job_record saved; /* as last written to the store; none = never, the job is unknown */
    int64_t seq;
    struct job_port port;
    uint64_t read_ns;              /* when a log of it was last asked for; 0 = not yet */
    int64_t load_version;          /* the version this attempt's ranks load; -1 = none */
    bool unsaved;                  /* the store refused the last change: actions wait */
    struct job_record saving;      /* is being written, and its actions wait; else none */
    bool keep;                     /* more than the run has changed */
    bool behind;                   /* it changed after `saving` was made */
    bool resume;                   /* actions were dropped: hl_jobrun_resume says them again */
    bool forgetting;               /* its record is being deleted */
    int64_t ended_steady_ms;       /* for its age; 0 = no round has seen the end yet */
    struct job_waiter *waiters;    /* calls that are answered once `saving` is durable */
    bool held, stepped;            /* job_events_hold; events came since */
    struct hl_job_actions actions; /* of these */
    bool marked;                   /* the planner sees its slots as held */
    bool *starting;                /* per container: a start call is under way */
    unsigned char *table_sent;     /* per container: jobs/rank_tables.c */
    const struct job_executor *executor;
    struct queue_shape *shape; /* what its place depends on (jobs/queue.c); NULL = not known yet */
    struct job_wait wait;
    int gang_index;           /* in the pass that is being made */
    struct gang *gang;        /* what kube_executor remembers of it; NULL: it is not its job */
    int gang_made;            /* the last attempt whose gang was there; 0 = none */
    int looked_attempt;       /* who watches gangs has heard that it is placed */
    int told_attempt;         /* its gang was told of while it ran (jobs/planned.c) */
    struct rank_watch *watch; /* jobs/rank_watch.c; NULL: nothing was seen yet */
    struct job_elastic elastic;
    char *table;             /* rank table of this attempt; NULL = not made yet, "" = can't be */
    struct hl_ledger ledger; /* jobs/ledger.c */
    int64_t ledger_version;  /* the newest of its versions that the ledger has seen */
    struct job_failure *failures; /* the newest first: jobs/failures.c */
    int failure_looked;           /* the last attempt whose first failure was looked for */
    /* jobs/images.c; NULL: nothing is known yet. */
    struct job_images *images;
    struct hl_controller *controller;
    UT_hash_handle hh;
    UT_hash_handle hh_key; /* if it has one: by its idempotency key */
    bool has_key;
};

/* Which part of whose output is asked for. */
struct log_query {
    int index, rank; /* container of the plan, and one of its ranks */
    int attempt;
    int64_t offset; /* < 0 counts from the end */
    int64_t max_bytes;
    struct hl_api_controller_read_log_results about; /* what the answer says beside the bytes */
};

struct job_executor {
    enum hl_job_executor kind;
    /* The Controller starts, with its options; HL_OK too where they don't ask for this executor.
     * NULL: there is nothing to start. */
    hl_status (*start)(struct hl_controller *c) HL_CHECK;
    /* The Controller ends; also where nothing was started. NULL: likewise. */
    void (*stop)(struct hl_controller *c);
    /* With every tick, for all of its jobs. NULL: it needs none. */
    void (*tick)(struct hl_controller *c);
    /* What `helios info` says of it; its texts are the arena's. NULL: nothing. */
    void (*tell)(const struct hl_controller *c, struct hl_arena *arena,
                 struct hl_api_cluster_info *io);
    /* Placed gangs wait in a queue of its own, and it knows by itself that a node is lost: of the
     * deadlines only those that the job's file states count. */
    bool has_deadlines;
    /* A job is being submitted: what it is known by is written into j->doc; its texts live as long
     * as the job. */
    hl_status (*admit)(struct job *j) HL_CHECK;
    /* HL_ENOENT: another executor has admitted the stored job. */
    hl_status (*restore)(struct job *j) HL_CHECK;
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
    void (*read_log)(struct job *j, struct hl_rpc_call *call, const struct log_query *query);
    /* True: the job is not to be forgotten yet. NULL: it never needs one that is over. */
    bool (*needs)(const struct job *j);
    /* The job is forgotten: what was kept for it goes, too. */
    void (*forget)(const struct job *j);
    /* What the pods of a job file may have; borrowed until it stops. NULL: it has no pods. */
    struct hl_podspec_rules (*pod_rules)(const struct hl_controller *c);
    /* The job leaves memory: what admit or restore made is freed. NULL: they make nothing. */
    void (*release)(struct job *j);
};

/* An event of the job: it changes at once, and is carried out when its record is durable. */
void job_event(struct job *j, struct hl_job_event *ev);
/* The events from here to `go` are written at once, and only then carried out. */
void job_events_hold(struct job *j);
void job_events_go(struct job *j);
/* Write down what no event has changed; then do what the job's state asks for. */
void job_keep(struct job *j);
/* What the store has is what the job is: actions may be carried out. */
bool job_is_saved(const struct job *j);
/* Borrowed, NULL when unknown. */
struct job *job_by_id(const struct hl_controller *c, const char *id);
/* For loops: the first, then j->hh.next. NULL: there is none. */
struct job *jobs_first(const struct hl_controller *c);
/* Of a container of the attempt that is placed; it borrows from the job. */
struct hl_api_container_spec job_container_spec(const struct job *j, int index,
                                                struct hl_arena *arena);

#endif
