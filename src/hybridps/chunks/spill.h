/* hybridps/chunks/spill.h - a place below the host, for chunks that nothing needs soon.
 *
 * Owns:    the place what it keeps; `close` ends all of it.
 * Threads: one at a time; the pool's caller holds a lock.
 * Errors:  HL_ENOSPC (full), HL_EUNAVAIL (gone), HL_ECORRUPT, HL_ESTALE (what it kept is lost),
 *          each with a sentence. A put that fails keeps nothing; a get that fails keeps what it
 *          has.
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
    /* It is there, sealed and checked, when this returns HL_OK. *handle is not 0. */
    hl_status (*put)(void *arg, const void *data, uint64_t bytes, uint64_t *handle);
    /* Verified; `data` is undefined after a failure. */
    hl_status (*get)(void *arg, uint64_t handle, void *data, uint64_t bytes);
    void (*drop)(void *arg, uint64_t handle);
    void (*close)(void *arg);
};

/* When a recorded iteration needs which chunk next, wherever. */
struct hl_next_use;

#define HL_NEXT_USE_NEVER UINT64_MAX

hl_status hl_next_use_make(const struct hl_trace *t, struct hl_next_use **out) HL_CHECK;
void hl_next_use_free(struct hl_next_use *n);
/* Moments from `moment` to its next use, this moment's included; the iteration comes again. */
uint64_t hl_next_use(const struct hl_next_use *n, uint32_t chunk, uint64_t moment);

/* Sealed bytes in a pool that is mapped through its Unix socket (mem/socket): helios-l3d's, or
 * the node's store. They are this process's alone, and gone when it ends. Connects with the first
 * put. A daemon that is restarted finds them again, if this process is not stopped meanwhile for
 * HL_POOL_LEASE_MS. pause_ms: before one that is away is asked again, which nothing signals. Both
 * times: 0 = the defaults, 30 s and 20 ms. */
hl_status hl_spill_l3_open(const char *socket_path, int timeout_ms, int pause_ms,
                           const struct hl_spill_ops **ops, void **arg) HL_CHECK;

#endif
