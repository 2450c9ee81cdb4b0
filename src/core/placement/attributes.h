/* core/placement/attributes.h - usage statistics of one shard: HeatScore, stability, fluidity, and
 * which servers read it.
 *
 * Accesses arrive in batches, each with the age of its last access, and are dated by the receiver's
 * clock. The statistics are approximate; their errors are bounded:
 *     N          counts everything of the window T, and at most T / 15 more; an access is dated
 *                too young by as long as its report was in transit
 *     intervals  accesses of one batch count as evenly spread since the last one before; those
 *                older than the last access known are left out
 *     readers    exact for HL_READERS servers; with more, a count may be too high, by no more than
 *                the accesses of this window and the one before, divided by HL_READERS. Accesses
 *                of the window before count as evenly spread.
 *
 * Owns:    nothing; the struct is the caller's.
 * Threads: one at a time.
 * Errors:  none; ages below 0 and above the window are clamped.
 * Units:   ms of the receiver's clock, which is given, never goes back, and is at most HL_TIME_MAX
 *          (4,000 years).
 * Limits:  65,535 accesses of one fifteenth of the window and of one reader in a window, more are
 *          not counted; HL_READERS servers.
 */
#ifndef HL_CORE_PLACEMENT_ATTRIBUTES_H
#define HL_CORE_PLACEMENT_ATTRIBUTES_H

#include <stdint.h>

#include "core/placement/params.h"

#define HL_SLICES      16 /* the current slice, and a window of older ones */
#define HL_READERS     4
#define HL_READER_NONE UINT16_MAX

/* A time in a record leaves 16 bits of its word for another field. */
#define HL_TIME_BITS 48
#define HL_TIME_MAX  ((INT64_C(1) << (HL_TIME_BITS - 1)) - 1)

struct hl_reader {
    uint16_t node;
    uint16_t now, before; /* accesses in this window and in the one before */
};

/* Readers and slices have a cache line of their own, which is never touched for a shard that is not
 * read. */
struct hl_attributes {
    float interval_ms; /* mean interval between accesses */
    float interval_m2; /* sum of their squared differences from it */
    float recent_moves;
    int64_t last_ms : HL_TIME_BITS;   /* of the last access; negative: none yet */
    uint16_t last_reader;             /* HL_READER_NONE: none yet */
    int64_t placed_ms : HL_TIME_BITS; /* since when the shard is at its place */
    uint16_t moves;                   /* how often it was moved */
    int64_t slice_ms : HL_TIME_BITS;  /* begin of slices[0] */
    uint8_t intervals;
    int64_t window_ms : HL_TIME_BITS; /* begin of the readers' window */
    uint16_t slices[HL_SLICES];
    struct hl_reader readers[HL_READERS];
};

struct hl_access {
    uint16_t node;
    uint32_t count;
    int64_t age_ms; /* of the last of them */
};

void hl_attributes_init(struct hl_attributes *a, int64_t now_ms);
void hl_attributes_access(struct hl_attributes *a, const struct hl_placement_params *params,
                          const struct hl_access *access, int64_t now_ms);
/* The shard moved to another place. */
void hl_attributes_moved(struct hl_attributes *a, const struct hl_placement_params *params,
                         int64_t now_ms);
/* The window changes from `old_ms` to that of `params`: counts keep their times. */
void hl_attributes_rewindow(struct hl_attributes *a, const struct hl_placement_params *params,
                            int64_t old_ms, int64_t now_ms);

/* N: accesses in the window. */
uint32_t hl_attributes_count(const struct hl_attributes *a,
                             const struct hl_placement_params *params, int64_t now_ms);

/* N, and when it will drop if there is no new access, because one leaves the window. INT64_MAX:
 * there is none to leave. */
struct hl_count {
    uint32_t count;
    int64_t next_drop_ms;
};

struct hl_count hl_attributes_counted(const struct hl_attributes *a,
                                      const struct hl_placement_params *params, int64_t now_ms);
double hl_attributes_heat(const struct hl_attributes *a, const struct hl_placement_params *params,
                          int64_t now_ms);
/* 0..1 */
double hl_attributes_stability(const struct hl_attributes *a,
                               const struct hl_placement_params *params, int64_t now_ms);
/* Recent moves: each counts 1 at first, and exp(-age / tau) later. */
double hl_attributes_fluidity(const struct hl_attributes *a,
                              const struct hl_placement_params *params, int64_t now_ms);

struct hl_reader_count {
    uint16_t node;
    double count;
};

/* The servers that read the shard in the window, most frequent first, then by lower index; returns
 * how many. */
unsigned hl_attributes_readers(const struct hl_attributes *a,
                               const struct hl_placement_params *params, int64_t now_ms,
                               struct hl_reader_count out[HL_READERS]);

/* Accesses of one server in the window, and of all others; both 0 if the server has `least` or
 * fewer. */
void hl_attributes_own(const struct hl_attributes *a, const struct hl_placement_params *params,
                       int64_t now_ms, uint16_t node, uint32_t least, double *own, double *others);
/* When the server's accesses will exceed those of all others by more than `by` if there are no new
 * ones, because the previous window's accesses fade. The time may be somewhat early. INT64_MAX:
 * never. */
int64_t hl_attributes_own_exceeds(const struct hl_attributes *a,
                                  const struct hl_placement_params *params, int64_t now_ms,
                                  uint16_t node, double by);

#endif
