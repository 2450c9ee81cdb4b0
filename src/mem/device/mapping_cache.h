/* mem/device/mapping_cache.h - mappings that can't be used and that are kept for the next block
 * there.
 *
 * A block that comes and goes at one address of a range, as a gradient does, costs the kernel its
 * page tables each time. Parked, the mapping stays without access, and the address with the same
 * memory is open again by one change of access. What is cached holds no memory: the memory may have
 * become another block's meanwhile, and the mapping is then replaced.
 *
 * Owns:    a table of the mappings; the mappings are the caller's.
 * Threads: one at a time.
 * Errors:  none; what finds no place in the table is not cached.
 * Units:   bytes.
 * Limits:  HL_MAPPING_CACHE_MAX mappings.
 */
#ifndef HL_MEM_DEVICE_MAPPING_CACHE_H
#define HL_MEM_DEVICE_MAPPING_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_MAPPING_CACHE_MAX 4096 /* of the 65,530 mappings that Linux lets a process have */

struct hl_cached_mapping {
    uint64_t address, size, offset; /* of the memory in its descriptor */
};

struct hl_mapping_cache {
    struct hl_cached_mapping *all;
    size_t count, cap;
};

void hl_mapping_cache_fini(struct hl_mapping_cache *p);
/* False: there is no place. */
bool hl_mapping_cache_add(struct hl_mapping_cache *p, uint64_t address, uint64_t size,
                          uint64_t offset);
/* What of exactly this size is cached at the address; NULL: nothing. Valid until the next call. */
const struct hl_cached_mapping *hl_mapping_cache_find(const struct hl_mapping_cache *p,
                                                      uint64_t address, uint64_t size);
/* None overlaps these addresses any more. */
void hl_mapping_cache_forget(struct hl_mapping_cache *p, uint64_t address, uint64_t size);

#endif
