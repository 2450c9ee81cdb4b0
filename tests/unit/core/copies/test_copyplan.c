/* Which source is nearest, and the steps of a copy from any place to any other. */
#include "support/test.h"

#include <string.h>

#include "base/status.h"
#include "core/copies/copyplan.h"

/* Two nodes on one host, one on another. */
static const int a, b, c;

static struct hl_copy_place at(enum hl_api_tier tier, const void *node, const char *device)
{
    return (struct hl_copy_place){
        .tier = tier, .node = node, .host = node == &c ? "far" : "near", .device = device};
}

static const struct hl_copy_place pool = {.tier = HL_API_TIER_L3, .host = "pool", .device = ""};
static const struct hl_copy_place archive = {.tier = HL_API_TIER_L4, .host = "pool", .device = ""};

/* "read L2, read L1": every step until the copy is there, with its target tier. */
static const char *steps(struct hl_copy_place from, struct hl_copy_place goal,
                         enum hl_api_operation op)
{
    static const char *const words[] = {"done", "read", "send", "load", "archive"};
    static char text[256];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i <= HL_COPY_STEPS_MAX; i++) {
        struct hl_copy_move m = hl_copy_next(&from, &goal, op, i > 0);
        if (m.step == HL_COPY_DONE)
            return text;
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s %s", i > 0 ? ", " : "",
                                 words[m.step], hl_api_tier_name(m.lands.tier));
        from = m.lands;
    }
    fail_msg("no end: %s", text);
    return text;
}

TEST(device_memory_of_another_node_goes_through_host_memory)
{
    struct hl_copy_place device = at(HL_API_TIER_L1, &a, "emu:0"),
                         goal = at(HL_API_TIER_L1, &b, "emu:1");
    assert_string_equal(steps(device, goal, HL_API_OPERATION_READ), "read L2, read L1");
    goal = at(HL_API_TIER_L1, &c, "");
    assert_string_equal(steps(device, goal, HL_API_OPERATION_MIGRATE), "read L2, send L2, read L1");
    assert_string_equal(steps(device, pool, HL_API_OPERATION_WRITE), "read L2, send L3");
    assert_string_equal(steps(device, at(HL_API_TIER_L1, &a, "emu:1"), HL_API_OPERATION_WRITE),
                        "read L1");
}

TEST(the_archive_is_reached_through_the_pool)
{
    struct hl_copy_place l2 = at(HL_API_TIER_L2, &a, "");
    assert_string_equal(steps(archive, l2, HL_API_OPERATION_READ), "load L3, read L2");
    assert_string_equal(steps(archive, pool, HL_API_OPERATION_READ), "load L3");
    assert_string_equal(steps(l2, archive, HL_API_OPERATION_WRITE), "send L3, archive L4");
    assert_string_equal(steps(pool, archive, HL_API_OPERATION_READ), "archive L4");
    assert_string_equal(steps(archive, archive, HL_API_OPERATION_READ), "archive L4");
}

TEST(hosts_apart_are_sent_to_and_others_read)
{
    struct hl_copy_place from = at(HL_API_TIER_L2, &a, ""), far = at(HL_API_TIER_L2, &c, "");
    assert_string_equal(steps(from, far, HL_API_OPERATION_MIGRATE), "send L2");
    assert_string_equal(steps(from, far, HL_API_OPERATION_READ), "read L2");
    assert_string_equal(steps(from, at(HL_API_TIER_L2, &b, ""), HL_API_OPERATION_MIGRATE),
                        "read L2");
    assert_string_equal(steps(pool, far, HL_API_OPERATION_MIGRATE), "read L2");
    far.host = from.host = ""; /* their hosts are unknown: not the same host */
    assert_string_equal(steps(from, far, HL_API_OPERATION_WRITE), "send L2");
}

TEST(one_more_copy_is_made_where_one_is)
{
    struct hl_copy_place l2 = at(HL_API_TIER_L2, &a, "");
    assert_string_equal(steps(l2, l2, HL_API_OPERATION_READ), "read L2");
}

TEST(any_pair_of_places_ends_within_the_limit)
{
    const struct hl_copy_place all[] = {at(HL_API_TIER_L1, &a, "emu:0"),
                                        at(HL_API_TIER_L1, &a, ""),
                                        at(HL_API_TIER_L2, &a, ""),
                                        at(HL_API_TIER_L1, &b, "emu:0"),
                                        at(HL_API_TIER_L2, &b, ""),
                                        at(HL_API_TIER_L1, &c, "x"),
                                        at(HL_API_TIER_L2, &c, ""),
                                        pool,
                                        archive};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        for (size_t k = 0; k < HL_ARRAY_LEN(all); k++)
            for (int op = 0; op < HL_API_OPERATION_COUNT; op++)
                assert_true(steps(all[i], all[k], (enum hl_api_operation)op)[0] != '\0');
}

static int distance(struct hl_copy_place from, struct hl_copy_place goal, enum hl_api_operation op)
{
    return hl_copy_distance(&from, &goal, op);
}

TEST(the_nearest_source_is_on_the_node_then_on_its_host_then_in_the_pool)
{
    struct hl_copy_place goal = at(HL_API_TIER_L1, &a, "emu:0");
    int own = distance(at(HL_API_TIER_L2, &a, ""), goal, HL_API_OPERATION_READ);
    int own_device = distance(at(HL_API_TIER_L1, &a, "emu:1"), goal, HL_API_OPERATION_READ);
    int neighbour = distance(at(HL_API_TIER_L2, &b, ""), goal, HL_API_OPERATION_READ);
    int far = distance(at(HL_API_TIER_L2, &c, ""), goal, HL_API_OPERATION_READ);
    int from_pool = distance(pool, goal, HL_API_OPERATION_READ);
    int from_archive = distance(archive, goal, HL_API_OPERATION_READ);
    assert_true(own < own_device && own_device < neighbour && neighbour < far);
    assert_true(far < from_pool && from_pool < from_archive);
    /* what has to be sent is sent from an L2 rather than fetched by the pool's owner */
    assert_true(distance(at(HL_API_TIER_L1, &c, ""), goal, HL_API_OPERATION_MIGRATE) <
                distance(pool, goal, HL_API_OPERATION_MIGRATE));
    assert_true(distance(at(HL_API_TIER_L1, &c, ""), goal, HL_API_OPERATION_READ) > from_pool);
}

TEST(the_pool_and_the_archive_are_filled_from_the_pool)
{
    for (int i = 0; i < 2; i++) {
        struct hl_copy_place goal = i == 0 ? pool : archive;
        int from_pool = distance(pool, goal, HL_API_OPERATION_WRITE);
        int from_archive = distance(archive, goal, HL_API_OPERATION_WRITE);
        assert_true(from_pool < from_archive);
        assert_true(from_archive <
                    distance(at(HL_API_TIER_L2, &a, ""), goal, HL_API_OPERATION_WRITE));
    }
}

TEST(a_copy_is_dropped_only_while_another_lasts)
{
    const struct hl_copy_place own = at(HL_API_TIER_L2, &a, ""), next = at(HL_API_TIER_L2, &b, ""),
                               device = at(HL_API_TIER_L1, &b, "emu:0");

    const struct {
        const struct hl_copy_place *place, *other;
        bool outlives, confirmed;
    } rows[] = {
        {&own, &next, true, true},    {&own, &pool, true, true},      {&own, &archive, true, true},
        {&pool, &own, true, true},    {&pool, &archive, true, false}, {&archive, &pool, true, true},
        {&device, &next, true, true}, {&own, &device, false, true}, /* a device forgets */
        {&own, &own, false, true},    {&pool, &pool, false, true},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_copy_outlives(rows[i].other, rows[i].place), rows[i].outlives);
        assert_int_equal(hl_copy_is_confirmed(rows[i].other, rows[i].place), rows[i].confirmed);
    }
}

#define X(name, number, text) HL_##name,
static const hl_status all_statuses[] = {HL_STATUS_MAP(X)};
#undef X

TEST(another_copy_is_read_where_it_would_not_fail_alike)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(all_statuses); i++) {
        bool helps = false;
        switch (all_statuses[i]) {
        case HL_ECORRUPT:  /* the pool's copy is bad */
        case HL_ENOENT:    /* it has none */
        case HL_ESTALE:    /* the daemon was restarted */
        case HL_EUNAVAIL:  /* it is away */
        case HL_ETIMEDOUT: /* or stuck */
            helps = true;
            break;
        default:
            break;
        }
        assert_int_equal(hl_copy_may_help(all_statuses[i]), helps);
    }
}

TEST(a_target_that_refuses_is_not_asked_again_with_another_source)
{
    static const hl_status source[] = {HL_ECORRUPT,  HL_ENOENT, HL_ESTALE, HL_EUNAVAIL,
                                       HL_ETIMEDOUT, HL_EIO,    HL_EPROTO};
    for (size_t i = 0; i < HL_ARRAY_LEN(all_statuses); i++) {
        bool of_source = false;
        for (size_t k = 0; k < HL_ARRAY_LEN(source); k++)
            of_source |= source[k] == all_statuses[i];
        assert_int_equal(hl_copy_blames_source(all_statuses[i]), of_source);
    }
    assert_false(hl_copy_blames_source(HL_ENOSPC));
    assert_false(hl_copy_blames_source(HL_EINVAL));
}

TEST(what_was_asked_wrongly_or_is_not_there_is_not_counted_as_a_transfer)
{
    static const hl_status refused[] = {HL_ENOENT, HL_EINVAL, HL_EEXIST, HL_ENOSPC};
    for (size_t i = 0; i < HL_ARRAY_LEN(all_statuses); i++) {
        bool counts = true;
        for (size_t k = 0; k < HL_ARRAY_LEN(refused); k++)
            counts &= refused[k] != all_statuses[i];
        assert_int_equal(hl_copy_was_tried(all_statuses[i]), counts);
    }
}
