/* Ends the process of one rank: the Controller has found that it blocks its gang. The container
 * then decides what follows, as for any rank that fails. */
#include <signal.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/log.h"
#include "os/file.h"
#include "os/process.h"

/* Checks that the process is still the rank's, according to its container's current record. */
static hl_status rank_is(struct hl_agent *a, const struct hl_api_agent_end_rank_params *p,
                         struct hl_arena *arena, bool *out)
{
    struct hl_api_container_status_list list;
    *out = false;
    HL_TRY(hl_executor_list(a->executor, arena, &list));
    for (size_t i = 0; i < list.count; i++) {
        if (strcmp(list.items[i].id, p->id) != 0)
            continue;
        for (size_t k = 0; k < list.items[i].ranks.count; k++) {
            const struct hl_api_rank_status *r = &list.items[i].ranks.items[k];
            *out |= r->rank == p->rank && r->pid == p->pid &&
                    r->state == HL_API_CONTAINER_STATE_RUNNING;
        }
        return HL_OK;
    }
    return hl_fail(HL_ENOENT, "node %s has no container %s", a->name, p->id);
}

/* The record is read again after the process was opened, because its pid may have been reused. */
hl_status rank_end(struct hl_agent *a, const struct hl_api_agent_end_rank_params *p,
                   struct hl_arena *arena, bool *ended)
{
    HL_AUTO(hl_closep) int pidfd = -1;
    struct hl_process process;
    bool is = false;
    *ended = false;
    if (strcmp(a->executor->ops->name, "process") != 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "node %s runs containers with %s, whose processes can't be ended one by one",
                       a->name, a->executor->ops->name);
    if (p->pid <= 0)
        return hl_fail(HL_EINVAL, "rank %d: a process has a number above 0, not %d", p->rank,
                       p->pid);
    HL_TRY(rank_is(a, p, arena, &is));
    if (!is || hl_process_identify(p->pid, &process) != HL_OK ||
        hl_process_open(process, &pidfd) != HL_OK)
        return HL_OK;
    HL_TRY(rank_is(a, p, arena, &is));
    if (!is || hl_process_signal(pidfd, SIGKILL) != HL_OK)
        return HL_OK;
    hl_warn("rank is ended as the Controller asks container=%s rank=%d pid=%d", p->id, p->rank,
            p->pid);
    *ended = true;
    return HL_OK;
}
