/* Chunks whose host memory is one copy for several processes, the ranks of one host.
 *
 *    the file      | chunk 0 | chunk 1 | ...    one copy, in the page cache
 *                       ^         ^
 *    each process   mapped privately: a process that writes a page gets its own copy of it
 *
 *    write ... publish      the owner's bytes go to the file, and its pages are the file's again
 *    renew                  the pages of the others too: they see what was published
 *
 *    withdraw               the file's pages of a chunk are freed, once no process reads them
 *
 * So a write means in each process the same as without sharing, and costs memory until the next
 * publication. The callers have to agree on who publishes what, and that no rank reads
 * meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/chunks/pool_private.h"
#include "os/file.h"

hl_status hl_chunk_pool_share(struct hl_chunk_pool *p, int file, unsigned kinds)
{
    if (kinds != 0 && p->share == 0) {
        int own = fcntl(file, F_DUPFD_CLOEXEC, 3);
        if (own < 0)
            return hl_fail(hl_status_of_errno(errno), "%s: the file that ranks share: %s",
                           p->info.name, strerror(errno));
        p->share = own;
    }
    p->share_kinds = kinds;
    return HL_OK;
}

hl_status pool_share_new(struct hl_chunk_pool *p, struct chunk *c)
{
    if ((p->share_kinds >> c->kind & 1) == 0)
        return HL_OK;
    HL_TRY(hl_chunk_memory_share(&c->mem, p->share, p->share_end));
    p->share_end += c->mem.span;
    return HL_OK;
}

HL_CHECK static hl_status check_shared(const struct hl_chunk_pool *p, uint32_t chunk)
{
    const struct chunk *c = &p->chunks[chunk];
    if (!c->mem.shared || c->r->host_pins == 0)
        return hl_fail(HL_EINVAL, "%s: chunk %u is not %s", p->info.name, (unsigned)chunk,
                       c->mem.shared ? "in use on the host" : "one that ranks share");
    return HL_OK;
}

hl_status hl_chunk_pool_publish(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                                uint64_t bytes)
{
    struct chunk *c = &p->chunks[chunk];
    HL_TRY(check_shared(p, chunk));
    HL_TRY(hl_chunk_host_publish(&c->mem, offset, bytes));
    return hl_chunk_pool_renew(p, chunk, offset, bytes);
}

hl_status hl_chunk_pool_withdraw(struct hl_chunk_pool *p, uint32_t chunk)
{
    struct chunk *c = &p->chunks[chunk];
    if (!c->mem.shared || c->r->host)
        return hl_fail(HL_EINVAL, "%s: chunk %u is %s", p->info.name, (unsigned)chunk,
                       c->mem.shared ? "on the host" : "not one that ranks share");
    return hl_chunk_host_withdraw(&c->mem);
}

hl_status hl_chunk_pool_renew(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                              uint64_t bytes)
{
    struct chunk *c = &p->chunks[chunk];
    bool sealed = c->mem.sealed;
    HL_TRY(check_shared(p, chunk));
    HL_TRY(hl_chunk_host_seal(&c->mem, false)); /* parts of pages are written */
    hl_status st = hl_chunk_host_renew(&c->mem, offset, bytes);
    if (sealed && hl_chunk_host_seal(&c->mem, true) != HL_OK)
        hl_error_clear(); /* continue without seals */
    return st;
}
