/* What the HybridPS processes of a node are asked for in answer to its reports. */
#include "unit/controller/placement/placement_rig.h"

#include <stdlib.h>
#include <string.h>

enum { L1_TIER, L2_TIER, L1_CHUNKS, L1_CHUNKS_TOO, L2_CHUNKS, TIERS };

static struct hl_api_tier_info tiers[TIERS];
static struct hl_arena answers;

/* Of 1000 bytes each: the watermarks are at 850 and 700, the goal is 775. */
static int node_start(void **state)
{
    const struct hl_api_tier_info all[TIERS] = {
        [L1_TIER] = {.tier = HL_API_TIER_L1, .name = "emu:0", .kind = "", .quota_bytes = 1000},
        [L2_TIER] = {.tier = HL_API_TIER_L2, .name = "host", .kind = "", .quota_bytes = 1000},
        [L1_CHUNKS] = {.tier = HL_API_TIER_L1, .name = "chunks:0", .kind = "chunks"},
        [L1_CHUNKS_TOO] = {.tier = HL_API_TIER_L1, .name = "chunks:1", .kind = "chunks"},
        [L2_CHUNKS] = {.tier = HL_API_TIER_L2, .name = "chunks", .kind = "chunks"},
    };
    memcpy(tiers, all, sizeof(tiers));
    int rc = world_start(state);
    struct world *w = *state;
    w->a.report.tiers = (struct hl_api_tier_info_list){tiers, TIERS};
    return rc;
}

static int node_end(void **state)
{
    hl_arena_fini(&answers);
    return world_end(state);
}

static void set_policy(struct world *w, const char *policy)
{
    char *copy = strdup(policy);
    assert_non_null(copy);
    free((char *)w->c.placement->conf.policy);
    w->c.placement->conf.policy = copy;
}

/* The requests as text: "chunks:0=775 ". */
static const char *ask(struct world *w)
{
    static char text[200];
    const struct hl_api_chunk_request_list list = placement_asks(&w->c, &w->a, &answers);
    text[0] = '\0';
    for (size_t i = 0; i < list.count; i++) {
        size_t len = strlen(text);
        snprintf(text + len, sizeof(text) - len, "%s=%llu ", list.items[i].name,
                 (unsigned long long)list.items[i].bytes);
    }
    return text;
}

TEST_IN(node_start, node_end, chunks_of_devices_are_asked_by_what_each_device_has)
{
    struct world *w = *state;
    set_policy(w, "on");
    tiers[L1_CHUNKS].used_bytes = 600;
    assert_string_equal(ask(w), "");
    tiers[L1_CHUNKS_TOO].used_bytes = 300;
    tiers[L2_CHUNKS].used_bytes = 900; /* they have a limit of their own */
    assert_string_equal(ask(w), "chunks:0=516 chunks:1=258 ");
    tiers[L1_CHUNKS].used_bytes = 516;
    tiers[L1_CHUNKS_TOO].used_bytes = 258;
    assert_string_equal(ask(w), "chunks:0=516 chunks:1=258 ");
    tiers[L1_CHUNKS_TOO].used_bytes = 0;
    assert_string_equal(ask(w), "");
}

TEST_IN(node_start, node_end, only_pinned_shards_make_chunks_smaller)
{
    struct world *w = *state;
    set_policy(w, "on");
    uint64_t size = w->shard->size_bytes;
    tiers[L1_TIER].quota_bytes = 10 * size; /* the goal is 7.75 shards */
    tiers[L1_TIER].used_bytes = size;
    tiers[L1_CHUNKS].used_bytes = 77 * size / 10;
    learn(w, &w->a, HL_API_TIER_L1, "emu:0");
    assert_string_equal(ask(w), "");
    assert_int_equal(hl_placement_shard_pin(&w->c.placement->core, w->shard->id, true), HL_OK);
    char want[64];
    snprintf(want, sizeof(want), "chunks:0=%llu ", (unsigned long long)(775 * size / 100 - size));
    assert_string_equal(ask(w), want);
}

TEST_IN(node_start, node_end, nothing_is_asked_unless_the_policy_is_on)
{
    struct world *w = *state;
    tiers[L1_CHUNKS].used_bytes = 900;
    set_policy(w, "off");
    assert_string_equal(ask(w), "");
    set_policy(w, "observe");
    assert_string_equal(ask(w), "");
    set_policy(w, "on");
    assert_string_equal(ask(w), "chunks:0=775 ");
    set_policy(w, "off");
    assert_string_equal(ask(w), "");
}

TEST_IN(node_start, node_end, a_new_agent_begins_without_a_request)
{
    struct world *w = *state;
    set_policy(w, "on");
    tiers[L1_CHUNKS].used_bytes = 900;
    assert_string_equal(ask(w), "chunks:0=775 ");
    tiers[L1_CHUNKS].used_bytes = 800; /* goes on, but would not begin */
    assert_string_equal(ask(w), "chunks:0=775 ");
    placement_node_registered(&w->c, &w->a);
    assert_string_equal(ask(w), "");
    tiers[L1_CHUNKS].used_bytes = 900;
    assert_string_equal(ask(w), "chunks:0=775 ");
    tiers[L1_CHUNKS].used_bytes = 800;
    placement_node_silent(&w->c, &w->a);
    assert_string_equal(ask(w), "");
}

TEST_IN(node_start, node_end, a_device_of_unknown_size_leaves_l1_unknown)
{
    struct world *w = *state;
    set_policy(w, "on");
    tiers[L1_CHUNKS].used_bytes = 900;
    tiers[L2_TIER] = (struct hl_api_tier_info){.tier = HL_API_TIER_L1, .name = "x", .kind = ""};
    assert_string_equal(ask(w), "");
}
