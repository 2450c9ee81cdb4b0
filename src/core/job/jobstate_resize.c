/* A running gang that changes its size. The event brings a plan that was computed before
 * (core/planner/resize.h); it replaces the current plan at once, with the containers in the same
 * order. A container that leaves keeps its slot until it has ended. */
#include "core/job/jobstate_private.h"

#include "core/job/jobnodes.h"
#include "core/job/jobstate_step.h"
#include "core/planner/resize.h"

int64_t hl_jobrun_counted_ms(const struct hl_jobrun *run)
{
    return run->counted_ms > 0 ? run->counted_ms : run->placed_ms;
}

/* Call before the number of slots changes: adds up the slot time used so far. */
static void count_slots(struct hl_jobrun *run, int64_t now_ms)
{
    run->used_slot_ms += run->container_count * (now_ms - hl_jobrun_counted_ms(run));
    run->counted_ms = now_ms;
}

static void clear_out(struct step *s)
{
    for (int i = 0; i < s->run->container_count; i++)
        if (s->run->plan->containers[i].leaves)
            act_at(s, hl_jobrun_may_run(s->run, i) ? HL_JOB_DO_STOP : HL_JOB_DO_FREE, i);
}

static void adopt_plan(struct step *s)
{
    hl_plan_free(s->run->plan);
    s->run->plan = s->ev->plan;
    s->run->resized_ms = s->ev->now_ms;
}

static void guests_dismiss(struct step *s, const char *why)
{
    hl_plan_dismiss(s->run->plan);
    s->run->resized_ms = s->ev->now_ms;
    record(s, "growth-failed", "%s; the gang stays as it is", why);
    clear_out(s);
}

hl_status hl_jobrun_check_resize(struct hl_jobrun *run, const struct hl_job_event *ev)
{
    const struct hl_plan *plan = ev->plan;
    bool grows = ev->kind == HL_JOB_EV_GROW;
    if (plan == NULL && ev->kind == HL_JOB_EV_NODE_LOST)
        return HL_OK;
    if (plan == NULL || run->state != HL_API_JOB_STATE_RUNNING ||
        (grows ? plan->container_count <= run->container_count
               : plan->container_count != run->container_count))
        return hl_fail(HL_ECONFLICT, "job %s is %s and accepts no plan of another size", run->id,
                       hl_api_job_state_name(run->state));
    if (!grows)
        return HL_OK;
    size_t all = (size_t)plan->container_count, had = (size_t)run->container_count;
    struct hl_jobrun_container *list = realloc(run->containers, all * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu containers", all);
    run->containers = list;
    memset(list + had, 0, (all - had) * sizeof(*list));
    return HL_OK;
}

void hl_jobrun_go_on(struct step *s)
{
    struct hl_jobrun *run = s->run;
    int before = run->plan->world_size;
    adopt_plan(s);
    if (run->plan->world_size != before) {
        run->resizes++;
        record(s, "resized", "the gang goes on with %d of %d ranks", run->plan->world_size, before);
    }
    run->reason[0] = '\0';
    clear_out(s);
}

void hl_jobrun_on_grow(struct step *s)
{
    struct hl_jobrun *run = s->run;
    int had = run->container_count, more = s->ev->plan->container_count - had;
    count_slots(run, s->ev->now_ms);
    adopt_plan(s);
    run->container_count += more;
    for (int i = had; i < run->container_count; i++) {
        const struct hl_plan_container *c = &run->plan->containers[i];
        memcpy(run->containers[i].node, c->node, sizeof(c->node));
        run->containers[i].numa_id = c->numa_id;
        act_at(s, HL_JOB_DO_START, i);
    }
    bool joins = run->plan->containers[had].joining > 0;
    record(s, joins ? "growing" : "spare-added", "%d container%s start%s to %s", more,
           more == 1 ? "" : "s", more == 1 ? "s" : "",
           joins ? "join the gang" : "be parked in place of what was lost or missing");
}

void hl_jobrun_on_resized(struct step *s)
{
    int before = s->run->plan->world_size;
    adopt_plan(s);
    s->run->resizes++;
    record(s, "resized", "the gang goes on with %d ranks, it had %d", s->run->plan->world_size,
           before);
}

void hl_jobrun_on_dismiss(struct step *s)
{
    guests_dismiss(s, s->ev->text != NULL ? s->ev->text : "");
}

void hl_jobrun_on_freed(struct step *s)
{
    struct hl_jobrun *run = s->run;
    int at = s->ev->index;
    struct hl_jobrun_container *c = &run->containers[at];
    if (!run->plan->containers[at].leaves || hl_jobrun_may_run(run, at))
        return;
    count_slots(run, s->ev->now_ms);
    hl_plan_remove(run->plan, at);
    run->container_count--;
    memmove(c, c + 1, (size_t)(run->container_count - at) * sizeof(*c));
}

void hl_jobrun_judge_guest(struct step *s)
{
    int at = s->ev->index;
    char why[HL_JOB_TEXT_MAX];
    const struct hl_jobrun_container *c = &s->run->containers[at];
    if (hl_jobrun_may_run(s->run, at))
        return;
    if (s->run->plan->containers[at].leaves) {
        act_at(s, HL_JOB_DO_FREE, at);
        return;
    }
    snprintf(why, sizeof(why), "a container that was to join ended on %s%s%.120s", c->node,
             *c->message != '\0' ? ": " : "", c->message);
    guests_dismiss(s, why);
}

void hl_jobrun_resume_guest(const struct hl_jobrun *run, int position, struct hl_job_actions *out)
{
    const struct hl_jobrun_container *c = &run->containers[position];
    bool runs = hl_jobrun_may_run(run, position);
    if (run->state == HL_API_JOB_STATE_RUNNING && run->plan->containers[position].leaves)
        act_on(out, runs ? HL_JOB_DO_STOP : HL_JOB_DO_FREE, run->attempt,
               run->plan->containers[position].index, c->node);
}
