/* core/cache/cache.h - caches by the book, for what reads leave on a node, and to compare policies
 * with: one object per cache, sizes in bytes.
 *
 *     lru       the least recently used one leaves
 *     lfu       the least frequently used one of those in it; among equals the least recently used
 *     sieve     Zhang et al., NSDI 2024: a queue in order of arrival and a hand that spares what
 * was read since it came by s3fifo    Yang et al., SOSP 2023: a small queue (10 %), a main one, and
 * a ghost queue of what left the small one (names of 90 % of the bytes); two reads lead to the main
 * one wtinylfu  Einziger et al., TOS 2017, as Caffeine has it: a window (1 %), probation and
 *               protected (80 % of the rest); a sketch of frequencies decides who stays
 *     gdsf      Cherkasova 1998, cost 1: the least of L + frequency / size leaves, and is L then
 *     static    what comes first stays; nothing leaves
 *
 * What is larger than a cache does not enter it. Sizes count in each rule where the book counts
 * objects: queues have room for bytes, and objects leave until there is room.
 *
 * Owns:    its records; zero after hl_cache_fini.
 * Threads: one at a time. Pure: no clock, no chance.
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
    uint32_t shard, next, before; /* of its list; of a free slot: the next free one */
    uint32_t frequency;
    uint64_t size_bytes;
    uint64_t sequence; /* of its newest access */
    uint64_t key;      /* of its newest entry in the heap */
    uint8_t list;
};

struct hl_cache_list {
    uint32_t head, tail; /* what came last, what came first */
    uint64_t bytes, room;
};

/* 4-bit counters, four for an object; halved after `sample` additions. */
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
    /* Told of what enters and what leaves. */
    void (*changed)(void *arg, uint32_t shard, bool entered);
    void *arg;
};

const char *hl_cache_name(enum hl_cache_kind kind);

/* typical_bytes: mean size of its objects, from which the sketch has its width. */
hl_status hl_cache_init(struct hl_cache *c, enum hl_cache_kind kind, uint64_t capacity,
                        uint64_t typical_bytes) HL_CHECK;
void hl_cache_fini(struct hl_cache *c);
bool hl_cache_has(const struct hl_cache *c, uint32_t shard);
/* *hit: it was in it. If not, it enters where the rule lets it. */
hl_status hl_cache_access(struct hl_cache *c, uint32_t shard, uint64_t size_bytes,
                          bool *hit) HL_CHECK;
/* What the rule says leaves next, leaves. False: it holds nothing, or is static. */
bool hl_cache_evict(struct hl_cache *c);
/* With another capacity from now on; what has no room leaves. Not of wtinylfu, whose sketch has the
 * width of the first one. */
void hl_cache_resize(struct hl_cache *c, uint64_t capacity);
/* It leaves, if it is there. */
void hl_cache_remove(struct hl_cache *c, uint32_t shard);

#endif
