/* The state machine of a job. handlers[state][event] names the handler; an empty cell means that
 * the event has no effect in that state. A step first reserves room for all actions it can emit, so
 * that it does either all of its work or none. Statuses of other attempts never reach the table:
 * their only effect is to stop a container that belongs to no current attempt. */
#include "core/job/jobstate_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/jobstate_step.h"
#include "core/planner/resize.h"

typedef void (*handler)(struct step *s);

void hl_job_actions_fini(struct hl_job_actions *a)
{
    free(a->list);
    *a = (struct hl_job_actions){0};
}

static bool is_active(enum hl_api_container_state s)
{
    return s <= HL_API_CONTAINER_STATE_RUNNING;
}

int hl_jobrun_active(const struct hl_jobrun *run)
{
    int n = 0;
    for (int i = 0; i < run->container_count; i++)
        n += is_active(run->containers[i].state);
    return n;
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void release_containers(struct step *s)
{
    if (s->run->slots_held) {
        (void)actions_add(s->out, HL_JOB_DO_RELEASE, s->run->attempt);
        s->run->released_ms = s->ev->now_ms;
    }
    s->run->slots_held = false;
}

static void finish_job(struct step *s, enum hl_api_job_state state)
{
    struct hl_jobrun *run = s->run;
    release_containers(s);
    run->state = state;
    run->goal = HL_API_JOB_GOAL_NONE;
    run->deadline_ms = 0;
    run->finished_ms = s->ev->now_ms;
    record(s, hl_api_job_state_name(state), "%s",
           *run->reason != '\0' ? run->reason : hl_api_job_state_name(state));
}

static void restart_job(struct step *s)
{
    struct hl_jobrun *run = s->run;
    release_containers(s);
    run->state = HL_API_JOB_STATE_PENDING;
    run->goal = HL_API_JOB_GOAL_NONE;
    run->deadline_ms = 0;
    run->attempt++;
    copy_text(run->cause, sizeof(run->cause), run->reason);
    record(s, "restarting", "attempt %d, because %s", run->attempt, run->reason);
    run->deadline_ms = run->retry_ms > s->ev->now_ms ? run->retry_ms : 0;
    run->retry_ms = 0;
    if (run->deadline_ms == 0)
        (void)actions_add(s->out, HL_JOB_DO_PLACE, run->attempt);
    else
        record(s, "back-off", "attempt %d begins in %lld ms: the last ones made no new step",
               run->attempt, (long long)(run->deadline_ms - s->ev->now_ms));
}

/* While stopping: checks whether all containers have ended. */
static void stopped_yet(struct step *s)
{
    struct hl_jobrun *run = s->run;
    if (hl_jobrun_active(run) > 0)
        return;
    if (run->goal == HL_API_JOB_GOAL_RESTART)
        restart_job(s);
    else
        finish_job(s, run->goal == HL_API_JOB_GOAL_CANCEL    ? HL_API_JOB_STATE_CANCELLED
                      : run->goal == HL_API_JOB_GOAL_SUCCEED ? HL_API_JOB_STATE_SUCCEEDED
                                                             : HL_API_JOB_STATE_FAILED);
}

static void stop_active(struct step *s)
{
    struct hl_jobrun *run = s->run;
    for (int i = 0; i < run->container_count; i++)
        if (is_active(run->containers[i].state))
            act_at(s, HL_JOB_DO_STOP, i);
    run->deadline_ms = s->ev->now_ms + run->stop_resend_ms;
}

static void begin_stop(struct step *s, enum hl_api_job_goal goal)
{
    s->run->state = HL_API_JOB_STATE_STOPPING;
    s->run->goal = goal;
    stop_active(s);
    stopped_yet(s);
}

/* run->reason says what happened; decides whether another attempt follows. */
static void attempt_failed(struct step *s, enum hl_api_failure_kind kind, int code)
{
    struct hl_jobrun *run = s->run;
    if (hl_jobrun_tries_again(run, s->ev, kind, code)) {
        begin_stop(s, HL_API_JOB_GOAL_RESTART);
        return;
    }
    if (run->max_restarts > 0 &&
        hl_failure_rules_then(&run->policy.on_failure, kind, code) == HL_FAILURE_FAIL)
        set_reason(run, "%s; not repeated: onFailure ends the job after %s", run->reason,
                   hl_api_failure_kind_name(kind));
    begin_stop(s, HL_API_JOB_GOAL_FAIL);
}

/* ---- containers ----------------------------------------------------------------------------- */

static void describe_failure(struct step *s, int index)
{
    const struct hl_jobrun_container *c = &s->run->containers[index];
    char how[64];
    if (c->state == HL_API_CONTAINER_STATE_STOPPED)
        snprintf(how, sizeof(how), "was stopped from outside");
    else if (c->signal != 0)
        snprintf(how, sizeof(how), "was killed by signal %d", c->signal);
    else
        snprintf(how, sizeof(how), "failed with exit code %d", c->exit_code);
    set_reason(s->run, "container %d on %s %s%s%s", s->run->plan->containers[index].index, c->node,
               *c->message != '\0' && c->state == HL_API_CONTAINER_STATE_FAILED ? "failed: " : how,
               *c->message != '\0' && c->state != HL_API_CONTAINER_STATE_FAILED ? ": " : "",
               c->message);
    record(s, "container-failed", "%s", s->run->reason);
}

/* The sender of the end event can know more than the exit code and the signal. */
static enum hl_api_failure_kind failure_of(const struct hl_jobrun_container *c)
{
    if (c->failure != HL_API_FAILURE_KIND_UNSAID)
        return c->failure;
    const struct hl_exit end = {.code = c->exit_code, .signal = c->signal};
    enum hl_api_failure_kind kind = hl_exit_kind_of(&end);
    return kind != HL_API_FAILURE_KIND_UNSAID ? kind : HL_API_FAILURE_KIND_EXIT;
}

/* While starting or running: derives the job's state from its containers. */
static void judge_containers(struct step *s)
{
    struct hl_jobrun *run = s->run;
    int succeeded = 0, up = 0, gang = 0;
    for (int i = 0; i < run->container_count; i++) {
        enum hl_api_container_state st = run->containers[i].state;
        if (!hl_jobrun_has_ranks(run, i))
            continue;
        gang++;
        if (st == HL_API_CONTAINER_STATE_FAILED || st == HL_API_CONTAINER_STATE_STOPPED) {
            describe_failure(s, i);
            attempt_failed(s, failure_of(&run->containers[i]), run->containers[i].exit_code);
            return;
        }
        succeeded += st == HL_API_CONTAINER_STATE_SUCCEEDED;
        up += st == HL_API_CONTAINER_STATE_RUNNING || st == HL_API_CONTAINER_STATE_SUCCEEDED;
    }
    if (run->state == HL_API_JOB_STATE_STARTING && up == gang) {
        run->state = HL_API_JOB_STATE_RUNNING;
        run->failed.last_ms = s->ev->now_ms;
        run->deadline_ms = run->run_timeout_ms > 0 ? s->ev->now_ms + run->run_timeout_ms : 0;
        if (run->started_ms == 0)
            run->started_ms = s->ev->now_ms;
        run->reason[0] = '\0';
        record(s, "running", "all %d containers run", gang);
    }
    if (succeeded == gang && hl_jobrun_active(run) > 0)
        begin_stop(s, HL_API_JOB_GOAL_SUCCEED); /* parked containers have to end, too */
    else if (succeeded == gang)
        finish_job(s, HL_API_JOB_STATE_SUCCEEDED);
}

/* Takes over a status; states only move forward. A container that was given up with its node but
 * reports again counts as active, so that it is stopped before its job ends. */
static bool take_status(struct step *s)
{
    const struct hl_job_event *ev = s->ev;
    struct hl_jobrun_container *c = &s->run->containers[ev->index];
    bool back = c->state == HL_API_CONTAINER_STATE_LOST;
    bool left_over = hl_jobrun_is_left_over(s->run, ev->index);
    if (!is_active(c->state) && !back)
        return false;
    if (ev->container <= c->state && !back)
        return false;
    if (ev->is_parked && is_active(ev->container) && hl_jobrun_took_place(s->run, ev->index))
        return false; /* an old status, from before the container got ranks */
    if (ev->container == HL_API_CONTAINER_STATE_WANTED ||
        ev->container == HL_API_CONTAINER_STATE_LOST)
        return false;
    c->state = ev->container;
    c->exit_code = ev->exit_code;
    c->signal = ev->signal;
    c->failure = ev->failure;
    if (c->state == HL_API_CONTAINER_STATE_FAILED)
        c->failure = failure_of(c);
    copy_text(c->message, sizeof(c->message), ev->text != NULL ? ev->text : "");
    if (c->started_ms == 0)
        c->started_ms = c->confirmed_ms = ev->now_ms;
    if (!is_active(c->state))
        c->finished_ms = ev->now_ms;
    else if (back)
        act_at(s, HL_JOB_DO_STOP, ev->index);
    if (left_over)
        hl_plan_leave(s->run->plan, ev->index);
    return true;
}

/* The container ended in an unknown way. */
static void set_vanished(struct step *s)
{
    struct hl_jobrun_container *c = &s->run->containers[s->ev->index];
    c->state = HL_API_CONTAINER_STATE_FAILED;
    c->failure = HL_API_FAILURE_KIND_LOST;
    c->finished_ms = s->ev->now_ms;
    copy_text(c->message, sizeof(c->message), "it vanished from its node");
}

/* Number of active containers on the event's node. */
static int active_on_node(const struct step *s)
{
    int n = 0;
    for (int i = 0; i < s->run->container_count; i++) {
        const struct hl_jobrun_container *c = &s->run->containers[i];
        n += is_active(c->state) && strcmp(c->node, s->ev->node) == 0;
    }
    return n;
}

/* True if a rank of the attempt may have started its program. */
static bool has_begun(const struct hl_jobrun *run)
{
    for (int i = 0; i < run->container_count; i++)
        if (run->containers[i].state != HL_API_CONTAINER_STATE_WANTED)
            return true;
    return false;
}

/* Marks the containers of the lost node; returns how many were active. */
static int lose_node(struct step *s)
{
    int lost = 0;
    for (int i = 0; i < s->run->container_count; i++) {
        struct hl_jobrun_container *c = &s->run->containers[i];
        if (!is_active(c->state) || strcmp(c->node, s->ev->node) != 0)
            continue;
        c->state = HL_API_CONTAINER_STATE_LOST;
        c->finished_ms = s->ev->now_ms;
        lost++;
    }
    return lost;
}

/* ---- handlers ------------------------------------------------------------------------------- */

static void on_submitted(struct step *s)
{
    if (s->run->submitted_ms != 0)
        return;
    s->run->submitted_ms = s->ev->now_ms;
    record(s, "submitted", "job %s", s->run->id);
    (void)actions_add(s->out, HL_JOB_DO_PLACE, s->run->attempt);
}

static void on_slots(struct step *s)
{
    if (!hl_jobrun_backs_off(s->run, s->ev->now_ms))
        (void)actions_add(s->out, HL_JOB_DO_PLACE, s->run->attempt);
}

static void on_not_placed(struct step *s)
{
    const char *why = s->ev->text != NULL ? s->ev->text : "";
    char before[HL_JOB_TEXT_MAX];
    memcpy(before, s->run->reason, sizeof(before));
    set_reason(s->run, "%s", why);
    if (strcmp(before, s->run->reason) == 0)
        return;
    record(s, "waiting", "%s", why);
}

static void on_placed(struct step *s)
{
    struct hl_jobrun *run = s->run;
    run->state = HL_API_JOB_STATE_STARTING;
    run->reason[0] = '\0';
    run->slots_held = true;
    run->preemptor[0] = '\0';
    run->placed_ms = s->ev->now_ms;
    run->counted_ms = run->resized_ms = 0;
    run->resizes = 0;
    run->released_ms = 0;
    run->deadline_ms = run->start_timeout_ms > 0 ? s->ev->now_ms + run->start_timeout_ms : 0;
    record(s, "placed", "attempt %d: %d container%s, rank 0 on %s", run->attempt,
           run->container_count, run->container_count == 1 ? "" : "s", run->plan->master_node);
    for (int i = 0; i < run->container_count; i++)
        act_at(s, HL_JOB_DO_START, i);
}

static void judge_container(struct step *s)
{
    if (hl_plan_is_guest(&s->run->plan->containers[s->ev->index]))
        hl_jobrun_judge_guest(s);
    else
        judge_containers(s);
}

/* Reacts to a change of the state of the event's container. */
static void follow_container(struct step *s)
{
    const struct hl_jobrun_container *c = &s->run->containers[s->ev->index];
    if (hl_jobrun_replace_lost(s))
        return;
    if (hl_jobrun_is_parked(s->run, s->ev->index) && !is_active(c->state))
        record(s, "spare-lost", "parked container %d on %s has ended: %s",
               hl_jobrun_index(s->run, s->ev->index), c->node, c->message);
    judge_container(s);
}

static void on_status(struct step *s)
{
    if (take_status(s))
        follow_container(s);
}

static void on_status_stopping(struct step *s)
{
    if (take_status(s))
        stopped_yet(s);
}

/* Lists and answers to starts arrive over different channels, so a list is only believed if it
 * can't be older than the answer. */
static bool list_may_be_older(const struct step *s)
{
    const struct hl_jobrun_container *c = &s->run->containers[s->ev->index];
    return !s->ev->is_in_order && c->confirmed_ms > 0 &&
           s->ev->now_ms - c->confirmed_ms < HL_JOB_ABSENT_GRACE_MS;
}

static void on_absent(struct step *s)
{
    struct hl_jobrun_container *c = &s->run->containers[s->ev->index];
    bool leaves = s->run->plan->containers[s->ev->index].leaves;
    if (c->state == HL_API_CONTAINER_STATE_WANTED && !leaves) {
        act_at(s, HL_JOB_DO_START, s->ev->index);
        return;
    }
    if (hl_jobrun_is_left_over(s->run, s->ev->index)) {
        hl_plan_leave(s->run->plan, s->ev->index);
        act_at(s, HL_JOB_DO_FREE, s->ev->index);
        return;
    }
    if (!is_active(c->state) || list_may_be_older(s))
        return;
    set_vanished(s);
    follow_container(s);
}

static void on_absent_stopping(struct step *s)
{
    struct hl_jobrun_container *c = &s->run->containers[s->ev->index];
    if (!is_active(c->state) || list_may_be_older(s))
        return;
    c->state = HL_API_CONTAINER_STATE_STOPPED;
    c->finished_ms = s->ev->now_ms;
    stopped_yet(s);
}

static void on_node_silent(struct step *s)
{
    int n = active_on_node(s);
    if (n > 0)
        record(s, "node-silent", "node %s with %d of %d containers does not answer%s%s",
               s->ev->node, n, s->run->container_count, s->ev->text != NULL ? ": " : "",
               s->ev->text != NULL ? s->ev->text : "");
}

static void on_node_back(struct step *s)
{
    if (active_on_node(s) > 0)
        record(s, "node-back", "node %s answers again", s->ev->node);
}

static void on_node_lost(struct step *s)
{
    struct hl_jobrun *run = s->run;
    bool begun = has_begun(run);
    int lost = lose_node(s);
    if (lost == 0)
        return;
    set_reason(run, "node %s was lost with %d of %d containers%s%s", s->ev->node, lost,
               run->container_count, s->ev->text != NULL ? ": " : "",
               s->ev->text != NULL ? s->ev->text : "");
    record(s, "node-lost", "%s", run->reason);
    if (s->ev->plan == NULL && hl_jobrun_spares_take_over(s))
        return;
    (void)hl_jobrun_note_failure(run, s->ev, HL_API_FAILURE_KIND_LOST);
    if (s->ev->plan != NULL) {
        hl_jobrun_go_on(s);
        return;
    }
    run->node_losses++;
    if (begun && !run->restart_lost) {
        set_reason(run, "%s; not repeated (%s)", run->reason,
                   run->max_restarts > 0 ? "onNodeLost: fail"
                                         : "restarts: 0; onNodeLost: restart would repeat it");
        begin_stop(s, HL_API_JOB_GOAL_FAIL);
        return;
    }
    begin_stop(s, run->node_losses <= HL_JOB_NODE_LOSSES_MAX ? HL_API_JOB_GOAL_RESTART
                                                             : HL_API_JOB_GOAL_FAIL);
}

static void on_node_lost_stopping(struct step *s)
{
    if (lose_node(s) == 0)
        return;
    record(s, "node-lost", "node %s was lost while its containers were stopping%s%s", s->ev->node,
           s->ev->text != NULL ? ": " : "", s->ev->text != NULL ? s->ev->text : "");
    stopped_yet(s);
}

static void on_cancel_pending(struct step *s)
{
    set_reason(s->run, "%s", s->ev->text != NULL ? s->ev->text : "cancelled");
    finish_job(s, HL_API_JOB_STATE_CANCELLED);
}

static void on_cancel(struct step *s)
{
    set_reason(s->run, "%s", s->ev->text != NULL ? s->ev->text : "cancelled");
    record(s, "cancelling", "%s", s->run->reason);
    begin_stop(s, HL_API_JOB_GOAL_CANCEL);
}

/* As with every stop, the ranks get a grace period to save and exit. */
static void on_preempt(struct step *s)
{
    struct hl_jobrun *run = s->run;
    copy_text(run->preemptor, sizeof(run->preemptor), s->ev->preemptor);
    run->preemptor_attempt = s->ev->attempt;
    set_reason(run, "%s", s->ev->text);
    record(s, "preempted", "%s", run->reason);
    begin_stop(s, HL_API_JOB_GOAL_RESTART);
}

static void on_cancel_stopping(struct step *s)
{
    if (s->run->goal == HL_API_JOB_GOAL_CANCEL || s->run->goal == HL_API_JOB_GOAL_SUCCEED)
        return;
    set_reason(s->run, "%s", s->ev->text != NULL ? s->ev->text : "cancelled");
    record(s, "cancelling", "%s", s->run->reason);
    s->run->goal = HL_API_JOB_GOAL_CANCEL;
}

static bool is_due(const struct step *s)
{
    return s->run->deadline_ms > 0 && s->ev->now_ms >= s->run->deadline_ms;
}

static void on_timer_starting(struct step *s)
{
    if (!is_due(s))
        return;
    int up = 0;
    for (int i = 0; i < s->run->container_count; i++)
        up += s->run->containers[i].state >= HL_API_CONTAINER_STATE_RUNNING;
    set_reason(s->run, "only %d of %d containers started within %lld ms%s%s", up,
               s->run->container_count, (long long)s->run->start_timeout_ms,
               s->ev->text != NULL ? "; it waited: " : "", s->ev->text != NULL ? s->ev->text : "");
    record(s, "timeout", "%s", s->run->reason);
    attempt_failed(s, HL_API_FAILURE_KIND_LAUNCH, 0);
}

static void on_timer_running(struct step *s)
{
    if (!is_due(s))
        return;
    set_reason(s->run, "it ran longer than timeouts.run, %lld ms",
               (long long)s->run->run_timeout_ms);
    record(s, "timeout", "%s", s->run->reason);
    begin_stop(s, HL_API_JOB_GOAL_FAIL);
}

static void on_timer_pending(struct step *s)
{
    if (!is_due(s))
        return;
    s->run->deadline_ms = 0;
    (void)actions_add(s->out, HL_JOB_DO_PLACE, s->run->attempt);
}

static void on_timer_stopping(struct step *s)
{
    if (is_due(s))
        stop_active(s);
}

/* clang-format off */
static const handler handlers[HL_API_JOB_STATE_COUNT][HL_JOB_EV_COUNT] = {
    [HL_API_JOB_STATE_PENDING] = {
        [HL_JOB_EV_SUBMITTED] = on_submitted,
        [HL_JOB_EV_SLOTS] = on_slots,
        [HL_JOB_EV_PLACED] = on_placed,
        [HL_JOB_EV_NOT_PLACED] = on_not_placed,
        [HL_JOB_EV_CANCEL] = on_cancel_pending,
        [HL_JOB_EV_TIMER] = on_timer_pending,
    },
    [HL_API_JOB_STATE_STARTING] = {
        [HL_JOB_EV_CONTAINER] = on_status,
        [HL_JOB_EV_ABSENT] = on_absent,
        [HL_JOB_EV_NODE_SILENT] = on_node_silent,
        [HL_JOB_EV_NODE_BACK] = on_node_back,
        [HL_JOB_EV_NODE_LOST] = on_node_lost,
        [HL_JOB_EV_CANCEL] = on_cancel,
        [HL_JOB_EV_PREEMPT] = on_preempt,
        [HL_JOB_EV_TIMER] = on_timer_starting,
    },
    [HL_API_JOB_STATE_RUNNING] = {
        [HL_JOB_EV_CONTAINER] = on_status,
        [HL_JOB_EV_ABSENT] = on_absent,
        [HL_JOB_EV_NODE_SILENT] = on_node_silent,
        [HL_JOB_EV_NODE_BACK] = on_node_back,
        [HL_JOB_EV_NODE_LOST] = on_node_lost,
        [HL_JOB_EV_CANCEL] = on_cancel,
        [HL_JOB_EV_PREEMPT] = on_preempt,
        [HL_JOB_EV_TIMER] = on_timer_running,
        [HL_JOB_EV_GROW] = hl_jobrun_on_grow,
        [HL_JOB_EV_RESIZED] = hl_jobrun_on_resized,
        [HL_JOB_EV_DISMISS] = hl_jobrun_on_dismiss,
        [HL_JOB_EV_FREED] = hl_jobrun_on_freed,
    },
    [HL_API_JOB_STATE_STOPPING] = {
        [HL_JOB_EV_CONTAINER] = on_status_stopping,
        [HL_JOB_EV_ABSENT] = on_absent_stopping,
        [HL_JOB_EV_NODE_LOST] = on_node_lost_stopping,
        [HL_JOB_EV_CANCEL] = on_cancel_stopping,
        [HL_JOB_EV_TIMER] = on_timer_stopping,
        [HL_JOB_EV_FREED] = hl_jobrun_on_freed,
    },
};

/* clang-format on */

/* ---- the step ------------------------------------------------------------------------------- */

/* Handles a container status that has no meaning in this state; returns true if it did. */
static bool is_stale(struct step *s, struct hl_job_event *ev)
{
    const struct hl_jobrun *run = s->run;
    if (ev->kind != HL_JOB_EV_CONTAINER && ev->kind != HL_JOB_EV_ABSENT &&
        ev->kind != HL_JOB_EV_FREED)
        return false;
    int placed = run->state == HL_API_JOB_STATE_STARTING ||
                 run->state == HL_API_JOB_STATE_RUNNING || run->state == HL_API_JOB_STATE_STOPPING;
    int position =
        placed && ev->attempt == run->attempt ? hl_plan_position(run->plan, ev->index) : -1;
    if (position >= 0) {
        ev->index = position; /* the handlers use this index */
        return false;
    }
    if (ev->kind == HL_JOB_EV_CONTAINER && is_active(ev->container))
        act_on(s->out, HL_JOB_DO_STOP, ev->attempt, ev->index, ev->node != NULL ? ev->node : "");
    return true;
}

/* Does everything of PLACED that can fail, before anything is changed. */
static hl_status take_plan(struct hl_jobrun *run, struct hl_plan *plan)
{
    if (run->state != HL_API_JOB_STATE_PENDING || plan == NULL || !plan->feasible ||
        plan->container_count < 1)
        return hl_fail(HL_ECONFLICT, "job %s is %s and accepts no plan", run->id,
                       hl_api_job_state_name(run->state));
    struct hl_jobrun_container *list = calloc((size_t)plan->container_count, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %d containers", plan->container_count);
    for (int i = 0; i < plan->container_count; i++) {
        memcpy(list[i].node, plan->containers[i].node, sizeof(list[i].node));
        list[i].numa_id = plan->containers[i].numa_id;
    }
    if (run->released_ms > run->placed_ms)
        run->used_slot_ms += run->container_count * (run->released_ms - hl_jobrun_counted_ms(run));
    hl_plan_free(run->plan);
    free(run->containers);
    run->plan = plan;
    run->containers = list;
    run->container_count = plan->container_count;
    run->containers_attempt = run->attempt;
    return HL_OK;
}

/* An upper bound of a step's actions: a stop or start of each container, and a few records. */
static size_t actions_of(const struct hl_jobrun *run, const struct hl_job_event *ev)
{
    int n = run->container_count;
    if (ev != NULL && ev->plan != NULL && ev->plan->container_count > n)
        n = ev->plan->container_count;
    return (size_t)n + 8;
}

hl_status hl_jobrun_step(struct hl_jobrun *run, const struct hl_job_event *ev,
                         struct hl_job_actions *out)
{
    struct hl_job_event at = *ev;
    struct step s = {run, &at, out};
    HL_TRY(actions_reserve(out, actions_of(run, ev)));
    if (is_stale(&s, &at))
        return HL_OK;
    if (ev->kind == HL_JOB_EV_PLACED)
        HL_TRY(take_plan(run, ev->plan));
    if (ev->kind >= HL_JOB_EV_NODE_SILENT && ev->kind <= HL_JOB_EV_NODE_LOST && ev->node == NULL)
        return hl_fail(HL_EINVAL, "an event of a node needs its name");
    if (ev->kind == HL_JOB_EV_GROW || ev->kind == HL_JOB_EV_RESIZED ||
        ev->kind == HL_JOB_EV_NODE_LOST)
        HL_TRY(hl_jobrun_check_resize(run, ev));
    if (ev->kind == HL_JOB_EV_PREEMPT && (ev->preemptor == NULL || ev->text == NULL))
        return hl_fail(HL_EINVAL, "a preemption needs the job that comes instead, and why");
    if (handlers[run->state][ev->kind] != NULL)
        handlers[run->state][ev->kind](&s);
    return HL_OK;
}

hl_status hl_jobrun_resume(const struct hl_jobrun *run, struct hl_job_actions *out)
{
    HL_TRY(actions_reserve(out, actions_of(run, NULL)));
    if (run->state == HL_API_JOB_STATE_PENDING && run->deadline_ms == 0)
        (void)actions_add(out, HL_JOB_DO_PLACE, run->attempt);
    for (int i = 0; i < run->container_count; i++) {
        const struct hl_jobrun_container *c = &run->containers[i];
        int index = hl_jobrun_index(run, i);
        bool leaves = run->plan != NULL && run->plan->containers[i].leaves;
        int unconfirmed = c->state == HL_API_CONTAINER_STATE_WANTED ||
                          c->state == HL_API_CONTAINER_STATE_STARTING;
        if ((run->state == HL_API_JOB_STATE_STARTING || run->state == HL_API_JOB_STATE_RUNNING) &&
            unconfirmed && !leaves)
            act_on(out, HL_JOB_DO_START, run->attempt, index, c->node);
        if (run->state == HL_API_JOB_STATE_STOPPING && is_active(c->state))
            act_on(out, HL_JOB_DO_STOP, run->attempt, index, c->node);
        hl_jobrun_resume_guest(run, i, out);
    }
    return HL_OK;
}
