/* The chunks in a forked child: it sees their content as it was at the fork, whatever the parent
 * does later.
 *
 * Host memory becomes the child's own by the fork itself. The emulated device's memory is shared
 * with the parent, so content that is only there is copied before the fork; the child gets these
 * copies in place of the device's memory, and the parent frees them. All other addresses are closed
 * in the child, and a fault there installs a copy of the content. That is all a child can do: it
 * moves nothing, and a write to a chunk in one place does not reach its other place. */
#include <stdlib.h>

#include "base/log.h"
#include "hybridps/chunks/pool_private.h"

void hl_chunk_pool_before_fork(struct hl_chunk_pool *p)
{
    hl_chunk_pool_settle_ahead(p);
    for (uint32_t i = 0; i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (c->device_closed && !c->newer)
            pool_end_view(p, c); /* writes to the view are part of the content */
        if (!c->r->device || c->r->host || c->mem.shared)
            continue;
        hl_status st =
            hl_chunk_snapshot_take(&c->mem, (const void *)(uintptr_t)c->mem.address, &c->snapshot);
        if (st != HL_OK)
            hl_warn("hybridps: a forked child can't read what is on the device: %s",
                    hl_error_text());
    }
}

void hl_chunk_pool_after_fork(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        hl_chunk_snapshot_drop(&p->chunks[i].mem, p->chunks[i].snapshot);
        p->chunks[i].snapshot = NULL;
    }
}

/* Otherwise the child would also see what others publish later. */
static void close_shared(struct chunk *c)
{
    hl_chunk_view_drop(&c->mem, false);
    hl_chunk_view_drop(&c->mem, true);
    c->mem.host_state = HL_CHUNK_HOST_NONE;
    c->r->host = c->r->device = 0;
    c->view = VIEW_NONE;
}

void hl_chunk_pool_in_child(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (c->mem.shared)
            close_shared(c);
        if (c->mem.count == 0 || c->mem.shared)
            continue; /* no device memory is mapped; a view is private, so it is right already */
        hl_chunk_view_drop(&c->mem, false);
        if (c->snapshot != NULL && hl_chunk_snapshot_show(&c->mem, false, c->snapshot) != HL_OK)
            hl_error_clear(); /* a reader ends with a fault, as if faults were not served */
    }
}

HL_CHECK static hl_status show_copy(struct chunk *c, bool on_host, const void *content)
{
    void *copy = NULL;
    HL_TRY(hl_chunk_snapshot_take(&c->mem, content, &copy));
    hl_status st = hl_chunk_snapshot_show(&c->mem, on_host, copy);
    if (st != HL_OK)
        hl_chunk_snapshot_drop(&c->mem, copy);
    return st;
}

hl_status hl_chunk_pool_child_fault(struct hl_chunk_pool *p,
                                    const struct hl_pagefault_access *access, uint32_t *chunk,
                                    const char **lost)
{
    int place = VIEW_NONE;
    struct chunk *c = pool_chunk_at(p, (uintptr_t)access->address, &place);
    if (c == NULL || p->lost)
        return HL_ENOENT;
    *chunk = (uint32_t)(c - p->chunks);
    bool on_host = place == VIEW_HOST;
    if (c->view == place || (on_host && c->mem.host_state == HL_CHUNK_HOST_SHOWN))
        return hl_chunk_view_open(&c->mem, on_host, true); /* it is readable, so this is a write */
    const void *content = pool_view_content(c);
    if (c->below != 0)
        *lost = "it was in the place below the host when the process was forked";
    else if (c->mem.shared)
        *lost = "ranks have it in one copy, which changes";
    else if (content == NULL)
        *lost = "its content had ended before the fork";
    else if (!on_host && !c->r->host)
        *lost = "it was on the device when the process was forked, and no copy could be made";
    HL_TRY(show_copy(c, on_host, *lost == NULL ? content : NULL));
    c->view = (uint8_t)place;
    c->unreadable = *lost != NULL;
    return HL_OK;
}

void hl_chunk_pool_child_hide(struct hl_chunk_pool *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        struct chunk *c = &p->chunks[i];
        if (!c->unreadable)
            continue;
        hl_chunk_view_drop(&c->mem, false);
        hl_chunk_view_drop(&c->mem, true);
        c->view = VIEW_NONE;
        c->unreadable = 0;
    }
}
