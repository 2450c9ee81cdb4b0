/* Tensors that are accessed outside of their access: see chunks/pool_fault.c. */
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/log.h"
#include "hybridps/client/client_private.h"

/* Returns the index + 1 of the tensor at this address of the chunk; 0: between two tensors. */
static uint32_t tensor_at(const struct hybridps *h, uint32_t chunk, const void *address)
{
    struct hl_chunk_info info;
    hl_chunk_pool_info(h->pool, chunk, &info);
    uint64_t span = info.bytes, at = (uintptr_t)address - (uintptr_t)info.host;
    if (at >= span)
        at = (uintptr_t)address - (uintptr_t)info.address;
    for (uint32_t i = 0; i < h->tensors.count; i++) {
        const struct hl_tensor *x = &h->tensors.list[i];
        if (x->chunk == chunk && at - x->offset < x->bytes)
            return i + 1;
    }
    return 0;
}

/* Serves a fault in a fork of the client's process: pool_fork.c. Unreadable content is mapped all
 * the same, because no signal may end a child for it; the callback `later` or the log reports
 * it. */
static bool serve_child(struct hybridps *h, const struct hl_pagefault_access *access)
{
    uint32_t chunk = 0;
    const char *lost = NULL;
    hl_status st = hl_chunk_pool_child_fault(h->pool, access, &chunk, &lost);
    if (st == HL_ENOENT)
        return false;
    if (st != HL_OK)
        hl_warn("hybridps: a forked child can't be shown a tensor: %s", hl_error_text());
    if (st != HL_OK || lost == NULL)
        return st == HL_OK;
    uint32_t tensor = tensor_at(h, chunk, access->address);
    const char *name = tensor > 0 ? h->tensors.list[tensor - 1].name : "(none)";
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text),
             "tensor \"%.100s\" can't be read in a forked child: %s; its bytes are not valid: read "
             "it before the fork, and keep a clone()",
             name, lost);
    if (h->told.text != NULL)
        snprintf(h->told.text, h->told.size, "%s", text);
    if (h->told.later == NULL || h->told.later(h->told.tell, h->told.arg) != 0)
        hl_warn("hybridps: %s", text);
    return true;
}

int hybridps_on_unreadable(hybridps *h, int (*later)(int (*tell)(void *), void *),
                           int (*tell)(void *arg), void *arg, char *text, size_t size)
{
    HL_TRY(client_enter(h));
    h->told = (struct client_told){later, tell, arg, text, size};
    return client_leave(h, HL_OK);
}

/* Holds the lock during the fork, so that the child does not inherit a half-finished change. */
static void client_fork(void *arg, enum hl_pagefault_fork when)
{
    struct hybridps *h = arg;
    if (when == HL_FORK_BEFORE && h->pid == getpid()) {
        pthread_mutex_lock(&h->lock);
        h->forking = true;
        hl_chunk_pool_before_fork(h->pool);
    }
    if (when == HL_FORK_BEFORE || !h->forking)
        return; /* if !forking: a child forks, and owns all its memory already */
    if (when == HL_FORK_PARENT)
        hl_chunk_pool_after_fork(h->pool);
    else
        hl_chunk_pool_in_child(h->pool);
    h->forking = false;
    pthread_mutex_unlock(&h->lock);
}

static bool client_serve(void *arg, const struct hl_pagefault_access *access)
{
    struct hybridps *h = arg;
    uint32_t chunk = 0;
    bool lost = false;
    if (h->pid != getpid())
        return serve_child(h, access);
    pthread_mutex_lock(&h->lock);
    hl_status st = hl_chunk_pool_fault(h->pool, access, &chunk, &lost);
    if (st == HL_OK && lost && h->lost == 0)
        h->lost = tensor_at(h, chunk, access->address);
    pthread_mutex_unlock(&h->lock);
    if (st != HL_OK && st != HL_ENOENT)
        hl_warn("hybridps: a tensor that is elsewhere could not be shown: %s", hl_error_text());
    return st == HL_OK;
}

int hybridps_serve_faults(hybridps *h)
{
    HL_TRY(client_enter(h));
    bool served = h->faults != NULL;
    struct hl_pagefault *faults = NULL;
    hl_status st = hl_chunk_pool_serve(h->pool);
    HL_TRY(client_leave(h, st));
    /* Without the lock held, because serving a fault takes it. */
    if (!served)
        HL_TRY(hl_pagefault_add(client_serve, client_fork, h, &faults));
    if (!served)
        h->faults = faults;
    return HL_OK;
}

int hybridps_settle(hybridps *h)
{
    hl_status st = HL_OK;
    if (h != NULL && h->pid != getpid())
        hl_chunk_pool_child_hide(h->pool);
    HL_TRY(client_enter(h));
    hl_chunk_pool_end_views(h->pool);
    uint32_t lost = h->lost;
    h->lost = 0;
    if (lost > 0)
        st = hl_fail(HL_ESTALE,
                     "%s: tensor \"%.100s\" was used after its content had ended (a gradient after "
                     "zero_grad, or a parameter whose gradient took its place); the bytes that "
                     "were read were not its values: keep a clone() of what you use later",
                     hl_chunk_pool_device(h->pool), h->tensors.list[lost - 1].name);
    return client_leave(h, st);
}

int hybridps_keep(hybridps *h, uint32_t tensor, int where, hybridps_kept *out)
{
    struct hl_chunk_kept kept;
    hybridps_kept told;
    HL_TRY(client_enter_ending(h));
    hl_status st = HL_ABI_CHECK(hybridps_kept, out);
    if (st == HL_OK && tensor >= h->tensors.count)
        st = hl_fail(HL_ENOENT, "there is no tensor %" PRIu32 "; %" PRIu32 " were registered",
                     tensor, h->tensors.count);
    if (st == HL_OK && h->tensors.list[tensor].chunk == HL_TENSOR_NONE)
        st = hl_fail(HL_EINVAL, "tensor \"%s\" has no chunk yet: make a layout first",
                     h->tensors.list[tensor].name);
    if (st == HL_OK && where != HYBRIDPS_HOST && where != HYBRIDPS_DEVICE)
        st = hl_fail(HL_EINVAL, "%d is neither host nor device", where);
    if (st == HL_OK)
        st = hl_chunk_pool_keep(h->pool, h->tensors.list[tensor].chunk, where == HYBRIDPS_HOST,
                                &kept);
    if (st == HL_OK) {
        h->ending = true;
        told = (hybridps_kept){.address = kept.address, .bytes = kept.bytes};
        st = HL_ABI_WRITE(hybridps_kept, &told, out);
    }
    return client_leave(h, st);
}

void hybridps_kept_free(void *address, uint64_t bytes)
{
    (void)munmap(address, bytes); /* can't fail for memory that hybridps_keep returned */
}
