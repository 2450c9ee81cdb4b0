/* group/shm.h - the memory that the ranks of a group share.
 *
 * A rank counts its steps in `at` of its row; no rank continues before all have taken the same
 * step. Two sets of slots alternate: by the time a rank takes the next step, all ranks have
 * signalled that they are done with the set that it is going to write. Messages from one rank to
 * another go through two slots of the sender, which count the pieces sent and taken. The name is
 * unlinked when all have joined, so killed ranks leave nothing behind.
 *
 *    | hl_collective_shared | set 0: slot of each rank, result | set 1 | messages: 2 slots a rank |
 *
 *    rank 0   at 5   |  has filled its slot of the step and waits for rank 1
 *    rank 1   at 4   |  still reads the slots of step 4
 *    rank 2   at 5   |
 *
 * word        written by    read by          order
 * row.at      its rank      all              sequentially consistent; slots are written before it
 * row.sent    its rank      the receiver     the same; the slot, `message` and `to` before it
 * row.taken   the receiver  the sender       the same; the slot is read before it
 * row.left    its rank      all              the same; `because` before it
 * joined      joining rank  joined ranks     rows were taken before it; sequentially consistent
 * sleepers    all           the waker        counted before the last look at a word, so that a
 *                                            change is either seen or wakes
 *
 * row.left: 0 --close--> LEFT, or 0 --failure--> GAVE_UP. Once set it stays.
 *
 * Owns:    a joined group owns its mapping and its row.
 * Threads: one at a time; `cancelled` from any.
 * Errors:  HL_ECONFLICT the rank is taken, or the others have a different world; HL_ETIMEDOUT names
 *          the missing ranks; HL_EPROTO another layout.
 * Units:   bytes, milliseconds.
 * Limits:  HL_COLLECTIVE_RANKS ranks, which share one PID namespace.
 */
#ifndef HL_GROUP_SHM_H
#define HL_GROUP_SHM_H

#include "base/line.h"
#include "group/group.h"
#include "os/process.h"

#define HL_COLLECTIVE_PIECE   (256u << 10) /* of a slot */
#define HL_COLLECTIVE_MESSAGE (64u << 10)  /* of a slot between two ranks */

/* What a rank is doing, so that ranks that do different things notice. */
struct hl_collective_call {
    uint32_t kind;
    int32_t arg, op; /* type or src; op of reductions */
    uint64_t bytes;
    char what[96];
};

/* hl_collective_row.left */
#define HL_COLLECTIVE_LEFT    1u
#define HL_COLLECTIVE_GAVE_UP 2u

struct hl_collective_row {
    _Alignas(HL_LINE) struct hl_process process; /* pid 0 = no process */
    uint32_t left;                               /* set when it closed the group, or gave it up */
    uint32_t because;                            /* because of this rank, counted from 1 */
    _Alignas(HL_LINE) uint32_t at;               /* a futex */
    _Alignas(HL_LINE) struct hl_collective_call calls[2];
    _Alignas(HL_LINE) struct hl_collective_call message; /* what it sends; arg is the tag */
    uint32_t to;                                         /* the receiver */
    uint32_t sent;                                       /* pieces sent so far; a futex */
    _Alignas(HL_LINE) uint32_t taken; /* of these, pieces that the receiver has taken; a futex */
};

struct hl_collective_shared {
    uint64_t magic; /* written last */
    uint32_t version, world;
    uint64_t size, pid_namespace;
    _Alignas(HL_LINE) uint32_t sleepers;
    uint32_t joined; /* rows taken so far, including by dead ranks; a futex */
    struct hl_collective_row rows[HL_COLLECTIVE_RANKS];
    /* two sets of `world` slots and one for a result; two slots for messages of each rank */
};

struct hl_collective_shm {
    struct hl_collective_shared *s;
    uint64_t size, inode;
    int rank, world, timeout_ms;
    uint32_t at; /* number of steps taken */
    uint32_t cancelled;
    uint64_t calls, pieces;  /* made */
    char path[256], who[64]; /* of shm_open; for messages */
};

/* Returns when all ranks have joined. */
hl_status hl_collective_join(const hybridps_shm_options *options, struct hl_collective_shm *g);
/* Tells the other ranks, and unmaps. */
void hl_collective_leave(struct hl_collective_shm *g);

/* What a rank waits for: a word of another rank. */
struct hl_collective_wait {
    int rank;
    uint32_t *word; /* a futex */
    uint32_t goal;
    /* 0: not yet; 1: yes, unless the rank gives up; 2: yes, the rank is done with it */
    int (*ready)(const struct hl_collective_shm *g, const struct hl_collective_wait *w);
    const char *what; /* the caller's, for messages */
};

/* Each wait ends at the group's timeout, and soon after the rank has died or left. */
/* Waits until a time of hl_now_ns, without giving the group up. */
hl_status hl_collective_wait_until(struct hl_collective_shm *g, const struct hl_collective_wait *w,
                                   uint64_t until);
/* The deadline of a call that begins now. */
uint64_t hl_collective_deadline(const struct hl_collective_shm *g);
hl_status hl_collective_await(struct hl_collective_shm *g, const struct hl_collective_wait *w);
/* Call after changing a word that other ranks wait for. */
void hl_collective_wake(struct hl_collective_shm *g, uint32_t *word);
/* Sleeps until woken, or for a time slice, because a rank's death wakes no other. Does not sleep
 * when *word != seen. */
void hl_collective_sleep(struct hl_collective_shm *g, uint32_t *word, uint32_t seen);
/* Marks the group as given up for the others to see, and because of which rank. Returns st. */
hl_status hl_collective_give_up(struct hl_collective_shm *g, int rank, hl_status st);

/* Between two ranks; entries of a transport. */
int hl_collective_send(void *arg, const char *what, const void *data, uint64_t bytes, int dst,
                       int tag);
int hl_collective_recv(void *arg, const char *what, void *data, uint64_t bytes, int src, int tag);

#endif
