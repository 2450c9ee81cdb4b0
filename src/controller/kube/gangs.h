/* controller/kube/gangs.h - jobs whose containers Kubernetes runs: one Volcano Job for each
 * attempt.
 *
 * Level-triggered: watchers keep what the API server has of Jobs and pods; a look compares that
 * with what the job's state wants, tells the state machine what happened to pods, and has one
 * request at a time sent for a job until both agree. Nothing else is remembered, so that a
 * Controller that was restarted finds its gangs again by their label.
 *
 * Owns:    client, watchers, requests, the spooled logs. The Controller and its jobs are borrowed.
 * Threads: the Controller's loop; requests and logs are fetched in the loop's worker threads.
 * Errors:  at start HL_ENOENT, HL_EINVAL (kubeconfig). Later ones are logged, or end the attempt
 *          with the API server's own words.
 * Units:   ms.
 * Limits:  a slice of a log is 1 MiB; 256 ranks' logs are kept when a gang is deleted.
 */
#ifndef HL_CONTROLLER_GANGS_H
#define HL_CONTROLLER_GANGS_H

#include <stdint.h>

#include "api/types.h"
#include "base/id.h"
#include "controller/controller.h"
#include "core/jobstate.h"

struct gangs;
struct job;
struct hl_rpc_call;

/* What is remembered of a job between looks; a part of struct job. */
struct gang {
    char id[HL_ID_TEXT_LEN + 1]; /* label of its objects; "" = it runs on Agents */
    int busy;                    /* a request is under way */
    int stale;                   /* its objects changed since the last look */
    int made, unmade;            /* attempt whose Job was made, deleted; 0 = none by us */
    int told;                    /* attempt whose rank table was written */
    int kept;                    /* attempt that succeeded and whose logs were fetched */
    unsigned tries;              /* failures in a row */
    uint64_t not_before_ns;
    char problem[200];   /* of the last request, "" = it went well */
    uint64_t trouble_ns; /* since when its Job is at an end that no pod explains; 0 = it is not */
};

hl_status gangs_start(struct hl_controller *c, const struct hl_kube_opts *opts,
                      struct gangs **out) HL_CHECK;
/* NULL is fine. Requests under way end first. */
void gangs_stop(struct gangs *g);

/* Which rank is in which pod; HL_EINVAL: Kubernetes can't have this job. */
hl_status gangs_plan(const struct gangs *g, const struct hl_job *spec, const char *job_id,
                     int attempt, struct hl_plan **out) HL_CHECK;
/* Have made or deleted what the job's state wants; gives no events. */
void gangs_keep(struct job *j);
/* Once in a while, for all jobs. */
void gangs_tick(struct hl_controller *c);
/* "ready", or why nothing is known of the API server's objects. Into cap bytes. */
void gangs_state(const struct gangs *g, char *out, size_t cap);
const char *gangs_server(const struct gangs *g);
/* Why a container waits or was lost: what its pod says, or what keeps us from having one; "" =
 * nothing. Into cap bytes. */
void gangs_message(const struct job *j, int index, char *out, size_t cap);
/* 1: the job is not to be forgotten yet, its objects are there or not known. */
int gangs_need(const struct job *j);
/* The job was forgotten: its fetched logs go too, soon. A job of no gang has none. */
void gangs_forget(const struct job *j);

/* Which part of whose output is asked for. */
struct log_ask {
    int index, rank; /* container of the plan, and one of its ranks */
    int attempt;
    int64_t offset; /* < 0 counts from the end */
    int64_t max_bytes;
    struct hl_api_controller_read_log_results about; /* what the answer says beside the bytes */
};

/* Answers the call. */
void gangs_read_log(struct job *j, struct hl_rpc_call *call, const struct log_ask *ask);

#endif
