/* controller/copies/copy_task_private.h - brings one copy of a shard to a place, step by step.
 *
 * The source is the nearest good copy; if it fails, the next one. Some places take several steps:
 * device memory is reached through the host memory beside it, the archive through the pool.
 *
 * Owns:    a copy task lives from start to its `done`.
 * Threads: the Controller's loop.
 * Errors:  HL_ENOENT (no source), HL_EUNAVAIL (the node is away), or the last source's error.
 * Units:   ms.
 * Limits:  COPY_TASK_SOURCES_MAX sources are tried.
 */
#ifndef HL_CONTROLLER_COPIES_COPY_TASK_PRIVATE_H
#define HL_CONTROLLER_COPIES_COPY_TASK_PRIVATE_H

#include "controller/copies/copies.h"

#define COPY_TASK_SOURCES_MAX 32

struct copy_task_spec {
    struct hl_id id;
    struct place goal;
    enum hl_api_operation op;
    copies_brought
        done; /* called exactly once. HL_ECANCELED: the Controller is gone, so don't touch it */
    void *arg;
    uint64_t size_bytes; /* size, if the catalogue need not know the shard; 0: it must */
    uint32_t crc32;
    struct hl_id order;   /* id for copies_stop; none: it can't be stopped */
    uint64_t bytes_per_s; /* 0: no limit */
    bool gives_way;       /* as in copies_order */
};

hl_status copy_task_start(struct hl_controller *c, const struct copy_task_spec *spec) HL_CHECK;
/* A request with its source side filled in; it borrows `id` and data of the place. */
struct hl_api_copy_request copy_request_from(struct hl_controller *c, const char *id,
                                             const struct place *from);

#endif
