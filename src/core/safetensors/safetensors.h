/* core/safetensors/safetensors.h - reads the header of a safetensors file from untrusted bytes,
 * writes it, and merges headers.
 *
 * A file is a u64 little-endian header length N, N bytes of JSON, then the data. Parsing accepts
 * only what the format allows: every byte of the data belongs to exactly one tensor.
 *
 * Owns:    hl_safetensors and hl_safetensors_image own their memory (fini); names are borrowed from
 *          them. The bytes given to parse are only read during the call.
 * Threads: any; parsed headers are immutable.
 * Errors:  HL_EINVAL says what is wrong and at which tensor or byte; prefix it with the file's
 *          name.
 * Units:   bytes; hl_tensor.offset counts from the start of the data, hl_safetensors.data_offset
 *          from the start of the file.
 * Limits:  headers of 100 MB, tensors of 8 dimensions, names of 511 bytes.
 */
#ifndef HL_CORE_SAFETENSORS_SAFETENSORS_H
#define HL_CORE_SAFETENSORS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_SAFETENSORS_HEADER_MAX 100000000ull
#define HL_TENSOR_RANK_MAX        8
#define HL_TENSOR_NAME_MAX        511
#define HL_SAFETENSORS_ALIGN      64
/* The metadata key for a tensor's CRC in a shard is this prefix plus the tensor's name. */
#define HL_CRC_KEY "crc32."

/* clang-format off */
#define HL_DTYPE_MAP(X)      \
    X(F64, 8) X(F32, 4) X(F16, 2) X(BF16, 2)     \
    X(I64, 8) X(I32, 4) X(I16, 2) X(I8, 1)       \
    X(U64, 8) X(U32, 4) X(U16, 2) X(U8, 1)       \
    X(BOOL, 1) X(F8_E4M3, 1) X(F8_E5M2, 1) X(F8_E8M0, 1)

/* clang-format on */

enum hl_dtype {

#define X(name, size) HL_DTYPE_##name,
    HL_DTYPE_MAP(X)
#undef X
        HL_DTYPE_COUNT
};

/* "BF16"; never NULL. */
const char *hl_dtype_name(enum hl_dtype dtype);
uint32_t hl_dtype_size(enum hl_dtype dtype);
hl_status hl_dtype_parse(const char *name, enum hl_dtype *out) HL_CHECK;

struct hl_tensor {
    const char *name;
    enum hl_dtype dtype;
    uint32_t rank; /* number of dimensions; 0 = one element */
    uint64_t shape[HL_TENSOR_RANK_MAX];
    uint64_t offset; /* from the start of the data */
    uint64_t size;
};

/* Number of elements × element size; HL_EINVAL on overflow. */
hl_status hl_tensor_bytes(const struct hl_tensor *t, uint64_t *out) HL_CHECK;
/* "[4,64]" into buf; returns buf. */
const char *hl_tensor_shape_text(const struct hl_tensor *t, char *buf, size_t cap);

struct hl_safetensors_meta {
    const char *key;
    const char *value;
};

struct hl_safetensors {
    struct hl_tensor *tensors; /* by offset */
    size_t count;
    struct hl_safetensors_meta *meta; /* in the order of the file */
    size_t meta_count;
    uint64_t data_offset; /* 8 + header length */
    uint64_t data_size;
    uint32_t *by_name; /* indices of tensors, by name */
    char *text;        /* every name, key and value */
};

/* Reads header length N from the first bytes of a file of `file_size` bytes; 8 + N bytes must fit
 * into the file. */
hl_status hl_safetensors_header_len(const void *bytes, size_t len, uint64_t file_size,
                                    uint64_t *out) HL_CHECK;
/* bytes: at least the first 8 + N bytes of a file of `file_size` bytes. */
hl_status hl_safetensors_parse(const void *bytes, size_t len, uint64_t file_size,
                               struct hl_safetensors *out) HL_CHECK;
void hl_safetensors_fini(struct hl_safetensors *st);
/* Borrowed; NULL if there is none. */
const struct hl_tensor *hl_safetensors_find(const struct hl_safetensors *st, const char *name);
const char *hl_safetensors_meta(const struct hl_safetensors *st, const char *key);
/* The recorded CRC-32 of a tensor; HL_ENOENT without one, HL_EINVAL for a malformed one. */
hl_status hl_safetensors_crc(const struct hl_safetensors *st, const char *name,
                             uint32_t *out) HL_CHECK;

/* Compares the keys "helios.*" of a shard's header with the place where the shard was expected;
 * absent keys are not compared. HL_ECORRUPT names the first that differs. */
hl_status hl_safetensors_check_origin(const struct hl_safetensors *st, const char *model,
                                      int64_t version, int pp, int tp, int ep,
                                      const char *part) HL_CHECK;

/* The values of those keys, borrowed. */
struct hl_safetensors_origin {
    const char *model, *part; /* NULL: absent */
    int64_t version;          /* all numbers: -1 = absent or invalid */
    int pp, tp;
    int ep; /* 0 = absent: written by a release before expert parallelism */
};

void hl_safetensors_read_origin(const struct hl_safetensors *st, struct hl_safetensors_origin *out);

/* A written header: bytes [0, size) of a file of size + data_size bytes. Its size is a multiple of
 * 64, so the data has the file's alignment. */
struct hl_safetensors_image {
    char *bytes;
    uint64_t size;
    uint64_t data_size;
    uint64_t *crc_at; /* offset of the 8 digits of tensor i; NULL without CRC fields */
    size_t count;
};

void hl_safetensors_image_fini(struct hl_safetensors_image *image);

struct hl_safetensors_layout {
    struct hl_tensor *tensors; /* in the order of the data; offset and size are filled in */
    size_t count;
    const struct hl_safetensors_meta *meta;
    size_t meta_count;
    bool crc_fields; /* add HL_CRC_KEY"<name>": "00000000" per tensor, to be patched */
};

hl_status hl_safetensors_write(const struct hl_safetensors_layout *layout,
                               struct hl_safetensors_image *out) HL_CHECK;
/* Writes the CRC of tensor i into header bytes that were made from `image` (the image itself or a
 * copy). */
void hl_safetensors_patch_crc(const struct hl_safetensors_image *image, void *header, size_t i,
                              uint32_t crc);

/* Makes the header for the concatenated data of several shards: tensors in the order of the parts,
 * CRC fields kept, "helios.part" lists all parts; other metadata is taken from the first shard.
 * Data of part i starts at part_offset[i] of the merged file. A name that occurs in two parts is
 * refused. */
hl_status hl_safetensors_merge(const struct hl_safetensors *const *parts, size_t count,
                               struct hl_safetensors_image *out, uint64_t *part_offset) HL_CHECK;

#endif
