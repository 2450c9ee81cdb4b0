/* core/cache/cache_slots.h - what all rules of cache.h are made of: objects in lists, found by
 * their shard.
 *
 * Owns:    nothing of its own: it works on a struct hl_cache.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, HL_ENOSPC.
 * Units:   bytes.
 * Limits:  as cache.h.
 */
#ifndef HL_CORE_CACHE_CACHE_SLOTS_H
#define HL_CORE_CACHE_CACHE_SLOTS_H

#include "core/cache/cache.h"

/* HL_CACHE_NONE: it is in no list. */
uint32_t hl_cache_find(const struct hl_cache *c, uint32_t shard);
/* A slot of the shard at the head of a list. */
hl_status hl_cache_add(struct hl_cache *c, uint32_t shard, uint64_t size_bytes, unsigned list,
                       uint32_t *slot) HL_CHECK;
/* Out of its list, and forgotten. */
void hl_cache_drop(struct hl_cache *c, uint32_t slot);
/* To the head of a list. */
void hl_cache_move(struct hl_cache *c, uint32_t slot, unsigned list);
/* To the tail of a list. */
void hl_cache_move_last(struct hl_cache *c, uint32_t slot, unsigned list);

#endif
