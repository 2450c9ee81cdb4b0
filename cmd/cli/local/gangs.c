/* `helios down` and gangs on Kubernetes: they do not end with the daemons as processes do, and only
 * their Controller knows them. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/local/local_private.h"
#include "core/jobstate.h"
#include "core/json.h"
#include "rpc/rpc.h"

#define END_MS  60000 /* logs are fetched before pods go */
#define CALL_MS 5000

static bool job_ended(const json_t *job)
{
    enum hl_job_state state;
    return hl_job_state_parse(hl_json_str(job, "state", ""), &state) == HL_OK &&
           hl_job_state_ended(state);
}

/* Cancels what has not ended; how many there are. A job that stops already is left alone by it. */
static hl_status cancel_all(struct hl_rpc_peer *peer, int *left)
{
    json_t *list = NULL, *job;
    size_t i;
    HL_TRY(hl_rpc_call(peer, "listJobs", NULL, CALL_MS, &list));
    hl_status st = HL_OK;
    *left = 0;
    json_array_foreach (hl_json_list(list, "jobs"), i, job) {
        if (job_ended(job) || st != HL_OK)
            continue;
        json_t *params = json_pack("{s:s}", "id", hl_json_str(job, "id", ""));
        st = hl_rpc_call(peer, "cancelJob", params, CALL_MS, NULL);
        json_decref(params);
        ++*left;
    }
    json_decref(list);
    return st;
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
        poll(NULL, 0, 100);
    }
}

hl_status local_end_gangs(struct hl_rpc *rpc, const json_t *doc)
{
    const json_t *controller = json_object_get(doc, "controllerd");
    struct hl_rpc_peer *peer;
    if (strcmp(hl_json_str(doc, "executor", ""), "kubernetes") != 0)
        return HL_OK;
    int pidfd = local_daemon_open(controller);
    if (pidfd < 0) {
        fprintf(stderr, "helios: the Controller is not running; its jobs on Kubernetes (label "
                        "app.kubernetes.io/managed-by=helios) stay there\n");
        return HL_OK;
    }
    close(pidfd);
    HL_TRY(hl_rpc_open(rpc, hl_json_str(controller, "address", ""), "Controller", &peer));
    hl_status st = end_all(peer);
    hl_rpc_peer_close(peer);
    return st;
}
