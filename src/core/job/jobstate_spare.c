/* Containers that are parked on other servers, and what becomes of them when one is lost. */
#include "core/job/jobstate_private.h"
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

bool hl_jobrun_spares_suffice(const struct hl_jobrun *run)
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

hl_status hl_jobrun_take_spare(struct hl_jobrun *run, int *lost, int *spare)
{
    int from = 0;
    while (from < run->container_count && !is_lost(run, from))
        from++;
    int to = from < run->container_count ? hl_jobrun_next_parked(run, 0) : -1;
    if (to < 0) {
        *lost = *spare = -1;
        return HL_OK;
    }
    HL_TRY(hl_plan_move_ranks(run->plan, from, to));
    struct hl_jobrun_container *c = &run->containers[to];
    c->state = HL_API_CONTAINER_STATE_WANTED; /* with its ranks it is started once more */
    c->started_ms = c->confirmed_ms = 0;
    *lost = from;
    *spare = to;
    return HL_OK;
}
