/* Waits for a daemon that is being restarted. */
#include <poll.h>
#include <stdio.h>

#include "base/clock.h"
#include "cli/cli/cli.h"
#include "cli/local/local.h"
#include "rpc/l3_calls.h"

#define AWAIT_POLL_MS 200
#define AWAIT_CALLS   3 /* a restart may take this many call deadlines */

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
        cli_print(stderr, "helios: %s; trying again for up to %llu s\n", hl_error_text(),
                  (unsigned long long)(p->limit_ms / 1000));
    } else if (now - p->since_ns > p->limit_ms * HL_NS_PER_MS) {
        char text[HL_ERROR_TEXT_MAX];
        snprintf(text, sizeof(text), "%s", hl_error_text());
        return hl_fail(
            st, "%.900s; gave up after %llu s%s%s", text, (unsigned long long)(p->limit_ms / 1000),
            p->what_goes_on != NULL ? ", " : "", p->what_goes_on != NULL ? p->what_goes_on : "");
    }
    cli_disconnect(cli); /* the Controller may come back at another address */
    poll(NULL, 0, AWAIT_POLL_MS);
    return HL_OK;
}

void patience_regain(struct patience *p)
{
    if (p->since_ns != 0)
        fputs("helios: connected again\n", stderr);
    p->since_ns = 0;
}

/* Whether L3 can be expected to return. The supervisor of the local cluster restarts its daemons.
 * Elsewhere, a Controller that responds is part of a cluster whose L3 daemon is looked after. */
static bool l3_may_return(struct cli *cli)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_local_cluster *local;
    struct hl_api_controller_cluster_info_results r;
    if (cli->controller_from == CLI_LOCAL)
        return cli_cluster(cli, &local) == HL_OK && local_supervisor_runs(local);
    return CLI_CALL(cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0}, &arena,
                    &r) == HL_OK;
}

static hl_status l3_probe(struct cli *cli)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_l3_pool_info_results r;
    return CLI_CALL_L3(cli, pool_info, &(struct hl_api_l3_pool_info_params){0}, &arena, &r);
}

hl_status cli_await_l3(struct cli *cli, hl_status failed)
{
    struct patience patience = {0};
    char text[HL_ERROR_TEXT_MAX];
    int call_ms;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    hl_status st = failed == HL_EUNAVAIL && l3_may_return(cli) ? l3_probe(cli) : HL_OK;
    if (st == HL_OK) /* L3 is up, or waiting is useless: the failure has another cause */
        return hl_fail(failed, "%s", text);
    HL_TRY(cli_timeout(cli, &call_ms));
    patience.limit_ms = AWAIT_CALLS * (uint64_t)call_ms;
    while (st != HL_OK) {
        HL_TRY(patience_lose(&patience, cli, st));
        st = l3_probe(cli);
    }
    patience_regain(&patience);
    return HL_OK;
}
