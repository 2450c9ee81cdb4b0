/* Serves faults on chunks that are accessed where they are not.
 *
 * A read of a tensor outside of its access gets a view: a snapshot of the content in host memory,
 * at the address that faulted. It costs a copy of the chunk and moves nothing, so the plans and the
 * limits of the device stay valid. Only a few read-only views exist at a time: the oldest ones are
 * dropped, and made again if they are accessed again.
 *
 * A view that is written keeps a twin of its original content. When the view ends, the words that
 * differ are written to the content, so what others wrote to other tensors of the chunk meanwhile
 * is preserved. Until then the device's memory, if it holds the content, is closed: a reader there
 * faults, and that ends the view.
 */
#include <stdlib.h>
#include <string.h>

#include "hybridps/chunks/pool_private.h"

/* Far more than one instruction can access. */
#define VIEWS_MIN  16
#define VIEW_BYTES ((uint64_t)64 << 20)

hl_status hl_chunk_pool_serve(struct hl_chunk_pool *p)
{
    if (strcmp(p->info.kind, "emu") != 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: the CPU does not reach its memory, so faults there can't be served",
                       p->info.name);
    hl_chunk_pool_settle_ahead(p);
    p->serves = true;
    return HL_OK;
}

void hl_chunk_pool_end_views(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count && p->view_bytes > 0; i++)
        pool_end_view(p, &p->chunks[i]);
}

/* Drops the oldest read-only views until there is room for one more. */
static void make_room(struct hl_chunk_pool *p, uint64_t span)
{
    for (;;) {
        struct chunk *oldest = NULL;
        uint32_t count = 0;
        for (uint32_t i = 0; i < p->count; i++) {
            struct chunk *c = &p->chunks[i];
            if (c->view == VIEW_NONE || c->view_written)
                continue;
            count++;
            if (oldest == NULL || c->view_made < oldest->view_made)
                oldest = c;
        }
        if (count < VIEWS_MIN || p->view_bytes + span <= VIEW_BYTES)
            return;
        pool_drop_view(p, oldest);
    }
}

static hl_status view_make(struct hl_chunk_pool *p, struct chunk *c, int place)
{
    make_room(p, c->mem.span);
    HL_TRY(hl_chunk_view_put(&c->mem, place == VIEW_HOST, pool_view_content(c)));
    c->view = (uint8_t)place;
    c->view_made = ++p->view_last;
    p->view_bytes += c->mem.span;
    p->s.faults++;
    p->s.fault_bytes += c->r->bytes;
    pool_seal(p, c);
    return HL_OK;
}

static hl_status view_write(struct hl_chunk_pool *p, struct chunk *c)
{
    const void *at = c->view == VIEW_HOST ? c->mem.host : (void *)(uintptr_t)c->mem.address;
    if (c->view_written)
        return HL_OK;
    void *twin = malloc(c->mem.span);
    if (twin == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a written view");
    memcpy(twin, at, c->mem.span);
    hl_status st = hl_chunk_view_open(&c->mem, c->view == VIEW_HOST, 1);
    if (st != HL_OK) {
        free(twin);
        return st;
    }
    c->view_twin = twin;
    c->view_written = 1;
    if (c->view == VIEW_HOST)
        pool_close_device(p, c);
    return HL_OK;
}

struct chunk *pool_chunk_at(struct hl_chunk_pool *p, uintptr_t at, int *place)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (at - (uintptr_t)c->mem.host < c->mem.span)
            *place = VIEW_HOST;
        else if (at - (uintptr_t)c->mem.address < c->mem.span)
            *place = VIEW_DEVICE;
        else
            continue;
        return c;
    }
    return NULL;
}

/* Content that is below the host is fetched first. */
static hl_status bring_up(struct hl_chunk_pool *p, struct chunk *c)
{
    if (c->below == 0)
        return HL_OK;
    HL_TRY(pool_host_room(p, c->r->bytes));
    return pool_fetch_one(p, c);
}

/* Handles a write on the device without an access, where the memory is sealed (pool_seal.c). */
HL_CHECK static hl_status chunk_open_device(struct hl_chunk_pool *p, struct chunk *c)
{
    if (c->r->host && !c->newer && c->r->host_pins == 0) {
        c->r->host = 0;
        pool_lower_host(p, c, HL_CHUNK_HOST_HIDDEN);
    } else if (c->r->host && c->r->device_pins == 0) {
        pool_drop_stale(p, c);
        return HL_OK;
    }
    return hl_chunk_device_seal(&c->mem, false);
}

hl_status hl_chunk_pool_fault(struct hl_chunk_pool *p, const struct hl_pagefault_access *access,
                              uint32_t *chunk, bool *lost)
{
    int place = VIEW_NONE;
    struct chunk *c = pool_chunk_at(p, (uintptr_t)access->address, &place);
    if (c == NULL || p->lost)
        return HL_ENOENT;
    hl_chunk_pool_settle_ahead(p);
    *chunk = (uint32_t)(c - p->chunks);
    bool again =
        c->view == place; /* readable, so this is a write, unless two faults came at once */
    if (c->view != VIEW_NONE && !again)
        pool_end_view(p, c);
    if (place == VIEW_HOST && c->mem.sealed)
        return pool_open_seal(p, c);
    if (place == VIEW_DEVICE && c->device_closed)
        return c->newer ? pool_copy_anew(p, c) : pool_reopen_device(c);
    bool reads = access->write_known && !access->write;
    if (place == VIEW_DEVICE && c->r->device && c->mem.device_sealed && !reads)
        HL_TRY(chunk_open_device(p, c));
    bool there = place == VIEW_HOST ? c->mem.host_state == HL_CHUNK_HOST_SHOWN : c->r->device;
    if (there)
        return HL_OK; /* the content has arrived meanwhile */
    if (!again && bring_up(p, c) != HL_OK)
        hl_error_clear(); /* content that can't be fetched is lost for this reader */
    if (place == VIEW_HOST && c->mem.host_state == HL_CHUNK_HOST_SHOWN)
        return HL_OK;
    *lost = pool_view_content(c) == NULL;
    if (!again)
        HL_TRY(view_make(p, c, place));
    bool write = access->write_known ? access->write : again;
    return write ? view_write(p, c) : HL_OK;
}
