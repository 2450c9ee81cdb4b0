/* core/cache/cache_slots.h - what all rules of cache.h are built on: objects in lists, found by
 * their shard.
 *
 * Owns:    nothing of its own: it works on a struct hl_cache.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, HL_ENOSPC.
 * Units:   bytes.
 * Limits:  those of cache.h.
 */
#ifndef HL_CORE_CACHE_CACHE_SLOTS_H
#define HL_CORE_CACHE_CACHE_SLOTS_H

#include "core/cache/cache.h"

/* HL_CACHE_NONE: the shard is in no list. */
uint32_t hl_cache_find(const struct hl_cache *c, uint32_t shard);
/* Adds a slot for the shard at the head of a list. */
hl_status hl_cache_add(struct hl_cache *c, uint32_t shard, uint64_t size_bytes, unsigned list,
                       uint32_t *slot) HL_CHECK;
/* Removes the slot from its list and frees it. */
void hl_cache_drop(struct hl_cache *c, uint32_t slot);
/* Moves the slot to the head of a list. */
void hl_cache_move(struct hl_cache *c, uint32_t slot, unsigned list);
/* Moves the slot to the tail of a list. */
void hl_cache_move_last(struct hl_cache *c, uint32_t slot, unsigned list);

#endif
