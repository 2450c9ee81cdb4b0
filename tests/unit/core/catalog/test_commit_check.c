/* Checks before a version becomes visible: what L3 found, compared with what its ranks stated. */
#include "support/test.h"

#include <string.h>

#include "core/catalog/commit_check.h"
#include "unit/controller/catalog_rig.h"

#define FOUND_MAX 4

struct world {
    struct hl_catalog catalog;
    struct hl_version_rec *version; /* has shards 1 and 2 */
    char ids[FOUND_MAX][33];
    struct hl_api_found_shard found[FOUND_MAX];
    struct hl_api_shard named; /* 3: brought by this commit */
};

static struct hl_api_found_shard in_pool(struct world *w, int slot, int n)
{
    snprintf(w->ids[slot], sizeof(w->ids[slot]), "%032x", (unsigned)n);
    return (struct hl_api_found_shard){.id = w->ids[slot],
                                       .size_bytes = size_of_shard(n),
                                       .crc32 = crc_of_shard(n),
                                       .crc32_known = true};
}

static void world_init(struct world *w)
{
    *w = (struct world){0};
    w->version = import_model(&w->catalog, "tiny", 1, "{}");
    for (int i = 0; i < 3; i++) /* the answer is in L3's order */
        w->found[i] = in_pool(w, i, 3 - i);
    w->named = (struct hl_api_shard){.id = "00000000000000000000000000000003",
                                     .part = "layer-0007",
                                     .pp = 1,
                                     .size_bytes = size_of_shard(3),
                                     .crc32 = crc_of_shard(3)};
}

static hl_status check(const struct world *w, size_t found)
{
    const struct hl_api_shard_list named = {(struct hl_api_shard *)&w->named, 1};
    const struct hl_api_found_shard_list list = {(struct hl_api_found_shard *)w->found, found};
    return hl_commit_check(w->version, &named, &list);
}

static void refused(const struct world *w, size_t found, hl_status want, const char *shard)
{
    assert_int_equal(check(w, found), want);
    if (strstr(hl_error_text(), shard) == NULL)
        fail_msg("'%s' does not name %s", hl_error_text(), shard);
}

TEST(what_is_there_as_stated_may_become_visible)
{
    struct world w;
    world_init(&w);
    assert_int_equal(check(&w, 3), HL_OK);
    hl_catalog_fini(&w.catalog);
}

TEST(a_shard_that_l3_has_not_is_named_whoever_linked_it)
{
    struct world w;
    world_init(&w);
    refused(&w, 2, HL_ENOENT, "00000000000000000000000000000001"); /* from an earlier commit */
    w.found[0] = in_pool(&w, 0, 9);
    refused(&w, 3, HL_ENOENT, "layer-0007"); /* from this one */
    hl_catalog_fini(&w.catalog);
}

TEST(another_size_is_refused)
{
    struct world w;
    world_init(&w);
    w.found[0].size_bytes++;
    refused(&w, 3, HL_EINVAL, "layer-0007");
    w.found[0].size_bytes--;
    w.found[2].size_bytes--;
    refused(&w, 3, HL_EINVAL, "00000000000000000000000000000001");
    hl_catalog_fini(&w.catalog);
}

TEST(another_checksum_is_refused_where_l3_knows_it)
{
    struct world w;
    world_init(&w);
    w.found[1].crc32 ^= 1;
    refused(&w, 3, HL_EINVAL, "00000000000000000000000000000002");
    w.found[1].crc32_known = false; /* for an archived shard that was not read yet */
    assert_int_equal(check(&w, 3), HL_OK);
    hl_catalog_fini(&w.catalog);
}

TEST(l3_is_asked_for_what_is_linked_and_what_is_new)
{
    struct world w;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    world_init(&w);
    const struct hl_api_shard_list named = {&w.named, 1};
    struct hl_api_text_list ids = hl_commit_check_ids(w.version, &named, &arena);
    unsigned seen = 0;
    assert_int_equal(ids.count, 3);
    for (size_t i = 0; i < ids.count; i++)
        seen |= 1u << (ids.items[i][31] - '0');
    assert_int_equal(seen, 1u << 1 | 1u << 2 | 1u << 3);
    hl_catalog_fini(&w.catalog);
}
