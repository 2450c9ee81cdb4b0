/* Waits for a job's end, also across restarts of the daemons. */
#include <poll.h>

#include "base/clock.h"
#include "cli/jobs/logs.h"

#define AWAIT_POLL_MS 200

hl_status cli_job(struct cli *cli, const char *id, struct hl_arena *arena, struct hl_api_job *out)
{
    struct hl_api_controller_get_job_results r;
    HL_TRY(CLI_CALL(cli, get_job, &(struct hl_api_controller_get_job_params){id}, arena, &r));
    *out = r.job;
    return HL_OK;
}

hl_status job_verdict(const char *job, enum hl_api_job_state state, const char *reason)
{
    const char *colon = reason[0] != '\0' ? ": " : "";
    if (state == HL_API_JOB_STATE_SUCCEEDED)
        return HL_OK;
    if (state == HL_API_JOB_STATE_CANCELLED)
        return hl_fail(HL_ECANCELED, "job %s was cancelled%s%s", job, colon, reason);
    return hl_fail(HL_EIO, "job %s %s%s%s", job, hl_api_job_state_name(state), colon, reason);
}

hl_status job_await(struct cli *cli, const char *job, uint64_t retry_ms, struct hl_arena *arena,
                    struct hl_api_job *out)
{
    struct patience patience = {.limit_ms = retry_ms, .what_goes_on = JOB_GOES_ON};
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena now = {0};
        struct hl_api_job doc;
        hl_status st = cli_job(cli, job, &now, &doc);
        if (st != HL_OK) {
            HL_TRY(patience_lose(&patience, cli, st));
            continue;
        }
        patience_regain(&patience);
        if (cli_job_ended(&doc)) {
            *out = doc;
            hl_arena_move(arena, &now);
            return HL_OK;
        }
        poll(NULL, 0, AWAIT_POLL_MS);
    }
}
