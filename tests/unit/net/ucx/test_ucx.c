/* The real UCX over loopback: server thread and clients in one process. */
#include "support/test.h"

#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "net/net.h"
#include "net/ucx/client.h"
#include "support/bytes.h"
#include "support/fault.h"
#include "unit/net/net_rig.h"

static const size_t sizes[] = {0,    1,       7,           63,      64,      4095,        4096,
                               4097, 16383,   16384,       16385,   65536,   262143,      MIB - 1,
                               MIB,  MIB + 1, 3 * MIB + 5, 4 * MIB, 5 * MIB, 17 * MIB + 3};

static void check_sizes_and_ranges(struct hl_net_client *client)
{
    uint32_t seed = 42;
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++) {
        check_fetch(client, 0, sizes[i]);
        check_fetch(client, POOL_LEN - sizes[i], sizes[i]);
    }
    for (int i = 0; i < 200; i++) {
        uint64_t offset = next_random(&seed) % POOL_LEN;
        size_t len = next_random(&seed) % (i % 10 == 0 ? 5 * MIB : 40000);
        check_fetch(client, offset, len < POOL_LEN - offset ? len : POOL_LEN - offset);
    }
}

static void fetches_of_all_sizes_and_ranges_equal_the_pool(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_net_client_info info;
    hl_net_client_info(client, &info);
    assert_int_equal(info.pool_len, POOL_LEN);
    assert_false(hl_id_is_none(info.server));
    check_sizes_and_ranges(client);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static uint64_t peers_of(const struct hl_net_server *server)
{
    struct hl_net_server_stats stats;
    hl_net_server_stats(server, &stats);
    return stats.peers_now;
}

static void any_number_of_endpoints_reads_the_same_and_all_of_them_are_used(void **state)
{
    static const enum hl_net_mode modes[] = {HL_NET_ASK, HL_NET_GET};

    (void)state;
    for (size_t m = 0; m < (back_end == hl_net_ucx() ? 2 : 1); m++)
        for (int endpoints = 1; endpoints <= 4; endpoints++) {
            struct hl_net_server *server = serve(NULL, modes[m]);
            struct hl_net_client *client = NULL;
            struct hl_net_connect_opts opts = {.address = hl_net_server_address(server),
                                               .timeout_ms = 5000,
                                               .mode = modes[m],
                                               .endpoints = endpoints,
                                               .ops = back_end};
            assert_int_equal(hl_net_connect_with(&opts, &client), HL_OK);
            assert_int_equal(peers_of(server), endpoints);
            check_fetch(client, 5, 17 * MIB + 3);
            check_fetch(client, 77, 64);
            hl_net_close(client);
            uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
            while (peers_of(server) > 0 && hl_now_ns() < deadline)
                usleep(1000);
            assert_int_equal(peers_of(server), 0);
            hl_net_server_stop(server);
        }
}

static void requests_over_tcp_are_called_tcp_and_emulated_gets_emulated(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_GET);
    struct hl_net_client *ask = join(server, HL_NET_AUTO);
    struct hl_net_client *get = join(server, HL_NET_GET);
    assert_string_equal(hl_net_path_name(ask), "tcp");
    assert_string_equal(hl_net_path_name(get), "emulated");
    check_fetch(ask, 3, 2 * MIB);
    check_sizes_and_ranges(get);
    uint8_t dst[64];
    assert_int_equal(hl_net_fetch(get, POOL_LEN - 63, dst, 64, 1000), HL_EINVAL);
    check_fetch(get, 0, 64);
    hl_net_close(ask);
    hl_net_close(get);
    hl_net_server_stop(server);
}

static void a_server_without_keys_refuses_the_get_mode_with_a_sentence(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_ASK);
    struct hl_net_client *client = NULL;
    struct hl_net_connect_opts opts = {
        .address = hl_net_server_address(server), .mode = HL_NET_GET, .ops = back_end};
    assert_int_equal(hl_net_connect_with(&opts, &client), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "no key"));
    hl_net_server_stop(server);
}

static void ranges_outside_the_pool_are_refused_and_the_client_lives_on(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);

    static const struct {
        uint64_t offset;
        size_t len;
    } wrong[] = {{POOL_LEN, 1},       {POOL_LEN - 1, 2},   {UINT64_MAX, 1},
                 {UINT64_MAX - 1, 9}, {1ull << 63, 4096},  {POOL_LEN - 3 * MIB, 5 * MIB},
                 {POOL_LEN, 9 * MIB}, {UINT64_MAX / 2, 64}};

    uint8_t *dst = malloc(16 * MIB);
    for (size_t i = 0; i < HL_ARRAY_LEN(wrong); i++) {
        assert_int_equal(hl_net_fetch(client, wrong[i].offset, dst, wrong[i].len, 2000), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "outside the pool"));
        check_fetch(client, i * 1000, 5000);
    }
    free(dst);
    struct hl_net_server_stats stats;
    hl_net_server_stats(server, &stats);
    assert_true(stats.refused >= HL_ARRAY_LEN(wrong));
    hl_net_close(client);
    hl_net_server_stop(server);
    fault_shown("tcp-read", "wrong-size", "refused-served-on");
}

static void chunks_with_a_wrong_checksum_are_named(void **state)
{
    (void)state;
    uint64_t base = 4096;
    size_t len = 9 * MIB + 100;
    uint8_t *dst = malloc(len);
    uint32_t crcs[10];
    struct hl_net_bad bad;
    for (size_t i = 0; i < 10; i++)
        crcs[i] = plain_crc(pool + base + i * MIB, i < 9 ? MIB : 100);
    pool[base + 2 * MIB + 17] ^= 1;
    pool[base + 9 * MIB + 99] ^= 0x80;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    assert_int_equal(hl_net_fetch_verified(client, base, dst, len, crcs, 5000, &bad), HL_ECORRUPT);
    assert_int_equal(bad.count, 2);
    assert_int_equal(bad.chunk[0], 2);
    assert_int_equal(bad.chunk[1], 9);
    assert_non_null(strstr(hl_error_text(), "chunk 2"));
    hl_net_close(client);
    hl_net_server_stop(server);
    pool[base + 2 * MIB + 17] ^= 1;
    pool[base + 9 * MIB + 99] ^= 0x80;
    /* Only the bad chunks again, from an undamaged replica. */
    server = serve(NULL, HL_NET_AUTO);
    client = join(server, HL_NET_AUTO);
    for (size_t i = 0; i < 2; i++) {
        size_t at = bad.chunk[i] * MIB;
        size_t part = len - at < MIB ? len - at : MIB;
        assert_int_equal(hl_net_fetch_verified(client, base + at, dst + at, part,
                                               crcs + bad.chunk[i], 5000, NULL),
                         HL_OK);
    }
    assert_memory_equal(dst, pool + base, len);
    assert_int_equal(hl_net_fetch_verified(client, base, dst, len, crcs, 5000, &bad), HL_OK);
    assert_int_equal(bad.count, 0);
    free(dst);
    hl_net_close(client);
    hl_net_server_stop(server);
    fault_shown("tcp-read", "corrupt", "noticed-fetched-again");
}

static void more_bad_chunks_than_fit_are_counted_and_the_first_are_kept_in_order(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    uint32_t crcs[CHUNKS];
    struct hl_net_bad bad;
    uint8_t *dst = malloc(POOL_LEN);
    for (size_t i = 0; i < CHUNKS; i++)
        crcs[i] = ~hl_crc32(0, pool + i * MIB, i < CHUNKS - 1 ? MIB : POOL_LEN % MIB);
    assert_int_equal(hl_net_fetch_verified(client, 0, dst, POOL_LEN, crcs, 5000, &bad),
                     HL_ECORRUPT);
    assert_int_equal(bad.count, CHUNKS);
    for (size_t i = 0; i < HL_NET_BAD_MAX; i++)
        assert_int_equal(bad.chunk[i], i);
    assert_memory_equal(dst, pool, POOL_LEN);
    free(dst);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void puts_of_all_sizes_land_with_their_checksums(void **state)
{
    (void)state;
    struct vault v = {0};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    for (size_t i = 1; i < HL_ARRAY_LEN(sizes); i++) {
        struct hl_id id;
        size_t len = sizes[i];
        uint32_t crc = plain_crc(pool + 11, len);
        if (put(client, pool + 11, len, crc, 5000, &id) != HL_OK)
            fail_msg("%zu bytes: %s", len, hl_error_text());
        assert_true(id.hi == 0x1122334455667788 && id.lo == crc);
        assert_int_equal(v.size, len);
        assert_memory_equal(v.bytes, pool + 11, len);
        assert_int_equal(v.chunk_count, (len + MIB - 1) / MIB);
        assert_int_equal(v.chunk_crcs[0], plain_crc(pool + 11, len < MIB ? len : MIB));
        free(v.bytes);
    }
    assert_int_equal(v.committed, HL_ARRAY_LEN(sizes) - 1);
    assert_int_equal(v.aborted, 0);
    check_fetch(client, 5, 3 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void a_put_may_name_its_object(void **state)
{
    (void)state;
    struct vault v = {0};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_id name = {7, 8};
    uint32_t crc = plain_crc(pool, MIB);
    gate();
    assert_int_equal(hl_net_put_as(client, name, pool, MIB, crc, 5000), HL_OK);
    gate();
    assert_true(hl_id_equal(v.wanted, name));
    free(v.bytes);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void a_put_with_a_wrong_checksum_is_aborted_and_refused(void **state)
{
    (void)state;
    struct vault v = {0};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_id id = {1, 2};
    uint32_t crc = hl_crc32(0, pool, 3 * MIB);
    assert_int_equal(put(client, pool, 3 * MIB, crc ^ 1, 5000, &id), HL_ECORRUPT);
    assert_true(id.hi == 1 && id.lo == 2);
    assert_int_equal(v.aborted, 1);
    assert_int_equal(v.committed, 0);
    assert_int_equal(put(client, pool, 3 * MIB, crc, 5000, &id), HL_OK);
    assert_int_equal(v.committed, 1);
    free(v.bytes);
    hl_net_close(client);
    hl_net_server_stop(server);
    fault_shown("tcp-put", "corrupt", "refused-put-again");
}

static void the_words_of_a_refusing_put_handler_reach_the_client(void **state)
{
    (void)state;
    struct vault v = {.refuse_begin = true};
    struct hl_net_server *server = serve(&v, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_id id;
    uint32_t crc = hl_crc32(0, pool, 100);
    assert_int_equal(put(client, pool, 100, crc, 5000, &id), HL_ENOSPC);
    assert_string_equal(hl_error_text(), "the pool has 7 bytes left");
    v.refuse_begin = false;
    v.refuse_commit = true;
    assert_int_equal(put(client, pool, 100, crc, 5000, &id), HL_ECONFLICT);
    assert_string_equal(hl_error_text(), "sealing failed");
    assert_int_equal(v.aborted, 0);
    free(v.bytes);
    hl_net_close(client);
    hl_net_server_stop(server);
    server = serve(NULL, HL_NET_AUTO);
    client = join(server, HL_NET_AUTO);
    assert_int_equal(put(client, pool, 100, crc, 5000, &id), HL_EPERM);
    hl_net_close(client);
    hl_net_server_stop(server);
}

struct reader {
    struct hl_net_server *server;
    uint32_t seed;
    hl_status st;
};

static void *read_randomly(void *arg)
{
    struct reader *r = arg;
    struct hl_net_client *client = NULL;
    uint8_t *dst = malloc(3 * MIB);
    r->st = reach(hl_net_server_address(r->server), 5000, &client);
    for (int i = 0; r->st == HL_OK && i < 60; i++) {
        size_t len = next_random(&r->seed) % (3 * MIB);
        uint64_t offset = next_random(&r->seed) % (POOL_LEN - len);
        r->st = hl_net_fetch(client, offset, dst, len, 5000);
        if (r->st == HL_OK && memcmp(dst, pool + offset, len) != 0)
            r->st = HL_ECORRUPT;
    }
    hl_net_close(client);
    free(dst);
    return NULL;
}

static void two_clients_at_once_both_get_their_bytes(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct reader readers[2] = {{server, 7, HL_EINTERNAL}, {server, 8, HL_EINTERNAL}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_randomly, &readers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(readers[i].st, HL_OK);
    hl_net_server_stop(server);
}

static void ipv6_is_refused_with_the_reason_and_localhost_means_ipv4(void **state)
{
    (void)state;
    struct hl_net_server *server = NULL;
    struct hl_net_client *client = NULL;
    struct hl_net_server_opts opts = {
        .listen = "[::1]:0", .pool = pool, .pool_len = POOL_LEN, .ops = back_end};
    assert_int_equal(hl_net_server_start(&opts, &server), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "IPv4"));
    assert_int_equal(reach("[::1]:7", 1000, &client), HL_EUNSUPPORTED);
    opts.listen = "localhost:0";
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    client = join(server, HL_NET_AUTO);
    check_fetch(client, 1, 2 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void a_server_on_all_addresses_is_reached_by_the_loopback_one(void **state)
{
    (void)state;
    struct hl_net_server *server = NULL;
    struct hl_net_client *client = NULL;
    struct hl_net_server_opts opts = {
        .listen = "0.0.0.0:0", .pool = pool, .pool_len = POOL_LEN, .ops = back_end};
    char address[64];
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(strncmp(hl_net_server_address(server), "0.0.0.0:", 8), 0);
    snprintf(address, sizeof(address), "127.0.0.1:%s", hl_net_server_address(server) + 8);
    if (reach(address, 5000, &client) != HL_OK)
        fail_msg("%s", hl_error_text());
    check_fetch(client, 9, 3 * MIB);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void connecting_to_a_closed_port_is_a_sentence_within_the_deadline(void **state)
{
    (void)state;
    struct hl_net_client *client = NULL;
    uint64_t begin = hl_now_ns();
    assert_int_equal(reach("tcp://127.0.0.1:1", 1000, &client), HL_EUNAVAIL);
    assert_true(hl_now_ns() - begin < TEST_PATIENCE_NS);
    assert_non_null(strstr(hl_error_text(), "connect to 127.0.0.1:1: Connection refused"));
    assert_null(client);
}

static void a_listener_that_is_no_data_server_is_reported_within_the_deadline(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, len), 0);
    assert_int_equal(listen(fd, 8), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    char address[32];
    snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(a.sin_port));
    struct hl_net_client *client = NULL;
    uint64_t begin = hl_now_ns();
    assert_int_equal(reach(address, 300, &client), HL_ETIMEDOUT);
    assert_true(hl_now_ns() - begin < TEST_PATIENCE_NS);
    assert_non_null(strstr(hl_error_text(), "did not answer as a Helios data server"));
    close(fd);
}

static void a_port_in_use_and_a_foreign_address_are_refused_with_words(void **state)
{
    (void)state;
    struct hl_net_server *first = serve(NULL, HL_NET_AUTO);
    struct hl_net_server *second = NULL;
    struct hl_net_server_opts opts = {.listen = hl_net_server_address(first),
                                      .pool = pool,
                                      .pool_len = POOL_LEN,
                                      .ops = back_end};
    assert_int_equal(hl_net_server_start(&opts, &second), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), "in use"));
    opts.listen = "198.51.100.7:7402";
    assert_int_equal(hl_net_server_start(&opts, &second), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "198.51.100.7:7402"));
    assert_null(second);
    hl_net_server_stop(first);
}

static void a_client_of_a_stopped_server_fails_soon_and_stays_dead(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    uint8_t dst[64];
    check_fetch(client, 0, 64);
    hl_net_server_stop(server);
    uint64_t begin = hl_now_ns();
    hl_status st = hl_net_fetch(client, 0, dst, 64, 600000);
    assert_true(st == HL_EUNAVAIL || st == HL_ETIMEDOUT);
    assert_true(hl_now_ns() - begin < TEST_PATIENCE_NS);
    assert_int_equal(hl_net_fetch(client, 0, dst, 64, 5000), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "connect again"));
    hl_net_close(client);
}

static void a_restarted_server_gets_its_port_again_and_a_new_identity(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    char address[64];
    snprintf(address, sizeof(address), "%s", hl_net_server_address(server));
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct hl_net_client_info first, second;
    hl_net_client_info(client, &first);
    hl_net_server_stop(server); /* closes first: the port is left in TIME_WAIT */
    hl_net_close(client);
    struct hl_net_server_opts opts = {
        .listen = address, .pool = pool, .pool_len = POOL_LEN, .ops = back_end};
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    client = join(server, HL_NET_AUTO);
    hl_net_client_info(client, &second);
    assert_false(hl_id_equal(first.server, second.server));
    check_fetch(client, 0, 64);
    hl_net_close(client);
    hl_net_server_stop(server);
}

static void the_options_of_the_transport_take_effect_without_a_word(void **state)
{
    (void)state;
    unsigned said = hl_log_count(HL_LOG_INFO);
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_ASK);
    char lanes[1024];
    ucp_worker_attr_t attr = {.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER};
    assert_int_equal(ucp_worker_query(client->ucx.worker, &attr), UCS_OK);
    assert_true(attr.max_am_header > HL_UCX_FRAGMENT); /* so a fragment is one message */
    hl_ucx_lanes(client->ep, lanes, sizeof(lanes));
    assert_non_null(strstr(lanes, "tcp/lo"));
    assert_null(strstr(lanes, "rma")); /* UCT's put over TCP would be one */
    hl_net_close(client);
    hl_net_server_stop(server);
    assert_int_equal(hl_log_count(HL_LOG_INFO), said);
}

static void an_idle_server_sleeps(void **state)
{
    (void)state;
    struct hl_net_server *server = serve(NULL, HL_NET_AUTO);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    struct timespec before, after, nap = {0, 300 * 1000000l};
    check_fetch(client, 0, 64);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    nanosleep(&nap, NULL); /* this is the measured interval, not a wait */
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used = (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
    assert_true(used < 60 * 1000000ll);
    check_fetch(client, 0, 64);
    hl_net_close(client);
    hl_net_server_stop(server);
}

int main(void)
{
    const struct CMUnitTest contract[] = {
        cmocka_unit_test(fetches_of_all_sizes_and_ranges_equal_the_pool),
        cmocka_unit_test(any_number_of_endpoints_reads_the_same_and_all_of_them_are_used),
        cmocka_unit_test(ranges_outside_the_pool_are_refused_and_the_client_lives_on),
        cmocka_unit_test(chunks_with_a_wrong_checksum_are_named),
        cmocka_unit_test(more_bad_chunks_than_fit_are_counted_and_the_first_are_kept_in_order),
        cmocka_unit_test(puts_of_all_sizes_land_with_their_checksums),
        cmocka_unit_test(a_put_may_name_its_object),
        cmocka_unit_test(a_put_with_a_wrong_checksum_is_aborted_and_refused),
        cmocka_unit_test(the_words_of_a_refusing_put_handler_reach_the_client),
        cmocka_unit_test(two_clients_at_once_both_get_their_bytes),
        cmocka_unit_test(a_server_on_all_addresses_is_reached_by_the_loopback_one),
        cmocka_unit_test(connecting_to_a_closed_port_is_a_sentence_within_the_deadline),
        cmocka_unit_test(a_listener_that_is_no_data_server_is_reported_within_the_deadline),
        cmocka_unit_test(a_port_in_use_and_a_foreign_address_are_refused_with_words),
        cmocka_unit_test(a_client_of_a_stopped_server_fails_soon_and_stays_dead),
        cmocka_unit_test(a_restarted_server_gets_its_port_again_and_a_new_identity),
        cmocka_unit_test(an_idle_server_sleeps),
    };
    const struct CMUnitTest own[] = {
        cmocka_unit_test(requests_over_tcp_are_called_tcp_and_emulated_gets_emulated),
        cmocka_unit_test(a_server_without_keys_refuses_the_get_mode_with_a_sentence),
        cmocka_unit_test(ipv6_is_refused_with_the_reason_and_localhost_means_ipv4),
        cmocka_unit_test(the_options_of_the_transport_take_effect_without_a_word),
    };
    int failed = cmocka_run_group_tests_name("over tcp", contract, over_tcp, NULL);
    failed += cmocka_run_group_tests_name("over ucx", contract, over_ucx, NULL);
    failed += cmocka_run_group_tests_name("of ucx", own, over_ucx, NULL);
    return failed;
}
