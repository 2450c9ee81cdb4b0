/* The route table against the sentences of the specification (3.1.4, 3.3, 3.4, 3.6, 3.7, 6), over
 * every possible query. The oracle below is written from those sentences, not from the table. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/copies/route.h"

#define NIC_COUNT   (HL_NIC_BLUEFIELD + 1)
#define QUERY_COUNT (3 * 4 * 4 * 4 * 2 * NIC_COUNT * 2 * 3)

/* Query number n of QUERY_COUNT. */
static struct hl_route_query query_at(unsigned n)
{
    struct hl_route_query q;
#define DIGIT(base) (n / (scale *= (base), scale / (base)) % (base))
    unsigned scale = 1;
    q.op = (enum hl_api_operation)DIGIT(3);
    q.source = (enum hl_api_tier)(HL_API_TIER_L1 + DIGIT(4));
    q.target = (enum hl_api_tier)(HL_API_TIER_L1 + DIGIT(4));
    q.link = (enum hl_route_link)DIGIT(4);
    q.migration_net = (int)DIGIT(2);
    q.nic = (enum hl_nic_class)DIGIT(NIC_COUNT);
    q.device_direct = (int)DIGIT(2);
    q.direct = (enum hl_route_direct)DIGIT(3);
#undef DIGIT
    return q;
}

static const char *words(const struct hl_route_query *q)
{
    static char text[200];
    snprintf(text, sizeof(text), "%s %s->%s link %d net %d nic %s device %d direct %d",
             hl_api_operation_name(q->op), hl_api_tier_name(q->source), hl_api_tier_name(q->target),
             q->link, q->migration_net, hl_nic_class_name(q->nic), q->device_direct, q->direct);
    return text;
}

static int is_node(enum hl_api_tier t)
{
    return t == HL_API_TIER_L1 || t == HL_API_TIER_L2;
}

static int is_remote(const struct hl_route_query *q)
{
    return q->link == HL_LINK_RDMA || q->link == HL_LINK_TCP;
}

/* 3.7 and 6: device memory and the NIC. */
static enum hl_api_route_path device_path(const struct hl_route_query *q)
{
    int into_device = q->target == HL_API_TIER_L1;
    /* "ConnectX-4 and older: the plank is forced" for NIC -> GPU; the specification has no such
     * line for GPU -> NIC. */
    if (into_device && (q->nic == HL_NIC_CX3 || q->nic == HL_NIC_CX4))
        return HL_API_ROUTE_PATH_PLANK;
    /* "advanced features supported -> direct, limited -> plank" */
    if (q->link != HL_LINK_RDMA || !q->device_direct)
        return HL_API_ROUTE_PATH_PLANK;
    /* "on failure it falls back by itself" */
    return q->direct == HL_DIRECT_FAILED ? HL_API_ROUTE_PATH_PLANK : HL_API_ROUTE_PATH_DIRECT;
}

static enum hl_api_route_path remote_path(const struct hl_route_query *q)
{
    int between_nodes = is_node(q->source) && is_node(q->target);
    switch (q->op) {
    case HL_API_OPERATION_MIGRATE:
        /* Host to host; device data goes through host memory first. */
        if (q->source == HL_API_TIER_L1)
            return HL_API_ROUTE_PATH_LOCAL_COPY;
        /* "A migration inherits the network of the write path." */
        return between_nodes && q->migration_net ? HL_API_ROUTE_PATH_ZMQ
                                                 : HL_API_ROUTE_PATH_UCX_TAGGED;
    case HL_API_OPERATION_WRITE:
        if (q->source == HL_API_TIER_L1 || q->target == HL_API_TIER_L1)
            return device_path(q);
        /* "L2<->L2 write path: ZMQ", "L2<->L3 write: UCX tagged message" */
        return between_nodes && q->migration_net ? HL_API_ROUTE_PATH_ZMQ
                                                 : HL_API_ROUTE_PATH_UCX_TAGGED;
    default:
        if (q->source == HL_API_TIER_L1 || q->target == HL_API_TIER_L1)
            return device_path(q);
        /* "L2<->L3 read: UCX-RDMA", "L2<->L2 read: the backbone" */
        return q->link == HL_LINK_RDMA && q->direct != HL_DIRECT_FAILED ? HL_API_ROUTE_PATH_DIRECT
                                                                        : HL_API_ROUTE_PATH_TCP;
    }
}

static enum hl_api_route_path oracle(const struct hl_route_query *q)
{
    if (q->target == HL_API_TIER_L4 && q->op == HL_API_OPERATION_READ)
        return HL_API_ROUTE_PATH_NONE;
    /* The archive is on the pool's host, whatever the network. */
    if (q->source == HL_API_TIER_L3 && q->target == HL_API_TIER_L4)
        return HL_API_ROUTE_PATH_ARCHIVE_STORE;
    if (q->source == HL_API_TIER_L4 && q->target == HL_API_TIER_L3)
        return HL_API_ROUTE_PATH_ARCHIVE_LOAD;
    if (q->link == HL_LINK_NONE) {
        if (q->op == HL_API_OPERATION_READ || !q->migration_net || !is_node(q->source) ||
            !is_node(q->target))
            return HL_API_ROUTE_PATH_NONE;
        return q->source == HL_API_TIER_L1 ? HL_API_ROUTE_PATH_LOCAL_COPY : HL_API_ROUTE_PATH_ZMQ;
    }
    /* 3.1.4: a miss is loaded from disk, warms memory, then is served. */
    if (q->source == HL_API_TIER_L4)
        return HL_API_ROUTE_PATH_ARCHIVE_LOAD;
    if (is_remote(q))
        return remote_path(q);
    /* Within a node, L1 and L2 need no network; shared memory is read in place. */
    if (q->op == HL_API_OPERATION_READ && q->source != HL_API_TIER_L1 &&
        q->target != HL_API_TIER_L1)
        return HL_API_ROUTE_PATH_MAPPED;
    return HL_API_ROUTE_PATH_LOCAL_COPY;
}

TEST(every_query_has_the_answer_of_the_specification)
{
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        struct hl_route_query q = query_at(n);
        struct hl_route r = hl_route_choose(&q);
        if (r.path != oracle(&q))
            fail_msg("%s: %s, but the specification says %s", words(&q),
                     hl_api_route_path_name(r.path), hl_api_route_path_name(oracle(&q)));
    }
}

TEST(every_answer_has_a_reason_and_all_are_in_use)
{
    unsigned paths[HL_API_ROUTE_PATH_COUNT] = {0}, reasons[HL_API_ROUTE_REASON_COUNT] = {0};
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        struct hl_route_query q = query_at(n);
        struct hl_route r = hl_route_choose(&q);
        assert_in_range(r.path, HL_API_ROUTE_PATH_NONE, HL_API_ROUTE_PATH_COUNT - 1);
        assert_in_range(r.reason, HL_API_ROUTE_REASON_UNSAID + 1, HL_API_ROUTE_REASON_COUNT - 1);
        paths[r.path]++;
        reasons[r.reason]++;
    }
    for (int p = HL_API_ROUTE_PATH_NONE; p < HL_API_ROUTE_PATH_COUNT; p++)
        if (paths[p] == 0)
            fail_msg("no query leads to %s", hl_api_route_path_name((enum hl_api_route_path)p));
    for (int p = HL_API_ROUTE_REASON_UNSAID + 1; p < HL_API_ROUTE_REASON_COUNT; p++) {
        enum hl_api_route_reason reason = (enum hl_api_route_reason)p;
        assert_true(strlen(hl_route_reason_text(reason)) > strlen("x"));
        if (reasons[p] == 0)
            fail_msg("no query has the reason %s", hl_api_route_reason_name(reason));
    }
}

/* The reason must match the query. */
TEST(reasons_are_true)
{
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        struct hl_route_query q = query_at(n);
        enum hl_api_route_reason why = hl_route_choose(&q).reason;
        int ok = 1;
        if (why == HL_API_ROUTE_REASON_NIC_CLASS)
            ok = hl_nic_plank_forced(q.nic) && q.target == HL_API_TIER_L1;
        else if (why == HL_API_ROUTE_REASON_DEVICE)
            ok = !q.device_direct && q.link == HL_LINK_RDMA;
        else if (why == HL_API_ROUTE_REASON_NO_RDMA)
            ok = q.link == HL_LINK_TCP;
        else if (why == HL_API_ROUTE_REASON_DIRECT_FAILED)
            ok = q.direct == HL_DIRECT_FAILED && q.link == HL_LINK_RDMA;
        else if (why == HL_API_ROUTE_REASON_DIRECT_RETRY)
            ok = q.direct == HL_DIRECT_RETRY && q.link == HL_LINK_RDMA;
        else if (why == HL_API_ROUTE_REASON_ONE_SIDED)
            ok = q.direct == HL_DIRECT_GOOD && q.link == HL_LINK_RDMA;
        else if (why == HL_API_ROUTE_REASON_MIGRATION_NET_DOWN)
            ok = !q.migration_net && is_remote(&q);
        else if (why == HL_API_ROUTE_REASON_MIGRATION_NET)
            ok = q.migration_net && is_node(q.source) && is_node(q.target);
        else if (why == HL_API_ROUTE_REASON_UNREACHABLE || why == HL_API_ROUTE_REASON_BACKBONE_DOWN)
            ok = q.link == HL_LINK_NONE;
        else if (why == HL_API_ROUTE_REASON_SAME_HOST || why == HL_API_ROUTE_REASON_SHARED_MEMORY)
            ok = q.link == HL_LINK_HERE;
        if (!ok)
            fail_msg("%s: the reason \"%s\" is not so", words(&q), hl_route_reason_text(why));
    }
}

/* Section 6: "CX-4: plank 100 %", "CX-6: direct >= 95 %", "fall-back on failure 100 %". */
TEST(the_verification_metrics_of_section_6_hold)
{
    unsigned old_reads = 0, new_reads = 0;
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        struct hl_route_query q = query_at(n);
        struct hl_route r = hl_route_choose(&q);
        int gpu_read = q.op == HL_API_OPERATION_READ && q.target == HL_API_TIER_L1 &&
                       q.source <= HL_API_TIER_L3 && q.link == HL_LINK_RDMA;
        if (gpu_read && q.nic == HL_NIC_CX4) {
            assert_int_equal(r.path, HL_API_ROUTE_PATH_PLANK);
            old_reads++;
        }
        if (gpu_read && q.nic == HL_NIC_CX6 && q.device_direct && q.direct == HL_DIRECT_GOOD) {
            assert_int_equal(r.path, HL_API_ROUTE_PATH_DIRECT);
            new_reads++;
        }
        struct hl_route_query failed = q;
        failed.direct = HL_DIRECT_FAILED;
        struct hl_route other = hl_route_choose(&failed);
        assert_int_not_equal(other.path, HL_API_ROUTE_PATH_DIRECT);
        assert_int_equal(other.path == HL_API_ROUTE_PATH_NONE, r.path == HL_API_ROUTE_PATH_NONE);
        assert_int_equal(other.lands, r.lands);
    }
    assert_int_equal(old_reads, 3 * 2 * 2 * 3);
    assert_int_equal(new_reads, 3 * 2);
}

TEST(writes_out_of_a_device_are_direct_on_every_nic)
{
    for (int nic = 0; nic < NIC_COUNT; nic++) {
        struct hl_route_query q = {.op = HL_API_OPERATION_WRITE,
                                   .source = HL_API_TIER_L1,
                                   .target = HL_API_TIER_L3,
                                   .link = HL_LINK_RDMA,
                                   .migration_net = true,
                                   .nic = (enum hl_nic_class)nic,
                                   .device_direct = true};
        assert_int_equal(hl_route_choose(&q).path, HL_API_ROUTE_PATH_DIRECT);
    }
}

/* Follows the steps to the end and records them in `path`. */
static size_t follow(struct hl_route_query q, enum hl_api_route_path path[4])
{
    for (size_t n = 0; n < 4; n++) {
        struct hl_route step = hl_route_choose(&q);
        path[n] = step.path;
        if (!hl_route_next(&q, step, &q)) {
            if (step.path != HL_API_ROUTE_PATH_NONE) {
                assert_int_equal(step.lands, q.target);
                assert_true(step.at_target);
            }
            return n + 1;
        }
    }
    fail_msg("%s: more than 4 steps", words(&q));
    return 0;
}

TEST(every_transfer_arrives_or_is_refused_at_once)
{
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        enum hl_api_route_path path[4];
        struct hl_route_query q = query_at(n);
        size_t steps = follow(q, path);
        if (steps > 1 && path[steps - 1] == HL_API_ROUTE_PATH_NONE)
            fail_msg("%s: refused after %zu steps", words(&q), steps);
    }
}

TEST(a_device_migrates_through_both_hosts)
{
    enum hl_api_route_path path[4];
    struct hl_route_query q = {.op = HL_API_OPERATION_MIGRATE,
                               .source = HL_API_TIER_L1,
                               .target = HL_API_TIER_L1,
                               .link = HL_LINK_RDMA,
                               .migration_net = true,
                               .nic = HL_NIC_CX7,
                               .device_direct = true};
    assert_int_equal(follow(q, path), 3);
    assert_int_equal(path[0], HL_API_ROUTE_PATH_LOCAL_COPY);
    assert_int_equal(path[1], HL_API_ROUTE_PATH_ZMQ);
    assert_int_equal(path[2], HL_API_ROUTE_PATH_LOCAL_COPY);
}

TEST(an_archived_shard_is_warmed_and_then_read)
{
    enum hl_api_route_path path[4];
    struct hl_route_query q = {.op = HL_API_OPERATION_READ,
                               .source = HL_API_TIER_L4,
                               .target = HL_API_TIER_L1,
                               .link = HL_LINK_RDMA,
                               .nic = HL_NIC_CX4,
                               .device_direct = true};
    assert_int_equal(follow(q, path), 2);
    assert_int_equal(path[0], HL_API_ROUTE_PATH_ARCHIVE_LOAD);
    assert_int_equal(path[1], HL_API_ROUTE_PATH_PLANK);
    q.op = HL_API_OPERATION_MIGRATE; /* and the way back */
    q.source = HL_API_TIER_L1;
    q.target = HL_API_TIER_L4;
    assert_int_equal(follow(q, path), 3);
    assert_int_equal(path[0], HL_API_ROUTE_PATH_LOCAL_COPY);
    assert_int_equal(path[1], HL_API_ROUTE_PATH_UCX_TAGGED);
    assert_int_equal(path[2], HL_API_ROUTE_PATH_ARCHIVE_STORE);
}

TEST(only_zmq_loads_the_migration_network)
{
    for (unsigned n = 0; n < QUERY_COUNT; n++) {
        struct hl_route_query q = query_at(n);
        enum hl_plane plane = hl_route_plane_of(hl_route_choose(&q).path);
        if (plane == HL_PLANE_MIGRATION)
            assert_true(q.migration_net && q.op != HL_API_OPERATION_READ);
        if (plane == HL_PLANE_BACKBONE)
            assert_true(is_remote(&q));
    }
}

TEST(the_direct_path_is_left_longer_after_each_failure_in_a_row)
{
    struct hl_route_health h = {0};
    assert_int_equal(hl_route_health_at(&h, 0), HL_DIRECT_GOOD);
    hl_route_health_failed(&h, 1000, 30, 100);
    assert_int_equal(hl_route_health_at(&h, 1000), HL_DIRECT_FAILED);
    assert_int_equal(hl_route_health_at(&h, 1029), HL_DIRECT_FAILED);
    assert_int_equal(hl_route_health_at(&h, 1030), HL_DIRECT_RETRY);
    hl_route_health_failed(&h, 1030, 30, 100); /* 60 */
    assert_int_equal(hl_route_health_at(&h, 1089), HL_DIRECT_FAILED);
    assert_int_equal(hl_route_health_at(&h, 1090), HL_DIRECT_RETRY);
    hl_route_health_failed(&h, 1090, 30, 100); /* 100, not 120 */
    assert_int_equal(hl_route_health_at(&h, 1189), HL_DIRECT_FAILED);
    assert_int_equal(hl_route_health_at(&h, 1190), HL_DIRECT_RETRY);
    hl_route_health_worked(&h);
    assert_int_equal(hl_route_health_at(&h, 1191), HL_DIRECT_GOOD);
    hl_route_health_failed(&h, 2000, 30, 100); /* from the start again */
    assert_int_equal(hl_route_health_at(&h, 2030), HL_DIRECT_RETRY);
    hl_route_health_worked(&h);
    hl_route_health_failed(&h, 3000, 0, 0); /* no pause configured: still not at the same instant */
    assert_int_equal(hl_route_health_at(&h, 3000), HL_DIRECT_FAILED);
    assert_int_equal(hl_route_health_at(&h, 3001), HL_DIRECT_RETRY);
}

TEST(planes_have_the_words_of_the_schema)
{
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        assert_string_equal(hl_plane_name((enum hl_plane)p),
                            hl_api_plane_name((enum hl_api_plane)p));
}

TEST(a_transfer_gets_its_words_and_plane_from_its_query)
{
    struct hl_transfer t = hl_route_transfer(&(struct hl_route_query){.op = HL_API_OPERATION_WRITE,
                                                                      .source = HL_API_TIER_L2,
                                                                      .target = HL_API_TIER_L3,
                                                                      .link = HL_LINK_RDMA});
    assert_int_equal(t.plane, HL_PLANE_BACKBONE);
    assert_string_equal(t.op, "write");
    assert_string_equal(t.path, "ucx-tagged");
    assert_string_equal(t.reason, "backbone-write");
    assert_int_equal(t.bytes, 0);
}
