/* A connection that fell back from RDMA, over a network that works and fails as the test says. */
#include "support/test.h"

#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/plane.h"
#include "net/net.h"

#define HOUR_MS 3600000

struct hl_net_client {
    struct hl_net_head head;
    int rdma;
};

static atomic_int first_is_rdma;          /* what the first connection gets */
static atomic_int rdma_works, rdma_hangs; /* what an attempt finds */
static atomic_int attempts, canceled, open_clients;
static atomic_int no_adapter; /* on this host */

static hl_status make(const struct hl_net_connect_opts *opts, int rdma, struct hl_net_client **out)
{
    *out = calloc(1, sizeof(**out));
    assert_non_null(*out);
    (*out)->head.ops = opts->ops;
    (*out)->rdma = rdma;
    atomic_fetch_add(&open_clients, 1);
    return HL_OK;
}

static hl_status fake_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    if (!opts->rdma_only)
        return make(opts, atomic_load(&first_is_rdma), out);
    atomic_fetch_add(&attempts, 1);
    while (atomic_load(&rdma_hangs) && !atomic_load(opts->cancel) && hl_now_ns() < limit)
        poll(NULL, 0, 1);
    if (atomic_load(opts->cancel)) {
        atomic_fetch_add(&canceled, 1);
        return hl_fail(HL_ECANCELED, "it was cancelled");
    }
    if (atomic_load(&no_adapter))
        return hl_fail(HL_EUNSUPPORTED, "there is no adapter");
    return atomic_load(&rdma_works) ? make(opts, 1, out)
                                    : hl_fail(HL_EUNAVAIL, "the adapter is silent");
}

static void fake_close(struct hl_net_client *client)
{
    atomic_fetch_sub(&open_clients, 1);
    free(client);
}

static void fake_info(const struct hl_net_client *client, struct hl_net_client_info *out)
{
    *out = (struct hl_net_client_info){.path = client->rdma ? "rdma" : "tcp",
                                       .fell_back = !client->rdma && !atomic_load(&no_adapter),
                                       .lacks = !client->rdma && atomic_load(&no_adapter)};
}

static const struct hl_net_ops fake_net = {
    .name = "fake", .connect = fake_connect, .close = fake_close, .info = fake_info};

static struct hl_net_client *join(int first, int retry_ms)
{
    struct hl_net_client *client;
    struct hl_net_connect_opts opts = {
        .address = "10.0.0.1:1", .ops = &fake_net, .rdma_retry_ms = retry_ms};
    atomic_store(&first_is_rdma, first);
    atomic_store(&rdma_works, 0);
    atomic_store(&rdma_hangs, 0);
    atomic_store(&attempts, 0);
    atomic_store(&canceled, 0);
    assert_int_equal(hl_net_connect_with(&opts, &client), HL_OK);
    return client;
}

static void leave(struct hl_net_client *client)
{
    hl_net_close(client);
    assert_int_equal(atomic_load(&open_clients), 0);
}

static void renew_until(struct hl_net_client **client, const atomic_int *count, int at_least)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (atomic_load(count) < at_least) {
        hl_net_renew(client);
        assert_true(hl_now_ns() < limit);
        poll(NULL, 0, 1);
    }
}

static void wait_for_rdma(struct hl_net_client **client)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (strcmp(hl_net_path_name(*client), "rdma") != 0) {
        hl_net_renew(client);
        assert_true(hl_now_ns() < limit);
        poll(NULL, 0, 1);
    }
}

/* helios_fault_total{cause=...,path=...} */
static unsigned long counted(const char *cause, const char *path)
{
    char key[128];
    struct hl_buf text = HL_BUF(1 << 20);
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    assert_int_equal(hl_buf_append(&text, "", 1), HL_OK);
    snprintf(key, sizeof(key), "helios_fault_total{cause=\"%s\",path=\"%s\"} ", cause, path);
    const char *at = strstr((const char *)text.data, key);
    unsigned long n = at != NULL ? strtoul(at + strlen(key), NULL, 10) : 0;
    hl_buf_fini(&text);
    return n;
}

TEST(an_adapter_that_comes_later_is_found_and_its_lack_is_no_fault)
{
    unsigned long failed = counted("rdma-failed", "tcp"), back = counted("rdma-back", "rdma");
    atomic_store(&no_adapter, 1);
    struct hl_net_client *client = join(0, 1);
    renew_until(&client, &attempts, 6); /* the pauses have grown to 16 ms */
    assert_string_equal(hl_net_path_name(client), "tcp");
    assert_int_equal(counted("rdma-failed", "tcp"), failed);
    atomic_store(&rdma_works, 1);
    atomic_store(&no_adapter, 0);
    wait_for_rdma(&client);
    assert_int_equal(counted("rdma-failed", "tcp"), failed);
    assert_int_equal(counted("rdma-back", "rdma"), back + 1);
    leave(client);
}

TEST(it_is_replaced_by_one_over_rdma_and_never_waits_for_it)
{
    unsigned long failed = counted("rdma-failed", "tcp"), back = counted("rdma-back", "rdma");
    struct hl_net_client *client = join(0, 1), *old = client;
    atomic_store(&rdma_hangs, 1);
    renew_until(&client, &attempts, 1);
    /* The attempt ends only after this: a call that waited for it would not have returned. */
    for (int i = 0; i < 100; i++)
        hl_net_renew(&client);
    assert_ptr_equal(client, old);
    assert_string_equal(hl_net_path_name(client), "tcp");
    assert_int_equal(atomic_load(&attempts), 1);
    atomic_store(&rdma_works, 1);
    atomic_store(&rdma_hangs, 0);
    wait_for_rdma(&client);
    assert_int_equal(atomic_load(&open_clients), 1); /* the old one is closed */
    assert_int_equal(counted("rdma-failed", "tcp"), failed + 1);
    assert_int_equal(counted("rdma-back", "rdma"), back + 1);
    for (int i = 0; i < 100; i++)
        hl_net_renew(&client);
    assert_int_equal(atomic_load(&attempts), 1); /* there is nothing better */
    leave(client);
}

TEST(an_attempt_that_fails_is_repeated_and_counted)
{
    unsigned long failed = counted("rdma-failed", "tcp");
    struct hl_net_client *client = join(0, 1), *old = client;
    renew_until(&client, &attempts, 3);
    assert_ptr_equal(client, old);
    assert_true(counted("rdma-failed", "tcp") >= failed + 3); /* the third one may not have ended */
    atomic_store(&rdma_works, 1);
    wait_for_rdma(&client);
    leave(client);
}

TEST(nothing_is_tried_before_its_time_or_when_it_is_not_wanted)
{

    static const struct {
        int rdma, retry_ms;
    } none[] = {{0, HOUR_MS}, {0, 0}, {0, -1}, {1, 1}};

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        struct hl_net_client *client = join(none[i].rdma, none[i].retry_ms), *old = client;
        uint64_t end =
            hl_now_ns() + 20 * HL_NS_PER_MS; /* with pauses of 1 ms it would have tried by now */
        while (hl_now_ns() < end)
            hl_net_renew(&client);
        assert_ptr_equal(client, old);
        leave(client);
        assert_int_equal(atomic_load(&attempts), 0);
    }
}

TEST(closing_gives_up_an_attempt_under_way)
{
    struct hl_net_client *client = join(0, 1);
    atomic_store(&rdma_hangs, 1);
    renew_until(&client, &attempts, 1);
    leave(client);
    assert_int_equal(atomic_load(&canceled), 1);
}

TEST(what_an_attempt_made_and_nobody_took_is_closed_with_the_connection)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    struct hl_net_client *client = join(0, 1);
    atomic_store(&rdma_works, 1);
    atomic_store(&rdma_hangs, 1);
    renew_until(&client, &attempts, 1);
    atomic_store(&rdma_hangs, 0);
    while (atomic_load(&open_clients) < 2) {
        assert_true(hl_now_ns() < limit);
        poll(NULL, 0, 1);
    }
    leave(client);
}
