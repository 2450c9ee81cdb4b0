/* Copies that one moment begins for the next. They follow the decision that the next access would
 * make: its victims are chosen among all chunks that will be unpinned by then, and if one of them
 * is still pinned now, nothing is done. So the same bytes are copied, and only the waiting is
 * shorter.
 *
 *    ahead:   0 --begin_fetching--> AHEAD_IN  --settle_in-->  0, on the device
 *             0 --begin_leaving---> AHEAD_OUT --settle_out--> 0, left the device
 *             a copy that fails: 0, and the chunk is where it was
 *
 * Where faults are served, a thread that accesses a leaving chunk (through an old p.data) faults
 * and waits; otherwise its write would be lost.
 *
 * The copies run while the caller computes, outside of any call of the pool. Nothing reads those
 * chunks meanwhile: every call that moves chunks, or ends the content of one of these, begins with
 * hl_chunk_pool_settle_ahead, which waits for all of them. Device memory of AHEAD_IN is counted as
 * soon as the copy begins, and that of AHEAD_OUT until the copy ends, so the limit always holds. */
#include "base/clock.h"
#include "hybridps/chunks/pool_private.h"

/* Undoes begin_leaving after the copy out has failed. */
static void chunk_stay(struct hl_chunk_pool *p, struct chunk *c)
{
    pool_unland(p, c, (enum hl_chunk_host)c->host_before);
    if (p->serves && hl_chunk_device_show(&c->mem, true) != HL_OK)
        p->lost = 1; /* the device's memory can't be accessed any more */
    c->device_closed = 0;
    hl_error_clear();
}

/* The chunk leaves at once if the host has the content. Otherwise a copy is begun, but only if
 * there is host memory for it without evicting another chunk. */
static void begin_leaving(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    if (c->r->host) {
        pool_leave_device(p, c);
        p->s.total.evictions++;
        p->s.total.drops++;
        return;
    }
    uint64_t more = c->mem.host_state == HL_CHUNK_HOST_NONE ? c->r->bytes : 0;
    if ((p->o.host_bytes > 0 && p->s.host + more > p->o.host_bytes) ||
        (more > 0 && p->s.host + more > pool_part(p, true)))
        return;
    c->host_before = (uint8_t)c->mem.host_state;
    hl_status st = p->serves ? hl_chunk_device_show(&c->mem, false) : HL_OK;
    if (st == HL_OK)
        st = pool_land(p, c);
    if (st == HL_OK)
        st = pool_begin(p, c, 1, 0);
    if (st == HL_OK) {
        c->ahead = AHEAD_OUT;
        p->ahead[p->ahead_count++] = chunk;
    } else {
        chunk_stay(p, c);
    }
}

/* Returns how many loads were begun: 1, or 0 if it failed, in which case nothing has changed. */
static bool begin_fetching(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    hl_status st = pool_begin_load(p, c, 0);
    if (st == HL_OK) {
        c->ahead = AHEAD_IN;
        p->ahead[p->ahead_count++] = chunk;
    } else {
        hl_error_clear();
        if (c->loading)
            pool_leave_device(p, c);
    }
    c->loading = 0;
    return st == HL_OK;
}

void hl_chunk_pool_ahead(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count,
                         uint64_t avail, int most)
{
    if (p->lost || p->ahead_count > 0 || most <= 0)
        return;
    hl_chunk_pool_expect(p, uses, count);
    struct hl_residency r = pool_residency(p, avail);
    if (!hl_residency_ahead(&r, uses, count, &p->moves))
        return pool_forget(p);
    if (p->moves.leave_count > 0 && pool_quiesce(p) != HL_OK) {
        hl_error_clear(); /* the next access reports it */
        return pool_forget(p);
    }
    for (size_t i = 0; i < p->moves.leave_count; i++)
        begin_leaving(p, p->moves.leave[i]);
    pool_forget(p);
    uint64_t limit = r.avail - r.asked < p->s.avail ? r.avail - r.asked : p->s.avail;
    for (size_t i = 0; i < count && most > 0; i++) {
        const struct chunk *c = &p->chunks[uses[i].chunk];
        if (!c->r->device && c->r->host && !c->ahead && c->r->host_pins == 0 &&
            p->s.device + c->r->bytes <= limit)
            most -= begin_fetching(p, uses[i].chunk);
    }
}

static void settle_in(struct hl_chunk_pool *p, uint32_t chunk, hl_status st)
{
    struct chunk *c = &p->chunks[chunk];
    if (st != HL_OK) {
        pool_leave_device(p, c);
        return;
    }
    c->r->device = 1;
    p->s.total.h2d += c->r->bytes;
    p->s.total.loads++;
    hl_policy_loaded(p->policy, chunk);
    if (!p->o.copy) {
        c->r->host = 0;
        pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
    }
    pool_seal(p, c);
}

static void settle_out(struct hl_chunk_pool *p, uint32_t chunk, hl_status st)
{
    struct chunk *c = &p->chunks[chunk];
    if (st == HL_OK)
        st = pool_landed(c);
    if (st != HL_OK) {
        chunk_stay(p, c);
        return;
    }
    c->r->host = 1;
    p->s.total.d2h += c->r->bytes;
    p->s.total.evictions++;
    pool_leave_device(p, c);
}

void hl_chunk_pool_settle_ahead(struct hl_chunk_pool *p)
{
    uint64_t began = p->ahead_count > 0 ? hl_now_ns() : 0;
    if (p->lost)
        return;
    for (size_t i = 0; i < p->ahead_count; i++) {
        struct chunk *c = &p->chunks[p->ahead[i]];
        int in = c->ahead == AHEAD_IN;
        hl_status st = pool_wait(p, c);
        if (in)
            st = pool_loaded(p, c, st);
        if (st == HL_ETIMEDOUT)
            return; /* the device is lost, and this memory with it */
        if (st != HL_OK)
            hl_error_clear();
        c->ahead = 0;
        if (in)
            settle_in(p, p->ahead[i], st);
        else
            settle_out(p, p->ahead[i], st);
    }
    if (p->ahead_count > 0)
        pool_count_stall(p, began);
    p->ahead_count = 0;
}
