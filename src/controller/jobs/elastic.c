/* Elastic jobs (core/job/elastic.h). The queue treats such a gang as one of its minimum size. When
 * it starts, it gets the largest size that fits into the slots left over after every waiting job
 * had its turn. So no job waits longer because of it, and slots reserved for others stay reserved.
 */
#include <limits.h>
#include <stdlib.h>

#include "controller/jobs/queue.h"
#include "core/job/elastic.h"

void elastic_begin(struct job *j)
{
    free(j->elastic.asked);
    free(j->elastic.lost);
    j->elastic = (struct job_elastic){0};
}

void elastic_follow(struct job *j)
{
    const struct hl_plan *plan = j->run.plan;
    if (!hl_job_is_elastic(&j->spec))
        return;
    if (plan == NULL || j->run.state == HL_API_JOB_STATE_PENDING)
        hl_job_set_size(&j->spec, hl_job_size_from(&j->spec, 1));
    else
        hl_job_set_size(&j->spec, plan->world_size / hl_job_replica_ranks(&j->spec));
}

int elastic_rank_of(const struct hl_plan_container *c, int known_as)
{
    for (int k = 0; k < c->rank_count; k++)
        if (c->ranks[k].known_as == known_as)
            return c->ranks[k].rank;
    return -1;
}

int elastic_rank_told(const struct job *j, const char *container, int known_as)
{
    char id[HL_JOB_ID_MAX + 1];
    int attempt, index, at = -1;
    if (known_as >= 0 && container != NULL &&
        hl_container_id_parse(container, id, sizeof(id), &attempt, &index) == HL_OK)
        at = job_position(j, index);
    int rank = at >= 0 ? elastic_rank_of(&j->run.plan->containers[at], known_as) : -1;
    return rank >= 0 ? rank : known_as;
}

struct hl_plan *elastic_plan(struct hl_controller *c, const struct elastic_want *w)
{
    struct hl_plan *plan = NULL;
    hl_status st = w->executor->plan(c, w->spec, w->id, w->attempt, &plan);
    if (st == HL_OK && plan->feasible && plan->container_count <= w->most_slots)
        return plan;
    hl_plan_free(plan);
    hl_error_clear();
    return NULL;
}

void elastic_enlarge(struct hl_controller *c, const struct elastic_want *w, struct hl_plan **io)
{
    int low = w->spec->grid.dp, high = hl_job_size_up_to(w->spec, INT_MAX);
    while (low < high) {
        int size = hl_job_size_from(w->spec, low + (high - low + 1) / 2);
        hl_job_set_size(w->spec, size);
        struct hl_plan *plan = elastic_plan(c, w);
        if (plan != NULL) {
            hl_plan_free(*io);
            *io = plan;
            low = size;
        } else {
            high = hl_job_size_up_to(w->spec, low + (high - low + 1) / 2 - 1);
        }
    }
    hl_job_set_size(w->spec, low);
}

int elastic_quota_left(const struct hl_controller *c, const struct hl_job *spec, int used)
{
    if (c->jobs->queue == NULL)
        return INT_MAX;
    const struct hl_queues *queues = &c->jobs->queue->queues;
    int q = hl_queues_find(queues, spec->queue);
    int quota = q >= 0 ? queues->list[q].quota : 0;
    return quota > 0 ? quota - used : INT_MAX;
}

void elastic_enlarge_started(struct hl_controller *c, struct job *j, int used, struct hl_plan **io)
{
    const struct elastic_want want = {.spec = &j->spec,
                                      .executor = j->executor,
                                      .id = j->id,
                                      .attempt = j->run.attempt,
                                      .most_slots = elastic_quota_left(c, &j->spec, used)};
    hl_plan_mark(*io, nodes_cluster(c), false);
    elastic_enlarge(c, &want, io);
    hl_plan_mark(*io, nodes_cluster(c), true);
}
