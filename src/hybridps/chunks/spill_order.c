/* Lists the moments of each chunk's uses, one list after the other; a query is a binary search. */
#include <stdlib.h>

#include "hybridps/chunks/spill.h"

struct hl_next_use {
    size_t chunks;
    uint64_t moments;
    uint32_t *first; /* [chunks + 1]: where a chunk's list begins */
    uint32_t *uses;
};

void hl_next_use_free(struct hl_next_use *n)
{
    if (n == NULL)
        return;
    free(n->first);
    free(n->uses);
    free(n);
}

hl_status hl_next_use_make(const struct hl_trace *t, struct hl_next_use **out)
{
    size_t needs = 0;
    for (size_t i = 0; i < t->moment_count; i++)
        needs += t->moments[i].need_count;
    struct hl_next_use *n = calloc(1, sizeof(*n));
    uint32_t *at = calloc(t->chunk_count + 1, sizeof(*at));
    if (n != NULL) {
        n->chunks = t->chunk_count;
        n->moments = t->moment_count;
        n->first = calloc(n->chunks + 2, sizeof(*n->first));
        n->uses = calloc(needs + 1, sizeof(*n->uses));
    }
    if (n == NULL || at == NULL || n->first == NULL || n->uses == NULL) {
        hl_next_use_free(n);
        free(at);
        return hl_fail(HL_ENOMEM, "out of memory allocating the order of uses");
    }
    for (size_t i = 0; i < t->moment_count; i++)
        for (size_t k = 0; k < t->moments[i].need_count; k++)
            n->first[t->moments[i].need[k].chunk + 1]++;
    for (size_t c = 0; c < n->chunks; c++)
        n->first[c + 1] += n->first[c];
    for (size_t i = 0; i < t->moment_count; i++)
        for (size_t k = 0; k < t->moments[i].need_count; k++) {
            uint32_t c = t->moments[i].need[k].chunk;
            n->uses[n->first[c] + at[c]++] = (uint32_t)i;
        }
    free(at);
    *out = n;
    return HL_OK;
}

uint64_t hl_next_use(const struct hl_next_use *n, uint32_t chunk, uint64_t moment)
{
    if (chunk >= n->chunks || n->first[chunk] == n->first[chunk + 1])
        return HL_NEXT_USE_NEVER;
    uint32_t low = n->first[chunk], end = n->first[chunk + 1];
    uint64_t again = n->uses[low] + n->moments;
    while (low < end) {
        uint32_t middle = low + (end - low) / 2;
        if (n->uses[middle] < moment)
            low = middle + 1;
        else
            end = middle;
    }
    return (low < n->first[chunk + 1] ? n->uses[low] : again) - moment;
}
