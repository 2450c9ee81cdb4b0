/* Carries out what was decided: copies, and allocates and frees memory.
 *
 * The steps of pool_move, and what each leaves behind if it or a later one fails:
 *
 *   1 pool_host_room  other chunks leave the host      they stay below
 *   2 copy_out        device -> host                   memory as before; in mode copy the copies
 *                                                      that arrived are kept, since they do no harm
 *   3 let_go          device memory is freed           cannot fail
 *   4 pool_fetch      below -> host                    fetched chunks stay on the host
 *   5 show_fresh      host memory for new content      hide_fresh frees it again
 *   6 pool_load_all   host -> device                   loaded chunks leave the device again
 *
 * So a failure can change where chunks are, but never their content. pool_settle comes after all
 * steps and cannot fail: it records that the chunks are on the device, and that a chunk written
 * there makes the host's copy stale. All copies of a step begin before the first is waited for, so
 * they run concurrently; the caller waits for each of them, even after one has failed. */
#include "base/clock.h"
#include "hybridps/chunks/pool_private.h"

#define COPY_TIMEOUT_MS 60000

/* ---- copies ---- */

/* A copy that runs alone is made synchronously; the caller still has to wait for it. */
hl_status pool_begin(struct hl_chunk_pool *p, struct chunk *c, int out, int alone)
{
    if (p->o.fail != NULL && p->o.fail(p->o.fail_arg))
        return hl_fail(HL_EIO, "%s: a copy was made to fail", p->info.name);
    hl_status st = alone ? hl_chunk_copy_now(&c->mem, out) : hl_chunk_copy_begin(&c->mem, out);
    p->lost |= st == HL_ETIMEDOUT;
    c->flight = st == HL_OK;
    return st;
}

hl_status pool_wait(struct hl_chunk_pool *p, struct chunk *c)
{
    int made = p->o.fail != NULL && p->o.fail(p->o.fail_arg);
    hl_status st = hl_chunk_copy_wait(&c->mem, COPY_TIMEOUT_MS);
    /* After a timeout the copy may still write, so it counts as in flight for ever. */
    if (st == HL_ETIMEDOUT)
        p->lost = 1;
    else
        c->flight = 0;
    return st == HL_OK && made ? hl_fail(HL_EIO, "%s: a copy was made to fail", p->info.name) : st;
}

void pool_count_stall(struct hl_chunk_pool *p, uint64_t began)
{
    p->s.total.stalls++;
    p->s.total.stall_ns += hl_now_ns() - began;
}

/* Copies all chunks of moves.out to the host; all copies begin before the first is waited for. In
 * mode copy those that arrived are kept after a failure, where they do no harm. */
static hl_status copy_out(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    size_t begun = 0;
    uint64_t at = hl_now_ns();
    if (p->moves.out_count == 0)
        return HL_OK;
    for (; begun < p->moves.out_count && st == HL_OK; begun++) {
        struct chunk *c = &p->chunks[p->moves.out[begun]];
        c->host_before = (uint8_t)c->mem.host_state;
        st = pool_land(p, c);
        if (st == HL_OK)
            st = pool_begin(p, c, 1, p->moves.out_count == 1);
    }
    for (size_t i = 0; i < begun; i++) {
        struct chunk *c = &p->chunks[p->moves.out[i]];
        hl_status mine = c->flight ? pool_wait(p, c) : HL_EIO;
        if (mine == HL_OK)
            mine = pool_landed(c);
        st = st == HL_OK ? mine : st;
        c->arrived = mine == HL_OK;
        if (mine == HL_OK)
            p->s.total.d2h += c->r->bytes;
    }
    for (size_t i = 0; i < begun; i++) {
        struct chunk *c = &p->chunks[p->moves.out[i]];
        if (c->arrived && (st == HL_OK || p->o.copy))
            c->r->host = 1;
        else if (!p->lost)
            pool_unland(p, c, (enum hl_chunk_host)c->host_before);
    }
    pool_count_stall(p, at);
    return st;
}

/* The content of these chunks is on the host: it was copied there, or was there before. */
static void let_go(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->moves.leave_count; i++) {
        struct chunk *c = &p->chunks[p->moves.leave[i]];
        pool_leave_device(p, c);
        p->s.total.evictions++;
        p->s.total.drops += !c->arrived;
    }
}

/* Allocates device memory for chunk c and begins to copy its content. Its bytes are counted from
 * here on. */
hl_status pool_begin_load(struct hl_chunk_pool *p, struct chunk *c, int alone)
{
    pool_end_view(p, c);
    HL_TRY(pool_take_device(p, c));
    pool_seal(p, c);
    return c->r->host ? pool_begin(p, c, 0, alone) : HL_OK;
}

/* Completes a load whose copy has ended with st. */
hl_status pool_loaded(struct hl_chunk_pool *p, struct chunk *c, hl_status st)
{
    return st == HL_OK && p->serves ? hl_chunk_device_show(&c->mem, 1) : st;
}

static hl_status pool_load_all(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    uint64_t at = hl_now_ns();
    int waited = 0, count = 0;
    for (size_t i = 0; i < p->moves.load_count; i++)
        count += p->chunks[p->moves.load[i]].r->host;
    for (size_t i = 0; i < p->moves.load_count && st == HL_OK; i++)
        st = pool_begin_load(p, &p->chunks[p->moves.load[i]], count == 1);
    for (size_t i = 0; i < p->moves.load_count; i++) {
        struct chunk *c = &p->chunks[p->moves.load[i]];
        if (!c->flight)
            continue;
        hl_status mine = pool_loaded(p, c, pool_wait(p, c));
        st = st == HL_OK ? mine : st;
        waited = 1;
        if (mine == HL_OK) {
            p->s.total.h2d += c->r->bytes;
            p->s.total.loads++;
        }
    }
    for (size_t i = 0; i < p->moves.load_count && st != HL_OK; i++) {
        struct chunk *c = &p->chunks[p->moves.load[i]];
        if (c->loading)
            pool_leave_device(p, c);
        c->loading = 0;
    }
    if (waited)
        pool_count_stall(p, at);
    return st;
}

/* Makes host memory available to chunks without content; if a later step fails, hide_fresh takes it
 * back. */
static hl_status show_fresh(struct hl_chunk_pool *p)
{
    hl_status st = HL_OK;
    for (size_t i = 0; i < p->wanted_count && st == HL_OK; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (!(c->r->want & HL_WANT_HOST))
            continue;
        c->fresh = !c->r->host && !c->r->device;
        st = pool_set_host(p, c, HL_CHUNK_HOST_SHOWN);
        c->r->host = 1;
    }
    return st;
}

static void hide_fresh(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (!c->fresh)
            continue;
        c->r->host = 0;
        pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
    }
}

/* All chunks are where they are wanted; updates the accounting accordingly. */
void pool_settle(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++) {
        struct chunk *c = &p->chunks[p->wanted[i]];
        if (c->loading) {
            c->r->device = 1;
            c->loading = 0;
            hl_policy_loaded(p->policy, p->wanted[i]);
        }
        if ((c->r->want & HL_WANT_DEVICE) && !(c->r->want & HL_WANT_HOST) &&
            (!p->o.copy || (c->r->want & HL_WRITE_DEVICE))) {
            c->r->host = 0;
            pool_lower_host(p, c,
                            !p->o.copy || c->mem.host_state == HL_CHUNK_HOST_NONE
                                ? HL_CHUNK_HOST_NONE
                                : HL_CHUNK_HOST_HIDDEN);
        }
        pool_seal(p, c);
    }
}

hl_status pool_move(struct hl_chunk_pool *p)
{
    if (p->moves.leave_count + p->moves.out_count > 0)
        HL_TRY(pool_quiesce(p));
    for (size_t i = 0; i < p->moves.leave_count; i++)
        p->chunks[p->moves.leave[i]].leaving = 1;
    HL_TRY(pool_host_room(p, p->moves.host_bytes));
    HL_TRY(copy_out(p));
    let_go(p);
    HL_TRY(pool_fetch(p));
    hl_status st = show_fresh(p);
    if (st == HL_OK)
        st = pool_load_all(p);
    if (st != HL_OK && !p->lost)
        hide_fresh(p);
    return st;
}
