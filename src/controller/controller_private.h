/* The Controller's state, shared by the files of this folder: one file per group of methods. */
#ifndef HL_CONTROLLER_PRIVATE_H
#define HL_CONTROLLER_PRIVATE_H

#include <jansson.h>
#include <uthash.h>

#include "base/plane.h"
#include "controller/controller.h"
#include "controller/claim.h"
#include "controller/jobs/executor.h"
#include "controller/kube/gangs.h"
#include "controller/copies/manifests.h"
#include "core/catalog.h"
#include "core/jobstate.h"
#include "core/json.h"
#include "core/listening.h"
#include "core/sweep.h"
#include "rpc/agent_calls.h"
#include "rpc/controller_calls.h"
#include "rpc/l3_calls.h"
#include "store/store.h"
#include "store/writer.h"

struct hl_timer;

struct node {
    char name[128];
    char incarnation[64];
    struct hl_api_node_info info; /* as it registered; tiers and storeEpoch are the report's */
    struct hl_arena info_arena;
    json_t *written; /* its record in the store; NULL = not known */
    /* Its last heartbeat, or what it said at the registration. */
    struct hl_api_controller_heartbeat_params report;
    struct hl_arena report_arena;
    struct hl_rpc_peer *agent;
    uint64_t seen_ns; /* listened_ns of the last sign of life; 0 = not since this start */
    int64_t seen_ms;
    int lost;
    int64_t lost_ms;        /* since when, for people */
    int64_t lost_steady_ms; /* and for its age */
    bool forgetting;        /* its record is being deleted */
    int gone;               /* forgotten: no longer in `nodes`, answers may still come */
    struct node *next_gone;
    /* copies/copies.c: its store */
    uint64_t store_epoch; /* as told */
    uint64_t list_epoch, listed_epoch;
    unsigned list_round;
    int listing, listed, list_again;
    unsigned drops; /* under way */
    int rdma;       /* a copy of it came by one-sided reads */
    bool held;      /* runs containers of a job with a damaged record: gets no others */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    struct hl_api_import_request request;
    struct hl_arena request_arena;
    struct hl_api_import_progress progress; /* as last heard; state is ours */
    struct hl_arena progress_arena;
    /* What L3 said at its end, while that is being written to the store. */
    struct hl_api_import_progress result;
    struct hl_arena result_arena;
    bool finishing;
    int polling;       /* an answer of L3 is awaited */
    int cancelled;     /* L3 may not know yet */
    uint64_t heard_ns; /* listened_ns of the last answer */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct orphan {
    struct hl_id id;
    struct hl_orphan seen;
    int archived; /* the archive had it in the last round that saw it */
    UT_hash_handle hh;
};

struct path_count {
    char path[16];
    uint64_t ops;
    uint64_t bytes;
};

/* A job: what was asked, and how far it is. */
struct job {
    char id[HL_JOB_ID_MAX + 1];
    struct hl_job spec;
    struct hl_jobrun run;
    json_t *doc;    /* stored once: yaml, source, key, seq */
    json_t *events; /* List(JobEvent), the newest JOB_EVENTS_MAX */
    json_t *saved;  /* record as last written to the store; NULL = never, the job is unknown */
    int64_t seq;
    int port, port_attempt; /* MASTER_PORT, and of which attempt; 0 = chosen blindly */
    int port_skip, port_asked;
    uint64_t read_ns;              /* when a log of it was last asked for; 0 = not yet */
    int64_t load_version;          /* the version this attempt's ranks load; -1 = none */
    int unsaved;                   /* the store refused the last change: actions wait */
    json_t *saving;                /* record that is being written; its actions wait; else NULL */
    bool keep;                     /* more than the run has changed */
    bool behind;                   /* it changed after `saving` was made */
    bool resume;                   /* actions were dropped: hl_jobrun_resume says them again */
    bool forgetting;               /* its record is being deleted */
    int64_t ended_steady_ms;       /* for its age; 0 = no round has seen the end yet */
    struct job_waiter *waiters;    /* calls that are answered once `saving` is durable */
    int held, stepped;             /* job_events_hold; events came since */
    struct hl_job_actions actions; /* of these */
    int marked;                    /* the planner sees its slots as held */
    unsigned char *starting;       /* per container: a start call is under way */
    unsigned char *told;           /* per container: jobs/rank_tables.c */
    const struct job_executor *executor;
    struct gang gang; /* kube_executor's */
    char *table;      /* rank table of this attempt; NULL = not made yet, "" = can't be */
    struct hl_controller *controller;
    UT_hash_handle hh;
};

struct hl_controller {
    struct hl_controller_opts opts;
    unsigned refs; /* its owner's, and one per call under way */
    void (*destroy)(struct hl_controller *c);
    int closing;
    struct hl_store *store;
    struct hl_store_writer *writer;
    struct change *changes; /* of the catalogue: the first is being written */
    bool making;            /* the first is being made */
    bool forgetting_jobs;
    struct hl_catalog catalog;
    json_t *damaged; /* key of a record that can't be read: why; NULL = none */
    struct hl_rpc_server *server;
    struct hl_rpc_peer *l3;
    struct hl_timer *tick;
    struct hl_listening listening; /* the time for every deadline by which others are judged */
    struct hl_timer *import_tick;
    struct node *nodes;
    struct node *gone;     /* forgotten while calls were under way */
    uint64_t retention_ns; /* of the last look at what is over */
    struct import *imports;
    struct job *jobs;
    struct hl_cluster cluster; /* what the planner sees */
    int64_t job_seq;
    int slots_changed;                   /* or versions: pending jobs may try again */
    const struct job_executor *executor; /* of jobs that are submitted now */
    struct gangs *gangs;                 /* kube_executor's; NULL = no Kubernetes */
    struct orphan *orphans;
    struct holding *holdings;
    struct kept_manifest *manifests; /* by id: of the last sweep */
    int manifest_puts;               /* under way */
    int manifest_complained;         /* of the same trouble only once */
    struct recovery *recovery;       /* under way, else NULL */
    struct hl_api_pool_info *pool;   /* as last heard, in pool_arena; NULL = L3 silent */
    struct hl_arena pool_arena;
    char l3_state[256];
    int pool_asked;
    int sweeping;
    int sweep_waits; /* for the answer to the claim that it begins with */
    struct claim claim;
    int archiving;          /* a batch is on its way into the archive */
    int archive_complained; /* of the same trouble only once */
    unsigned sweep_round;
    uint64_t sweep_ns;
    uint64_t crc_failures, crc_retries, lost_reads;
    struct path_count paths[8];
    struct hl_plane_stats ranks[HL_PLANE_COUNT]; /* sums of their reports */
};

/* A change of the catalogue that is on its way: the first member of what it needs. */
struct change {
    /* Call one hl_catalog_* function with commit_records and `c`; called twice (commits.c). What
     * depends on more than the catalogue is checked only while !durable. */
    hl_status (*make)(struct change *ch);
    /* After the last make, or when the commit failed, with hl_error_text(); frees the change. */
    void (*done)(struct change *ch, hl_status st);
    struct hl_controller *c;
    struct change *next;
    struct hl_records records; /* as last written */
    bool writing, durable, applied;
    int tries;
};

/* Answers a call with what the job is. */
typedef void (*job_reply)(struct hl_rpc_call *call, const struct job *j);

/* A call that waits until a job is written. */
struct job_waiter {
    struct job_waiter *next;
    struct hl_rpc_call *call;
    job_reply reply;
};

/* cluster_info.c */
void method_cluster_info(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_cluster_info_params *p);

/* enter.c */
/* Look at the clocks. Everything that comes from outside begins with it, so that a pause of this
 * process is known before anything is judged. */
void controller_check_clocks(struct hl_controller *c);
/* For ages: wall time at the start, from then on the monotonic clock. */
int64_t controller_steady_ms(const struct hl_controller *c);
/* commits.c */
/* hl_catalog_commit_fn: arg is the controller. Within a change it never blocks; elsewhere it waits
 * for the disk, and fails with HL_EBUSY while a change is under way. */
hl_status commit_records(void *arg, const struct hl_records *records);
/* Write and go on. The Controller outlives `done`, which begins with controller_stopped. */
hl_status controller_write(struct hl_controller *c, const struct hl_records *records,
                           hl_store_written done, void *arg) HL_CHECK;
/* Takes the change; it is made when those before it are done. */
void change_start(struct hl_controller *c, struct change *ch);
/* End what is under way with HL_ECANCELED. */
void changes_stop(struct hl_controller *c);

/* Before a call: the Controller outlives the answer. `done` begins with controller_stopped. */
static inline struct hl_controller *controller_hold(struct hl_controller *c)
{
    c->refs++;
    return c;
}
/* At the begin of a typed handler, whose `arg` is the Controller. */
struct hl_controller *controller_enter(void *arg);
/* 1: the Controller was stopped meanwhile, nothing of it may be touched. */
int controller_stopped(struct hl_controller *c);
/* Ends a hold, and with the last one the Controller. */
void controller_release(struct hl_controller *c);
/* Reject with the thread's failure text. */
void reject(struct hl_rpc_call *call, hl_status st);

/* models/imports.c */
void method_import_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_import_model_params *p);
void method_import_progress(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_import_progress_params *p);
void method_cancel_import(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_cancel_import_params *p);
bool import_running(const struct import *im);
struct hl_api_import_summary import_summary(const struct import *im);
void imports_tick(void *controller);
void imports_fini(struct hl_controller *c);

/* models/models.c */
void method_list_models(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_models_params *p);
void method_get_model(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_model_params *p);
void method_remove_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_remove_model_params *p);

/* models/shards.c */
void method_request_shards(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p);
void method_list_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_shards_params *p);
void method_report_access(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_report_access_params *p);
/* metrics.c: ranks are short-lived, so that what they transferred is kept and shown here. */
void metrics_report(struct hl_controller *c,
                    const struct hl_api_controller_report_access_params *p);
void method_metrics(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_metrics_params *p);
void method_options(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_options_params *p);
void method_begin_version(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_begin_version_params *p);
void method_commit_part(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_commit_part_params *p);
void method_abandon_version(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_abandon_version_params *p);
/* Free shards in the pool; failures are left to the sweep. */
void free_in_pool(struct hl_controller *c, const struct hl_id *ids, size_t n);
/* Drop the open and failed versions of a job whose attempt is below `attempt` (INT_MAX: all). */
void drop_open_versions(struct hl_controller *c, const char *job, int attempt);
/* Drop open and failed versions that no job of ours writes and nobody has touched for gc.grace. */
void drop_stale_versions(struct hl_controller *c);

/* state_load.c */
/* Everything from the store. A record that can't be read costs its object, which is named in the
 * log and in c->damaged; it stays in the store as it is. */
hl_status state_load(struct hl_controller *c) HL_CHECK;

/* damaged.c */
/* The record of this job is damaged: what it runs is neither known nor to be touched. */
bool job_is_damaged(const struct hl_controller *c, const char *id);
/* The id of a container of such a job that runs; NULL: there is none. */
const char *job_damaged_container(const struct hl_controller *c,
                                  const struct hl_api_container_status_list *containers);
/* Give such a job up: its record goes, and the Agents are told to stop its containers. */
void job_drop_damaged(struct hl_controller *c, const char *id, struct hl_rpc_call *call);
/* A version, or with -1 the model, was removed with its records. */
void damaged_forget(struct hl_controller *c, const char *model, int64_t version);

/* models/commit_check.c */
/* Ids of the version's shards and of those that a rank names. */
struct hl_api_text_list commit_check_ids(const struct hl_version_rec *v,
                                         const struct hl_api_shard_list *named,
                                         struct hl_arena *arena);
/* found: what L3.look has answered about them. HL_ENOENT, HL_EINVAL name the shard. */
hl_status commit_check(const struct hl_version_rec *v, const struct hl_api_shard_list *named,
                       const struct hl_api_found_shard_list *found) HL_CHECK;

/* models/recover.c */
void method_recover(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_recover_params *p);
/* One that is under way is not answered. */
void recover_fini(struct hl_controller *c);

/* copies/write_behind.c */
/* After a sweep: archive what is not yet, where the L3 daemon wants that. */
void archive_behind(struct hl_controller *c);
/* Tell L3 which shards were read through its mapping. */
void archive_touch(struct hl_controller *c, const struct hl_api_access_report_list *reports);

/* copies/sweep.c: what L3 holds against what the catalogue says */
void pool_tick(struct hl_controller *c);
void pool_fini(struct hl_controller *c);

/* copies/pool.c */
/* ClusterInfo.l3State. */
const char *pool_state(const struct hl_controller *c);
/* The L3 daemon has an L4. */
int pool_has_archive(const struct hl_controller *c);

/* copies/orphans.c */
/* Something in pool or archive that nobody knows; it goes after its grace. */
void note_orphan(struct hl_controller *c, struct hl_id id, int archived);
/* At the end of a sweep: free those whose grace is over. */
void settle_orphans(struct hl_controller *c);
void orphans_fini(struct hl_controller *c);

/* copies/methods.c */
void method_get_shard(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_shard_params *p);
void method_copy_shard(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_copy_shard_params *p);
void method_drop_copy(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_drop_copy_params *p);
void method_report_bad_copy(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_report_bad_copy_params *p);

/* nodes/methods.c */
void method_register_node(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_register_node_params *p);
void method_heartbeat(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_heartbeat_params *p);
void method_list_nodes(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_nodes_params *p);
void nodes_tick(struct hl_controller *c);

/* nodes/nodes.c */
hl_status nodes_load(struct hl_controller *c, const json_t *record);
/* A new one, or what it says of itself now. HL_EINVAL names what is wrong. */
hl_status node_add(struct hl_controller *c, const struct hl_api_node_info *info,
                   struct node **out) HL_CHECK;
/* The node's record; NULL: there is none any more. */
hl_status node_write(struct node *n, const json_t *record, hl_store_written done,
                     void *arg) HL_CHECK;
/* Close the peers; calls under way end. */
void nodes_disconnect(struct hl_controller *c);
void nodes_fini(struct hl_controller *c);
/* Free those that no answer can speak of any more. */
void nodes_bury(struct hl_controller *c);
/* Borrowed, NULL when unknown. */
struct node *node_find(struct hl_controller *c, const char *name);
/* What the node said of one of its containers between two heartbeats. */
void node_container(struct node *n, const struct hl_api_container_status *status);
/* What it reported of the container; NULL: nothing. */
const struct hl_api_container_status *node_reported(const struct node *n, const char *id);
int node_ready(const struct node *n);
/* Ms since its last sign of life. */
int64_t node_silent_ms(const struct node *n);
/* Some were here before this start and have yet the time to come back. */
int nodes_expected(const struct hl_controller *c);

/* jobs/jobs.c: the state machine at work */
void job_event(struct job *j, struct hl_job_event *ev);
/* The events from here to `go` are written at once, and only then carried out. */
void job_events_hold(struct job *j);
void job_events_go(struct job *j);
/* Write down what no event has changed; then do what the job's state asks for. */
void job_keep(struct job *j);
/* What the store has is what the job is: actions may be carried out. */
bool job_is_saved(const struct job *j);
/* Answer when the job is saved, maybe now; or reject when that fails. */
void job_wait(struct job *j, struct hl_rpc_call *call, job_reply reply);
/* What the state asks for, whatever was done before. */
void job_resume(struct job *j);
void jobs_tick(struct hl_controller *c);
/* Reject the calls that wait. */
void jobs_stop(struct hl_controller *c);

/* jobs/table.c */
/* By id, else by a name: that of the only job that is not over, or of ended ones. HL_ECONFLICT
 * names the ids when several are not over. */
hl_status job_find(struct hl_controller *c, const char *id, struct job **out);
/* Who holds a slot: job id and container id, "" when free. */
void jobs_slot_holder(const struct hl_controller *c, const char *node, int numa_id,
                      const char **job, char *container, size_t cap);
/* Whether a container that a node reported is one of that attempt of the job. */
bool job_owns_container(const struct hl_api_container_status *status, const struct job *j,
                        int attempt);
bool job_attempt_is_over(const struct job *j, int attempt);
void job_free(struct job *j);
void jobs_fini(struct hl_controller *c);

/* jobs/submit.c */
hl_status jobs_load(struct hl_controller *c, const json_t *value);
/* After everything is loaded: hold slots, repeat what was under way. */
void jobs_resume(struct hl_controller *c);
/* On HL_OK the job is taken over, and the call answered when it is saved; when that fails the call
 * is rejected and the job is gone. */
hl_status job_submit(struct hl_controller *c, struct job *j, struct hl_rpc_call *call,
                     job_reply reply) HL_CHECK;

/* jobs/container_spec.c */
/* Of a container of the attempt that is placed; it borrows from the job. */
struct hl_api_container_spec job_container_spec(const struct job *j, int index,
                                                struct hl_arena *arena);

/* jobs/agents.c */
/* The node reported these containers. */
void jobs_containers(struct hl_controller *c, struct node *n,
                     const struct hl_api_container_status_list *containers);
/* A node does not answer, or does again; its containers may run on. */
void jobs_node_silent(struct hl_controller *c, struct node *n);
void jobs_node_back(struct hl_controller *c, struct node *n);
/* Of the containers that a node reported: have it forget ended ones that are older than any job. */
void purge_orphans(struct hl_controller *c, struct node *n,
                   const struct hl_api_container_status_list *containers);

/* jobs/master_port.c */
/* MASTER_PORT of the attempt. */
int master_port(const struct job *j);
/* 1 when it was found and written down, else it is asked for, and job_keep follows. */
int master_port_ready(struct job *j);

/* jobs/retention.c: what is over and when it is forgotten */
void retention_tick(struct hl_controller *c);
/* jobs/methods.c */
void method_plan_job(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_plan_job_params *p);
void method_submit_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_submit_job_params *p);
void method_list_jobs(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_list_jobs_params *p);
void method_get_job(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_get_job_params *p);
void method_cancel_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_cancel_job_params *p);

/* jobs/logs.c */
/* Nothing was written: nothing to show yet, or nothing ever. */
void log_reply_empty(struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_results *about, bool over);
void method_read_log(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_params *p);

/* jobs/rank_tables.c */
/* A new attempt: nobody was told anything. */
hl_status rank_tables_reset(struct job *j, int containers);
/* Tell the nodes of a running gang what they have not been told. */
void rank_tables_tell(struct job *j);
/* The node's Agent is a new one. */
void rank_tables_node(struct hl_controller *c, const char *node);
void method_rank_table(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_rank_table_params *p);

#endif
