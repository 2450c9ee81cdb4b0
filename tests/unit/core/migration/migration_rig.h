/* unit/core/migration/migration_rig.h - a step function under test, and its actions one by one.
 *
 * Owns:    one struct hl_migration, of the file that includes it.
 * Threads: one.
 * Errors:  none: anything unexpected fails the test.
 * Units:   ms.
 * Limits:  none.
 */
#ifndef TESTS_UNIT_CORE_MIGRATION_RIG_H
#define TESTS_UNIT_CORE_MIGRATION_RIG_H

#include "support/test.h"

#include "core/migration/migration.h"

#define EPOCH 7
#define SIZE  1000
#define CRC   0xabcdu

static struct hl_migration moves;
static int64_t now;

static const struct hl_place l2_of_0 = {0, HL_API_TIER_L2}, l2_of_1 = {1, HL_API_TIER_L2},
                             l1_of_0 = {0, HL_API_TIER_L1}, pool = {HL_READER_NONE, HL_API_TIER_L3},
                             archive = {HL_READER_NONE, HL_API_TIER_L4};

static const struct hl_migration_opts default_opts = {.moves_max = 8,
                                                      .in_flight = 4,
                                                      .per_node = 4,
                                                      .per_path = {4, 4, 4, 4},
                                                      .domains = 1,
                                                      .wait_ms = 100000,
                                                      .copy_ms = 10000,
                                                      .stop_ms = 700,
                                                      .grace_ms = 500,
                                                      .clean_ms = 3000,
                                                      .retry_ms = 100};

static inline int rig_begin(void **state)
{
    (void)state;
    now = 1000;
    assert_int_equal(hl_migration_init(&moves, &default_opts, EPOCH, now), HL_OK);
    return 0;
}

static inline int rig_end(void **state)
{
    (void)state;
    hl_migration_fini(&moves);
    return 0;
}

static inline struct hl_id id_of(unsigned i)
{
    return (struct hl_id){1, i};
}

static inline struct hl_move_order order_of(unsigned i, struct hl_place from, struct hl_place goal)
{
    return (struct hl_move_order){.id = id_of(i),
                                  .shard = {2, i},
                                  .from = from,
                                  .goal = goal,
                                  .reason = HL_LIFE_ON_REMOTE,
                                  .size_bytes = SIZE,
                                  .crc32 = CRC};
}

static inline void give(struct hl_move_order order)
{
    assert_int_equal(hl_migration_order(&moves, &order, now), HL_OK);
}

/* The next action, which must be of this kind. */
static inline struct hl_move_action take(enum hl_move_action_kind kind)
{
    struct hl_move_action a;
    assert_true(hl_migration_next(&moves, &a));
    assert_string_equal(hl_move_action_text(a.kind), hl_move_action_text(kind));
    return a;
}

static inline void take_none(void)
{
    struct hl_move_action a;
    assert_false(hl_migration_next(&moves, &a));
}

static inline void answer_journal(enum hl_move_action_kind kind, hl_status st)
{
    struct hl_move_action a = take(kind);
    hl_migration_journaled(&moves, a.rec.order.id, a.order, st, now);
}

static inline void answer_write(enum hl_move_phase phase, hl_status st)
{
    struct hl_move_action a = take(HL_MOVE_WRITE);
    assert_string_equal(hl_move_phase_text(a.rec.phase), hl_move_phase_text(phase));
    hl_migration_journaled(&moves, a.rec.order.id, a.order, st, now);
}

static inline void answer_copy(hl_status st, uint64_t size, uint32_t crc)
{
    struct hl_move_action a = take(HL_MOVE_COPY);
    hl_migration_copied(&moves, a.rec.order.id, a.order, st, size, crc, now);
}

static inline struct hl_move_copy copy_at(struct hl_place place, uint32_t domain)
{
    return (struct hl_move_copy){place, domain, SIZE, CRC};
}

/* Each place is a domain of its own. */
static inline void answer_check(unsigned count, const struct hl_place *places)
{
    struct hl_move_action a = take(HL_MOVE_CHECK);
    struct hl_move_copy copies[8];
    for (unsigned i = 0; i < count; i++)
        copies[i] = copy_at(places[i], i);
    hl_migration_checked(&moves, a.rec.order.id, a.order, HL_OK, copies, count, now);
}

static inline void answer_drop(struct hl_place place, hl_status st)
{
    struct hl_move_action a = take(HL_MOVE_DROP);
    assert_int_equal(a.place.node, place.node);
    assert_int_equal(a.place.tier, place.tier);
    hl_migration_dropped(&moves, a.rec.order.id, a.order, st, now);
}

/* Erased, and ended with this result. */
static inline void take_end(hl_status st, bool left)
{
    answer_journal(HL_MOVE_ERASE, HL_OK);
    struct hl_move_action a = take(HL_MOVE_ENDED);
    assert_int_equal(a.status, st);
    assert_int_equal(a.left, left);
    assert_int_equal(moves.count, 0);
    assert_int_equal(moves.in_flight, 0);
    take_none();
}

static inline void pass(int64_t ms)
{
    now += ms;
    hl_migration_tick(&moves, now);
}

static inline bool is_hidden(struct hl_place place)
{
    return hl_migration_hides(&moves, (struct hl_id){2, 1}, place);
}

static inline void assert_phase(unsigned i, enum hl_move_phase phase)
{
    const struct hl_move_rec *rec = hl_migration_find(&moves, (struct hl_id){2, i});
    assert_non_null(rec);
    assert_string_equal(hl_move_phase_text(rec->phase), hl_move_phase_text(phase));
}

/* Takes move 1, from L2 of node 0 to that of node 1, to the beginning of a phase. */
static inline void reach_copying(void)
{
    give(order_of(1, l2_of_0, l2_of_1));
    answer_write(HL_MOVE_PHASE_COPYING, HL_OK);
    assert_phase(1, HL_MOVE_PHASE_COPYING);
}

static inline void reach_switching(void)
{
    reach_copying();
    answer_copy(HL_OK, SIZE, CRC);
    assert_phase(1, HL_MOVE_PHASE_SWITCHING);
}

static inline void reach_cleaning(void)
{
    reach_switching();
    answer_write(HL_MOVE_PHASE_CLEANING, HL_OK);
    take(HL_MOVE_SWITCHED);
    assert_phase(1, HL_MOVE_PHASE_CLEANING);
}

static inline void reach_undoing(void)
{
    reach_copying();
    answer_copy(HL_EIO, 0, 0);
    answer_write(HL_MOVE_PHASE_UNDOING, HL_OK);
    assert_phase(1, HL_MOVE_PHASE_UNDOING);
}

#endif
