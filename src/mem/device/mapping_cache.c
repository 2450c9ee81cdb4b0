#include "mem/device/mapping_cache.h"

#include <stdlib.h>

void hl_mapping_cache_fini(struct hl_mapping_cache *p)
{
    free(p->all);
    *p = (struct hl_mapping_cache){0};
}

bool hl_mapping_cache_add(struct hl_mapping_cache *p, uint64_t address, uint64_t size,
                          uint64_t offset)
{
    hl_mapping_cache_forget(p, address, size);
    if (p->count == p->cap) {
        size_t cap = p->cap == 0 ? 64 : p->cap * 2;
        struct hl_cached_mapping *all =
            cap <= HL_MAPPING_CACHE_MAX ? realloc(p->all, cap * sizeof(*all)) : NULL;
        if (all == NULL)
            return false;
        p->all = all;
        p->cap = cap;
    }
    p->all[p->count++] =
        (struct hl_cached_mapping){.address = address, .size = size, .offset = offset};
    return true;
}

const struct hl_cached_mapping *hl_mapping_cache_find(const struct hl_mapping_cache *p,
                                                      uint64_t address, uint64_t size)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->all[i].address == address)
            return p->all[i].size == size ? &p->all[i] : NULL;
    return NULL;
}

void hl_mapping_cache_forget(struct hl_mapping_cache *p, uint64_t address, uint64_t size)
{
    size_t kept = 0;
    for (size_t i = 0; i < p->count; i++) {
        const struct hl_cached_mapping *one = &p->all[i];
        if (one->address >= address + size || one->address + one->size <= address)
            p->all[kept++] = *one;
    }
    p->count = kept;
}
