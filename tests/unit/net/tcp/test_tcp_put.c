/* Puts over TCP from a sender that breaks the rules, written with plain sockets. */
#include "support/test.h"

#include "support/fault.h"
#include "unit/net/put_rig.h"
#include "unit/net/tcp/tcp_rig.h"

static void wait_for_state(struct store *s, int state, size_t count)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (count_of(s, state) < count)
        assert_true(hl_now_ns() < limit);
    assert_int_equal(count_of(s, state), count);
}

/* Sends PUT; returns after READY. */
static int begin_put(const struct hl_net_server *server, uint64_t len, uint32_t crc)
{
    struct hl_tcp_msg msg;
    int fd = greeted_connect(hl_net_server_address(server));
    assert_true(say(
        fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_PUT, .op = 5, .len = len, .crc = crc}, NULL));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, NULL, 0));
    assert_int_equal(msg.type, HL_TCP_TYPE_READY);
    assert_int_equal(msg.op, 5);
    return fd;
}

TEST(a_put_that_breaks_off_is_aborted)
{
    struct store s;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    static const size_t sent[] = {0, 1, MIB, 4 * MIB - 1};
    for (size_t i = 0; i < HL_ARRAY_LEN(sent); i++) {
        int fd = begin_put(server, 4 * MIB, hl_crc32(0, pool, 4 * MIB));
        assert_true(plain_send(fd, pool, sent[i]));
        close(fd);
        wait_for_state(&s, 3, i + 1);
    }
    wait_for_peers(server, 0);
    assert_int_equal(stats_of(server).puts_aborted, 4);
    assert_int_equal(stats_of(server).puts, 0);
    hl_net_server_stop(server);
    store_fini(&s);
    fault_shown("tcp-put", "wrong-size", "refused-aborted");
}

/* Whatever follows the bytes is the next message: excess bytes are not a valid one. */
struct stopping {
    struct store *store;
    atomic_bool stop;
};

static void *stop_at_door(void *arg)
{
    struct stopping *x = arg;
    while (!at_door(x->store))
        poll(NULL, 0, 1);
    atomic_store(&x->stop, true);
    return NULL;
}

TEST(a_put_that_is_stopped_ends_at_once_and_only_that_one)
{
    struct store s;
    struct stopping x = {.store = &s};
    struct hl_id id;
    pthread_t thread;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    hl_net_stop_with(client, &x.stop);
    assert_int_equal(hl_net_put(client, pool, MIB, hl_crc32(0, pool, MIB), 60000, &id), HL_OK);
    shut(&s, true); /* the server does not answer */
    assert_int_equal(pthread_create(&thread, NULL, stop_at_door, &x), 0);
    assert_int_equal(hl_net_put(client, pool, 2 * MIB, hl_crc32(0, pool, 2 * MIB), 60000, &id),
                     HL_ECANCELED);
    pthread_join(thread, NULL);
    hl_net_close(client);
    shut(&s, false);
    client = join(server, HL_NET_AUTO); /* one that is not stopped */
    assert_int_equal(hl_net_put(client, pool, MIB, hl_crc32(0, pool, MIB), 60000, &id), HL_OK);
    hl_net_close(client);
    hl_net_server_stop(server);
    assert_int_equal(count_of(&s, 2), 2);
    store_fini(&s);
}

TEST(bytes_beyond_a_put_end_the_connection_and_not_the_object)
{
    struct store s;
    struct hl_tcp_msg msg;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    int fd = begin_put(server, MIB, hl_crc32(0, pool, MIB));
    assert_true(plain_send(fd, pool, MIB + 64));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, NULL, 0));
    assert_int_equal(msg.type, HL_TCP_TYPE_STORED);
    assert_true(is_closed(fd));
    close(fd);
    wait_for_refusals(server, 1);
    assert_int_equal(count_of(&s, 2), 1);
    assert_memory_equal(s.objects[0].bytes, pool, MIB);
    hl_net_server_stop(server);
    store_fini(&s);
    fault_shown("tcp-put", "duplicate", "refused-aborted");
}

TEST(two_chunks_that_changed_places_are_refused_and_aborted)
{
    struct store s;
    struct hl_tcp_msg msg;
    uint8_t words[HL_TCP_TEXT_MAX];
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    int fd = begin_put(server, 2 * MIB, hl_crc32(0, pool, 2 * MIB));
    assert_true(plain_send(fd, pool + MIB, MIB));
    assert_true(plain_send(fd, pool, MIB));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, words, sizeof(words)));
    assert_int_equal(msg.type, HL_TCP_TYPE_REFUSED);
    assert_int_equal(msg.status, HL_ECORRUPT);
    close(fd);
    wait_for_state(&s, 3, 1);
    hl_net_server_stop(server);
    store_fini(&s);
    fault_shown("tcp-put", "reorder", "refused-aborted");
}

TEST(a_request_before_the_bytes_of_a_put_is_taken_for_bytes)
{
    struct store s;
    struct hl_tcp_msg msg;
    uint8_t words[HL_TCP_TEXT_MAX];
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    int fd = begin_put(server, MIB, hl_crc32(0, pool, MIB));
    assert_true(
        say(fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_PUT, .op = 6, .len = 3 * MIB}, NULL));
    assert_true(plain_send(fd, pool, MIB - HL_TCP_HEAD));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, words, sizeof(words)));
    assert_int_equal(msg.status, HL_ECORRUPT);
    close(fd);
    wait_for_state(&s, 3, 1);
    assert_int_equal(begun(&s), 1);
    hl_net_server_stop(server);
    store_fini(&s);
    fault_shown("tcp-put", "foreign", "refused-aborted");
}

TEST(bytes_before_ready_end_the_connection)
{
    struct store s;
    uint8_t both[HL_TCP_HEAD + 100] = {0};
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    int fd = greeted_connect(hl_net_server_address(server));
    hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_PUT, .op = 5, .len = MIB}, both);
    assert_true(plain_send(fd, both, sizeof(both)));
    assert_true(is_closed(fd));
    close(fd);
    wait_for_refusals(server, 1);
    assert_int_equal(begun(&s), 0);
    hl_net_server_stop(server);
    store_fini(&s);
}

TEST(batches_that_are_garbled_store_nothing)
{
    struct store s;
    uint8_t list[256] = {0}, results[HL_WIRE_LIST_MAX];
    struct hl_tcp_msg msg;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 0);
    /* 24 bytes of head and 64 of data each */
    struct hl_wire_item item = {.len = 64, .crc = hl_crc32(0, pool, 64)};
    size_t len = hl_wire_add_item(list, &item, pool);
    len += hl_wire_add_item(list + len, &item, pool);
    assert_int_equal(len, 176);
    for (int way = 0; way < 3; way++) {
        uint8_t bad[256];
        memcpy(bad, list, sizeof(bad));
        if (way == 1)
            memset(bad + 88 + 16, 0, 4); /* the second is empty */
        if (way == 2)
            memset(bad + 88 + 16, 0xff, 4); /* the second is endless */
        uint32_t cut = way == 0 ? 8 : 0;
        int fd = greeted_connect(hl_net_server_address(server));
        assert_true(say(fd,
                        &(struct hl_tcp_msg){
                            .type = HL_TCP_TYPE_BATCH, .op = 1, .payload = (uint32_t)len - cut},
                        bad));
        assert_true(is_closed(fd));
        close(fd);
    }
    assert_int_equal(begun(&s), 0);
    assert_int_equal(stats_of(server).refused, 3);
    int fd = greeted_connect(hl_net_server_address(server));
    assert_true(
        say(fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = (uint32_t)len},
            list));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, results, sizeof(results)));
    assert_int_equal(msg.type, HL_TCP_TYPE_RESULTS);
    assert_int_equal(count_of(&s, 2), 2);
    close(fd);
    hl_net_server_stop(server);
    store_fini(&s);
    fault_shown("tcp-put", "foreign", "refused-served-on");
}

TEST(a_silent_put_is_given_up_after_the_limit_and_its_place_goes_to_the_next)
{
    struct store s;
    struct hl_id id = {0, 0};
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 1, 200); /* one place */
    int fd = begin_put(server, 8 * MIB, 0);
    assert_true(plain_send(fd, pool, 3 * MIB));
    struct hl_net_client *client = join(server, HL_NET_AUTO);
    if (hl_net_put(client, pool, 3 * MIB, hl_crc32(0, pool, 3 * MIB), 10000, &id) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_true(is_closed(fd));
    close(fd);
    assert_int_equal(count_of(&s, 3), 1);
    assert_int_equal(count_of(&s, 2), 1);
    assert_int_equal(stats_of(server).puts_expired, 1);
    hl_net_close(client);
    hl_net_server_stop(server);
    store_fini(&s);
}

TEST(a_message_that_stops_in_its_middle_is_given_up)
{
    struct store s;
    store_init(&s);
    struct hl_net_server *server = serve_store(&s, 0, 200);
    uint8_t head[HL_TCP_HEAD];
    hl_tcp_encode(&(struct hl_tcp_msg){.type = HL_TCP_TYPE_BATCH, .op = 1, .payload = 4096}, head);
    static const size_t sent[] = {1, HL_TCP_HEAD - 1, HL_TCP_HEAD};
    for (size_t i = 0; i < HL_ARRAY_LEN(sent); i++) {
        int fd = greeted_connect(hl_net_server_address(server));
        assert_true(plain_send(fd, head, sent[i]));
        assert_true(is_closed(fd));
        close(fd);
    }
    int idle = greeted_connect(
        hl_net_server_address(server)); /* but a client that asks nothing may stay */
    struct pollfd p = {.fd = idle, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 500), 0);
    close(idle);
    hl_net_server_stop(server);
    store_fini(&s);
}

TESTS_IN(over_tcp, NULL)
