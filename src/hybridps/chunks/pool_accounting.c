/* Connects the pool's accounting with residency.c: which chunks are needed next, the rank by which
 * chunks leave, and the end of a decision. Also returns bytes to the external accounting. */
#include <assert.h>

#include "base/clock.h"
#include "hybridps/chunks/pool_private.h"

#define PAUSE_FACTOR 20 /* a failed attempt to meet a request, and the pause after it */

static_assert((int)HL_CHUNK_HOST_NONE == HL_HOST_NONE &&
                  (int)HL_CHUNK_HOST_HIDDEN == HL_HOST_STALE &&
                  (int)HL_CHUNK_HOST_SHOWN == HL_HOST_CONTENT,
              "host memory has the same states in the accounting");

void hl_chunk_pool_expect(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct chunk *c = &p->chunks[uses[i].chunk];
        if (uses[i].chunk >= p->count)
            continue;
        if (uses[i].on_host) {
            c->r->host_next = p->now + 1;
            c->r->host_takes = !p->o.copy || uses[i].write;
        } else {
            c->r->expected = p->now + 1;
        }
    }
}

static double pool_rank(void *arg, uint32_t chunk, uint64_t now, bool dirty)
{
    struct hl_chunk_pool *p = arg;
    return hl_policy_rank(p->policy, chunk, now, dirty);
}

/* The next use according to the record. Without a record, the chunk that was used least recently is
 * assumed to be needed last. */
static uint64_t next_use(void *arg, uint32_t chunk)
{
    struct hl_chunk_pool *p = arg;
    uint64_t next = 0;
    if (p->o.next_use != NULL && p->o.next_use(p->o.next_use_arg, chunk, &next))
        return next;
    return UINT64_MAX - p->chunks[chunk].used;
}

uint64_t pool_part(const struct hl_chunk_pool *p, bool on_host)
{
    if (p->o.part == NULL || (!on_host && p->leave_again_ns > 0 && hl_now_ns() < p->leave_again_ns))
        return UINT64_MAX;
    return p->o.part(p->o.charge_arg, on_host);
}

uint64_t pool_again(uint64_t began_ns)
{
    uint64_t now = hl_now_ns();
    return now + PAUSE_FACTOR * (now - began_ns);
}

bool hl_chunk_pool_asked(const struct hl_chunk_pool *p)
{
    return p->o.part != NULL && (p->o.part(p->o.charge_arg, false) < UINT64_MAX ||
                                 p->o.part(p->o.charge_arg, true) < UINT64_MAX);
}

struct hl_residency pool_residency(struct hl_chunk_pool *p, uint64_t avail)
{
    uint64_t part = pool_part(p, false);
    return (struct hl_residency){.chunks = p->r,
                                 .count = p->count,
                                 .copy = p->o.copy != 0,
                                 .now = p->now,
                                 .device = p->s.device,
                                 .avail = avail,
                                 .asked = part < avail ? avail - part : 0,
                                 .rank = pool_rank,
                                 .next_use = next_use,
                                 .arg = p};
}

void pool_forget(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++)
        p->chunks[p->wanted[i]].r->want = p->chunks[p->wanted[i]].fresh = 0;
    for (size_t i = 0; i < p->moves.leave_count; i++)
        p->chunks[p->moves.leave[i]].leaving = 0;
    for (size_t i = 0; i < p->moves.out_count; i++)
        p->chunks[p->moves.out[i]].arrived = 0;
    hl_moves_clear(&p->moves);
    p->wanted_count = 0;
}

/* Freeing bytes can't be refused. If the manager's table can't be reached, it corrects itself when
 * this process has ended. */
void pool_discharge(struct hl_chunk_pool *p, bool on_host, uint64_t bytes)
{
    if (p->o.charge != NULL && p->o.charge(p->o.charge_arg, on_host, -(int64_t)bytes) != HL_OK)
        hl_error_clear();
}
