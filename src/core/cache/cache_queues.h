/* core/cache/cache_queues.h - the rules of cache.h whose objects stand in queues: sieve, s3fifo
 * and wtinylfu. cache.c has the others and calls these.
 *
 * Owns:    nothing.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, HL_ENOSPC.
 * Units:   bytes.
 * Limits:  as cache.h.
 */
#ifndef HL_CORE_CACHE_CACHE_QUEUES_H
#define HL_CORE_CACHE_CACHE_QUEUES_H

#include "core/cache/cache.h"

/* Lists of s3fifo. */
enum { HL_S3_SMALL, HL_S3_MAIN, HL_S3_GHOST };

/* Lists of wtinylfu. */
enum { HL_TINY_WINDOW, HL_TINY_PROBATION, HL_TINY_PROTECTED };

/* What leaves next, leaves. The cache is not empty. */
void hl_sieve_evict(struct hl_cache *c);
void hl_s3fifo_evict(struct hl_cache *c);
void hl_wtinylfu_evict(struct hl_cache *c);

/* It was not in the cache and enters it: what leaves for it leaves first. Each says what left or
 * entered through c->changed. */
hl_status hl_sieve_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
hl_status hl_s3fifo_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
hl_status hl_wtinylfu_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
/* It is in the cache and was read. */
void hl_wtinylfu_hit(struct hl_cache *c, uint32_t slot);

hl_status hl_sketch_init(struct hl_cache_sketch *k, uint64_t objects) HL_CHECK;
void hl_sketch_add(struct hl_cache_sketch *k, uint32_t shard);
unsigned hl_sketch_count(const struct hl_cache_sketch *k, uint32_t shard);

#endif
