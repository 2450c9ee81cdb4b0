/* Waiting for a job's end, over restarts of the daemons. */
#include <poll.h>
#include <stdio.h>

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

bool failure_may_pass(hl_status st)
{
    return hl_status_retryable(st) || st == HL_ECANCELED;
}

hl_status patience_lose(struct patience *p, struct cli *cli, hl_status st)
{
    if (!failure_may_pass(st))
        return st;
    uint64_t now = hl_now_ns();
    if (p->since_ns == 0) {
        p->since_ns = now;
        fflush(stdout);
        fprintf(stderr, "helios: %s; trying again for up to %llu s\n", hl_error_text(),
                (unsigned long long)(p->limit_ms / 1000));
    } else if (now - p->since_ns > p->limit_ms * HL_NS_PER_MS) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        return hl_fail(st, "%.900s; gave up after %llu s, the job may still be running", text,
                       (unsigned long long)(p->limit_ms / 1000));
    }
    cli_disconnect(cli); /* the Controller may come back elsewhere */
    poll(NULL, 0, AWAIT_POLL_MS);
    return HL_OK;
}

void patience_regain(struct patience *p)
{
    if (p->since_ns != 0)
        fputs("helios: connected again\n", stderr);
    p->since_ns = 0;
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
    struct patience patience = {.limit_ms = retry_ms};
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
