/* Jobs. Every event goes through the pure state machine and changes the job in memory. Its actions
 * are carried out, and calls answered, only once the record with that change is durable. While a
 * record is being written, further events only mark the job as behind: the next record contains all
 * of them, and hl_jobrun_resume derives the dropped actions again. Actions are idempotent: they are
 * repeated after a crash, or after the store refused a write. Others see the job as it is in the
 * store.
 *
 *     event -> hl_jobrun_step -> record -> store -> actions -> executor -> event ...
 *
 * There are three copies of a job's state, older from left to right:
 *
 *     run, events            saving                      saved
 *     as of the last event   on its way to the disk      durable: what others are told
 *
 * States of the record, all changed on the loop's thread (on_job_written runs there, too):
 *
 *     saved --event, job_keep--> saving --written--> saved: actions carried out, calls answered
 *                                  |  '--event: behind; written--> saving (all that came since)
 *                                  |
 *                                  '--refused--> unsaved --tick--> saving
 *                                       '--it is the job's first record: the job never was
 *
 *     saving.run != NULL   a record is on its way; nothing else of this job is written
 *     behind               the run has changed since that record was made
 *     unsaved              the store refused it; ticks try again, actions wait
 *     keep                 more than the run has changed (port, version): write even an equal run
 *     resume               actions were dropped: say them again instead of carrying out `actions`
 *     held, stepped        between job_events_hold and _go: events are collected for one record
 *
 * A job may leave the table in job_not_saved and at retention. Don't keep its pointer over a call
 * or a write: keep the id and look it up again (struct job_write). */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/queue.h"
#include "os/process.h"

#define PASS_AGE_NS (5 * HL_NS_PER_S)

/* The job may be gone by the time its record is written. */
struct job_write {
    struct hl_controller *c;
    char id[HL_JOB_ID_MAX + 1];
};

bool job_is_saved(const struct job *j)
{
    return j->saved.run != NULL && j->saving.run == NULL && !j->unsaved && !j->behind;
}

/* ---- waiting calls --------------------------------------------------------------------------- */

static void waiters_end(struct job *j, hl_status st, const char *text)
{
    struct job_waiter *list = j->waiters;
    j->waiters = NULL;
    while (list != NULL) {
        struct job_waiter *w = list;
        list = w->next;
        if (st == HL_OK)
            w->reply(w->call, j);
        else
            hl_rpc_reject(w->call, st, text);
        free(w);
    }
}

void job_wait(struct job *j, struct hl_rpc_call *call, job_reply reply)
{
    struct job_waiter *w = job_is_saved(j) ? NULL : malloc(sizeof(*w));
    if (job_is_saved(j)) {
        reply(call, j);
    } else if (w == NULL) {
        call_reject(call,
                    hl_fail(HL_ENOMEM, "out of memory for a call that waits for job %s", j->id));
    } else {
        *w = (struct job_waiter){j->waiters, call, reply};
        j->waiters = w;
    }
}

void jobs_stop(struct hl_controller *c)
{
    for (struct job *j = c->jobs != NULL ? c->jobs->table : NULL; j != NULL; j = j->hh.next)
        waiters_end(j, HL_ECANCELED, "the Controller was stopped");
}

/* ---- actions ----------------------------------------------------------------------------------
 */

void job_take_plan(struct job *j, struct hl_plan *plan)
{
    struct hl_controller *c = j->controller;
    free(j->starting);
    j->starting = calloc((size_t)plan->container_count + 1, sizeof(*j->starting));
    elastic_begin(j);
    if (rank_tables_reset(j, plan->container_count) != HL_OK)
        hl_warn("%s", hl_error_text());
    j->marked = true;
    j->placed_here = j->run.attempt;
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan});
    if (j->run.plan != plan) { /* refused: the plan is still ours */
        hl_plan_mark(plan, nodes_cluster(c), 0);
        j->marked = false;
        hl_plan_free(plan);
    }
}

/* Finds a place for the next attempt of a job that is in none of our queues. Its slots are not in
 * our cluster: the cluster that owns them runs the job. */
static void job_place(struct job *j)
{
    struct hl_plan *plan = NULL;
    struct hl_controller *c = j->controller;
    hl_status st = job_find_version(j, &j->load_version);
    if (st == HL_OK)
        st = j->executor->plan(c, &j->spec, j->id, j->run.attempt, &plan);
    if (st == HL_OK && plan->feasible) {
        job_take_plan(j, plan);
        return;
    }
    char why[HL_JOB_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", st != HL_OK ? hl_error_text() : plan->reason);
    hl_plan_free(plan);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NOT_PLACED, .text = why});
}

static bool job_has_line(const struct job *j)
{
    return j->controller->jobs->want_pass != NULL && !j->executor->has_deadlines;
}

/* Releases what ended attempts held: their slots, and the versions they did not complete. Every
 * resume repeats it; it does nothing when nothing is held. */
static void job_release(struct job *j)
{
    bool ended = hl_job_state_ended(j->run.state);
    if (j->marked) {
        hl_plan_mark(j->run.plan, nodes_cluster(j->controller), 0);
        j->marked = false;
        j->controller->slots_changed = true;
    }
    drop_open_versions(j->controller, j->id, ended ? INT_MAX : j->run.attempt);
}

/* The executor starts and stops containers. Placing comes last, because it may change the run that
 * the other actions refer to. */
static void job_carry_out(struct job *j, const struct hl_job_actions *actions)
{
    bool place = false;
    for (size_t i = 0; i < actions->count; i++) {
        if (actions->list[i].kind == HL_JOB_DO_RELEASE)
            job_release(j);
        place |= actions->list[i].kind == HL_JOB_DO_PLACE;
    }
    j->executor->carry_out(j, actions);
    bool waits =
        j->run.state == HL_API_JOB_STATE_PENDING; /* a job that backs off has a reason, too */
    if (job_has_line(j) && (place || waits || hl_job_state_ended(j->run.state)))
        j->controller->jobs->want_pass(j->controller);
    else if (place)
        job_place(j);
}

void job_resume(struct job *j)
{
    struct hl_job_actions actions = {0};
    if (!j->run.slots_held)
        job_release(j);
    if (hl_jobrun_resume(&j->run, &actions) == HL_OK)
        job_carry_out(j, &actions);
    else
        hl_error("job can't continue job=%s error=\"%s\"", j->id, hl_error_text());
    hl_job_actions_fini(&actions);
}

/* ---- the record ------------------------------------------------------------------------------ */

/* The store now has the current state of the job. */
static void job_saved(struct job *j)
{
    struct hl_job_actions actions = j->actions; /* carrying them out may cause events */
    bool resume = j->resume;
    j->actions = (struct hl_job_actions){0};
    j->resume = false;
    waiters_end(j, HL_OK, "");
    if (resume)
        job_resume(j);
    else
        job_carry_out(j, &actions);
    if (j->executor->saved != NULL && job_is_saved(j))
        j->executor->saved(j);
    hl_job_actions_fini(&actions);
}

/* Actions of an unwritten change wait; they are derived from the state again once it is written. */
static void job_not_saved(struct job *j, hl_status st, const char *text)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", text);
    hl_job_actions_fini(&j->actions);
    j->actions = (struct hl_job_actions){0};
    j->unsaved = true;
    j->behind = false;
    if (j->saved.run == NULL) { /* the submission was refused: the job never existed */
        waiters_end(j, st, why);
        hl_warn("job not accepted, its record can't be written job=%s error=\"%s\"", j->id, why);
        jobs_remove(j);
        job_free(j);
        return;
    }
    char told[HL_ERROR_TEXT_MAX];
    snprintf(told, sizeof(told),
             "%.700s; the Controller tries again until it is stored, a restart before that forgets "
             "it",
             why);
    waiters_end(j, st, told);
    hl_error("job state not saved, its actions wait job=%s error=\"%s\"", j->id, why);
}

static void job_save(struct job *j);

static void on_job_written(void *arg, hl_status st, const char *text)
{
    struct job_write w = *(struct job_write *)arg;
    struct job *j;
    free(arg);
    if (controller_stopped(w.c))
        return;
    HASH_FIND_STR(w.c->jobs->table, w.id, j);
    if (j == NULL)
        return;
    struct job_record written = j->saving;
    j->saving = (struct job_record){NULL, NULL};
    if (st != HL_OK) {
        job_record_fini(&written);
        job_not_saved(j, st, text);
        return;
    }
    job_record_fini(&j->saved);
    j->saved = written;
    j->unsaved = false;
    if (j->behind)
        job_save(j);
    else
        job_saved(j);
}

static hl_status job_write(struct job *j, json_t *value)
{
    struct hl_records records = {0};
    struct job_write *w = calloc(1, sizeof(*w));
    hl_status st = w != NULL
                       ? HL_OK
                       : hl_fail(HL_ENOMEM, "out of memory allocating the record of job %s", j->id);
    if (st == HL_OK) {
        w->c = j->controller;
        memcpy(w->id, j->id, sizeof(w->id));
        st = hl_records_add(&records, json_incref(value), "job/%s", j->id);
    }
    if (st == HL_OK)
        st = controller_write(j->controller, &records, on_job_written, w);
    hl_records_fini(&records);
    if (st != HL_OK)
        free(w);
    return st;
}

/* Writes what changed since the last record, then carries out j->actions. An event that does not
 * change the run costs no write. The job may be gone afterwards. */
static void job_save(struct job *j)
{
    if (j->saving.run != NULL) {
        j->behind = true;
        return;
    }
    j->resume |= j->behind || j->unsaved;
    struct job_record now = job_record_now(j);
    json_t *value = job_record_json(j, &now);
    hl_status st = HL_OK;
    bool same =
        j->saved.run != NULL && !j->keep && !j->unsaved && json_equal(now.run, j->saved.run);
    if (value == NULL) { /* a NULL value would delete the job's record */
        st = hl_fail(HL_ENOMEM, "out of memory for the record of job %s", j->id);
    } else {
        j->behind = false;
        if (!same)
            st = job_write(j, value);
    }
    json_decref(value);
    if (st == HL_OK && !same) {
        j->saving = now;
        j->keep = false;
        return;
    }
    job_record_fini(&now);
    if (st == HL_OK)
        job_saved(j);
    else
        job_not_saved(j, st, hl_error_text());
}

/* ---- events ---------------------------------------------------------------------------------- */

void job_event(struct job *j, struct hl_job_event *ev)
{
    size_t at = j->actions.count;
    ev->now_ms = hl_wall_ms();
    ev->reached = ledger_reached(j);
    if (hl_jobrun_step(&j->run, ev, &j->actions) != HL_OK) {
        hl_error("job event refused job=%s error=\"%s\"", j->id, hl_error_text());
        return;
    }
    for (; at < j->actions.count; at++)
        if (j->actions.list[at].kind == HL_JOB_DO_RECORD)
            note_event(j, j->actions.list[at].attempt, j->actions.list[at].word,
                       j->actions.list[at].text);
    elastic_follow(j);
    ledger_follow(j);
    failures_look(j);
    j->stepped = true;
    if (!j->held)
        job_events_go(j);
}

void job_events_hold(struct job *j)
{
    j->held = true;
}

void job_events_go(struct job *j)
{
    bool stepped = j->stepped;
    j->held = j->stepped = false;
    if (stepped)
        job_save(j);
}

/* ---- time -------------------------------------------------------------------------------------
 */

void job_waits_for(const struct job *j, const struct hl_jobrun *run, char *out, size_t cap)
{
    out[0] = '\0';
    if (j->executor->waits_for != NULL &&
        (run->state == HL_API_JOB_STATE_STARTING || run->state == HL_API_JOB_STATE_RUNNING))
        j->executor->waits_for(j, out, cap);
}

static void job_time(struct job *j)
{
    char waits[HL_JOB_TEXT_MAX];
    if (hl_wall_ms() < hl_jobrun_next_ms(&j->run))
        return;
    job_waits_for(j, &j->run, waits, sizeof(waits));
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_TIMER,
                                        .text = waits[0] != '\0' ? waits : NULL});
}

/* Handles what no event announces: free slots, deadlines, nodes that stay silent, calls to retry.
 */
static void job_tick(struct job *j, bool slots_changed)
{
    bool wants_slots =
        slots_changed && j->run.state == HL_API_JOB_STATE_PENDING && !job_has_line(j);
    if (j->saving.run != NULL) {
        j->behind |= wants_slots; /* it is placed again once the store has this change */
        return;
    }
    if (j->unsaved) {
        job_save(j);
        return;
    }
    if (wants_slots)
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_SLOTS});
    if (j->executor->watch != NULL)
        j->executor->watch(j);
    job_time(j);
    if (j->executor->retry != NULL && job_is_saved(j))
        j->executor->retry(j);
}

/* Time alone can also change which jobs may start: a recovery has waited long enough, or a node did
 * not come back. */
static bool line_is_old(const struct job_queue *q)
{
    return q->pending > 0 && hl_now_ns() - q->ended_ns > PASS_AGE_NS;
}

void jobs_tick(struct hl_controller *c)
{
    bool slots_changed = c->slots_changed;
    c->slots_changed = false;
    if (c->jobs->want_pass != NULL && (slots_changed || line_is_old(c->jobs->queue)))
        c->jobs->want_pass(c);
    struct job *j, *next;
    HASH_ITER (hh, c->jobs->table, j, next) {
        ledger_follow(j);
        failures_look(j);
        if (!hl_job_state_ended(j->run.state) || !job_is_saved(j))
            job_tick(j, slots_changed);
    }
    for (const struct job_executor *const *e = c->jobs->executors; *e != NULL; e++)
        if ((*e)->tick != NULL)
            (*e)->tick(c);
}

void jobs_shift(struct hl_controller *c, int64_t paused_ms, int64_t stepped_ms)
{
    for (struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        hl_jobrun_shift(&j->run, paused_ms, stepped_ms);
}

/* ---- begin and end --------------------------------------------------------------------------- */

hl_status jobs_create(struct hl_controller *c, const struct job_executor *const *all,
                      const struct job_executor *submitted)
{
    c->jobs = calloc(1, sizeof(*c->jobs));
    if (c->jobs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the table of jobs");
    c->jobs->executors = all;
    c->jobs->executor = submitted;
    c->jobs->save = job_save;
    hl_host_id(c->jobs->boot_id, sizeof(c->jobs->boot_id));
    return HL_OK;
}

void job_free(struct job *j)
{
    if (j == NULL)
        return;
    if (j->executor != NULL && j->executor->release != NULL)
        j->executor->release(j);
    hl_job_fini(&j->spec);
    hl_jobrun_fini(&j->run);
    hl_job_actions_fini(&j->actions);
    hl_arena_fini(&j->doc_arena);
    json_decref(j->doc_json);
    json_decref(j->events);
    job_record_fini(&j->saved);
    job_record_fini(&j->saving);
    failures_free(j);
    free(j->starting);
    free(j->table_sent);
    rank_watch_free(j->watch);
    free(j->elastic.asked);
    free(j->elastic.lost);
    images_free(j->images);
    free(j->table);
    free(j);
}

void jobs_fini(struct hl_controller *c)
{
    struct job *j, *next;
    if (c->jobs == NULL)
        return;
    HASH_ITER (hh, c->jobs->table, j, next) {
        jobs_remove(j);
        job_free(j);
    }
    free(c->jobs);
    c->jobs = NULL;
}
