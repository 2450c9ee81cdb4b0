/* Which path bytes take into a device, and what happens when that fails: the store of a node in
 * this process, over a network that claims to be RDMA and breaks when the test says so. */
#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/store.h"
#include "base/clock.h"
#include "base/crc32.h"
#include "base/id.h"
#include "base/log.h"
#include "base/plane.h"
#include "core/json.h"
#include "net/net.h"
#include "os/loop.h"
#include "rpc/agent_calls.h"
#include "support/cuda_library.h"
#include "support/fault.h"
#include "support/rpc_json.h"

#define MIB     ((size_t)1 << 20)
#define SIZE    (3 * MIB + 100)
#define MS      20000
#define WAIT_MS 20000

/* ---- a network ------------------------------------------------------------------------------- */

struct hl_net_client {
    struct hl_net_head head;
    enum hl_net_mode mode;
    int fell_back;
};

static uint8_t *source;         /* SIZE random bytes: the memory of the peer */
static atomic_int break_direct; /* fetches directly to their destination fail */
static atomic_int break_one_sided;
static atomic_int silent;           /* connections do not get RDMA */
static atomic_int flip;             /* so many fetches bring a wrong byte */
static atomic_int straight, staged; /* fetches seen: a staged one is a MiB at most */

static hl_status fake_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    int falls = opts->mode == HL_NET_AUTO && atomic_load(&silent);
    if (falls && opts->rdma_only)
        return hl_fail(HL_EUNAVAIL, "the adapter is silent");
    *out = calloc(1, sizeof(**out));
    (*out)->head.ops = opts->ops;
    (*out)->mode = opts->mode;
    (*out)->fell_back = falls;
    return HL_OK;
}

static void fake_close(struct hl_net_client *client)
{
    free(client);
}

static void fake_info(const struct hl_net_client *client, struct hl_net_client_info *out)
{
    int tcp = client->mode == HL_NET_ASK || client->fell_back;
    *out = (struct hl_net_client_info){
        .path = tcp ? "tcp" : "rdma", .pool_len = SIZE, .fell_back = client->fell_back};
}

static hl_status fake_fetch(struct hl_net_client *client, uint64_t offset, void *dst, size_t len,
                            const uint32_t *chunk_crcs, int timeout_ms, struct hl_net_bad *bad)
{
    (void)timeout_ms;
    atomic_fetch_add(len > MIB ? &straight : &staged, 1);
    if ((len > MIB && atomic_load(&break_direct)) ||
        (client->mode != HL_NET_ASK && atomic_load(&break_one_sided)))
        return hl_fail(HL_EIO, "remote access error");
    memcpy(dst, source + offset, len);
    if (atomic_load(&flip) > 0) {
        atomic_fetch_sub(&flip, 1);
        *(uint8_t *)dst ^= 1;
    }
    for (size_t at = 0, i = 0; at < len; at += MIB, i++) {
        size_t n = len - at < MIB ? len - at : MIB;
        if (hl_crc32(0, (uint8_t *)dst + at, n) != chunk_crcs[i])
            bad->chunk[bad->count++] = (uint32_t)i;
    }
    return bad->count == 0 ? HL_OK : hl_fail(HL_ECORRUPT, "a chunk arrived damaged");
}

static const struct hl_net_ops fake_net = {
    .name = "fake",
    .connect = fake_connect,
    .close = fake_close,
    .info = fake_info,
    .fetch = fake_fetch,
};

/* ---- the store and its peer ------------------------------------------------------------------ */

struct world {
    char pool[96], socket[128];
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_rpc_server *l3, *agent;
    struct hl_rpc_peer *peer;
    struct store *store;
    pthread_t thread;
    struct hl_id id;
};

static void l3_handler(void *arg, struct hl_rpc_call *call, const char *method,
                       const json_t *params)
{
    json_t *crcs = json_array();
    (void)arg;
    (void)method;
    for (size_t at = 0; at < SIZE; at += MIB)
        json_array_append_new(
            crcs, json_integer(hl_crc32(0, source + at, SIZE - at < MIB ? SIZE - at : MIB)));
    rpc_json_reply(call, json_pack("{s:[{s:O s:i s:i s:I s:o}]}", "extents", "id",
                                   json_array_get(json_object_get(params, "ids"), 0), "offset", 0,
                                   "sizeBytes", (int)SIZE, "crc32",
                                   (json_int_t)hl_crc32(0, source, SIZE), "chunkCrcs", crcs));
}

static void agent_copy(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_agent_store_copy_params *params)
{
    struct world *w = arg;
    store_copy(w->store, call, &params->request);
}

static void *run_loop(void *arg)
{
    struct world *w = arg;
    if (hl_loop_run(w->loop) != HL_OK)
        abort();
    hl_rpc_server_close(w->l3);
    hl_rpc_server_close(w->agent);
    store_close(w->store);
    return NULL;
}

static void serve(struct world *w)
{
    static const struct hl_agent_handlers agent = {.store_copy = agent_copy};
    struct hl_rpc_serve_opts opts = {.address = "127.0.0.1:0", .loop = w->loop, .arg = w};
    assert_int_equal(hl_serve_agent(w->rpc, &opts, &agent, &w->agent), HL_OK);
    assert_int_equal(rpc_json_serve(w->rpc, "L3", &opts, l3_handler, &w->l3), HL_OK);
}

static char cuda_stub[512]; /* the driver library of the tests */

static void begin(struct world *w, const char *nic_class, const char *devices)
{
    const struct hl_api_slot_list none = {0};
    *w = (struct world){.id = hl_id_random()};
    atomic_store(&break_direct, 0);
    atomic_store(&break_one_sided, 0);
    atomic_store(&silent, 0);
    atomic_store(&flip, 0);
    atomic_store(&straight, 0);
    atomic_store(&staged, 0);
    snprintf(w->pool, sizeof(w->pool), "/dev/shm/helios-test-route-%d.l2", (int)getpid());
    unlink(w->pool);
    assert_int_equal(hl_loop_create(&w->loop), HL_OK);
    assert_int_equal(hl_rpc_create(&w->rpc), HL_OK);
    serve(w);
    static struct hl_net_conf data;
    data = *hl_net_conf_default();
    data.rdma_retry_ms = 5;
    struct store_opts opts = {.loop = w->loop,
                              .rpc = w->rpc,
                              .node = "here",
                              .host_id = "this-host",
                              .l2_size = 16 * MIB,
                              .l2_pool = w->pool,
                              .pool = {.quarantine_ms = 100},
                              .devices = devices,
                              .device = {.cuda_driver = cuda_stub},
                              .nic_class = nic_class,
                              .machine = &none,
                              .data_listen = "",
                              .migrate_listen = "",
                              .copies = 2,
                              .locate_timeout_ms = MS,
                              .retry = {.count = 3, .pause_ms = 1},
                              .data = &data,
                              .pause_ms = 10,
                              .retry_first_ms = 200,
                              .retry_max_ms = 400,
                              .net = &fake_net};
    if (store_open(&opts, &w->store) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(hl_rpc_open(w->rpc, hl_rpc_server_address(w->agent), "Agent", &w->peer),
                     HL_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, run_loop, w), 0);
}

static void end(struct world *w)
{
    hl_rpc_peer_close(w->peer);
    hl_loop_stop(w->loop);
    pthread_join(w->thread, NULL);
    hl_rpc_destroy(w->rpc);
    hl_loop_destroy(w->loop);
    unlink(w->pool);
}

static hl_status try_copy(struct world *w, enum hl_api_tier tier, json_t **copy)
{
    json_t *result = NULL;
    json_t *params = json_pack(
        "{s:{s:s s:s s:s s:s s:s s:s s:s}}", "request", "id", hl_id_format(w->id).s, "tier",
        hl_api_tier_name(tier), "sourceTier", "L3", "sourceHostId", "far-host", "sourceAddress",
        hl_rpc_server_address(w->l3), "sourceDataAddress", "10.0.0.1:1", "operation", "read");
    hl_status st = rpc_json_call(w->peer, "storeCopy", params, MS, &result);
    json_decref(params);
    if (st == HL_OK && copy != NULL)
        *copy = json_incref(json_object_get(result, "copy"));
    json_decref(result);
    return st;
}

static void drop(struct world *w, enum hl_api_tier tier)
{
    struct hl_api_agent_store_drop_results r;
    const struct hl_id_text id = hl_id_format(w->id);
    const struct hl_api_agent_store_drop_params p = {.id = id.s, .tier = tier, .device = ""};
    assert_int_equal(store_drop(w->store, &p, &r), HL_OK);
    assert_true(r.dropped);
}

/* Copies, compares the path, drops the copy. */
static void expect_way(struct world *w, enum hl_api_tier tier, const char *path, const char *reason)
{
    json_t *copy = NULL;
    if (try_copy(w, tier, &copy) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_string_equal(hl_json_str(copy, "path", ""), path);
    assert_string_equal(hl_json_str(copy, "reason", ""), reason);
    assert_int_equal(hl_json_int(copy, "crc32", 0), hl_crc32(0, source, SIZE));
    json_decref(copy);
    drop(w, tier);
}

static struct hl_api_tier_info tier_of(struct world *w, enum hl_api_tier tier)
{
    struct hl_arena arena = {0};
    struct hl_api_tier_info all[STORE_TIERS_MAX], found = {0};
    size_t n = store_tiers(w->store, &arena, all);
    for (size_t i = 0; i < n; i++)
        if (all[i].tier == tier)
            found = all[i];
    hl_arena_fini(&arena); /* only numbers are requested */
    return found;
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST(behind_a_connectx_4_every_copy_into_a_device_takes_the_plank)
{
    static const char *const old[] = {"cx3", "cx4"};
    for (size_t k = 0; k < HL_ARRAY_LEN(old); k++) {
        struct world w;
        begin(&w, old[k], "emu:16MiB");
        for (int i = 0; i < 20; i++)
            expect_way(&w, HL_API_TIER_L1, "plank", "nic-class");
        assert_int_equal(straight, 0);
        assert_int_equal(staged, 20 * 4); /* 3 MiB + 100 bytes: 4 pieces */
        end(&w);
    }
}

TEST(behind_newer_nics_copies_go_straight_into_the_device)
{
    static const char *const new[] = {"cx5", "cx6", "bluefield", "other", "auto"};
    for (size_t k = 0; k < HL_ARRAY_LEN(new); k++) {
        struct world w;
        begin(&w, new[k], "emu:16MiB");
        for (int i = 0; i < 20; i++)
            expect_way(&w, HL_API_TIER_L1, "direct", "one-sided");
        assert_int_equal(staged, 0);
        end(&w);
    }
}

TEST(a_device_that_no_nic_reaches_takes_the_plank)
{
    struct world w;
    begin(&w, "cx6", "emu:16MiB:nic=no");
    expect_way(&w, HL_API_TIER_L1, "plank", "device");
    end(&w);
}

TEST(a_cuda_device_is_filled_by_the_plank)
{
    struct world w;
    begin(&w, "cx6", "cuda:0:16MiB");
    for (int i = 0; i < 5; i++)
        expect_way(&w, HL_API_TIER_L1, "plank", "device");
    assert_int_equal(straight, 0);
    end(&w); /* the stub ends the process when memory, pins or streams are left */
}

TEST(when_direct_fails_the_plank_takes_over_and_direct_is_tried_again_later)
{
    struct world w;
    json_t *copy = NULL;
    begin(&w, "cx6", "emu:16MiB");
    expect_way(&w, HL_API_TIER_L1, "direct", "one-sided");
    atomic_store(&break_direct, 1);
    expect_way(&w, HL_API_TIER_L1, "plank", "direct-failed"); /* the failed copy itself */
    int tried = straight;
    assert_int_equal(tried, 2);
    atomic_store(&break_direct, 0);
    /* The direct path is suspended; when the time is over it is tried again, and stays in use. */
    uint64_t end_ns = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    const char *path = "";
    while (strcmp(path, "direct") != 0) {
        assert_true(hl_now_ns() < end_ns);
        assert_int_equal(try_copy(&w, HL_API_TIER_L1, &copy), HL_OK);
        path = strcmp(hl_json_str(copy, "path", ""), "direct") == 0 ? "direct" : "plank";
        assert_string_equal(hl_json_str(copy, "reason", ""),
                            path[0] == 'd' ? "direct-retry" : "direct-failed");
        json_decref(copy);
        drop(&w, HL_API_TIER_L1);
        poll(NULL, 0, 5);
    }
    assert_int_equal(straight, tried + 1); /* not tried while suspended */
    expect_way(&w, HL_API_TIER_L1, "direct", "one-sided");
    struct hl_buf text = HL_BUF(1 << 20);
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    assert_non_null(strstr(text.data, "path=\"plank\",reason=\"direct-failed\""));
    assert_non_null(strstr(text.data, "path=\"direct\",reason=\"direct-retry\""));
    hl_buf_fini(&text);
    end(&w);
}

TEST(host_memory_is_asked_for_when_one_sided_reads_fail)
{
    struct world w;
    begin(&w, "cx6", "");
    expect_way(&w, HL_API_TIER_L2, "direct", "one-sided");
    atomic_store(&break_one_sided, 1);
    expect_way(&w, HL_API_TIER_L2, "tcp", "direct-failed");
    end(&w);
}

TEST(a_connection_that_fell_back_to_tcp_is_over_rdma_again_when_that_works)
{
    struct world w;
    begin(&w, "cx6", "");
    atomic_store(&silent, 1);
    for (int i = 0; i < 3; i++)
        expect_way(&w, HL_API_TIER_L2, "tcp", "no-rdma");
    atomic_store(&silent, 0);
    uint64_t end_ns = hl_now_ns() + WAIT_MS * HL_NS_PER_MS;
    for (int rdma = 0; !rdma;) {
        json_t *copy = NULL;
        assert_true(hl_now_ns() < end_ns);
        assert_int_equal(try_copy(&w, HL_API_TIER_L2, &copy), HL_OK);
        rdma = strcmp(hl_json_str(copy, "transport", ""), "rdma") == 0;
        assert_string_equal(hl_json_str(copy, "reason", ""), rdma ? "one-sided" : "no-rdma");
        json_decref(copy);
        drop(&w, HL_API_TIER_L2);
    }
    expect_way(&w, HL_API_TIER_L2, "direct", "one-sided");
    end(&w);
}

TEST(a_bad_piece_is_fetched_again_and_one_that_stays_bad_fails_the_copy)
{
    static const enum hl_api_tier tiers[] = {HL_API_TIER_L1, HL_API_TIER_L2};
    struct world w;
    begin(&w, "cx4", "emu:16MiB");
    for (size_t i = 0; i < HL_ARRAY_LEN(tiers); i++) {
        json_t *copy = NULL;
        atomic_store(&flip, 2);
        assert_int_equal(try_copy(&w, tiers[i], &copy), HL_OK);
        json_decref(copy);
        drop(&w, tiers[i]);
        atomic_store(&flip, 1000);
        assert_int_equal(try_copy(&w, tiers[i], NULL), HL_ECORRUPT);
        assert_non_null(strstr(hl_error_text(), "after 3 retries"));
        assert_int_equal(tier_of(&w, tiers[i]).used_bytes, 0);
        assert_int_equal(tier_of(&w, tiers[i]).shards, 0);
    }
    end(&w);
    fault_shown("plank", "corrupt", "fetched-again-or-refused");
}

TEST(a_full_device_is_an_ordinary_error)
{
    struct world w;
    begin(&w, "cx4", "emu:2MiB,emu:4MiB");
    json_t *copy = NULL;
    /* the first device with room is taken */
    assert_int_equal(try_copy(&w, HL_API_TIER_L1, &copy), HL_OK);
    assert_string_equal(hl_json_str(copy, "device", ""), "emu:1");
    json_decref(copy);
    w.id = hl_id_random();
    assert_int_equal(try_copy(&w, HL_API_TIER_L1, NULL), HL_ENOSPC);
    assert_int_equal(tier_of(&w, HL_API_TIER_L1).writing_bytes, 0);
    end(&w);
    fault_shown("plank", "full", "refused-exact");
}

int main(int argc, char **argv)
{
    cuda_library(cuda_stub, sizeof(cuda_stub));
    hl_log_init("test", HL_LOG_ERROR);
    source = malloc(SIZE);
    uint64_t x = 88172645463325252u;
    for (size_t i = 0; i < SIZE; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        source[i] = (uint8_t)x;
    }
    int failed = tests_run(argc, argv);
    free(source);
    return failed;
}
