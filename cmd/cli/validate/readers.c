/* Ranks that read scratch shards: a job of one container on a free slot, whose process runs this
 * program there. So an Agent starts it, and libhelios counts its reads and reports them for its
 * node.
 */
#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "cli/validate/validate.h"

#define STOP_MS 10000

/* $0: helios, $1: how often, $2: the model, then its cold shards. One process reads all hot shards
 * and reports them together, so that the policy judges them by the same numbers. */
static const char script[] =
    "n=$1 model=$2; shift 2; "
    "for s in \"$@\"; do \"$0\" shard get \"$s\" --out - >/dev/null || exit 1; done; "
    "while [ \"$n\" -gt 0 ]; do "
    "\"$0\" pull --model \"$model\" --tp 0 --out - >/dev/null || exit 1; n=$((n-1)); done";

static json_t *make_command(struct validation *v)
{
    const char *words[] = {"/bin/sh",
                           "-c",
                           script,
                           validate_text(v, "%s/helios", v->cli->bin_dir),
                           validate_text(v, "%lld", (long long)v->args->reads),
                           v->model};
    json_t *command = json_array();
    for (size_t i = 0; i < HL_ARRAY_LEN(words); i++)
        json_array_append_new(command, json_string(words[i]));
    for (int i = SCRATCH_COLD; i < SCRATCH_SMALL; i++)
        if (v->shards[i].id[0] != '\0')
            json_array_append_new(command, json_string(v->shards[i].id));
    return command;
}

/* Makes the job file; the caller frees it. */
static hl_status make_job(struct validation *v, char **out)
{
    json_t *job =
        json_pack("{s:s, s:{s:i, s:i, s:i}, s:{s:i, s:i}, s:s, s:i, s:o}", "jobName", v->model,
                  "parallelism", "pipeline_parallel_size", 1, "tensor_parallel_size", 1,
                  "data_parallel_size", 1, "resources", "ranks_per_slot", 1, "gpus_per_rank", 0,
                  "workdir", "/", "restarts", 0, "command", make_command(v));
    char *text = job != NULL ? json_dumps(job, 0) : NULL;
    json_decref(job);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a job");
    *out = text;
    return HL_OK;
}

static hl_status no_readers(struct validation *v, enum hl_api_validation_result result,
                            const char *why)
{
    v->reader = -1;
    v->no_reader = why;
    v->no_reader_result = result;
    return HL_OK;
}

static int find_node(const struct validation *v, const char *name)
{
    for (size_t i = 0; i < v->facts.count; i++)
        if (strcmp(v->facts.nodes[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* A slot that other jobs wait for does not count as free. */
static hl_status find_waiting(struct validation *v, const char **name)
{
    struct hl_api_controller_list_jobs_results r;
    *name = NULL;
    HL_TRY(CLI_CALL(v->cli, list_jobs, &(struct hl_api_controller_list_jobs_params){0}, &v->arena,
                    &r));
    for (size_t i = 0; i < r.jobs.count; i++)
        if (r.jobs.items[i].state == HL_API_JOB_STATE_PENDING)
            *name = r.jobs.items[i].name;
    return HL_OK;
}

static hl_status plan_slot(struct validation *v, struct hl_api_plan *out)
{
    struct hl_api_controller_plan_job_results r;
    char *yaml;
    HL_TRY(make_job(v, &yaml));
    const struct hl_api_controller_plan_job_params p = {
        .yaml = yaml, .source = "helios validate", .cwd = "/", .file = ""};
    hl_status st = CLI_CALL(v->cli, plan_job, &p, &v->arena, &r);
    free(yaml);
    HL_TRY(st);
    *out = r.plan;
    return HL_OK;
}

hl_status readers_plan(struct validation *v)
{
    struct hl_api_plan plan;
    const char *waits;
    struct hl_id id = hl_id_random();
    snprintf(v->model, sizeof(v->model), VALIDATE_NAME "%s", hl_id_format(id).s);
    if (v->facts.kubernetes)
        return no_readers(v, HL_API_VALIDATION_RESULT_ABSENT,
                          "Agents that run containers: here Kubernetes runs them");
    HL_TRY(find_waiting(v, &waits));
    if (waits != NULL)
        return no_readers(v, HL_API_VALIDATION_RESULT_NO_ROOM,
                          validate_text(v, "job %s waits for slots", waits));
    HL_TRY(plan_slot(v, &plan));
    if (!plan.feasible || plan.containers.count == 0)
        return no_readers(v, HL_API_VALIDATION_RESULT_NO_ROOM,
                          validate_text(v, "no slot is free: %s", plan.reason));
    v->reader = find_node(v, plan.containers.items[0].node);
    if (v->reader < 0)
        return no_readers(v, HL_API_VALIDATION_RESULT_ABSENT,
                          validate_text(v, "an L2 (agent.l2_size) on %s, whose slot is free",
                                        plan.containers.items[0].node));
    return HL_OK;
}

static hl_status look_at_job(struct validation *v, struct hl_arena *arena, struct hl_api_job *out)
{
    struct hl_api_controller_get_job_results r;
    HL_TRY(
        CLI_CALL(v->cli, get_job, &(struct hl_api_controller_get_job_params){v->job}, arena, &r));
    *out = r.job;
    return HL_OK;
}

static hl_status await_end(struct validation *v)
{
    for (;;) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_job job;
        HL_TRY(look_at_job(v, &arena, &job));
        if (job.state == HL_API_JOB_STATE_SUCCEEDED) {
            v->reader = find_node(
                v, job.plan.containers.count > 0 ? job.plan.containers.items[0].node : "");
            return v->reader >= 0
                       ? HL_OK
                       : hl_fail(HL_EBUSY, "the job %s got another node than planned", v->job);
        }
        if (cli_job_ended(&job))
            return hl_fail(HL_EIO, "the ranks that should have read: job %s %s: %s", v->job,
                           hl_api_job_state_name(job.state), job.reason);
        HL_TRY(validate_pause(v));
    }
}

hl_status readers_run(struct validation *v)
{
    struct hl_api_controller_submit_job_results r;
    char *yaml;
    HL_TRY(make_job(v, &yaml));
    const struct hl_api_controller_submit_job_params p = {.yaml = yaml,
                                                          .source = "helios validate",
                                                          .idempotency_key = v->model,
                                                          .cwd = "/",
                                                          .file = ""};
    hl_status st = CLI_CALL(v->cli, submit_job, &p, &v->arena, &r);
    free(yaml);
    HL_TRY(st);
    snprintf(v->job, sizeof(v->job), "%s", r.id);
    HL_TRY(await_end(v));
    v->job[0] = '\0';
    return HL_OK;
}

/* Does not check for signals, because a signal must not leave the job running. */
hl_status readers_stop(struct validation *v)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cancel_job_results r;
    if (v->job[0] == '\0')
        return HL_OK;
    hl_status st = CLI_CALL(v->cli, cancel_job,
                            &(struct hl_api_controller_cancel_job_params){v->job}, &arena, &r);
    if (st != HL_OK && st != HL_ENOENT && st != HL_ECONFLICT)
        return hl_fail_prefix(st, "the job stays, `helios cancel %s` ends it: ", v->job);
    for (int waited = 0; waited < STOP_MS; waited += VALIDATE_POLL_MS) {
        HL_AUTO(hl_arena_fini) struct hl_arena now = {0};
        struct hl_api_job job;
        if (look_at_job(v, &now, &job) != HL_OK || cli_job_ended(&job))
            return HL_OK;
        poll(NULL, 0, VALIDATE_POLL_MS);
    }
    return hl_fail(HL_ETIMEDOUT, "the job %s is being cancelled and has not ended yet", v->job);
}
