#include "hw/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "hw/engine/engine.h"

#define GPUS_MAX 256
#define MIB      (UINT64_C(1) << 20)

static const char *slurm_variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

bool hl_slurm_inside(void)
{
    return slurm_variable("SLURM_JOB_ID") != NULL && slurm_variable("SLURM_STEP_ID") != NULL &&
           slurm_variable("SLURMD_NODENAME") != NULL;
}

void hl_slurm_node_name(char *out, size_t size)
{
    const char *node = slurm_variable("SLURMD_NODENAME"), *task = slurm_variable("SLURM_LOCALID");
    if (task != NULL && strcmp(task, "0") != 0)
        snprintf(out, size, "%s.%s", node != NULL ? node : "", task);
    else
        snprintf(out, size, "%s", node != NULL ? node : "");
}

/* ---- CPUs ---- */

static uint64_t number_of(const char *name)
{
    uint64_t n = 0;
    const char *text = slurm_variable(name);
    if (text == NULL || hl_scan_number(text, UINT32_MAX, &n) == NULL)
        return 0;
    return n;
}

static uint64_t cpus_of(const struct hl_topo *topo)
{
    uint64_t n = 0;
    for (size_t i = 0; i < topo->slot_count; i++)
        n += (uint64_t)hl_cpus_count(&topo->slots[i].cpus);
    return n;
}

/* Slurm says how many CPUs the job has on this node; any beyond that belong to other jobs. */
static hl_status check_binding(const struct hl_topo *topo)
{
    uint64_t given = number_of("SLURM_CPUS_ON_NODE"), bound = cpus_of(topo);
    if (given == 0)
        return hl_fail(HL_EINVAL,
                       "Slurm does not say how many CPUs job %s has on this node "
                       "(SLURM_CPUS_ON_NODE): start helios-agent by srun",
                       slurm_variable("SLURM_JOB_ID"));
    if (bound <= given)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "Slurm gives job %s %llu CPUs of this node and binds helios-agent to none of "
                   "them (%llu are allowed), so that it would use those of others; set TaskPlugin="
                   "task/affinity or task/cgroup with ConstrainCores=yes in slurm.conf, and start "
                   "helios-agent by srun --cpu-bind=cores",
                   slurm_variable("SLURM_JOB_ID"), (unsigned long long)given,
                   (unsigned long long)bound);
}

/* ---- GPUs ---- */

/* Whether the list, as "0,2-3", contains the number. Slurm does not use prefixes as in "gpu:0-1"
 * here. */
static bool list_has(const char *list, uint64_t number)
{
    for (const char *p = list; p != NULL && *p != '\0'; p += *p == ',') {
        uint64_t from, to;
        const char *end = hl_scan_number(p, UINT32_MAX, &from);
        if (end == NULL)
            return false;
        to = from;
        if (*end == '-' && (end = hl_scan_number(end + 1, UINT32_MAX, &to)) == NULL)
            return false;
        if (number >= from && number <= to)
            return true;
        p = end + strcspn(end, ",");
    }
    return false;
}

/* By UUID in CUDA_VISIBLE_DEVICES if a site's prolog sets it so, otherwise by the numbers of the
 * step's or the job's GRES. A job without GRES has none of the machine's GPUs. */
static hl_status gpu_is_ours(const char *root, const char *pci, bool *out)
{
    const char *visible = slurm_variable("CUDA_VISIBLE_DEVICES");
    const char *numbers = slurm_variable("SLURM_STEP_GPUS");
    struct hl_engine_gpu gpu;
    if (numbers == NULL)
        numbers = slurm_variable("SLURM_JOB_GPUS");
    *out = false;
    if (numbers == NULL && (visible == NULL || strstr(visible, "GPU-") == NULL))
        return HL_OK;
    HL_TRY(hl_engine_read_gpu(root, pci, &gpu));
    if (visible != NULL && strstr(visible, "GPU-") != NULL)
        *out = strstr(visible, gpu.uuid) != NULL;
    else if (gpu.minor >= 0)
        *out = list_has(numbers, (uint64_t)gpu.minor);
    return HL_OK;
}

static hl_status keep_gpus(const char *root, struct hl_topo_slot *slot)
{
    size_t kept = 0;
    for (size_t i = 0; i < slot->gpu_count; i++) {
        bool ours;
        HL_TRY(gpu_is_ours(root, slot->gpus[i].pci, &ours));
        if (ours)
            slot->gpus[kept++] = slot->gpus[i];
    }
    slot->gpu_count = kept;
    return HL_OK;
}

/* ---- memory ---- */

/* 0: Slurm does not limit the memory. */
static uint64_t memory_of(uint64_t cpus)
{
    uint64_t node = number_of("SLURM_MEM_PER_NODE"), cpu = number_of("SLURM_MEM_PER_CPU");
    return node > 0 ? node * MIB : cpu * cpus * MIB;
}

hl_status hl_slurm_keep(const char *gpus, struct hl_topo *io)
{
    uint64_t cpus = cpus_of(io), memory = memory_of(cpus);
    HL_TRY(check_binding(io));
    for (size_t i = 0; i < io->slot_count; i++) {
        struct hl_topo_slot *slot = &io->slots[i];
        uint64_t share = memory / cpus * (uint64_t)hl_cpus_count(&slot->cpus);
        HL_TRY(keep_gpus(gpus, slot));
        if (memory > 0 && share < slot->memory_bytes)
            slot->memory_bytes = share;
    }
    return HL_OK;
}
