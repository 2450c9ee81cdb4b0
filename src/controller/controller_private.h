/* The Controller's state, shared by the files of this folder: one file per group of methods. */
#ifndef HL_CONTROLLER_PRIVATE_H
#define HL_CONTROLLER_PRIVATE_H

#include <jansson.h>
#include <uthash.h>

#include "base/plane.h"
#include "controller/commits.h"
#include "controller/copies/copies.h"
#include "controller/core.h"
#include "controller/damaged.h"
#include "controller/jobs/executor.h"
#include "controller/kube/gangs.h"
#include "controller/models/models.h"
#include "controller/nodes/nodes.h"
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

/* Answers a call with what the job is. */
typedef void (*job_reply)(struct hl_rpc_call *call, const struct job *j);

/* A call that waits until a job is written. */
struct job_waiter {
    struct job_waiter *next;
    struct hl_rpc_call *call;
    job_reply reply;
};

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
/* Open deadlines and ages move: this process stood still, or the wall clock was set. */
void jobs_shift(struct hl_controller *c, int64_t paused_ms, int64_t stepped_ms);
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
/* What models asks: struct version_users. */
bool jobs_find_writer(const struct hl_controller *c, const char *id, struct version_user *out);
bool jobs_find_reader(const struct hl_controller *c, const struct hl_version_rec *v,
                      struct version_user *out);
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
/* A container of a job that is not over may be there. */
bool jobs_need_node(const struct hl_controller *c, const struct node *n);
/* Of the containers that a node reported: have it forget ended ones that are older than any job. */
void purge_orphans(struct hl_controller *c, struct node *n,
                   const struct hl_api_container_status_list *containers);

/* jobs/master_port.c */
/* MASTER_PORT of the attempt. */
int master_port(const struct job *j);
/* 1 when it was found and written down, else it is asked for, and job_keep follows. */
int master_port_ready(struct job *j);

/* jobs/retention.c: ended jobs are forgotten, by number and by age */
void jobs_retain(struct hl_controller *c);
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
