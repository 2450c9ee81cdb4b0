#include "core/placement/warm.h"

#include <stdlib.h>

uint64_t hl_warm_room(uint64_t low_bytes, uint64_t used_bytes)
{
    return used_bytes < low_bytes ? low_bytes - used_bytes : 0;
}

static int compare_warm(const void *left, const void *right)
{
    const struct hl_warm_version *a = left, *b = right;
    return hl_pool_version_compare(&b->version, &a->version);
}

size_t hl_warm_choose(struct hl_warm_version *versions, size_t count, uint64_t room)
{
    size_t chosen = 0;
    qsort(versions, count, sizeof(*versions), compare_warm);
    for (size_t i = 0; i < count; i++) {
        if (versions[i].bytes == 0 || versions[i].bytes > room)
            continue;
        room -= versions[i].bytes;
        struct hl_warm_version passed_over = versions[chosen];
        versions[chosen++] = versions[i];
        versions[i] = passed_over;
    }
    return chosen;
}
