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
 * New chunks, and those whose content was ended, are nowhere: an access finds memory of undefined
 * content.
 *
 * A call is one thread's, under its caller's lock, so the accounting needs no atomics. Only copies
 * run beside it: on the device's own engine or thread, between pool_begin and pool_wait. Meanwhile
 * the chunk is in flight: neither its memory nor its accounting may change. A copy that never ends
 * leaves the pool `lost`; what it may still write is not given back.
 *
 * Within an access a chunk goes through these flags, all 0 again when it ends:
 *   leaving      it is in moves.leave
 *   loading      it has device memory, and the accounting doesn't say so yet (until pool_settle)
 *   flight       a copy of it is under way
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
    struct hl_resident *r; /* its accounting: where it is, which accesses need it */
    int kind;
    uint64_t
        below; /* its content's handle in the place below the host, and nowhere else; 0 = none */
    uint64_t used; /* accesses there had been when it was accessed last */
    /* within an access */
    uint8_t leaving, loading, flight, arrived, fresh, host_before;
    uint8_t newer; /* the host was written while the device has the content too; see pool_seal.c */
    uint8_t ahead; /* a copy was begun for the next moment: AHEAD_IN or AHEAD_OUT */
    /* a view for reads where it is not; see pool_fault.c */
    uint8_t view;         /* VIEW_NONE, or the place that it is in */
    uint8_t view_written; /* it may have been */
    uint8_t unreadable;   /* in a forked child: it shows no content */
    uint64_t view_made;   /* its number */
    void *view_twin;      /* what it was before; NULL unless view_written */
    void *snapshot;       /* during a fork: what only the device has; see pool_fork.c */
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
    bool used; /* a chunk was pinned on the device since pool_quiesce: what used it may still run */
    struct hl_chunk_pool_stats s;
    uint32_t *wanted; /* of an access; moves: what was decided for it */
    size_t wanted_count;
    struct hl_moves moves;
    uint32_t *ahead; /* chunks with a copy begun for the next moment */
    size_t ahead_count;
    bool serves;                    /* faults; so no thread may see a chunk half loaded */
    uint64_t view_bytes, view_last; /* of views that there are; the last one's number */
    uint32_t newer;                 /* chunks that are */
    int share;                      /* pool_share.c: the file of new chunks; 0 = none */
    unsigned share_kinds;           /* bits by kind */
    uint64_t share_end;             /* the file's bytes that chunks have */
};

/* pool_accounting.c: for residency.h, as if `avail` bytes were the device's. */
struct hl_residency pool_residency(struct hl_chunk_pool *p, uint64_t avail);
/* What was wanted and decided ends. */
void pool_forget(struct hl_chunk_pool *p);

/* mover.c: p->moves are made, or contents are as they were; then settle, and forget in any case. */
hl_status pool_move(struct hl_chunk_pool *p) HL_CHECK;
void pool_settle(struct hl_chunk_pool *p);
/* What the caller began on the device, as kernels that use chunks, is over: they may be copied and
 * leave. */
hl_status pool_quiesce(struct hl_chunk_pool *p) HL_CHECK;
/* Quiesces, and leaves all the same if that fails: the context is lost then. */
void pool_leave_device(struct hl_chunk_pool *p, struct chunk *c);
hl_status pool_begin(struct hl_chunk_pool *p, struct chunk *c, int out, int alone) HL_CHECK;
hl_status pool_begin_load(struct hl_chunk_pool *p, struct chunk *c, int alone) HL_CHECK;
hl_status pool_loaded(struct hl_chunk_pool *p, struct chunk *c, hl_status st) HL_CHECK;
hl_status pool_wait(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
void pool_count_stall(struct hl_chunk_pool *p, uint64_t began);
/* pool_spill.c: host memory changes its state, and is counted. */
hl_status pool_set_host(struct hl_chunk_pool *p, struct chunk *c,
                        enum hl_chunk_host state) HL_CHECK;
void pool_lower_host(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host state);
/* Host memory for content that is to come, which nobody reads before. It is shown with its
 * content, or is as it was. */
hl_status pool_land(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
hl_status pool_landed(struct chunk *c) HL_CHECK;
void pool_unland(struct hl_chunk_pool *p, struct chunk *c, enum hl_chunk_host before);
/* Bytes go back to the external accounting. */
void pool_discharge(struct hl_chunk_pool *p, bool on_host, uint64_t bytes);
/* Room for `more` bytes under the host's limit, and in the external accounting; others leave the
 * host for it. */
hl_status pool_host_room(struct hl_chunk_pool *p, uint64_t more) HL_CHECK;
/* What is wanted and lies below comes to the host. */
hl_status pool_fetch(struct hl_chunk_pool *p) HL_CHECK;
hl_status pool_fetch_one(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* Content that lies below ends. */
void pool_end_below(struct hl_chunk_pool *p, struct chunk *c);
/* pool_seal.c: host memory is sealed as long as the device has the content, or a view of it, too,
 * and open else. */
void pool_seal(struct hl_chunk_pool *p, struct chunk *c);
/* pool_refresh.c: somebody writes the host's bytes now, of whom no access told. */
hl_status pool_open_seal(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* What the device has of it goes, for the host has what counts. */
void pool_drop_stale(struct hl_chunk_pool *p, struct chunk *c);
/* What was written on the host is on the device too, or nothing is there. */
hl_status pool_refresh(struct hl_chunk_pool *p) HL_CHECK;
/* pool_share.c: a new chunk's host memory is the file's, if its kind is. */
hl_status pool_share_new(struct hl_chunk_pool *p, struct chunk *c) HL_CHECK;
/* pool_fault.c: the chunk at that address, and in which place; NULL: none. */
struct chunk *pool_chunk_at(struct hl_chunk_pool *p, uintptr_t at, int *place);
/* The chunk's view ends, before its content moves or changes; what was written to it
 * becomes content. */
/* NULL: it has none. */
void *pool_view_content(const struct chunk *c);
void pool_end_view(struct hl_chunk_pool *p, struct chunk *c);
/* The content ends, and the view with it. */
void pool_drop_view(struct hl_chunk_pool *p, struct chunk *c);

#endif
