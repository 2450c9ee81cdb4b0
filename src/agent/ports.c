/* A TCP port at which the ranks of a job meet. A rank binds it only seconds later, so until then no
 * other job is given the same port. We can't keep it open meanwhile: ranks that don't set
 * SO_REUSEADDR could not bind it. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/ports.h"
#include "base/clock.h"
#include "os/file.h"

#define GIVEN_NS (600 * HL_NS_PER_S) /* enough for a rank that loads its libraries first */

/* Checks all addresses of both families, because torch's store listens on them; without IPv6 only
 * those of IPv4. */
static bool is_free(int port)
{
    int one = 1, off = 0;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    const struct sockaddr *addr = (const struct sockaddr *)&six;
    socklen_t len = sizeof(six);
    HL_AUTO(hl_closep) int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        addr = (const struct sockaddr *)&four;
        len = sizeof(four);
    } else {
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    return fd >= 0 && bind(fd, addr, len) == 0 && listen(fd, 1) == 0;
}

static bool was_given(const struct ports *p, int port, uint64_t now)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(p->given); i++)
        if (p->given[i].port == port && now < p->given[i].until_ns)
            return true;
    return false;
}

hl_status ports_find(struct ports *p, struct hl_api_uint16_list wanted, uint16_t *out)
{
    uint16_t found = 0;
    uint64_t now = hl_now_ns();
    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; found == 0 && i < wanted.count; i++) {
        uint16_t port = wanted.items[i];
        if (port != 0 && !was_given(p, port, now) && is_free(port))
            found = port;
    }
    if (found != 0) {
        p->given[p->next].port = found;
        p->given[p->next].until_ns = now + GIVEN_NS;
        p->next = (p->next + 1) % HL_ARRAY_LEN(p->given);
    }
    pthread_mutex_unlock(&p->lock);
    if (found == 0)
        return hl_fail(HL_EBUSY, "none of the %zu requested ports is free on this node",
                       wanted.count);
    *out = found;
    return HL_OK;
}
