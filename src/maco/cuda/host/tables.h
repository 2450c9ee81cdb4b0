/* maco/cuda/host/tables.h - turns a compiled plan into the tables that the persistent kernel reads:
 * one image to copy to the device, and the kernel's argument for it. Pure.
 *
 * Owns:    the image, until hl_cuda_tables_free.
 * Threads: none of its own.
 * Errors:  HL_EUNSUPPORTED: a task that a GPU can't do, or joins nested too deep; HL_EINVAL: a task
 *          of a missing group, or lists for another number of workers; HL_ENOMEM.
 * Units:   bytes; offsets into the image.
 * Limits:  HL_GPU_GROUPS groups, HL_GPU_JOINS levels of joins.
 */
#ifndef HL_MACO_CUDA_HOST_TABLES_H
#define HL_MACO_CUDA_HOST_TABLES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "maco/cuda/device/abi.h"

struct hl_cuda_shape {
    uint32_t workers, ring, groups;
    int trace;
    const struct hl_gpu_peers *peers; /* n_peers groups that communicate inside the kernel */
    uint32_t n_peers, peer_ctas;
};

struct hl_cuda_tables {
    void *image;
    size_t size;
    /* clang-format off */
    size_t tasks, events, ready, lines, list, first_of_list, rings, taken, affine, first_of_affine,
        affine_queued, spans, order, comm, first_of_comm, comm_done, peers, peer_comm,
        first_of_peer_comm, arrived;
    /* clang-format on */
    uint32_t n_affine;     /* tasks with an affinity, MACO_DIRECT */
    uint32_t noted;        /* tasks that a traced run records */
    struct hl_gpu_run run; /* with NULL for device pointers */
};

hl_status hl_cuda_tables_make(const maco_plan *p, const struct hl_cuda_shape *shape,
                              struct hl_cuda_tables *out) HL_CHECK;
void hl_cuda_tables_free(struct hl_cuda_tables *t);
/* The kernel's argument for an image that lies at `base`. */
struct hl_gpu_run hl_cuda_tables_at(const struct hl_cuda_tables *t, uint64_t base);
/* Whether the group is one of the n that communicate inside the kernel. */
bool hl_gpu_has_peers(const struct hl_gpu_peers *peers, uint32_t n, uint32_t group);

#endif
