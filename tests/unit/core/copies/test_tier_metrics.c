#include "support/test.h"

#include <string.h>

#include "core/copies/tier_metrics.h"
#include "support/prom_text.h"

static struct prom *gauges(struct hl_api_tier_info *tiers, size_t count)
{
    struct hl_buf text = HL_BUF(1 << 16);
    struct prom *p = malloc(sizeof(*p));
    assert_int_equal(hl_tier_gauges(&(struct hl_api_tier_info_list){tiers, count}, &text), HL_OK);
    prom_parse(text.data, p);
    hl_buf_fini(&text);
    return p;
}

TEST(tiers_are_told_with_their_names_and_shards_are_summed)
{
    struct hl_api_tier_info tiers[] = {
        {.tier = HL_API_TIER_L1, .name = "emu:0", .used_bytes = 5, .shards = 2},
        {.tier = HL_API_TIER_L1, .name = "emu:1", .used_bytes = 6, .shards = 3},
        {.tier = HL_API_TIER_L4, .name = "dir:/a\"b"}};
    struct prom *p = gauges(tiers, 3);
    assert_true(prom_value(p, "helios_tier_bytes", "tier=\"L1\",name=\"emu:0\",state=\"used\"") ==
                5);
    assert_true(prom_value(p, "helios_tier_bytes", "tier=\"L1\",name=\"emu:1\",state=\"used\"") ==
                6);
    assert_true(prom_value(p, "helios_tier_bytes",
                           "tier=\"L4\",name=\"dir:/a\\\"b\",state=\"quota\"") == 0);
    /* a value that a tier does not have is not reported as 0 */
    assert_true(prom_value(p, "helios_tier_bytes",
                           "tier=\"L4\",name=\"dir:/a\\\"b\",state=\"high\"") == -1);
    assert_true(prom_value(p, "helios_shards", "tier=\"L1\"") == 5);
    assert_true(prom_value(p, "helios_shards", "tier=\"L4\"") == 0);
    assert_true(prom_value(p, "helios_shards", "tier=\"L2\"") == -1); /* none there */
    assert_true(prom_value(p, "helios_chunks_asked_bytes", "tier=\"L1\",name=\"emu:0\"") == -1);
    free(p);
}

TEST(chunks_are_told_by_process_and_are_no_shards)
{
    struct hl_api_process_bytes processes[] = {{12, 4}, {13, 3}};
    struct hl_api_tier_info chunks = {.tier = HL_API_TIER_L2,
                                      .name = "chunks",
                                      .kind = "chunks",
                                      .used_bytes = 7,
                                      .processes = {processes, 2},
                                      .asked_bytes = 5};
    struct prom *p = gauges(&chunks, 1);
    assert_true(prom_value(p, "helios_tier_bytes", "tier=\"L2\",name=\"chunks\",state=\"used\"") ==
                7);
    assert_true(prom_value(p, "helios_chunk_bytes", "tier=\"L2\",name=\"chunks\",pid=\"12\"") == 4);
    assert_true(prom_value(p, "helios_chunk_bytes", "tier=\"L2\",name=\"chunks\",pid=\"13\"") == 3);
    assert_true(prom_value(p, "helios_chunks_asked_bytes", "tier=\"L2\",name=\"chunks\"") == 5);
    assert_true(prom_value(p, "helios_shards", "tier=\"L2\"") == -1);
    free(p);
}

TEST(without_tiers_only_the_families_are_told)
{
    struct prom *p = gauges(NULL, 0);
    assert_int_equal(p->count, 0);
    free(p);
    struct hl_buf small = HL_BUF(32);
    assert_int_equal(hl_tier_gauges(&(struct hl_api_tier_info_list){0}, &small), HL_ENOMEM);
    hl_buf_fini(&small);
}
