/* support/heap_sink.h - a sink on the heap that counts, checks CRCs and fails on request.
 *
 * Owns:    the heap owns the bytes of sealed shards (heap_free).
 * Threads: any, between heap_sink() and heap_free().
 * Errors:  as requested; HL_EIO for a CRC that does not match the bytes.
 * Units:   bytes.
 * Limits:  SHARDS_MAX shards.
 */
#ifndef HL_TESTS_HEAP_SINK_H
#define HL_TESTS_HEAP_SINK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/sink.h"

#define SHARDS_MAX 256

struct kept {
    struct hl_id id;
    uint8_t *ptr;
    uint64_t size;
};

struct heap {
    pthread_mutex_t mutex;
    int fail_alloc; /* the n-th alloc from now fails; 0 = never */
    int fail_seal;
    int live; /* allocated and neither sealed nor aborted */
    struct kept kept[SHARDS_MAX];
    int sealed; /* entries of kept */
    int discarded;
    void (*meanwhile)(void); /* called at the first alloc */
    atomic_bool *cancel;     /* set at the first seal */
};

static inline hl_status heap_alloc(void *arg, const struct hl_import_shard *shard,
                                   struct hl_import_slot *out)
{
    uint64_t size = shard->size_bytes;
    struct heap *h = arg;
    pthread_mutex_lock(&h->mutex);
    int fail = h->fail_alloc > 0 && --h->fail_alloc == 0;
    if (h->meanwhile != NULL)
        h->meanwhile();
    h->meanwhile = NULL;
    h->live += !fail;
    pthread_mutex_unlock(&h->mutex);
    if (fail)
        return hl_fail(HL_ENOSPC, "the heap is full");
    uint8_t *ptr = malloc(size);
    memset(ptr, 0xEE, size);
    struct kept *k = malloc(sizeof(*k));
    *k = (struct kept){.id = hl_id_random(), .ptr = ptr, .size = size};
    *out = (struct hl_import_slot){.id = k->id, .ptr = ptr, .handle = k};
    return HL_OK;
}

static inline void heap_abort(void *arg, struct hl_import_slot *slot)
{
    struct heap *h = arg;
    pthread_mutex_lock(&h->mutex);
    h->live--;
    pthread_mutex_unlock(&h->mutex);
    free(slot->ptr);
    free(slot->handle);
}

/* Returns 1 if the CRCs match the bytes. */
static inline int crcs_are_right(const struct kept *k, uint32_t crc32, const uint32_t *chunks,
                                 size_t n)
{
    if (n != (k->size + HL_CHUNK - 1) / HL_CHUNK || hl_crc32(0, k->ptr, k->size) != crc32)
        return 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = i * HL_CHUNK, rest = k->size - at;
        if (hl_crc32(0, k->ptr + at, rest < HL_CHUNK ? rest : HL_CHUNK) != chunks[i])
            return 0;
    }
    return 1;
}

static inline hl_status heap_seal(void *arg, struct hl_import_slot *slot, uint32_t crc32,
                                  const uint32_t *chunk_crcs, size_t chunks)
{
    struct heap *h = arg;
    struct kept *k = slot->handle;
    int right = crcs_are_right(k, crc32, chunk_crcs, chunks);
    pthread_mutex_lock(&h->mutex);
    int fail = (h->fail_seal > 0 && --h->fail_seal == 0) || h->sealed == SHARDS_MAX;
    if (!fail && right) {
        h->live--;
        h->kept[h->sealed++] = *k;
    }
    if (h->cancel != NULL)
        atomic_store(h->cancel, true);
    pthread_mutex_unlock(&h->mutex);
    if (fail || !right)
        return hl_fail(HL_EIO, right ? "the heap can't seal" : "a CRC is not that of the bytes");
    free(k);
    return HL_OK;
}

static inline void heap_discard(void *arg, struct hl_import_slot *slot)
{
    struct heap *h = arg;
    (void)slot;
    h->discarded++;
}

static inline void heap_free(struct heap *h)
{
    for (int i = 0; i < h->sealed; i++)
        free(h->kept[i].ptr);
}

static inline const struct kept *heap_find(const struct heap *h, struct hl_id id)
{
    for (int i = 0; i < h->sealed; i++)
        if (hl_id_equal(h->kept[i].id, id))
            return &h->kept[i];
    return NULL;
}

static inline struct hl_import_sink heap_sink(struct heap *h)
{
    pthread_mutex_init(&h->mutex, NULL);
    return (struct hl_import_sink){.arg = h,
                                   .alloc = heap_alloc,
                                   .seal = heap_seal,
                                   .abort = heap_abort,
                                   .discard = heap_discard};
}

#endif
