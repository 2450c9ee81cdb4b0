/* Copies that are sent: between nodes over the migration network, into the pool over the backbone,
 * within a host; and sources that die. All daemons are real. */
#include "support/test.h"

#include "integration/store_world.h"
#include "os/loop.h"

#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>

#define SIZE (5 * MIB + 100)

static const struct world_opts together = {0};
static const struct world_opts apart = {.apart = 1};

static void expect_text(const json_t *x, const char *key, const char *wanted)
{
    assert_string_equal(hl_json_str(x, key, "?"), wanted);
}

/* A shard that is only in the L2 of node-0. */
static struct hl_id only_at_node0(struct world *w, size_t size, uint64_t seed)
{
    struct hl_id id = make_shard(w, size, seed);
    json_decref(copy_to(w, id, "node-0", "L2", "read"));
    assert_int_equal(try_drop(w, id, "", "L3"), HL_OK);
    return id;
}

TEST(a_write_between_hosts_goes_over_the_migration_network)
{
    struct world w;
    world_begin(&w, &apart);
    static const char *const operations[] = {"write", "migrate"};
    for (int i = 0; i < 2; i++) {
        struct hl_id id = only_at_node0(&w, SIZE, 20 + (uint64_t)i);
        json_t *copy = copy_to(&w, id, "node-1", "L2", operations[i]);
        expect_text(copy, "path", "zmq");
        expect_text(copy, "reason", "migration-net");
        expect_text(copy, "node", "node-1");
        json_decref(copy);
        check_l2(&w, NODE1, id, SIZE, 20 + (uint64_t)i);
        wait_copies(&w, id, "node-1", "L2", 1); /* also listed in the receiver's own inventory */
        /* repeated: it is already there */
        json_decref(copy_to(&w, id, "node-1", "L2", operations[i]));
        assert_int_equal(tier_number(&w, NODE1, "L2", "shards"), i + 1);
    }
    world_end(&w);
}

TEST(within_a_host_a_write_is_a_copy_of_mapped_memory)
{
    struct world w;
    world_begin(&w, &together);
    struct hl_id id = only_at_node0(&w, SIZE, 22);
    json_t *copy = copy_to(&w, id, "node-1", "L2", "write");
    expect_text(copy, "path", "mapped");
    expect_text(copy, "reason", "shared-memory");
    json_decref(copy);
    check_l2(&w, NODE1, id, SIZE, 22);
    world_end(&w);
}

/* A pool doesn't send: the node reads, whatever was ordered, and the answer says so. */
TEST(what_only_the_pool_has_is_read_and_told_as_a_read)
{
    static const char *const operations[] = {"write", "migrate"};
    struct world w;
    for (int far = 0; far < 2; far++) {
        world_begin(&w, far ? &apart : &together);
        for (int i = 0; i < 2; i++) {
            struct hl_id id = make_shard(&w, SIZE, 60 + (uint64_t)i);
            json_t *copy = copy_to(&w, id, "node-1", "L2", operations[i]);
            expect_text(copy, "path", far ? "tcp" : "mapped");
            expect_text(copy, "reason", far ? "no-rdma" : "shared-memory");
            json_decref(copy);
        }
        json_t *m = must(&w, NODE1, "metrics", NULL);
        const char *text = hl_json_str(m, "text", "");
        assert_null(strstr(text, "op=\"write\",path"));
        assert_null(strstr(text, "op=\"migrate\",path"));
        assert_non_null(strstr(text, far ? "op=\"read\",path=\"tcp\",reason=\"no-rdma\""
                                         : "op=\"read\",path=\"mapped\","
                                           "reason=\"shared-memory\""));
        json_decref(m);
        world_end(&w);
    }
}

/* How often a sentence occurs in a daemon's log. */
static int said(const struct world *w, int d, const char *sentence)
{
    char path[128];
    struct hl_buf text = HL_BUF(1 << 20);
    int n = 0;
    snprintf(path, sizeof(path), "%s/%s.log", w->dir, daemon_names[d]);
    if (hl_file_read(path, &text) == HL_OK && text.len > 0)
        for (const char *at = text.data; (at = strstr(at, sentence)) != NULL; at++)
            n++;
    hl_buf_fini(&text);
    return n;
}

TEST(a_stuck_source_costs_the_time_to_locate_and_the_next_one_serves)
{
    struct world w;
    for (int far = 0; far < 2; far++) {
        world_begin(&w, far ? &apart : &together);
        /* the Controller must not take the node for lost or give up itself */
        world_end_daemon(&w, CONTROLLER, SIGTERM);
        world_arg(&w, CONTROLLER, "--node-lost", "60s");
        world_start(&w, CONTROLLER);
        wait_nodes(&w, NODES);
        wait_l3(&w);
        world_end_daemon(&w, NODE1, SIGTERM);
        world_arg(&w, NODE1, "--rpc-timeout", "30s");
        world_arg(&w, NODE1, "--copy-locate-timeout", "200ms");
        world_start(&w, NODE1);
        wait_nodes(&w, NODES);
        struct hl_id id = make_shard(&w, SIZE, 70);
        json_decref(copy_to(&w, id, "node-0", "L2", "read"));
        kill(w.pid[NODE0], SIGSTOP);
        uint64_t begun = hl_now_ns();
        hl_status st = try_copy(&w, id, "node-1", "L2");
        uint64_t took_ms = (hl_now_ns() - begun) / HL_NS_PER_MS;
        kill(w.pid[NODE0], SIGCONT);
        assert_int_equal(st, HL_OK);
        print_message("stuck source %s: %llu ms\n", far ? "far" : "near",
                      (unsigned long long)took_ms);
        check_l2(&w, NODE1, id, SIZE, 70);
        assert_int_equal(said(&w, CONTROLLER, "continues from another source"), 1);
        world_end(&w);
    }
}

TEST(back_into_the_pool_a_shard_keeps_its_id)
{
    struct world w;
    for (int far = 0; far < 2; far++) {
        struct hl_pool_ref ref;
        world_begin(&w, far ? &apart : &together);
        struct hl_id id = only_at_node0(&w, SIZE, 23);
        uint8_t *bytes = noise(SIZE, 23);
        json_t *copy = copy_to(&w, id, "", "L3", "write");
        expect_text(copy, "tier", "L3");
        expect_text(copy, "path", far ? "ucx-tagged" : "local-copy");
        expect_text(copy, "reason", far ? "backbone-write" : "same-host");
        json_decref(copy);
        assert_int_equal(hl_pool_view_find(hl_l3_view(w.pool), id, &ref), HL_OK);
        assert_int_equal(ref.crc32, plain_crc(bytes, SIZE));
        assert_int_equal(hl_pool_view_verify(hl_l3_view(w.pool), &ref, NULL), HL_OK);
        free(bytes);
        world_end(&w);
    }
}

#define SMALL 24

struct sender {
    struct world *w;
    struct hl_id id;
    hl_status st;
    char text[512];
};

static void *send_back(void *arg)
{
    struct sender *x = arg;
    json_t *r = NULL, *p = place(x->id, "", "L3");
    json_object_set_new(p, "operation", json_string("write"));
    x->st = call(x->w, CONTROLLER, "copyShard", p, &r);
    snprintf(x->text, sizeof(x->text), "%s", hl_error_text());
    json_decref(r);
    return NULL;
}

static size_t small_size(int i)
{
    return 100 + 40 * (size_t)i;
}

/* Sends all at once, from node-0 to the pool. */
static void send_small(struct world *w, const struct hl_id *ids)
{
    pthread_t threads[SMALL];
    struct sender senders[SMALL];
    for (int i = 0; i < SMALL; i++) {
        senders[i] = (struct sender){.w = w, .id = ids[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, send_back, &senders[i]), 0);
    }
    for (int i = 0; i < SMALL; i++) {
        pthread_join(threads[i], NULL);
        if (senders[i].st != HL_OK)
            fail_msg("%s", senders[i].text);
    }
}

static void check_small(struct world *w, const struct hl_id *ids, uint64_t seed)
{
    struct hl_pool_ref ref;
    for (int i = 0; i < SMALL; i++) {
        uint8_t *bytes = noise(small_size(i), seed + (uint64_t)i), got[4096];
        assert_int_equal(hl_l3_pin(w->pool, ids[i], 0, MS, &ref), HL_OK);
        assert_int_equal(ref.size, small_size(i));
        assert_int_equal(hl_pool_view_read(hl_l3_view(w->pool), &ref, 0, got, ref.size), HL_OK);
        assert_memory_equal(got, bytes, ref.size);
        free(bytes);
    }
}

static long long batches_of_the_pool(struct world *w)
{
    static const char name[] = "\nhelios_data_batches_total ";
    json_t *m = must(w, L3D, "metrics", NULL);
    const char *at = strstr(hl_json_str(m, "text", ""), name);
    assert_non_null(at);
    long long n = strtoll(at + sizeof(name) - 1, NULL, 10);
    json_decref(m);
    return n;
}

TEST(small_shards_travel_back_together)
{
    struct world w;
    struct hl_id ids[SMALL];
    world_begin(&w, &apart);
    world_end_daemon(&w, NODE0, SIGTERM);
    world_arg(&w, NODE0, "--data-batch-ms", "20ms");
    world_start(&w, NODE0);
    wait_nodes(&w, NODES);
    for (int i = 0; i < SMALL; i++)
        ids[i] = only_at_node0(&w, small_size(i), 80 + (uint64_t)i);
    send_small(&w, ids);
    check_small(&w, ids, 80);
    long long messages = batches_of_the_pool(&w);
    print_message("%d shards in %lld messages\n", SMALL, messages);
    assert_true(messages > 0 && messages < SMALL);
    world_end(&w);
}

/* The connection that was kept belongs to a daemon that has died. */
TEST(after_a_restart_of_the_pool_small_shards_are_sent_again)
{
    struct world w;
    struct hl_id ids[SMALL], first;
    world_begin(&w, &(struct world_opts){.apart = 1, .l3_port = 20000 + getpid() % 12000});
    first = only_at_node0(&w, 500, 110);
    for (int i = 0; i < SMALL; i++)
        ids[i] = only_at_node0(&w, small_size(i), 111 + (uint64_t)i);
    json_t *copy = copy_to(&w, first, "", "L3", "write");
    expect_text(copy, "path", "ucx-tagged");
    expect_text(copy, "transport", "tcp");
    json_decref(copy);
    world_end_daemon(&w, L3D, SIGKILL);
    world_start(&w, L3D);
    hl_l3_close(w.pool);
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[L3D], "socket", ""), MS, &w.pool), HL_OK);
    wait_l3(&w);
    send_small(&w, ids);
    check_small(&w, ids, 111);
    world_end(&w);
}

/* {"request"} of a storeSend to an address that takes no migrations. */
static json_t *send_request(struct world *w, struct hl_id id)
{
    json_t *info = must(w, NODE1, "storeInfo", NULL);
    json_t *r =
        json_pack("{s:{s:s s:s s:s s:s s:s s:i}}", "request", "id", hl_id_format(id).s, "tier",
                  "L2", "operation", "migrate", "targetAddress", "127.0.0.1:1", "targetDataAddress",
                  hl_json_str(info, "dataAddress", ""), "timeoutMs", 10000);
    json_decref(info);
    return r;
}

TEST(when_the_migration_network_is_down_the_backbone_carries_it)
{
    struct world w;
    world_begin(&w, &apart);
    struct hl_id id = make_shard(&w, SIZE, 24);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    json_t *r = must(&w, NODE0, "storeSend", send_request(&w, id));
    expect_text(json_object_get(r, "copy"), "path", "ucx-tagged");
    expect_text(json_object_get(r, "copy"), "reason", "migration-net-down");
    json_decref(r);
    check_l2(&w, NODE1, id, SIZE, 24);
    wait_copies(&w, id, "node-1", "L2", 1);
    json_t *m = must(&w, NODE0, "metrics", NULL);
    assert_non_null(strstr(hl_json_str(m, "text", ""), "migration-net-down"));
    json_decref(m);
    world_end(&w);
}

TEST(a_full_target_refuses_what_is_sent_and_loses_nothing)
{
    struct world w;
    json_t *r = NULL;
    world_begin(&w, &(struct world_opts){.apart = 1, .l2_size = "8MiB"});
    struct hl_id id = only_at_node0(&w, 6 * MIB, 25), other = make_shard(&w, 6 * MIB, 26);
    json_decref(copy_to(&w, other, "node-1", "L2", "read"));
    json_t *p = place(id, "node-1", "L2");
    json_object_set_new(p, "operation", json_string("migrate"));
    assert_int_equal(call(&w, CONTROLLER, "copyShard", p, &r), HL_ENOSPC);
    assert_int_equal(tier_number(&w, NODE1, "L2", "shards"), 1);
    assert_int_equal(tier_number(&w, NODE1, "L2", "writingBytes"), 0);
    check_l2(&w, NODE0, id, 6 * MIB, 25);
    world_end(&w);
}

/* ---- copies that are stopped ----------------------------------------------------------------- */

/* A storeSend from node-0 to node-1 whose end arrives on a loop. */
struct sent {
    struct hl_loop *loop;
    int *open;
    hl_status st;
};

static void on_sent(void *arg, hl_status st, const char *text, json_t *result)
{
    struct sent *x = arg;
    (void)text, (void)result;
    x->st = st;
    if (--*x->open == 0)
        hl_loop_stop(x->loop);
}

static void send_async(struct world *w, struct hl_id id, const char *address, const char *migration,
                       struct sent *x)
{
    json_t *p = json_pack("{s:{s:s s:s s:s s:s s:s s:i}}", "request", "id", hl_id_format(id).s,
                          "tier", "L2", "operation", "migrate", "targetAddress", address,
                          "migrationId", migration, "timeoutMs", 60000);
    ++*x->open;
    rpc_json_call_async(w->peer[NODE0], "storeSend", p, MS, x->loop, on_sent, x);
    json_decref(p);
}

/* Stops a migration; returns how many copies that ends. */
static int64_t stop(struct world *w, const char *migration)
{
    json_t *r = must(w, NODE0, "storeStop", json_pack("{s:s}", "migrationId", migration));
    int64_t stopped = hl_json_int(r, "stopped", -1);
    json_decref(r);
    return stopped;
}

/* A target that accepts and never answers. */
static int silent_target(char *address, size_t cap)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(to);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&to, len), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&to, &len), 0);
    snprintf(address, cap, "127.0.0.1:%d", ntohs(to.sin_port));
    return fd;
}

/* Whether node-0 has queued the copy, or has connected for it, the stop ends it in the same way. */
static void stop_one(struct world *w, struct hl_id id, bool connected, struct sent *x)
{
    static const char *const migration = "00000000000000010000000000000003";
    char address[32];
    int fd = silent_target(address, sizeof(address));
    send_async(w, id, address, migration, x);
    struct pollfd at = {.fd = fd, .events = POLLIN};
    if (connected)
        assert_int_equal(poll(&at, 1, WAIT_MS), 1);
    assert_int_equal(stop(w, migration), 1);
    assert_int_equal(hl_loop_run(x->loop), HL_OK);
    assert_int_equal(x->st, HL_ECANCELED);
    close(fd);
}

TEST(a_copy_that_is_stopped_ends_unless_another_call_waits_for_it)
{
    static const char *const first = "00000000000000010000000000000001",
                             *const second = "00000000000000010000000000000002";
    struct world w;
    struct hl_loop *loop;
    int open = 0;
    char address[128];
    world_begin(&w, &apart);
    world_end_daemon(&w, NODE0, SIGTERM);
    world_arg(&w, NODE0, "--migrate-dead", "60s"); /* no send ends by itself */
    world_start(&w, NODE0);
    wait_nodes(&w, NODES);
    assert_int_equal(hl_loop_create(&loop), HL_OK);
    struct sent a = {loop, &open, HL_OK};
    struct hl_id id = only_at_node0(&w, SIZE, 29);
    json_t *info = must(&w, NODE1, "storeInfo", NULL);
    snprintf(address, sizeof(address), "%s", hl_json_str(info, "migrateAddress", ""));
    json_decref(info);
    assert_int_equal(stop(&w, first), 0);
    for (int connected = 0; connected < 2; connected++) {
        stop_one(&w, id, connected, &a);
        hl_loop_destroy(loop);
        assert_int_equal(hl_loop_create(&loop), HL_OK);
        a = (struct sent){loop, &open, HL_OK};
    }
    kill(w.pid[NODE1], SIGSTOP);
    struct sent b = a;
    send_async(&w, id, address, first, &a);
    send_async(&w, id, address, second, &b);
    assert_int_equal(stop(&w, first), 0);
    kill(w.pid[NODE1], SIGCONT);
    assert_int_equal(hl_loop_run(loop), HL_OK);
    assert_int_equal(a.st, HL_OK);
    assert_int_equal(b.st, HL_OK);
    check_l2(&w, NODE1, id, SIZE, 29);
    check_l2(&w, NODE0, id, SIZE, 29);
    hl_loop_destroy(loop);
    world_end(&w);
}

/* ---- sources that die ------------------------------------------------------------------------ */

struct order {
    struct world *w;
    struct hl_id id;
    hl_status st;
    char text[512];
};

static void *order_main(void *arg)
{
    struct order *o = arg;
    o->st = try_copy(o->w, o->id, "node-1", "L2");
    snprintf(o->text, sizeof(o->text), "%s", hl_error_text());
    return NULL;
}

/* Kills node-0 while node-1 copies from it. */
static void copy_while_node0_dies(struct world *w, struct order *o)
{
    pthread_t thread;
    uint64_t end = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    assert_int_equal(pthread_create(&thread, NULL, order_main, o), 0);
    while (tier_number(w, NODE1, "L2", "usedBytes") == 0)
        assert_true(hl_now_ns() < end);
    world_end_daemon(w, NODE0, SIGKILL);
    pthread_join(thread, NULL);
}

TEST(a_copy_goes_on_from_the_pool_when_its_source_dies)
{
    struct world w;
    world_begin(&w, &apart);
    struct hl_id id = make_shard(&w, 96 * MIB, 27);
    struct order o = {.w = &w, .id = id};
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    copy_while_node0_dies(&w, &o);
    if (o.st != HL_OK)
        fail_msg("%s", o.text);
    check_l2(&w, NODE1, id, 96 * MIB, 27);
    assert_int_equal(tier_number(&w, NODE1, "L2", "writingBytes"), 0);
    world_end(&w);
}

TEST(a_copy_whose_only_source_dies_leaves_nothing)
{
    struct world w;
    world_begin(&w, &apart);
    struct hl_id id = only_at_node0(&w, 96 * MIB, 28);
    struct order o = {.w = &w, .id = id};
    copy_while_node0_dies(&w, &o);
    if (o.st == HL_OK) { /* the copy was faster */
        check_l2(&w, NODE1, id, 96 * MIB, 28);
    } else {
        assert_int_equal(o.st, HL_EUNAVAIL);
        assert_non_null(strstr(o.text, "node-0"));
        assert_int_equal(tier_number(&w, NODE1, "L2", "usedBytes"), 0);
    }
    assert_int_equal(tier_number(&w, NODE1, "L2", "writingBytes"), 0);
    world_end(&w);
}

/* ---- the archive ----------------------------------------------------------------------------- */

/* A shard of the imported model: the archive takes only safetensors files. */
static struct hl_id imported_shard(struct world *w)
{
    struct hl_id id;
    json_t *r =
        must(w, CONTROLLER, "listShards", json_pack("{s:s s:i}", "model", "toy", "version", 1));
    const json_t *s = json_array_get(hl_json_list(r, "shards"), 0);
    assert_int_equal(hl_id_parse(hl_json_str(s, "id", ""), &id), HL_OK);
    json_decref(r);
    return id;
}

TEST(an_archived_shard_comes_back_through_the_pool)
{
    struct world w;
    struct hl_l3_client *c;
    struct hl_pool_ref ref;
    world_begin(&w, &(struct world_opts){.archive = 1});
    struct hl_id id = imported_shard(&w);
    json_decref(copy_to(&w, id, "node-0", "L2", "read"));
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_OK);
    json_decref(copy_to(&w, id, "", "L4", "write")); /* L2 -> L3 -> L4 */
    wait_copies(&w, id, "", "L4", 1); /* a sweep that began before may not have seen it */
    assert_int_equal(copies_known(&w, id, "", "L3"), 1);
    assert_int_equal(try_drop(&w, id, "", "L3"), HL_OK);
    assert_int_equal(try_drop(&w, id, "node-0", "L2"), HL_OK);
    assert_int_equal(hl_pool_view_find(hl_l3_view(w.pool), id, &ref),
                     HL_OK);                              /* it was asked for, so it was loaded */
    json_decref(copy_to(&w, id, "node-1", "L2", "read")); /* L4 -> L3 -> L2 */
    assert_int_equal(hl_l3_connect(hl_json_str(w.ready[NODE1], "storeSocket", ""), MS, &c), HL_OK);
    assert_int_equal(hl_pool_view_find(hl_l3_view(c), id, &ref), HL_OK);
    assert_int_equal(hl_pool_view_verify(hl_l3_view(c), &ref, NULL), HL_OK);
    hl_l3_close(c);
    world_end(&w);
}
