/* core/job/fence.h - which start of a container comes too late.
 *
 * A start may arrive after the order that has overtaken it: behind a stop of the same container, or
 * behind a start of a later attempt of its job. Such a container would hold the slot of another one
 * and nothing would wait for it, so a node refuses it.
 *
 * Owns:    nothing. Zero-initialised is right.
 * Threads: one owner at a time. Pure.
 * Errors:  HL_EPERM says which order came before.
 * Units:   none.
 * Limits:  the last HL_FENCE_MAX containers of the newest Controller: what an older one orders is
 *          refused by its epoch (core/migration/epoch.h).
 */
#ifndef HL_CORE_JOB_FENCE_H
#define HL_CORE_JOB_FENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "core/job/jobstate.h"

#define HL_FENCE_MAX 1024

struct hl_fence_container {
    char job[HL_JOB_ID_MAX + 1];
    int attempt, index;
    bool stopped;
};

struct hl_fence {
    uint64_t epoch;
    struct hl_fence_container containers[HL_FENCE_MAX];
    size_t count, next;
};

/* An order to start the container JOB.ATTEMPT.INDEX has come from the Controller of that epoch; one
 * of a newer epoch makes the fence forget. An id that is not of that form is never refused. */
hl_status hl_fence_start(struct hl_fence *f, uint64_t epoch, const char *id) HL_CHECK;
/* The same of an order to stop or to forget it: no start of it is obeyed from now on. */
void hl_fence_stop(struct hl_fence *f, uint64_t epoch, const char *id);

/* `other` is a container of the same job in an earlier attempt than that of `id`. */
bool hl_fence_is_earlier(const char *other, const char *id);

#endif
