/* The spec with which a container of the placed attempt is started. */
#include "api/api.h"
#include "controller/jobs/jobs_private.h"
#include "core/planner/resize.h"
#include "ranktable/plan.h"

/* The spec of a container that joins: its ranks are told the size that the gang will have with
 * them. */
static struct hl_api_container_spec joining_spec(const struct job *j, int index,
                                                 const struct hl_plan_spec_opts *opts,
                                                 struct hl_arena *arena)
{
    struct hl_job job = j->spec;
    struct hl_api_container_spec spec = {0};
    struct hl_plan *plan = NULL;
    if (hl_plan_copy(j->run.plan, &plan) != HL_OK)
        return spec;
    job.grid.dp = hl_plan_admit(plan, &j->spec);
    const struct hl_api_container_spec borrowed =
        hl_plan_container_spec(&job, plan, index, opts, arena);
    hl_status st = hl_api_copy(&hl_api_container_spec_type, &borrowed, arena, &spec);
    hl_plan_free(plan);
    return st == HL_OK ? spec : (struct hl_api_container_spec){0};
}

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
        .master_address = master_address(j),
        .master_port = master_port(j),
        .stop_grace_ms = j->spec.stop_grace_ms >= 0 ? j->spec.stop_grace_ms : c->opts.stop_grace_ms,
        .rank_table = HL_RANKTABLE_INITIALIZING,
    };
    struct hl_api_container_spec spec =
        j->run.plan->containers[index].joining > 0
            ? joining_spec(j, index, &opts, arena)
            : hl_plan_container_spec(&j->spec, j->run.plan, index, &opts, arena);
    if (images_pinned(j)[0] != '\0')
        spec.image = images_pinned(j);
    spec.epoch = c->claim.epoch;
    return spec;
}
