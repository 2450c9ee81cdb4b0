/* controller/copies/copy_task_private.h - one copy of a shard, brought to a place step by step.
 *
 * The nearest good copy is the source; when it fails the next one is. A place that one step does
 * not reach is reached in several: device memory through the host memory beside it, the archive
 * through the pool.
 *
 * Owns:    a copy task lives from start to its `done`.
 * Threads: the Controller's loop.
 * Errors:  HL_ENOENT (no source), HL_EUNAVAIL (the node is away), and what the last source said.
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
        done; /* exactly once. HL_ECANCELED: the Controller is gone, touch nothing of it */
    void *arg;
    uint64_t size_bytes; /* of a shard that the catalogue need not know; 0: it has to */
    uint32_t crc32;
    struct hl_id order;   /* copies_stop knows it by that; none: it is never stopped */
    uint64_t bytes_per_s; /* 0: no limit */
    bool gives_way;       /* as copies_order's */
};

hl_status copy_task_start(struct hl_controller *c, const struct copy_task_spec *spec) HL_CHECK;
/* With its source side filled; it borrows `id` and what is known of the place. */
struct hl_api_copy_request copy_request_from(struct hl_controller *c, const char *id,
                                             const struct place *from);

#endif
