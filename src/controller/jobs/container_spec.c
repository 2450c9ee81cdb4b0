/* What a container of the attempt that is placed is started with. */
#include "controller/jobs/jobs_private.h"
#include "ranktable/plan.h"

struct hl_api_container_spec job_container_spec(const struct job *j, int index,
                                                struct hl_arena *arena)
{
    const struct hl_controller *c = j->controller;
    struct hl_plan_spec_opts opts = {
        .job_id = j->id,
        .attempt = j->run.attempt,
        .controller_address = hl_rpc_server_address(c->server),
        .l3_address = hl_arena_printf(arena, "tcp://%s", c->opts.l3_address),
        .model_version = j->load_version,
        .master_port = master_port(j),
        .stop_grace_ms = j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : c->opts.stop_grace_ms,
        .rank_table = HL_RANKTABLE_INITIALIZING,
    };
    struct hl_api_container_spec spec =
        hl_plan_container_spec(&j->spec, j->run.plan, index, &opts, arena);
    if (images_pinned(j)[0] != '\0')
        spec.image = images_pinned(j);
    spec.epoch = c->claim.epoch;
    return spec;
}
