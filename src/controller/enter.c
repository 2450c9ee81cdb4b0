/* Begins and ends every call: checks the clocks before anything is judged by them, and keeps the
 * Controller alive while it waits for answers. */
#include <inttypes.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/core.h"

#define PAUSE_TOLD_NS (2 * HL_NS_PER_S)

void call_reject(struct hl_rpc_call *call, hl_status st)
{
    hl_rpc_reject(call, st, NULL);
}

/* Shifts open deadlines and ages by the gap. */
static void shift_by(struct hl_controller *c, const struct hl_listening_gap *gap)
{
    if (c->clocks_shifted != NULL)
        c->clocks_shifted(c, (int64_t)(gap->paused_ns / HL_NS_PER_MS), gap->stepped_ms);
    hl_catalog_shift(&c->catalog, gap->stepped_ms);
}

void controller_check_clocks(struct hl_controller *c)
{
    struct hl_listening_gap gap = hl_listening_check(&c->listening, hl_now_ns(), hl_wall_ms());
    if (gap.paused_ns >= PAUSE_TOLD_NS)
        hl_warn("the Controller was paused, which does not count as silence of others ms=%" PRIu64,
                gap.paused_ns / HL_NS_PER_MS);
    if (gap.stepped_ms != 0)
        hl_warn(
            "the wall clock was set; this does not change ages and deadlines stepped_ms=%" PRId64,
            gap.stepped_ms);
    if (gap.paused_ns > 0 || gap.stepped_ms != 0)
        shift_by(c, &gap);
}

struct hl_controller *controller_enter(void *arg)
{
    controller_check_clocks(arg);
    return arg;
}

enum hl_job_executor controller_agents_kind(const struct hl_controller *c)
{
    const char *name = c->opts.executor != NULL ? c->opts.executor : "";
    if (strcmp(name, "docker") == 0)
        return HL_JOB_EXECUTOR_DOCKER;
    return strcmp(name, "podman") == 0 ? HL_JOB_EXECUTOR_PODMAN : HL_JOB_EXECUTOR_PROCESS;
}

int64_t controller_steady_ms(const struct hl_controller *c)
{
    return hl_listening_steady_ms(&c->listening, hl_now_ns());
}

void controller_release(struct hl_controller *c)
{
    if (--c->refs == 0)
        c->destroy(c);
}

bool controller_stopped(struct hl_controller *c)
{
    bool closing = c->closing;
    if (!closing)
        controller_check_clocks(c);
    controller_release(c);
    return closing;
}

const char *hl_controller_address(const struct hl_controller *c)
{
    return hl_rpc_server_address(c->server);
}
