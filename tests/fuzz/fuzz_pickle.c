/* A pickle that anybody may have written, and all who walk its tree: tensors, Megatron's args, the
 * metadata of distributed checkpoints, optimizers. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/torch/dcp.h"
#include "core/torch/megatron.h"
#include "core/torch/megatron_optimizer.h"
#include "core/torch/pickle.h"
#include "core/torch/plain.h"

static void walk_tensors(const struct hl_pickle_value *root, bool only_tensors)
{
    struct hl_torch_tensors tensors = {0};
    const struct hl_torch_walk walk = {.prefix = "p", .only_tensors = only_tensors};
    if (hl_torch_tensors_add(&tensors, root, &walk) == HL_OK &&
        hl_torch_tensors_finish(&tensors) == HL_OK) {
        for (size_t i = 0; i < tensors.count; i++) {
            const struct hl_torch_tensor *t = &tensors.list[i];
            if (t->contiguous && (t->tensor.offset > t->storage_size ||
                                  t->tensor.size > t->storage_size - t->tensor.offset))
                abort();
            if (t->tied_to >= (int64_t)i)
                abort();
        }
    }
    hl_torch_tensors_fini(&tensors);
}

static void walk_checkpoint(const struct hl_pickle_value *root)
{
    struct hl_torch_dcp dcp;
    if (hl_torch_dcp_read(root, NULL, &dcp) != HL_OK)
        return;
    for (size_t i = 0; i < dcp.count; i++)
        for (size_t k = 0; k < dcp.tensors[i].chunk_count; k++)
            if (dcp.tensors[i].chunks[k].file != NULL &&
                strchr(dcp.tensors[i].chunks[k].file, '/') != NULL)
                abort();
    hl_torch_dcp_fini(&dcp);
}

/* Whatever stands in it, each tensor of state is of a parameter that was given. */
static void walk_optimizer(const struct hl_pickle_value *root,
                           const struct hl_torch_tensors *tensors)
{
    struct hl_arena arena = {0};
    struct hl_megatron_optimizer o;
    struct hl_tensor *params = hl_arena_array(&arena, tensors->count + 1, sizeof(*params));
    for (size_t i = 0; params != NULL && i < tensors->count; i++)
        params[i] = tensors->list[i].tensor;
    if (params != NULL &&
        hl_megatron_optimizer_read(root, params, tensors->count, &arena, &o) == HL_OK)
        for (size_t i = 0; i < o.count; i++)
            if (o.states[i].param >= tensors->count || o.states[i].kind == NULL)
                abort();
    hl_arena_fini(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_pickle p;
    struct hl_megatron_sizes sizes;
    struct hl_torch_tensors tensors;
    if (hl_pickle_parse(data, size, &p) != HL_OK)
        return 0;
    walk_tensors(p.root, false);
    walk_tensors(p.root, true);
    walk_checkpoint(p.root);
    (void)!hl_megatron_sizes_read(p.root, &sizes);
    if (hl_megatron_tensors(p.root, &tensors) == HL_OK) {
        walk_optimizer(p.root, &tensors);
        hl_torch_tensors_fini(&tensors);
    }
    json_decref(hl_pickle_json(p.root));
    hl_pickle_fini(&p);
    return 0;
}
