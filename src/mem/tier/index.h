/* mem/tier/index.h - index and counters of a tier whose medium keeps none.
 *
 * An entry keeps its slot for its whole life, so a listing by slots shows it exactly once. Changes
 * of the medium are bracketed by begin and end; in between the audit does not compare with the
 * medium.
 *
 * Owns:    its entries; what they hold in the medium is the back end's.
 * Threads: any; one mutex, not held during I/O. An entry that is WRITING or DROPPING belongs to the
 *          thread that put it into that state; one that is held or pinned stays in place.
 * Errors:  HL_EEXIST, HL_ENOENT, HL_EBUSY (pinned, or held too long), HL_ESTALE, HL_ENOMEM,
 *          HL_ECORRUPT.
 * Units:   bytes; `room` in the medium's whole units.
 * Limits:  2^32 - 1 entries.
 */
#ifndef HL_MEM_TIER_INDEX_H
#define HL_MEM_TIER_INDEX_H

#include <pthread.h>
#include <stdbool.h>
#include <uthash.h>

#include "mem/chunks.h"
#include "mem/tier/ops.h"

enum hl_tier_state { HL_TIER_WRITING, HL_TIER_SEALED, HL_TIER_DROPPING };

struct hl_tier_entry {
    struct hl_id id;
    uint64_t size;
    uint64_t room;
    enum hl_tier_state state;
    uint32_t slot;
    uint32_t gen;
    uint32_t pins;  /* by callers; a drop is refused */
    uint32_t holds; /* by running calls; a drop waits for them */
    uint32_t crc32;
    bool crc_known;   /* false: found in the medium, and its checksums are still to be learned */
    uint32_t *chunks; /* NULL: not known */
    uint64_t offset;
    void *medium; /* the back end's own; free()d with the entry */
    bool lost;    /* the insert into by_id ran out of memory */
    UT_hash_handle hh;
};

struct hl_tier_index {
    const char *name; /* of the tier, for error texts; borrowed */
    int numa_id;      /* of all entries */
    pthread_mutex_t lock;
    pthread_cond_t released;
    struct hl_tier_entry *by_id;
    struct hl_tier_entry **slots;
    uint32_t slot_count, slot_hint; /* no free slot is below the hint */
    uint32_t gen;
    unsigned busy; /* number of changes of the medium in progress */
    struct hl_tier_counts counts;
};

void hl_tier_index_init(struct hl_tier_index *x, const char *name, int numa_id);
void hl_tier_index_fini(struct hl_tier_index *x);

/* Adds an entry in state WRITING; its room is counted. */
hl_status hl_tier_index_add(struct hl_tier_index *x, struct hl_id id, uint64_t size, uint64_t room,
                            struct hl_tier_entry **out) HL_CHECK;
/* Adds a sealed entry that was found in the medium; its checksums are unknown. */
hl_status hl_tier_index_adopt(struct hl_tier_index *x, struct hl_id id, uint64_t size,
                              uint64_t room) HL_CHECK;
/* Seals the entry; takes ownership of `chunks` (from malloc). */
void hl_tier_index_seal(struct hl_tier_index *x, struct hl_tier_entry *e, uint32_t crc32,
                        uint32_t *chunks, struct hl_tier_ref *ref);
/* Removes an entry that is WRITING or DROPPING. */
void hl_tier_index_remove(struct hl_tier_index *x, struct hl_tier_entry *e);

/* The entry in that slot; the caller knows that there is one. */
struct hl_tier_entry *hl_tier_index_at(struct hl_tier_index *x, uint64_t slot);

/* Finds the sealed entry and holds it. */
hl_status hl_tier_index_hold(struct hl_tier_index *x, struct hl_id id,
                             struct hl_tier_entry **out) HL_CHECK;
/* Holds exactly the entry of a reference; HL_ESTALE if it is gone. */
hl_status hl_tier_index_hold_ref(struct hl_tier_index *x, const struct hl_tier_ref *ref,
                                 struct hl_tier_entry **out) HL_CHECK;
void hl_tier_index_release(struct hl_tier_index *x, struct hl_tier_entry *e);
/* Pins a held entry until unpin. */
struct hl_tier_ref hl_tier_index_pin(struct hl_tier_index *x, struct hl_tier_entry *e);
void hl_tier_index_unpin(struct hl_tier_index *x, const struct hl_tier_ref *ref);
struct hl_tier_ref hl_tier_index_ref(struct hl_tier_index *x, const struct hl_tier_entry *e);
bool hl_tier_index_crc_known(struct hl_tier_index *x, const struct hl_tier_entry *e);
/* Stores a held entry's checksums once they are known. Takes ownership of `chunks`, which may be
 * NULL. */
void hl_tier_index_learn(struct hl_tier_index *x, struct hl_tier_entry *e, uint32_t crc32,
                         uint32_t *chunks);
/* The held entry's chunk table, NULL while it is not known. */
const uint32_t *hl_tier_index_chunks(struct hl_tier_index *x, const struct hl_tier_entry *e);

/* Puts the entry into state DROPPING, where it is no longer found, until remove or restore. Waits
 * for the calls that hold it. */
hl_status hl_tier_index_drop(struct hl_tier_index *x, struct hl_id id,
                             struct hl_tier_entry **out) HL_CHECK;
void hl_tier_index_restore(struct hl_tier_index *x, struct hl_tier_entry *e);

/* The medium is about to change, and has changed. */
void hl_tier_index_begin(struct hl_tier_index *x);
void hl_tier_index_end(struct hl_tier_index *x);

/* Returns the next sealed entries, held; *cursor as in hl_tier_list. */
size_t hl_tier_index_page(struct hl_tier_index *x, uint64_t *cursor, struct hl_tier_entry **out,
                          size_t max);
void hl_tier_index_counts(struct hl_tier_index *x, struct hl_tier_counts *out);
/* Compares the counts with the medium; called with the lock held, and not while the medium is
 * changing. */
typedef hl_status (*hl_tier_medium_fn)(void *arg, const struct hl_tier_counts *counts);
hl_status hl_tier_index_audit(struct hl_tier_index *x, hl_tier_medium_fn medium,
                              void *arg) HL_CHECK;

/* ---- reading with checks --------------------------------------------------------------------- */

/* Reads bytes of the medium into dst and returns their CRC. */
typedef hl_status (*hl_tier_fetch_fn)(void *arg, uint64_t offset, void *dst, uint64_t len,
                                      uint32_t *crc);
/* Copies a range; every started MiB that it touches is fetched and its CRC compared. */
hl_status hl_tier_read_checked(struct hl_id id, const struct hl_chunks *c, uint64_t offset,
                               void *dst, size_t len, hl_tier_fetch_fn fetch, void *arg) HL_CHECK;

#endif
