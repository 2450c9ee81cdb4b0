/* How often each shard was read: nothing is lost, nothing is reported twice. */
#include "support/test.h"

#include <poll.h>
#include <string.h>

#include "client/client_private.h"

#define NEIGHBOURS 16 /* shards with equal low bits that have slots of their own */

static const struct hl_id one = {1, 2}, two = {3, 4};

struct rig {
    struct access_table *table;
    struct hl_arena arena;
};

static int setup(void **state)
{
    static struct rig r;
    r = (struct rig){0};
    *state = &r;
    return access_create(&r.table);
}

static int teardown(void **state)
{
    struct rig *r = *state;
    access_destroy(r->table);
    hl_arena_fini(&r->arena);
    return 0;
}

static struct hl_api_access_report_list take(struct rig *r)
{
    return access_take(r->table, "rdma", &r->arena);
}

static const struct hl_api_access_report *find(const struct hl_api_access_report_list *list,
                                               const char *id, const char *path)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, id) == 0 && strcmp(list->items[i].path, path) == 0)
            return &list->items[i];
    return NULL;
}

TEST_IN(setup, teardown, nothing_was_read)
{
    assert_int_equal(take(*state).count, 0);
}

TEST_IN(setup, teardown, a_shard_has_a_report_for_each_path)
{
    struct rig *r = *state;
    access_count(r->table, one, 100, 0);
    access_count(r->table, one, 11, 0);
    access_count(r->table, one, 7, 1);
    access_count(r->table, two, 5, 1);
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 3);
    const struct hl_api_access_report *shm = find(&list, hl_id_format(one).s, "shm");
    const struct hl_api_access_report *net = find(&list, hl_id_format(one).s, "rdma");
    assert_int_equal(shm->count, 2);
    assert_int_equal(shm->bytes, 111);
    assert_int_equal(net->count, 1);
    assert_int_equal(net->bytes, 7);
    assert_int_equal(find(&list, hl_id_format(two).s, "rdma")->bytes, 5);
}

TEST_IN(setup, teardown, a_report_says_how_long_ago_the_last_read_was)
{
    struct rig *r = *state;
    access_count(r->table, one, 100, 0);
    poll(NULL, 0, 30);
    access_count(r->table, two, 100, 0);
    const struct hl_api_access_report_list list = take(r);
    const struct hl_api_access_report *old = find(&list, hl_id_format(one).s, "shm"),
                                      *young = find(&list, hl_id_format(two).s, "shm");
    assert_true(old->age_ms >= young->age_ms + 20); /* the clock is a coarse one */
}

TEST_IN(setup, teardown, what_was_told_is_not_told_again)
{
    struct rig *r = *state;
    access_count(r->table, one, 100, 0);
    assert_int_equal(take(r).count, 1);
    assert_int_equal(take(r).count, 0);
    access_count(r->table, one, 3, 0);
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].bytes, 3);
}

TEST_IN(setup, teardown, troubles_are_told_once_with_the_first_report)
{
    struct rig *r = *state;
    access_count(r->table, one, 100, 0);
    access_count(r->table, one, 100, 1);
    access_trouble(r->table, one, 3, 2, true);
    access_trouble(r->table, one, 1, 1, false);
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 2);
    assert_int_equal(list.items[0].crc_failures, 4);
    assert_int_equal(list.items[0].retries, 3);
    assert_true(list.items[0].lost);
    assert_int_equal(list.items[1].crc_failures, 0);
    assert_int_equal(list.items[1].retries, 0);
    assert_false(list.items[1].lost);
}

TEST_IN(setup, teardown, trouble_without_a_read_is_told_without_a_path)
{
    struct rig *r = *state;
    access_trouble(r->table, one, 3, 0, true);
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 1);
    assert_int_equal(list.items[0].count, 0);
    assert_string_equal(list.items[0].path, "");
    assert_int_equal(list.items[0].crc_failures, 3);
    assert_true(list.items[0].lost);
}

TEST_IN(setup, teardown, shards_that_find_no_slot_count_under_no_id)
{
    struct rig *r = *state;
    for (uint64_t i = 0; i < NEIGHBOURS + 4; i++)
        access_count(r->table, (struct hl_id){i, 64}, 10, 0); /* the same low bits */
    access_count(r->table, (struct hl_id){0, 64}, 10, 0);     /* keeps its slot */
    const struct hl_api_access_report_list list = take(r);
    uint64_t count = 0, bytes = 0;
    for (size_t i = 0; i < list.count; i++) {
        count += list.items[i].count;
        bytes += list.items[i].bytes;
    }
    assert_int_equal(list.count, NEIGHBOURS + 1);
    assert_int_equal(count, NEIGHBOURS + 5);
    assert_int_equal(bytes, (NEIGHBOURS + 5) * 10);
    assert_int_equal(find(&list, "", "shm")->count, 4);
    assert_int_equal(find(&list, hl_id_format((struct hl_id){0, 64}).s, "shm")->count, 2);
}

TEST_IN(setup, teardown, ids_that_differ_in_one_half_are_two_shards)
{
    struct rig *r = *state;
    access_count(r->table, (struct hl_id){1, 64}, 10, 0);
    access_count(r->table, (struct hl_id){1ull << 32 | 1, 64}, 20, 0); /* the same tag */
    access_count(r->table, (struct hl_id){1, 65}, 40, 0);              /* the same neighbourhood */
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 3);
    assert_int_equal(find(&list, hl_id_format((struct hl_id){1, 65}).s, "shm")->bytes, 40);
}

TEST_IN(setup, teardown, a_report_says_in_which_tier_the_shard_was_found)
{
    struct rig *r = *state;
    access_count(r->table, one, 1, ACCESS_POOL);
    access_count(r->table, one, 10, ACCESS_STORE);
    access_count(r->table, one, 10, ACCESS_STORE);
    access_count(r->table, one, 100, ACCESS_NET);
    const struct hl_api_access_report_list list = take(r);
    assert_int_equal(list.count, 3);
    for (size_t i = 0; i < list.count; i++) {
        const struct hl_api_access_report *a = &list.items[i];
        bool store = a->tier == HL_API_TIER_L2;
        assert_true(store || a->tier == HL_API_TIER_L3);
        assert_int_equal(a->count, store ? 2 : 1);
        assert_int_equal(a->bytes, store ? 20 : strcmp(a->path, "rdma") == 0 ? 100 : 1);
    }
}

TEST_IN(setup, teardown, reads_of_kept_copies_are_told_to_the_agent_once)
{
    struct rig *r = *state;
    assert_int_equal(access_take_kept(r->table, &r->arena).count, 0);
    access_kept(r->table, one, false);
    access_kept(r->table, one, false);
    access_kept(r->table, two, true);
    const struct hl_api_shard_reads_list list = access_take_kept(r->table, &r->arena);
    assert_int_equal(list.count, 2);
    for (size_t i = 0; i < 2; i++) {
        bool first = strcmp(list.items[i].id, hl_id_format(one).s) == 0;
        assert_int_equal(list.items[i].count, first ? 2 : 0);
        assert_int_equal(list.items[i].bad, !first);
    }
    assert_int_equal(access_take_kept(r->table, &r->arena).count, 0);
    assert_int_equal(take(r).count, 0); /* the Controller counts them separately */
}
