/* core/job/fence.h - rejects orders to start a container that arrive too late.
 *
 * A start order can be overtaken: by a stop of the same container, or by a start of a later attempt
 * of its job. If the node obeyed it afterwards, the container would occupy a slot that now belongs
 * to another one, and no job would wait for it. So the node refuses such a start.
 *
 * Owns:    nothing. Zero-initialised is right.
 * Threads: one owner at a time. Pure.
 * Errors:  HL_EPERM says which order overtook it.
 * Units:   none.
 * Limits:  remembers the last HL_FENCE_MAX containers of the newest Controller; orders of an older
 *          Controller are refused because of their epoch (core/migration/epoch.h).
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

/* Checks an order to start the container JOB.ATTEMPT.INDEX from the Controller of that epoch. A
 * newer epoch makes the fence forget all containers. An id of another form is never refused. */
hl_status hl_fence_start(struct hl_fence *f, uint64_t epoch, const char *id) HL_CHECK;
/* Notes an order to stop or to forget the container: from now on every start of it is refused. */
void hl_fence_stop(struct hl_fence *f, uint64_t epoch, const char *id);

/* `other` is a container of the same job in an earlier attempt than that of `id`. */
bool hl_fence_is_earlier(const char *other, const char *id);

#endif
