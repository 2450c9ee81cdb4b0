/* Ended jobs are not kept for ever: the oldest are removed from memory and store, by number and by
 * age. A job stays while something refers to it: one of its versions can be loaded, or its log is
 * being read. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/queue.h"
#include "core/catalog/retention.h"

#define ROUND_MAX 256 /* per batch: the loop has other work too */

static bool job_is_needed(void *arg, const void *item)
{
    const struct hl_controller *c = arg;
    const struct job *j = item;
    const struct hl_job_uses uses = {
        .unsaved = !job_is_saved(j),
        .holds_slots = j->run.slots_held,
        .names_version = hl_catalog_names_job(&c->catalog, j->id),
        .has_executor = j->executor->needs != NULL && j->executor->needs(j),
        .was_read = j->read_ns != 0,
        .unread_ns = hl_now_ns() - j->read_ns,
    };
    return hl_job_in_use(&uses);
}

/* Jobs whose records are being deleted. */
struct jobs_leaving {
    struct hl_controller *c;
    struct queue_past past[HL_QUEUES_MAX]; /* together with what they used */
    size_t count;
    char ids[ROUND_MAX][HL_JOB_ID_MAX + 1];
};

static void job_forget(struct job *j)
{
    hl_info("ended job is forgotten job=%s", j->id);
    j->executor->forget(j);
    jobs_remove(j);
    job_free(j);
}

static void log_trouble(struct hl_controller *c, hl_status st, const char *text)
{
    if (trouble_is_new(&c->jobs->forget_trouble, st))
        hl_error("ended jobs were not forgotten, each round tries again error=\"%s\"", text);
}

static void on_jobs_deleted(void *arg, hl_status st, const char *text)
{
    struct jobs_leaving *l = arg;
    struct hl_controller *c = l->c;
    if (controller_stopped(c)) {
        free(l);
        return;
    }
    c->jobs->forgetting = false;
    log_trouble(c, st, text);
    if (st == HL_OK && c->jobs->queue != NULL)
        memcpy(c->jobs->queue->past, l->past, sizeof(l->past));
    for (size_t i = 0; i < l->count; i++) {
        struct job *j;
        j = job_by_id(c, l->ids[i]);
        if (j != NULL && st == HL_OK)
            job_forget(j);
        else if (j != NULL)
            j->forgetting = false;
    }
    free(l);
}

/* The number of the last job is stored along with it: an id is never given twice. */
static hl_status forget_jobs(struct hl_controller *c, const struct hl_ended *list, size_t n)
{
    struct hl_records records = {0};
    int64_t now_ms = hl_wall_ms();
    struct jobs_leaving *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of jobs");
    l->c = c;
    l->count = n;
    if (c->jobs->queue != NULL)
        memcpy(l->past, c->jobs->queue->past, sizeof(l->past));
    hl_status st = hl_records_add(
        &records,
        hl_api_to_json(&hl_api_job_number_type, &(struct hl_api_job_number){c->jobs->seq}),
        "seq/job");
    for (size_t i = 0; i < n && st == HL_OK; i++) {
        const struct job *j = list[i].item;
        memcpy(l->ids[i], j->id, sizeof(l->ids[i]));
        st = hl_records_add(&records, NULL, "job/%s", j->id);
        if (st == HL_OK)
            st = failures_forget(j, &records);
        queue_past_add(j, now_ms, l->past);
    }
    if (st == HL_OK)
        st = queue_past_records(c, l->past, &records);
    if (st == HL_OK)
        st = controller_write(c, &records, on_jobs_deleted, l);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(l);
        return st;
    }
    c->jobs->forgetting = true;
    for (size_t i = 0; i < n; i++)
        ((struct job *)list[i].item)->forgetting = true;
    return HL_OK;
}

void jobs_retain(struct hl_controller *c)
{
    struct hl_ended *ended =
        c->jobs->forgetting ? NULL : calloc(HASH_COUNT(c->jobs->table) + 1, sizeof(*ended));
    const struct hl_retention rule = {
        .keep = (size_t)c->opts.jobs_keep, .age_ms = c->opts.jobs_keep_age_ms, .round = ROUND_MAX};
    int64_t now = controller_steady_ms(c);
    size_t count = 0;
    if (ended == NULL)
        return; /* the next round tries again */
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next) {
        if (!hl_job_state_ended(j->run.state))
            continue;
        if (j->ended_steady_ms == 0)
            j->ended_steady_ms = now;
        ended[count++] = (struct hl_ended){.item = j,
                                           .since_ms = j->ended_steady_ms,
                                           .second_ms = j->run.finished_ms,
                                           .order = j->seq};
    }
    size_t n = hl_retention_choose(ended, count, &rule, now, job_is_needed, c);
    hl_status st = n > 0 ? forget_jobs(c, ended, n) : HL_OK;
    if (st != HL_OK)
        log_trouble(c, st, hl_error_text());
    free(ended);
}
