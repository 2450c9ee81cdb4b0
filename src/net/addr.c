/* net/addr.c - resolves names on a thread of its own, because getaddrinfo may block for as long as
 * the name service takes. A caller that reaches its deadline leaves; the last of the two frees the
 * request. (getaddrinfo_a would do the same, but on threads that the sanitizers don't know and
 * crash on.)
 *
 *     pending --the thread: result, done--> done        the caller frees the request
 *        '--the caller, at its deadline---> abandoned   the thread frees it when it returns
 *
 * Both steps are taken under the lock, so exactly one side sees the other's step. `result` is the
 * thread's until done; host and port are constant while it runs. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host_port.h"
#include "net/addr.h"
#include "os/cond.h"
#include "os/poll.h"

struct lookup {
    pthread_mutex_t lock;
    pthread_cond_t answered;
    bool done;
    bool abandoned;
    int error; /* from getaddrinfo */
    struct addrinfo *result;
    char host[256];
    char port[8];
};

static void lookup_free(struct lookup *look)
{
    if (look->result != NULL)
        freeaddrinfo(look->result);
    pthread_cond_destroy(&look->answered);
    pthread_mutex_destroy(&look->lock);
    free(look);
}

static struct lookup *lookup_create(void)
{
    struct lookup *look = calloc(1, sizeof(*look));
    if (look == NULL)
        return NULL;
    hl_cond_init(&look->answered);
    pthread_mutex_init(&look->lock, NULL);
    return look;
}

static hl_status split_address(const char *text, struct lookup *look)
{
    struct hl_host_port x;
    HL_TRY(hl_host_port_split(text, &x));
    snprintf(look->host, sizeof(look->host), "%s", x.host);
    snprintf(look->port, sizeof(look->port), "%u", x.port);
    return HL_OK;
}

static int resolve_name(struct lookup *look, int flags, int family)
{
    struct addrinfo hints = {
        .ai_flags = flags | AI_NUMERICSERV, .ai_family = family, .ai_socktype = SOCK_STREAM};
    return getaddrinfo(look->host, look->port, &hints, &look->result);
}

/* IPv4 only: "localhost" often resolves to ::1 first, and not every back end supports IPv6. */
static void *ask_name_service(void *arg)
{
    struct lookup *look = arg;
    int error = resolve_name(look, 0, AF_INET);
    pthread_mutex_lock(&look->lock);
    look->error = error;
    look->done = true;
    bool abandoned = look->abandoned;
    pthread_cond_signal(&look->answered);
    pthread_mutex_unlock(&look->lock);
    if (abandoned)
        lookup_free(look);
    return NULL;
}

/* Takes ownership of the request: it is freed here or by its thread, unless HL_OK is returned. */
static hl_status wait_for_name(struct lookup *look, int timeout_ms)
{
    pthread_t thread;
    uint64_t until = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    struct timespec limit = {(time_t)(until / HL_NS_PER_S), (long)(until % HL_NS_PER_S)};
    if (pthread_create(&thread, NULL, ask_name_service, look) != 0) {
        lookup_free(look);
        return hl_fail(HL_ENOMEM, "looking up a host name: starting a thread: %m");
    }
    pthread_detach(thread);
    pthread_mutex_lock(&look->lock);
    int err = 0;
    while (!look->done && err != ETIMEDOUT)
        err = pthread_cond_timedwait(&look->answered, &look->lock, &limit);
    hl_status st = HL_OK;
    look->abandoned = !look->done;
    if (look->abandoned)
        st = hl_fail(HL_ETIMEDOUT, "looking up \"%s\": no answer within %d ms", look->host,
                     timeout_ms);
    else if (look->error != 0)
        st = hl_fail(HL_EUNAVAIL, "looking up \"%s\": %s", look->host, gai_strerror(look->error));
    bool abandoned = look->abandoned;
    pthread_mutex_unlock(&look->lock);
    if (st != HL_OK && !abandoned)
        lookup_free(look);
    return st;
}

hl_status hl_addr_resolve(const char *text, int timeout_ms, struct hl_addr *out)
{
    struct lookup *look = lookup_create();
    if (look == NULL)
        return hl_fail(HL_ENOMEM, "out of memory resolving %s", text);
    hl_status st = split_address(text, look);
    if (st != HL_OK) {
        lookup_free(look);
        return st;
    }
    if (resolve_name(look, AI_NUMERICHOST, AF_UNSPEC) != 0)
        HL_TRY(wait_for_name(look, timeout_ms > 0 ? timeout_ms : 0));
    memset(out, 0, sizeof(*out));
    memcpy(&out->sa, look->result->ai_addr, look->result->ai_addrlen);
    out->len = look->result->ai_addrlen;
    snprintf(out->host, sizeof(out->host), "%s", look->host);
    lookup_free(look);
    return HL_OK;
}

unsigned hl_addr_port(const struct hl_addr *a)
{
    if (a->sa.ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)&a->sa)->sin6_port);
    return ntohs(((const struct sockaddr_in *)&a->sa)->sin_port);
}

void hl_addr_format(const struct hl_addr *a, unsigned port, char *out)
{
    hl_host_port_format(a->host, port, out);
}

static bool same_host(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    if (a->sa_family != AF_INET6)
        return false;
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
    /* Connecting a datagram socket sends nothing: the kernel only looks up the route. */
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
            uint64_t end = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
            err = ETIMEDOUT;
            if (hl_poll_until(fd, POLLOUT, end) > 0 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len))
                err = errno;
        }
    }
    close(fd);
    return err;
}

hl_status hl_addr_listen_failed(const char *listen, int error)
{
    if (error == EADDRINUSE)
        return hl_fail(HL_EBUSY, "listen on %s: the port is in use; choose another one", listen);
    if (error == EADDRNOTAVAIL)
        return hl_fail(HL_EINVAL, "listen on %s: this address belongs to no device of this host",
                       listen);
    return hl_fail(HL_EIO, "listen on %s: %s", listen, strerror(error));
}
