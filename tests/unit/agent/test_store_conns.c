/* Connections that a node's store keeps, when their peers were restarted. */
#include "support/test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/store_private.h"
#include "base/crc32.h"

#define SIZE  1000
#define OTHER "192.0.2.1:7"

/* A connection to a peer that takes every put, until the peer is restarted. */
struct hl_net_client {
    struct hl_net_head head;
    unsigned life; /* of the peer when it was made */
};

static unsigned peer_life;
static struct store store;

static hl_status fake_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    struct hl_net_client *c = calloc(1, sizeof(*c));
    assert_non_null(c);
    c->head.ops = opts->ops;
    c->life = peer_life;
    *out = c;
    return HL_OK;
}

static void fake_close(struct hl_net_client *c)
{
    free(c);
}

static void fake_info(const struct hl_net_client *c, struct hl_net_client_info *out)
{
    (void)c;
    *out = (struct hl_net_client_info){.path = "tcp"};
}

static hl_status fake_put(struct hl_net_client *c, struct hl_net_item *items, size_t count,
                          int timeout_ms)
{
    (void)items, (void)count, (void)timeout_ms;
    return c->life == peer_life ? HL_OK : hl_fail(HL_EUNAVAIL, "the connection was lost");
}

static const struct hl_net_ops fake_ops = {.name = "fake",
                                           .connect = fake_connect,
                                           .close = fake_close,
                                           .info = fake_info,
                                           .put = fake_put};

static int setup(void **state)
{
    static char path[64];
    static const struct hl_net_conf data = {.connect_ms = 1000};
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/helios-test-conns-%d", (int)getpid());
    unlink(path);
    store = (struct store){.pool_path = path,
                           .node = "node-1",
                           .tiers = {{.tier = HL_API_TIER_L2}},
                           .tier_count = 1,
                           .conns = {.max = HL_CONN_POOL_MAX},
                           .opts = {.data = &data, .net = &fake_ops}};
    pthread_mutex_init(&store.lock, NULL);
    pthread_mutex_init(&store.keep.lock, NULL);
    const struct hl_pool_options pool = {.path = path, .capacity = 16 * HL_POOL_UNIT};
    assert_int_equal(hl_pool_open(&pool, NULL, &store.pool), HL_OK);
    size_t len;
    store.base = hl_pool_base(store.pool, &len);
    assert_int_equal(hl_tier_over_pool(store.pool, HL_API_TIER_L2, "host", NULL, &store.tiers[0].t),
                     HL_OK);
    return store_keep_open(&store) == HL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    store_conns_close(&store);
    store_keep_close(&store);
    hl_tier_close(store.tiers[0].t);
    hl_pool_close(store.pool);
    unlink(store.pool_path);
    return 0;
}

static void place(struct hl_id id)
{
    struct hl_tier_slot slot;
    assert_int_equal(store_reserve(&store, &store.tiers[0], id, SIZE, -1, &slot), HL_OK);
    memset(slot.host, 7, SIZE);
    uint32_t crc = hl_crc32(0, slot.host, SIZE);
    assert_int_equal(hl_tier_seal(store.tiers[0].t, &slot, crc, &crc, 1, NULL), HL_OK);
}

/* As after that many copies at the same time. */
static void keep_conns(size_t count)
{
    struct hl_conn_lease leases[HL_CONN_POOL_MAX];
    for (size_t i = 0; i < count; i++)
        assert_int_equal(store_net_acquire(&store, OTHER, HL_NET_AUTO, 1000, &leases[i]), HL_OK);
    for (size_t i = 0; i < count; i++)
        store_net_release(&store, OTHER, HL_NET_AUTO, &leases[i], HL_OK);
    assert_int_equal(store.conns.count, count);
}

TEST_IN(setup, teardown, a_send_reaches_a_restarted_peer_however_many_connections_were_kept)
{
    const struct hl_id id = {1, 2};
    const struct store_request r = {.id = id,
                                    .tier = HL_API_TIER_L3,
                                    .op = HL_API_OPERATION_WRITE,
                                    .target_address = OTHER,
                                    .target_host = "",
                                    .target_socket = "",
                                    .target_data = "",
                                    .deadline_ns = UINT64_MAX};
    struct store_result out;
    place(id);
    keep_conns(3);
    peer_life++;
    if (store_send_run(&store, &r, &out) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(out.size, SIZE);
}

/* A peer that accepts connections and never says a word. */
static int open_silent_listener(char *address, size_t cap)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(name);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, len), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&name, &len), 0);
    snprintf(address, cap, "127.0.0.1:%u", ntohs(name.sin_port));
    return fd;
}

static void *connect_there(void *address)
{
    static hl_status st;
    struct hl_conn_lease lease;
    st = store_net_connect(&store, address, HL_NET_AUTO, 5000, &lease);
    return &st;
}

TEST_IN(setup, teardown, a_store_that_stops_waits_for_no_connect)
{
    struct hl_net_conf data = *hl_net_conf_default();
    char address[64];
    pthread_t thread;
    void *st;
    int listener = open_silent_listener(address, sizeof(address));
    data.connect_ms = 5000;
    store.opts.net = hl_net_tcp();
    store.opts.data = &data;
    assert_int_equal(pthread_create(&thread, NULL, connect_there, address), 0);
    int peer = accept(listener, NULL, NULL);
    assert_true(peer >= 0);
    atomic_store(&store.stopping, true);
    assert_int_equal(pthread_join(thread, &st), 0);
    assert_int_equal(*(hl_status *)st, HL_ECANCELED);
    close(peer);
    close(listener);
}
