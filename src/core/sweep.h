/* core/sweep.h - what a sweep decides: a stored shard that no version holds, and a version's shard
 * that is not stored.
 *
 * Owns:    nothing.
 * Threads: any. Pure: times are arguments.
 * Errors:  none.
 * Units:   ns of a monotonic clock, ms of the wall clock.
 * Limits:  none.
 */
#ifndef HL_CORE_SWEEP_H
#define HL_CORE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct hl_catalog;

/* A stored shard that the catalogue does not know. */
struct hl_orphan {
    uint64_t since_ns;
    int64_t since_ms;
    unsigned first_round; /* the sweep that saw it first */
    unsigned round;       /* the last one that saw it */
};

/* The sweep that ends. */
struct hl_sweep {
    unsigned round;
    uint64_t now_ns;
    int64_t now_ms;
    uint64_t grace_ns; /* ranks put shards before they commit them */
    bool importing;    /* an import runs, whose shards nobody knows yet */
};

enum hl_orphan_fate {
    HL_ORPHAN_WAITS,
    HL_ORPHAN_FORGOTTEN, /* it is known by now, or gone */
    HL_ORPHAN_FREED,
};

bool hl_sweep_has_open_version(const struct hl_catalog *catalog);
/* An open version was begun before its first shard was put; until it is committed, whatever came
 * later may be its. */
bool hl_sweep_being_written(const struct hl_catalog *catalog, int64_t since_ms, int64_t now_ms);
/* is_known: the catalogue has it now. Shards are put for imports and open versions only: where
 * there is neither, what two rounds have seen is nobody's, without any grace. */
enum hl_orphan_fate hl_sweep_orphan(const struct hl_orphan *orphan, bool is_known,
                                    const struct hl_sweep *sweep, const struct hl_catalog *catalog);

/* How often in a row the pool's inventory has missed a shard, one more sweep included. */
static inline unsigned hl_sweep_missed(unsigned missed, unsigned seen_round, unsigned round)
{
    return seen_round == round ? 0 : missed + 1;
}

/* One miss may be a commit that came while the inventory was read; two are a loss, unless another
 * tier has a copy. */
static inline bool hl_sweep_is_lost(unsigned missed, bool has_copies)
{
    return missed >= 2 && !has_copies;
}

#endif
