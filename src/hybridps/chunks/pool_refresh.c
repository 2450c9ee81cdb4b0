/* Writes to sealed host memory, and the end of the state `newer` (see pool_seal.c): the device's
 * copy is updated from the host, or dropped. */
#include "hybridps/chunks/pool_private.h"

void pool_close_device(struct hl_chunk_pool *p, struct chunk *c)
{
    if (!p->serves || !c->r->device || c->device_closed)
        return;
    if (hl_chunk_device_show(&c->mem, false) == HL_OK)
        c->device_closed = 1;
    else
        hl_error_clear(); /* too many mappings: the next access makes the bytes current */
}

hl_status pool_reopen_device(struct chunk *c)
{
    if (c->device_closed && c->r->device)
        HL_TRY(hl_chunk_device_seal(&c->mem, c->r->host && !c->newer));
    c->device_closed = 0;
    return HL_OK;
}

hl_status pool_copy_anew(struct hl_chunk_pool *p, struct chunk *c)
{
    c->newer = 0;
    p->newer--;
    pool_seal(p, c);                      /* before the host's bytes are read */
    HL_TRY(hl_device_quiesce(p->device)); /* pinned: kernels that read it may be running */
    HL_TRY(hl_chunk_copy_now(&c->mem, false));
    p->s.total.h2d += c->r->bytes;
    return pool_reopen_device(c);
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
    else
        pool_close_device(p, c);
    return HL_OK;
}

hl_status pool_refresh(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count && p->newer > 0; i++) {
        struct chunk *c = &p->chunks[i];
        if (!c->newer)
            continue;
        if (c->r->device_pins > 0) {
            HL_TRY(pool_copy_anew(p, c));
            continue;
        }
        pool_drop_stale(p, c);
    }
    return HL_OK;
}
