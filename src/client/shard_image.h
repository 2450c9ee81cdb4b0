/* client/shard_image.h - turns tensors of a rank into the bytes of one shard, a safetensors file.
 *
 * Owns:    an hl_shard_image owns the header and its copies of the specification.
 * Threads: one at a time; pure, no I/O.
 * Errors:  HL_EINVAL names the tensor and what is wrong with it; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  HL_TENSOR_RANK_MAX dimensions, 2^20 tensors.
 */
#ifndef HL_CLIENT_SHARD_IMAGE_H
#define HL_CLIENT_SHARD_IMAGE_H

#include <stdbool.h>

#include "core/safetensors/safetensors.h"
#include "helios/helios.h"

struct hl_shard_spec {
    const char *model;
    int64_t version;
    int pp;
    int tp;
    int ep; /* of experts */
    const char *part;
    const helios_tensor *tensors;
    size_t count;
    helios_fill fill; /* fills tensors whose data is NULL; NULL: there must be none */
    void *fill_arg;
};

struct hl_shard_image {
    struct hl_safetensors_image header;
    struct hl_tensor *tensors;
    uint32_t *crcs;              /* of the tensors, once they are filled */
    const helios_tensor *source; /* borrowed */
    helios_fill fill;
    void *fill_arg;
    size_t count;
    uint64_t size; /* of the whole shard */
};

hl_status hl_shard_image_plan(const struct hl_shard_spec *spec,
                              struct hl_shard_image *out) HL_CHECK;
/* Writes all `size` bytes to dst and returns their CRC-32. HL_ECANCELED names the tensor that was
 * not provided. */
hl_status hl_shard_image_fill(const struct hl_shard_image *image, void *dst,
                              uint32_t *crc32) HL_CHECK;
void hl_shard_image_fini(struct hl_shard_image *image);

#endif
