/* The begin and the end of a run, and the numbers of its containers. */
#include "core/job/jobstate_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hl_job_state_ended(enum hl_api_job_state s)
{
    return s >= HL_API_JOB_STATE_SUCCEEDED;
}

int hl_jobrun_index(const struct hl_jobrun *run, int position)
{
    bool planned = run->plan != NULL && position < run->plan->container_count;
    return planned ? run->plan->containers[position].index : position;
}

hl_status hl_jobrun_init(struct hl_jobrun *run, const struct hl_jobrun_opts *opts)
{
    if (strlen(opts->id) > HL_JOB_ID_MAX)
        return hl_fail(HL_EINVAL, "job id '%.100s' is too long", opts->id);
    *run = (struct hl_jobrun){.state = HL_API_JOB_STATE_PENDING,
                              .attempt = 1,
                              .policy = opts->policy,
                              .max_restarts = opts->max_restarts,
                              .restart_lost = opts->restart_lost,
                              .start_timeout_ms = opts->start_timeout_ms,
                              .run_timeout_ms = opts->run_timeout_ms,
                              .stop_resend_ms = opts->stop_resend_ms};
    snprintf(run->id, sizeof(run->id), "%s", opts->id);
    return HL_OK;
}

void hl_jobrun_fini(struct hl_jobrun *run)
{
    hl_plan_free(run->plan);
    free(run->containers);
    *run = (struct hl_jobrun){0};
}
