/* The test of this node. The first test runs while the node registers and serves what it holds;
 * until it has passed, the Controller gives the node no container. An Agent that finds running
 * containers skips it, so as not to slow them down. */
#include <stdio.h>
#include <string.h>

#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "os/file.h"

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

hl_status health_tell(struct hl_agent *a, struct hl_arena *arena, struct hl_api_health *out)
{
    struct agent_health *h = &a->health;
    pthread_mutex_lock(&h->lock);
    hl_status st = hl_api_copy(&hl_api_health_type, &h->last, arena, out);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* ---- the first test ---- */

static void on_tested(void *arg)
{
    struct hl_agent *a = arg;
    pthread_join(a->health.thread, NULL);
    a->pending--;
    a->health.tell(a);
}

/* A test that can't be run counts as failed: nothing else would report the problem. */
static void *test_first(void *arg)
{
    struct hl_agent *a = arg;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list containers;
    struct hl_api_health health;
    hl_status st = hl_executor_list(a->executor, &arena, &containers);
    if (st == HL_OK)
        st = health_test(a, !is_busy(&containers), &arena, &health);
    if (st != HL_OK) {
        hl_error("node could not be tested error=\"%s\"", hl_error_text());
        health = (struct hl_api_health){.time_ms = hl_wall_ms(),
                                        .state = HL_API_HEALTH_STATE_FAILED,
                                        .reason = hl_error_text()};
        if (health_keep(&a->health, &health) != HL_OK)
            hl_error("%s", hl_error_text());
    }
    hl_loop_post(a->loop, on_tested, a);
    return NULL;
}

hl_status health_begin(struct hl_agent *a, void (*tell)(struct hl_agent *a))
{
    if (!a->health.wanted)
        return HL_OK;
    a->health.tell = tell;
    a->health.last.state = HL_API_HEALTH_STATE_TESTING; /* no other thread runs yet */
    int rc = pthread_create(&a->health.thread, NULL, test_first, a);
    if (rc != 0)
        return hl_fail(hl_status_of_errno(rc), "thread that tests the node: %s", strerror(rc));
    a->pending++;
    return HL_OK;
}
