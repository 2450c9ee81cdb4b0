/* The CPU's tasks that copy and fill memory, row by row. */
#include "maco/kernels/body_private.h"

hl_status hl_body_memcpy(const maco_task *t)
{
    const uint8_t *from = (const uint8_t *)(uintptr_t)t->inputs[0];
    uint8_t *to = (uint8_t *)(uintptr_t)t->outputs[0];
    size_t rows = (size_t)t->dims[0], bytes = (size_t)t->dims[1];
    size_t in = (size_t)t->dims[2], out = (size_t)t->dims[3];
    if (in == bytes && out == bytes) {
        bytes *= rows;
        rows = rows > 0 && bytes > 0;
    }
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * out, from + r * in, bytes);
    return HL_OK;
}

hl_status hl_body_memset(const maco_task *t)
{
    uint8_t *to = (uint8_t *)(uintptr_t)t->outputs[0];
    size_t rows = (size_t)t->dims[0], bytes = (size_t)t->dims[1], out = (size_t)t->dims[3];
    for (size_t r = 0; r < rows; r++)
        memset(to + r * out, t->dims[4], bytes);
    return HL_OK;
}
