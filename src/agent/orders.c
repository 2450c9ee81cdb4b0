/* A start asks the fence twice. A stop that arrives after the first question, but before the
 * executor has recorded the container, would not find it. In that case the second answer differs,
 * and the start itself stops the container.
 *
 *     worker of the start    fence --> executor records it --> fence
 *     worker of the stop               fence notes --> executor stops what it has */
#include "agent/orders.h"

#include <string.h>

#include "base/log.h"

/* Stops what runs here of attempts before that of `id`. *other: a container of another attempt of
 * the same job that still runs; NULL = there is none. */
static hl_status earlier_stop(struct orders *o, const struct hl_api_container_status_list *list,
                              const char *id, const char **other)
{
    *other = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct hl_api_container_status *k = &list->items[i];
        enum hl_run_state state;
        HL_TRY(hl_run_state_of(k->state, &state));
        if (hl_run_state_ended(state))
            continue;
        if (hl_fence_is_earlier(id, k->id))
            *other = k->id;
        if (!hl_fence_is_earlier(k->id, id))
            continue;
        hl_warn("container belongs to an attempt that is over and is stopped container=%s later=%s",
                k->id, id);
        HL_TRY(hl_executor_stop(o->executor, k->id, -1));
        *other = k->id;
    }
    return HL_OK;
}

hl_status orders_open(struct orders *o, struct obeyed *obeyed, struct hl_executor *executor)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list list;
    const char *other;
    o->obeyed = obeyed;
    o->executor = executor;
    HL_TRY(hl_executor_list(executor, &arena, &list));
    for (size_t i = 0; i < list.count; i++)
        HL_TRY(earlier_stop(o, &list, list.items[i].id, &other));
    return HL_OK;
}

void orders_fini(struct orders *o)
{
    pthread_mutex_destroy(&o->lock);
}

static hl_status fence_start(struct orders *o, const struct hl_container_spec *spec)
{
    pthread_mutex_lock(&o->lock);
    hl_status st = hl_fence_start(&o->fence, spec->epoch, spec->id);
    pthread_mutex_unlock(&o->lock);
    return st;
}

static void fence_stop(struct orders *o, uint64_t epoch, const char *id)
{
    pthread_mutex_lock(&o->lock);
    hl_fence_stop(&o->fence, epoch, id);
    pthread_mutex_unlock(&o->lock);
}

/* Checks that only this attempt of its job runs here. */
static hl_status attempt_alone(struct orders *o, const char *id)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list list;
    const char *other;
    HL_TRY(hl_executor_list(o->executor, &arena, &list));
    HL_TRY(earlier_stop(o, &list, id, &other));
    if (other == NULL)
        return HL_OK;
    return hl_fail(HL_EBUSY, "container %s does not start while %s runs here, of another attempt",
                   id, other);
}

hl_status orders_start(struct orders *o, const struct hl_container_spec *spec,
                       struct hl_container_status *out)
{
    HL_TRY(obeyed_hear(o->obeyed, "", spec->epoch));
    HL_TRY(fence_start(o, spec));
    HL_TRY(attempt_alone(o, spec->id));
    HL_TRY(hl_executor_start(o->executor, spec, out));
    hl_status st = fence_start(o, spec);
    if (st == HL_OK)
        return HL_OK;
    hl_container_status_fini(out);
    HL_TRY(hl_executor_stop(o->executor, spec->id, -1));
    return st;
}

hl_status orders_stop(struct orders *o, uint64_t epoch, const char *id, int grace_ms)
{
    HL_TRY(obeyed_hear(o->obeyed, "", epoch));
    fence_stop(o, epoch, id);
    return hl_executor_stop(o->executor, id, grace_ms);
}

hl_status orders_forget(struct orders *o, uint64_t epoch, const char *id)
{
    HL_TRY(obeyed_hear(o->obeyed, "", epoch));
    fence_stop(o, epoch, id);
    return hl_executor_forget(o->executor, id);
}

hl_status orders_list_strays(struct orders *o, const struct hl_api_agent_list_strays_params *p,
                             struct hl_arena *arena, struct hl_api_text_list *out)
{
    HL_TRY(obeyed_hear(o->obeyed, "", p->epoch));
    return hl_executor_list_strays(o->executor, p->state_directory, arena, out);
}

hl_status orders_end_strays(struct orders *o, const struct hl_api_agent_end_strays_params *p,
                            uint32_t *ended)
{
    HL_TRY(obeyed_hear(o->obeyed, "", p->epoch));
    *ended = 0;
    for (size_t i = 0; i < p->ids.count; i++) {
        bool ran;
        HL_TRY(hl_executor_end_stray(o->executor, p->state_directory, p->ids.items[i], &ran));
        if (ran)
            hl_warn("container of a silent Agent of this machine was ended id=%s", p->ids.items[i]);
        *ended += ran;
    }
    return HL_OK;
}
