/* What the files of this wing share. From above: methods.c, logs.c (calls), agents.c (the executor
 * whose containers Agents run), jobs.c (the state machine at work), table.c. */
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

/* From a rank's loss to the next step of the process in its place. */
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
    struct job *table;  /* by id, in the order of their numbers */
    struct job *by_key; /* the same, by idempotency key */
    int64_t seq;        /* of the last job */
    const struct job_executor *const *executors;
    const struct job_executor *executor; /* of jobs that are submitted now */
    bool forgetting;                     /* records of ended ones are being deleted */
    bool forget_trouble;                 /* trouble_is_new */
    const struct gang_watch *watch;      /* NULL: none */
    int images_asking;                   /* calls of jobs/images.c for jobs that wait */
    struct recovery_times recovery[RECOVERY_PHASES];
    uint64_t recovery_merged; /* replaced ranks that were lost again before their next step */
    struct job_queue *queue;  /* NULL: no job waits in ours */
    void (*want_pass)(struct hl_controller *c); /* over the line, soon; NULL: likewise */
};

/* Answers a call with what the job is. */
typedef void (*job_reply)(struct hl_rpc_call *call, const struct job *j);

/* A call that waits until a job is written. */
struct job_waiter {
    struct job_waiter *next;
    struct hl_rpc_call *call;
    job_reply reply;
};

/* jobs.c: the state machine at work */
/* Answer when the job is saved, maybe now; or reject when that fails. */
void job_wait(struct job *j, struct hl_rpc_call *call, job_reply reply);
/* What the state asks for, whatever was done before. */
void job_resume(struct job *j);
/* The version that an attempt which is placed now would load; -1 = none. */
hl_status job_find_version(const struct job *j, int64_t *out) HL_CHECK;
/* What a job that is placed waits for, as its executor says; "" = nothing. Into cap bytes. */
void job_waits_for(const struct job *j, const struct hl_jobrun *run, char *out, size_t cap);
/* A place was found for its next attempt; slots of our cluster are held already (hl_plan_commit),
 * for the record takes time to be written and no other job may get them meanwhile. The plan is
 * taken over. */
void job_take_plan(struct job *j, struct hl_plan *plan);
/* An event for people, which changes nothing. */
void job_note(struct job *j, const char *kind, const char *text);

/* planned.c */
/* Where a pending job would run: on what is free or about to be, or, `idle`, without those that run
 * now. NULL: nothing can be said. */
struct hl_plan *job_plan_ahead(struct job *j, bool idle);
/* What its ranks read is there, or is not waited for. */
bool job_may_start(struct job *j);

/* table.c */
/* By id, else by a name: that of the only job that is not over, or of ended ones. HL_ECONFLICT
 * names the ids when several are not over. */
hl_status job_find(struct hl_controller *c, const char *id, struct job **out);
/* Whether a container that a node reported is one of that attempt of the job. */
bool job_owns_container(const struct hl_api_container_status *status, const struct job *j,
                        int attempt);
void job_free(struct job *j);
/* Into the table, and out of it. */
void jobs_add(struct job *j);
void jobs_remove(struct job *j);
/* The job that was submitted with that idempotency key; NULL: there is none. */
struct job *jobs_find_key(const struct hl_controller *c, const char *key);

/* record.c */
/* Fills doc, spec, run, events and what else is stored; what was filled goes with job_free. */
hl_status job_record_read(struct job *j, const json_t *value) HL_CHECK;
/* Of a job that is submitted: its doc is written down with its spec. */
hl_status job_doc_make(struct job *j) HL_CHECK;
/* What the job is now; its members are NULL without memory. */
struct job_record job_record_now(const struct job *j);
/* The value in the store; NULL when out of memory. */
json_t *job_record_json(const struct job *j, const struct job_record *r);
void job_record_fini(struct job_record *r);
/* The events as structs. */
hl_status job_events_list(const json_t *events, struct hl_arena *arena,
                          struct hl_api_job_event_list *out) HL_CHECK;

/* elastic.c: jobs with data_parallel_size: {min, max} */
/* What is asked for a size beyond the one that the spec has now. */
struct elastic_want {
    struct hl_job *spec;
    const struct job_executor *executor;
    const char *id;
    int attempt;
    int most_slots; /* that it may have, by its quota */
};

/* Of the size that the spec has. NULL: it does not fit. */
struct hl_plan *elastic_plan(struct hl_controller *c, const struct elastic_want *w);
/* The spec gets the largest size that fits, and *io its plan; the slots of *io are free. */
void elastic_enlarge(struct hl_controller *c, const struct elastic_want *w, struct hl_plan **io);
/* The same for a gang that starts, whose slots are held. used: slots of others of its queue. */
void elastic_enlarge_started(struct hl_controller *c, struct job *j, int used, struct hl_plan **io);
/* Slots that the job may have by its queue's quota. */
int elastic_quota_left(const struct hl_controller *c, const struct hl_job *spec, int used);
/* resize.c: a gang that runs gets another size */
/* A node was silent for too long: what is lost with it, and who goes on. */
void elastic_lose_node(struct job *j, const char *node, const char *text);
/* In a pass over the line, when all have had their turn: a gang gets the spare slots that it lacks,
 * or more replicas, as many as there are slots for. used: slots of its queue; how many more it has
 * now. */
int elastic_grow(struct job *j, int used);
/* With every tick. */
void elastic_round(struct job *j);
/* Appends why a gang that runs has not the size that it may have. */
void elastic_tell(const struct job *j, char *io, size_t cap);
/* A rank asks for its place; what it learns borrows from the arena and the job. HL_ENOENT: it is
 * none of the gang any more. */
hl_status elastic_join(struct hl_controller *c, const struct hl_api_controller_join_gang_params *p,
                       struct hl_arena *arena,
                       struct hl_api_controller_join_gang_results *out) HL_CHECK;
/* At a start, before slots are held again. */
void elastic_restore(struct job *j);
/* Action FREE. */
void elastic_free_slot(struct job *j, const struct hl_job_action *a);
/* The number that a rank has now which its node knows by another one; -1 = it is not in the gang.
 */
int elastic_rank_of(const struct hl_plan_container *c, int known_as);

/* The same of a rank of that container; known_as where it is not in the gang. */
int elastic_rank_told(const struct job *j, const char *container, int known_as);

/* Position of the container with that index, -1 = the attempt has it no more. */
static inline int job_position(const struct job *j, int index)
{
    return hl_plan_position(j->run.plan, index);
}

/* elastic.c */
/* Of a new attempt nothing is known yet. */
void elastic_begin(struct job *j);
/* The spec has the size of the gang that is placed, else the least. */
void elastic_follow(struct job *j);

/* submit.c */
/* On HL_OK the job is taken over, and the call answered when it is saved; when that fails the call
 * is rejected and the job is gone. */
hl_status job_submit(struct hl_controller *c, struct job *j, struct hl_rpc_call *call,
                     job_reply reply) HL_CHECK;

/* master_port.c */
/* Index of the container that has rank 0; -1: none is placed. */
int master_container(const struct job *j);
/* True when it was found and written down, else it is asked for, and job_keep follows. */
bool master_port_ready(struct job *j);
/* MASTER_PORT of the attempt. */
int master_port(const struct job *j);

/* images.c: of jobs whose ranks run in an image by an engine of the nodes; of others nothing waits
 * and nothing is pinned. */
/* With every tick: have it brought to where the gang is, or will be. */
void images_round(struct job *j);
/* The gang has its slots, and the image is not yet on all of its nodes. */
bool images_wait(const struct job *j);
/* A node of a gang that starts can't have it: *index is its container. */
bool images_missing(const struct job *j, int *index, char *why, size_t size);
/* Which node is pulling, and how far it is; untouched: none is. */
void images_tell(const struct job *j, char *out, size_t cap);
/* Appends what is known of the image of a job that waits: that a node pulls it, or why it can't. */
void images_tell_ahead(const struct job *j, char *io, size_t cap);
/* What the job's image was pinned to; "" = nothing yet. */
const char *images_pinned(const struct job *j);
hl_status images_pin(struct job *j, const char *pinned) HL_CHECK;
void images_free(struct job_images *images);

/* logs.c */
/* Nothing was written: nothing to show yet, or nothing ever. */
void log_reply_empty(struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_results *about, bool over);
/* agent_logs.c: an op of agents_executor */
void agents_read_log(struct job *j, struct hl_rpc_call *call, const struct log_query *query);

/* rank_watch.c */
/* With every tick: what has become of the ranks, as their nodes say. */
void rank_watch_round(struct job *j);
/* Why a gang that is up makes no steps; untouched: it makes some, or tells nothing. */
void rank_watch_tell(const struct job *j, char *out, size_t cap);
/* The process that the rank of its last attempt had was ended for that, or for being slow. */
bool rank_watch_ended(const struct job *j, int rank);
void rank_watch_free(struct rank_watch *w);
/* rank_lost.c */
/* An event that says how a rank was lost which was replaced since; `pid` is what it was before. Its
 * node is asked what the kernel says of a kill. */
void rank_lost_note(struct job *j, const char *node, const struct hl_api_rank_status *r, int pid);

/* rank_end.c */
/* A rank's process is ended: its node is asked to. Again, where it is still there after a while. */
struct rank_end {
    int pid;         /* that was asked for */
    int64_t sent_ms; /* steady clock */
};

void rank_end(struct job *j, int container, const struct hl_api_rank_status *rank,
              struct rank_end *io);

/* ledger.c */
/* What the job's state says of its time. */
void ledger_follow(struct job *j);
/* Steps to the highest that was made, as far as is known; 0 = its ranks tell none. */
int64_t ledger_reached(const struct job *j);
/* As stored; parts are in the arena. */
struct hl_api_job_ledger_record ledger_record(const struct job *j, struct hl_arena *arena);
void ledger_restore(struct job *j, const struct hl_api_job_ledger_record *r);
struct hl_api_job_ledger ledger_show(const struct job *j);

/* failures.c */
/* Of an attempt that is over, once: its first failure is found, completed and kept. */
void failures_look(struct job *j);

/* failure_list.c */
struct job_failure {
    struct job_failure *next; /* older */
    struct hl_arena arena;
    struct hl_api_job_failure f;
};

hl_status failure_copy(const struct hl_api_job_failure *from, struct job_failure **out) HL_CHECK;
void failure_free(struct job_failure *f);
/* attempt 0: the newest. NULL: there is none, or it is not complete yet. */
const struct hl_api_job_failure *job_failure_of(const struct job *j, int attempt);
struct hl_api_job_failure_list job_failures_list(const struct job *j, struct hl_arena *arena);
/* With the job they leave the store. */
hl_status failures_forget(const struct job *j, struct hl_records *records) HL_CHECK;
void failures_free(struct job *j);

/* rank_tables.c */
/* A new attempt: nothing was sent yet. */
hl_status rank_tables_reset(struct job *j, int containers);
/* Send the nodes of a running gang what they do not have. */
void rank_tables_send(struct job *j);

/* defrag.c: which gangs would have to begin again elsewhere so that the job fits. */
hl_status jobs_defrag(struct hl_controller *c, const struct hl_job *spec, struct hl_arena *arena,
                      struct hl_api_defrag *out) HL_CHECK;

#endif
