/* base/plane_private.h - what plane.c, plane_text.c and their tests share.
 *
 * Owns:    the table itself.
 * Threads: any; cells are filled under `lock` and read without it once `ready`.
 * Errors:  none.
 * Units:   nanoseconds of hl_now_ns(); the _at functions take the time instead of reading it.
 * Limits:  those of base/plane.h.
 */
#ifndef HL_BASE_PLANE_PRIVATE_H
#define HL_BASE_PLANE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/plane.h"

#define HL_PLANE_WORD    32
#define HL_PLANE_SECONDS 4 /* a power of two; the last whole second and the current one */

struct hl_plane_line {
    atomic_uint_fast64_t ops[2], bytes[2], failed, rate;
    atomic_uint_fast64_t latency[HL_PLANE_BUCKETS], latency_ns;
    /* Bytes of one second, and the number of that second: see second_add(). */
    atomic_uint_fast64_t seconds[HL_PLANE_SECONDS][2];
} __attribute__((aligned(128)));

/* One counter with the words that name it. */
struct hl_plane_cell {
    atomic_bool ready;
    char word[4][HL_PLANE_WORD];
    atomic_uint_fast64_t ops, bytes;
    uint64_t reported; /* of a fault's ops; under the lock */
};

/* Open addressing; nothing is ever removed. */
struct hl_plane_cells {
    pthread_mutex_t lock; /* for inserting */
    struct hl_plane_cell cell[HL_PLANE_PATHS_MAX];
    struct hl_plane_cell other; /* for what found no room */
};

struct hl_plane_table {
    struct hl_plane_line line[HL_PLANE_COUNT];
    struct hl_plane_cells paths;                   /* op, path, reason, result */
    struct hl_plane_cells faults;                  /* cause, path */
    pthread_mutex_t lock;                          /* of `place` */
    char place[HL_PLANE_COUNT][2][HL_PLANE_PLACE]; /* address, interface */
};

extern struct hl_plane_table hl_plane_table;

void hl_plane_count_at(const struct hl_transfer *t, uint64_t now_ns);
void hl_plane_stats_at(enum hl_plane plane, uint64_t now_ns, struct hl_plane_stats *out);

#endif
