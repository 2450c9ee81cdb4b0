/* Copies between tiers of nodes on order: from the pool, between nodes, back into the pool;
 * dropped, healed, adopted. All daemons are real. */
#include "support/test.h"

#include "integration/store_world.h"
#include "mem/pool/pool.h"
#include "os/numa.h"

#include <pthread.h>

#define SIZE (5 * MIB + 100)

static const struct world_opts together = {0};
static const struct world_opts apart = {.apart = 1};

static void expect_text(const json_t *x, const char *key, const char *wanted)
{
    assert_string_equal(hl_json_str(x, key, "?"), wanted);
}

/* ---- from the pool --------------------------------------------------------------------------- */

TEST(a_shard_is_copied_from_the_mapped_pool_and_shown)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 1);
    json_t *copy = copy_to(&w, id, "node-0", "L2", "read");
    expect_text(copy, "tier", "L2");
    expect_text(copy, "node", "node-0");
    expect_text(copy, "path", "mapped");
    expect_text(copy, "reason", "shared-memory");
    expect_text(copy, "transport", "shm");
    assert_int_equal(hl_json_int(copy, "sizeBytes", 0), SIZE);
    json_decref(copy);
    check_l2(&w, NODE0, id, SIZE, 1);
    assert_int_equal(copies_known(&w, id, "node-0", "L2"), 1);
    assert_int_equal(copies_known(&w, id, "", "L3"), 1);
    assert_int_equal(tier_number(&w, NODE0, "L2", "shards"), 1);
    assert_int_equal(tier_number(&w, NODE0, "L2", "writingBytes"), 0);
    /* 5 MiB + 100 + 4 bytes of padding + 6 CRCs: 81 units of 64 KiB */
    assert_int_equal(tier_number(&w, NODE0, "L2", "usedBytes"), 81 * 65536);
    assert_int_equal(tier_number(&w, NODE1, "L2", "usedBytes"), 0);
    world_end(&w);
}

TEST(a_node_of_another_host_fetches_over_the_network)
{
    struct world w;
    world_begin(&w, &apart);
    struct hl_id id = make_shard(&w, SIZE, 2);
    json_t *copy = copy_to(&w, id, "node-0", "L2", "read");
    expect_text(copy, "path", "tcp");
    expect_text(copy, "reason", "no-rdma");
    json_decref(copy);
    check_l2(&w, NODE0, id, SIZE, 2);
    /* The other node's L2 and the pool are equally near; either source gives the same bytes. */
    json_decref(copy_to(&w, id, "node-1", "L2", "read"));
    check_l2(&w, NODE1, id, SIZE, 2);
    world_end(&w);
}

TEST(the_same_order_again_is_answered_with_the_copy_that_is_there)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 3);
    json_t *first = copy_to(&w, id, "node-0", "L2", "read");
    json_t *again = copy_to(&w, id, "node-0", "L2", "read");
    assert_true(json_equal(first, again));
    assert_int_equal(tier_number(&w, NODE0, "L2", "shards"), 1);
    json_decref(first);
    json_decref(again);
    world_end(&w);
}

struct order {
    struct world *w;
    struct hl_id id;
    hl_status st;
};

static void *order_main(void *arg)
{
    struct order *o = arg;
    o->st = try_copy(o->w, o->id, "node-0", "L2");
    return NULL;
}

TEST(orders_of_one_copy_at_the_same_time_do_the_work_once)
{

    enum { N = 8 };
    struct world w;
    pthread_t threads[N];
    struct order orders[N];
    world_begin(&w, &apart);
    struct hl_id id = make_shard(&w, 32 * MIB, 4);
    for (int i = 0; i < N; i++) {
        orders[i] = (struct order){.w = &w, .id = id};
        assert_int_equal(pthread_create(&threads[i], NULL, order_main, &orders[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(orders[i].st, HL_OK);
    }
    json_t *m = must(&w, NODE0, "metrics", NULL);
    const char *text = hl_json_str(m, "text", "");
    const char *line = strstr(text, "helios_path_total{op=\"read\",path=\"tcp\"");
    assert_non_null(line);
    assert_int_equal(atoi(strchr(line, '}') + 1), 1);
    json_decref(m);
    check_l2(&w, NODE0, id, 32 * MIB, 4);
    world_end(&w);
}

TEST(wrong_orders_are_refused_with_a_sentence)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, 1000, 5);
    assert_int_equal(try_copy(&w, hl_id_random(), "node-0", "L2"), HL_ENOENT);
    assert_int_equal(try_copy(&w, id, "node-7", "L2"), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "helios nodes"));
    assert_int_equal(try_copy(&w, id, "node-0", "L9"), HL_EINVAL);
    assert_int_equal(try_copy(&w, id, "node-0", "L1"), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "--devices"));
    assert_int_equal(try_copy(&w, id, "node-0", "L3"), HL_EINVAL);
    assert_int_equal(try_drop(&w, hl_id_random(), "node-0", "L2"), HL_ENOENT);
    /* orders that bypass the Controller */
    json_t *r = NULL;
    assert_int_equal(call(&w, NODE0, "storeCopy", json_pack("{s:{s:s}}", "request", "id", "x"), &r),
                     HL_EINVAL);
    assert_int_equal(call(&w, NODE0, "storeCopy",
                          json_pack("{s:{s:s s:s s:s}}", "request", "id", hl_id_format(id).s,
                                    "tier", "L2", "sourceTier", "L3"),
                          &r),
                     HL_EUNAVAIL); /* it names no address */
    assert_int_equal(
        call(&w, NODE0, "storeLocate", json_pack("{s:[s]}", "ids", hl_id_format(id).s), &r),
        HL_ENOENT);
    assert_int_equal(tier_number(&w, NODE0, "L2", "usedBytes"), 0);
    world_end(&w);
}

TEST(a_full_l2_is_an_ordinary_error_and_takes_the_next_copy_that_fits)
{
    struct world w;
    world_begin(&w, &(struct world_opts){.l2_size = "8MiB"});
    struct hl_id big = make_shard(&w, 6 * MIB, 6), other = make_shard(&w, 4 * MIB, 7);
    struct hl_id too_big = make_shard(&w, 9 * MIB, 8);
    json_decref(copy_to(&w, big, "node-0", "L2", "read"));
    int64_t used = tier_number(&w, NODE0, "L2", "usedBytes");
    assert_int_equal(try_copy(&w, other, "node-0", "L2"), HL_ENOSPC);
    assert_int_equal(try_copy(&w, too_big, "node-0", "L2"), HL_ENOSPC);
    assert_int_equal(tier_number(&w, NODE0, "L2", "usedBytes"), used);
    assert_int_equal(tier_number(&w, NODE0, "L2", "writingBytes"), 0);
    /* a dropped copy's bytes are in quarantine for a moment: the next order waits for that */
    assert_int_equal(try_drop(&w, big, "node-0", "L2"), HL_OK);
    json_decref(copy_to(&w, other, "node-0", "L2", "read"));
    check_l2(&w, NODE0, other, 4 * MIB, 7);
    world_end(&w);
}

/* ---- dropping -------------------------------------------------------------------------------- */

TEST(the_last_readable_copy_is_not_dropped)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 9);
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "last readable copy"));
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_OK);
    assert_int_equal(copies_known(&w, id, "", "L3"), 0);
    assert_int_equal(try_drop(&w, id, "node-0", "L2"), HL_ECONFLICT);
    /* node-1 now reads it from node-0, and it returns into the pool */
    json_decref(copy_to(&w, id, "node-1", "L2", "read"));
    check_l2(&w, NODE1, id, SIZE, 9);
    json_decref(copy_to(&w, id, "", "L3", "read"));
    assert_int_equal(copies_known(&w, id, "", "L3"), 1);
    assert_int_equal(try_drop(&w, id, "node-0", "L2"), HL_OK);
    assert_int_equal(try_drop(&w, id, "node-1", "L2"), HL_OK);
    assert_int_equal(tier_number(&w, NODE0, "L2", "usedBytes"), 0);
    world_end(&w);
}

/* The Controller believes in a copy that is gone: it asks before it drops the other one. */
TEST(a_copy_that_only_the_controller_believes_in_does_not_count)
{
    struct world w;
    json_t *r = NULL;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 10);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    json_t *info = must(&w, CONTROLLER, "clusterInfo", NULL);
    json_t *cluster = json_object_get(json_object_get(info, "info"), "cluster");
    json_decref(must(&w, L3D, "free",
                     json_pack("{s:[s] s:O}", "ids", hl_id_format(id).s, "cluster", cluster)));
    json_decref(info);
    assert_int_equal(call(&w, CONTROLLER, "dropCopy", place(id, "node-0", "L2"), &r), HL_ECONFLICT);
    check_l2(&w, NODE0, id, SIZE, 10);
    world_end(&w);
}

static void set_option(struct world *w, const char *name, const char *value)
{
    json_decref(
        must(w, CONTROLLER, "setOption", json_pack("{s:s s:s}", "name", name, "value", value)));
}

static void wait_sweeps(struct world *w, int count)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (int done = -1; done < count; poll(NULL, 0, 10)) {
        json_t *m = must(w, CONTROLLER, "metrics", NULL);
        const char *line = strstr(hl_json_str(m, "text", ""), "\nhelios_sweeps_total ");
        assert_non_null(line);
        done = atoi(strchr(line, ' '));
        json_decref(m);
        assert_true(hl_now_ns() < end);
    }
}

static void *move_main(void *arg)
{
    struct order *o = arg;
    json_t *r = NULL;
    o->st = call(o->w, CONTROLLER, "moveShard", place(o->id, "node-1", "L2"), &r);
    json_decref(r);
    return NULL;
}

static void wait_phase(struct world *w, const char *phase)
{
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (bool reached = false; !reached; poll(NULL, 0, 5)) {
        json_t *r = must(w, CONTROLLER, "listMoves", NULL);
        const json_t *newest = json_array_get(hl_json_list(r, "moves"), 0);
        reached = strcmp(hl_json_str(newest, "phase", ""), phase) == 0;
        json_decref(r);
        assert_true(hl_now_ns() < end);
    }
}

static void expect_change(struct world *w, struct hl_id id, const char *reason)
{
    bool found = false;
    size_t i;
    json_t *x,
        *r = must(w, CONTROLLER, "shardPlacement", json_pack("{s:s}", "id", hl_id_format(id).s));
    json_array_foreach (hl_json_list(json_object_get(r, "placement"), "changes"), i, x) {
        found |= strcmp(hl_json_str(x, "reason", ""), reason) == 0;
    }
    json_decref(r);
    assert_true(found);
}

/* The pool loses its copy between the switch of a move and the drop of the old copy. */
TEST(the_old_copy_of_a_move_stays_if_durability_needs_it_by_then)
{
    struct world w;
    pthread_t thread;
    world_begin(&w, &apart);
    world_end_daemon(&w, CONTROLLER, SIGTERM);
    world_arg(&w, CONTROLLER, "--gc-interval", "1h"); /* no sweep notices */
    world_start(&w, CONTROLLER);
    wait_l3(&w);
    wait_nodes(&w, NODES);
    struct hl_id id = make_shard(&w, SIZE, 12);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    wait_sweeps(&w, 1);
    set_option(&w, "versions.durability", "two");
    wait_sweeps(&w, 3); /* one makes missing copies of other shards, one finds that all is well */
    set_option(&w, "placement.grace", "5s");
    struct order o = {.w = &w, .id = id};
    assert_int_equal(pthread_create(&thread, NULL, move_main, &o), 0);
    wait_phase(&w, "cleaning");
    json_t *info = must(&w, CONTROLLER, "clusterInfo", NULL);
    json_t *cluster = json_object_get(json_object_get(info, "info"), "cluster");
    json_decref(must(&w, L3D, "free",
                     json_pack("{s:[s] s:O}", "ids", hl_id_format(id).s, "cluster", cluster)));
    json_decref(info);
    pthread_join(thread, NULL);
    assert_int_equal(o.st, HL_OK);
    assert_int_equal(copies_known(&w, id, "node-0", "L2"), 1);
    assert_int_equal(copies_known(&w, id, "node-1", "L2"), 1);
    check_l2(&w, NODE0, id, SIZE, 12);
    expect_change(&w, id, "old copy stays for durability");
    world_end(&w);
}

/* The other copy's holder can't be asked: that is the reason, not that the copy is the last one. */
TEST(a_drop_whose_other_copy_can_not_be_confirmed_says_why)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 10);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    world_end_daemon(&w, NODE0, SIGKILL); /* the Controller does not know yet */
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "L2 of node-0"));
    assert_int_equal(copies_known(&w, id, "", "L3"), 1);
    world_end(&w);
}

/* The pool's daemon is away: its copy may be in the same failure domain as the one that stays. */
TEST(a_pool_that_does_not_answer_lets_no_copy_go_that_durability_needs)
{
    struct world w;
    world_begin(&w, &together);
    world_end_daemon(&w, NODE1, SIGTERM);
    world_arg(&w, NODE1, "--host-id", "elsewhere");
    world_start(&w, NODE1);
    wait_nodes(&w, NODES);
    struct hl_id id = make_shard(&w, SIZE, 13);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    json_decref(copy_to(&w, id, "node-1", "L2", "read"));
    set_option(&w, "versions.durability", "two");
    world_end_daemon(&w, L3D, SIGKILL);
    wait_l3_is(&w, false);
    assert_int_equal(try_drop(&w, id, "node-1", "L2"), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "versions.durability=two"));
    assert_int_equal(copies_known(&w, id, "node-1", "L2"), 1);
    world_end(&w);
}

TEST(a_removed_version_leaves_nothing_on_any_node)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 11);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    json_decref(copy_to(&w, id, "node-1", "L2", "read"));
    world_end_daemon(&w, NODE1, SIGKILL); /* unreachable while the version is removed */
    json_decref(must(&w, CONTROLLER, "removeModel",
                     json_pack("{s:s s:I}", "name", "toy", "version", (json_int_t)w.version)));
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (tier_number(&w, NODE0, "L2", "shards") != 0) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
    world_start(&w, NODE1); /* the Agent adopts its L2, and the Controller finds an orphan */
    end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    while (tier_number(&w, NODE1, "L2", "shards") != 0) {
        assert_true(hl_now_ns() < end);
        poll(NULL, 0, 20);
    }
    world_end(&w);
}

/* ---- failures -------------------------------------------------------------------------------- */

TEST(a_restarted_agent_has_its_l2_and_so_knows_a_restarted_controller)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 12);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    world_end_daemon(&w, NODE0, SIGKILL);
    wait_copies(&w, id, "node-0", "L2", 0); /* an unreachable node serves no reader */
    world_start(&w, NODE0);
    wait_copies(&w, id, "node-0", "L2", 1);
    check_l2(&w, NODE0, id, SIZE, 12);
    world_end_daemon(&w, CONTROLLER, SIGKILL);
    world_start(&w, CONTROLLER);
    wait_copies(&w, id, "node-0", "L2", 1);
    world_end(&w);
}

static void find_in(const char *socket, struct hl_id id, struct hl_pool_ref *ref)
{
    struct hl_l3_client *c;
    assert_int_equal(hl_l3_connect(socket, MS, &c), HL_OK);
    assert_int_equal(hl_pool_view_find(hl_l3_view(c), id, ref), HL_OK);
    hl_l3_close(c);
}

/* The epoch of the Controller that the node obeys, as its Agent stores it. */
static unsigned long long epoch_obeyed(const struct world *w, int d)
{
    char path[128], cluster[33];
    unsigned long long epoch = 0;
    snprintf(path, sizeof(path), "%s/%s/controller", w->dir, daemon_names[d]);
    FILE *f = fopen(path, "r");
    if (f != NULL && fscanf(f, "%32s %llu", cluster, &epoch) != 2)
        fail_msg("%s can't be read", path);
    if (f != NULL)
        fclose(f);
    return epoch;
}

static hl_status drop_by(struct world *w, struct hl_id id, unsigned long long epoch)
{
    json_t *r = NULL;
    hl_status st = call(w, NODE0, "storeDrop",
                        json_pack("{s:s s:s s:s s:I}", "id", hl_id_format(id).s, "tier", "L2",
                                  "device", "", "epoch", (json_int_t)epoch),
                        &r);
    json_decref(r);
    return st;
}

/* Everything else that a Controller of that epoch orders or asks for is refused. */
static void expect_refused(struct world *w, struct hl_id id, unsigned long long epoch)
{
    const struct hl_id_text text = hl_id_format(id);
    const json_int_t e = (json_int_t)epoch;

    const struct {
        const char *method;
        json_t *params;
    } orders[] = {
        {"storeDrop", json_pack("{s:s s:s s:I}", "id", text.s, "tier", "L2", "epoch", e)},
        {"storeStop", json_pack("{s:s s:I}", "migrationId", text.s, "epoch", e)},
        {"storeCopy",
         json_pack("{s:{s:s s:s s:I}}", "request", "id", text.s, "tier", "L2", "epoch", e)},
        {"storeSend",
         json_pack("{s:{s:s s:s s:I}}", "request", "id", text.s, "tier", "L3", "epoch", e)},
        {"storeLocate", json_pack("{s:[s] s:I}", "ids", text.s, "epoch", e)},
        {"storeVerify", json_pack("{s:s s:s s:I}", "id", text.s, "tier", "L2", "epoch", e)},
        {"storeList", json_pack("{s:i s:I}", "limit", 10, "epoch", e)},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(orders); i++) {
        json_t *r = NULL;
        hl_status st = call(w, NODE0, orders[i].method, orders[i].params, &r);
        if (st != HL_EPERM || strstr(hl_error_text(), "this belongs to Controller epoch") == NULL)
            fail_msg("%s of an old epoch: %s", orders[i].method, hl_error_text());
        json_decref(r);
    }
    assert_int_equal(tier_number(w, NODE0, "L2", "shards"), 1);
}

TEST(orders_of_a_controller_that_was_replaced_are_refused)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 16);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    const unsigned long long first = epoch_obeyed(&w, NODE0);
    assert_true(first > 1);
    expect_refused(&w, id, first - 1);
    world_end_daemon(&w, CONTROLLER, SIGKILL);
    world_start(&w, CONTROLLER);
    wait_nodes(&w, NODES);
    wait_copies(&w, id, "node-0", "L2", 1); /* the new Controller has asked for it */
    assert_true(epoch_obeyed(&w, NODE0) > first);
    expect_refused(&w, id, first); /* delayed on its way */
    world_end_daemon(&w, CONTROLLER, SIGKILL);
    world_end_daemon(&w, NODE0, SIGKILL);
    world_start(&w, NODE0); /* by no Controller's order */
    expect_refused(&w, id, first);
    assert_int_equal(drop_by(&w, id, 0), HL_OK); /* by hand */
    assert_int_equal(tier_number(&w, NODE0, "L2", "shards"), 0);
    world_end(&w);
}

TEST(bytes_that_are_bad_at_the_source_come_from_another_copy)
{
    struct world w;
    struct hl_pool_ref ref;
    for (int far = 0; far < 2; far++) {
        world_begin(&w, far ? &apart : &together);
        struct hl_id id = make_shard(&w, SIZE, 13);
        json_decref(copy_to(&w, id, "node-0", "L2", "read"));
        find_in(hl_json_str(w.ready[L3D], "socket", ""), id, &ref);
        corrupt(hl_json_str(w.ready[L3D], "pool", ""), &ref);
        json_decref(copy_to(&w, id, "node-1", "L2", "read"));
        check_l2(&w, NODE1, id, SIZE, 13);
        /* there is no other source: the copy fails and leaves nothing behind */
        assert_int_equal(try_drop(&w, id, "node-0", "L2"), HL_OK);
        assert_int_equal(try_drop(&w, id, "node-1", "L2"), HL_OK);
        assert_int_equal(try_copy(&w, id, "node-0", "L2"), HL_ECORRUPT);
        assert_int_equal(tier_number(&w, NODE0, "L2", "usedBytes"), 0);
        assert_int_equal(tier_number(&w, NODE0, "L2", "writingBytes"), 0);
        world_end(&w);
    }
}

TEST(a_reported_copy_is_replaced_from_a_good_one)
{
    struct world w;
    struct hl_pool_ref ref;
    world_begin(&w, &together);
    struct hl_id id = make_shard(&w, SIZE, 14);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    char l2[160];
    snprintf(l2, sizeof(l2), "/dev/shm/%s-0.l2", strrchr(w.dir, '/') + 1);
    find_in(hl_json_str(w.ready[NODE0], "storeSocket", ""), id, &ref);
    corrupt(l2, &ref);
    json_t *r = must(&w, CONTROLLER, "reportBadCopy", place(id, "node-0", "L2"));
    expect_text(r, "state", "healed");
    expect_text(r, "source", "L3");
    json_decref(r);
    check_l2(&w, NODE0, id, SIZE, 14);
    /* and the pool's copy, from the node */
    find_in(hl_json_str(w.ready[L3D], "socket", ""), id, &ref);
    corrupt(hl_json_str(w.ready[L3D], "pool", ""), &ref);
    r = must(&w, CONTROLLER, "reportBadCopy", place(id, "", "L3"));
    expect_text(r, "state", "healed");
    json_decref(r);
    r = must(&w, L3D, "verify", json_pack("{s:s}", "id", hl_id_format(id).s));
    assert_int_equal(hl_json_bool(r, "ok", 0), 1);
    json_decref(r);
    world_end(&w);
}

static int64_t copies_made(struct world *w, int d)
{
    char path[128];
    struct hl_buf text = HL_BUF(1 << 20);
    int64_t n = 0;
    snprintf(path, sizeof(path), "%s/%s.log", w->dir, daemon_names[d]);
    if (hl_file_read(path, &text) == HL_OK && text.len > 0)
        for (const char *at = text.data; (at = strstr(at, "copy made id=")) != NULL; at++)
            n++;
    hl_buf_fini(&text);
    return n;
}

static void report(struct world *w, struct hl_id id, const char *tier, const char *state)
{
    json_t *r = must(w, CONTROLLER, "reportBadCopy", place(id, "node-0", tier));
    expect_text(r, "state", state);
    json_decref(r);
}

TEST(a_false_report_costs_no_copy_and_a_lost_one_is_not_dropped)
{
    struct world w;
    struct hl_pool_ref ref;
    json_t *r = NULL;
    char l2[160];
    world_begin(&w, &(struct world_opts){.devices = "emu:32MiB"});
    struct hl_id id = make_shard(&w, SIZE, 15);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    json_decref(copy_to(&w, id, "node-0", "L1", "read"));
    assert_int_equal(copies_made(&w, NODE0), 2);
    report(&w, id, "L1", "good");
    report(&w, id, "L2", "good");
    assert_int_equal(copies_made(&w, NODE0), 2);
    /* missing, and made again */
    assert_int_equal(try_drop(&w, id, "node-0", "L1"), HL_OK);
    report(&w, id, "L1", "healed");
    assert_int_equal(copies_made(&w, NODE0), 3);
    assert_int_equal(try_drop(&w, id, "node-0", "L1"), HL_OK);
    /* both copies are bad: the one that is dropped can't be made again */
    snprintf(l2, sizeof(l2), "/dev/shm/%s-0.l2", strrchr(w.dir, '/') + 1);
    find_in(hl_json_str(w.ready[NODE0], "storeSocket", ""), id, &ref);
    corrupt(l2, &ref);
    struct hl_pool_ref in_pool;
    find_in(hl_json_str(w.ready[L3D], "socket", ""), id, &in_pool);
    corrupt(hl_json_str(w.ready[L3D], "pool", ""), &in_pool);
    assert_int_equal(call(&w, CONTROLLER, "reportBadCopy", place(id, "node-0", "L2"), &r),
                     HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "was dropped, and replacing it failed"));
    assert_int_equal(tier_number(&w, NODE0, "L2", "shards"), 0);
    corrupt(hl_json_str(w.ready[L3D], "pool", ""), &in_pool); /* good again */
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    /* the last copy stays, even a bad one */
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_OK);
    report(&w, id, "L2", "good");
    find_in(hl_json_str(w.ready[NODE0], "storeSocket", ""), id, &ref);
    corrupt(l2, &ref);
    report(&w, id, "L2", "lost");
    assert_int_equal(tier_number(&w, NODE0, "L2", "shards"), 1);
    json_t *m = must(&w, CONTROLLER, "metrics", NULL);
    static const char *const causes[] = {"good", "healed", "lost", "heal-failed"};
    for (size_t i = 0; i < HL_ARRAY_LEN(causes); i++) {
        char wanted[64];
        snprintf(wanted, sizeof(wanted), "cause=\"%s\"", causes[i]);
        if (strstr(hl_json_str(m, "text", ""), wanted) == NULL)
            fail_msg("no %s in the metrics", wanted);
    }
    json_decref(m);
    world_end(&w);
}

/* Slots of a share are numbered from 0; its L2 is in the machine's own NUMA nodes nevertheless. */
TEST(the_l2_of_a_share_lies_in_nodes_of_this_machine)
{
    struct world w;
    int nodes[HL_POOL_REGIONS_MAX];
    size_t n = hl_numa_nodes(nodes, HL_ARRAY_LEN(nodes)), i;
    if (n == 0)
        TEST_SKIP("no NUMA nodes are known here");
    world_begin(&w, &together);
    world_end_daemon(&w, NODE0, SIGTERM);
    world_arg(&w, NODE0, "--share", "0/1x%zu", n + 1);
    world_arg(&w, NODE0, "--l2-pool", "/dev/shm/%s-0.share.l2", strrchr(w.dir, '/') + 1);
    world_start(&w, NODE0);
    json_t *l2 = tier_of(&w, NODE0, "L2"), *region;
    const json_t *regions = hl_json_list(l2, "regions");
    assert_int_equal(json_array_size(regions), n);
    json_array_foreach (regions, i, region) {
        assert_int_equal(hl_json_int(region, "numaId", -1), nodes[i]);
    }
    json_decref(l2);
    char pool[160];
    snprintf(pool, sizeof(pool), "/dev/shm/%s-0.share.l2", strrchr(w.dir, '/') + 1);
    world_end(&w);
    unlink(pool);
}
