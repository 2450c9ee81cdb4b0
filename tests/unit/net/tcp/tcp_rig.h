/* A client and a server of the TCP protocol that a test writes itself: plain sockets. */
#ifndef HL_TEST_TCP_RIG_H
#define HL_TEST_TCP_RIG_H

#include <poll.h>

#include "net/addr.h"
#include "net/put_list.h"
#include "net/tcp/wire.h"
#include "unit/net/net_rig.h"

/* A connection that has sent nothing; -1 if there is none. */
static int plain_connect(const char *address)
{
    struct hl_addr addr;
    assert_int_equal(hl_addr_resolve(address, 1000, &addr), HL_OK);
    int fd = socket(addr.sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&addr.sa, addr.len) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* False if the other side has closed. */
static bool plain_send(int fd, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, (const uint8_t *)bytes + done, len - done, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

/* False if the other side has closed, or if nothing comes, which is printed. It asserts nothing,
 * because threads of a test call it, too: a failed assertion must be in the test's own thread. */
static bool plain_receive(int fd, void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, (int)(TEST_PATIENCE_NS / HL_NS_PER_MS)) != 1) {
            print_error("nothing came on socket %d for %d s\n", fd,
                        (int)(TEST_PATIENCE_NS / HL_NS_PER_S));
            return false;
        }
        ssize_t n = recv(fd, (uint8_t *)bytes + done, len - done, 0);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

__attribute__((unused)) static bool say(int fd, const struct hl_tcp_msg *msg, const void *payload)
{
    uint8_t head[HL_TCP_HEAD];
    hl_tcp_encode(msg, head);
    return plain_send(fd, head, sizeof(head)) && plain_send(fd, payload, msg->payload);
}

/* The next message other than WAIT; false if the other side has closed, or if what comes is not a
 * message or too long, which is printed. */
__attribute__((unused)) static bool listen_to(int fd, enum hl_tcp_direction direction,
                                              struct hl_tcp_msg *msg, uint8_t *payload, size_t cap)
{
    uint8_t head[HL_TCP_HEAD];
    do {
        if (!plain_receive(fd, head, sizeof(head)))
            return false;
        if (!hl_tcp_decode(direction, head, msg) || msg->payload > cap) {
            print_error("what came on socket %d is no message of at most %zu bytes\n", fd, cap);
            return false;
        }
    } while (msg->type == HL_TCP_TYPE_WAIT);
    return plain_receive(fd, payload, msg->payload);
}

/* A connection that has been admitted. */
__attribute__((unused)) static int greeted_connect(const char *address)
{
    static const uint8_t key[HL_NET_KEY];
    struct hl_tcp_msg msg;
    int fd = plain_connect(address);
    assert_true(fd >= 0);
    assert_true(
        say(fd, &(struct hl_tcp_msg){.type = HL_TCP_TYPE_HELLO, .payload = sizeof(key)}, key));
    assert_true(listen_to(fd, HL_TCP_TO_CLIENT, &msg, NULL, 0));
    assert_int_equal(msg.type, HL_TCP_TYPE_WELCOME);
    return fd;
}

__attribute__((unused)) static void wait_for_peers(const struct hl_net_server *s, uint64_t count)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (stats_of(s).peers_now != count)
        assert_true(hl_now_ns() < limit);
}

__attribute__((unused)) static void wait_for_refusals(const struct hl_net_server *s, uint64_t count)
{
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (stats_of(s).refused < count)
        assert_true(hl_now_ns() < limit);
}

/* Whether the other side has closed, or does so soon. */
__attribute__((unused)) static bool is_closed(int fd)
{
    uint8_t bytes[4096];
    uint64_t limit = hl_now_ns() + TEST_PATIENCE_NS;
    while (hl_now_ns() < limit) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 100) > 0 && recv(fd, bytes, sizeof(bytes), 0) <= 0)
            return true;
    }
    return false;
}

#endif
