/* Where in a plan the run is, and how much a segment is worth keeping. */

#include "hybridps/plan/plan_private.h"

#include <stdbool.h>

int64_t plan_moment(const struct hl_chunk_plan *p, uint64_t position)
{
    uint64_t k, left = p->iterations - p->loop_end;
    if (p->loop_end == 0)
        return (int64_t)position;
    k = position / p->moments;
    if (p->total > 0 && k + left >= p->total)
        k = k + p->iterations - p->total;
    else if (k >= p->loop_end)
        k = p->loop_first + (k - p->loop_first) % (p->loop_end - p->loop_first);
    return (int64_t)(k * p->moments + position % p->moments);
}

double plan_seg_rank(const struct hl_chunk_plan *p, enum plan_rule rule, const struct plan_seg *s,
                     bool dirty)
{
    int class = 0;
    /* Leaving now causes no copy that would not be made anyway. */
    bool is_free = !s->again && (s->owed || !s->useful || (p->copy && !dirty));
    if (rule != PLAN_BELADY && is_free)
        class = 3;
    else if (rule == PLAN_CLEAN_FIRST && p->copy && !dirty)
        class = 2;
    return (double)((int64_t) class * 2 * PLAN_NEVER + s->far);
}

/* Sets each chunk's current segment to its last use before the position, as if the run had followed
 * the plan so far. */
static void plan_jump(struct hl_chunk_plan *p)
{
    for (size_t c = 0; c < p->chunk_count; c++) {
        uint32_t at = p->first[c], end = p->first[c + 1];
        while (at < end && p->segs[at].start < p->position)
            at++;
        p->current[c] = at > p->first[c] ? at - 1 : end;
    }
}

void hl_chunk_plan_seek(struct hl_chunk_plan *p, uint64_t position)
{
    int64_t before = p->position;
    p->position = plan_moment(p, position);
    if (p->position == 0 || (p->position != before && p->position != before + 1))
        plan_jump(p);
}

void hl_chunk_plan_used(struct hl_chunk_plan *p, uint32_t chunk)
{
    if (chunk >= p->chunk_count)
        return;
    uint32_t first = p->first[chunk], end = p->first[chunk + 1], at = p->current[chunk];
    at = at == end ? first : at;
    while (at + 1 < end && p->segs[at + 1].start <= p->position)
        at++;
    p->current[chunk] = at;
}
