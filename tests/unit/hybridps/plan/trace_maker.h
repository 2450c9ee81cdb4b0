/* Random traces whose every moment fits, for tests. */
#ifndef TESTS_HYBRIDPS_TRACE_MAKER_H
#define TESTS_HYBRIDPS_TRACE_MAKER_H

#include <stdint.h>
#include <stdio.h>

#include "hybridps/plan/trace.h"

struct maker {
    uint64_t seed;
    int copy;
    unsigned chunks, moments, iterations;
    unsigned sizes; /* bytes are 1 .. sizes times `unit` */
    uint64_t unit;
    unsigned needs; /* maximum in a moment; 0 = 2 */
    unsigned slack; /* available besides what is needed: 0 .. slack units */
};

static inline unsigned maker_pick(struct maker *m, unsigned below)
{
    m->seed = m->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(m->seed >> 33) % below;
}

static inline void maker_moment(struct maker *m, struct hl_trace *t)
{
    uint64_t pinned = 0;
    if (hl_trace_add_moment(t, "S", "op", 0) != HL_OK)
        return;
    struct hl_trace_moment *mo = &t->moments[t->moment_count - 1];
    unsigned needs = maker_pick(m, 10) == 0 ? 0 : 1 + maker_pick(m, m->needs > 0 ? m->needs : 2);
    for (unsigned i = 0; i < needs; i++) {
        uint32_t c = maker_pick(m, m->chunks);
        bool on_host = maker_pick(m, 5) == 0, write = maker_pick(m, 3) == 0, twice = 0;
        for (size_t k = 0; k < mo->need_count; k++)
            twice |= mo->need[k].chunk == c;
        if (!twice && hl_trace_add_need(t, c, on_host, write) == HL_OK)
            pinned += on_host ? 0 : t->chunks[c].bytes;
        else if (m->copy && mo->need_count == 1 && !mo->need[0].write &&
                 hl_trace_add_need(t, c, !mo->need[0].on_host, 0) == HL_OK)
            pinned += mo->need[0].on_host ? t->chunks[c].bytes : 0; /* read in both places */
    }
    if (maker_pick(m, 8) == 0 && hl_trace_add_free(t, maker_pick(m, m->chunks)) != HL_OK)
        return;
    mo->avail = pinned + m->unit * maker_pick(m, m->slack + 1) + maker_pick(m, (unsigned)m->unit);
}

static inline void maker_make(struct maker *m, struct hl_trace *t)
{
    for (unsigned c = 0; c < m->chunks; c++) {
        char id[16];
        snprintf(id, sizeof(id), "c%u", c);
        if (hl_trace_add_chunk(t, id, 0, "param", m->unit * (1 + maker_pick(m, m->sizes)),
                               maker_pick(m, 4) != 0) != HL_OK)
            return;
    }
    for (unsigned i = 0; i < m->moments; i++)
        maker_moment(m, t);
    t->iterations = m->iterations;
}

#endif
