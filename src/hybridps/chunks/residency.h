/* hybridps/chunks/residency.h - decides which chunks move so that all needed chunks are where they
 * are needed. Pure: it turns uses, sizes, limits and the accounting into a list of moves.
 *
 * A decision is all-or-nothing and does not change the accounting. Its moves are made in this
 * order: contents are copied `out` to the host, then chunks `leave` the device, then chunks `load`
 * onto it. By then the content of leaving chunks is on the host. No chunk leaves while there is
 * room. If bytes are asked for, further chunks leave for them, but none that the device needs in
 * this moment, and no decision fails because of them. Victims are ordered by turn, then rank, then
 * number:
 *   - what the host takes in this moment leaves anyway, so it goes first;
 *   - what the device needs in this moment goes last;
 *   - of the others, the policy's highest rank goes first.
 *
 * Owns:    a list of moves owns its arrays (hl_moves_fini). Zero-initialise.
 * Threads: one at a time.
 * Errors:  false: no set of victims makes enough room; the moves are then undefined. HL_ENOMEM from
 *          hl_moves_reserve.
 * Units:   bytes; moments, 0 = none has begun.
 * Limits:  when room is needed, a decision scans all chunks once, and the candidates once per
 *          victim.
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
    uint64_t expected;                /* the moment in which the device will need it, if known */
    uint64_t host_next;               /* the same for the host */
    uint8_t host_takes;               /* the host's use invalidates the device's copy */
    uint8_t device, host, below;      /* where its content is */
    uint8_t host_memory;              /* enum hl_host_memory */
    uint8_t want;                     /* what the access being decided wants */
    uint8_t busy;                     /* a move of it is in progress */
    uint8_t device_write, host_write; /* a pin there may write */
    uint32_t device_pins, host_pins;
};

struct hl_residency {
    const struct hl_resident *chunks;
    uint32_t count;
    bool copy;              /* mode copy: the host keeps content that is only read on the device */
    uint64_t now;           /* moment */
    uint64_t device, avail; /* bytes on the device, and the limit for them */
    uint64_t asked;         /* how many bytes of avail are to stay unused if possible */
    /* dirty: evicting it costs a copy. Called once per decision for each chunk that may leave. */
    double (*rank)(void *arg, uint32_t chunk, uint64_t now, bool dirty);
    /* Moments until the next use in any place; larger is later. */
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
    uint64_t load_bytes;          /* additional bytes on the device, before any chunk leaves */
    uint64_t host_bytes;          /* additional host memory */
    struct hl_victim *candidates; /* scratch */
    size_t cap;
};

/* Makes room for decisions over `chunks` chunks. */
hl_status hl_moves_reserve(struct hl_moves *m, size_t chunks) HL_CHECK;
void hl_moves_fini(struct hl_moves *m);
void hl_moves_clear(struct hl_moves *m);

/* Brings the chunks `wanted` (each named once, with .want set) to where they are wanted. */
bool hl_residency_access(const struct hl_residency *r, const uint32_t *wanted, size_t count,
                         struct hl_moves *m);
/* Decides which chunks leave now for the next moment, which accesses only `uses` under `avail`.
 * Also false when a victim is still pinned. The moves contain only the chunks that leave. */
bool hl_residency_ahead(const struct hl_residency *r, const struct hl_trace_use *uses, size_t count,
                        struct hl_moves *m);
/* Moves chunks 0 .. count - 1 to their `places` (plan.h's) if they have content. */
bool hl_residency_place(const struct hl_residency *r, const uint8_t *places, uint32_t count,
                        struct hl_moves *m);
/* Picks the chunk, among those not in use, whose host memory is freed: a stale one, else the one
 * that is needed last and whose content can go below (`spills`: there is such a place) or is on the
 * device too. */
bool hl_residency_host_victim(const struct hl_residency *r, bool spills, uint32_t *victim);

#endif
