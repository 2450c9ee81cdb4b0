/* core/migration/migration_private.h - a move as the step function stores it, and the parts of the
 * step function.
 *
 * table.c has records, actions and limits; steps.c the phases of one move; migration.c the events.
 * Each calls only those before it.
 *
 * Owns:    nothing of its own.
 * Threads: one at a time.
 * Errors:  HL_ENOMEM.
 * Units:   ms.
 * Limits:  a move has at most MOVE_TODO_MAX actions that were not taken yet.
 */
#ifndef HL_CORE_MIGRATION_MIGRATION_PRIVATE_H
#define HL_CORE_MIGRATION_MIGRATION_PRIVATE_H

#include "core/migration/migration.h"

#define MOVE_TODO_MAX 8
#define MOVE_NEVER    INT64_MAX

struct hl_move {
    struct hl_move_rec rec;
    uint64_t asked; /* the order whose answer is awaited; 0 = none */
    enum hl_move_action_kind asked_for;
    int64_t due_ms;   /* deadline of the phase */
    int64_t wake_ms;  /* when something must be done or retried */
    int64_t grace_ms; /* nothing is dropped before this time */
    bool flying;      /* counts towards the limits */
    bool in_force;    /* the goal is in force; if false, the source */
    bool stopping; /* it will be undone once the pending order is answered; rec.status says why */
    /* the surplus copy may be gone: its drop was ordered and has not been refused */
    bool dropping;
    bool needed;    /* the surplus copy exists, and the one that should stay does not */
    bool restored;  /* its copy was ordered by an earlier Controller */
    bool forgotten; /* its shard no longer exists */
    bool left;
    bool kept; /* hl_migration_keep */
};

struct hl_move_node {
    bool gone;
    uint32_t in_flight; /* moves from or to the node */
};

/* ---- table.c ---- */

bool place_equal(struct hl_place a, struct hl_place b);
/* The copy that will be dropped, and the one that stays. */
struct hl_place move_surplus(const struct hl_move *mv);
struct hl_place move_survivor(const struct hl_move *mv);
/* The surplus copy stays, because the move did not make it or it is wanted. */
bool move_keeps_surplus(const struct hl_move *mv);

struct hl_move *migration_by_id(const struct hl_migration *m, struct hl_id id);
struct hl_move *migration_by_shard(const struct hl_migration *m, struct hl_id shard);
/* Appends a record with the order and all else zero, and reserves room for all actions of all
 * moves. */
hl_status migration_add(struct hl_migration *m, const struct hl_move_order *order,
                        struct hl_move **mv) HL_CHECK;
/* The moves behind it shift forward. */
void migration_remove(struct hl_migration *m, struct hl_move *mv);
bool migration_is_gone(const struct hl_migration *m, struct hl_place place);
hl_status migration_node_room(struct hl_migration *m, uint16_t node) HL_CHECK;
/* The limits allow the move to begin. */
bool migration_has_room(const struct hl_migration *m, const struct hl_move *mv);
void migration_set_phase(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase);
/* Appends an action and returns it; the caller completes it. */
struct hl_move_action *migration_act(struct hl_migration *m, const struct hl_move *mv,
                                     enum hl_move_action_kind kind);

/* ---- steps.c ---- */

/* Each takes the move to its next phase; move_end removes it. */
void move_begin(struct hl_migration *m, struct hl_move *mv);
/* Continues in the phase that the journal has. */
void move_resume(struct hl_migration *m, struct hl_move *mv, enum hl_move_phase phase);
void move_end(struct hl_migration *m, struct hl_move *mv, hl_status st);
void move_stop(struct hl_migration *m, struct hl_move *mv, hl_status st);
void move_forget(struct hl_migration *m, struct hl_move *mv);
void move_journaled(struct hl_migration *m, struct hl_move *mv, hl_status st);
void move_copied(struct hl_migration *m, struct hl_move *mv, hl_status st, uint64_t size_bytes,
                 uint32_t crc32);
void move_checked(struct hl_migration *m, struct hl_move *mv, hl_status st,
                  const struct hl_move_copy *copies, size_t count);
void move_dropped(struct hl_migration *m, struct hl_move *mv, hl_status st);
void move_place_gone(struct hl_migration *m, struct hl_move *mv);
/* The survivor is back: hides the surplus copy again, which was offered as the only one left. */
void move_survivor_back(struct hl_migration *m, struct hl_move *mv);
/* Does what is due now. */
void move_wake(struct hl_migration *m, struct hl_move *mv);

#endif
