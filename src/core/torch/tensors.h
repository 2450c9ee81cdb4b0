/* core/torch/tensors.h - the tensors of a state dict that torch.save wrote.
 *
 * The walk starts at any value. A tensor's name is its path, "model.decoder.weight": dictionaries
 * add their keys, lists their indices. Tensors, parameters and their wrappers are recognised by the
 * names of the functions that would rebuild them. Any other object is skipped if it contains no
 * storage. One with a storage would become a tensor if it were executed, so it is refused.
 *
 * Owns:    hl_torch_tensors owns names and table (hl_torch_tensors_fini); it no longer needs the
 *          pickle.
 * Threads: any; pure.
 * Errors:  HL_EINVAL and HL_EUNSUPPORTED name the tensor and the class or the number that is wrong.
 * Units:   bytes, except strides, which are in elements.
 * Limits:  2^18 tensors of 8 dimensions, names of 511 bytes, depth 64, 2^22 steps.
 */
#ifndef HL_CORE_TORCH_TENSORS_H
#define HL_CORE_TORCH_TENSORS_H

#include "base/arena.h"
#include "core/safetensors/safetensors.h"
#include "core/torch/value.h"

struct hl_torch_tensor {
    struct hl_tensor tensor; /* offset counts from the start of the storage */
    uint64_t stride[HL_TENSOR_RANK_MAX];
    bool contiguous;           /* in C order; if false, the bytes have gaps or another order */
    const char *storage;       /* key */
    uint64_t storage_elements; /* as its pickle counts them, of the storage's own type */
    uint64_t storage_size;
    int64_t tied_to; /* the first tensor with the same bytes of the same storage; -1 = itself */
};

struct hl_torch_tensors {
    struct hl_torch_tensor *list; /* in the order of the tree */
    size_t count;
    size_t cap;
    struct hl_arena arena;
};

struct hl_torch_walk {
    const char *prefix; /* in front of every name; NULL = none */
    bool only_tensors;  /* anything else in the tree is an error */
};

/* Adds the tensors below `root`; `out` must be zeroed the first time. After an error it contains
 * some of them. */
hl_status hl_torch_tensors_add(struct hl_torch_tensors *out, const struct hl_pickle_value *root,
                               const struct hl_torch_walk *walk) HL_CHECK;
/* Fills in tied_to, and refuses two tensors with the same name. */
hl_status hl_torch_tensors_finish(struct hl_torch_tensors *tensors) HL_CHECK;
void hl_torch_tensors_fini(struct hl_torch_tensors *tensors);
/* The dtype that "torch.bfloat16" or "torch.BFloat16Storage" names. */
hl_status hl_torch_dtype(const struct hl_pickle_value *class_value, enum hl_dtype *out) HL_CHECK;

#endif
