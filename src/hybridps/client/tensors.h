/* hybridps/client/tensors.h - tensors by number: their chunk, place and state; which are in use.
 *
 * Owns:    names and tables; the chunks are the pool's.
 * Threads: one at a time.
 * Errors:  HL_EINVAL, HL_ENOENT, HL_EBUSY with the tensor's name and both states; HL_ENOMEM.
 *          A failed call changes nothing, except that it may leave chunks without tensors, which
 *          the next layout uses.
 * Units:   bytes.
 * Limits:  2^32 - 1 tensors.
 */
#ifndef HL_HYBRIDPS_CLIENT_TENSORS_H
#define HL_HYBRIDPS_CLIENT_TENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "hybridps/chunks/pool.h"

#define HL_TENSOR_ALIGN 64
#define HL_TENSOR_NONE  UINT32_MAX

struct hl_tensor {
    char *name;
    int kind, state;
    int where;      /* place of its use, while in COMPUTE */
    uint32_t pins;  /* unreleased accesses */
    uint32_t marks; /* within a call */
    uint32_t chunk; /* HL_TENSOR_NONE before the layout */
    uint64_t offset, bytes;
};

struct hl_tensor_chunk {
    int kind;
    uint64_t bytes, used;
    uint32_t live; /* tensors that are not FREE */
    uint8_t own;   /* holds one tensor that is longer than the chunk size */
};

struct hl_tensors {
    struct hl_tensor *list;
    struct hl_tensor_chunk *chunks;
    uint32_t count, cap, chunk_count, chunk_cap;
    uint32_t placed; /* number of tensors laid out */
};

const char *hl_tensor_state_name(int state);

void hl_tensors_fini(struct hl_tensors *t);
hl_status hl_tensors_add(struct hl_tensors *t, const char *name, int kind, uint64_t bytes,
                         uint32_t *tensor) HL_CHECK;
/* Places new tensors by the rule of layout.h, in the pool's chunks of `chunk_bytes`, including
 * older chunks; 0: in chunks of the size that wastes least, at most `most`. */
hl_status hl_tensors_layout(struct hl_tensors *t, struct hl_chunk_pool *pool, uint64_t chunk_bytes,
                            uint64_t most) HL_CHECK;

/* Checks that an access is possible: the tensors are known, laid out, and not in use in the other
 * place. */
hl_status hl_tensors_check_access(struct hl_tensors *t, const hybridps_use *uses,
                                  size_t n) HL_CHECK;
/* Checks that each tensor is in COMPUTE as many times as it is named, and may change to `state`. */
hl_status hl_tensors_check_release(struct hl_tensors *t, const uint32_t *tensors, size_t n,
                                   int state) HL_CHECK;
/* Checks that none is in COMPUTE. */
hl_status hl_tensors_check_drop(const struct hl_tensors *t, const uint32_t *tensors,
                                size_t n) HL_CHECK;

#endif
