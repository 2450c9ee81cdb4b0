/* Moves chunks to where a plan begins: between two iterations, when nothing is pinned. Content is
 * kept, and every copy is counted. */
#include "hybridps/chunks/pool_private.h"
#include "hybridps/plan/plan.h"

static hl_status pool_choose_moves(struct hl_chunk_pool *p, const uint8_t *places, uint32_t count)
{
    for (uint32_t i = 0; i < p->count; i++)
        if (p->r[i].device_pins > 0 || p->r[i].host_pins > 0)
            return hl_fail(HL_EBUSY, "%s: chunk %u is pinned", p->info.name, (unsigned)i);
    struct hl_residency r = pool_residency(p, p->s.avail);
    if (!hl_residency_place(&r, places, count, &p->moves))
        return hl_fail(HL_ENOSPC, "%s: a plan begins with more than is available", p->info.name);
    for (size_t i = 0; i < p->moves.load_count; i++) {
        p->r[p->moves.load[i]].want = HL_WANT_DEVICE;
        p->wanted[p->wanted_count++] = p->moves.load[i];
    }
    return HL_OK;
}

/* Drops copies on the host that the plan does not expect. From here on exactly the planned bytes
 * move. */
static void forget_copies(struct hl_chunk_pool *p, const uint8_t *places, uint32_t count)
{
    for (uint32_t i = 0; i < count && i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (!c->r->device || !c->r->host || places[i] != HL_CHUNK_ON_DEVICE)
            continue;
        c->r->host = 0;
        pool_lower_host(p, c, HL_CHUNK_HOST_HIDDEN);
    }
}

hl_status hl_chunk_pool_place(struct hl_chunk_pool *p, const uint8_t *places, uint32_t count)
{
    if (p->lost)
        return hl_fail(HL_EUNAVAIL, "%s: the device did not answer; end the process", p->info.name);
    hl_chunk_pool_settle_ahead(p);
    HL_TRY(pool_refresh(p));
    hl_status st = pool_choose_moves(p, places, count);
    if (st == HL_OK)
        st = pool_move(p);
    if (st == HL_OK) {
        pool_settle(p);
        forget_copies(p, places, count);
        for (uint32_t i = 0; i < p->count; i++)
            pool_seal(p, &p->chunks[i]);
    }
    pool_forget(p);
    return st;
}
