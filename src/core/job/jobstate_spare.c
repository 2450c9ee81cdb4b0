/* Containers that are parked on other servers, and how a gang replaces containers that were lost
 * alone or with their server. */
#include "core/job/jobstate_private.h"

#include "core/job/jobstate_step.h"
#include "core/planner/resize.h"
#include "core/planner/spares.h"

bool hl_jobrun_has_ranks(const struct hl_jobrun *run, int index)
{
    return run->plan == NULL || run->plan->containers[index].rank_count > 0;
}

bool hl_jobrun_is_parked(const struct hl_jobrun *run, int index)
{
    return !hl_jobrun_has_ranks(run, index) && hl_plan_is_spare(&run->plan->containers[index]) &&
           !run->plan->containers[index].leaves;
}

bool hl_jobrun_took_place(const struct hl_jobrun *run, int index)
{
    return run->plan != NULL && hl_jobrun_has_ranks(run, index) &&
           hl_plan_is_spare(&run->plan->containers[index]);
}

int hl_jobrun_next_parked(const struct hl_jobrun *run, int at)
{
    while (at < run->container_count &&
           !(hl_jobrun_is_parked(run, at) &&
             run->containers[at].state == HL_API_CONTAINER_STATE_RUNNING))
        at++;
    return at < run->container_count ? at : -1;
}

int hl_jobrun_missing_spares(const struct hl_jobrun *run, int wanted)
{
    if (run->state != HL_API_JOB_STATE_RUNNING)
        return 0;
    for (int i = 0; i < run->container_count; i++)
        wanted -=
            hl_jobrun_is_parked(run, i) && run->containers[i].state != HL_API_CONTAINER_STATE_LOST;
    return wanted > 0 ? wanted : 0;
}

bool hl_jobrun_is_left_over(const struct hl_jobrun *run, int index)
{
    return run->state == HL_API_JOB_STATE_RUNNING &&
           run->containers[index].state == HL_API_CONTAINER_STATE_LOST &&
           !hl_jobrun_has_ranks(run, index) && !hl_plan_is_guest(&run->plan->containers[index]);
}

static bool is_lost(const struct hl_jobrun *run, int index)
{
    return hl_jobrun_has_ranks(run, index) &&
           run->containers[index].state == HL_API_CONTAINER_STATE_LOST;
}

/* At least as many parked containers are running as containers with ranks were lost. */
static bool spares_suffice(const struct hl_jobrun *run)
{
    int lost = 0, spare = -1;
    for (int i = 0; i < run->container_count; i++)
        lost += is_lost(run, i);
    if (lost > 0 && run->state != HL_API_JOB_STATE_RUNNING)
        return false;
    for (int i = 0; i < lost; i++)
        if ((spare = hl_jobrun_next_parked(run, spare + 1)) < 0)
            return false;
    return true;
}

/* A parked container takes over the lost one's ranks and is started again with them. */
static hl_status spare_takes(struct step *s, int lost, int spare)
{
    struct hl_jobrun *run = s->run;
    struct hl_jobrun_container *c = &run->containers[spare];
    HL_TRY(hl_plan_move_ranks(run->plan, lost, spare));
    c->state = HL_API_CONTAINER_STATE_WANTED;
    c->started_ms = c->confirmed_ms = 0;
    c->lost = run->containers[lost].lost;
    record(s, "spare-used", "container %d, parked on %s, takes the place of container %d",
           hl_jobrun_index(run, spare), c->node, hl_jobrun_index(run, lost));
    act_at(s, HL_JOB_DO_START, spare);
    return HL_OK;
}

bool hl_jobrun_spares_take_over(struct step *s)
{
    struct hl_jobrun *run = s->run;
    if (!spares_suffice(run))
        return false;
    for (int i = 0; i < run->container_count; i++)
        if (is_lost(run, i) && spare_takes(s, i, hl_jobrun_next_parked(run, 0)) != HL_OK)
            return false; /* out of memory: the whole gang restarts */
    run->reason[0] = '\0';
    return true;
}

/* Starts a new container in the slot of one that has left nothing behind. */
static void begin_again(struct step *s, int at)
{
    struct hl_jobrun_container *c = &s->run->containers[at];
    int before = hl_jobrun_index(s->run, at);
    s->run->plan->containers[at].index = s->run->plan->next_index++;
    c->state = HL_API_CONTAINER_STATE_WANTED;
    c->exit_code = c->signal = 0;
    c->failure = HL_API_FAILURE_KIND_UNSAID;
    c->message[0] = '\0';
    c->started_ms = c->confirmed_ms = c->finished_ms = 0;
    record(s, "container-replaced", "container %d takes the slot of container %d on %s",
           hl_jobrun_index(s->run, at), before, c->node);
    act_at(s, HL_JOB_DO_START, at);
}

/* NULL: the container can be replaced. */
static const char *why_it_stays_lost(const struct hl_jobrun *run, int at)
{
    if (run->state != HL_API_JOB_STATE_RUNNING)
        return "the gang was still starting";
    return run->containers[at].lost >= HL_JOB_CONTAINER_LOSSES_MAX
               ? "containers of these ranks were lost too often in this attempt"
               : NULL;
}

bool hl_jobrun_replace_lost(struct step *s)
{
    struct hl_jobrun *run = s->run;
    int at = s->ev->index;
    struct hl_jobrun_container *c = &run->containers[at];
    if (c->state != HL_API_CONTAINER_STATE_FAILED || c->failure != HL_API_FAILURE_KIND_LOST ||
        !run->policy.replaces || hl_plan_is_guest(&run->plan->containers[at]))
        return false;
    const char *why = why_it_stays_lost(run, at);
    if (why != NULL) {
        char text[2 * HL_JOB_TEXT_MAX];
        snprintf(text, sizeof(text), "%s; it is not replaced: %s", c->message, why);
        copy_text(c->message, sizeof(c->message), text);
        return false;
    }
    c->lost++;
    record(s, "container-lost", "container %d on %s was lost: %s", hl_jobrun_index(run, at),
           c->node, c->message);
    int spare = hl_jobrun_has_ranks(run, at) ? hl_jobrun_next_parked(run, 0) : -1;
    if (spare >= 0 && spare_takes(s, at, spare) == HL_OK) {
        hl_plan_leave(run->plan, at);
        act_at(s, HL_JOB_DO_FREE, at);
    } else {
        begin_again(s, at);
    }
    return true;
}
