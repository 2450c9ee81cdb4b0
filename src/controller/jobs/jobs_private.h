/* controller/jobs/jobs_private.h - shared by the files of this folder.
 * From top to bottom: methods.c, logs.c (calls), agents.c (the executor that uses Agents), jobs.c
 * (drives the state machine), record.c, ledger.c, images.c, planned.c (what goes into the record),
 * note.c (adds to it), table.c. Only the functions in struct jobs and struct job_executor lead
 * upwards.
 *
 * Threads: the Controller's loop.
 */
#ifndef HL_CONTROLLER_JOBS_PRIVATE_H
#define HL_CONTROLLER_JOBS_PRIVATE_H

#include "controller/commits.h"
#include "controller/core.h"
#include "controller/damaged.h"
#include "controller/executor.h"
#include "controller/jobs/jobs.h"
#include "controller/nodes/nodes.h"
#include "controller/planned.h"
#include "core/planner/resize.h"

/* Phases from a rank's loss to the next step of its replacement. */
enum recovery_phase {
    RECOVERY_START,
    RECOVERY_JOIN,
    RECOVERY_LOAD,
    RECOVERY_STEP,
    RECOVERY_TOTAL,
    RECOVERY_PHASES
};

#define RECOVERY_BUCKETS 9

struct recovery_times {
    uint64_t count, bucket[RECOVERY_BUCKETS];
    double sum_s;
};

struct jobs {
    char boot_id[64];   /* of this machine */
    struct job *table;  /* by id, in order of job numbers */
    struct job *by_key; /* the same, by idempotency key */
    int64_t seq;        /* of the last job */
    const struct job_executor *const *executors;
    const struct job_executor *executor; /* for newly submitted jobs */
    bool forgetting;                     /* records of ended jobs are being deleted */
    bool forget_trouble;                 /* trouble_is_new */
    const struct gang_watch *watch;      /* NULL: none */
    int images_asking;                   /* calls of jobs/images.c for waiting jobs */
    struct recovery_times recovery[RECOVERY_PHASES];
    uint64_t recovery_merged; /* replaced ranks that were lost again before their next step */
    struct job_queue *queue;  /* NULL: we have no queue */
    /* requests a pass over the line soon; NULL: likewise */
    void (*want_pass)(struct hl_controller *c);
    /* writes the job's record, then carries out its actions (jobs.c) */
    void (*save)(struct job *j);
};

/* Answers a call with the job's state. */
typedef void (*job_reply)(struct hl_rpc_call *call, const struct job *j);

/* A call that waits until a job is written. */
struct job_waiter {
    struct job_waiter *next;
    struct hl_rpc_call *call;
    job_reply reply;
};

/* jobs.c: drives the state machine */
/* Answers when the job is saved, maybe at once; rejects if saving fails. */
void job_wait(struct job *j, struct hl_rpc_call *call, job_reply reply);
/* Carries out what the state requires, whatever was done before. */
void job_resume(struct job *j);
/* Writes what a placed job waits for, according to its executor, into cap bytes; "" = nothing. */
void job_waits_for(const struct job *j, const struct hl_jobrun *run, char *out, size_t cap);
/* A place was found for the next attempt. Slots of our cluster are already held (hl_plan_commit),
 * because writing the record takes time and no other job may get them meanwhile. Takes ownership of
 * the plan. */
void job_take_plan(struct job *j, struct hl_plan *plan);
void job_free(struct job *j);

/* note.c */
/* Adds an event for people; changes nothing else. */
void job_note(struct job *j, const char *kind, const char *text);
/* The same for any attempt, but the caller writes the record. */
void note_event(struct job *j, int attempt, const char *word, const char *text);

/* planned.c */
/* The version that an attempt placed now would load; -1 = none. */
hl_status job_find_version(const struct job *j, int64_t *out) HL_CHECK;
/* Where a pending job would run: on slots that are free or soon will be; with `idle`, as if nothing
 * were running. NULL: unknown. */
struct hl_plan *job_plan_ahead(struct job *j, bool idle);
/* The shards that its ranks read are there, or it does not wait for them. */
bool job_may_start(struct job *j);

/* table.c */
/* Finds a job by id, else by name: the only one with that name that has not ended, or else an ended
 * one. HL_ECONFLICT lists the ids if several have not ended. */
hl_status job_find(struct hl_controller *c, const char *id, struct job **out);
/* Whether a container that a node reported is one of that attempt of the job. */
bool job_owns_container(const struct hl_api_container_status *status, const struct job *j,
                        int attempt);
/* Add to the table, and remove from it. */
void jobs_add(struct job *j);
void jobs_remove(struct job *j);
/* The job that was submitted with that idempotency key; NULL: there is none. */
struct job *jobs_find_key(const struct hl_controller *c, const char *key);

/* record.c */
/* Fills in doc, spec, run, events and all other stored data; job_free frees it. */
hl_status job_record_read(struct job *j, const json_t *value) HL_CHECK;
/* For a newly submitted job: makes the stored document from its doc and spec. */
hl_status job_doc_make(struct job *j) HL_CHECK;
/* The job's current record; its members are NULL when out of memory. */
struct job_record job_record_now(const struct job *j);
/* The value in the store; NULL when out of memory. */
json_t *job_record_json(const struct job *j, const struct job_record *r);
void job_record_fini(struct job_record *r);
/* The events as structs. */
hl_status job_events_list(const json_t *events, struct hl_arena *arena,
                          struct hl_api_job_event_list *out) HL_CHECK;

/* elastic.c: jobs with data_parallel_size: {min, max} */
/* A request for a larger size than the spec has now. */
struct elastic_want {
    struct hl_job *spec;
    const struct job_executor *executor;
    const char *id;
    int attempt;
    int most_slots; /* the most slots that its quota allows */
};

/* A plan for the spec's current size. NULL: it does not fit. */
struct hl_plan *elastic_plan(struct hl_controller *c, const struct elastic_want *w);
/* Sets the spec to the largest size that fits, and *io to its plan; the slots of *io are not
 * held. */
void elastic_enlarge(struct hl_controller *c, const struct elastic_want *w, struct hl_plan **io);
/* The same for a starting gang, whose slots are held. used: slots of the other jobs in its
 * queue. */
void elastic_enlarge_started(struct hl_controller *c, struct job *j, int used, struct hl_plan **io);
/* Slots that the job may have under its queue's quota. */
int elastic_quota_left(const struct hl_controller *c, const struct hl_job *spec, int used);
/* resize.c: a running gang changes its size */
/* A node was silent for too long: decides what is lost with it, and how the gang continues. */
void elastic_lose_node(struct job *j, const char *node, const char *text);
/* Called at the end of a pass over the line: gives a gang the spare slots that it lacks, or more
 * replicas, as far as there are slots. used: slots used by its queue. Returns how many more it has
 * now. */
int elastic_grow(struct job *j, int used);
/* With every tick. */
void elastic_round(struct job *j);
/* Appends why a running gang is smaller than it may be. */
void elastic_tell(const struct job *j, char *io, size_t cap);
/* A rank asks for its place; the answer borrows from the arena and the job. HL_ENOENT: it no longer
 * belongs to the gang. */
hl_status elastic_join(struct hl_controller *c, const struct hl_api_controller_join_gang_params *p,
                       struct hl_arena *arena,
                       struct hl_api_controller_join_gang_results *out) HL_CHECK;
/* Call it at start, before slots are held again. */
void elastic_restore(struct job *j);
/* Carries out action FREE. */
void elastic_free_slot(struct job *j, const struct hl_job_action *a);

/* Position of the container with that index; -1 = no longer in the attempt. */
static inline int job_position(const struct job *j, int index)
{
    return hl_plan_position(j->run.plan, index);
}

/* elastic.c */
/* Resets the state for a new attempt. */
void elastic_begin(struct job *j);
/* Sets the spec's size to that of the placed gang, else to the minimum. */
void elastic_follow(struct job *j);
/* The current number of a rank that its node knows under another number; -1 = it is not in the
 * gang. */
int elastic_rank_of(const struct hl_plan_container *c, int known_as);
/* The same for a rank of that container; returns known_as if it is not in the gang. */
int elastic_rank_told(const struct job *j, const char *container, int known_as);

/* submit.c */
/* On HL_OK it owns the job, and the call is answered when the job is saved; if saving fails, the
 * call is rejected and the job freed. */
hl_status job_submit(struct hl_controller *c, struct job *j, struct hl_rpc_call *call,
                     job_reply reply) HL_CHECK;

/* master_port.c */
/* Index of the container that has rank 0; -1: none is placed. */
int master_container(const struct job *j);
/* True if the port was chosen and recorded; otherwise requests one, and job_keep is called
 * later. */
bool master_port_ready(struct job *j);
/* MASTER_PORT of the attempt. */
int master_port(const struct job *j);
/* MASTER_ADDR: that of the node of rank 0 now, which may be back at another address. Borrowed. */
const char *master_address(const struct job *j);

/* images.c: for jobs whose ranks run in an image with a container engine on the nodes; for others
 * nothing waits and nothing is pinned. */
/* Called at every tick: has the image pulled to where the gang is, or will be. */
void images_round(struct job *j);
/* The gang has its slots, but the image is not yet on all of its nodes. */
bool images_wait(const struct job *j);
/* A node of a starting gang can't get the image: *index is its container. */
bool images_missing(const struct job *j, int *index, char *why, size_t size);
/* Writes which node is pulling, and its progress; leaves `out` untouched if none is. */
void images_tell(const struct job *j, char *out, size_t cap);
/* Appends what is known about a waiting job's image: that a node pulls it, or why it can't. */
void images_tell_ahead(const struct job *j, char *io, size_t cap);
/* The digest to which the job's image was pinned; "" = none yet. */
const char *images_pinned(const struct job *j);
hl_status images_pin(struct job *j, const char *pinned) HL_CHECK;
void images_free(struct job_images *images);

/* logs.c */
/* Replies that there is no output: none yet, or none at all if `over`. */
void log_reply_empty(struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_results *about, bool over);
/* agent_logs.c: a function of agents_executor */
void agents_read_log(struct job *j, struct hl_rpc_call *call, const struct log_query *query);

/* rank_watch.c */
/* Called at every tick: checks the ranks' state, as reported by their nodes. */
void rank_watch_round(struct job *j);
/* Writes why a running gang makes no steps; leaves `out` untouched if it makes some or reports
 * nothing. */
void rank_watch_tell(const struct job *j, char *out, size_t cap);
/* In the last attempt, the rank's process was killed for making no steps or for being slow. */
bool rank_watch_ended(const struct job *j, int rank);
void rank_watch_free(struct rank_watch *w);
/* rank_lost.c */
/* Adds an event that says how a rank was lost that has been replaced since; `pid` is its old
 * process. If it was killed, its node is asked what the kernel logged. */
void rank_lost_note(struct job *j, const char *node, const struct hl_api_rank_status *r, int pid);

/* rank_end.c */
/* Kills a rank's process through its node, and repeats that if the process is still there after a
 * while. */
struct rank_end {
    int pid;         /* the process to be killed */
    int64_t sent_ms; /* steady clock */
};

void rank_end(struct job *j, int container, const struct hl_api_rank_status *rank,
              struct rank_end *io);

/* ledger.c */
/* Updates the ledger from the job's state. */
void ledger_follow(struct job *j);
/* Number of steps up to the highest known one; 0 = its ranks report none. */
int64_t ledger_reached(const struct job *j);
/* The ledger as stored; parts are in the arena. */
struct hl_api_job_ledger_record ledger_record(const struct job *j, struct hl_arena *arena);
void ledger_restore(struct job *j, const struct hl_api_job_ledger_record *r);
struct hl_api_job_ledger ledger_show(const struct job *j);

/* failures.c */
/* Called once for an ended attempt: finds, completes and stores its first failure. */
void failures_look(struct job *j);

/* failure_list.c */
struct job_failure {
    struct job_failure *next; /* older */
    struct hl_arena arena;
    struct hl_api_job_failure f;
};

hl_status failure_copy(const struct hl_api_job_failure *from, struct job_failure **out) HL_CHECK;
void failure_free(struct job_failure *f);
/* The failure of an attempt, 0: of the newest. NULL: there is none, or it is not complete yet. */
const struct hl_api_job_failure *job_failure_of(const struct job *j, int attempt);
struct hl_api_job_failure_list job_failures_list(const struct job *j, struct hl_arena *arena);
/* Adds the deletion of the failures, when the job is forgotten. */
hl_status failures_forget(const struct job *j, struct hl_records *records) HL_CHECK;
void failures_free(struct job *j);

/* rank_tables.c */
/* Resets the state for a new attempt: nothing was sent yet. */
hl_status rank_tables_reset(struct job *j, int containers);
/* Sends the rank tables to nodes of a running gang that don't have them. */
void rank_tables_send(struct job *j);

/* defrag.c: which gangs would have to restart elsewhere so that the job fits. */
hl_status jobs_defrag(struct hl_controller *c, const struct hl_job *spec, struct hl_arena *arena,
                      struct hl_api_defrag *out) HL_CHECK;

#endif
