/* Sends bytes to each interface's own address. They pass the kernel's loopback, according to the
 * routing table, MTU and firewall of this host. Whether the wire works only another host could
 * test. */
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/health/health_private.h"
#include "hw/load/nic_load.h"
#include "os/file.h"

#define PIECE     ((size_t)16 << 10) /* fits into a socket's buffers */
#define PIECES    16
#define WAIT_MS   500
#define PORTS_MAX 16

static hl_status fail_socket(const char *what)
{
    return hl_fail(HL_EIO, "%s: %s", what, strerror(errno));
}

static void limit_waits(int fd)
{
    const struct timeval t = {.tv_usec = WAIT_MS * 1000};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
}

/* Opens both ends of a connection of the address with itself. */
static hl_status connect_self(const struct sockaddr *to, socklen_t len, int *near_end, int *far_end)
{
    struct sockaddr_storage bound;
    socklen_t size = sizeof(bound);
    HL_AUTO(hl_closep) int listener = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    HL_AUTO(hl_closep) int a = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || a < 0)
        return fail_socket("socket");
    limit_waits(listener);
    limit_waits(a);
    if (bind(listener, to, len) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&bound, &size) != 0)
        return fail_socket("listen");
    if (connect(a, (struct sockaddr *)&bound, size) != 0)
        return fail_socket("connect");
    int b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (b < 0)
        return fail_socket("accept");
    limit_waits(b);
    *near_end = a;
    *far_end = b;
    a = -1;
    return HL_OK;
}

static hl_status send_pieces(int from, int to)
{
    unsigned char out[PIECE], in[PIECE];
    for (size_t i = 0; i < sizeof(out); i++)
        out[i] = (unsigned char)(i * 7 + (i >> 8));
    for (int piece = 0; piece < PIECES; piece++) {
        out[0] = (unsigned char)piece;
        if (send(from, out, sizeof(out), MSG_NOSIGNAL) != (ssize_t)sizeof(out))
            return fail_socket("send");
        for (size_t got = 0; got < sizeof(in);) {
            ssize_t n = recv(to, in + got, sizeof(in) - got, 0);
            if (n <= 0)
                return n == 0 ? hl_fail(HL_EIO, "the connection was closed") : fail_socket("recv");
            got += (size_t)n;
        }
        if (memcmp(in, out, sizeof(in)) != 0)
            return hl_fail(HL_ECORRUPT, "the bytes that came back differ from those sent");
    }
    return HL_OK;
}

static hl_status test_address(const struct sockaddr *address)
{
    socklen_t len =
        address->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    HL_AUTO(hl_closep) int a = -1;
    HL_AUTO(hl_closep) int b = -1;
    HL_TRY(connect_self(address, len, &a, &b));
    return send_pieces(a, b);
}

static bool is_tested(const struct ifaddrs *i)
{
    return i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
           (i->ifa_flags & IFF_UP) != 0 && (i->ifa_flags & IFF_LOOPBACK) == 0;
}

/* Lists the InfiniBand ports that sysfs shows. */
static void name_infiniband(struct hl_health_run *r, char *value, size_t cap)
{
    struct hl_nic_probe probe = {0};
    struct hl_api_nic_load_list nics;
    uint32_t left = 0;
    if (hl_nics_read(&probe, r->opts->sys, hl_now_ns(), r->arena, &nics, &left) != HL_OK)
        return;
    for (size_t i = 0; i < nics.count; i++) {
        size_t used = strlen(value);
        if (strcmp(nics.items[i].kind, "infiniband") == 0)
            snprintf(value + used, cap - used, "%s%s %s", used > 0 ? ", " : "", nics.items[i].name,
                     nics.items[i].up ? "active" : "not active");
    }
}

void hl_health_network(struct hl_health_run *r)
{
    struct ifaddrs *list = NULL;
    char value[400] = "", text[300] = "";
    size_t tested = 0;
    if (getifaddrs(&list) != 0) {
        snprintf(text, sizeof(text), "the interfaces can't be listed: %s", strerror(errno));
        hl_health_row(r, "network", HL_API_HEALTH_STATE_FAILED, "", text);
        return;
    }
    for (const struct ifaddrs *i = list; i != NULL && tested < PORTS_MAX; i = i->ifa_next) {
        char host[NI_MAXHOST] = "";
        size_t used = strlen(value);
        if (!is_tested(i) || hl_now_ns() >= r->deadline_ns)
            continue;
        tested++;
        (void)getnameinfo(i->ifa_addr, sizeof(struct sockaddr_in), host, sizeof(host), NULL, 0,
                          NI_NUMERICHOST);
        snprintf(value + used, sizeof(value) - used, "%s%s %.40s", used > 0 ? ", " : "",
                 i->ifa_name, host);
        if (test_address(i->ifa_addr) != HL_OK && text[0] == '\0')
            snprintf(text, sizeof(text), "%s %.40s does not reach itself: %.160s", i->ifa_name,
                     host, hl_error_text());
    }
    freeifaddrs(list);
    if (tested > 0)
        snprintf(value + strlen(value), sizeof(value) - strlen(value),
                 " over the kernel's loopback");
    name_infiniband(r, value, sizeof(value));
    if (tested == 0)
        hl_health_row(r, "network", HL_API_HEALTH_STATE_SKIPPED, value,
                      "no interface but lo has an address");
    else
        hl_health_row(r, "network",
                      text[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED,
                      value, text);
}
