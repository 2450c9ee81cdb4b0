/* A write to sealed host memory, and the end of `newer` (see pool_seal.c): what the device has is
 * the host's again, or gone. */
#include "hybridps/chunks/pool_private.h"

static hl_status chunk_copy_anew(struct hl_chunk_pool *p, struct chunk *c)
{
    c->newer = 0;
    p->newer--;
    pool_seal(p, c);                      /* before it is read */
    HL_TRY(hl_device_quiesce(p->device)); /* it is pinned: what reads it may run */
    HL_TRY(hl_chunk_copy_now(&c->mem, false));
    p->s.total.h2d += c->r->bytes;
    return HL_OK;
}

void pool_drop_stale(struct hl_chunk_pool *p, struct chunk *c)
{
    pool_leave_device(p, c);
    p->s.total.evictions++;
    p->s.total.drops++;
}

hl_status pool_open_seal(struct hl_chunk_pool *p, struct chunk *c)
{
    HL_TRY(hl_chunk_host_seal(&c->mem, false));
    if (!c->r->device || c->newer)
        return HL_OK;
    c->newer = 1;
    p->newer++;
    if (c->r->device_pins == 0)
        pool_drop_stale(p, c);
    return HL_OK;
}

hl_status pool_refresh(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count && p->newer > 0; i++) {
        struct chunk *c = &p->chunks[i];
        if (!c->newer)
            continue;
        if (c->r->device_pins > 0) {
            HL_TRY(chunk_copy_anew(p, c));
            continue;
        }
        pool_drop_stale(p, c);
    }
    return HL_OK;
}
