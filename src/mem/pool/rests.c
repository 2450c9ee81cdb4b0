/* Pins that may rest (mem/pool/rest.h). Each slot's note has a list of them, which is searched when
 * the slot is needed: for an eviction, or at the end of its quarantine. All functions are called
 * with the lock held. */
#include <assert.h>

#include "mem/pool/pool_private.h"

void hl_pool_rest_add(struct hl_pool *pool, const struct hl_pool_ref *ref,
                      struct hl_pool_rest *rest, hl_rest_word *word)
{
    atomic_store(word, HL_REST_HELD);
    pthread_mutex_lock(&pool->lock);
    struct slot_note *n = &pool->notes[ref->slot];
    assert(n->pins > 0);
    *rest = (struct hl_pool_rest){.word = word, .slot = ref->slot, .next = n->rests};
    n->rests = rest;
    pthread_mutex_unlock(&pool->lock);
}

bool hl_pool_rest_end(struct hl_pool *pool, struct hl_pool_rest *rest)
{
    pthread_mutex_lock(&pool->lock);
    (void)hl_rest_recall(rest->word); /* nor can a borrower of a closed connection take it up */
    bool taken = rest->taken;
    struct hl_pool_rest **at = &pool->notes[rest->slot].rests;
    while (!taken && *at != rest)
        at = &(*at)->next;
    if (!taken)
        *at = rest->next;
    pthread_mutex_unlock(&pool->lock);
    return !taken;
}

bool hl_pool_rest_used(struct hl_pool *pool, const struct hl_pool_rest *rest)
{
    pthread_mutex_lock(&pool->lock);
    bool used = !rest->taken && atomic_load(rest->word) != HL_REST_RESTING;
    pthread_mutex_unlock(&pool->lock);
    return used;
}

bool pool_slot_may_go(const struct hl_pool *pool, uint32_t slot)
{
    const struct slot_note *n = &pool->notes[slot];
    uint32_t resting = 0;
    for (const struct hl_pool_rest *r = n->rests; r != NULL; r = r->next)
        resting += hl_rest_ask(r->word);
    return n->pins == resting;
}

bool pool_slot_unpinned(struct hl_pool *pool, uint32_t slot)
{
    struct slot_note *n = &pool->notes[slot];
    for (struct hl_pool_rest **at = &n->rests; *at != NULL;) {
        struct hl_pool_rest *r = *at;
        if (!hl_rest_recall(r->word)) {
            at = &r->next;
            continue;
        }
        *at = r->next;
        r->taken = true;
        n->pins--;
    }
    return n->pins == 0;
}
