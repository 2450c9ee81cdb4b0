/* Reads quantization_config: the method, and the blocks that share a scale. The kinds of the
 * tensors come from the files, not from here. */
#include <string.h>

#include "core/model/hf.h"

#define BLOCK_MAX 65536

/* Methods whose weights are FP8 or FP4 with scales beside them. */
static const char *const methods[] = {"fp8", "fbgemm_fp8", "mxfp4", "modelopt",
                                      "compressed-tensors"};

HL_CHECK static hl_status read_block(const json_t *size, const char *file, const char *field,
                                     uint64_t block[2])
{
    if (size == NULL || json_is_null(size))
        return HL_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(size, i);
        if (json_array_size(size) != 2 || !json_is_integer(n) || json_integer_value(n) < 1 ||
            json_integer_value(n) > BLOCK_MAX)
            return hl_fail(HL_EINVAL, "%s: field '%s' is not a list of two sizes of 1..%d", file,
                           field, BLOCK_MAX);
    }
    block[0] = (uint64_t)json_integer_value(json_array_get(size, 0));
    block[1] = (uint64_t)json_integer_value(json_array_get(size, 1));
    return HL_OK;
}

/* compressed-tensors: one block size for all groups, or none. */
HL_CHECK static hl_status read_groups(json_t *groups, const char *file, uint64_t block[2])
{
    const char *name;
    json_t *group;
    json_object_foreach (groups, name, group) {
        const json_t *weights = json_object_get(group, "weights");
        uint64_t one[2] = {0};
        HL_TRY(read_block(json_object_get(weights, "block_structure"), file,
                          "quantization_config.config_groups.weights.block_structure", one));
        if (one[0] == 0)
            continue;
        if (block[0] != 0 && (one[0] != block[0] || one[1] != block[1]))
            return hl_fail(HL_EUNSUPPORTED,
                           "%s: the groups of quantization_config have blocks of several sizes",
                           file);
        memcpy(block, one, sizeof(one));
    }
    return HL_OK;
}

hl_status hl_hf_quantization(const json_t *config, const char *file, uint64_t block[2])
{
    const char *method = json_string_value(json_object_get(config, "quant_method"));
    bool known = false;
    if (config == NULL || json_is_null(config))
        return HL_OK;
    for (size_t i = 0; i < HL_ARRAY_LEN(methods) && method != NULL; i++)
        known = known || strcmp(methods[i], method) == 0;
    if (!known)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: quantization_config.quant_method '%.60s' can't be sliced, only fp8, "
                       "fbgemm_fp8, mxfp4, modelopt and compressed-tensors; import it with "
                       "--unsliced, or convert the checkpoint to bf16",
                       file, method != NULL ? method : "");
    HL_TRY(read_block(json_object_get(config, "weight_block_size"), file,
                      "quantization_config.weight_block_size", block));
    return read_groups(json_object_get(config, "config_groups"), file, block);
}
