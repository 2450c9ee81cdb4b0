/* What the TCP server sends: one deadline for all of a message. */
#include "support/test.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp/server.h"

#define LEN      ((size_t)1 << 20)
#define BITE     ((size_t)8 << 10)
#define BITE_MS  10
#define LIMIT_MS 50 /* for the whole message; the slow reader needs over a second for it */

struct slow_peer {
    int fd;
    int sent; /* an eventfd: the sender has ended */
};

static void *slow_peer_main(void *arg)
{
    const struct slow_peer *p = arg;
    static uint8_t bytes[BITE];
    struct pollfd sent = {.fd = p->sent, .events = POLLIN};
    while (poll(&sent, 1, BITE_MS) == 0)
        if (recv(p->fd, bytes, sizeof(bytes), MSG_DONTWAIT) == 0)
            break;
    return NULL;
}

TEST(a_peer_that_reads_a_little_at_a_time_does_not_hold_a_message_for_ever)
{
    struct hl_net_server server = {.opts.put_timeout_ms = LIMIT_MS};
    struct hl_tcp_conn conn = {.server = &server, .name = "slow"};
    const struct hl_tcp_msg data = {
        .type = HL_TCP_TYPE_DATA, .op = 1, .len = LEN, .payload = (uint32_t)LEN};
    static const uint8_t bytes[LEN];
    int fds[2], room = 32 << 10;
    pthread_t thread;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
    struct slow_peer peer = {.fd = fds[1], .sent = eventfd(0, EFD_CLOEXEC)};
    assert_true(peer.sent >= 0);
    conn.fd = fds[0];
    assert_int_equal(pthread_create(&thread, NULL, slow_peer_main, &peer), 0);
    bool sent = hl_tcp_conn_say(&conn, &data, bytes);
    assert_int_equal(eventfd_write(peer.sent, 1), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_false(sent);
    close(peer.sent);
    close(fds[0]);
    close(fds[1]);
}
