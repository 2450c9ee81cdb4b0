/* core/cache/cache_queues.h - the rules of cache.h that keep their objects in queues: sieve, s3fifo
 * and wtinylfu. cache.c has the others and calls these.
 *
 * Owns:    nothing.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM, HL_ENOSPC.
 * Units:   bytes.
 * Limits:  those of cache.h.
 */
#ifndef HL_CORE_CACHE_CACHE_QUEUES_H
#define HL_CORE_CACHE_CACHE_QUEUES_H

#include "core/cache/cache.h"

/* Lists of s3fifo. */
enum { HL_S3_SMALL, HL_S3_MAIN, HL_S3_GHOST };

/* Lists of wtinylfu. */
enum { HL_TINY_WINDOW, HL_TINY_PROBATION, HL_TINY_PROTECTED };

/* Evicts the next object in line. The cache must not be empty. */
void hl_sieve_evict(struct hl_cache *c);
void hl_s3fifo_evict(struct hl_cache *c);
void hl_wtinylfu_evict(struct hl_cache *c);

/* Adds an object that is not in the cache, after evicting what must make room for it. Each reports
 * through c->changed what left or entered. */
hl_status hl_sieve_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
hl_status hl_s3fifo_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
hl_status hl_wtinylfu_enter(struct hl_cache *c, uint32_t shard, uint64_t size_bytes) HL_CHECK;
/* The object is in the cache and was read. */
void hl_wtinylfu_hit(struct hl_cache *c, uint32_t slot);

hl_status hl_sketch_init(struct hl_cache_sketch *k, uint64_t objects) HL_CHECK;
void hl_sketch_add(struct hl_cache_sketch *k, uint32_t shard);
unsigned hl_sketch_count(const struct hl_cache_sketch *k, uint32_t shard);

#endif
