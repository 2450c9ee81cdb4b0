/* hybridps/collective_shm.h - the memory that the ranks of a group share.
 *
 * A rank counts its steps in `at` of its row; nobody goes on before all have taken the same step.
 * Two sets of slots are used in turn: who takes a step further has, by then, been told by all that
 * they are done with the set it is going to write. The name goes away when all have joined, so
 * nothing is left behind by ranks that are killed.
 *
 * Owns:    a joined group its mapping and its row.
 * Threads: one at a time.
 * Errors:  HL_ECONFLICT a rank or a world that others have otherwise; HL_ETIMEDOUT with the ranks
 *          that are missing; HL_EPROTO another layout.
 * Units:   bytes, milliseconds.
 * Limits:  HL_COLLECTIVE_RANKS ranks, which share one PID namespace.
 */
#ifndef HL_HYBRIDPS_COLLECTIVE_SHM_H
#define HL_HYBRIDPS_COLLECTIVE_SHM_H

#include "hybridps/collective.h"
#include "os/process.h"

#define HL_COLLECTIVE_PIECE (256u << 10) /* of a slot */

/* What a rank is doing, so that ranks that do different things find out. */
struct hl_collective_call {
    uint32_t kind;
    int32_t arg; /* type or src */
    uint64_t bytes;
    char what[96];
};

struct hl_collective_row {
    _Alignas(64) struct hl_process process; /* pid 0 = nobody */
    uint32_t left;                          /* it closed the group, or gave it up */
    _Alignas(64) uint32_t at;               /* a futex */
    _Alignas(64) struct hl_collective_call calls[2];
};

struct hl_collective_shared {
    uint64_t magic; /* written last */
    uint32_t version, world;
    uint64_t size, pid_namespace;
    _Alignas(64) uint32_t sleepers;
    struct hl_collective_row rows[HL_COLLECTIVE_RANKS];
    /* two sets of `world` slots and one for a result */
};

struct hl_collective_shm {
    struct hl_collective_shared *s;
    uint64_t size, inode;
    int rank, world, timeout_ms;
    uint32_t at;             /* steps taken */
    uint64_t calls, pieces;  /* made */
    char path[256], who[64]; /* of shm_open; for messages */
};

/* Returns when all are there. */
hl_status hl_collective_join(const hybridps_shm_options *options, struct hl_collective_shm *g);
/* Tells the others and unmaps. */
void hl_collective_leave(struct hl_collective_shm *g);

#endif
