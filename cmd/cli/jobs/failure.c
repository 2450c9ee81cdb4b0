/* `helios logs --first-failure`: which rank of an attempt failed first, how, and its last lines. */
#include <stdio.h>
#include <string.h>

#include "cli/jobs/commands.h"
#include "cli/jobs/logs.h"
#include "core/failure/failure.h"

void print_failure_line(const struct hl_api_job_failure *f)
{
    char said[320];
    hl_failure_sentence(f, said, sizeof(said));
    cli_print(stdout, "attempt %d: %s", f->attempt, said);
    if (f->later_ranks > 0)
        cli_print(stdout, "; %d more failed after it", f->later_ranks);
    puts("");
}

static void print_failure(const struct hl_api_job_failure *f)
{
    struct cli_table t;
    print_failure_line(f);
    cli_table_init(&t, "CONTAINER|!TIME|>EXIT|>SIGNAL|MESSAGE");
    cli_cell(&t, "%s", f->container);
    cli_cell_time(&t, f->time_ms);
    cli_cell(&t, "%d", f->exit_code);
    cli_cell(&t, "%d", f->signal);
    cli_cell(&t, "%s", f->message);
    (void)!cli_table_print(&t);
    if (f->evidence[0] != '\0')
        cli_print(stdout, "kernel: %s\n", f->evidence);
    puts("");
    if (f->log[0] == '\0')
        cli_print(stdout, "no output: %s\n", f->log_missing);
    else
        fputs(f->log, stdout);
    if (f->log[0] != '\0' && f->log[strlen(f->log) - 1] != '\n')
        puts("");
}

hl_status show_first_failure(struct cli *cli, const char *job, int64_t attempt)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_first_failure_results r;
    const struct hl_api_controller_first_failure_params p = {.id = job,
                                                             .attempt = (int32_t)attempt};
    HL_TRY(CLI_CALL(cli, first_failure, &p, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_job_failure_type, &r.failure);
    print_failure(&r.failure);
    return HL_OK;
}
