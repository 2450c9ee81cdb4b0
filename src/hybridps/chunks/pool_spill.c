/* Host memory of chunks, and making room on a full host. residency.c decides which chunks leave: a
 * host copy of a chunk that is on the device too is dropped, and content that is only on the host
 * goes below.
 *
 *     on the host --- put_below: put (sealed), then host memory is freed --> below
 *     on the host <-- pool_fetch_one: host memory, get (checked), drop ----- below
 *
 * There is at least one whole copy at any time: a chunk leaves the host only when the copy below is
 * sealed, and the copy below is dropped only when the chunk is back. A step that fails undoes its
 * own part.
 *
 * Two limits apply to the host memory of chunks: host_bytes, and the external accounting, which
 * other processes share. free_some makes room for both, one victim at a time, and for what the
 * external accounting asks for; there a failure only ends the giving back. It skips chunks that a
 * move has begun with (r->busy), since a copy uses their memory. All of this runs on the caller's
 * thread; the only other thread, the keeper of leases (spill_l3.c), does not use chunks. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "hybridps/chunks/pool_private.h"

/* ---- host memory ---- */

/* asked: only chunks leave that this moment doesn't need. HL_ENOENT, without an error text: nothing
 * can leave the host. */
static hl_status free_some(struct hl_chunk_pool *p, bool asked) HL_CHECK;

/* The host is full (`full` says how), and st says why no room could be made. */
static hl_status fail_full(struct hl_chunk_pool *p, const char *full, hl_status st)
{
    p->s.host_short = 1;
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    if (st != HL_ENOENT)
        return hl_fail(st, "%s; a chunk could not be moved to %s: %s", full,
                       p->o.spill != NULL ? p->o.spill->name : "the device", why);
    return hl_fail(HL_ENOSPC, "%s%s", full,
                   p->o.spill != NULL ? ", all of it in use" : ", and no lower tier is configured");
}

static hl_status charge_host(struct hl_chunk_pool *p, uint64_t bytes)
{
    char full[HL_ERROR_TEXT_MAX / 2];
    if (p->o.charge == NULL)
        return HL_OK;
    for (;;) {
        hl_status st = p->o.charge(p->o.charge_arg, 1, (int64_t)bytes);
        if (st != HL_ENOSPC)
            return st;
        snprintf(full, sizeof(full), "%s", hl_error_text());
        st = free_some(p, false);
        if (st != HL_OK)
            return fail_full(p, full, st);
    }
}

/* Changes the state of host memory. Existing memory is counted, whether hidden or not. */
hl_status pool_set_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state)
{
    int had = c->mem.host_state != HL_CHUNK_HOST_NONE, has = state != HL_CHUNK_HOST_NONE;
    if (c->view == VIEW_HOST && state != c->mem.host_state)
        pool_end_view(p, c);
    if (has && !had)
        HL_TRY(charge_host(p, c->r->bytes));
    hl_status st = hl_chunk_host_set(&c->mem, state);
    c->r->host_memory = (uint8_t)c->mem.host_state;
    if (had == has)
        return st;
    if ((st == HL_OK) == had)
        pool_discharge(p, 1, c->r->bytes);
    HL_TRY(st);
    uint64_t bytes = has ? c->r->bytes : -c->r->bytes;
    p->s.host += bytes;
    p->s.host_by_kind[c->kind] += bytes;
    if (p->s.host > p->s.host_peak)
        p->s.host_peak = p->s.host;
    return HL_OK;
}

/* Lowering the state can only fail because of the number of mappings; then the memory stays, and
 * stays counted. */
void pool_lower_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state)
{
    if (pool_set_host(p, c, state) != HL_OK)
        hl_error_clear();
}

/* Where faults are not served, access to a closed address would end the process. */
hl_status pool_land(struct hl_chunk_pool *p, struct chunk *c)
{
    if (!p->serves)
        return pool_set_host(p, c, HL_CHUNK_HOST_SHOWN);
    if (c->view == VIEW_HOST)
        pool_end_view(p, c);
    HL_TRY(pool_set_host(p, c, HL_CHUNK_HOST_HIDDEN));
    if (hl_chunk_host_land(&c->mem) == HL_OK)
        return HL_OK;
    hl_error_clear(); /* too many mappings, or Linux before 5.7: as if faults were not served */
    return pool_set_host(p, c, HL_CHUNK_HOST_SHOWN);
}

hl_status pool_landed(struct chunk *c)
{
    if (c->mem.landing == NULL)
        return HL_OK;
    hl_status st = hl_chunk_host_landed(&c->mem);
    c->r->host_memory = (uint8_t)c->mem.host_state;
    return st;
}

void pool_unland(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host before)
{
    hl_chunk_host_unland(&c->mem);
    pool_lower_host(p, c, before);
}

/* ---- below ---- */

static void forget_below(struct hl_chunk_pool *p, struct chunk *c)
{
    p->o.spill->drop(p->o.spill_arg, c->below);
    c->below = 0;
    c->r->below = 0;
    p->s.below -= c->r->bytes;
}

static hl_status put_below(struct hl_chunk_pool *p, struct chunk *c)
{
    uint64_t handle = 0;
    pool_end_view(p, c);
    HL_TRY(p->o.spill->put(p->o.spill_arg, c->mem.host, c->mem.span, &handle));
    c->below = handle;
    c->r->below = 1;
    c->r->host = 0;
    p->s.below += c->r->bytes;
    hl_status st = pool_set_host(p, c, HL_CHUNK_HOST_NONE);
    if (st != HL_OK) { /* the system did not take the memory back, so nothing was gained */
        c->r->host = 1;
        forget_below(p, c);
        return st;
    }
    p->s.below_out += c->r->bytes;
    if (p->s.below > p->s.below_peak)
        p->s.below_peak = p->s.below;
    return HL_OK;
}

/* The current moment needs it, in either place. */
static bool is_needed(const struct hl_chunk_pool *p, const struct hl_resident *r)
{
    return p->now > 0 && (r->expected == p->now || r->host_next == p->now);
}

static hl_status free_some(struct hl_chunk_pool *p, bool asked)
{
    uint32_t victim = 0;
    HL_TRY(pool_refresh(p));
    for (uint32_t i = 0; i < p->count; i++)
        p->r[i].busy = p->chunks[i].leaving || p->chunks[i].loading || p->chunks[i].flight ||
                       p->chunks[i].ahead != 0 || (asked && is_needed(p, &p->r[i]));
    struct hl_residency r = pool_residency(p, p->s.avail);
    bool spills = p->o.spill != NULL &&
                  (!asked || p->below_again_ns == 0 || hl_now_ns() >= p->below_again_ns);
    if (!hl_residency_host_victim(&r, spills, &victim))
        return HL_ENOENT;
    struct chunk *c = &p->chunks[victim];
    if (c->r->host && !c->r->device)
        return put_below(p, c);
    int had = c->r->host;
    c->r->host = 0;
    hl_status st = pool_set_host(p, c, HL_CHUNK_HOST_NONE);
    if (st != HL_OK)
        c->r->host = (uint8_t)had;
    return st;
}

/* Frees host memory that is asked for, as far as possible. */
static void give_host_back(struct hl_chunk_pool *p, uint64_t more)
{
    uint64_t before = p->s.host;
    bool over = before > pool_part(p, true);
    hl_status st = HL_OK;
    while (st == HL_OK && p->s.host + more > pool_part(p, true)) {
        uint64_t began = hl_now_ns();
        st = free_some(p, true);
        if (st != HL_OK && st != HL_ENOENT)
            p->below_again_ns = pool_again(began);
    }
    if (st != HL_OK)
        hl_error_clear();
    p->s.given_back += over ? before - p->s.host : 0;
}

hl_status pool_host_room(struct hl_chunk_pool *p, uint64_t more)
{
    char full[256];
    while (p->o.host_bytes > 0 && p->s.host + more > p->o.host_bytes) {
        hl_status st = free_some(p, false);
        if (st == HL_OK)
            continue;
        snprintf(full, sizeof(full),
                 "%s: needs %" PRIu64 " more bytes on the host, where chunks use %" PRIu64
                 " of the %" PRIu64 " allowed",
                 p->info.name, more, p->s.host, p->o.host_bytes);
        return fail_full(p, full, st);
    }
    give_host_back(p, more);
    return HL_OK;
}

hl_status pool_fetch_one(struct hl_chunk_pool *p, struct chunk *c)
{
    hl_status st = pool_land(p, c);
    if (st == HL_OK)
        st = p->o.spill->get(p->o.spill_arg, c->below, hl_chunk_host_reach(&c->mem), c->mem.span);
    if (st == HL_OK)
        st = pool_landed(c);
    if (st != HL_OK) {
        pool_unland(p, c, HL_CHUNK_HOST_NONE);
        return hl_fail_prefix(st, "%s: chunk %u could not be fetched from %s: ", p->info.name,
                              (unsigned)(c - p->chunks), p->o.spill->name);
    }
    c->r->host = 1;
    p->s.below_in += c->r->bytes;
    forget_below(p, c);
    return HL_OK;
}

hl_status pool_fetch(struct hl_chunk_pool *p)
{
    for (size_t i = 0; i < p->wanted_count; i++)
        if (p->chunks[p->wanted[i]].below != 0)
            HL_TRY(pool_fetch_one(p, &p->chunks[p->wanted[i]]));
    return HL_OK;
}

void pool_end_below(struct hl_chunk_pool *p, struct chunk *c)
{
    if (c->below != 0)
        forget_below(p, c);
}
