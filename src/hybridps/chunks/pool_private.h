/* hybridps/chunks/pool_private.h - what the parts of the pool of chunks share.
 *
 * Where a chunk's content is (r->host, r->device, r->below), and what moves it:
 *
 *                       load: a copy in               mode copy keeps the host's; else it ends
 *      on the host  --------------------->  on both --------------------+
 *       |     ^  ^                            |  |                      v
 *       |     |  +------ leaves: no copy -----+  +-- written there --> on the device
 *   put |     | get                                                     |
 *       v     |  +------------- leaves: copied out first ---------------+
 *      below  |  |
 *             on the host
 *
 * New chunks, and those whose content was discarded, are nowhere: an access finds memory of
 * undefined content.
 *
 * Threads: each call runs on one thread, under its caller's lock, so the accounting needs no
 *          atomics. Only copies run in parallel: on the device's own engine or thread, between
 *          pool_begin and pool_wait. Meanwhile the chunk is in flight: neither its memory nor its
 *          accounting may change. A copy that never ends leaves the pool `lost`; memory that it may
 *          still write to is not freed.
 *
 * Within an access a chunk goes through these flags, all 0 again when it ends:
 *   leaving      it is in moves.leave
 *   loading      it has device memory, and the accounting doesn't say so yet (until pool_settle)
 *   flight       a copy of it is in flight
 *   arrived      its content has come to the host by a copy of this access
 *   fresh        it had no content anywhere; the host's memory is new
 *   host_before  state of its host memory, to go back to if the copy fails */
#ifndef HL_HYBRIDPS_CHUNKS_POOL_PRIVATE_H
#define HL_HYBRIDPS_CHUNKS_POOL_PRIVATE_H

#include <stdbool.h>

#include "hybridps/chunks/chunks.h"
#include "hybridps/chunks/pool.h"
#include "hybridps/chunks/residency.h"

struct chunk {
    struct hl_chunk_memory mem;
    struct hl_resident *r; /* its accounting: where it is and which accesses need it */
    int kind;
    uint64_t
        /* handle of its content in the place below the host, if it is only there; 0 = none */
        below;
    uint64_t used; /* value of `accesses` when it was last accessed */
    /* within an access */
    uint8_t leaving, loading, flight, arrived, fresh, host_before;
    uint8_t newer; /* the host was written while the device also has the content; see pool_seal.c */
    /* device memory is closed, because the host's copy or a view of it was written */
    uint8_t device_closed;
    uint8_t ahead; /* a copy was begun for the next moment: AHEAD_IN or AHEAD_OUT */
    /* a view of it where it is absent; see pool_fault.c */
    uint8_t view;         /* VIEW_NONE, or the place where the view is */
    uint8_t view_written; /* the view may have been written */
    uint8_t unreadable;   /* in a forked child: it shows no content */
    uint64_t view_made;   /* the view's number */
    void *view_twin;      /* content before it was written; NULL unless view_written */
    void *snapshot;       /* during a fork: content that only the device has; see pool_fork.c */
};

enum { VIEW_NONE, VIEW_DEVICE, VIEW_HOST };

enum { AHEAD_IN = 1, AHEAD_OUT = 2 };

struct hl_chunk_pool {
    struct hl_chunk_pool_options o;
    struct hl_device *device;
    struct hl_device_info info;
    struct hl_policy *policy;
    struct chunk *chunks;
    struct hl_resident *r; /* of each chunk */
    uint32_t count, cap;
    uint64_t now, accesses;
    bool lost; /* a copy never ended */
    /* Until then no chunk leaves for a request: the device, or the host for the place below. */
    uint64_t leave_again_ns, below_again_ns;
    /* a chunk was pinned on the device since pool_quiesce, so kernels may still use it */
    bool used;
    struct hl_chunk_pool_stats s;
    uint32_t *wanted; /* chunks of an access; moves: what was decided for it */
    size_t wanted_count;
    struct hl_moves moves;
    uint32_t *ahead; /* chunks with a copy begun for the next moment */
    size_t ahead_count;
    bool serves;                    /* serves faults, so no thread may see a half-loaded chunk */
    uint64_t view_bytes, view_last; /* of existing views; number of the last view */
    uint32_t newer;                 /* number of chunks with `newer` set */
    int share;                      /* pool_share.c: the file of new chunks; 0 = none */
    unsigned share_kinds;           /* bits by kind */
    uint64_t share_end;             /* end of the file's bytes that chunks use */
};

/* pool_accounting.c: input for residency.h, as if the device had `avail` bytes. */
struct hl_residency pool_residency(struct hl_chunk_pool *p, uint64_t avail);
/* Clears what was wanted and decided. */
void pool_forget(struct hl_chunk_pool *p);
/* How many bytes the external accounting asks the pool to use at most; UINT64_MAX: any number. */
uint64_t pool_part(const struct hl_chunk_pool *p, bool on_host);
/* An attempt to meet a request that began then has failed: returns the time of the next one, so
 * that failures take little of a training's time, however slow they are. */
uint64_t pool_again(uint64_t began_ns);
/* Returns bytes to the external accounting. */
void pool_discharge(struct hl_chunk_pool *p, bool on_host, uint64_t bytes);

/* pool_device.c: waits until work that the caller began on the device, such as kernels that use
 * chunks, is over, so that chunks may be copied and leave. */
hl_status pool_quiesce(struct hl_chunk_pool *p) HL_CHECK;
/* Quiesces, then removes the chunk from the device even if that failed, because the context is lost
 * then. */
void pool_leave_device(struct hl_chunk_pool *p, struct chunk *c);
/* Allocates device memory for a chunk that begins to load, and counts it. */
hl_status pool_take_device(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;

/* mover.c: makes p->moves, or leaves contents unchanged; afterwards call settle, and forget in any
 * case. */
hl_status pool_move(struct hl_chunk_pool *p) HL_CHECK;
void pool_settle(struct hl_chunk_pool *p);
hl_status pool_begin(struct hl_chunk_pool *p, struct chunk *c, int out, int alone) HL_CHECK;
hl_status pool_begin_load(struct hl_chunk_pool *p, struct chunk *c, int alone) HL_CHECK;
hl_status pool_loaded(struct hl_chunk_pool *p, struct chunk *c, hl_status st) HL_CHECK;
hl_status pool_wait(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
void pool_count_stall(struct hl_chunk_pool *p, uint64_t began);
/* pool_spill.c: changes the state of host memory, and counts it. */
hl_status pool_set_host(struct hl_chunk_pool *p, struct chunk *c,
                        enum hl_chunk_host state) HL_CHECK;
void pool_lower_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state);
/* Host memory for content that is about to arrive and that no thread reads before. It is shown with
 * its content, or restored to its former state. */
hl_status pool_land(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
hl_status pool_landed(struct chunk *c) HL_CHECK;
void pool_unland(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host before);
/* Makes room for `more` bytes under the host's limit, by moving other chunks off the host; then, as
 * far as possible, gives back what the external accounting asks for. */
hl_status pool_host_room(struct hl_chunk_pool *p, uint64_t more) HL_CHECK;
/* Fetches wanted chunks that lie below to the host. */
hl_status pool_fetch(struct hl_chunk_pool *p) HL_CHECK;
hl_status pool_fetch_one(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* Discards content that lies below. */
void pool_end_below(struct hl_chunk_pool *p, struct chunk *c);
/* pool_seal.c: host memory is read-only as long as the device also has the content, or a view of
 * it; otherwise it is writable. */
void pool_seal(struct hl_chunk_pool *p, struct chunk *c);
/* pool_refresh.c: called when the host's bytes are being written without an access. */
hl_status pool_open_seal(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* Closes device memory whose bytes are out of date: the next reader faults and sees what was
 * written. Reopen it once the bytes are current. */
void pool_close_device(struct hl_chunk_pool *p, struct chunk *c);
hl_status pool_reopen_device(struct chunk *c) HL_CHECK;
/* Copies what was written on the host to the device, for a reader of the device. */
hl_status pool_copy_anew(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* Drops the device's copy, because the host's is the current one. */
void pool_drop_stale(struct hl_chunk_pool *p, struct chunk *c);
/* Brings what was written on the host to the device, or drops the device's copy. */
hl_status pool_refresh(struct hl_chunk_pool *p) HL_CHECK;
/* pool_share.c: gives a new chunk the file's memory if its kind is shared. */
hl_status pool_share_new(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* pool_fault.c: the chunk at that address, and the place the address belongs to; NULL: none. */
struct chunk *pool_chunk_at(struct hl_chunk_pool *p, uintptr_t at, int *place);
/* pool_view.c: the CPU's address of the chunk's content; NULL: it has none in memory. */
void *pool_view_content(const struct chunk *c);
/* Ends the chunk's view before its content moves or changes; what was written to it becomes
 * content. */
void pool_end_view(struct hl_chunk_pool *p, struct chunk *c);
/* Discards the content together with the view. */
void pool_drop_view(struct hl_chunk_pool *p, struct chunk *c);

#endif
