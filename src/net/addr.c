/* net/addr.c - resolving with getaddrinfo_a, because getaddrinfo may block for as long as the
 * name service likes. A request that could not be cancelled keeps its memory: freeing it would pull
 * it from under the resolver's thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/addr.h"

struct lookup {
    struct gaicb req;
    struct addrinfo hints;
    char host[256];
    char port[8];
};

/* Cut "host:port" or "[v6]:port". */
static hl_status split(const char *text, char *host, size_t host_cap, char *port, size_t port_cap)
{
    const char *colon = strrchr(text, ':');
    const char *begin = text;
    const char *end = colon;
    if (colon == NULL || colon[1] == '\0')
        return hl_fail(HL_EINVAL, "address \"%.300s\" has no port; write \"host:port\"", text);
    if (*begin == '[') {
        if (end == begin + 1 || end[-1] != ']')
            return hl_fail(HL_EINVAL, "address \"%.300s\": \"[\" without \"]:\"", text);
        begin++;
        end--;
    } else if (memchr(begin, ':', (size_t)(end - begin)) != NULL) {
        return hl_fail(HL_EINVAL, "address \"%.300s\": write an IPv6 address as \"[::1]:port\"",
                       text);
    }
    size_t len = (size_t)(end - begin);
    if (len == 0 || len >= host_cap)
        return hl_fail(HL_EINVAL, "address \"%.300s\" has no host or a too long one", text);
    char *rest;
    errno = 0;
    unsigned long number = strtoul(colon + 1, &rest, 10);
    if (*rest != '\0' || colon[1] < '0' || colon[1] > '9' || number > 65535)
        return hl_fail(HL_EINVAL, "address \"%.300s\": the port is not a number 0..65535", text);
    memcpy(host, begin, len);
    host[len] = '\0';
    snprintf(port, port_cap, "%lu", number);
    return HL_OK;
}

static hl_status take(const struct lookup *look, struct hl_addr *out)
{
    const struct addrinfo *ai = look->req.ar_result;
    memset(out, 0, sizeof(*out));
    memcpy(&out->sa, ai->ai_addr, ai->ai_addrlen);
    out->len = ai->ai_addrlen;
    snprintf(out->host, sizeof(out->host), "%s", look->host);
    return HL_OK;
}

static hl_status ask_name_service(struct lookup *look, int timeout_ms)
{
    struct gaicb *list[1] = {&look->req};
    struct timespec limit = {timeout_ms / 1000, (timeout_ms % 1000) * 1000000l};
    if (getaddrinfo_a(GAI_NOWAIT, list, 1, NULL) != 0)
        return hl_fail(HL_EUNAVAIL, "looking up \"%s\": the resolver could not be started",
                       look->host);
    gai_suspend((const struct gaicb *const *)list, 1, &limit);
    int err = gai_error(&look->req);
    if (err == EAI_INPROGRESS)
        return hl_fail(HL_ETIMEDOUT, "looking up \"%s\": no answer within %d ms", look->host,
                       timeout_ms);
    if (err != 0)
        return hl_fail(HL_EUNAVAIL, "looking up \"%s\": %s", look->host, gai_strerror(err));
    return HL_OK;
}

hl_status hl_addr_resolve(const char *text, int timeout_ms, struct hl_addr *out)
{
    struct lookup *look = calloc(1, sizeof(*look));
    if (look == NULL)
        return hl_fail(HL_ENOMEM, "resolving %s", text);
    hl_status st = split(text, look->host, sizeof(look->host), look->port, sizeof(look->port));
    if (st != HL_OK) {
        free(look);
        return st;
    }
    look->hints.ai_socktype = SOCK_STREAM;
    look->hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    look->req.ar_name = look->host;
    look->req.ar_service = look->port;
    look->req.ar_request = &look->hints;
    if (getaddrinfo(look->host, look->port, &look->hints, &look->req.ar_result) != 0) {
        look->hints.ai_flags = AI_NUMERICSERV;
        look->hints.ai_family = AF_INET; /* "localhost" is often ::1 first */
        look->req.ar_result = NULL;
        st = ask_name_service(look, timeout_ms);
    }
    if (st == HL_OK)
        st = take(look, out);
    if (st == HL_ETIMEDOUT && gai_cancel(&look->req) == EAI_NOTCANCELED)
        return st; /* the resolver's thread still writes there */
    if (look->req.ar_result != NULL)
        freeaddrinfo(look->req.ar_result);
    free(look);
    return st;
}

unsigned hl_addr_port(const struct hl_addr *a)
{
    if (a->sa.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)&a->sa)->sin6_port);
    return ntohs(((const struct sockaddr_in *)&a->sa)->sin_port);
}

void hl_addr_format(const struct hl_addr *a, unsigned port, char *out)
{
    const char *form = strchr(a->host, ':') != NULL ? "[%s]:%u" : "%s:%u";
    snprintf(out, HL_ADDR_TEXT_MAX, form, a->host, port);
}

static int same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return 0;
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    if (a->sa_family != AF_INET6)
        return 0;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
                  &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

void hl_addr_device(const struct sockaddr *sa, char out[IF_NAMESIZE])
{
    struct ifaddrs *list = NULL;
    out[0] = '\0';
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || !same_host(i->ifa_addr, sa))
            continue;
        snprintf(out, IF_NAMESIZE, "%s", i->ifa_name);
        break;
    }
    freeifaddrs(list);
}

void hl_addr_route_device(const struct hl_addr *a, char out[IF_NAMESIZE])
{
    struct sockaddr_storage mine;
    socklen_t len = sizeof(mine);
    out[0] = '\0';
    int fd = socket(a->sa.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    /* Connecting a datagram socket sends nothing: it only asks the routing table. */
    if (connect(fd, (const struct sockaddr *)&a->sa, a->len) == 0 &&
        getsockname(fd, (struct sockaddr *)&mine, &len) == 0)
        hl_addr_device((const struct sockaddr *)&mine, out);
    close(fd);
}

int hl_addr_probe(const struct hl_addr *a, int timeout_ms)
{
    int err = 0;
    socklen_t len = sizeof(err);
    int fd = socket(a->sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return errno;
    if (connect(fd, (const struct sockaddr *)&a->sa, a->len) != 0) {
        err = errno;
        if (err == EINPROGRESS) {
            struct pollfd p = {.fd = fd, .events = POLLOUT};
            err = ETIMEDOUT;
            if (poll(&p, 1, timeout_ms) > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
                err = errno;
        }
    }
    close(fd);
    return err;
}
