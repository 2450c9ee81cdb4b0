#include "core/placement/chunk_request.h"

static uint64_t add_bytes(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t share_of(uint64_t bytes, double pct)
{
    return (uint64_t)((double)bytes * pct / 100);
}

uint64_t hl_chunk_request_decide(const struct hl_chunk_tier *t,
                                 const struct hl_placement_params *params, uint64_t before)
{
    uint64_t stay = t->stay < t->shards ? t->stay : t->shards;
    uint64_t use = add_bytes(t->shards, t->chunks);
    uint64_t goal = share_of(t->capacity, (params->low_pct + params->high_pct) / 2);
    if (t->capacity == 0 || t->chunks == 0)
        return 0;
    if (before == 0 &&
        (use <= share_of(t->capacity, params->high_pct) || add_bytes(stay, t->chunks) <= goal))
        return 0;
    if (before != 0 && use < share_of(t->capacity, params->low_pct))
        return 0;
    return goal > stay ? goal - stay : 1; /* 0 would ask for nothing */
}

uint64_t hl_chunk_request_part(uint64_t request, uint64_t chunks, uint64_t chunks_of_all)
{
    if (request == 0 || chunks == 0)
        return 0;
    uint64_t part = (uint64_t)((double)request * ((double)chunks / (double)chunks_of_all));
    return part > 0 ? part : 1;
}
