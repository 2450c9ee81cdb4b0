/* controller/models/models.h - models and their versions: importing, reading, writing by gangs,
 * removal, and recovery from what pool and archive hold.
 *
 * Owns:    running and ended imports, the recovery in progress. The catalogue belongs to the core.
 * Threads: the Controller's loop.
 * Errors:  calls are rejected with what is wrong and what to do.
 * Units:   ms, bytes.
 * Limits:  1000 remembered imports, 10000 shards in one answer, one recovery at a time.
 */
#ifndef HL_CONTROLLER_MODELS_MODELS_H
#define HL_CONTROLLER_MODELS_MODELS_H

#include <stdbool.h>

#include "api/types.h"
#include "base/status.h"
#include "rpc/controller_calls.h"

struct hl_controller;
struct hl_version_rec;

/* A job, as a user of versions. Strings are borrowed until the loop's next turn. */
struct version_user {
    const char *job;
    enum hl_api_job_state state;
    int attempt;
    bool over; /* it has ended */
};

/* What this wing asks the jobs wing. */
struct version_users {
    /* Finds the job with that id, which writes versions; false: unknown. */
    bool (*find_writer)(const struct hl_controller *c, const char *job, struct version_user *out);
    /* Finds a job that has not ended and loads the version, or would after a restart; false: there
     * is none. */
    bool (*find_reader)(const struct hl_controller *c, const struct hl_version_rec *v,
                        struct version_user *out);
    /* The node of a rank in that attempt of the job; "" = unknown. */
    const char *(*find_node)(const struct hl_controller *c, const char *job, int attempt, int rank);
    /* The container of that attempt of the job has lost its ranks: they continue in another one, or
     * the gang continues without them. */
    bool (*is_replaced)(const struct hl_controller *c, const char *job, int attempt, int container);
};

/* `users` is borrowed for the Controller's lifetime. */
hl_status models_create(struct hl_controller *c, const struct version_users *users) HL_CHECK;
/* Stops following imports. */
void models_stop(struct hl_controller *c);
/* A recovery in progress is not answered. */
void models_fini(struct hl_controller *c);

/* st: result of hl_version_check_cut(), with hl_error_text(). Must begin with
 * controller_stopped. */
typedef void (*cut_planned)(void *arg, hl_status st);
/* Checks in another thread whether the version can be cut for the split. HL_OK: `done` runs once,
 * later. */
hl_status cut_plan(struct hl_controller *c, const struct hl_version_rec *v,
                   const struct hl_api_split *split, cut_planned done, void *arg) HL_CHECK;

bool imports_running(const struct hl_controller *c);
/* Drops the open and failed versions of a job's attempts below `attempt` (INT_MAX: all). */
void drop_open_versions(struct hl_controller *c, const char *job, int attempt);
/* Drops open and failed versions that none of our jobs writes and that were not touched for
 * gc.grace. */
void drop_stale_versions(struct hl_controller *c);

void method_import_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_import_model_params *p);
void method_import_progress(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_import_progress_params *p);
void method_cancel_import(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_cancel_import_params *p);
void method_list_models(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_models_params *p);
void method_get_model(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_model_params *p);
void method_remove_model(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_controller_remove_model_params *p);
void method_request_shards(void *arg, struct hl_rpc_call *call,
                           const struct hl_api_controller_request_shards_params *p);
void method_list_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_list_shards_params *p);
void method_begin_version(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_begin_version_params *p);
void method_commit_part(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_commit_part_params *p);
void method_abandon_version(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_abandon_version_params *p);
void method_recover(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_recover_params *p);

#endif
