/* What a node's L2 keeps for its readers: it uses the space that is left, and is evicted first. */
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/store_private.h"
#include "base/crc32.h"
#include "mem/device/device.h"
#include "mem/plank/plank.h"
#include "os/cond.h"

#define UNITS    16
#define ORDERS   20000
#define CAPACITY (UNITS * HL_POOL_UNIT)
#define FOUR     (4 * HL_POOL_UNIT - 8) /* a copy of four units */

static struct store store;

static struct hl_id id_of(uint64_t n)
{
    return (struct hl_id){.hi = 7, .lo = n};
}

static void open_store(void)
{
    const struct hl_pool_options options = {
        .path = store.pool_path, .capacity = CAPACITY, .quarantine_ms = 3600000};
    if (hl_pool_open(&options, NULL, &store.pool) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(hl_tier_over_pool(store.pool, HL_API_TIER_L2, "host", NULL, &store.tiers[0].t),
                     HL_OK);
    store.tiers[0].tier = HL_API_TIER_L2;
    store.tier_count = 1;
    assert_int_equal(store_keep_open(&store), HL_OK);
}

static void close_store(void)
{
    store_keep_close(&store);
    hl_tier_close(store.tiers[0].t);
    hl_pool_close(store.pool);
    store.tiers[0] = (struct store_tier){0};
}

static int setup(void **state)
{
    static char path[64];
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/helios-test-keep-%d", (int)getpid());
    unlink(path);
    store = (struct store){.pool_path = path, .node = "node-1", .opts = {.l2_keep = 100}};
    pthread_mutex_init(&store.keep.lock, NULL);
    hl_cond_init(&store.keep.load_over);
    open_store();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_store();
    unlink(store.pool_path);
    return 0;
}

static hl_status fill_slot(struct hl_tier_slot *slot)
{
    memset(slot->host, (int)slot->id.lo, slot->size);
    uint32_t crc = hl_crc32(0, slot->host, slot->size);
    return hl_tier_seal(store.tiers[0].t, slot, crc, &crc, 1, NULL);
}

/* Loads it for a reader. */
static hl_status keep(uint64_t n)
{
    struct hl_tier_slot slot;
    HL_TRY(store_keep_reserve(&store, &store.tiers[0], id_of(n), FOUR, -1, &slot));
    hl_status st = fill_slot(&slot);
    store_keep_loaded(&store, &store.tiers[0], &slot, false, st);
    return st;
}

/* Places it by an order. */
static hl_status place(uint64_t n, uint64_t size)
{
    struct hl_tier_slot slot;
    HL_TRY(store_reserve(&store, &store.tiers[0], id_of(n), size, -1, &slot));
    return fill_slot(&slot);
}

/* "13": these are kept, and no others of 1 to 9. */
static void expect_kept(const char *numbers)
{
    struct hl_pool_info info;
    struct hl_tier_ref ref;
    for (uint64_t n = 1; n <= 9; n++) {
        bool wanted = strchr(numbers, '0' + (int)n) != NULL;
        if (store_keep_find(&store, &store.tiers[0], id_of(n), &ref) != wanted)
            fail_msg("shard %d is %skept", (int)n, wanted ? "not " : "");
    }
    hl_pool_info(store.pool, &info);
    assert_int_equal(info.kept, strlen(numbers) * 4 * HL_POOL_UNIT);
    if (hl_tier_audit(store.tiers[0].t) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static bool is_placed(uint64_t n)
{
    struct hl_tier_ref ref;
    return hl_tier_find(store.tiers[0].t, id_of(n), &ref) == HL_OK;
}

TEST_IN(setup, teardown, readers_fill_the_l2_and_the_oldest_leaves)
{
    for (uint64_t n = 1; n <= 4; n++)
        assert_int_equal(keep(n), HL_OK);
    expect_kept("1234");
    assert_int_equal(keep(5), HL_OK);
    expect_kept("2345");
    /* reads that readers report count */
    store_keep_touch(&store, &store.tiers[0], id_of(2), 2);
    assert_int_equal(keep(6), HL_OK);
    expect_kept("2456");
    assert_int_equal(store.keep.counts.loads, 6);
    assert_int_equal(store.keep.counts.hits, 2);
    assert_int_equal(store.keep.counts.evicted, 2);
}

TEST_IN(setup, teardown, kept_copies_leave_for_a_placed_one_at_once)
{
    for (uint64_t n = 1; n <= 4; n++)
        assert_int_equal(keep(n), HL_OK);
    assert_int_equal(place(8, FOUR), HL_OK); /* without waiting for the quarantine */
    expect_kept("234");
    assert_int_equal(place(9, 12 * HL_POOL_UNIT - 8), HL_OK);
    expect_kept("");
    assert_true(is_placed(8) && is_placed(9));
}

TEST_IN(setup, teardown, a_lease_has_the_room_first_too)
{
    struct hl_pool_extent x;
    for (uint64_t n = 1; n <= 4; n++)
        assert_int_equal(keep(n), HL_OK);
    assert_int_equal(store_alloc(&store, (struct hl_id){0}, FOUR, &x), HL_OK);
    assert_false(hl_id_is_none(x.id));
    expect_kept("234");
    hl_pool_abort(store.pool, &x);
}

TEST_IN(setup, teardown, nothing_leaves_for_a_reader_but_what_is_kept)
{
    struct hl_tier_slot slot;
    assert_int_equal(place(7, 12 * HL_POOL_UNIT - 8), HL_OK);
    assert_int_equal(keep(1), HL_OK);
    assert_int_equal(keep(2), HL_OK);
    expect_kept("2");
    assert_true(is_placed(7));
    assert_int_equal(
        store_keep_reserve(&store, &store.tiers[0], id_of(3), 8 * HL_POOL_UNIT, -1, &slot),
        HL_ENOSPC);
    expect_kept("2"); /* it is not evicted in vain */
    assert_int_equal(place(8, FOUR), HL_OK);
    assert_int_equal(keep(4), HL_ENOSPC);
    assert_true(is_placed(7) && is_placed(8));
}

TEST_IN(setup, teardown, what_does_not_fit_anyway_drives_nothing_out)
{
    assert_int_equal(place(7, 8 * HL_POOL_UNIT - 8), HL_OK);
    assert_int_equal(keep(1), HL_OK);
    assert_int_equal(place(8, 12 * HL_POOL_UNIT - 8), HL_ENOSPC);
    expect_kept("1");
}

TEST_IN(setup, teardown, a_share_of_the_l2_is_not_exceeded)
{
    store.opts.l2_keep = 50;
    for (uint64_t n = 1; n <= 3; n++)
        assert_int_equal(keep(n), HL_OK);
    expect_kept("23");
    store.opts.l2_keep = 0;
    assert_false(store_keeps(&store));
    assert_int_equal(keep(4), HL_ENOSPC);
}

TEST_IN(setup, teardown, what_a_rank_has_mapped_stays_until_it_is_given_back)
{
    struct hl_pool_ref pin;
    assert_int_equal(keep(1), HL_OK);
    assert_int_equal(hl_pool_pin(store.pool, id_of(1), 0, &pin), HL_OK);
    for (uint64_t n = 2; n <= 4; n++)
        assert_int_equal(keep(n), HL_OK);
    assert_int_equal(keep(5), HL_OK); /* the first one should be evicted, and can't */
    expect_kept("1345");
    assert_int_equal(place(8, 12 * HL_POOL_UNIT - 8), HL_OK);
    expect_kept("1");
    assert_int_equal(place(9, FOUR), HL_ENOSPC);
    hl_pool_unpin(store.pool, &pin);
    assert_int_equal(place(9, FOUR), HL_OK);
    expect_kept("");
}

TEST_IN(setup, teardown, what_lingers_and_is_read_again_is_kept_again)
{
    struct hl_pool_ref pin;
    assert_int_equal(keep(1), HL_OK);
    assert_int_equal(hl_pool_pin(store.pool, id_of(1), 0, &pin), HL_OK);
    for (uint64_t n = 2; n <= 5; n++)
        assert_int_equal(keep(n), HL_OK);
    assert_int_equal(store.tiers[0].keep.lingering, 4 * HL_POOL_UNIT);
    hl_pool_unpin(store.pool, &pin);
    store_keep_touch(&store, &store.tiers[0], id_of(1), 1);
    assert_int_equal(store.tiers[0].keep.lingering, 0);
    assert_int_equal(keep(6), HL_OK);
    struct hl_tier_ref ref;
    assert_true(store_keep_find(&store, &store.tiers[0], id_of(1), &ref));
}

TEST_IN(setup, teardown, an_order_makes_a_kept_copy_a_placed_one)
{
    assert_int_equal(keep(1), HL_OK);
    store_keep_place(&store, id_of(1));
    store_keep_place(&store, id_of(2)); /* there is none */
    expect_kept("");
    assert_true(is_placed(1) && !is_placed(2));
    for (uint64_t n = 2; n <= 6; n++)
        assert_int_equal(keep(n), HL_OK);
    expect_kept("456");
    assert_true(is_placed(1));
}

TEST_IN(setup, teardown, of_two_shards_with_one_key_the_first_is_kept)
{
    struct hl_tier_slot slot;
    const struct hl_id twin = {.hi = 1, .lo = 6}; /* hi ^ lo equals that of shard 0 */
    assert_int_equal(keep(0), HL_OK);
    assert_int_equal(store_keep_reserve(&store, &store.tiers[0], twin, FOUR, -1, &slot), HL_OK);
    assert_int_equal(fill_slot(&slot), HL_OK);
    store_keep_loaded(&store, &store.tiers[0], &slot, false, HL_OK);
    struct hl_tier_ref ref;
    assert_false(store_keep_find(&store, &store.tiers[0], twin, &ref));
    assert_true(store_keep_find(&store, &store.tiers[0], id_of(0), &ref));
}

TEST_IN(setup, teardown, a_dropped_one_is_found_no_more_though_it_is_mapped)
{
    struct hl_pool_ref pin, again;
    assert_int_equal(keep(1), HL_OK);
    assert_int_equal(keep(2), HL_OK);
    assert_int_equal(hl_pool_pin(store.pool, id_of(1), 0, &pin), HL_OK);
    const struct hl_id_text first = hl_id_format(id_of(1));
    const char *gone[] = {first.s, "no id"};
    store_keep_gone(&store, &(struct hl_api_text_list){gone, 2});
    expect_kept("2");
    assert_int_equal(hl_pool_pin(store.pool, id_of(1), 0, &again), HL_ENOENT);
    hl_pool_unpin(store.pool, &pin);
}

TEST_IN(setup, teardown, the_next_agent_goes_on_with_what_was_kept)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids;
    for (uint64_t n = 1; n <= 3; n++)
        assert_int_equal(keep(n), HL_OK);
    close_store();
    store.opts.l2_keep = 50; /* with less space */
    open_store();
    assert_int_equal(store_keep_list(&store, &arena, &ids), HL_OK);
    assert_int_equal(ids.count, 2);
    assert_int_equal(hl_keep_used(&store.keep.rule, HL_KEEP_L2), 8 * HL_POOL_UNIT);
}

/* Loads that begin and break off, until it is told to end. */
static void *load_main(void *arg)
{
    const atomic_bool *end = arg;
    struct hl_tier_slot slot;
    while (!atomic_load(end))
        if (store_keep_reserve(&store, &store.tiers[0], id_of(1), FOUR, -1, &slot) == HL_OK) {
            hl_tier_abort(store.tiers[0].t, &slot);
            store_keep_loaded(&store, &store.tiers[0], &slot, false, HL_ECANCELED);
        }
    return NULL;
}

TEST_IN(setup, teardown, an_order_of_the_whole_l2_never_takes_a_load_for_a_placed_copy)
{
    pthread_t thread;
    atomic_bool end = false;
    hl_status st = HL_OK;
    assert_int_equal(pthread_create(&thread, NULL, load_main, &end), 0);
    for (int i = 0; i < ORDERS && st == HL_OK; i++) {
        struct hl_tier_slot slot;
        st = store_reserve(&store, &store.tiers[0], id_of(2), CAPACITY - 8, -1, &slot);
        if (st == HL_OK)
            hl_tier_abort(store.tiers[0].t, &slot);
    }
    atomic_store(&end, true);
    pthread_join(thread, NULL);
    assert_int_equal(st, HL_OK);
}

static void *place_main(void *arg)
{
    hl_status *st = arg;
    *st = place(9, 14 * HL_POOL_UNIT - 8);
    return NULL;
}

TEST_IN(setup, teardown, a_load_gives_its_room_to_an_order)
{
    struct hl_tier_slot slot;
    const struct store_request reader = {.keeps = true, .deadline_ns = UINT64_MAX};
    const struct store_request order = {.deadline_ns = UINT64_MAX};
    pthread_t thread;
    hl_status placed = HL_EINTERNAL;
    int ms;
    assert_int_equal(store_keep_reserve(&store, &store.tiers[0], id_of(1), FOUR, -1, &slot), HL_OK);
    assert_int_equal(store_left(&store, &reader, &ms), HL_OK);
    assert_int_equal(pthread_create(&thread, NULL, place_main, &placed), 0);
    uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
    while (store_left(&store, &reader, &ms) == HL_OK)
        assert_true(hl_now_ns() < end);
    assert_int_equal(store_left(&store, &order, &ms), HL_OK); /* orders are still carried out */
    hl_tier_abort(store.tiers[0].t, &slot);
    store_keep_loaded(&store, &store.tiers[0], &slot, false, HL_ECANCELED);
    pthread_join(thread, NULL);
    assert_int_equal(placed, HL_OK);
}

/* ---- devices --------------------------------------------------------------------------------- */

/* A device with room for two copies beside an L2 for four. */
static int setup_device(void **state)
{
    struct store_tier *t = &store.tiers[1];
    setup(state);
    store_keep_close(&store);
    *t =
        (struct store_tier){.tier = HL_API_TIER_L1, .device = "emu:0", .numa = -1, .bounded = true};
    assert_int_equal(hl_device_open("emu:512KiB", NULL, &t->memory), HL_OK);
    assert_int_equal(
        hl_plank_create(&(struct hl_plank_options){.device = t->memory, .lanes = 1}, &t->plank),
        HL_OK);
    assert_int_equal(hl_tier_over_device(t->memory, "emu:0", NULL, &t->t), HL_OK);
    assert_int_equal(hl_tier_over_device(t->memory, "emu:0", NULL, &t->kept), HL_OK);
    store.tier_count = 2;
    store.opts.l1_keep = 100;
    pthread_mutex_init(&store.lock, NULL);
    assert_int_equal(store_keep_open(&store), HL_OK);
    return 0;
}

static int teardown_device(void **state)
{
    struct store_tier *t = &store.tiers[1];
    hl_tier_close(t->t);
    hl_tier_close(t->kept);
    hl_plank_destroy(t->plank);
    hl_device_close(t->memory);
    return teardown(state);
}

/* A rank maps it: it is copied from the L2, which has it, into the device. */
static hl_status map(uint64_t n)
{
    struct store_result how;
    const struct store_request r = {.id = id_of(n),
                                    .tier = HL_API_TIER_L1,
                                    .device = "",
                                    .source_tier = HL_API_TIER_L2,
                                    .source_device = "",
                                    .source_node = store.node,
                                    .source_host = "",
                                    .source_rpc = "",
                                    .source_data = "",
                                    .source_socket = "",
                                    .numa = -1,
                                    .op = HL_API_OPERATION_READ,
                                    .deadline_ns = hl_now_ns() + TEST_PATIENCE_NS,
                                    .keeps = true};
    struct hl_tier_ref ref;
    if (!store_keep_find(&store, &store.tiers[0], r.id, &ref))
        HL_TRY(keep(n));
    return store_copy_run(&store, &r, &how);
}

/* Each can be in both. */
static void expect_at(int tier, const char *numbers)
{
    struct hl_tier_ref ref;
    for (uint64_t n = 1; n <= 9; n++) {
        bool wanted = strchr(numbers, '0' + (int)n) != NULL;
        if (store_keep_find(&store, &store.tiers[tier], id_of(n), &ref) != wanted)
            fail_msg("shard %d is %skept in tier %d", (int)n, wanted ? "not " : "", tier);
    }
}

static void expect_bytes(int tier, uint64_t n)
{
    static uint8_t bytes[FOUR];
    struct hl_tier_store *t = tier == 0 ? store.tiers[0].t : store.tiers[1].kept;
    struct hl_tier_ref ref;
    hl_status st =
        tier == 0 ? store_keep_pin(&store, id_of(n), &ref) : hl_tier_pin(t, id_of(n), &ref);
    assert_int_equal(st, HL_OK);
    assert_int_equal(hl_tier_read(t, &ref, 0, bytes, sizeof(bytes)), HL_OK);
    for (size_t i = 0; i < sizeof(bytes); i++)
        assert_int_equal(bytes[i], n);
    hl_tier_unpin(t, &ref);
}

TEST_IN(setup_device, teardown_device, what_leaves_a_device_goes_down_to_the_l2)
{
    for (uint64_t n = 1; n <= 6; n++)
        assert_int_equal(map(n), HL_OK);
    /* the node has room for six copies; for one less while one was coming in through the L2 */
    expect_at(1, "56");
    expect_at(0, "2346");
    assert_true(store.keep.counts.down >= 4);
    for (uint64_t n = 2; n <= 4; n++)
        expect_bytes(0, n);
    expect_bytes(1, 5);
}

TEST_IN(setup_device, teardown_device, the_l2_gives_up_first_what_a_device_has_too)
{
    assert_int_equal(map(1), HL_OK);
    assert_int_equal(map(2), HL_OK);
    assert_int_equal(keep(3), HL_OK);
    assert_int_equal(keep(4), HL_OK);
    expect_at(0, "1234");
    assert_int_equal(keep(5), HL_OK);
    expect_at(0, "1345"); /* the newest one in the device stays longest */
    assert_int_equal(keep(6), HL_OK);
    expect_at(0, "3456");
    expect_at(1, "12");
    assert_int_equal(keep(7),
                     HL_OK); /* now the oldest ones leave the node, until the L2 has room */
    expect_at(0, "4567");
    expect_at(1, "");
}

TEST_IN(setup_device, teardown_device, a_host_reader_has_it_from_the_device_of_its_node)
{
    struct store_result how;
    struct hl_tier_ref ref;
    assert_int_equal(map(1), HL_OK);
    for (uint64_t n = 2; n <= 5; n++)
        assert_int_equal(keep(n), HL_OK);
    expect_at(0, "2345");
    expect_at(1, "1");
    const struct store_request r = {.id = id_of(1),
                                    .tier = HL_API_TIER_L2,
                                    .device = "",
                                    .source_tier = HL_API_TIER_L3, /* it does not answer */
                                    .source_device = "",
                                    .source_node = "",
                                    .source_host = "",
                                    .source_rpc = "",
                                    .source_data = "",
                                    .source_socket = "",
                                    .numa = -1,
                                    .op = HL_API_OPERATION_READ,
                                    .deadline_ns = hl_now_ns() + TEST_PATIENCE_NS,
                                    .keeps = true};
    assert_int_equal(store_keep_run(&store, &r, &how), HL_OK);
    assert_true(store_keep_find(&store, &store.tiers[0], id_of(1), &ref));
    expect_bytes(0, 1);
}

TEST_IN(setup_device, teardown_device, what_is_mapped_in_a_device_stays_until_it_is_given_back)
{
    struct hl_tier_ref pin;
    assert_int_equal(map(1), HL_OK);
    assert_int_equal(hl_tier_pin(store.tiers[1].kept, id_of(1), &pin), HL_OK);
    assert_int_equal(map(2), HL_OK);
    assert_int_equal(map(3),
                     HL_OK); /* the first one should be evicted, and can't: the second one is */
    expect_at(1, "13");
    assert_int_equal(store.tiers[1].keep.lingering, 4 * HL_POOL_UNIT);
    hl_tier_unpin(store.tiers[1].kept, &pin);
    store_keep_touch(&store, &store.tiers[1], id_of(1), 2); /* mapped again: it stays */
    assert_int_equal(store.tiers[1].keep.lingering, 0);
    expect_bytes(1, 1);
}

TEST_IN(setup_device, teardown_device, a_device_of_which_no_bytes_were_granted_keeps_nothing)
{
    store.tiers[1].bounded = false;
    assert_false(store_keeps_in_devices(&store));
    assert_int_equal(map(1), HL_ENOSPC);
    expect_at(1, "");
    expect_at(0, "1");
}

TEST_IN(setup_device, teardown_device, a_placed_copy_has_the_room_of_a_device_first)
{
    struct hl_tier_slot slot;
    assert_int_equal(map(1), HL_OK);
    assert_int_equal(map(2), HL_OK);
    assert_int_equal(store_reserve(&store, &store.tiers[1], id_of(8), FOUR, -1, &slot), HL_OK);
    expect_at(1, "2");
    hl_tier_abort(store.tiers[1].t, &slot);
}
