/* Checks a pool against itself: the state of every chunk, and the sums that the pool keeps. */
#include <inttypes.h>

#include "hybridps/chunks/pool_private.h"

static hl_status check_chunk(const struct hl_chunk_pool *p, uint32_t i)
{
    const struct chunk *c = &p->chunks[i];
    const struct hl_resident *r = &p->r[i];
    int memory = c->mem.count > 0, shown = c->mem.host_state == HL_CHUNK_HOST_SHOWN;
    const char *what = NULL;
    if (c->ahead)
        what = r->want != 0 || c->leaving || c->loading ? "is accessed while it is copied" : NULL;
    else if (r->want != 0 || c->leaving || c->loading || c->flight)
        what = "is still marked by an access";
    else if (r->host_memory != (uint8_t)c->mem.host_state || r->below != (c->below != 0))
        what = "and its accounting disagrees";
    else if ((r->device != 0) != memory)
        what = "and its device memory disagree";
    else if (r->host && !shown)
        what = "has content on the host, but nothing is shown there";
    else if (!r->host && shown)
        what = "shows stale bytes on the host";
    else if (r->device_pins > 0 && !r->device)
        what = "is pinned on the device and not there";
    else if (r->host_pins > 0 && !r->host)
        what = "is pinned on the host and not there";
    else if (!p->o.copy && r->device && r->host)
        what = "is in two places in mode move";
    else if (c->below != 0 && (r->device || r->host || c->mem.host_state != HL_CHUNK_HOST_NONE))
        what = "is below the host and somewhere else too";
    return what == NULL ? HL_OK
                        : hl_fail(HL_ECORRUPT, "%s: chunk %" PRIu32 " %s", p->info.name, i, what);
}

hl_status hl_chunk_pool_audit(struct hl_chunk_pool *p)
{
    uint64_t device = 0, host = 0, pinned = 0, span = 0, below = 0;
    struct hl_device_info info;
    for (uint32_t i = 0; i < p->count; i++) {
        const struct chunk *c = &p->chunks[i];
        const struct hl_resident *r = &p->r[i];
        HL_TRY(check_chunk(p, i));
        device += c->mem.count > 0 ? r->bytes : 0;
        span += c->mem.count > 0 ? c->mem.span : 0;
        host += c->mem.host_state != HL_CHUNK_HOST_NONE ? r->bytes : 0;
        pinned += r->device_pins > 0 ? r->bytes : 0;
        below += c->below != 0 ? r->bytes : 0;
    }
    if (below != p->s.below)
        return hl_fail(HL_ECORRUPT,
                       "%s: chunks have %" PRIu64
                       " bytes below the host; the accounting says %" PRIu64,
                       p->info.name, below, p->s.below);
    hl_device_info(p->device, &info);
    if (device != p->s.device || host != p->s.host || pinned != p->s.pinned || span != info.used)
        return hl_fail(HL_ECORRUPT,
                       "%s: chunks have %" PRIu64 " bytes on the device (%" PRIu64
                       " mapped), %" PRIu64 " on the host, %" PRIu64
                       " pinned; the accounting says %" PRIu64 " (%" PRIu64 "), %" PRIu64
                       ", %" PRIu64,
                       p->info.name, device, span, host, pinned, p->s.device, info.used, p->s.host,
                       p->s.pinned);
    return hl_device_audit(p->device);
}
