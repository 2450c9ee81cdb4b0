/* Catches writes to host memory that no access announced, through a tensor or an array that a
 * program kept from an earlier access.
 *
 * Where the device has the same content as the host (mode copy), a write on the host makes the two
 * differ, and an unannounced write would be lost. So host memory is sealed there: it can be read,
 * and the first write to a chunk faults and opens the seal. The device's copy is dropped, so a
 * reader that uses an old address on the device gets what was written. If the chunk is pinned on
 * the device, it becomes `newer` instead: the device's memory is closed, and the host's bytes are
 * copied to it before the next access decides anything, or when it is read without an access, as a
 * backward pass through a graph of gradients does.
 *
 *    on both, sealed --write on the host--> on the host
 *                    \--pinned on the device--> on both, newer, closed
 *    on both, newer, closed --pool_refresh, or a read on the device--> on both, sealed
 *
 * A view of the device's place (pool_fault.c) seals the host too: a write there ends the view.
 *
 * The device's memory is sealed too, for addresses that a program took there before the chunk was
 * in both places. A write to it invalidates the host's copy. If the host's copy is pinned or was
 * written as well, the chunk leaves the device, and the write goes to a view (pool_fault.c).
 *
 * Sealing costs changes of access rights when a chunk comes to be in both places, and one fault for
 * a chunk that is written. Only pools that serve faults do it. */
#include "hybridps/chunks/pool_private.h"

void pool_seal(struct hl_chunk_pool *p, struct chunk *c)
{
    bool viewed = c->view == VIEW_DEVICE && !c->r->host_write;
    bool both = c->r->host && (((c->r->device || c->loading) && !c->newer) || viewed);
    if (!p->serves)
        return;
    if (c->mem.sealed != both && hl_chunk_host_seal(&c->mem, both) != HL_OK)
        hl_error_clear(); /* too many mappings: continue without seals */
    if (c->r->device && !c->device_closed && c->mem.device_sealed != (c->r->host != 0) &&
        hl_chunk_device_seal(&c->mem, c->r->host != 0) != HL_OK)
        hl_error_clear();
}
