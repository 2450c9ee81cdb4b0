/* core/cache/cache.h - textbook cache algorithms, to cache on nodes what was read, and to compare
 * policies with: one struct per cache, sizes in bytes.
 *
 *     lru       the least recently used object leaves
 *     lfu       the least frequently used object in the cache leaves; among equals the least
 *               recently used
 *     sieve     Zhang et al., NSDI 2024: a queue in order of arrival, and a hand that spares
 *               objects that were read since it last passed
 *     s3fifo    Yang et al., SOSP 2023: a small queue (10 %), a main one, and a ghost queue of
 *               what left the small one (names of 90 % of the bytes); two reads lead to the main
 *     wtinylfu  Einziger et al., TOS 2017, as in Caffeine: a window (1 %), probation and
 *               protected (80 % of the rest); a sketch of frequencies decides what stays
 *     gdsf      Cherkasova 1998, cost 1: the object with the lowest L + frequency / size
 *               leaves, and L becomes that value
 *     static    the first objects stay; nothing leaves
 *
 * An object that is larger than a cache does not enter it. Where the original algorithms count
 * objects, these count bytes: a queue has a capacity in bytes, and objects leave until there is
 * room.
 *
 * Owns:    its records; zero after hl_cache_fini.
 * Threads: one at a time. Pure: no clock, no randomness.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  2^24 objects at a time, ghosts included; 2^40 accesses.
 */
#ifndef HL_CORE_CACHE_CACHE_H
#define HL_CORE_CACHE_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/heap.h"
#include "base/status.h"

#define HL_CACHE_NONE  UINT32_MAX
#define HL_CACHE_LISTS 3

/* clang-format off */
#define HL_CACHE_MAP(X)                                                                         \
    X(LRU,      "lru")                                                                          \
    X(LFU,      "lfu")                                                                          \
    X(SIEVE,    "sieve")                                                                        \
    X(S3FIFO,   "s3fifo")                                                                       \
    X(WTINYLFU, "wtinylfu")                                                                     \
    X(GDSF,     "gdsf")                                                                         \
    X(STATIC,   "static")

/* clang-format on */

enum hl_cache_kind {

#define X(name, text) HL_CACHE_##name,
    HL_CACHE_MAP(X)
#undef X
        HL_CACHE_KINDS
};

struct hl_cache_slot {
    /* links of its list; in a free slot, `next` is the next free one */
    uint32_t shard, next, before;
    uint32_t frequency;
    uint64_t size_bytes;
    uint64_t sequence; /* of its last access */
    uint64_t key;      /* of its newest entry in the heap */
    uint8_t list;
};

struct hl_cache_list {
    uint32_t head, tail; /* newest and oldest object */
    uint64_t bytes, room;
};

/* 4-bit counters, four per object; halved after `sample` additions. */
struct hl_cache_sketch {
    uint64_t *table;
    uint32_t mask;
    uint64_t added, sample;
};

struct hl_cache {
    enum hl_cache_kind kind;
    uint64_t capacity, used;
    struct hl_cache_slot *slots;
    uint32_t *index; /* slot + 1 by hash of its shard; 0 = empty */
    uint32_t index_bits, slot_count, slot_room, free;
    struct hl_cache_list lists[HL_CACHE_LISTS];
    uint32_t hand; /* of sieve */
    struct hl_heap heap;
    double inflation; /* L of gdsf */
    uint64_t sequence;
    struct hl_cache_sketch sketch;
    /* Called for each object that enters or leaves; may be NULL. */
    void (*changed)(void *arg, uint32_t shard, bool entered);
    void *arg;
};

const char *hl_cache_name(enum hl_cache_kind kind);

/* typical_bytes: mean size of its objects, which determines the width of the sketch. */
hl_status hl_cache_init(struct hl_cache *c, enum hl_cache_kind kind, uint64_t capacity,
                        uint64_t typical_bytes) HL_CHECK;
void hl_cache_fini(struct hl_cache *c);
bool hl_cache_has(const struct hl_cache *c, uint32_t shard);
/* *hit: the shard was in the cache. If not, it enters if the rule allows it. */
hl_status hl_cache_access(struct hl_cache *c, uint32_t shard, uint64_t size_bytes,
                          bool *hit) HL_CHECK;
/* Evicts the object that the rule chooses. False: the cache is empty, or static. */
bool hl_cache_evict(struct hl_cache *c);
/* Changes the capacity; what no longer fits leaves. Not for wtinylfu, because the width of its
 * sketch depends on the initial capacity. */
void hl_cache_resize(struct hl_cache *c, uint64_t capacity);
/* Removes the shard, if it is in the cache. */
void hl_cache_remove(struct hl_cache *c, uint32_t shard);

#endif
