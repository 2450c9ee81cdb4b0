/* controller/jobs/jobs.h - jobs as the rest of the Controller sees them: a table that is loaded at
 * start, driven by ticks and nodes' reports, and queried for which job holds or loads what. What
 * runs containers uses controller/executor.h.
 *
 * Owns:    the jobs, and the number of the last one.
 * Threads: the Controller's loop.
 * Errors:  HL_ECORRUPT names what is missing from a stored job; later failures are logged or end an
 *          attempt.
 * Units:   ms.
 * Limits:  200 events are kept per job.
 */
#ifndef HL_CONTROLLER_JOBS_JOBS_H
#define HL_CONTROLLER_JOBS_JOBS_H

#include <jansson.h>
#include <stdbool.h>

#include "api/types.h"
#include "base/status.h"
#include "controller/models/models.h"
#include "core/job/job.h"
#include "rpc/controller_calls.h"

struct hl_buf;
struct gang_source;
struct gang_watch;
struct hl_controller;
struct job_executor;
struct node;

extern const struct job_executor agents_executor;
extern const struct gang_source jobs_gang_source;

/* all: NULL-terminated; asked in this order to which executor a stored job belongs. submitted: the
 * executor for newly submitted jobs. */
hl_status jobs_create(struct hl_controller *c, const struct job_executor *const *all,
                      const struct job_executor *submitted) HL_CHECK;
void jobs_fini(struct hl_controller *c);
/* queue.c: the line of jobs that wait for slots. HL_EINVAL: option queue.list. */
hl_status queue_create(struct hl_controller *c) HL_CHECK;
/* Loads a record of the store: the past use of a queue's forgotten jobs. */
hl_status queue_load_use(struct hl_controller *c, const char *key, const json_t *value) HL_CHECK;
/* Ends all passes. */
void queue_destroy(struct hl_controller *c);
/* What runs the ranks of newly submitted jobs. */
enum hl_job_executor jobs_kind(const struct hl_controller *c);
/* Appends metrics of the line. */
void queue_gauges(const struct hl_controller *c, struct hl_buf *out);
/* Sets who decides whether containers may start; borrowed for the Controller's lifetime. */
void jobs_watch(struct hl_controller *c, const struct gang_watch *watch);
/* Starts all executors. The error names the one that can't be started. */
hl_status executors_start(struct hl_controller *c) HL_CHECK;
void executors_stop(struct hl_controller *c);
void executors_tell(const struct hl_controller *c, struct hl_arena *arena,
                    struct hl_api_cluster_info *io);

/* Load records of the store: a job, a failure, and the number of the last job. */
hl_status jobs_load(struct hl_controller *c, const json_t *value) HL_CHECK;
hl_status jobs_load_failure(struct hl_controller *c, const char *key, const json_t *value) HL_CHECK;
hl_status jobs_load_seq(struct hl_controller *c, const json_t *value) HL_CHECK;
/* Call it when everything readable is loaded: makes sure that no id is given twice, whatever is
 * damaged. */
void jobs_settle_seq(struct hl_controller *c);
/* Call it after everything is loaded: holds slots and repeats actions that were in progress. */
void jobs_resume(struct hl_controller *c);
void jobs_tick(struct hl_controller *c);
/* Shifts open deadlines and ages: this process was paused, or the wall clock was set. */
void jobs_shift(struct hl_controller *c, int64_t paused_ms, int64_t stepped_ms);
/* Forgets ended jobs, by number and by age. */
void jobs_retain(struct hl_controller *c);
/* Rejects waiting calls. */
void jobs_stop(struct hl_controller *c);

/* ---- what nodes say: struct node_events ---- */

/* The node reported these containers. */
void jobs_containers(struct hl_controller *c, struct node *n,
                     const struct hl_api_container_status_list *containers);
/* Has a node forget those of its reported containers that have ended and belong to no known job. */
void purge_stale_containers(struct hl_controller *c, struct node *n,
                            const struct hl_api_container_status_list *containers);
/* A node does not answer, or answers again; its containers may still run. */
void jobs_node_silent(struct hl_controller *c, struct node *n);
void jobs_node_back(struct hl_controller *c, struct node *n);
/* A container of a job that has not ended may be on the node. */
bool jobs_need_node(const struct hl_controller *c, const struct node *n);
/* One of these is such a container. */
bool jobs_hold_containers(const struct hl_controller *c, const struct node *n,
                          const struct hl_api_container_status_list *containers);
/* A job needs the container, or it is unknown whether one does. */
bool jobs_want_container(const struct hl_controller *c, const char *id);
/* The node has a new Agent: sends it the rank tables again. */
void rank_tables_resend(struct hl_controller *c, const char *node);
/* The node has other addresses: recreates its jobs' rank tables and sends them to all nodes. */
void rank_tables_renew(struct hl_controller *c, const char *node);

/* ---- what is asked ---- */

unsigned jobs_count(const struct hl_controller *c);
void jobs_count_states(const struct hl_controller *c, unsigned count[HL_API_JOB_STATE_COUNT]);
/* Appends recovery times of replaced ranks. */
void jobs_recovery_metrics(const struct hl_controller *c, struct hl_buf *out);
/* Some gang is starting: not all of its containers run yet. A gang that only waits for nodes, as in
 * a Kubernetes queue, does not count. */
bool jobs_gang_starts(const struct hl_controller *c);
/* Appends the metric families of the time ledgers. */
void jobs_ledger_gauges(const struct hl_controller *c, struct hl_buf *out);
/* The holder of a slot: job id and container id, "" if free. */
void jobs_slot_holder(const struct hl_controller *c, const char *node, int numa_id,
                      const char **job, char *container, size_t cap);
/* The functions of struct version_users. */
bool jobs_find_writer(const struct hl_controller *c, const char *id, struct version_user *out);
bool jobs_find_reader(const struct hl_controller *c, const struct hl_version_rec *v,
                      struct version_user *out);
const char *jobs_find_node(const struct hl_controller *c, const char *job, int attempt, int rank);
bool jobs_is_replaced(const struct hl_controller *c, const char *id, int attempt, int container);

void method_plan_job(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_plan_job_params *p);
void method_submit_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_submit_job_params *p);
void method_list_jobs(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_list_jobs_params *p);
void method_get_job(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_get_job_params *p);
void method_explain_job(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_explain_job_params *p);
void method_list_queue(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_list_queue_params *p);
void method_cancel_job(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_cancel_job_params *p);
void method_read_log(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_controller_read_log_params *p);
void method_first_failure(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_first_failure_params *p);
void method_join_gang(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_join_gang_params *p);
void method_rank_table(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_rank_table_params *p);

#endif
