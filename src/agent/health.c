/* The test of this node. The first one comes before the first registration, so that a node which
 * fails gets no container in between; an Agent that finds running containers does not slow them
 * down by it. */
#include <stdio.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/log.h"

hl_status health_init(struct hl_agent *a, const struct hl_agent_opts *opts)
{
    struct hl_api_slot_list *slots = hl_arena_alloc(&a->arena, sizeof(*slots));
    a->health.wanted = opts->health;
    if (slots == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the Agent");
    *slots = a->node.slots;
    a->health.opts = (struct hl_health_opts){
        .slots = slots,
        .foreign_topology = opts->foreign_topology,
        .memory_least = opts->health_memory,
        .log_dir = hl_arena_strdup(&a->arena, opts->state_dir),
        .log_free_bytes = opts->log_free_bytes,
        .sys = "/sys",
        .script = hl_arena_strdup(&a->arena, opts->health_script),
        .deadline_ms = opts->health_deadline_ms,
    };
    return hl_arena_failed(&a->arena) ? hl_fail(HL_ENOMEM, "out of memory allocating the Agent")
                                      : HL_OK;
}

void health_fini(struct hl_agent *a)
{
    hl_arena_fini(&a->health.arena);
    pthread_mutex_destroy(&a->health.lock);
}

static hl_status health_keep(struct agent_health *h, const struct hl_api_health *now)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_health kept;
    HL_TRY(hl_api_copy(&hl_api_health_type, now, &arena, &kept));
    pthread_mutex_lock(&h->lock);
    hl_arena_fini(&h->arena);
    hl_arena_move(&h->arena, &arena);
    h->last = kept;
    pthread_mutex_unlock(&h->lock);
    return HL_OK;
}

hl_status health_test(struct hl_agent *a, bool whole, struct hl_arena *arena,
                      struct hl_api_health *out)
{
    struct hl_health_opts opts = a->health.opts;
    opts.busy = !whole;
    HL_TRY(hl_health_test(&opts, arena, out));
    if (out->state == HL_API_HEALTH_STATE_FAILED)
        hl_warn("node failed its test why=\"%s\"", out->reason);
    else
        hl_info("node passed its test took_ms=%d", out->took_ms);
    return health_keep(&a->health, out);
}

static bool is_busy(const struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++)
        if (containers->items[i].state <= HL_API_CONTAINER_STATE_RUNNING)
            return true;
    return false;
}

hl_status health_tell(struct hl_agent *a, const struct hl_api_container_status_list *containers,
                      struct hl_arena *arena, struct hl_api_health *out)
{
    struct agent_health *h = &a->health;
    pthread_mutex_lock(&h->lock);
    bool first = h->wanted && h->last.time_ms == 0;
    hl_status st = first ? HL_OK : hl_api_copy(&hl_api_health_type, &h->last, arena, out);
    pthread_mutex_unlock(&h->lock);
    return first ? health_test(a, !is_busy(containers), arena, out) : st;
}
