/* Finds or adds up the load that nodes report: of a slot, a container or a job. */
#include <string.h>

#include "cli/cluster/top.h"

const struct hl_api_slot_load *top_slot_load(const struct hl_api_telemetry *t, int numa_id)
{
    for (size_t i = 0; i < t->slots.count; i++)
        if (t->slots.items[i].numa_id == numa_id)
            return &t->slots.items[i];
    return NULL;
}

const struct hl_api_container_load *top_container_load(const struct hl_api_telemetry *t,
                                                       const char *id)
{
    for (size_t i = 0; i < t->containers.count; i++)
        if (strcmp(t->containers.items[i].id, id) == 0)
            return &t->containers.items[i];
    return NULL;
}

static bool slot_has(const struct hl_api_slot *slot, const char *pci)
{
    for (size_t i = 0; i < slot->gpus.count; i++)
        if (strcmp(slot->gpus.items[i].id, pci) == 0)
            return true;
    return false;
}

double top_gpu_percent(const struct hl_api_telemetry *t, const struct hl_api_slot *slot)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < t->gpus.count; i++) {
        if (slot != NULL && !slot_has(slot, t->gpus.items[i].id))
            continue;
        sum += t->gpus.items[i].busy_percent;
        n++;
    }
    return n > 0 ? sum / (double)n : 0;
}

/* JOB.ATTEMPT.INDEX */
static bool is_of_job(const char *container, const char *job)
{
    size_t len = strlen(job);
    return strncmp(container, job, len) == 0 && container[len] == '.';
}

struct top_use top_job_use(const struct hl_api_node_state_list *nodes, const char *job)
{
    struct top_use use = {0};
    for (size_t i = 0; i < nodes->count; i++) {
        const struct hl_api_container_load_list *list = &nodes->items[i].telemetry.containers;
        for (size_t k = 0; k < list->count; k++) {
            if (!is_of_job(list->items[k].id, job))
                continue;
            use.cpu_percent += list->items[k].cpu_percent;
            use.memory_bytes += list->items[k].memory_bytes;
        }
    }
    return use;
}
