/* Device memory of chunks: it is taken and given back here, and counted in the pool and in the
 * external accounting. */
#include "hybridps/chunks/pool_private.h"

static void count_device(struct hl_chunk_pool *p, const struct chunk *c, int sign)
{
    uint64_t bytes = sign > 0 ? c->r->bytes : -c->r->bytes;
    p->s.device += bytes;
    p->s.device_by_kind[c->kind] += bytes;
    if (p->s.device > p->s.device_peak)
        p->s.device_peak = p->s.device;
}

static hl_status charge_device(struct hl_chunk_pool *p, uint64_t bytes)
{
    return p->o.charge != NULL ? p->o.charge(p->o.charge_arg, 0, (int64_t)bytes) : HL_OK;
}

hl_status pool_quiesce(struct hl_chunk_pool *p)
{
    if (!p->used)
        return HL_OK;
    HL_TRY(hl_device_quiesce(p->device));
    p->used = false;
    return HL_OK;
}

hl_status pool_take_device(struct hl_chunk_pool *p, struct chunk *c)
{
    HL_TRY(charge_device(p, c->r->bytes));
    /* Another thread that reads at this address faults, and waits for the content. */
    hl_status st = hl_chunk_device_take(&c->mem, p->serves && c->r->host);
    if (st != HL_OK) {
        pool_discharge(p, 0, c->r->bytes);
        return st;
    }
    c->loading = 1;
    count_device(p, c, 1);
    return HL_OK;
}

void pool_leave_device(struct hl_chunk_pool *p, struct chunk *c)
{
    if (pool_quiesce(p) != HL_OK)
        hl_error_clear();
    hl_chunk_device_drop(&c->mem);
    c->r->device = 0;
    p->newer -= c->newer;
    c->newer = 0;
    c->device_closed = 0;
    count_device(p, c, -1);
    pool_discharge(p, 0, c->r->bytes);
}
