#include "core/job/fence.h"

#include <string.h>

#include "core/planner/plan.h"

static bool container_parse(const char *id, struct hl_fence_container *out)
{
    *out = (struct hl_fence_container){0};
    return hl_container_id_parse(id, out->job, sizeof(out->job), &out->attempt, &out->index) ==
           HL_OK;
}

static void epoch_begin(struct hl_fence *f, uint64_t epoch)
{
    if (epoch <= f->epoch)
        return;
    f->epoch = epoch;
    f->count = f->next = 0;
}

/* The record of this attempt, which can replace an older record; NULL = a later attempt has the
 * record. */
static struct hl_fence_container *record_of(struct hl_fence *f, const struct hl_fence_container *k)
{
    for (size_t i = 0; i < f->count; i++) {
        struct hl_fence_container *x = &f->containers[i];
        if (x->index != k->index || strcmp(x->job, k->job) != 0)
            continue;
        if (x->attempt > k->attempt)
            return NULL;
        if (x->attempt < k->attempt)
            *x = *k;
        return x;
    }
    struct hl_fence_container *x = &f->containers[f->next];
    f->next = (f->next + 1) % HL_FENCE_MAX;
    if (f->count < HL_FENCE_MAX)
        f->count++;
    *x = *k;
    return x;
}

static hl_status later_refused(const struct hl_fence *f, const struct hl_fence_container *k,
                               const char *id)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct hl_fence_container *x = &f->containers[i];
        if (strcmp(x->job, k->job) != 0 || x->attempt < k->attempt)
            continue;
        if (x->attempt > k->attempt)
            return hl_fail(HL_EPERM,
                           "the start of container %s comes too late: attempt %d of the job has "
                           "begun",
                           id, x->attempt);
        if (x->index == k->index && x->stopped)
            return hl_fail(HL_EPERM,
                           "the start of container %s comes too late: it has been stopped", id);
    }
    return HL_OK;
}

hl_status hl_fence_start(struct hl_fence *f, uint64_t epoch, const char *id)
{
    struct hl_fence_container k;
    epoch_begin(f, epoch);
    if (!container_parse(id, &k))
        return HL_OK;
    HL_TRY(later_refused(f, &k, id));
    (void)record_of(f, &k);
    return HL_OK;
}

void hl_fence_stop(struct hl_fence *f, uint64_t epoch, const char *id)
{
    struct hl_fence_container k;
    epoch_begin(f, epoch);
    if (!container_parse(id, &k))
        return;
    struct hl_fence_container *x = record_of(f, &k);
    if (x != NULL)
        x->stopped = true;
}

bool hl_fence_is_earlier(const char *other, const char *id)
{
    struct hl_fence_container a, b;
    return container_parse(other, &a) && container_parse(id, &b) && strcmp(a.job, b.job) == 0 &&
           a.attempt < b.attempt;
}
