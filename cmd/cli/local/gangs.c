/* `helios down` and gangs on Kubernetes: unlike processes they do not end with the daemons, and
 * only their Controller knows them. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/local/local_private.h"
#include "core/job/jobstate.h"
#include "rpc/controller_calls.h"
#include "rpc/rpc.h"

#define END_MS  60000 /* logs are fetched before pods are deleted */
#define CALL_MS 5000

static bool job_ended(const struct hl_api_job *job)
{
    return hl_job_state_ended(job->state);
}

/* Cancels all jobs that have not ended, and counts them. A job that is stopping already is not
 * affected. */
static hl_status cancel_all(struct hl_rpc_peer *peer, int *left)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_jobs_results r;
    struct hl_api_controller_cancel_job_results cancelled;
    HL_TRY(hl_call_controller_list_jobs(peer, &(struct hl_api_controller_list_jobs_params){0},
                                        CALL_MS, &arena, &r));
    *left = 0;
    for (size_t i = 0; i < r.jobs.count; i++) {
        if (job_ended(&r.jobs.items[i]))
            continue;
        const struct hl_api_controller_cancel_job_params p = {.id = r.jobs.items[i].id};
        HL_TRY(hl_call_controller_cancel_job(peer, &p, CALL_MS, &arena, &cancelled));
        ++*left;
    }
    return HL_OK;
}

static hl_status end_all(struct hl_rpc_peer *peer)
{
    uint64_t end = hl_now_ns() + END_MS * HL_NS_PER_MS;
    int left = 0;
    for (;;) {
        HL_TRY(cancel_all(peer, &left));
        if (left == 0)
            return HL_OK;
        if (hl_now_ns() > end)
            return hl_fail(
                HL_ETIMEDOUT,
                "%d jobs have not ended on Kubernetes after %d s (helios describe says "
                "why); to leave them there: helios down --keep, then helios down --purge",
                left, END_MS / 1000);
        poll(NULL, 0, LOCAL_LOOK_MS);
    }
}

hl_status local_end_gangs(struct hl_rpc *rpc, const struct hl_api_local_cluster *doc)
{
    const struct hl_api_local_daemon *controller = local_daemon_find(doc, "controllerd");
    struct hl_rpc_peer *peer;
    if (strcmp(doc->executor, "kubernetes") != 0)
        return HL_OK;
    int pidfd = local_daemon_open(controller);
    if (pidfd < 0) {
        fprintf(stderr, "helios: the Controller is not running; its jobs on Kubernetes (label "
                        "app.kubernetes.io/managed-by=helios) stay there\n");
        return HL_OK;
    }
    close(pidfd);
    if (local_daemon_stopped(controller))
        return hl_fail(HL_ETIMEDOUT,
                       "a signal has stopped the Controller, which ends the jobs on Kubernetes: "
                       "`kill -CONT %d`, then repeat `helios down`; to leave them there: helios "
                       "down --keep, then helios down --purge",
                       controller->pid);
    HL_TRY(hl_rpc_open(rpc, local_daemon_address(controller), "Controller", &peer));
    hl_status st = end_all(peer);
    hl_rpc_peer_close(peer);
    return st;
}
