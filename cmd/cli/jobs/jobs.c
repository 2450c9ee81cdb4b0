/* Jobs: plan, submit, list, describe, ranktable, cancel. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/jobs/commands.h"
#include "cli/jobs/logs.h"
#include "cli/jobs/submitter.h"
#include "conf/options.h"
#include "os/file.h"

#define JOB_FILE_MAX ((size_t)1 << 20)

/* {"yaml", "source", "cwd", "file"} of a job file; "-" is standard input. */
static hl_status job_file(const char *path, json_t **out)
{
    struct hl_buf text = HL_BUF(JOB_FILE_MAX);
    char cwd[PATH_MAX], full[PATH_MAX] = "";
    const char *file = strcmp(path, "-") == 0 ? "/dev/stdin" : path;
    hl_status st = hl_file_read(file, &text);
    if (st == HL_OK && text.len > 0 && memchr(text.data, '\0', text.len) != NULL)
        st = hl_fail(HL_EINVAL, "%s has bytes of value 0 and is no UTF-8 text", path);
    if (st == HL_OK && getcwd(cwd, sizeof(cwd)) == NULL)
        st = hl_fail(HL_EIO, "current directory: %m");
    if (st == HL_OK && strcmp(path, "-") != 0)
        st = cli_absolute(path, full);
    if (st == HL_OK) {
        const char *name = strrchr(path, '/');
        *out = json_pack("{s:s% s:s s:s s:s}", "yaml", text.data != NULL ? text.data : "", text.len,
                         "source", name != NULL ? name + 1 : path, "cwd", cwd, "file", full);
        if (*out == NULL)
            st = hl_fail(HL_EINVAL, "%s is not UTF-8 text", path);
    }
    hl_buf_fini(&text);
    return st;
}

static hl_status job_params(const char *path, const char *export, json_t **out)
{
    json_t *params;
    HL_TRY(job_file(path, &params));
    hl_status st = submitter_export(export, params);
    if (st == HL_OK)
        *out = params;
    else
        json_decref(params);
    return st;
}

static void print_lines(const json_t *lines, const char *mark)
{
    size_t i;
    json_t *line;
    json_array_foreach (lines, i, line) {
        cli_print(stdout, "%s%s\n", mark, json_string_value(line));
    }
}

static void print_names(const char *what, const json_t *names)
{
    size_t i;
    const json_t *name;
    if (json_array_size(names) > 0)
        cli_print(stdout, "%s", what);
    json_array_foreach (names, i, name)
        cli_print(stdout, "%s%s", i > 0 ? ", " : " ", json_string_value(name));
    if (json_array_size(names) > 0)
        puts("");
}

/* As a shell would take it; of a text for /bin/sh -c only the text. */
static void print_command(const json_t *command)
{
    size_t n = json_array_size(command);
    const char *words[3] = {"", "", ""};
    for (size_t i = 0; i < n && i < 3; i++)
        words[i] = json_string_value(json_array_get(command, i));
    if (n == 0)
        return;
    if (n == 3 && strcmp(words[0], "/bin/sh") == 0 && strcmp(words[1], "-c") == 0) {
        cli_print(stdout, "command      %s\n", words[2]);
        return;
    }
    cli_print(stdout, "command     ");
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(command, i));
        const char *quote =
            *word == '\0' || strpbrk(word, " \t\n'\"$&;|<>()*?\\`") != NULL ? "'" : "";
        cli_print(stdout, " %s%s%s", quote, word, quote);
    }
    puts("");
}

/* What the ranks are started with. */
static void print_launch(const json_t *launch)
{
    static const char *const rows[][2] = {{"file", "file         "},
                                          {"workdir", "workdir      "},
                                          {"venv", "venv         "},
                                          {"conda", "conda        "},
                                          {"python", "python       "}};
    char text[32];
    int64_t lost_ms = hl_json_int(launch, "nodeLostAfterMs", 0);
    if (launch == NULL)
        return;
    print_command(hl_json_list(launch, "command"));
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        if (hl_json_str(launch, rows[i][0], "")[0] != '\0')
            cli_print(stdout, "%s%s\n", rows[i][1], hl_json_str(launch, rows[i][0], ""));
    print_names("env         ", hl_json_list(launch, "variables"));
    print_names("exported    ", hl_json_list(launch, "exported"));
    if (lost_ms > 0)
        cli_print(stdout, "lost node    %s after %s of silence\n",
                  hl_json_str(launch, "onNodeLost", ""),
                  hl_format_duration_ms((uint64_t)lost_ms, text, sizeof(text)));
}

static hl_status print_plan(const json_t *plan)
{
    struct cli_table t;
    size_t i, k;
    json_t *container, *rank;
    print_lines(hl_json_list(plan, "warnings"), "warning: ");
    if (!hl_json_bool(plan, "feasible", 0))
        return HL_OK;
    puts("");
    cli_table_init(&t, ">CONTAINER|SLOT|CPUS|>RANK|>PP|>TP|>DP|GPU");
    json_array_foreach (hl_json_list(plan, "containers"), i, container) {
        json_array_foreach (hl_json_list(container, "ranks"), k, rank) {
            const char *gpu = hl_json_str(rank, "gpu", "");
            cli_cell(&t, "%" PRId64, hl_json_int(container, "index", 0));
            cli_cell(&t, "%s:%" PRId64, hl_json_str(container, "node", ""),
                     hl_json_int(container, "numaId", 0));
            cli_cell(&t, "%s", hl_json_str(container, "cpus", ""));
            cli_cell(&t, "%" PRId64, hl_json_int(rank, "rank", 0));
            cli_cell(&t, "%" PRId64, hl_json_int(rank, "pp", 0));
            cli_cell(&t, "%" PRId64, hl_json_int(rank, "tp", 0));
            cli_cell(&t, "%" PRId64, hl_json_int(rank, "dp", 0));
            cli_cell(&t, "%s", gpu[0] != '\0' ? gpu : "-");
        }
    }
    return cli_table_print(&t);
}

/* A script can tell by the exit status whether the job would start now. */
static hl_status plan_verdict(const json_t *plan)
{
    const char *reason = hl_json_str(plan, "reason", "");
    if (hl_json_bool(plan, "feasible", 0))
        return HL_OK;
    if (hl_json_bool(plan, "never", 0))
        return hl_fail(HL_EINVAL, "it can never run here: %s", reason);
    return hl_fail(HL_EBUSY, "it does not fit now and would wait: %s", reason);
}

struct submit_args {
    char *key;
    char *export;
    int64_t wait, logs;
    uint64_t retry_ms;
};

/* clang-format off */
static const struct hl_option submit_rows[] = {
    {"export", "--export", "",
     "Variables of this shell for the ranks: NAME, NAME=VALUE, or ALL, with commas between.",
     HL_OPT_STRING, 0, 0, NULL, offsetof(struct submit_args, export), 0},
    {"key", "--key", "", "Submitting twice with the same key makes one job.", HL_OPT_STRING, 0,
     0, NULL, offsetof(struct submit_args, key), 0},
    {"wait", "--wait", "false", "Wait for the job's end; 0 when it succeeded, else 1.",
     HL_OPT_BOOL, 0, 0, NULL, offsetof(struct submit_args, wait), 0},
    {"logs", "--logs", "false", "Wait, and show the output as `helios logs -f` does.",
     HL_OPT_BOOL, 0, 0, NULL, offsetof(struct submit_args, logs), 0},
    {"retry", "--retry", LOG_RETRY,
     "While waiting: how long to wait for a daemon that does not answer.", HL_OPT_DURATION, 0,
     0, NULL, offsetof(struct submit_args, retry_ms), 0},
};
/* clang-format on */

#define PLAN_ROWS 1 /* the first */

hl_status cmd_plan(struct cli *cli, int argc, char **argv)
{
    struct submit_args a = {0};
    json_t *params, *result;
    hl_status st = cli_args(cli, submit_rows, PLAN_ROWS, argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = job_params(argv[0], a.export, &params);
    hl_args_fini(submit_rows, PLAN_ROWS, &a);
    HL_TRY(st);
    HL_TRY(cli_call(cli, "planJob", params, &result));
    json_t *plan = json_incref(json_object_get(result, "plan"));
    json_t *launch = json_incref(json_object_get(result, "launch"));
    json_decref(result);
    if (cli->json) {
        json_object_set(plan, "launch", launch);
        st = cli_print_json(json_incref(plan));
    } else {
        print_lines(hl_json_list(plan, "arithmetic"), "");
        print_launch(launch);
        st = print_plan(plan);
    }
    if (st == HL_OK)
        st = plan_verdict(plan);
    json_decref(launch);
    json_decref(plan);
    return st;
}

/* The job's end is the command's. Takes the reference to submitJob's answer. */
static hl_status submit_wait(struct cli *cli, json_t *result, const struct submit_args *a)
{
    json_t *job = NULL;
    const char *id = hl_json_str(result, "id", "");
    hl_status st = HL_OK;
    if (!cli->json) {
        puts(id);
        fflush(stdout); /* who stops waiting knows it */
    }
    if (a->logs)
        st = logs_follow(cli, id, a->retry_ms);
    else
        st = job_await(cli, id, a->retry_ms, &job);
    if (job != NULL && cli->json)
        st = cli_print_json(json_pack("{s:s s:s s:s}", "id", id, "state",
                                      hl_json_str(job, "state", ""), "reason",
                                      hl_json_str(job, "reason", "")));
    if (job != NULL && st == HL_OK)
        st = job_verdict(id, hl_json_str(job, "state", ""), hl_json_str(job, "reason", ""));
    json_decref(job);
    json_decref(result);
    return st;
}

hl_status cmd_submit(struct cli *cli, int argc, char **argv)
{
    struct submit_args a = {0};
    json_t *params, *result;
    hl_status st = cli_args(cli, submit_rows, HL_ARRAY_LEN(submit_rows), argc, argv, &a, 1, 1);
    if (st == HL_OK && a.logs && cli->json)
        st = cli_usage(cli, "--logs shows text only: leave out -o json, or take --wait");
    if (st == HL_OK)
        st = job_params(argv[0], a.export, &params);
    if (st == HL_OK) {
        json_object_set_new(params, "idempotencyKey", json_string(a.key));
        st = cli_call(cli, "submitJob", params, &result);
    }
    hl_args_fini(submit_rows, HL_ARRAY_LEN(submit_rows), &a); /* frees the texts; flags stay */
    HL_TRY(st);
    if (a.wait || a.logs)
        return submit_wait(cli, result, &a);
    if (cli->json)
        return cli_print_json(result);
    puts(hl_json_str(result, "id", ""));
    json_decref(result);
    return HL_OK;
}

/* ---- list ------------------------------------------------------------------------------------ */

static int newest_first(const void *a, const void *b)
{
    int64_t left = hl_json_int(*(json_t *const *)a, "submittedMs", 0);
    int64_t right = hl_json_int(*(json_t *const *)b, "submittedMs", 0);
    return left < right ? 1 : left > right ? -1 : 0;
}

/* New reference: the `last` newest jobs, 0 = all. */
static json_t *sort_jobs(const json_t *jobs, size_t last)
{
    size_t i, count = json_array_size(jobs);
    json_t *list = json_array(), *job;
    HL_AUTO(hl_freep) json_t **order = calloc(count + 1, sizeof(json_t *));
    if (order == NULL) {
        json_decref(list);
        return NULL;
    }
    json_array_foreach (jobs, i, job)
        order[i] = job;
    qsort(order, count, sizeof(json_t *), newest_first);
    for (i = 0; i < count && (last == 0 || i < last); i++)
        json_array_append(list, order[i]);
    return list;
}

/* The list has no details; its empty fields would read as "no plan". */
static void drop_details(json_t *job)
{
    static const char *const details[] = {"plan", "yaml", "containers", "events", "launch"};
    for (size_t i = 0; i < HL_ARRAY_LEN(details); i++)
        json_object_del(job, details[i]);
}

static int64_t elapsed_ms(const json_t *job)
{
    int64_t start = hl_json_int(job, "startedMs", 0), end = hl_json_int(job, "finishedMs", 0);
    if (start <= 0)
        return -1;
    return (end > 0 ? end : hl_wall_ms()) - start;
}

static void text_cell(struct cli_table *t, const json_t *row, const char *key)
{
    const char *text = hl_json_str(row, key, "");
    cli_cell(t, "%s", text[0] != '\0' ? text : "-");
}

static hl_status print_jobs(const json_t *jobs)
{
    struct cli_table t;
    size_t i;
    const json_t *job;
    cli_table_init(&t,
                   "JOB|!STATE|>RANKS|?>ATTEMPT|?MODEL|?USER|?!SUBMITTED|!STARTED|>ELAPSED|REASON");
    json_array_foreach (jobs, i, job) {
        cli_cell(&t, "%s", hl_json_str(job, "id", ""));
        cli_cell(&t, "%s", hl_json_str(job, "state", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(job, "worldSize", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(job, "attempt", 0));
        text_cell(&t, job, "model");
        text_cell(&t, job, "user");
        cli_cell_time(&t, hl_json_int(job, "submittedMs", 0));
        cli_cell_time(&t, hl_json_int(job, "startedMs", 0));
        cli_cell_duration(&t, elapsed_ms(job));
        const char *reason = hl_json_str(job, "reason", "");
        const char *warning = hl_json_str(job, "warning", "");
        cli_cell(&t, "%s%s%s%s", reason, reason[0] != '\0' && warning[0] != '\0' ? "; " : "",
                 warning[0] != '\0' ? "warning: " : "", warning);
    }
    return cli_table_print(&t);
}

hl_status cmd_list(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"last", "-n,--last", "0", "Only the N newest jobs; 0 for all.", HL_OPT_INT, 0, INT32_MAX,
         NULL, 0, 0},
    };

    struct {
        int64_t last;
    } a = {0};

    json_t *result, *job;
    size_t i;
    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0));
    HL_TRY(cli_call(cli, "listJobs", NULL, &result));
    json_t *jobs = sort_jobs(hl_json_list(result, "jobs"), (size_t)a.last);
    json_decref(result);
    if (cli->json) {
        json_array_foreach (jobs, i, job)
            drop_details(job);
        return cli_print_items(jobs);
    }
    hl_status st = jobs != NULL ? print_jobs(jobs) : hl_fail(HL_ENOMEM, "out of memory");
    json_decref(jobs);
    return st;
}

/* ---- one job --------------------------------------------------------------------------------- */

hl_status cli_job(struct cli *cli, const char *id, json_t **out)
{
    json_t *result;
    HL_TRY(cli_call(cli, "getJob", json_pack("{s:s}", "id", id), &result));
    *out = json_incref(json_object_get(result, "job"));
    json_decref(result);
    return HL_OK;
}

/* "demo-1: running, attempt 2 (restarts: 0; repeated because node node-0 was lost ...)" */
static void print_state(const json_t *job)
{
    const char *cause = hl_json_str(job, "cause", ""), *reason = hl_json_str(job, "reason", "");
    int64_t max = hl_json_int(job, "maxRestarts", 0);
    cli_print(stdout, "%s: %s, attempt %" PRId64 " (restarts: ", hl_json_str(job, "id", ""),
              hl_json_str(job, "state", ""), hl_json_int(job, "attempt", 0));
    if (max > 0)
        cli_print(stdout, "%" PRId64 " of %" PRId64 " used", hl_json_int(job, "restarts", 0), max);
    else
        cli_print(stdout, "0");
    cli_print(stdout, "%s%s)%s%s\n", cause[0] != '\0' ? "; repeated because " : "", cause,
              reason[0] != '\0' ? ": " : "", reason);
}

static hl_status print_job(const json_t *job)
{
    struct cli_table t;
    size_t i;
    json_t *row;
    print_state(job);
    if (hl_json_str(job, "warning", "")[0] != '\0')
        cli_print(stdout, "warning: %s\n", hl_json_str(job, "warning", ""));
    print_launch(json_object_get(job, "launch"));
    puts("");
    cli_table_init(&t, "CONTAINER|!STATE|>EXIT|?BOUND BY|MESSAGE");
    json_array_foreach (hl_json_list(job, "containers"), i, row) {
        cli_cell(&t, "%s", hl_json_str(row, "id", ""));
        cli_cell(&t, "%s", hl_json_str(row, "state", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(row, "exitCode", 0));
        cli_cell(&t, "%s", hl_json_str(row, "binding", ""));
        const char *message = hl_json_str(row, "message", "");
        const char *warning = hl_json_str(row, "warning", "");
        cli_cell(&t, "%s%s%s", message, message[0] != '\0' && warning[0] != '\0' ? "; " : "",
                 warning);
    }
    HL_TRY(cli_table_print(&t));
    puts("");
    cli_table_init(&t, "TIME|>ATTEMPT|EVENT|TEXT");
    json_array_foreach (hl_json_list(job, "events"), i, row) {
        cli_cell_time(&t, hl_json_int(row, "timeMs", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(row, "attempt", 0));
        cli_cell(&t, "%s", hl_json_str(row, "kind", ""));
        cli_cell(&t, "%s", hl_json_str(row, "text", ""));
    }
    HL_TRY(cli_table_print(&t));
    if (json_object_get(json_object_get(job, "plan"), "containers") != NULL) {
        puts("");
        print_lines(hl_json_list(json_object_get(job, "plan"), "arithmetic"), "");
        return print_plan(json_object_get(job, "plan"));
    }
    return HL_OK;
}

hl_status cmd_describe(struct cli *cli, int argc, char **argv)
{
    json_t *job;
    char id[CLI_JOB_ID_MAX];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_job_id(cli, argv[0], id));
    HL_TRY(cli_job(cli, id, &job));
    if (cli->json) {
        if (json_array_size(json_object_get(json_object_get(job, "plan"), "containers")) == 0)
            json_object_del(job, "plan");
        return cli_print_json(job);
    }
    hl_status st = print_job(job);
    json_decref(job);
    return st;
}

hl_status cmd_ranktable(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"json", "--json", "", "Format: v1, v2 or 1.2; empty for the job's own.", HL_OPT_STRING, 0,
         0, NULL, 0, 0},
    };

    struct {
        char *format;
    } a = {0};

    json_t *result = NULL;
    char id[CLI_JOB_ID_MAX];
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = cli_job_id(cli, argv[0], id);
    if (st == HL_OK)
        st = cli_call(cli, "rankTable", json_pack("{s:s s:s}", "id", id, "format", a.format),
                      &result);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    HL_TRY(st);
    json_t *doc = json_loads(hl_json_str(result, "document", ""), 0, NULL);
    json_decref(result);
    return doc != NULL ? cli_print_json(doc)
                       : hl_fail(HL_EPROTO, "the Controller's rank table is no JSON");
}

hl_status cmd_cancel(struct cli *cli, int argc, char **argv)
{
    json_t *result;
    char id[CLI_JOB_ID_MAX];
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_job_id(cli, argv[0], id));
    HL_TRY(cli_call(cli, "cancelJob", json_pack("{s:s}", "id", id), &result));
    if (cli->json)
        return cli_print_json(result);
    cli_print(stdout, "%s: %s\n", hl_json_str(result, "id", ""), hl_json_str(result, "state", ""));
    json_decref(result);
    return HL_OK;
}
