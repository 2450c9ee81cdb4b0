/* core/migration/migration.h - moves of shards in four phases: decide, copy, switch, clean up.
 *
 *                 WRITE copying          COPY                WRITE cleaning
 *     WAITING --> DECIDED ---------> COPYING --size, CRC--> SWITCHING ---------> CLEANING
 *        |           |                  |      are right       |                    | grace is
 * over, |           |                  |                      |                    | other copies
 * are |           |                  | failed, cancelled, not committed          | confirmed: DROP
 *        |           |                  | too late             v                    v
 *        |           |                  '--------WRITE--> REVERTING -----------> ENDING --> ended
 *        |           |                           undoing       goal's copy is       ERASE
 *        '-----------'--> ended                                confirmed as surplus: DROP
 *
 * A pure step function: events in, actions out. After each event the caller takes the actions with
 * hl_migration_next and carries them out. Each action has an order number that its answer returns;
 * an answer with any other number is ignored. Order numbers only grow, also across epochs: a holder
 * rejects an order for a shard that is older than the newest it has seen for that shard, and any
 * order of an epoch older than the newest it has seen.
 *
 * The copy at `from` serves readers until the switch, the one at `goal` afterwards
 * (hl_migration_hides). The switch is the one commit that writes the record as cleaning. A copy is
 * dropped only after its readers' grace period, once the journal says that it will go, and only
 * while holders have confirmed as many other copies as required. A copy that can't be dropped in
 * time, or that the caller needs by then, stays as an ordinary copy, and the end of the move says
 * so.
 *
 * Owns:    its records; query results are borrowed until the next call.
 * Threads: one at a time. Pure: times are arguments.
 * Errors:  HL_EINVAL, HL_EBUSY (the shard is already moving, or it is too late to cancel),
 *          HL_EUNAVAIL, HL_ENOSPC (too many moves wait), HL_ENOENT, HL_ENOMEM. Events about unknown
 *          moves are ignored.
 * Units:   ms of a clock that never goes back; bytes.
 * Limits:  those of the options; one move of a shard at a time; 2^32 orders in an epoch. The move
 *          of a shard is found by hash, a move by its id with a linear search, which is meant for a
 *          few thousand moves.
 */
#ifndef HL_CORE_MIGRATION_MIGRATION_H
#define HL_CORE_MIGRATION_MIGRATION_H

#include "core/placement/rules.h"

/* clang-format off */
#define HL_MOVE_PHASE_MAP(X)                                                                    \
    X(WAITING,   "waiting")   /* for its turn; not in the journal */                            \
    X(DECIDED,   "decided")   /* its record is being written */                                 \
    X(COPYING,   "copying")                                                                     \
    X(SWITCHING, "switching") /* the switch is being committed */                               \
    X(CLEANING,  "cleaning")  /* the goal is in force; the copy at `from` is to go */           \
    X(REVERTING, "reverting") /* that the source is in force is being committed */              \
    X(UNDOING,   "undoing")   /* the source is in force; the copy at the goal is to go */       \
    X(ENDING,    "ending")    /* its record is being erased */                                  \
    X(ENDED,     "ended")

/* clang-format on */

enum hl_move_phase {

#define X(name, text) HL_MOVE_PHASE_##name,
    HL_MOVE_PHASE_MAP(X)
#undef X
        HL_MOVE_PHASES
};

const char *hl_move_phase_text(enum hl_move_phase phase);

/* The move that is wanted. goal_had: the goal already had a copy, which is not dropped when the
 * move is undone. keep_source: the copy at `from` stays, so the move is a load. */
struct hl_move_order {
    struct hl_id id, shard; /* id: chosen by the caller, never reused */
    struct hl_place from, goal;
    bool keep_source, goal_had;
    enum hl_life_event reason;
    double value, limit;   /* hl_life_event_numbers */
    double gain_s, cost_s; /* expected: what readers save, how long the copy takes */
    uint8_t priority;      /* higher goes first */
    uint64_t size_bytes;
    uint32_t crc32;
    int64_t copy_ms;      /* timeout of its copy; 0: the options' */
    uint64_t bytes_per_s; /* for the caller: bandwidth limit of its copy; 0: no limit of its own */
};

/* A move as the journal has it, in phase copying, cleaning or undoing. */
struct hl_move_rec {
    struct hl_move_order order;
    enum hl_move_phase phase;
    int64_t began_ms, switched_ms; /* 0: not yet */
    hl_status status;              /* why it is being undone; HL_OK: it is not */
};

/* clang-format off */
/* WRITE    the record, in the phase it has; a switch and a reversal put a location in force: commit
 *          that in the same batch                                        hl_migration_journaled
 * COPY     rec.order.shard to its goal                                   hl_migration_copied
 * STOP     end that copy, also one that an earlier Controller ordered; its answer still comes, or
 *          is waited for stop_ms; then it may come after all, as an ordinary copy        -
 * CHECK    ask each holder that may have a copy whether it is there, and with which size and CRC;
 *          answer when all have answered, or with an error               hl_migration_checked
 * DROP     the copy at `place`                                           hl_migration_dropped
 * ERASE    the record                                                    hl_migration_journaled
 * SWITCHED the goal is in force                                          -
 * REVERTED the source is in force again, after a switch                  -
 * ENDED    `status`; `left`: an extra copy may be at `place`. If its drop was ordered, ask its
 *          holder under this order number before that copy is offered. `kept`: it is there, and
 *          hl_migration_keep asked for it                                                   - */
#define HL_MOVE_ACTION_MAP(X)                                                                   \
    X(WRITE, "write") X(COPY, "copy") X(STOP, "stop") X(CHECK, "check") X(DROP, "drop")         \
    X(ERASE, "erase") X(SWITCHED, "switched") X(REVERTED, "reverted") X(ENDED, "ended")

/* clang-format on */

enum hl_move_action_kind {

#define X(name, text) HL_MOVE_##name,
    HL_MOVE_ACTION_MAP(X)
#undef X
        HL_MOVE_ACTIONS
};

const char *hl_move_action_text(enum hl_move_action_kind kind);

struct hl_move_action {
    enum hl_move_action_kind kind;
    uint64_t order;
    struct hl_move_rec rec;
    struct hl_place place;
    hl_status status;
    bool left, kept;
};

/* A copy that its holder confirmed after the CHECK was taken. */
struct hl_move_copy {
    struct hl_place place;
    uint32_t domain; /* failure domain: copies that one failure can destroy together share it */
    uint64_t size_bytes;
    uint32_t crc32;
};

struct hl_migration_opts {
    uint32_t moves_max; /* including waiting ones */
    uint32_t in_flight; /* moves that are not yet switched or undone */
    uint32_t per_node;  /* of these, from or to one node */
    uint32_t per_path[HL_MOVE_PATHS];
    uint32_t domains; /* a copy is dropped only while this many others hold the shard, >= 1 */
    int64_t wait_ms;  /* a move that has not begun after this time ends */
    int64_t copy_ms;
    int64_t stop_ms;  /* how long to wait for the answer of a stopped copy */
    int64_t grace_ms; /* time for the readers of a copy that is no longer offered */
    int64_t clean_ms; /* after this time a copy that could not be dropped stays */
    int64_t retry_ms;
};

struct hl_migration {
    struct hl_migration_opts opts;
    struct hl_move *moves; /* in the order of their arrival */
    uint32_t count, room;
    uint32_t *slots; /* index + 1 by shard, linear probing; 0 = empty */
    uint32_t slot_bits;
    uint64_t last_order;
    struct hl_move_action *todo; /* a ring of actions to be taken */
    uint32_t todo_first, todo_count, todo_room;
    struct hl_move_node *nodes;
    uint32_t node_room;
    bool l3_gone;
    uint8_t held_below; /* moves of lower priority do not begin */
    uint32_t in_flight, on_path[HL_MOVE_PATHS];
    int64_t now_ms;
};

/* epoch: this Controller's, greater than any earlier one. */
hl_status hl_migration_init(struct hl_migration *m, const struct hl_migration_opts *opts,
                            uint32_t epoch, int64_t now_ms) HL_CHECK;
void hl_migration_fini(struct hl_migration *m);
/* The new options apply from now on; moves_max does not change. */
hl_status hl_migration_configure(struct hl_migration *m,
                                 const struct hl_migration_opts *opts) HL_CHECK;

/* ---- events ---- */

hl_status hl_migration_order(struct hl_migration *m, const struct hl_move_order *order,
                             int64_t now_ms) HL_CHECK;
/* From now on no waiting or newly ordered move of lower priority than `below` begins; 0: all
 * may. */
void hl_migration_hold(struct hl_migration *m, uint8_t below, int64_t now_ms);
/* Restores a record of the journal, after a start and before the first order; its timeouts start
 * again. */
hl_status hl_migration_restore(struct hl_migration *m, const struct hl_move_rec *rec,
                               int64_t now_ms) HL_CHECK;
/* HL_OK: the move will be undone. HL_EBUSY: the old copy is already being dropped; order a move
 * back instead. */
hl_status hl_migration_cancel(struct hl_migration *m, struct hl_id id, int64_t now_ms) HL_CHECK;
/* st: after an error the write is retried. A write that failed may still have been committed. */
void hl_migration_journaled(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                            int64_t now_ms);
/* HL_OK: the goal's holder has read its whole copy and reports its size and CRC. */
void hl_migration_copied(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                         uint64_t size_bytes, uint32_t crc32, int64_t now_ms);
void hl_migration_checked(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                          const struct hl_move_copy *copies, size_t count, int64_t now_ms);
/* needed: the caller wants the old copy of a switched move to stay if the next answer to a CHECK
 * confirms it. */
void hl_migration_keep(struct hl_migration *m, struct hl_id id, bool needed);
/* st: HL_OK, or HL_ENOENT if the copy is not there. */
void hl_migration_dropped(struct hl_migration *m, struct hl_id id, uint64_t order, hl_status st,
                          int64_t now_ms);
/* The node's holder is considered lost, or is back; node HL_READER_NONE: L3's holder. */
hl_status hl_migration_node_gone(struct hl_migration *m, uint16_t node, int64_t now_ms) HL_CHECK;
void hl_migration_node_back(struct hl_migration *m, uint16_t node, int64_t now_ms);
/* No version has the shard any more; the caller frees its copies. */
void hl_migration_shard_gone(struct hl_migration *m, struct hl_id shard, int64_t now_ms);
void hl_migration_tick(struct hl_migration *m, int64_t now_ms);

/* ---- what follows ---- */

/* False: there is no action left. Take all of them after each event; answers may come in
 * between. */
bool hl_migration_next(struct hl_migration *m, struct hl_move_action *action);
/* When the next tick is needed at the latest; INT64_MAX: no move is in flight. */
int64_t hl_migration_due(const struct hl_migration *m);
/* The shard's copy at that place must not be offered to readers. */
bool hl_migration_hides(const struct hl_migration *m, struct hl_id shard, struct hl_place place);
/* Borrowed; NULL: the shard is not moving. */
const struct hl_move_rec *hl_migration_find(const struct hl_migration *m, struct hl_id shard);
/* Likewise, by the id of the move. */
const struct hl_move_rec *hl_migration_by_id(const struct hl_migration *m, struct hl_id id);
/* The i-th move in order of arrival, i < m->count; borrowed. */
const struct hl_move_rec *hl_migration_at(const struct hl_migration *m, uint32_t i);

#endif
