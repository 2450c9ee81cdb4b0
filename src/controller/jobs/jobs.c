/* Jobs: every event goes through the pure state machine, the result is written to the store, and
 * only then the actions are carried out (save.c). They are idempotent: after a crash, or when
 * the store refused a write, hl_jobrun_resume says them again. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/controller_private.h"
#include "ranktable/plan.h"

/* Context of a call to an Agent: the job may be gone when the answer comes. */
struct container_call {
    struct hl_controller *c;
    char job[HL_JOB_ID_MAX + 1];
    int attempt;
    int index;
    char node[HL_NODE_NAME_MAX + 1];
};

void job_free(struct job *j)
{
    if (j == NULL)
        return;
    hl_job_fini(&j->spec);
    hl_jobrun_fini(&j->run);
    hl_job_actions_fini(&j->actions);
    json_decref(j->doc);
    json_decref(j->events);
    json_decref(j->saved);
    json_decref(j->saving);
    free(j->starting);
    free(j->told);
    free(j->table);
    free(j);
}

void jobs_fini(struct hl_controller *c)
{
    struct job *j, *next;
    HASH_ITER (hh, c->jobs, j, next) {
        HASH_DEL(c->jobs, j);
        job_free(j);
    }
}

/* ---- placing ----------------------------------------------------------------------------------
 */

/* All ranks of an attempt load the same version: it is fixed when the gang is placed. */
static hl_status choose_version(struct job *j)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    j->load_version = -1;
    if (j->spec.model[0] == '\0' ||
        hl_catalog_model(&j->controller->catalog, j->spec.model, &m) != HL_OK)
        return HL_OK; /* a job may bring its own model */
    HL_TRY(hl_catalog_version(m, j->spec.model_version, &v));
    /* A restarted job goes on from what it wrote, also when it was pinned to an older version. */
    for (struct hl_version_rec *w = m->versions; w != NULL && w != v; w = w->next) {
        if (w->state == HL_VERSION_VISIBLE && hl_version_whole(w) && strcmp(w->job, j->id) == 0) {
            v = w;
            break;
        }
    }
    char why[160];
    if (v->state == HL_VERSION_VISIBLE &&
        !hl_version_whole(v)) /* some of the ranks could not load */
        return hl_fail(HL_ENOENT, "version %" PRId64 " of model '%s' can't be loaded: %s",
                       v->number, m->name, hl_version_trouble(v, why, sizeof(why)));
    j->load_version = v->number;
    return HL_OK;
}

static hl_status gang_plan(const struct job *j, struct hl_plan **out)
{
    const struct gangs *g = j->controller->gangs;
    return g != NULL ? gangs_plan(g, &j->spec, j->id, j->run.attempt, out)
                     : hl_fail(HL_EUNAVAIL, "it was submitted to Kubernetes: start "
                                            "helios-controller with --executor kubernetes");
}

static void place(struct job *j)
{
    struct hl_plan *plan = NULL;
    struct hl_controller *c = j->controller;
    hl_status st = choose_version(j);
    if (st == HL_OK)
        st = j->gang.id[0] != '\0' ? gang_plan(j, &plan)
                                   : hl_plan_make(&j->spec, &c->cluster, &plan);
    if (st != HL_OK || !plan->feasible) {
        char why[HL_JOB_TEXT_MAX];
        snprintf(why, sizeof(why), "%s", st != HL_OK ? hl_error_text() : plan->reason);
        hl_plan_free(plan);
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NOT_PLACED, .text = why});
        return;
    }
    free(j->starting);
    j->starting = calloc((size_t)plan->container_count + 1, 1);
    if (rank_tables_reset(j, plan->container_count) != HL_OK)
        hl_warn("%s", hl_error_text());
    hl_plan_mark(plan, &c->cluster, 1);
    j->marked = 1;
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_PLACED, .plan = plan});
    if (j->run.plan != plan) { /* refused: not taken over */
        hl_plan_mark(plan, &c->cluster, 0);
        j->marked = 0;
        hl_plan_free(plan);
    }
}

/* ---- containers -------------------------------------------------------------------------------
 */

static struct container_call *call_new(struct job *j, const struct hl_job_action *a)
{
    struct container_call *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return NULL;
    k->c = j->controller;
    k->attempt = a->attempt;
    k->index = a->index;
    memcpy(k->job, j->id, sizeof(k->job));
    memcpy(k->node, a->node, sizeof(k->node));
    return k;
}

static void container_event(struct job *j, const char *node, int attempt, int index,
                            const struct hl_api_container_status *status)
{
    struct hl_job_event ev = {
        .kind = HL_JOB_EV_CONTAINER,
        .attempt = attempt,
        .index = index,
        .node = node,
        .text = status->message,
        .exit_code = status->exit_code,
        .signal = status->signal,
        .container = (enum hl_container_state)status->state,
    };
    job_event(j, &ev);
}

static void on_started(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_start_container_results *r)
{
    struct container_call *k = arg;
    struct job *j;
    if (controller_landed(k->c)) {
        free(k);
        return;
    }
    HASH_FIND_STR(k->c->jobs, k->job, j);
    if (j != NULL && j->run.attempt == k->attempt && k->index < j->run.container_count) {
        j->starting[k->index] = 0;
        if (st == HL_OK) {
            struct node *n = node_find(k->c, k->node);
            if (n != NULL)
                node_container(n, &r->status); /* pids are known as soon as the job runs */
            container_event(j, k->node, k->attempt, k->index, &r->status);
        } else if (!hl_status_retryable(st)) {
            const struct hl_api_container_status failed = {.state = HL_API_CONTAINER_STATE_FAILED,
                                                           .message = text};
            container_event(j, k->node, k->attempt, k->index, &failed);
        } else {
            hl_warn("container start is tried again job=%s index=%d node=%s error=\"%s\"", j->id,
                    k->index, k->node, text);
        }
    }
    free(k);
}

struct hl_api_container_spec job_container_spec(const struct job *j, int index,
                                                struct hl_arena *arena)
{
    const struct hl_controller *c = j->controller;
    struct hl_plan_spec_opts opts = {
        .job_id = j->id,
        .attempt = j->run.attempt,
        .controller_address = hl_rpc_server_address(c->server),
        .l3_address = hl_arena_printf(arena, "tcp://%s", c->opts.l3_address),
        .model_version = j->load_version,
        .master_port = master_port(j),
        .stop_grace_ms = j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : c->opts.stop_grace_ms,
        .rank_table = HL_RANKTABLE_INITIALIZING,
    };
    return hl_plan_container_spec(&j->spec, j->run.plan, index, &opts, arena);
}

static void start_container(struct job *j, const struct hl_job_action *a)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, a->node);
    if (n == NULL || j->starting == NULL || j->starting[a->index] || !master_port_ready(j))
        return;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_agent_start_container_params p = {
        .spec = job_container_spec(j, a->index, &arena)};
    struct container_call *k = call_new(j, a);
    if (hl_arena_failed(&arena) || k == NULL) {
        free(k);
        return; /* the next tick tries again */
    }
    j->starting[a->index] = 1;
    controller_hold(c);
    hl_call_agent_start_container_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                        on_started, k);
}

/* A stop that failed is sent again by the job's timer, or when the Agent next reports the stray. */
static void on_stopped(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_stop_container_results *r)
{
    (void)r;
    if (!controller_landed(arg) && st != HL_OK)
        hl_warn("container was not stopped error=\"%s\"", text);
}

static void stop_by_id(struct hl_controller *c, struct node *n, const char *id, int64_t grace_ms)
{
    const struct hl_api_agent_stop_container_params p = {.id = id, .grace_ms = (int32_t)grace_ms};
    controller_hold(c);
    hl_call_agent_stop_container_async(n->agent, &p, c->opts.rpc_timeout_ms, c->opts.loop,
                                       on_stopped, c);
}

static void stop_container(struct job *j, const struct hl_job_action *a)
{
    struct hl_controller *c = j->controller;
    struct node *n = node_find(c, a->node);
    char id[HL_JOB_ID_MAX + 24];
    if (n != NULL)
        stop_by_id(c, n, hl_container_id(j->id, a->attempt, a->index, id, sizeof(id)),
                   j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : c->opts.stop_grace_ms);
}

/* What ended attempts held: their slots, and the versions they did not complete. */
static void release(struct job *j)
{
    int ended = hl_job_state_ended(j->run.state);
    if (j->marked) {
        hl_plan_mark(j->run.plan, &j->controller->cluster, 0);
        j->marked = 0;
        j->controller->slots_changed = 1;
    }
    drop_open_versions(j->controller, j->id, ended ? INT_MAX : j->run.attempt);
}

/* A gang on Kubernetes is made and deleted as a whole: whatever is to be done, gangs_keep does. */
static int on_kubernetes(const struct job *j)
{
    return j->controller->gangs != NULL && j->gang.id[0] != '\0';
}

void job_carry_out(struct job *j, const struct hl_job_actions *actions)
{
    int want_place = 0, away = on_kubernetes(j);
    for (size_t i = 0; i < actions->count; i++) {
        const struct hl_job_action *a = &actions->list[i];
        switch (a->kind) {
        case HL_JOB_DO_START:
            if (!away)
                start_container(j, a);
            break;
        case HL_JOB_DO_STOP:
            if (!away)
                stop_container(j, a);
            break;
        case HL_JOB_DO_RELEASE:
            release(j);
            break;
        case HL_JOB_DO_PLACE:
            want_place = 1; /* last: it may change the run these actions speak of */
            break;
        case HL_JOB_DO_RECORD:
            break;
        }
    }
    if (away)
        gangs_keep(j);
    if (want_place)
        place(j);
}

/* ---- events from outside ----------------------------------------------------------------------
 */

/* A container that no job wants: of a forgotten job or of an attempt that is over. */
static void stop_stray(struct hl_controller *c, struct node *n,
                       const struct hl_api_container_status *status)
{
    if (status->state != HL_API_CONTAINER_STATE_RUNNING &&
        status->state != HL_API_CONTAINER_STATE_STARTING)
        return;
    hl_warn("container is not wanted and is stopped container=%s node=%s", status->id, n->name);
    stop_by_id(c, n, status->id, c->opts.stop_grace_ms);
}

static bool node_has(const struct hl_api_container_status_list *containers, const char *id)
{
    for (size_t i = 0; i < containers->count; i++)
        if (strcmp(containers->items[i].id, id) == 0)
            return true;
    return false;
}

/* Containers the Agent once confirmed and now doesn't list are gone; while the job stops, so are
 * those whose start failed. */
static void find_absent(struct job *j, struct node *n,
                        const struct hl_api_container_status_list *containers)
{
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        char id[HL_JOB_ID_MAX + 24];
        int confirmed = k->state == HL_CONTAINER_STARTING || k->state == HL_CONTAINER_RUNNING;
        int given_up = k->state == HL_CONTAINER_WANTED && j->run.state == HL_JOB_STOPPING &&
                       (j->starting == NULL || !j->starting[i]);
        if ((!confirmed && !given_up) || strcmp(k->node, n->name) != 0 ||
            node_has(containers, hl_container_id(j->id, j->run.attempt, i, id, sizeof(id))))
            continue;
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_ABSENT,
                                            .attempt = j->run.attempt,
                                            .index = i,
                                            .node = n->name});
    }
}

void jobs_containers(struct hl_controller *c, struct node *n,
                     const struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++) {
        const struct hl_api_container_status *status = &containers->items[i];
        char job_id[HL_JOB_ID_MAX + 1];
        int attempt, index;
        struct job *j = NULL;
        bool named =
            hl_container_id_parse(status->id, job_id, sizeof(job_id), &attempt, &index) == HL_OK;
        if (named)
            HASH_FIND_STR(c->jobs, job_id, j);
        if (j == NULL && named && job_is_damaged(c, job_id))
            continue;
        if (j == NULL || attempt != j->run.attempt || hl_job_state_ended(j->run.state))
            stop_stray(c, n, status);
        if (j != NULL)
            container_event(j, n->name, attempt, index, status);
    }
    struct job *j, *next;
    HASH_ITER (hh, c->jobs, j, next) {
        if (!hl_job_state_ended(j->run.state))
            find_absent(j, n, containers);
    }
}

/* True when the node's Agent has said that a rank of this attempt began there. */
static bool has_begun_on(const struct job *j, const char *node)
{
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        if (k->state != HL_CONTAINER_WANTED && strcmp(k->node, node) == 0)
            return true;
    }
    return false;
}

int64_t job_patience_ms(const struct job *j, const char *node)
{
    const struct hl_controller_opts *opts = &j->controller->opts;
    int64_t ms = j->spec.node_lost_ms >= 0 ? j->spec.node_lost_ms : opts->lost_after_ms;
    /* There is nothing to save in a gang that is being stopped, or where none has begun. */
    if (j->run.state == HL_JOB_STOPPING || !has_begun_on(j, node) || ms < opts->node_lost_ms)
        return opts->node_lost_ms;
    return ms;
}

void jobs_node_silent(struct hl_controller *c, struct node *n)
{
    struct job *j, *next;
    HASH_ITER (hh, c->jobs, j, next) {
        char text[96], limit[32];
        if (hl_job_state_ended(j->run.state) || j->gang.id[0] != '\0')
            continue;
        snprintf(
            text, sizeof(text), "its ranks may run on; it is lost after %s of silence",
            hl_format_duration_ms((uint64_t)job_patience_ms(j, n->name), limit, sizeof(limit)));
        job_event(j, &(struct hl_job_event){
                         .kind = HL_JOB_EV_NODE_SILENT, .node = n->name, .text = text});
    }
}

void jobs_node_back(struct hl_controller *c, struct node *n)
{
    struct job *j, *next;
    HASH_ITER (hh, c->jobs, j, next) {
        if (!hl_job_state_ended(j->run.state) && j->gang.id[0] == '\0')
            job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NODE_BACK, .node = n->name});
    }
}

/* Give up the first node that has been silent for longer than the job waits. The others follow
 * with the next ticks. */
static void give_up_silent_node(struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++) {
        const struct hl_jobrun_container *k = &j->run.containers[i];
        char text[64], silence[32], name[HL_NODE_NAME_MAX + 1];
        if (k->state > HL_CONTAINER_RUNNING)
            continue;
        const struct node *n = node_find(j->controller, k->node);
        if (n == NULL || !n->lost || node_silent_ms(n) < job_patience_ms(j, n->name))
            continue;
        memcpy(name, k->node, sizeof(name));
        snprintf(text, sizeof(text), "silent for %s",
                 hl_format_duration_ms((uint64_t)node_silent_ms(n), silence, sizeof(silence)));
        job_event(j,
                  &(struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = name, .text = text});
        return;
    }
}

void jobs_start_wanted(struct job *j)
{
    if (j->run.state != HL_JOB_STARTING || on_kubernetes(j))
        return;
    for (int i = 0; i < j->run.container_count && j->run.state == HL_JOB_STARTING; i++) {
        if (j->run.containers[i].state != HL_CONTAINER_WANTED)
            continue;
        struct hl_job_action a = {.kind = HL_JOB_DO_START, .attempt = j->run.attempt, .index = i};
        memcpy(a.node, j->run.containers[i].node, sizeof(a.node));
        start_container(j, &a);
    }
}

void job_resume(struct job *j)
{
    struct hl_job_actions actions = {0};
    if (!j->run.slots_held)
        release(j);
    if (hl_jobrun_resume(&j->run, &actions) == HL_OK)
        job_carry_out(j, &actions);
    else
        hl_error("job can't go on job=%s error=\"%s\"", j->id, hl_error_text());
    hl_job_actions_fini(&actions);
}

static void job_tick(struct job *j, bool slots_changed)
{
    bool wants_slots = slots_changed && j->run.state == HL_JOB_PENDING;
    if (j->saving != NULL) {
        j->behind |= wants_slots; /* it is placed again once the store has it */
        return;
    }
    if (j->unsaved) {
        job_save(j);
        return;
    }
    if (wants_slots)
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_SLOTS});
    if (j->gang.id[0] == '\0')
        give_up_silent_node(j);
    if (hl_wall_ms() >= hl_jobrun_next_ms(&j->run))
        job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_TIMER});
    if (!job_is_saved(j))
        return;
    jobs_start_wanted(j);
    rank_tables_tell(j);
}

void jobs_tick(struct hl_controller *c)
{
    bool slots_changed = c->slots_changed;
    c->slots_changed = 0;
    struct job *j, *next;
    HASH_ITER (hh, c->jobs, j, next) {
        if (!hl_job_state_ended(j->run.state) || !job_is_saved(j))
            job_tick(j, slots_changed);
    }
}

/* ---- submit and load --------------------------------------------------------------------------
 */

hl_status job_submit(struct hl_controller *c, struct job *j, struct hl_rpc_call *call,
                     job_reply reply)
{
    int64_t seq = c->job_seq + 1;
    j->controller = c;
    j->seq = seq;
    j->load_version = -1;
    snprintf(j->id, sizeof(j->id), "%s-%" PRId64, j->spec.name, seq);
    json_object_set_new(j->doc, "seq", json_integer((json_int_t)seq));
    j->events = json_array();
    /* Kubernetes queues a gang after we have placed it: only the user's own limit counts then. */
    int64_t start_ms = c->gangs != NULL ? 0 : c->opts.start_timeout_ms;
    if (c->gangs != NULL) {
        memcpy(j->gang.id, hl_id_format(hl_id_random()).s, sizeof(j->gang.id));
        json_object_set_new(j->doc, "gang", json_string(j->gang.id));
    }
    struct hl_jobrun_opts opts = {
        .id = j->id,
        .max_restarts = j->spec.restarts,
        .restart_lost = hl_job_restarts_lost(&j->spec),
        .start_timeout_ms = j->spec.start_timeout_ms >= 0 ? j->spec.start_timeout_ms : start_ms,
        .run_timeout_ms = j->spec.run_timeout_ms,
        .stop_resend_ms = c->opts.stop_resend_ms,
    };
    HL_TRY(hl_jobrun_init(&j->run, &opts));
    c->job_seq = seq;
    HASH_ADD_STR(c->jobs, id, j);
    job_wait(j, call, reply);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_SUBMITTED});
    return HL_OK;
}

static hl_status job_restore(struct job *j, const json_t *value)
{
    j->doc = json_incref(json_object_get(value, "doc"));
    j->saved = json_incref((json_t *)value);
    j->events = json_copy(json_object_get(value, "events"));
    j->load_version = hl_json_int(value, "loadVersion", -1);
    j->seq = hl_json_int(j->doc, "seq", 0);
    snprintf(j->gang.id, sizeof(j->gang.id), "%s", hl_json_str(j->doc, "gang", ""));
    if (!json_is_object(j->doc) || !json_is_array(j->events))
        return hl_fail(HL_ECORRUPT, "job record without doc or events");
    HL_TRY(hl_job_parse(json_object_get(j->doc, "spec"), NULL, &j->spec));
    HL_TRY(hl_jobrun_from_json(json_object_get(value, "run"), &j->run));
    memcpy(j->id, j->run.id, sizeof(j->id));
    int64_t now = controller_steady_ms(j->controller); /* the wall clock, at a start */
    j->ended_steady_ms = j->run.finished_ms < now ? j->run.finished_ms : now;
    j->port = (int)hl_json_int(value, "port", 0);
    j->port_attempt = (int)hl_json_int(value, "portAttempt", j->run.attempt);
    j->starting = calloc((size_t)j->run.container_count + 1, 1);
    return rank_tables_reset(j, j->run.container_count);
}

hl_status jobs_load(struct hl_controller *c, const json_t *value)
{
    struct job *j = calloc(1, sizeof(*j));
    if (j == NULL)
        return hl_fail(HL_ENOMEM, "job record");
    j->controller = c;
    hl_status st = job_restore(j, value);
    if (st != HL_OK) {
        job_free(j);
        return hl_fail_prefix(st, "stored job: ");
    }
    if (j->seq > c->job_seq)
        c->job_seq = j->seq;
    HASH_ADD_STR(c->jobs, id, j);
    return HL_OK;
}

static int by_seq(const struct job *a, const struct job *b)
{
    return a->seq < b->seq ? -1 : a->seq > b->seq;
}

void jobs_resume(struct hl_controller *c)
{
    HASH_SORT(c->jobs, by_seq);
    for (struct job *j = c->jobs; j != NULL; j = j->hh.next)
        if (j->run.slots_held && j->run.plan != NULL) {
            hl_plan_mark(j->run.plan, &c->cluster, 1);
            j->marked = 1;
        }
    for (struct job *j = c->jobs; j != NULL; j = j->hh.next)
        job_resume(j); /* an ended one too: it may hold versions yet */
}
