#include "core/job/gang.h"

enum hl_pod_turn hl_pod_judge(enum hl_api_container_state have, bool is_there,
                              enum hl_api_container_state pod)
{
    if (have > HL_API_CONTAINER_STATE_RUNNING)
        return HL_POD_SAME;
    if (!is_there)
        return have == HL_API_CONTAINER_STATE_WANTED ? HL_POD_SAME : HL_POD_GONE;
    if (pod == HL_API_CONTAINER_STATE_LOST)
        return HL_POD_LOST;
    if (pod == HL_API_CONTAINER_STATE_WANTED && have != HL_API_CONTAINER_STATE_WANTED)
        return HL_POD_REPLACED;
    return pod > have ? HL_POD_NEWS : HL_POD_SAME;
}

bool hl_gang_is_up(enum hl_api_job_state state)
{
    return state == HL_API_JOB_STATE_STARTING || state == HL_API_JOB_STATE_RUNNING;
}

bool hl_gang_goes(const struct hl_gang_attempt *a, const struct hl_jobrun *run)
{
    bool kept = hl_gang_is_up(run->state) || (run->state == HL_API_JOB_STATE_SUCCEEDED && !a->over);
    bool wanted = kept && a->attempt == run->attempt;
    return (a->there || a->created) && !wanted && !a->deleted;
}

bool hl_gang_has_ended(const struct hl_gang_attempt *a)
{
    return !a->there && (a->deleted || !a->created);
}

bool hl_gang_vanished(const struct hl_gang_attempt *a, const struct hl_jobrun *run, bool has_pods)
{
    bool was_there = a->made || run->state == HL_API_JOB_STATE_RUNNING;
    return hl_gang_is_up(run->state) && was_there && !a->there && !has_pods;
}

bool hl_gang_node_lost(const struct hl_gang_node *node, uint64_t after_ns, uint64_t now_ns)
{
    return node->silent && now_ns - node->since_ns >= after_ns;
}

enum hl_pod_end hl_gang_pod_end(const struct hl_gang_ending *e, uint64_t now_ns)
{
    uint64_t passed = now_ns - e->gone_ns;
    uint64_t force = e->node_lost ? 0 : e->grace_ns + HL_GANG_CONFIRM_NS;
    if (passed >= force + HL_GANG_CONFIRM_NS)
        return HL_POD_END_GIVE_UP;
    return passed >= force ? HL_POD_END_FORCE : HL_POD_END_WAIT;
}

bool hl_gang_trouble(uint64_t *since_ns, bool has_trouble, uint64_t now_ns)
{
    if (!has_trouble) {
        *since_ns = 0;
        return false;
    }
    if (*since_ns == 0)
        *since_ns = now_ns;
    if (now_ns - *since_ns < HL_GANG_TROUBLE_NS)
        return false;
    *since_ns = 0;
    return true;
}

static enum hl_gang_step gang_begin(const struct hl_gang_attempt *now,
                                    const struct hl_gang_done *done)
{
    if (!now->created && !now->there)
        return now->made ? HL_GANG_REST : HL_GANG_CREATE;
    if (!now->made)
        return HL_GANG_RECORD;
    return now->there && !done->maps_sent ? HL_GANG_PUT_MAPS : HL_GANG_REST;
}

enum hl_gang_step hl_gang_next(const struct hl_jobrun *run, const struct hl_gang_attempt *now,
                               const struct hl_gang_done *done)
{
    switch (run->state) {
    case HL_API_JOB_STATE_STARTING:
        return gang_begin(now, done);
    case HL_API_JOB_STATE_RUNNING:
        return done->table_is_ours && !done->table_sent ? HL_GANG_PUT_TABLE : HL_GANG_REST;
    case HL_API_JOB_STATE_SUCCEEDED:
        return done->logs_kept ? HL_GANG_REST : HL_GANG_KEEP_LOGS;
    default:
        return HL_GANG_REST;
    }
}
