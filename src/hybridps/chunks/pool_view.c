/* The view of a chunk: pages that a program can access although the chunk is elsewhere. When the
 * view ends, what was written there goes back into the content. */

#include <stdlib.h>

#include "hybridps/chunks/pool_private.h"

void *pool_view_content(const struct chunk *c)
{
    if (c->r->host)
        return c->mem.host;
    return c->r->device ? (void *)(uintptr_t)c->mem.address : NULL;
}

void pool_drop_view(struct hl_chunk_pool *p, struct chunk *c)
{
    if (c->view == VIEW_NONE)
        return;
    hl_chunk_view_drop(&c->mem, c->view == VIEW_HOST);
    p->view_bytes -= c->mem.span;
    c->view = VIEW_NONE;
    c->view_written = 0;
    free(c->view_twin);
    c->view_twin = NULL;
}

/* A write that comes during this call faults and waits. */
void pool_end_view(struct hl_chunk_pool *p, struct chunk *c)
{
    uint64_t *to = pool_view_content(c), *twin = c->view_twin;
    if (!c->newer && pool_reopen_device(c) != HL_OK)
        hl_error_clear(); /* a reader faults again; if that fails too, the process ends */
    bool on_host = to == c->mem.host;
    if (c->view_written && to != NULL &&
        (on_host ? hl_chunk_host_seal(&c->mem, false) : hl_chunk_device_seal(&c->mem, false)) !=
            HL_OK)
        to = NULL;
    if (c->view_written && to != NULL &&
        hl_chunk_view_open(&c->mem, c->view == VIEW_HOST, 0) == HL_OK) {
        const uint64_t *now =
            c->view == VIEW_HOST ? c->mem.host : (const void *)(uintptr_t)c->mem.address;
        for (uint64_t i = 0; i < c->mem.span / sizeof(*now); i++)
            if (now[i] != twin[i])
                to[i] = now[i];
    }
    pool_drop_view(p, c);
}
