/* hybridps/chunks/residency.h - which chunks move so that those that are needed are where they are
 * needed. Pure: from uses, sizes, limits and the accounting to a list of moves.
 *
 * A decision is all-or-nothing and changes no accounting. Its moves are made in this order:
 * contents are copied `out` to the host, then chunks `leave` the device, then chunks `load` onto
 * it. What leaves has its content on the host by then. No chunk leaves while there is room; victims
 * leave in the order of turn, then rank, then number:
 *   - what the host takes in this moment leaves anyway, so it goes first;
 *   - what the device needs in this moment goes last;
 *   - of the others, the policy's highest rank goes first.
 *
 * Owns:    a list of moves owns its arrays (hl_moves_fini). Zero-initialise.
 * Threads: one at a time.
 * Errors:  false: no way of leaving makes room; the moves are undefined then.
 *          HL_ENOMEM of hl_moves_reserve.
 * Units:   bytes; moments, 0 = none has begun.
 * Limits:  a decision scans all chunks once where room is needed, and its candidates once a victim.
 */
#ifndef HL_HYBRIDPS_CHUNKS_RESIDENCY_H
#define HL_HYBRIDPS_CHUNKS_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "hybridps/plan/plan.h"

enum { HL_WANT_DEVICE = 1, HL_WANT_HOST = 2, HL_WRITE_DEVICE = 4, HL_WRITE_HOST = 8 };

/* Host memory of a chunk: none, content that is stale, content. */
enum hl_host_memory { HL_HOST_NONE, HL_HOST_STALE, HL_HOST_CONTENT };

/* The accounting of one chunk. */
struct hl_resident {
    uint64_t bytes;
    uint64_t expected;           /* the moment in which the device needs it, as far as is known */
    uint64_t host_next;          /* and the host, */
    uint8_t host_takes;          /* which ends what is on the device */
    uint8_t device, host, below; /* where its content is */
    uint8_t host_memory;         /* enum hl_host_memory */
    uint8_t want;                /* of the access that is decided */
    uint8_t busy;                /* a move of it has begun */
    uint8_t device_write, host_write; /* a pin there may write */
    uint32_t device_pins, host_pins;
};

struct hl_residency {
    const struct hl_resident *chunks;
    uint32_t count;
    bool copy;              /* mode copy: the host keeps what is only read on the device */
    uint64_t now;           /* moment */
    uint64_t device, avail; /* bytes on the device, and that may be */
    /* dirty: leaving costs a copy. Asked once a decision for each chunk that may leave. */
    double (*rank)(void *arg, uint32_t chunk, uint64_t now, bool dirty);
    /* Moments to the next use anywhere; larger is later. */
    uint64_t (*next_use)(void *arg, uint32_t chunk);
    void *arg;
};

struct hl_victim {
    double rank;
    uint32_t chunk;
    uint8_t turn;
};

struct hl_moves {
    uint32_t *out, *leave, *load;
    size_t out_count, leave_count, load_count;
    uint64_t load_bytes;          /* more on the device, before anybody leaves */
    uint64_t host_bytes;          /* more host memory */
    struct hl_victim *candidates; /* scratch */
    size_t cap;
};

/* For decisions over so many chunks. */
hl_status hl_moves_reserve(struct hl_moves *m, size_t chunks) HL_CHECK;
void hl_moves_fini(struct hl_moves *m);
void hl_moves_clear(struct hl_moves *m);

/* The chunks `wanted` (each once, with .want) come to where they are wanted. */
bool hl_residency_access(const struct hl_residency *r, const uint32_t *wanted, size_t count,
                         struct hl_moves *m);
/* Which chunks leave now for the access of the next moment, which is that of `uses` alone under
 * `avail`; false too when one of the victims is still pinned. The moves say which leave and nothing
 * else. */
bool hl_residency_ahead(const struct hl_residency *r, const struct hl_trace_use *uses, size_t count,
                        struct hl_moves *m);
/* Chunks 0 .. count - 1 go where `places` (plan.h's) says, as far as they have content. */
bool hl_residency_place(const struct hl_residency *r, const uint8_t *places, uint32_t count,
                        struct hl_moves *m);
/* Whose host memory is given back, of all that is not in use: what is stale; else what is needed
 * last, whose content goes below (`spills`: there is such a place) or is on the device too. */
bool hl_residency_host_victim(const struct hl_residency *r, bool spills, uint32_t *victim);

#endif
