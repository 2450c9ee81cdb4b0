/* The header of a file that anybody may have written. What is accepted must also survive being
 * written again, merged and parsed once more. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/safetensors/safetensors.h"

/* A copy of the tensors through our own writer reads back equal. */
static void round_trip(const struct hl_safetensors *st)
{
    struct hl_safetensors_image image;
    struct hl_safetensors again;
    uint64_t at;
    if (hl_safetensors_merge(&st, 1, &image, &at) != HL_OK)
        abort();
    if (hl_safetensors_parse(image.bytes, image.size, image.size + st->data_size, &again) != HL_OK)
        abort();
    if (again.count != st->count)
        abort();
    for (size_t i = 0; i < st->count; i++) {
        const struct hl_tensor *t = hl_safetensors_find(&again, st->tensors[i].name);
        if (t == NULL || t->offset != st->tensors[i].offset || t->size != st->tensors[i].size ||
            t->dtype != st->tensors[i].dtype)
            abort();
    }
    hl_safetensors_fini(&again);
    hl_safetensors_image_fini(&image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The last two bytes say how much data follows the header, the rest is the header's text. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_safetensors st;
    if (size < 2)
        return 0;
    uint64_t n = size - 2, tail = data[n] | (uint64_t)data[n + 1] << 8;
    uint8_t *bytes = malloc(8 + n);
    if (bytes == NULL)
        return 0;
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, data, n);
    if (hl_safetensors_parse(bytes, 8 + n, 8 + n + tail, &st) == HL_OK) {
        round_trip(&st);
        hl_safetensors_fini(&st);
    }
    /* The same bytes as a whole file: the length is hostile too. */
    if (hl_safetensors_parse(data, size, size, &st) == HL_OK)
        hl_safetensors_fini(&st);
    free(bytes);
    return 0;
}
