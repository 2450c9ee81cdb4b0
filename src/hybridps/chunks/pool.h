/* hybridps/chunks/pool.h - chunks on one device and its host: where each is, which are pinned,
 * which leaves.
 *
 * A chunk's content is on the device, on the host, in both (mode copy), or nowhere (new, or ended).
 * Content only on the device while mode is copy is dirty: leaving costs a copy, as it always does
 * in mode move. Where the host is full, content goes from there to a place below (spill.h), and
 * comes back by the host when it is accessed. What is pinned stays where it is. An access plans all
 * it will do on the device before it moves anything; bytes are reserved before they are taken and
 * given back if that fails.
 *
 * Owns:    the device, the chunks, the policy (hl_chunk_pool_close).
 * Threads: one at a time; the caller holds a lock. Copies run beside the caller within a call.
 * Errors:  HL_ENOSPC with what is needed, available and pinned; HL_EBUSY for a chunk that is
 *          pinned in the other place; the device's. After a failure contents and pins are as they
 *          were; chunks may have left the device or the host. HL_ETIMEDOUT of a copy: the device
 *          is lost, and every later call fails.
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
    /* Optional external accounting, NULL = none: `bytes` more (or fewer) are in use on the host or
     * on the device. A call for more may be refused; then the access fails. */
    hl_status (*charge)(void *arg, bool on_host, int64_t bytes);
    void *charge_arg;
    const struct hl_spill_ops *spill; /* the place below, NULL = none; the pool's from here on */
    void *spill_arg;
    /* Moments until a chunk is needed next; 0 = not known, then the least recently used goes. */
    int (*next_use)(void *arg, uint32_t chunk, uint64_t *moments);
    void *next_use_arg;
    /* For tests: called before a copy begins and before it is waited for; true makes it fail. */
    int (*fail)(void *arg);
    void *fail_arg;
};

struct hl_chunk_info {
    int kind;
    uint64_t bytes;
    bool on_device, on_host; /* content; what is below the host counts as being there */
    bool below;
    uint32_t device_pins, host_pins;
    void *host;       /* addresses, for ever */
    uint64_t address; /* on the device */
};

struct hl_chunk_pool_stats {
    uint64_t capacity, granule, avail;
    uint64_t device, device_peak, host, host_peak, pinned;
    uint64_t peak_over_avail;
    uint64_t device_by_kind[HYBRIDPS_KINDS], host_by_kind[HYBRIDPS_KINDS];
    uint64_t below, below_peak;   /* bytes in the place below the host */
    uint64_t below_out, below_in; /* bytes that went there, and came back */
    bool host_short;              /* the last access failed for want of host memory */
    uint64_t chunks, pins;        /* pins: of both places, not released */
    uint64_t faults, fault_bytes; /* that were served; bytes that were copied for them */
    hybridps_traffic total;
};

hl_status hl_chunk_pool_open(const struct hl_chunk_pool_options *options,
                             struct hl_chunk_pool **out) HL_CHECK;
void hl_chunk_pool_close(struct hl_chunk_pool *p);

/* `bytes` are counted; `span` bytes are really there (0: the same). No content yet. */
hl_status hl_chunk_pool_add(struct hl_chunk_pool *p, int kind, uint64_t bytes, uint64_t span,
                            uint32_t *chunk) HL_CHECK;
struct hl_policy *hl_chunk_pool_policy(struct hl_chunk_pool *p);
/* A new moment, in which `avail` bytes are for chunks. Eviction is deferred to the next access; an
 * access without uses forces it. */
void hl_chunk_pool_moment(struct hl_chunk_pool *p, uint64_t avail);
/* In the moment that begins next these will be needed: others leave before them. */
void hl_chunk_pool_expect(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count);
/* All of this moment is here; in the next, with `avail`, these and nothing else will be accessed.
 * Chunks that have to leave for them do so now, and up to `most` of them are fetched, beside what
 * the caller does: as far as there is room now, and only what would be copied then in any case. */
void hl_chunk_pool_ahead(struct hl_chunk_pool *p, const struct hl_trace_use *uses, size_t count,
                         uint64_t avail, int most);
/* Copies begun ahead come to their end. One that failed has done nothing. */
void hl_chunk_pool_settle_ahead(struct hl_chunk_pool *p);

/* Chunks 0 .. count - 1, none of which is pinned, go where they are said to be (plan.h's places) as
 * far as they have content. */
hl_status hl_chunk_pool_place(struct hl_chunk_pool *p, const uint8_t *places,
                              uint32_t count) HL_CHECK;

/* All or nothing; a chunk may be named more than once and is pinned as often. */
hl_status hl_chunk_pool_access(struct hl_chunk_pool *p, const struct hl_trace_use *uses,
                               size_t count) HL_CHECK;
void hl_chunk_pool_release(struct hl_chunk_pool *p, uint32_t chunk, bool on_host);
/* The content of a chunk that is not pinned ends. */
void hl_chunk_pool_end(struct hl_chunk_pool *p, uint32_t chunk);

/* `address` was touched, where its chunk is not: the content is shown there, whichever place
 * it is in, in host memory and beside all that moves; nothing is counted or recorded but the fault.
 * What is written there becomes the content when the view ends: with the next access of the chunk,
 * at the latest with hl_chunk_pool_end_views. *chunk is which; *lost: it has no content, and bytes
 * that are not numbers are shown. HL_ENOENT without text: the address is none of a chunk. */
hl_status hl_chunk_pool_fault(struct hl_chunk_pool *p, const struct hl_pagefault_access *access,
                              uint32_t *chunk, bool *lost) HL_CHECK;
void hl_chunk_pool_end_views(struct hl_chunk_pool *p);
/* pool_fork.c: around a fork of a pool that serves; before it, then in the parent or in the child,
 * where from then on only faults may be served, by the last one. *lost: why there is no content,
 * and bytes that are not numbers are shown. */
void hl_chunk_pool_before_fork(struct hl_chunk_pool *p);
void hl_chunk_pool_after_fork(struct hl_chunk_pool *p);
void hl_chunk_pool_in_child(struct hl_chunk_pool *p);
hl_status hl_chunk_pool_child_fault(struct hl_chunk_pool *p,
                                    const struct hl_pagefault_access *access, uint32_t *chunk,
                                    const char **lost) HL_CHECK;
/* What is shown in the child without content faults again. */
void hl_chunk_pool_child_hide(struct hl_chunk_pool *p);
/* pool_share.c: host memory of new chunks of these kinds (bits) is one copy for all processes that
 * name this file, and add the same chunks in the same order; 0 kinds: of none from now on. A write
 * is this process's alone until it is published; a part is renewed to be as others published it.
 * Both parts are pinned on the host. */
hl_status hl_chunk_pool_share(struct hl_chunk_pool *p, int file, unsigned kinds) HL_CHECK;
hl_status hl_chunk_pool_publish(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                                uint64_t bytes) HL_CHECK;
hl_status hl_chunk_pool_renew(struct hl_chunk_pool *p, uint32_t chunk, uint64_t offset,
                              uint64_t bytes) HL_CHECK;
/* The file's memory of a chunk is free, until it is published again; its content is not this
 * process's on the host. */
hl_status hl_chunk_pool_withdraw(struct hl_chunk_pool *p, uint32_t chunk) HL_CHECK;
/* From now on hl_chunk_pool_fault may be called. HL_EUNSUPPORTED where the CPU does not reach the
 * device's memory. */
hl_status hl_chunk_pool_serve(struct hl_chunk_pool *p) HL_CHECK;

/* The chunk's memory in one place outlives the pool: who asked unmaps it. Its content ends up on
 * the host; at the device's addresses there is a copy of its own from now on. No limit of host
 * memory holds any more, and the pool can only be asked for more of this, or closed. Where faults
 * are not served HL_EUNSUPPORTED. */
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
