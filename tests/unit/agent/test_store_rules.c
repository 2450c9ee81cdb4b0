/* Rules of a node's store that need no other process: deadlines, which tier is meant, and how much
 * memory its chunks may use. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "agent/store_private.h"
#include "hybridps/manager/table.h"

TEST(an_order_has_what_is_left_of_its_time)
{
    static const struct {
        int64_t left_ns;        /* from now */
        bool stopping, stopped; /* the store, the copy */
        hl_status st;
        int most_ms; /* at most so many ms, and at least one */
    } rows[] = {
        {60 * (int64_t)HL_NS_PER_S, false, false, HL_OK, 60000},
        {60 * (int64_t)HL_NS_PER_S, true, false, HL_ECANCELED, 0},
        {60 * (int64_t)HL_NS_PER_S, false, true, HL_ECANCELED, 0},
        {-1, false, false, HL_ETIMEDOUT, 0},
        {INT64_MAX / 2, false, false, HL_OK, INT32_MAX},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct store s = {.stopping = rows[i].stopping};
        const atomic_bool stop = rows[i].stopped;
        const struct store_request r = {.deadline_ns = hl_now_ns() + (uint64_t)rows[i].left_ns,
                                        .stop = &stop};
        int ms = 0;
        assert_int_equal(store_left(&s, &r, &ms), rows[i].st);
        if (rows[i].st == HL_OK)
            assert_in_range(ms, 1, rows[i].most_ms);
        else
            assert_int_equal(ms, 0);
    }
}

TEST(a_node_without_the_tier_says_how_it_gets_one)
{
    static const struct {
        enum hl_api_tier tier;
        const char *device;
        hl_status st;
        const char *named;
    } rows[] = {
        {HL_API_TIER_L1, "emu:7", HL_ENOENT, "emu:7"},
        {HL_API_TIER_L1, "", HL_EUNSUPPORTED, "--devices"},
        {HL_API_TIER_L2, "", HL_EUNSUPPORTED, "--l2-size"},
        {HL_API_TIER_L4, "", HL_EUNSUPPORTED, "L4"},
    };
    struct store s = {.tier_count = 0};
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct store_tier *t = NULL;
        assert_int_equal(store_tier_need(&s, rows[i].tier, rows[i].device, -1, 1, &t), rows[i].st);
        assert_non_null(strstr(hl_error_text(), rows[i].named));
        assert_null(t);
    }
}

/* Any other failure would have a move to this node be undone for placement.clean, 10 minutes. */
TEST(a_node_without_an_l2_answers_that_it_has_no_copy)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const char *ids[] = {"00000000000000010000000000000002"};
    const struct hl_api_agent_store_locate_params p = {.ids = {ids, 1}};
    struct hl_api_agent_store_locate_results found = {.extents.count = 0};
    struct store s = {.tier_count = 0};
    assert_int_equal(store_locate(&s, &p, &arena, &found), HL_ENOENT);
    assert_int_equal(found.extents.count, 0);
}

TEST(chunks_have_the_host_and_each_gpu_in_its_order)
{
    struct hl_api_device gpus[] = {{.memory_bytes = 10}, {.memory_bytes = 0}, {.memory_bytes = 30}};
    struct hl_api_slot slots[] = {
        {.gpus = {gpus, 2}}, {.gpus = {NULL, 0}}, {.gpus = {gpus + 2, 1}}};
    uint64_t out[HL_MANAGER_DEVICES];
    assert_int_equal(chunks_capacities(&(struct hl_api_slot_list){slots, 3}, 99, out), 4);
    assert_int_equal(out[0], 99);
    assert_int_equal(out[1], 10);
    assert_true(out[2] == HL_MANAGER_UNLIMITED); /* the device does not tell */
    assert_int_equal(out[3], 30);
    assert_int_equal(chunks_capacities(&(struct hl_api_slot_list){slots + 1, 1}, 99, out), 2);
    assert_true(out[1] == HL_MANAGER_UNLIMITED); /* emulated */
}

TEST(more_gpus_than_the_table_has_places_are_left_out)
{
    static struct hl_api_device gpus[HL_MANAGER_DEVICES + 5];
    uint64_t out[HL_MANAGER_DEVICES];
    struct hl_api_slot slot = {.gpus = {gpus, HL_ARRAY_LEN(gpus)}};
    for (size_t i = 0; i < HL_ARRAY_LEN(gpus); i++)
        gpus[i].memory_bytes = i + 1;
    assert_int_equal(chunks_capacities(&(struct hl_api_slot_list){&slot, 1}, 99, out),
                     HL_MANAGER_DEVICES);
    assert_int_equal(out[HL_MANAGER_DEVICES - 1], HL_MANAGER_DEVICES - 1);
}
