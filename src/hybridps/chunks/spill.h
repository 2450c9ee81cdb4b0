/* hybridps/chunks/spill.h - a place below the host, for chunks that nothing needs soon.
 *
 * Owns:    the place owns what it keeps; `close` frees all of it.
 * Threads: one at a time; the pool's caller holds a lock.
 * Errors:  HL_ENOSPC (full), HL_EUNAVAIL (unreachable), HL_ECORRUPT, HL_ESTALE (the content is
 *          lost), each with a sentence. A failed put stores nothing; a failed get leaves the stored
 *          content.
 * Units:   bytes.
 * Limits:  the implementation's.
 */
#ifndef HL_HYBRIDPS_CHUNKS_SPILL_H
#define HL_HYBRIDPS_CHUNKS_SPILL_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "hybridps/plan/plan.h"

struct hl_spill_ops {
    const char *name; /* "L3", for messages */
    /* On HL_OK the content is stored, sealed and checked. *handle is not 0. */
    hl_status (*put)(void *arg, const void *data, uint64_t bytes, uint64_t *handle);
    /* Verified; `data` is undefined after a failure. */
    hl_status (*get)(void *arg, uint64_t handle, void *data, uint64_t bytes);
    void (*drop)(void *arg, uint64_t handle);
    void (*close)(void *arg);
};

/* When a recorded iteration next needs each chunk, in any place. */
struct hl_next_use;

#define HL_NEXT_USE_NEVER UINT64_MAX

hl_status hl_next_use_make(const struct hl_trace *t, struct hl_next_use **out) HL_CHECK;
void hl_next_use_free(struct hl_next_use *n);
/* Moments from `moment` to the chunk's next use, counting this moment's uses; the iteration is
 * assumed to repeat. */
uint64_t hl_next_use(const struct hl_next_use *n, uint32_t chunk, uint64_t moment);

/* A place that stores sealed bytes in a pool, mapped through its Unix socket (mem/socket):
 * helios-l3d's, or the node's store. They are private to this process, and freed when it ends.
 * Connects on the first put. A restarted daemon finds them again, unless this process stays stopped
 * for HL_POOL_LEASE_MS meanwhile. pause_ms: time before an unreachable daemon is tried again,
 * because nothing signals its return. Both times: 0 = the defaults, 30 s and 20 ms. */
hl_status hl_spill_l3_open(const char *socket_path, int timeout_ms, int pause_ms,
                           const struct hl_spill_ops **ops, void **arg) HL_CHECK;

#endif
