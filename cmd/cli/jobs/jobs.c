/* Jobs: plan, submit, list, describe, ranktable, cancel. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/text.h"
#include "base/utf8.h"
#include "cli/jobs/commands.h"
#include "cli/jobs/logs.h"
#include "cli/jobs/submitter.h"
#include "conf/options.h"
#include "os/file.h"

#define JOB_FILE_MAX ((size_t)1 << 20)

/* What a call takes from a job file and from this shell; it is in the arena. */
struct job_request {
    const char *yaml, *source, *cwd, *file;
    struct hl_api_key_value_list exported, inherited;
};

static hl_status read_job_file(const char *path, struct hl_arena *arena, const char **out)
{
    struct hl_buf text = HL_BUF(JOB_FILE_MAX);
    hl_status st = hl_file_read(strcmp(path, "-") == 0 ? "/dev/stdin" : path, &text);
    if (st == HL_OK && text.len > 0 && memchr(text.data, '\0', text.len) != NULL)
        st = hl_fail(HL_EINVAL, "%s contains NUL bytes: it is not a text file", path);
    const char *yaml = hl_arena_text(arena, text.data != NULL ? text.data : "", text.len);
    hl_buf_fini(&text);
    HL_TRY(st);
    if (yaml == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", path);
    if (!hl_utf8_valid(yaml) || !hl_utf8_valid(path))
        return hl_fail(HL_EINVAL, "%s is not UTF-8 text", path);
    *out = yaml;
    return HL_OK;
}

/* "-" is standard input. */
static hl_status job_request(const char *path, const char *export, struct hl_arena *arena,
                             struct job_request *out)
{
    char cwd[PATH_MAX], full[PATH_MAX] = "";
    struct job_request r;
    const char *name = strrchr(path, '/');
    HL_TRY(read_job_file(path, arena, &r.yaml));
    if (getcwd(cwd, sizeof(cwd)) == NULL)
        return hl_fail(HL_EIO, "current directory: %m");
    if (strcmp(path, "-") != 0)
        HL_TRY(cli_absolute(path, full));
    r.source = name != NULL ? name + 1 : path;
    r.cwd = hl_arena_strdup(arena, cwd);
    r.file = hl_arena_strdup(arena, full);
    HL_TRY(submitter_export(export, arena, &r.exported, &r.inherited));
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory reading %s", path);
    *out = r;
    return HL_OK;
}

static void print_lines(const struct hl_api_text_list *lines, const char *mark)
{
    for (size_t i = 0; i < lines->count; i++)
        cli_print(stdout, "%s%s\n", mark, lines->items[i]);
}

static void print_names(const char *what, const struct hl_api_text_list *names)
{
    if (names->count > 0)
        cli_print(stdout, "%s", what);
    for (size_t i = 0; i < names->count; i++)
        cli_print(stdout, "%s%s", i > 0 ? ", " : " ", names->items[i]);
    if (names->count > 0)
        puts("");
}

static void print_word(const char *word)
{
    if (*word != '\0' && strpbrk(word, " \t\n'\"$&;|<>()*?\\`[]{}#~!") == NULL) {
        cli_print(stdout, " %s", word);
        return;
    }
    HL_AUTO(hl_buf_fini) struct hl_buf quoted = HL_BUF(4 * strlen(word) + sizeof("''"));
    cli_print(stdout, " %s", hl_buf_shell_word(&quoted, word) == HL_OK ? quoted.data : word);
}

/* Prints the command as a shell takes it; for a script of /bin/sh -c only the script. */
static void print_command(const struct hl_api_text_list *command)
{
    const char *const *words = command->items;
    if (command->count == 0)
        return;
    if (command->count == 3 && strcmp(words[0], "/bin/sh") == 0 && strcmp(words[1], "-c") == 0) {
        cli_print(stdout, "command      %s\n", words[2]);
        return;
    }
    cli_print(stdout, "command     ");
    for (size_t i = 0; i < command->count; i++)
        print_word(words[i]);
    puts("");
}

static void print_row(const char *what, const char *text)
{
    if (text[0] != '\0')
        cli_print(stdout, "%-12s %s\n", what, text);
}

/* What happens after a failure. */
static void print_budget(const struct hl_api_job_launch *launch)
{
    char wait[32], most[32], stable[32];
    bool forgets = launch->stable_after_ms > 0;
    if (launch->backoff_ms > 0) /* older releases report neither time */
        cli_print(stdout, "after losses waits %s to %s%s%s%s\n",
                  hl_format_duration_ms((uint64_t)launch->backoff_ms, wait, sizeof(wait)),
                  hl_format_duration_ms((uint64_t)launch->backoff_max_ms, most, sizeof(most)),
                  forgets ? "; all forgotten after " : "; none is forgotten",
                  forgets ? hl_format_duration_ms((uint64_t)launch->stable_after_ms, stable,
                                                  sizeof(stable))
                          : "",
                  forgets ? " of new steps" : "");
    if (launch->on_failure.count > 0)
        cli_print(stdout, "on failure  ");
    for (size_t i = 0; i < launch->on_failure.count; i++)
        cli_print(stdout, "%s %s: %s", i > 0 ? "," : "", launch->on_failure.items[i].key,
                  launch->on_failure.items[i].value);
    if (launch->on_failure.count > 0)
        puts("");
}

/* What the ranks are started with. */
static void print_launch(const struct hl_api_job_launch *launch)
{
    char text[32];
    print_command(&launch->command);
    print_row("file", launch->file);
    print_row("workdir", launch->workdir);
    print_row("venv", launch->venv);
    print_row("conda", launch->conda);
    print_row("python", launch->python);
    print_names("env         ", &launch->variables);
    print_names("exported    ", &launch->exported);
    if (strcmp(launch->recovery, "replace") == 0)
        cli_print(stdout, "recovery     a lost rank is replaced, %d %s parked in each container\n",
                  launch->spares, launch->spares == 1 ? "process is" : "processes are");
    if (launch->spare_slots > 0)
        cli_print(stdout,
                  "lost server  its ranks continue in one of %d spare slots on other servers\n",
                  launch->spare_slots);
    print_budget(launch);
    if (launch->node_lost_after_ms > 0)
        cli_print(stdout, "lost node    %s after %s of silence\n", launch->on_node_lost,
                  hl_format_duration_ms((uint64_t)launch->node_lost_after_ms, text, sizeof(text)));
}

static void plan_row(struct cli_table *t, const struct hl_api_plan_container *c,
                     const struct hl_api_plan_rank *rank)
{
    cli_cell(t, "%d", c->index);
    cli_cell(t, "%s:%d", c->node, c->numa_id);
    cli_cell(t, "%s", c->cpus);
    cli_cell(t, "%d", rank->rank);
    cli_cell(t, "%d", rank->pp);
    cli_cell(t, "%d", rank->tp);
    cli_cell(t, "%d", rank->cp);
    cli_cell(t, "%d", rank->dp);
    cli_cell(t, "%s", rank->gpu[0] != '\0' ? rank->gpu : "-");
}

static void spare_row(struct cli_table *t, const struct hl_api_plan_container *c)
{
    cli_cell(t, "%d", c->index);
    cli_cell(t, "%s:%d", c->node, c->numa_id);
    cli_cell(t, "%s", c->cpus);
    cli_cell(t, "spare");
    for (int i = 0; i < 5; i++)
        cli_cell(t, "-");
}

static hl_status print_plan(const struct hl_api_plan *plan)
{
    struct cli_table t;
    print_lines(&plan->warnings, "warning: ");
    if (!plan->feasible)
        return HL_OK;
    puts("");
    cli_table_init(&t, ">CONTAINER|SLOT|CPUS|>RANK|>PP|>TP|?>CP|>DP|GPU");
    for (size_t i = 0; i < plan->containers.count; i++) {
        const struct hl_api_plan_container *c = &plan->containers.items[i];
        for (size_t k = 0; k < c->ranks.count; k++)
            plan_row(&t, c, &c->ranks.items[k]);
        if (c->ranks.count == 0 && c->address[0] != '\0')
            spare_row(&t, c);
    }
    return cli_table_print(&t);
}

/* The exit status tells a script whether the job would start now. */
static hl_status plan_verdict(const struct hl_api_plan *plan)
{
    if (plan->feasible)
        return HL_OK;
    if (plan->never)
        return hl_fail(HL_EINVAL, "it can never run here: %s", plan->reason);
    return hl_fail(HL_EBUSY, "it does not fit now and would wait: %s", plan->reason);
}

struct submit_args {
    char *key;
    char *export;
    bool wait, logs, defrag;
    uint64_t retry_ms;
};

/* clang-format off */
#define EXPORT_ROW \
    {"export", "--export", "", \
     "Variables of this shell for the ranks: NAME, NAME=VALUE, or ALL, with commas between.", \
     HL_OPT_STRING, 0, 0, NULL, HL_OPTION_FIELD(struct submit_args, export)}

static const struct hl_option plan_rows[] = {
    EXPORT_ROW,
    {"defrag", "--defrag", "false",
     "If the job does not fit: which running gangs would have to restart elsewhere. Nothing is "
     "moved.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct submit_args, defrag)},
};

static const struct hl_option submit_rows[] = {
    EXPORT_ROW,
    {"key", "--key", "", "Submitting twice with the same key makes one job.", HL_OPT_STRING, 1,
     0, NULL, HL_OPTION_FIELD(struct submit_args, key)},
    {"wait", "--wait", "false", "Wait for the job to end; exit status 0 if it succeeded, else 1.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct submit_args, wait)},
    {"logs", "--logs", "false", "Wait, and show the output as `helios logs -f` does.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct submit_args, logs)},
    {"retry", "--retry", LOG_RETRY,
     "While waiting: how long to wait for a daemon that does not answer.", HL_OPT_DURATION, 0,
     0, NULL, HL_OPTION_FIELD(struct submit_args, retry_ms)},
};

/* clang-format on */

/* "node-1, node-2" */
static const char *join_nodes(struct hl_arena *arena, const struct hl_api_text_list *nodes)
{
    const char *text = "";
    for (size_t i = 0; i < nodes->count; i++)
        text = hl_arena_printf(arena, "%s%s%s", text, i > 0 ? ", " : "", nodes->items[i]);
    return text;
}

static hl_status print_moves(const struct hl_api_plan *plan, const struct hl_api_defrag *d,
                             struct hl_arena *arena)
{
    struct cli_table t;
    if (plan->feasible) {
        cli_print(stdout, "it fits as it is: no gang has to move\n");
        return HL_OK;
    }
    if (d->moves.count == 0) {
        cli_print(stdout,
                  "no move of up to three gangs makes room%s; moving frees no slots, it only joins "
                  "free ones\n",
                  d->all_tried ? "" : ", of those that were looked at");
        return HL_OK;
    }
    cli_print(stdout, "it fits on %s once these have restarted elsewhere:\n",
              join_nodes(arena, &d->nodes));
    cli_table_init(&t, "JOB|>CONTAINERS|FROM|TO");
    for (size_t i = 0; i < d->moves.count; i++) {
        const struct hl_api_defrag_move *m = &d->moves.items[i];
        cli_cell(&t, "%s", m->job);
        cli_cell(&t, "%d", m->containers);
        cli_cell(&t, "%s", join_nodes(arena, &m->from));
        cli_cell(&t, "%s", join_nodes(arena, &m->to));
    }
    return cli_table_print(&t);
}

static hl_status print_planned(struct cli *cli, const struct hl_api_controller_plan_job_results *r)
{
    if (cli->json)
        return cli_print_value(&hl_api_planned_job_type,
                               &(struct hl_api_planned_job){r->plan, r->launch, r->defrag});
    print_lines(&r->plan.arithmetic, "");
    print_launch(&r->launch);
    return print_plan(&r->plan);
}

hl_status cmd_plan(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct submit_args a = {0};
    struct job_request job;
    struct hl_api_controller_plan_job_results r;
    hl_status st = cli_args(cli, plan_rows, HL_ARRAY_LEN(plan_rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = job_request(argv[0], a.export, &arena, &job);
    bool defrag = a.defrag;
    hl_args_fini(plan_rows, HL_ARRAY_LEN(plan_rows), &a);
    HL_TRY(st);
    const struct hl_api_controller_plan_job_params p = {.yaml = job.yaml,
                                                        .source = job.source,
                                                        .cwd = job.cwd,
                                                        .file = job.file,
                                                        .exported = job.exported,
                                                        .inherited = job.inherited,
                                                        .defrag = defrag};
    HL_TRY(CLI_CALL(cli, plan_job, &p, &arena, &r));
    HL_TRY(print_planned(cli, &r));
    if (defrag && !cli->json && !r.plan.never)
        HL_TRY(print_moves(&r.plan, &r.defrag, &arena));
    return plan_verdict(&r.plan);
}

/* The command ends as the job ends. */
static hl_status submit_wait(struct cli *cli, const char *id, const struct submit_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job job;
    if (!cli->json) {
        puts(id);
        fflush(stdout); /* so that a user who stops waiting knows the id */
    }
    if (a->logs)
        return logs_follow(cli, id, a->retry_ms);
    HL_TRY(job_await(cli, id, a->retry_ms, &arena, &job));
    if (cli->json)
        HL_TRY(cli_print_value(&hl_api_job_outcome_type,
                               &(struct hl_api_job_outcome){id, job.state, job.reason}));
    return job_verdict(id, job.state, job.reason);
}

static hl_status job_submit(struct cli *cli, const char *path, const struct submit_args *a,
                            struct hl_arena *arena,
                            struct hl_api_controller_submit_job_results *out)
{
    struct job_request job;
    HL_TRY(job_request(path, a->export, arena, &job));
    const struct hl_api_controller_submit_job_params p = {.yaml = job.yaml,
                                                          .source = job.source,
                                                          .cwd = job.cwd,
                                                          .file = job.file,
                                                          .exported = job.exported,
                                                          .inherited = job.inherited,
                                                          .idempotency_key = a->key};
    return CLI_CALL(cli, submit_job, &p, arena, out);
}

hl_status cmd_submit(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct submit_args a = {0};
    struct hl_api_controller_submit_job_results r;
    hl_status st = cli_args(cli, submit_rows, HL_ARRAY_LEN(submit_rows), argc, argv, &a, 1, 1);
    if (st == HL_OK && a.logs && cli->json)
        st = cli_usage(cli, "--logs shows text only: leave out -o json, or use --wait instead");
    if (st == HL_OK)
        st = job_submit(cli, argv[0], &a, &arena, &r);
    hl_args_fini(submit_rows, HL_ARRAY_LEN(submit_rows), &a); /* frees texts; flags stay valid */
    HL_TRY(st);
    if (a.wait || a.logs)
        return submit_wait(cli, r.id, &a);
    if (cli->json)
        return cli_print_value(&hl_api_controller_submit_job_results_type, &r);
    puts(r.id);
    return HL_OK;
}

/* ---- list ------------------------------------------------------------------------------------ */

static int newest_first(const void *a, const void *b)
{
    int64_t left = ((const struct hl_api_job *)a)->submitted_ms;
    int64_t right = ((const struct hl_api_job *)b)->submitted_ms;
    return (left < right) - (left > right);
}

#define JOB_FIELD(name) offsetof(struct hl_api_job, name)

/* Omits fields that the list does not have; empty ones would read as "no plan". */
static hl_status print_jobs_json(const struct hl_api_job_list *jobs)
{
    static const size_t details[] = {JOB_FIELD(plan),   JOB_FIELD(yaml),   JOB_FIELD(containers),
                                     JOB_FIELD(events), JOB_FIELD(launch), JOB_FIELD(failures)};
    struct cli_type shown;
    cli_type_without(&hl_api_job_type, details, HL_ARRAY_LEN(details), &shown);
    return cli_print_items(&shown.type, jobs->items, jobs->count);
}

static hl_status print_job_json(const struct hl_api_job *job)
{
    static const size_t plan[] = {JOB_FIELD(plan)};
    struct cli_type shown;
    cli_type_without(&hl_api_job_type, plan, job->plan.containers.count == 0, &shown);
    return cli_print_value(&shown.type, job);
}

static int64_t elapsed_ms(const struct hl_api_job *job)
{
    if (job->started_ms <= 0)
        return -1;
    return (job->finished_ms > 0 ? job->finished_ms : hl_wall_ms()) - job->started_ms;
}

static hl_status print_jobs(const struct hl_api_job_list *jobs)
{
    struct cli_table t;
    cli_table_init(&t, "JOB|!STATE|>RANKS|?>ATTEMPT|?MODEL|?!SUBMITTED|!STARTED|>ELAPSED|REASON");
    for (size_t i = 0; i < jobs->count; i++) {
        const struct hl_api_job *job = &jobs->items[i];
        cli_cell(&t, "%s", job->id);
        cli_cell(&t, "%s", hl_api_job_state_name(job->state));
        cli_cell(&t, "%d", job->world_size);
        cli_cell(&t, "%d", job->attempt);
        cli_cell(&t, "%s", job->model[0] != '\0' ? job->model : "-");
        cli_cell_time(&t, job->submitted_ms);
        cli_cell_time(&t, job->started_ms);
        cli_cell_duration(&t, elapsed_ms(job));
        cli_cell(&t, "%s%s%s%s", job->reason,
                 job->reason[0] != '\0' && job->warning[0] != '\0' ? "; " : "",
                 job->warning[0] != '\0' ? "warning: " : "", job->warning);
    }
    return cli_table_print(&t);
}

hl_status cmd_list(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"last", "-n,--last", "0", "Only the N newest jobs; 0 for all.", HL_OPT_INT, 0, INT32_MAX,
         NULL, 0, 0, 0},
    };

    struct {
        int64_t last;
    } a = {0};

    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_jobs_results r;
    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0));
    HL_TRY(CLI_CALL(cli, list_jobs, &(struct hl_api_controller_list_jobs_params){0}, &arena, &r));
    if (r.jobs.count > 0)
        qsort(r.jobs.items, r.jobs.count, sizeof(*r.jobs.items), newest_first);
    if (a.last > 0 && r.jobs.count > (size_t)a.last)
        r.jobs.count = (size_t)a.last;
    return cli->json ? print_jobs_json(&r.jobs) : print_jobs(&r.jobs);
}

/* ---- one job --------------------------------------------------------------------------------- */

/* The reason for the last failure, and when the next attempt begins. */
static void print_next_attempt(const struct hl_api_job *job)
{
    char text[32];
    print_row("last failure", hl_api_failure_kind_name(job->last_failure));
    int64_t in_ms = job->next_attempt_ms - hl_wall_ms();
    if (job->next_attempt_ms > 0)
        cli_print(stdout, "next try     attempt %d in %s\n", job->attempt,
                  hl_format_duration_ms(in_ms > 0 ? (uint64_t)in_ms : 0, text, sizeof(text)));
}

/* "demo-1: running, attempt 2 (restarts: 1 of 3 used; repeated because ...)" */
static void print_state(const struct hl_api_job *job)
{
    cli_print(stdout, "%s: %s, attempt %d (restarts: ", job->id, hl_api_job_state_name(job->state),
              job->attempt);
    if (job->max_restarts > 0)
        cli_print(stdout, "%d of %d used", job->restarts, job->max_restarts);
    else
        cli_print(stdout, "0");
    cli_print(stdout, "%s%s)%s%s\n", job->cause[0] != '\0' ? "; repeated because " : "", job->cause,
              job->reason[0] != '\0' ? ": " : "", job->reason);
    print_next_attempt(job);
    if (job->replicas > 0)
        cli_print(stdout, "replicas     %d of %d to %d, %d size%s before in this attempt\n",
                  job->replicas, job->replicas_min, job->replicas_max, job->resizes,
                  job->resizes == 1 ? "" : "s");
}

static bool has_exit_code(enum hl_api_container_state state)
{
    return state == HL_API_CONTAINER_STATE_SUCCEEDED || state == HL_API_CONTAINER_STATE_FAILED;
}

static hl_status print_containers(const struct hl_api_container_status_list *containers)
{
    struct cli_table t;
    cli_table_init(&t, "CONTAINER|!STATE|>EXIT|?BOUND BY|MESSAGE");
    for (size_t i = 0; i < containers->count; i++) {
        const struct hl_api_container_status *c = &containers->items[i];
        cli_cell(&t, "%s", c->id);
        cli_cell(&t, "%s", hl_api_container_state_name(c->state));
        if (has_exit_code(c->state))
            cli_cell(&t, "%d", c->exit_code);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", c->binding);
        cli_cell(&t, "%s%s%s", c->message,
                 c->message[0] != '\0' && c->warning[0] != '\0' ? "; " : "", c->warning);
    }
    return cli_table_print(&t);
}

static bool rank_tells(const struct hl_api_rank_status *r)
{
    return r->progress.activity != HL_API_RANK_ACTIVITY_UNSAID || r->replaced > 0;
}

static void rank_row(struct cli_table *t, const struct hl_api_rank_status *r)
{
    const struct hl_api_rank_progress *p = &r->progress;
    cli_cell(t, "%d", r->rank);
    cli_cell(t, "%d", r->pid);
    cli_cell(t, "%s%s", hl_api_rank_activity_name(p->activity), p->stopped ? ", stopped" : "");
    cli_cell(t, p->step >= 0 ? "%lld" : "-", (long long)p->step);
    cli_cell_duration(t, p->since_ms);
    cli_cell(t, p->median_ms > 0 ? "%.1f" : "-", p->median_ms);
    cli_cell(t, p->step < 0 ? "-" : p->no_loss ? "nan" : "%.4f", p->loss);
    cli_cell(t, "%u", p->generation);
    cli_cell(t, "%u", r->replaced);
}

/* What ranks report about their steps; nothing if no rank does. */
static hl_status print_ranks(const struct hl_api_container_status_list *containers)
{
    struct cli_table t;
    size_t rows = 0;
    for (size_t i = 0; i < containers->count; i++)
        for (size_t k = 0; k < containers->items[i].ranks.count; k++)
            rows += rank_tells(&containers->items[i].ranks.items[k]);
    if (rows == 0)
        return HL_OK;
    cli_table_init(&t, ">RANK|>PID|DOES|>STEP|>SINCE|>STEP MS|>LOSS|?>GENERATION|>REPLACED");
    for (size_t i = 0; i < containers->count; i++)
        for (size_t k = 0; k < containers->items[i].ranks.count; k++)
            rank_row(&t, &containers->items[i].ranks.items[k]);
    puts("");
    return cli_table_print(&t);
}

static hl_status print_events(const struct hl_api_job_event_list *events)
{
    struct cli_table t;
    cli_table_init(&t, "TIME|>ATTEMPT|EVENT|TEXT");
    for (size_t i = 0; i < events->count; i++) {
        const struct hl_api_job_event *e = &events->items[i];
        cli_cell_time(&t, e->time_ms);
        cli_cell(&t, "%d", e->attempt);
        cli_cell(&t, "%s", e->kind);
        cli_cell(&t, "%s", e->text);
    }
    return cli_table_print(&t);
}

/* "time 3m05s: queue 2%, start 10%, step 80%, lost 8%; goodput 80%", without parts that are
 * zero. */
static void print_ledger(const struct hl_api_job_ledger *l)
{
    const struct {
        const char *part;
        int64_t ms;
    } parts[] = {{"queue", l->queue_ms},  {"place", l->place_ms}, {"image", l->image_ms},
                 {"pull", l->pull_ms},    {"start", l->start_ms}, {"step", l->step_ms},
                 {"save", l->save_ms},    {"stall", l->stall_ms}, {"lost", l->lost_ms},
                 {"replay", l->replay_ms}};

    char text[32];
    if (l->wall_ms <= 0)
        return;
    cli_print(stdout,
              "time         %s:", hl_format_duration_ms((uint64_t)l->wall_ms, text, sizeof(text)));
    const char *comma = "";
    for (size_t i = 0; i < HL_ARRAY_LEN(parts); i++) {
        if (parts[i].ms == 0)
            continue;
        cli_print(stdout, "%s %s %s", comma, parts[i].part,
                  hl_format_duration_ms((uint64_t)parts[i].ms, text, sizeof(text)));
        comma = ",";
    }
    cli_print(stdout, "; goodput %.1f%%%s\n", 100 * l->goodput,
              l->reported ? "" : " (its ranks report no steps)");
}

static void print_failures(const struct hl_api_job_failure_list *failures)
{
    if (failures->count == 0)
        return;
    puts("\nfirst failures (`helios logs --first-failure` shows the output):");
    for (size_t i = 0; i < failures->count; i++)
        print_failure_line(&failures->items[i]);
}

static hl_status print_job(const struct hl_api_job *job)
{
    print_state(job);
    if (job->warning[0] != '\0')
        cli_print(stdout, "warning: %s\n", job->warning);
    if (job->image[0] != '\0')
        cli_print(stdout, "image        %s\n", job->image);
    print_ledger(&job->ledger);
    print_launch(&job->launch);
    puts("");
    HL_TRY(print_containers(&job->containers));
    HL_TRY(print_ranks(&job->containers));
    print_failures(&job->failures);
    puts("");
    HL_TRY(print_events(&job->events));
    if (job->plan.containers.count == 0)
        return HL_OK;
    puts("");
    print_lines(&job->plan.arithmetic, "");
    return print_plan(&job->plan);
}

hl_status cmd_describe(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job job;
    char id[CLI_JOB_ID_MAX];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_job_id(cli, argv[0], id));
    HL_TRY(cli_job(cli, id, &arena, &job));
    return cli->json ? print_job_json(&job) : print_job(&job);
}

hl_status cmd_ranktable(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"json", "--json", "", "Format: v1, v2 or 1.2; empty for the job's own.", HL_OPT_STRING, 0,
         0, NULL, 0, 0, 0},
    };

    struct {
        char *format;
    } a = {0};

    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_rank_table_results r;
    char id[CLI_JOB_ID_MAX];
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = cli_job_id(cli, argv[0], id);
    const struct hl_api_controller_rank_table_params p = {.id = id, .format = a.format};
    if (st == HL_OK)
        st = CLI_CALL(cli, rank_table, &p, &arena, &r);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    HL_TRY(st);
    json_t *doc = json_loads(r.document, 0, NULL);
    return doc != NULL ? cli_print_json(doc)
                       : hl_fail(HL_EPROTO, "the Controller sent a rank table that is not JSON");
}

hl_status cmd_cancel(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cancel_job_results r;
    char id[CLI_JOB_ID_MAX];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_job_id(cli, argv[0], id));
    HL_TRY(
        CLI_CALL(cli, cancel_job, &(struct hl_api_controller_cancel_job_params){id}, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_controller_cancel_job_results_type, &r);
    cli_print(stdout, "%s: %s\n", r.id, hl_api_job_state_name(r.state));
    return HL_OK;
}
