/* hybridps/client/tensors.h - tensors by number: their chunk, place and state; which are in use.
 *
 * Owns:    names and tables; the chunks are the pool's.
 * Threads: one at a time.
 * Errors:  HL_EINVAL, HL_ENOENT, HL_EBUSY with the tensor's name and both states; HL_ENOMEM.
 *          Nothing is changed by a failing call (but chunks without tensors may be left, which the
 *          next layout uses).
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
    int where;      /* of its use, while in COMPUTE */
    uint32_t pins;  /* accesses not released */
    uint32_t marks; /* within a call */
    uint32_t chunk; /* HL_TENSOR_NONE before the layout */
    uint64_t offset, bytes;
};

struct hl_tensor_chunk {
    int kind;
    uint64_t bytes, used;
    uint32_t live; /* tensors that are not FREE */
    uint8_t own;   /* of one tensor, longer than chunks are */
};

struct hl_tensors {
    struct hl_tensor *list;
    struct hl_tensor_chunk *chunks;
    uint32_t count, cap, chunk_count, chunk_cap;
    uint32_t placed; /* tensors that were laid out */
};

const char *hl_tensor_state_name(int state);

void hl_tensors_fini(struct hl_tensors *t);
hl_status hl_tensors_add(struct hl_tensors *t, const char *name, int kind, uint64_t bytes,
                         uint32_t *tensor) HL_CHECK;
/* Places new tensors by the rule of layout.h, also into older chunks, in chunks of the pool of
 * `chunk_bytes`; 0: of the size that wastes least, at most `most`. */
hl_status hl_tensors_layout(struct hl_tensors *t, struct hl_chunk_pool *pool, uint64_t chunk_bytes,
                            uint64_t most) HL_CHECK;

/* Whether an access may be: known, laid out, not in use in the other place. */
hl_status hl_tensors_check_access(struct hl_tensors *t, const hybridps_use *uses,
                                  size_t n) HL_CHECK;
/* Whether each is in COMPUTE as often as it is named, and may go to `state`. */
hl_status hl_tensors_check_release(struct hl_tensors *t, const uint32_t *tensors, size_t n,
                                   int state) HL_CHECK;
/* Whether none is in COMPUTE. */
hl_status hl_tensors_check_drop(const struct hl_tensors *t, const uint32_t *tensors,
                                size_t n) HL_CHECK;

#endif
