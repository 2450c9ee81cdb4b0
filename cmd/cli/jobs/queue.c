/* The queue of waiting jobs: explain, queue. */
#include <stdio.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/jobs/commands.h"

static void print_start(const struct hl_api_job_explanation *e)
{
    int64_t in_ms = e->start_ms - hl_wall_ms();
    char text[32];
    if (e->start_ms <= 0)
        return;
    cli_print(stdout, "starts      in about %s, by %s\n",
              hl_format_duration_ms(in_ms > 0 ? (uint64_t)in_ms : 0, text, sizeof(text)),
              e->reason == HL_API_WAIT_REASON_SERVER_RESERVED ? "the end of reservations"
              : e->reason == HL_API_WAIT_REASON_BACK_OFF      ? "the end of its wait"
                                                         : "the time limits of jobs before it");
}

static hl_status print_counts(const struct hl_api_slot_count_list *counts)
{
    struct cli_table t;
    cli_table_init(&t, "SLOTS|>COUNT|>SERVERS");
    for (size_t i = 0; i < counts->count; i++) {
        cli_cell(&t, "%s", hl_api_slot_use_name(counts->items[i].use));
        cli_cell(&t, "%d", counts->items[i].slots);
        cli_cell(&t, "%d", counts->items[i].servers);
    }
    return cli_table_print(&t);
}

static hl_status print_explanation(const struct hl_api_job_explanation *e)
{
    cli_print(stdout, "%s: %s\n", e->id, hl_api_job_state_name(e->state));
    if (e->reason != HL_API_WAIT_REASON_NONE)
        cli_print(stdout, "reason      %s\n", hl_api_wait_reason_name(e->reason));
    cli_print(stdout, "why         %s\n", e->text);
    if (e->remedy[0] != '\0')
        cli_print(stdout, "remedy      %s\n", e->remedy);
    print_start(e);
    if (e->queue[0] == '\0')
        return HL_OK;
    if (e->place > 0)
        cli_print(stdout, "place       %d of %d in the line\n", e->place, e->pending);
    cli_print(stdout, "queue       %s, priority %d, %d slot%s\n\n", e->queue, e->priority, e->slots,
              e->slots == 1 ? "" : "s");
    return print_counts(&e->counts);
}

hl_status cmd_explain(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_explain_job_results r;
    char id[CLI_JOB_ID_MAX];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_job_id(cli, argv[0], id));
    HL_TRY(
        CLI_CALL(cli, explain_job, &(struct hl_api_controller_explain_job_params){id}, &arena, &r));
    return cli->json ? cli_print_value(&hl_api_job_explanation_type, &r.explanation)
                     : print_explanation(&r.explanation);
}

static hl_status print_queues(const struct hl_api_queue_info_list *queues)
{
    struct cli_table t;
    cli_table_init(&t, "QUEUE|>WEIGHT|>QUOTA|PREEMPT|>SLOTS|>USED|>RUNNING|>PENDING");
    for (size_t i = 0; i < queues->count; i++) {
        const struct hl_api_queue_info *q = &queues->items[i];
        cli_cell(&t, "%s", q->name);
        cli_cell(&t, "%d", q->weight);
        if (q->quota > 0)
            cli_cell(&t, "%d", q->quota);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", q->preempt ? "on" : "off");
        cli_cell(&t, "%d", q->slots);
        cli_cell(&t, "%.1f", q->used);
        cli_cell(&t, "%d", q->running);
        cli_cell(&t, "%d", q->pending);
    }
    return cli_table_print(&t);
}

static hl_status print_line(const struct hl_api_queued_job_list *jobs)
{
    struct cli_table t;
    if (jobs->count == 0)
        return HL_OK;
    puts("");
    cli_table_init(&t, ">PLACE|JOB|QUEUE|>PRIORITY|>SLOTS|!SUBMITTED|!START|REASON");
    for (size_t i = 0; i < jobs->count; i++) {
        const struct hl_api_queued_job *j = &jobs->items[i];
        cli_cell(&t, "%d", j->place);
        cli_cell(&t, "%s", j->id);
        cli_cell(&t, "%s", j->queue);
        cli_cell(&t, "%d", j->priority);
        cli_cell(&t, "%d", j->slots);
        cli_cell_time(&t, j->submitted_ms);
        cli_cell_time(&t, j->start_ms);
        cli_cell(&t, "%s%s%s%s", hl_api_wait_reason_name(j->reason),
                 j->other[0] != '\0' ? " (" : "", j->other, j->other[0] != '\0' ? ")" : "");
    }
    return cli_table_print(&t);
}

hl_status cmd_queue(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"first", "-n,--first", "0", "Only the first N jobs of the line; 0 for all.", HL_OPT_INT, 0,
         INT32_MAX, NULL, 0, 0, 0},
    };

    struct {
        int64_t first;
    } a = {0};

    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_queue_results r;
    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0));
    HL_TRY(CLI_CALL(cli, list_queue, &(struct hl_api_controller_list_queue_params){0}, &arena, &r));
    if (a.first > 0 && r.jobs.count > (size_t)a.first)
        r.jobs.count = (size_t)a.first;
    if (cli->json)
        return cli_print_value(&hl_api_controller_list_queue_results_type, &r);
    HL_TRY(print_queues(&r.queues));
    return print_line(&r.jobs);
}
