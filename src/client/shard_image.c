#include "client/shard_image.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/copy.h"
#include "base/crc32.h"
#include "core/model/part.h"

#define TENSORS_MAX ((size_t)1 << 20)

static hl_status take_tensor(const helios_tensor *from, size_t i, bool may_come,
                             struct hl_tensor *to)
{
    if (from->name == NULL || from->name[0] == '\0' || strlen(from->name) > HL_TENSOR_NAME_MAX)
        return hl_fail(HL_EINVAL, "tensor %zu: its name must have 1 to %d bytes", i,
                       HL_TENSOR_NAME_MAX);
    if (from->dtype == NULL || hl_dtype_parse(from->dtype, &to->dtype) != HL_OK)
        return hl_fail(HL_EINVAL, "tensor '%s': unknown safetensors dtype '%s'", from->name,
                       from->dtype != NULL ? from->dtype : "");
    if (from->rank < 0 || from->rank > HL_TENSOR_RANK_MAX ||
        (from->rank > 0 && from->shape == NULL))
        return hl_fail(HL_EINVAL, "tensor '%s': rank %d is not 0 to %d", from->name, from->rank,
                       HL_TENSOR_RANK_MAX);
    to->name = from->name;
    to->rank = (uint32_t)from->rank;
    for (int d = 0; d < from->rank; d++) {
        if (from->shape[d] < 0)
            return hl_fail(HL_EINVAL, "tensor '%s': dimension %d is %" PRId64, from->name, d,
                           from->shape[d]);
        to->shape[d] = (uint64_t)from->shape[d];
    }
    HL_TRY(hl_tensor_bytes(to, &to->size));
    if (to->size > 0 && from->data == NULL && !may_come)
        return hl_fail(HL_EINVAL, "tensor '%s': data is NULL", from->name);
    return HL_OK;
}

static hl_status write_header(const struct hl_shard_spec *spec, struct hl_shard_image *image)
{
    char version[24], pp[16], tp[16], ep[16];
    snprintf(version, sizeof(version), "%" PRId64, spec->version);
    snprintf(pp, sizeof(pp), "%d", spec->pp);
    snprintf(tp, sizeof(tp), "%d", spec->tp);
    snprintf(ep, sizeof(ep), "%d", spec->ep);
    const struct hl_safetensors_meta meta[] = {
        {"helios.model", spec->model},
        {"helios.version", version},
        {"helios.pp", pp},
        {"helios.tp", tp},
        {"helios.part", spec->part},
        {"helios.ep", ep},
    };
    struct hl_safetensors_layout layout = {
        .tensors = image->tensors,
        .count = image->count,
        .meta = meta,
        .meta_count = HL_ARRAY_LEN(meta) - !hl_part_has_experts(spec->part),
        .crc_fields = true,
    };
    HL_TRY(hl_safetensors_write(&layout, &image->header));
    /* Refuses what no reader would accept, above all a duplicate name. */
    struct hl_safetensors check;
    uint64_t size = image->header.size + image->header.data_size;
    HL_TRY(hl_safetensors_parse(image->header.bytes, image->header.size, size, &check));
    hl_safetensors_fini(&check);
    return HL_OK;
}

hl_status hl_shard_image_plan(const struct hl_shard_spec *spec, struct hl_shard_image *out)
{
    struct hl_shard_image image = {.source = spec->tensors,
                                   .count = spec->count,
                                   .fill = spec->fill,
                                   .fill_arg = spec->fill_arg};
    if (spec->count == 0 || spec->count > TENSORS_MAX || spec->tensors == NULL)
        return hl_fail(HL_EINVAL, "part '%s': a shard has 1 to %zu tensors, not %zu", spec->part,
                       TENSORS_MAX, spec->count);
    image.tensors = calloc(spec->count, sizeof(*image.tensors));
    image.crcs = calloc(spec->count, sizeof(*image.crcs));
    hl_status st = HL_OK;
    if (image.tensors == NULL || image.crcs == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating %zu tensors", spec->count);
    for (size_t i = 0; i < spec->count && st == HL_OK; i++)
        st = take_tensor(&spec->tensors[i], i, spec->fill != NULL, &image.tensors[i]);
    if (st == HL_OK)
        st = write_header(spec, &image);
    if (st != HL_OK) {
        hl_shard_image_fini(&image);
        return hl_fail_prefix(st, "part '%s': ", spec->part);
    }
    image.size = image.header.size + image.header.data_size;
    *out = image;
    return HL_OK;
}

/* Writes the tensor's bytes to `to`, and computes their checksum. */
static hl_status fill_tensor(const struct hl_shard_image *image, size_t i, void *to, uint32_t *crc)
{
    const struct hl_tensor *t = &image->tensors[i];
    const void *from = image->source[i].data;
    if (t->size == 0) {
        *crc = 0;
    } else if (from != NULL) {
        *crc = hl_copy_crc32(0, to, from, t->size, image->size);
    } else {
        if (image->fill(image->fill_arg, i, to, t->size) != 0)
            return hl_fail(HL_ECANCELED, "tensor '%s' was not given", t->name);
        *crc = hl_crc32(0, to, t->size);
    }
    return HL_OK;
}

hl_status hl_shard_image_fill(const struct hl_shard_image *image, void *dst, uint32_t *crc32)
{
    unsigned char *file = dst, *data = file + image->header.size;
    uint32_t data_crc = 0;
    memcpy(file, image->header.bytes, image->header.size);
    for (size_t i = 0; i < image->count; i++) {
        const struct hl_tensor *t = &image->tensors[i];
        uint32_t crc = 0;
        HL_TRY(fill_tensor(image, i, data + t->offset, &crc));
        image->crcs[i] = crc;
        hl_safetensors_patch_crc(&image->header, file, i, crc);
        data_crc = hl_crc32_combine(data_crc, crc, t->size);
    }
    uint32_t header_crc = hl_crc32(0, file, image->header.size);
    *crc32 = hl_crc32_combine(header_crc, data_crc, image->header.data_size);
    return HL_OK;
}

void hl_shard_image_fini(struct hl_shard_image *image)
{
    hl_safetensors_image_fini(&image->header);
    free(image->tensors);
    free(image->crcs);
    *image = (struct hl_shard_image){0};
}
