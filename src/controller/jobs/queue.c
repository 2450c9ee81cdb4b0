/* Passes over the queue of waiting jobs: the jobs become the input of core/queue, and its verdicts
 * become events of the jobs.
 *
 *     something changed --queue_want--> timer --> pass --> PLACED, PREEMPT, NOT_PLACED
 *                                         ^
 *                                         '-- not before ten times as long as the last pass took
 *
 * So a burst of a thousand submissions costs a few passes, and a single submission waits for none.
 * The duration of a pass is measured as processor time: on a busy machine it takes longer, but
 * costs no more. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/queue.h"
#include "core/job/elastic.h"
#include "os/loop.h"

#define IDLE_FACTOR 10        /* the loop spends about one part in ten on passes */
#define TELL_MAX    100       /* reason records that one pass writes */
#define NO_OPTION   "default" /* when there is no list */

/* ---- what a job is to the queue -------------------------------------------------------------- */

static hl_status find_shape(struct job *j)
{
    struct job_queue *q = j->controller->jobs->queue;
    struct queue_shape *shape = NULL;
    if (j->shape != NULL)
        return HL_OK;
    HL_AUTO(hl_freep) char *key = hl_job_shape_key(&j->spec);
    if (key != NULL)
        HASH_FIND_STR(q->shapes, key, shape);
    if (key != NULL && shape == NULL && (shape = calloc(1, sizeof(*shape))) != NULL) {
        shape->id = (int)HASH_COUNT(q->shapes);
        shape->key = hl_steal(&key);
        HASH_ADD_KEYPTR(hh, q->shapes, shape->key, strlen(shape->key), shape);
    }
    if (shape == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for what job %s needs", j->id);
    j->shape = shape;
    return HL_OK;
}

/* ---- from jobs to gangs ---------------------------------------------------------------------- */

/* When the job last saved a version; 0 = never. */
static int64_t last_save_ms(const struct job *j)
{
    struct hl_model_rec *m;
    if (j->spec.model[0] == '\0' ||
        hl_catalog_model(&j->controller->catalog, j->spec.model, &m) != HL_OK)
        return 0;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        if (v->state == HL_API_VERSION_STATE_VISIBLE && strcmp(v->job, j->id) == 0)
            return v->visible_ms;
    return 0;
}

static int64_t limit_ms(const struct job *j)
{
    const struct hl_jobrun *run = &j->run;
    if (run->run_timeout_ms > 0 && run->state == HL_API_JOB_STATE_RUNNING)
        return run->deadline_ms - run->placed_ms;
    return run->run_timeout_ms;
}

/* The job has run already, and goes before new ones. */
static bool is_damaged(const struct job *j, int64_t now_ms)
{
    return j->run.attempt > 1 && j->run.preemptor[0] == '\0' && j->run.released_ms > 0 &&
           now_ms - j->run.released_ms < j->controller->opts.queue_recovery_ms;
}

/* The gang for which this job was preempted, as long as that gang still waits in the same attempt.
 */
static int preemptor_of(const struct queue_run *run, const struct job *j)
{
    const struct job *k = j->run.preemptor[0] != '\0' ? job_by_id(run->c, j->run.preemptor) : NULL;
    bool waits = k != NULL && k->run.state == HL_API_JOB_STATE_PENDING &&
                 k->run.attempt == j->run.preemptor_attempt;
    return waits && k->gang_index < run->count && run->jobs[k->gang_index] == k ? k->gang_index
                                                                                : -1;
}

/* The number of reservations that a gang meets: gangs of the same shape that meet equally many fit
 * equally well. */
static int count_met(const struct queue_run *run, const struct job *j, int64_t now_ms)
{
    int64_t limit = j->run.run_timeout_ms, grace = run->c->opts.stop_grace_ms;
    grace = j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : grace;
    int n = 0;
    while (n < run->window_count && (limit <= 0 || now_ms + limit + grace > run->windows[n]))
        n++;
    return n;
}

static hl_status pending_gang(const struct queue_run *run, struct job *j, int64_t now_ms,
                              struct hl_queue_gang *g)
{
    g->since_ms = j->run.released_ms > 0 ? j->run.released_ms : j->run.submitted_ms;
    g->damaged = is_damaged(j, now_ms);
    if (hl_jobrun_backs_off(&j->run, now_ms))
        g->blocked = HL_API_WAIT_REASON_BACK_OFF;
    if (job_find_version(j, &j->load_version) != HL_OK) {
        g->blocked = HL_API_WAIT_REASON_VERSION_UNAVAILABLE;
        snprintf(j->wait.text, sizeof(j->wait.text), "%s", hl_error_text());
    }
    HL_TRY(find_shape(j));
    HL_TRY(queue_shape_measure(j, j->controller->jobs->queue->cluster));
    g->shape = j->shape->id * (run->window_count + 1) + count_met(run, j, now_ms);
    g->slots = j->shape->slots;
    return HL_OK;
}

static hl_status make_gang(struct queue_run *run, struct job *j, int64_t now_ms,
                           struct hl_queue_gang *out)
{
    struct hl_queue_gang g = {.queue = queue_index(j),
                              .priority = j->spec.priority,
                              .slots = j->run.container_count,
                              .seq = j->seq,
                              .placed_ms = j->run.placed_ms,
                              .limit_ms = limit_ms(j),
                              .preemptor = preemptor_of(run, j)};
    bool runs =
        j->run.state == HL_API_JOB_STATE_STARTING || j->run.state == HL_API_JOB_STATE_RUNNING;
    if (j->run.state == HL_API_JOB_STATE_PENDING && !j->marked)
        HL_TRY(pending_gang(run, j, now_ms, &g));
    else
        g.phase = runs ? HL_QUEUE_RUNS : HL_QUEUE_STOPS;
    if (g.phase == HL_QUEUE_RUNS)
        g.saved_ms = last_save_ms(j);
    *out = g;
    return HL_OK;
}

/* A job is in line while it holds slots, which it does until the record that gives them back is
 * durable; or while it waits, is in the store, and its next state can be stored. */
static bool is_in_line(const struct job *j)
{
    bool waits = j->run.state == HL_API_JOB_STATE_PENDING && j->saved.run != NULL && !j->unsaved;
    return job_is_queued(j) && (j->marked || waits);
}

static hl_status make_gangs(struct queue_run *run, int64_t now_ms)
{
    size_t most = jobs_count(run->c) + 1;
    run->jobs = calloc(most, sizeof(struct job *));
    run->gangs = calloc(most, sizeof(*run->gangs));
    HL_TRY(queue_windows(nodes_cluster(run->c), now_ms, &run->windows, &run->window_count));
    if (run->jobs == NULL || run->gangs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a pass over %u jobs", jobs_count(run->c));
    for (struct job *j = jobs_first(run->c); j != NULL; j = j->hh.next) {
        run->fresh += j->saved.run == NULL;
        if (is_in_line(j)) {
            j->gang_index = run->count;
            run->jobs[run->count++] = j;
        }
    }
    memset(run->c->jobs->queue->held, 0, sizeof(run->c->jobs->queue->held));
    for (int i = 0; i < run->count; i++) {
        HL_TRY(make_gang(run, run->jobs[i], now_ms, &run->gangs[i]));
        if (run->gangs[i].phase != HL_QUEUE_PENDING)
            run->c->jobs->queue->held[run->gangs[i].queue] += run->gangs[i].slots;
    }
    memcpy(run->used, run->c->jobs->queue->held, sizeof(run->used));
    return HL_OK;
}

/* ---- from verdicts to events ----------------------------------------------------------------- */

static void stop_job(const struct queue_run *run, int gang, int other)
{
    char text[HL_JOB_TEXT_MAX];
    const struct job *k = run->jobs[other];
    snprintf(text, sizeof(text), "job %s of priority %d needs its slots; this job has priority %d",
             k->id, k->spec.priority, run->jobs[gang]->spec.priority);
    job_event(run->jobs[gang], &(struct hl_job_event){.kind = HL_JOB_EV_PREEMPT,
                                                      .attempt = k->run.attempt,
                                                      .preemptor = k->id,
                                                      .text = text});
}

/* If a gang does not fit, the planner knows why. */
static enum hl_api_wait_reason refine_reason(const struct job *j, enum hl_api_wait_reason reason)
{
    static const enum hl_api_wait_reason reasons[HL_PLAN_REASONS] = {
        [HL_PLAN_FITS] = HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS,
        [HL_PLAN_NOT_ENOUGH_SLOTS_EVER] = HL_API_WAIT_REASON_NOT_ENOUGH_SLOTS_EVER,
        [HL_PLAN_GPU_MEMORY_TOO_SMALL] = HL_API_WAIT_REASON_GPU_MEMORY_TOO_SMALL,
        [HL_PLAN_NIC_CLASS_MISSING] = HL_API_WAIT_REASON_NIC_CLASS_MISSING,
        [HL_PLAN_SERVER_RESERVED] = HL_API_WAIT_REASON_SERVER_RESERVED,
        [HL_PLAN_SERVER_DRAINING] = HL_API_WAIT_REASON_SERVER_DRAINING,
        [HL_PLAN_NOT_ENOUGH_FREE_SLOTS] = HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS,
        [HL_PLAN_TOPOLOGY_UNSATISFIABLE] = HL_API_WAIT_REASON_TOPOLOGY_UNSATISFIABLE,
    };

    return reason == HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS ? reasons[j->shape->why] : reason;
}

/* Writes the record only when the kind of reason changes, not whenever a number in it does. One
 * turn of the loop does not write thousands of them: the next passes continue. */
static void tell_reason(struct queue_run *run, struct job *j)
{
    char text[HL_JOB_TEXT_MAX];
    if (j->wait.told == j->wait.reason && j->run.reason[0] != '\0')
        return;
    queue_reason(j, text, sizeof(text));
    if (text[0] == '\0')
        return; /* nothing is known yet, and a record of that would be written again and again */
    if (run->told == TELL_MAX) {
        run->untold = true;
        return;
    }
    run->told++;
    j->wait.told = j->wait.reason;
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NOT_PLACED, .text = text});
}

static void keep_waiting(struct queue_run *run, const struct hl_queue_pass *pass, int gang)
{
    struct job *j = run->jobs[gang];
    const struct hl_queue_verdict *v = &pass->verdicts[gang];
    bool asks = v->reason == HL_API_WAIT_REASON_NOT_ENOUGH_FREE_SLOTS ||
                v->reason == HL_API_WAIT_REASON_WAITING_FOR_RECOVERY;
    if (asks)
        snprintf(j->wait.text, sizeof(j->wait.text), "%s",
                 queue_shape_text(j, run->gangs[gang].shape % (run->window_count + 1)));
    j->wait.reason = refine_reason(j, v->reason);
    j->wait.place = v->place;
    j->wait.start_ms = j->wait.reason == HL_API_WAIT_REASON_SERVER_RESERVED ? j->shape->until_ms
                       : j->wait.reason == HL_API_WAIT_REASON_BACK_OFF      ? j->run.deadline_ms
                                                                            : v->start_ms;
    snprintf(j->wait.other, sizeof(j->wait.other), "%s",
             v->other >= 0 ? run->jobs[v->other]->id : "");
    tell_reason(run, j);
}

static void carry_out(struct queue_run *run, const struct hl_queue_pass *pass)
{
    struct job_queue *q = run->c->jobs->queue;
    q->pending = pass->line_count;
    q->fresh = run->fresh;
    for (int i = 0; i < run->count; i++)
        if (pass->verdicts[i].starts) {
            run->jobs[i]->wait = (struct job_wait){0};
            job_take_plan(run->jobs[i], hl_queue_slots_plan(&run->slots, i));
            q->pending--;
        }
    for (int i = 0; i < pass->line_count; i++)
        run->jobs[pass->line[i]]->wait.stops = 0;
    for (int i = 0; i < run->count; i++)
        if (pass->verdicts[i].stops) {
            run->jobs[pass->verdicts[i].other]->wait.stops++;
            stop_job(run, i, pass->verdicts[i].other);
        }
    for (int i = 0; i < pass->line_count; i++)
        if (!pass->verdicts[pass->line[i]].starts)
            keep_waiting(run, pass, pass->line[i]);
}

/* ---- what the pass asks ---------------------------------------------------------------------- */

/* Spare slots that the quota of its queue leaves to a gang. */
static int count_spares(const struct queue_run *run, int gang)
{
    const struct hl_job *spec = &run->jobs[gang]->spec;
    int used = run->used[run->gangs[gang].queue];
    int left = elastic_quota_left(run->c, spec, used + run->gangs[gang].slots);
    return left >= spec->spare_slots ? spec->spare_slots : left > 0 ? left : 0;
}

static hl_status plan_gang(void *arg, int gang, struct hl_plan **out)
{
    const struct queue_run *run = arg;
    const struct job *j = run->jobs[gang];
    struct hl_job spec = j->spec; /* borrows */
    spec.spare_slots = count_spares(run, gang);
    return j->executor->plan(run->c, &spec, j->id, j->run.attempt, out);
}

static const struct hl_plan *held_plan(void *arg, int gang)
{
    const struct queue_run *run = arg;
    return run->jobs[gang]->run.plan;
}

static void plan_taken(void *arg, int gang, const struct hl_plan *plan)
{
    struct queue_run *run = arg;
    run->used[run->gangs[gang].queue] += plan->container_count;
}

/* ---- passes ---------------------------------------------------------------------------------- */

static hl_status run_decide(struct queue_run *run, struct hl_queue_pass *out)
{
    struct hl_controller *c = run->c;
    struct job_queue *q = c->jobs->queue;
    struct hl_queue_planner planner;
    double used[HL_QUEUES_MAX];
    int free_slots;
    int64_t now_ms = hl_wall_ms();
    q->passes++;
    q->cluster = queue_cluster_mark(nodes_cluster(c), &free_slots);
    HL_TRY(make_gangs(run, now_ms));
    const struct hl_queue_slots_opts slots = {.cluster = nodes_cluster(c),
                                              .count = run->count,
                                              .arg = run,
                                              .plan = plan_gang,
                                              .held = held_plan,
                                              .taken = plan_taken};
    HL_TRY(hl_queue_slots_init(&run->slots, &slots, &planner));
    queue_find_used(c, now_ms, used);
    const struct hl_queue_input in = {.queues = &q->queues,
                                      .gangs = run->gangs,
                                      .count = run->count,
                                      .shapes =
                                          (int)HASH_COUNT(q->shapes) * (run->window_count + 1),
                                      .free_slots = free_slots,
                                      .used = used,
                                      .now_ms = now_ms,
                                      .age_ms = c->opts.queue_age_ms,
                                      .grace_ms = c->opts.stop_grace_ms,
                                      /* nodes that are coming back bring slots */
                                      .preempt = c->opts.queue_preempt && !nodes_expected(c)};
    return hl_queue_pass(&in, &planner, out);
}

/* Started gangs of variable size first get the largest size that is left; then the running ones. */
static void enlarge_started(struct queue_run *run, const struct hl_queue_pass *pass)
{
    for (int i = 0; i < pass->line_count; i++) {
        int gang = pass->line[i], *of_queue = &run->used[run->gangs[gang].queue];
        struct hl_plan **plan = &run->slots.plans[gang];
        if (!pass->verdicts[gang].starts || !hl_job_is_elastic(&run->jobs[gang]->spec))
            continue;
        *of_queue -= (*plan)->container_count;
        elastic_enlarge_started(run->c, run->jobs[gang], *of_queue, plan);
        *of_queue += (*plan)->container_count;
    }
    for (int i = 0; i < run->count; i++)
        if (run->gangs[i].phase == HL_QUEUE_RUNS && !pass->verdicts[i].stops)
            run->used[run->gangs[i].queue] +=
                elastic_grow(run->jobs[i], run->used[run->gangs[i].queue]);
}

static void queue_want(struct hl_controller *c);

static void queue_pass(struct hl_controller *c)
{
    struct job_queue *q = c->jobs->queue;
    struct queue_run run = {.c = c};
    struct hl_queue_pass pass = {0};
    uint64_t began = hl_now_ns(), thread_began = hl_thread_ns();
    hl_status st = run_decide(&run, &pass);
    if (trouble_is_new(&q->trouble, st))
        hl_error("waiting jobs were not looked at, each tick tries again error=\"%s\"",
                 hl_error_text());
    if (st == HL_OK)
        enlarge_started(&run, &pass);
    hl_queue_slots_end(&run.slots);
    if (st == HL_OK)
        carry_out(&run, &pass);
    else
        c->slots_changed = true;
    hl_queue_slots_fini(&run.slots);
    hl_queue_pass_fini(&pass);
    free(run.jobs);
    free(run.gangs);
    free(run.windows);
    q->ended_ns = hl_now_ns();
    q->cost_ns = q->ended_ns - began;
    q->processor_ns = hl_thread_ns() - thread_began;
    if (run.untold)
        queue_want(c);
}

static void on_turn(void *arg)
{
    struct hl_controller *c = arg;
    struct job_queue *q = c->jobs->queue;
    hl_timer_destroy(q->timer);
    q->timer = NULL;
    controller_check_clocks(c);
    queue_pass(c);
}

static void queue_want(struct hl_controller *c)
{
    struct job_queue *q = c->jobs->queue;
    uint64_t since = hl_now_ns() - q->ended_ns, pause = IDLE_FACTOR * q->processor_ns;
    uint64_t delay_ms = since < pause ? (pause - since) / HL_NS_PER_MS : 0;
    if (q->timer == NULL &&
        hl_timer_create(c->opts.loop, delay_ms, 0, on_turn, c, &q->timer) != HL_OK)
        c->slots_changed = true; /* the next tick tries again */
}

hl_status queue_create(struct hl_controller *c)
{
    const char *list = c->opts.queue_list != NULL ? c->opts.queue_list : NO_OPTION;
    struct job_queue *q = calloc(1, sizeof(*q));
    if (q == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the queue of jobs");
    hl_status st = hl_queues_parse(list, &q->queues);
    if (st != HL_OK) {
        free(q);
        return hl_fail_prefix(st, "option queue.list: ");
    }
    c->jobs->queue = q;
    c->jobs->want_pass = queue_want;
    return HL_OK;
}

void queue_destroy(struct hl_controller *c)
{
    struct job_queue *q = c->jobs != NULL ? c->jobs->queue : NULL;
    struct queue_shape *shape, *next;
    if (q == NULL)
        return;
    hl_timer_destroy(q->timer);
    HASH_ITER (hh, q->shapes, shape, next) {
        HASH_DEL(q->shapes, shape);
        free(shape->key);
        free(shape);
    }
    free(q);
    c->jobs->queue = NULL;
    c->jobs->want_pass = NULL;
}
