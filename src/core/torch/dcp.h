/* core/torch/dcp.h - the .metadata of a PyTorch distributed checkpoint (Megatron's torch_dist).
 *
 * .metadata is a pickle that lists the global tensors, how each is cut into chunks, and where each
 * chunk is stored: a file of the folder, an offset, a length. The data there is a complete
 * torch.save file with one tensor (core/torch/file.h, with a slice). Every element of a wanted
 * tensor must be in exactly one chunk, or the checkpoint is refused. For other tensors only name,
 * dtype and shape are read, because a distributed optimizer saves padded buffers with holes.
 *
 * Owns:    hl_torch_dcp owns its tables and names (hl_torch_dcp_fini); it no longer needs the
 *          pickle.
 * Threads: any; pure.
 * Errors:  HL_EINVAL names the tensor and what is wrong, HL_EUNSUPPORTED what is not read.
 * Units:   bytes in files, elements in tensors.
 * Limits:  2^22 chunks of 8 dimensions, 2^28 comparisons of chunks.
 */
#ifndef HL_CORE_TORCH_DCP_H
#define HL_CORE_TORCH_DCP_H

#include "base/arena.h"
#include "core/safetensors/safetensors.h"
#include "core/torch/value.h"

struct hl_torch_dcp_chunk {
    uint64_t begin[HL_TENSOR_RANK_MAX]; /* of its box in the tensor */
    uint64_t shape[HL_TENSOR_RANK_MAX];
    const char *file; /* plain name in the folder; NULL: an empty box that is not stored */
    uint64_t offset;
    uint64_t size; /* of the torch.save file there */
};

struct hl_torch_dcp_tensor {
    struct hl_tensor tensor; /* name, dtype, global shape, size; offset is 0 */
    struct hl_torch_dcp_chunk *chunks;
    size_t chunk_count;
};

/* An entry that is not a tensor but a pickled value. */
struct hl_torch_dcp_bytes {
    const char *name;
    const char *file;
    uint64_t offset;
    uint64_t size;
};

/* A file of the checkpoint, whether or not its contents are wanted. */
struct hl_torch_dcp_file {
    const char *name;
    uint64_t size; /* it has at least this many bytes */
};

struct hl_torch_dcp {
    struct hl_torch_dcp_file *files; /* by name */
    size_t file_count;
    struct hl_torch_dcp_tensor *tensors; /* in the order of the metadata */
    size_t count;
    struct hl_torch_dcp_bytes *bytes;
    size_t bytes_count;
    struct hl_arena arena;
};

/* root: the value in .metadata. wanted: the tensors whose chunks are read; NULL = all. */
hl_status hl_torch_dcp_read(const struct hl_pickle_value *root, bool (*wanted)(const char *name),
                            struct hl_torch_dcp *out) HL_CHECK;
void hl_torch_dcp_fini(struct hl_torch_dcp *dcp);

#endif
