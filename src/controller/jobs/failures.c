/* The first failure of each attempt, stored beside the job: which rank failed, how, and its last
 * lines. We look for it once the attempt is over, because by then every rank has reported its end.
 * Its node is asked for the log, and the result is written to the store. So it outlives containers,
 * Agents and the Controller. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/utf8.h"
#include "controller/jobs/jobs_private.h"
#include "core/failure/failure.h"
#include "core/job/jobnodes.h"

#define FAILURES_MAX 8 /* per job; beyond that the oldest is dropped */

/* A failure that is being completed; its job may be forgotten meanwhile. */
struct failure_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    struct job_failure *failure; /* not yet owned by the job */
    int pid;
    int64_t since_ms; /* when its container started */
};

/* ---- the store ------------------------------------------------------------------------------- */

static void on_failure_written(void *arg, hl_status st, const char *text)
{
    if (!controller_stopped(arg) && st != HL_OK)
        hl_warn("first failure of a job was not stored and is lost when this Controller ends "
                "error=\"%s\"",
                text);
}

/* Drops the oldest failure beyond the limit from memory and, with this batch, from the store. */
static hl_status drop_oldest(struct job *j, struct hl_records *records)
{
    struct job_failure **at = &j->failures;
    for (int i = 0; i < FAILURES_MAX && *at != NULL; i++)
        at = &(*at)->next;
    while (*at != NULL) {
        struct job_failure *old = *at;
        *at = old->next;
        hl_status st = hl_records_add(records, NULL, "failure/%s/%d", j->id, old->f.attempt);
        failure_free(old);
        HL_TRY(st);
    }
    return HL_OK;
}

/* From here on the job owns it. */
static void failure_keep(struct job *j, struct job_failure *f)
{
    struct hl_records records = {0};
    char said[256];
    f->next = j->failures;
    j->failures = f;
    hl_failure_sentence(&f->f, said, sizeof(said));
    hl_info("first failure job=%s attempt=%d text=\"%s\"", j->id, f->f.attempt, said);
    hl_status st = hl_records_add(&records, hl_api_to_json(&hl_api_job_failure_type, &f->f),
                                  "failure/%s/%d", j->id, f->f.attempt);
    if (st == HL_OK)
        st = drop_oldest(j, &records);
    if (st == HL_OK)
        st = controller_write(j->controller, &records, on_failure_written, j->controller);
    hl_records_fini(&records);
    if (st != HL_OK)
        hl_warn("first failure of a job was not stored job=%s error=\"%s\"", j->id,
                hl_error_text());
}

/* Reads one record by its key, which contains the job's id: "failure/JOB/ATTEMPT". Records of jobs
 * that are gone are skipped. */
hl_status jobs_load_failure(struct hl_controller *c, const char *key, const json_t *value)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_failure said;
    struct job_failure *f, **at;
    char id[HL_JOB_ID_MAX + 1];
    const char *name = strchr(key, '/') + 1, *end = strrchr(key, '/');
    snprintf(id, sizeof(id), "%.*s", end > name ? (int)(end - name) : 0, name);
    struct job *j = job_by_id(c, id);
    if (j == NULL)
        return HL_OK;
    HL_TRY(hl_api_record_from_json(&hl_api_job_failure_type, value, &arena, &said));
    HL_TRY(failure_copy(&said, &f));
    for (at = &j->failures; *at != NULL && (*at)->f.attempt > f->f.attempt; at = &(*at)->next)
        ;
    f->next = *at;
    *at = f;
    if (f->f.attempt > j->failure_looked)
        j->failure_looked = f->f.attempt;
    return HL_OK;
}

/* ---- what its node has ----------------------------------------------------------------------- */

static void call_end(struct failure_call *k)
{
    struct job *j = job_by_id(k->c, k->job);
    if (j != NULL)
        failure_keep(j, k->failure);
    else
        failure_free(k->failure);
    free(k);
}

static void call_drop(struct failure_call *k)
{
    failure_free(k->failure);
    free(k);
}

static void on_evidence(void *arg, hl_status st, const char *text,
                        const struct hl_api_agent_kill_evidence_results *r)
{
    struct failure_call *k = arg;
    (void)text;
    if (controller_stopped(k->c)) {
        call_drop(k);
        return;
    }
    if (st == HL_OK && r->text[0] != '\0') {
        k->failure->f.evidence = hl_arena_strdup(&k->failure->arena, r->text);
        k->failure->f.kind = HL_API_FAILURE_KIND_MEMORY;
    }
    call_end(k);
}

/* The log is stored as valid text, whatever bytes the rank wrote. */
static void take_log(struct job_failure *f, const struct hl_api_data *data)
{
    const char *bytes = (const char *)data->bytes;
    size_t from = hl_failure_tail(bytes, data->size);
    char *text = hl_arena_text(&f->arena, bytes + from, data->size - from);
    for (size_t i = 0; text != NULL && i < data->size - from; i++)
        if (text[i] == '\0')
            text[i] = '?';
    for (char *c = text; text != NULL && !hl_utf8_valid(text) && *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80)
            *c = '?';
    f->f.log = text != NULL ? text : "";
    if (data->size == 0)
        f->f.log_missing = "it wrote nothing";
}

static void on_tail(void *arg, hl_status st, const char *text,
                    const struct hl_api_agent_read_log_results *r)
{
    struct failure_call *k = arg;
    if (controller_stopped(k->c)) {
        call_drop(k);
        return;
    }
    if (st == HL_OK)
        take_log(k->failure, &r->data);
    else
        k->failure->f.log_missing = hl_arena_strdup(&k->failure->arena, text);
    struct node *n = node_find(k->c, k->failure->f.node);
    bool killed =
        k->failure->f.signal == SIGKILL || k->failure->f.kind == HL_API_FAILURE_KIND_MEMORY;
    if (!killed || n == NULL || !node_ready(n)) {
        call_end(k);
        return;
    }
    const struct hl_api_agent_kill_evidence_params p = {.pid = k->pid,
                                                        .since_ms = k->since_ms,
                                                        .container = k->failure->f.container,
                                                        .rank = k->failure->f.rank};
    controller_hold(k->c);
    hl_call_agent_kill_evidence_async(n->agent, &p, k->c->opts.rpc_timeout_ms, k->c->opts.loop,
                                      on_evidence, k);
}

/* ---- finding it ------------------------------------------------------------------------------ */

/* A container as its node reports it, or else as the job remembers it. */
static struct hl_api_container_status container_of(const struct job *j, int index,
                                                   struct hl_arena *arena)
{
    const struct hl_api_container_status_list list = hl_jobrun_containers(&j->run, arena);
    struct hl_api_container_status s = {0};
    if (list.items == NULL)
        return s;
    s = list.items[index];
    const struct hl_jobrun_container *k = &j->run.containers[index];
    const struct node *n = node_find(j->controller, k->node);
    const struct hl_api_container_status *told = n != NULL ? node_reported(n, s.id) : NULL;
    if (k->state == HL_API_CONTAINER_STATE_LOST)
        s.finished_ms = n != NULL ? n->seen_ms : k->finished_ms; /* its last sign of life */
    else if (told != NULL && told->state >= HL_API_CONTAINER_STATE_SUCCEEDED)
        s = *told;
    return s;
}

static void find_first(const struct job *j, struct hl_arena *arena, struct hl_api_job_failure *out)
{
    *out = (struct hl_api_job_failure){.attempt = j->run.containers_attempt, .rank = -1};
    for (int i = 0; i < j->run.container_count; i++) {
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        struct hl_api_container_status s = container_of(j, i, arena);
        bool lost = s.state == HL_API_CONTAINER_STATE_LOST; /* then the time is by our clock */
        if (s.id != NULL)
            hl_failure_consider(out, &s, j->run.containers[i].node,
                                n != NULL && !lost ? n->ahead_ms : 0);
    }
}

static bool node_may_come(const struct job *j, const char *name)
{
    const struct node *n = node_find(j->controller, name);
    return n != NULL && !node_ready(n) && !n->lost && nodes_expected(j->controller);
}

/* rank: its number as the node knows it. */
static void ask_node(struct job *j, const struct node *n, struct job_failure *f, int rank)
{
    struct hl_controller *c = j->controller;
    struct failure_call *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        failure_keep(j, f);
        return;
    }
    *k = (struct failure_call){.c = controller_hold(c), .failure = f};
    memcpy(k->job, j->id, sizeof(k->job));
    const struct hl_api_container_status *told = node_reported(n, f->f.container);
    k->since_ms = told != NULL ? told->started_ms : 0;
    for (size_t i = 0; told != NULL && i < told->ranks.count; i++)
        if (told->ranks.items[i].rank == rank)
            k->pid = told->ranks.items[i].pid;
    hl_call_agent_read_log_async(
        n->agent,
        &(struct hl_api_agent_read_log_params){.id = f->f.container,
                                               .rank = rank,
                                               .offset = -(int64_t)HL_FAILURE_LOG_MAX,
                                               .max_bytes = (uint32_t)HL_FAILURE_LOG_MAX},
        c->opts.rpc_timeout_ms, c->opts.loop, on_tail, k);
}

void failures_look(struct job *j)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_failure first;
    struct job_failure *f;
    int attempt = j->run.containers_attempt;
    if (attempt <= j->failure_looked || j->run.plan == NULL ||
        !hl_jobrun_attempt_is_over(&j->run, attempt))
        return;
    find_first(j, &arena, &first);
    if (first.time_ms != 0 && node_may_come(j, first.node))
        return; /* the next tick calls again */
    j->failure_looked = attempt;
    if (first.time_ms == 0)
        return;
    int known_as = first.rank;
    first.rank = elastic_rank_told(j, first.container, known_as);
    if (first.rank >= 0 && rank_watch_ended(j, first.rank))
        first.kind = HL_API_FAILURE_KIND_STALL;
    if (failure_copy(&first, &f) != HL_OK) {
        hl_warn("first failure is not kept job=%s error=\"%s\"", j->id, hl_error_text());
        return;
    }
    const struct node *n = node_find(j->controller, first.node);
    if (n != NULL && node_ready(n) && first.rank >= 0) {
        ask_node(j, n, f, known_as);
        return;
    }
    f->f.log_missing = first.rank < 0 ? "no rank of it wrote anything"
                       : n == NULL    ? "its node keeps no logs for this Controller"
                                      : "its node is lost";
    failure_keep(j, f);
}

void method_first_failure(void *arg, struct hl_rpc_call *call,
                          const struct hl_api_controller_first_failure_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct job *j = NULL;
    hl_status st = job_find(c, p->id, &j);
    const struct hl_api_job_failure *f = st == HL_OK ? job_failure_of(j, p->attempt) : NULL;
    if (st == HL_OK && f == NULL && p->attempt == 0)
        st = hl_fail(HL_ENOENT, "no attempt of job '%s' has failed", j->id);
    else if (st == HL_OK && f == NULL)
        st = hl_fail(HL_ENOENT,
                     "attempt %d of job '%s' has not failed, or its failure is no longer kept",
                     p->attempt, j->id);
    if (st == HL_OK)
        hl_reply_controller_first_failure(
            call, &(struct hl_api_controller_first_failure_results){.failure = *f});
    else
        call_reject(call, st);
}
