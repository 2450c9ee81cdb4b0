/* The working memory of the bodies of one thread. */
#include <stdlib.h>

#include "maco/kernels/bodies.h"
#include "maco/kernels/body_private.h"

void hl_maco_scratch_free(struct hl_maco_scratch *s)
{
    free(s->data);
    *s = (struct hl_maco_scratch){0};
}

hl_status hl_scratch_reserve(struct hl_maco_scratch *s, size_t bytes, void **out)
{
    if (bytes > s->bytes) {
        size_t size = hl_round_up(bytes, 4096);
        void *data = aligned_alloc(4096, size);
        if (data == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %zu bytes that a task works in",
                           size);
        free(s->data);
        s->data = data;
        s->bytes = size;
    }
    *out = s->data;
    return HL_OK;
}
