/* A file of torch.save that anybody may have written, as a state dict. What is accepted lies inside
 * the file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/torch/file.h"

struct memory {
    const uint8_t *bytes;
    size_t len;
};

static hl_status read_memory(void *arg, uint64_t at, void *to, size_t len)
{
    const struct memory *m = arg;
    if (at > m->len || len > m->len - at)
        abort(); /* a source is only asked for what it has */
    if (len > 0)
        memcpy(to, m->bytes + at, len);
    return HL_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct memory m = {.bytes = data, .len = size};
    const struct hl_torch_source source = {.size = size, .read = read_memory, .arg = &m};
    struct hl_safetensors st;
    if (hl_torch_state_dict(&source, &st) != HL_OK)
        return 0;
    for (size_t i = 0; i < st.count; i++) {
        const struct hl_tensor *t = &st.tensors[i];
        if (t->offset > size || t->size > size - t->offset)
            abort();
        if (hl_safetensors_find(&st, t->name) != t)
            abort();
    }
    hl_safetensors_fini(&st);
    return 0;
}
