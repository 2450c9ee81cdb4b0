/* core/torch/file.h - reads a file written by torch.save: its tree, and where the bytes of its
 * storages are.
 *
 * It reads both formats: the zip of torch 1.6 and later, and the older sequence of pickles. In the
 * older format the tree must be one that hl_torch_tensors_add reads completely, because only the
 * tensors say how long a storage is.
 *
 * Owns:    hl_torch_file owns everything it has read (hl_torch_file_fini), but no tensor data. The
 *          source is read only during the call.
 * Threads: any; an open file is immutable.
 * Errors:  those of zip.h, pickle.h and tensors.h; HL_EUNSUPPORTED: a big-endian file, a view that
 *          is not contiguous. Prefix them with the file's name.
 * Units:   bytes, counted from the start of the source.
 * Limits:  those of zip.h, pickle.h and tensors.h; pickles of the older format within the first
 *          256 MiB.
 */
#ifndef HL_CORE_TORCH_FILE_H
#define HL_CORE_TORCH_FILE_H

#include "core/safetensors/safetensors.h"
#include "core/torch/pickle.h"
#include "core/torch/tensors.h"
#include "core/torch/zip.h"

struct hl_torch_file {
    struct hl_pickle pickle;
    struct hl_torch_zip zip; /* also for the older format, with its storages as "data/KEY" */
    uint8_t *bytes;          /* the pickle's */
};

/* A part of a source, such as an entry of a .distcp file. */
struct hl_torch_slice {
    const struct hl_torch_source *whole;
    uint64_t offset;
    struct hl_torch_source source; /* its arg is this slice */
};

hl_status hl_torch_slice_init(struct hl_torch_slice *slice, const struct hl_torch_source *whole,
                              uint64_t offset, uint64_t size) HL_CHECK;

hl_status hl_torch_file_open(const struct hl_torch_source *source,
                             struct hl_torch_file *out) HL_CHECK;
void hl_torch_file_fini(struct hl_torch_file *file);
/* The tensors as the header of a safetensors file would list them, but with offsets from the start
 * of the source, data_offset 0, and tied tensors at the same offset. */
hl_status hl_torch_file_header(const struct hl_torch_file *file,
                               const struct hl_torch_tensors *tensors, uint64_t file_size,
                               struct hl_safetensors *out) HL_CHECK;
/* Does all of that for a file that contains only a state dict: pytorch_model.bin. */
hl_status hl_torch_state_dict(const struct hl_torch_source *source,
                              struct hl_safetensors *out) HL_CHECK;

#endif
