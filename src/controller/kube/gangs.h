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

/* Once in a while, for all jobs. */
void gangs_tick(struct hl_controller *c);
/* "ready", or why nothing is known of the API server's objects. Into cap bytes. */
void gangs_state(const struct gangs *g, char *out, size_t cap);
const char *gangs_server(const struct gangs *g);
#endif
