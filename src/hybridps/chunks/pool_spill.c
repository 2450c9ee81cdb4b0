/* Room on a full host. What is stale goes first, and costs nothing; then, of all that is not in
 * use, what will be needed last (where no record tells, what was used longest ago): a host copy of
 * what is on the device too is dropped, and what is only here goes below. A chunk leaves the host
 * when the copy below is sealed, and comes back whole before that copy ends. */
#include <inttypes.h>
#include <stdio.h>

#include "hybridps/chunks/pool_private.h"

static int in_use(const struct chunk *c)
{
    return c->host_pins > 0 || c->want != 0 || c->leaving || c->loading || c->flight || c->ahead;
}

/* Larger is later. */
static uint64_t next_use(const struct hl_chunk_pool *p, uint32_t i)
{
    uint64_t next = 0;
    if (p->o.next_use != NULL && p->o.next_use(p->o.next_use_arg, i, &next))
        return next;
    return UINT64_MAX - p->chunks[i].used;
}

static struct chunk *find_victim(struct hl_chunk_pool *p)
{
    struct chunk *found = NULL;
    uint64_t latest = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (in_use(c) || c->mem.host_state == HL_CHUNK_HOST_NONE)
            continue;
        if (c->mem.host_state == HL_CHUNK_HOST_HIDDEN)
            return c;
        if (!c->host || (!c->device && p->o.spill == NULL))
            continue;
        uint64_t next = next_use(p, i);
        if (found == NULL || next > latest) {
            found = c;
            latest = next;
        }
    }
    return found;
}

static void forget_below(struct hl_chunk_pool *p, struct chunk *c)
{
    p->o.spill->drop(p->o.spill_arg, c->below);
    c->below = 0;
    p->s.below -= c->bytes;
}

static hl_status put_below(struct hl_chunk_pool *p, struct chunk *c)
{
    uint64_t handle = 0;
    pool_end_view(p, c);
    HL_TRY(p->o.spill->put(p->o.spill_arg, c->mem.host, c->mem.span, &handle));
    c->below = handle;
    c->host = 0;
    p->s.below += c->bytes;
    hl_status st = pool_set_host(p, c, HL_CHUNK_HOST_NONE);
    if (st != HL_OK) { /* the system would not take the memory back: nothing was won */
        c->host = 1;
        forget_below(p, c);
        return st;
    }
    p->s.below_out += c->bytes;
    if (p->s.below > p->s.below_peak)
        p->s.below_peak = p->s.below;
    return HL_OK;
}

/* HL_ENOENT, without text: nothing can go. */
static hl_status free_some(struct hl_chunk_pool *p)
{
    struct chunk *c = find_victim(p);
    if (c == NULL)
        return HL_ENOENT;
    if (c->host && !c->device)
        return put_below(p, c);
    int had = c->host;
    c->host = 0;
    hl_status st = pool_set_host(p, c, HL_CHUNK_HOST_NONE);
    if (st != HL_OK)
        c->host = (uint8_t)had;
    return st;
}

/* The host is full (said in `full`), and why nothing can be done about it. */
static hl_status fail_full(struct hl_chunk_pool *p, const char *full, hl_status st)
{
    p->s.host_short = 1;
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    if (st != HL_ENOENT)
        return hl_fail(st, "%s; a chunk could not be put to %s: %s", full,
                       p->o.spill != NULL ? p->o.spill->name : "the device", why);
    return hl_fail(HL_ENOSPC, "%s%s", full,
                   p->o.spill != NULL ? ", all of it in use" : ", and there is no place below it");
}

hl_status pool_host_room(struct hl_chunk_pool *p, uint64_t more)
{
    char full[256];
    while (p->o.host_bytes > 0 && p->s.host + more > p->o.host_bytes) {
        hl_status st = free_some(p);
        if (st == HL_OK)
            continue;
        snprintf(full, sizeof(full),
                 "%s: needs %" PRIu64 " bytes more on the host, where chunks have %" PRIu64
                 " of the %" PRIu64 " they may have",
                 p->info.name, more, p->s.host, p->o.host_bytes);
        return fail_full(p, full, st);
    }
    return HL_OK;
}

hl_status pool_charge_host(struct hl_chunk_pool *p, uint64_t bytes)
{
    char full[HL_ERROR_TEXT_MAX / 2];
    if (p->o.charge == NULL)
        return HL_OK;
    for (;;) {
        hl_status st = p->o.charge(p->o.charge_arg, 1, (int64_t)bytes);
        if (st != HL_ENOSPC)
            return st;
        snprintf(full, sizeof(full), "%s", hl_error_text());
        st = free_some(p);
        if (st != HL_OK)
            return fail_full(p, full, st);
    }
}

hl_status pool_fetch_one(struct hl_chunk_pool *p, struct chunk *c)
{
    HL_TRY(pool_set_host(p, c, HL_CHUNK_HOST_SHOWN));
    hl_status st = p->o.spill->get(p->o.spill_arg, c->below, c->mem.host, c->mem.span);
    if (st != HL_OK) {
        pool_lower_host(p, c, HL_CHUNK_HOST_NONE);
        return hl_fail_prefix(st, "%s: chunk %u could not be fetched from %s: ", p->info.name,
                              (unsigned)(c - p->chunks), p->o.spill->name);
    }
    c->host = 1;
    p->s.below_in += c->bytes;
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
