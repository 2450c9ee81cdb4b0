/* How a job enters the table: submitted by a user, or read from the store at startup. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/jobs_private.h"

#define SEQ_GAP 1000 /* job numbers skipped when the last one is unknown */

hl_status job_submit(struct hl_controller *c, struct job *j, struct hl_rpc_call *call,
                     job_reply reply)
{
    int64_t seq = c->jobs->seq + 1;
    j->controller = c;
    j->executor = c->jobs->executor;
    j->seq = seq;
    j->load_version = -1;
    snprintf(j->id, sizeof(j->id), "%s-%" PRId64, j->spec.name, seq);
    j->doc.seq = seq;
    j->events = json_array();
    int64_t start_ms = j->executor->has_deadlines ? 0 : c->opts.start_timeout_ms;
    HL_TRY(j->executor->admit(j));
    HL_TRY(job_doc_make(j));
    struct hl_jobrun_opts opts = {
        .id = j->id,
        .max_restarts = j->spec.restarts,
        .restart_lost = hl_job_restarts_lost(&j->spec),
        .policy = hl_job_policy(&j->spec),
        .start_timeout_ms = j->spec.start_timeout_ms >= 0 ? j->spec.start_timeout_ms : start_ms,
        .run_timeout_ms = j->spec.run_timeout_ms,
        .stop_resend_ms = c->opts.stop_resend_ms,
    };
    HL_TRY(hl_jobrun_init(&j->run, &opts));
    c->jobs->seq = seq;
    jobs_add(j);
    job_wait(j, call, reply);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
    return HL_OK;
}

static hl_status find_executor(struct job *j)
{
    const struct job_executor *const *all = j->controller->jobs->executors;
    hl_status st = HL_ENOENT;
    for (size_t i = 0; st == HL_ENOENT && all[i] != NULL; i++) {
        j->executor = all[i];
        st = all[i]->restore(j);
    }
    return st;
}

static hl_status job_restore(struct job *j, const json_t *value)
{
    HL_TRY(job_record_read(j, value));
    HL_TRY(find_executor(j));
    memcpy(j->id, j->run.id, sizeof(j->id));
    int64_t now = controller_steady_ms(j->controller); /* the wall clock, at startup */
    j->ended_steady_ms = j->run.finished_ms < now ? j->run.finished_ms : now;
    j->starting = calloc((size_t)j->run.container_count + 1, sizeof(*j->starting));
    return rank_tables_reset(j, j->run.container_count);
}

hl_status jobs_load(struct hl_controller *c, const json_t *value)
{
    struct job *j = calloc(1, sizeof(*j));
    if (j == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a job record");
    j->controller = c;
    hl_status st = job_restore(j, value);
    if (st != HL_OK) {
        job_free(j);
        return hl_fail_prefix(st, "stored job: ");
    }
    if (j->seq > c->jobs->seq)
        c->jobs->seq = j->seq;
    jobs_add(j);
    return HL_OK;
}

hl_status jobs_load_seq(struct hl_controller *c, const json_t *value)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_number number;
    HL_TRY(hl_api_from_json(&hl_api_job_number_type, value, &arena, &number));
    c->jobs->seq = number.last;
    return HL_OK;
}

/* No id is given twice: the numbers of unreadable jobs count, and if the last number itself is
 * lost, a good many numbers are skipped. */
void jobs_settle_seq(struct hl_controller *c)
{
    const char *key;
    json_t *why;
    bool unknown = false;
    json_object_foreach (c->damaged, key, why) {
        const char *dash = strrchr(key, '-');
        int64_t seq =
            dash != NULL && strncmp(key, "job/", 4) == 0 ? strtoll(dash + 1, NULL, 10) : 0;
        if (seq > c->jobs->seq && seq < INT64_MAX - SEQ_GAP)
            c->jobs->seq = seq;
        unknown |= strncmp(key, "seq/", 4) == 0;
    }
    if (unknown)
        c->jobs->seq += SEQ_GAP;
}

static int by_seq(const struct job *a, const struct job *b)
{
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

void jobs_resume(struct hl_controller *c)
{
    HASH_SORT(c->jobs->table, by_seq);
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        elastic_restore(j);
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        if (j->run.slots_held && j->run.plan != NULL) {
            hl_plan_mark(j->run.plan, nodes_cluster(c), 1);
            j->marked = true;
        }
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        job_resume(j); /* also an ended job: it may still hold versions */
}
