/* hybridps/chunks/pool.h - chunks on one device and its host: where each one is, which are pinned,
 * and which leaves.
 *
 * A chunk's content is on the device, on the host, in both places (mode copy), or nowhere (new, or
 * discarded). In mode copy, content that is only on the device is dirty: evicting it costs a copy,
 * as it always does in mode move. When the host is full, content moves from there to a place below
 * (spill.h), and comes back through the host when it is accessed. Pinned chunks stay where they
 * are. An access plans everything that it will do on the device before it moves anything. Bytes are
 * reserved before they are taken, and given back if that fails. While the external accounting asks
 * for memory (`part`), each access makes chunks that are not in use leave for it.
 *
 * Owns:    the device, the chunks and the policy, until hl_chunk_pool_close.
 * Threads: one at a time; the caller holds a lock. Within a call, copies run in parallel with the
 *          caller.
 * Errors:  HL_ENOSPC with the bytes needed, available and pinned; HL_EBUSY for a chunk that is
 *          pinned in the other place; the device's. After a failure contents and pins are
 *          unchanged, but chunks may have left the device or the host. HL_ETIMEDOUT of a copy: the
 *          device is lost, and every later call fails.
 * Units:   bytes of chunks as they were added; moments.
 * Limits:  2^32 - 1 chunks.
 */
#ifndef HL_HYBRIDPS_CHUNKS_POOL_H
#define HL_HYBRIDPS_CHUNKS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "helios/hybridps.h"
#include "hybridps/chunks/policy.h"
#include "hybridps/chunks/spill.h"
#include "hybridps/plan/plan.h"
#include "os/pagefault.h"

struct hl_chunk_pool;

struct hl_chunk_pool_options {
    const char *device;
    const char *cuda_driver; /* library; NULL = libcuda.so.1 */
    bool copy;               /* mode copy; 0 = move */
    const char *policy;
    struct hl_policy_options policy_options;
    uint64_t host_bytes; /* limit; 0 = none */
    /* Optional external accounting, NULL = none: called when `bytes` more (or fewer, if negative)
     * are in use on the host or on the device. It may refuse more; the access then fails. */
    hl_status (*charge)(void *arg, bool on_host, int64_t bytes);
    /* Optional, NULL = nothing is ever asked for: how many bytes the pool is asked to use at most
     * in that place now; UINT64_MAX = any number. A request: no access fails because of it. */
    uint64_t (*part)(void *arg, bool on_host);
    void *charge_arg; /* of both */
    /* the place below, NULL = none; owned by the pool from open on */
    const struct hl_spill_ops *spill;
    void *spill_arg;
    /* Sets the moments until a chunk is needed next. Returns 0 if that is unknown; the least
     * recently used chunk then goes. */
    int (*next_use)(void *arg, uint32_t chunk, uint64_t *moments);
    void *next_use_arg;
    /* For tests: called before a copy begins and before it is waited for; true makes it fail. */
    int (*fail)(void *arg);
    void *fail_arg;
};

struct hl_chunk_info {
    int kind;
    uint64_t bytes;
    /* where its content is; content below the host counts as on the host */
    bool on_device, on_host;
    bool below;
    uint32_t device_pins, host_pins;
    void *host;       /* its addresses, which never change */
    uint64_t address; /* on the device */
};

struct hl_chunk_pool_stats {
    uint64_t capacity, granule, avail;
    uint64_t device, device_peak, host, host_peak, pinned;
    uint64_t peak_over_avail;
    uint64_t device_by_kind[HYBRIDPS_KINDS], host_by_kind[HYBRIDPS_KINDS];
    uint64_t below, below_peak;   /* bytes in the place below the host */
    uint64_t below_out, below_in; /* bytes written there, and read back */
    uint64_t given_back;          /* bytes that left because `part` asked for them */
    bool host_short;              /* the last access failed for lack of host memory */
    uint64_t chunks, pins;        /* pins: unreleased ones, in both places */
    uint64_t faults, fault_bytes; /* served faults; bytes copied for them */
    hybridps_traffic total;
};

hl_status hl_chunk_pool_open(const struct hl_chunk_pool_options *options,
                             struct hl_chunk_pool **out) HL_CHECK;
void hl_chunk_pool_close(struct hl_chunk_pool *p);

/* Adds a chunk without content. `bytes` are counted; `span` bytes really exist (0: the same). */
hl_status hl_chunk_pool_add(struct hl_chunk_pool *p, int kind, uint64_t bytes, uint64_t span,
                            uint32_t *chunk) HL_CHECK;
struct hl_policy *hl_chunk_pool_policy(struct hl_chunk_pool *p);
/* Begins a moment in which `avail` bytes are available to chunks. Eviction is deferred to the next
 * access; an access without uses forces it. */
void hl_chunk_pool_moment(struct hl_chunk_pool *p, uint64_t avail);
/* Announces which chunks the next moment will need; others are evicted before them. */
void hl_chunk_pool_expect(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count);
/* Call when everything for this moment is present; the next moment, with `avail`, will access
 * exactly these chunks. Evicts chunks that have to leave for them now, and fetches up to `most` of
 * them, in parallel with the caller: as far as there is room now, and only what would have to be
 * copied then anyway. */
void hl_chunk_pool_ahead(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count,
                         uint64_t avail, int most);
/* Finishes copies that were begun ahead. A failed one has no effect. */
void hl_chunk_pool_settle_ahead(struct hl_chunk_pool *p);

/* Moves chunks 0 .. count - 1, none of which may be pinned, to the given places (plan.h's) if they
 * have content. */
hl_status hl_chunk_pool_place(struct hl_chunk_pool *p, const uint8_t *places,
                              uint32_t count) HL_CHECK;

/* Gives back what is asked for now, between two iterations: as far as chunks that are not in use
 * can leave, and the host has room for them. */
void hl_chunk_pool_give_back(struct hl_chunk_pool *p);
/* Memory is asked for, so chunks may not be where a plan expects them. */
bool hl_chunk_pool_asked(const struct hl_chunk_pool *p);

/* All or nothing. A chunk may be named more than once and is pinned that many times. */
hl_status hl_chunk_pool_access(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                               size_t count) HL_CHECK;
void hl_chunk_pool_release(struct hl_chunk_pool *p, uint32_t chunk, bool on_host);
/* Discards the content of a chunk that is not pinned. */
void hl_chunk_pool_end(struct hl_chunk_pool *p, uint32_t chunk);

/* Handles an access to an address of a chunk in a place where the chunk is absent: shows its
 * content there, from whichever place has it, in extra host memory. No chunk moves, and only the
 * fault is counted or recorded. What is written there becomes the content when the view ends: with
 * the next access of the chunk, at the latest with hl_chunk_pool_end_views. *chunk is the chunk's
 * number; *lost: it has no content, and NaN bytes are shown. HL_ENOENT without text: the address
 * does not belong to a chunk. */
hl_status hl_chunk_pool_fault(struct hl_chunk_pool *p, const struct hl_pagefault_access *access,
                              uint32_t *chunk, bool *lost) HL_CHECK;
void hl_chunk_pool_end_views(struct hl_chunk_pool *p);
/* pool_fork.c: calls around a fork of a pool that serves faults: before it, then in the parent or
 * in the child. After that the child may only serve faults, with hl_chunk_pool_child_fault. *lost:
 * why there is no content, and NaN bytes are shown instead. */
void hl_chunk_pool_before_fork(struct hl_chunk_pool *p);
void hl_chunk_pool_after_fork(struct hl_chunk_pool *p);
void hl_chunk_pool_in_child(struct hl_chunk_pool *p);
hl_status hl_chunk_pool_child_fault(struct hl_chunk_pool *p,
                                    const struct hl_pagefault_access *access, uint32_t *chunk,
                                    const char **lost) HL_CHECK;
/* Makes addresses that the child was shown without content fault again. */
void hl_chunk_pool_child_hide(struct hl_chunk_pool *p);
/* pool_share.c: host memory of new chunks of these kinds (bits) is a single copy for all processes
 * that name this file and add the same chunks in the same order; 0: no kinds from now on. A write
 * is private to this process until it is published; renewing a part makes it what others have
 * published. The chunk must be pinned on the host for both. */
hl_status hl_chunk_pool_share(struct hl_chunk_pool *p, int file, unsigned kinds) HL_CHECK;
hl_status hl_chunk_pool_publish(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                                uint64_t bytes) HL_CHECK;
hl_status hl_chunk_pool_renew(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                              uint64_t bytes) HL_CHECK;
/* Frees the file's memory of a chunk until it is published again. The chunk's content must not be
 * on this process's host. */
hl_status hl_chunk_pool_withdraw(struct hl_chunk_pool *p, uint32_t chunk) HL_CHECK;
/* From now on hl_chunk_pool_fault may be called. HL_EUNSUPPORTED if the CPU can't reach the
 * device's memory. */
hl_status hl_chunk_pool_serve(struct hl_chunk_pool *p) HL_CHECK;

/* Lets the chunk's memory in one place outlive the pool; the caller has to unmap it. The content
 * ends up on the host; the device's addresses hold a separate copy from now on. The limits of host
 * memory no longer apply, and the pool only accepts further calls of this function and close.
 * HL_EUNSUPPORTED if faults are not served. */
struct hl_chunk_kept {
    void *address;
    uint64_t bytes;
};

hl_status hl_chunk_pool_keep(struct hl_chunk_pool *p, uint32_t chunk, bool on_host,
                             struct hl_chunk_kept *out) HL_CHECK;

void hl_chunk_pool_info(const struct hl_chunk_pool *p, uint32_t chunk, struct hl_chunk_info *out);
void hl_chunk_pool_stats(const struct hl_chunk_pool *p, struct hl_chunk_pool_stats *out);
const char *hl_chunk_pool_device(const struct hl_chunk_pool *p);
/* Compares the accounting with the chunks and the device; HL_ECORRUPT names what differs. */
hl_status hl_chunk_pool_audit(struct hl_chunk_pool *p) HL_CHECK;

#endif
