#include "core/placement/pool_order.h"

#include <stdlib.h>

int hl_pool_version_compare(const struct hl_pool_version *a, const struct hl_pool_version *b)
{
    if (a->is_pinned != b->is_pinned)
        return a->is_pinned ? 1 : -1;
    if (a->is_newest != b->is_newest)
        return a->is_newest ? 1 : -1;
    if (a->used_ms != b->used_ms)
        return a->used_ms < b->used_ms ? -1 : 1;
    return (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

static int compare_versions(const void *left, const void *right)
{
    return hl_pool_version_compare(left, right);
}

size_t hl_pool_order(struct hl_pool_version *versions, size_t count)
{
    qsort(versions, count, sizeof(*versions), compare_versions);
    while (count > 0 && versions[count - 1].is_pinned)
        count--;
    return count;
}
