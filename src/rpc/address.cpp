/* Addresses and listening sockets. Sockets are opened here and handed to KJ, because KJ's own
 * listen() reports errors only as prose and does not remove Unix sockets of dead daemons. */
#include "rpc/runtime.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" {
#include "base/host_port.h"
#include "base/log.h"
#include "os/socket.h"
}

namespace hl::rpc
{
namespace
{
constexpr int backlog = 512;

class Fd
{
  public:
    explicit Fd(int number) : fd(number)
    {
    }

    ~Fd()
    {
        if (fd >= 0)
            close(fd);
    }

    Fd(const Fd &) = delete;

    int get() const
    {
        return fd;
    }

    int take()
    {
        int number = fd;
        fd = -1;
        return number;
    }

  private:
    int fd;
};

hl_status unix_name(const std::string &address, struct sockaddr_un *out)
{
    std::string path = address.substr(5);
    *out = {};
    out->sun_family = AF_UNIX;
    if (path.size() >= sizeof(out->sun_path))
        return hl_fail(HL_EINVAL, "address %s: a socket's path has at most %zu bytes",
                       address.c_str(), sizeof(out->sun_path) - 1);
    memcpy(out->sun_path, path.c_str(), path.size() + 1);
    return HL_OK;
}

hl_status listen_failed(const char *address, int number)
{
    switch (number) {
    case EADDRINUSE:
        return hl_fail(HL_EBUSY,
                       "listen on %s: the address is in use; is a daemon running there already?",
                       address);
    case EACCES:
    case EPERM:
        return hl_fail(HL_EPERM, "listen on %s: permission denied", address);
    case EADDRNOTAVAIL:
        return hl_fail(HL_EINVAL, "listen on %s: not an address of this machine", address);
    default:
        return hl_fail(HL_EIO, "listen on %s: %s", address, strerror(number));
    }
}

/* Removes the socket file of a daemon that has died. */
hl_status clear_stale(const char *address, const struct sockaddr_un *name)
{
    struct stat st;
    if (lstat(name->sun_path, &st) != 0)
        return HL_OK;
    if (!S_ISSOCK(st.st_mode))
        return hl_fail(HL_EEXIST, "listen on %s: a file that is not a socket is in the way",
                       address);
    Fd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (probe.get() < 0)
        return listen_failed(address, errno);
    if (connect(probe.get(), (const struct sockaddr *)name, sizeof(*name)) == 0 || errno == EAGAIN)
        return listen_failed(address, EADDRINUSE);
    if (errno == ECONNREFUSED && unlink(name->sun_path) != 0 && errno != ENOENT)
        return listen_failed(address, errno);
    return HL_OK;
}

hl_status listen_unix(const char *address, int *out)
{
    struct sockaddr_un name;
    HL_TRY(unix_name(address, &name));
    HL_TRY(clear_stale(address, &name));
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0 || bind(fd.get(), (struct sockaddr *)&name, sizeof(name)) != 0 ||
        listen(fd.get(), backlog) != 0)
        return listen_failed(address, errno);
    *out = fd.take();
    return HL_OK;
}

int listen_tcp(const struct addrinfo *ai)
{
    static const int one = 1;
    Fd fd(socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, ai->ai_protocol));
    if (fd.get() < 0)
        return -1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* inherited by accept */
    if (bind(fd.get(), ai->ai_addr, ai->ai_addrlen) != 0 || listen(fd.get(), backlog) != 0) {
        int number = errno;
        close(fd.take());
        errno = number;
        return -1;
    }
    return fd.take();
}

hl_status resolve(const char *address, struct addrinfo **out)
{
    struct hl_host_port x;
    HL_TRY(hl_host_port_split(address, &x));
    const char *host = strcmp(x.host, "*") == 0 ? "0.0.0.0" : x.host;
    struct addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    int rc = getaddrinfo(host, std::to_string(x.port).c_str(), &hints, out);
    if (rc != 0)
        return hl_fail(HL_EINVAL, "listen on %s: %s", address, gai_strerror(rc));
    return HL_OK;
}

unsigned port_of(int fd)
{
    struct sockaddr_storage name = {};
    socklen_t len = sizeof(name);
    if (getsockname(fd, (struct sockaddr *)&name, &len) != 0)
        return 0;
    if (name.ss_family == AF_INET6)
        return ntohs(((struct sockaddr_in6 *)&name)->sin6_port);
    return ntohs(((struct sockaddr_in *)&name)->sin_port);
}
} // namespace

bool is_unix(const std::string &address)
{
    return address.compare(0, 5, "unix:") == 0;
}

bool is_loopback(const std::string &address)
{
    return address.compare(0, 4, "127.") == 0 || address.compare(0, 6, "[::1]:") == 0 ||
           address.compare(0, 10, "localhost:") == 0;
}

hl_status check_address(const char *address, bool may_be_any_port)
{
    struct hl_host_port x;
    if (is_unix(address)) {
        struct sockaddr_un name;
        HL_TRY(unix_name(address, &name));
        if (name.sun_path[0] == '/')
            return HL_OK;
        return hl_fail(HL_EINVAL, "address \"%s\": the path must be absolute", address);
    }
    HL_TRY(hl_host_port_split(address, &x));
    if (!may_be_any_port && x.port == 0)
        return hl_fail(HL_EINVAL, "address \"%s\": port 0 can't be connected to", address);
    return HL_OK;
}

hl_status listen_on(const char *address, int *out, std::string *real)
{
    HL_TRY(check_address(address, true));
    if (is_unix(address)) {
        HL_TRY(listen_unix(address, out));
        *real = address;
        return HL_OK;
    }
    struct addrinfo *list = nullptr;
    HL_TRY(resolve(address, &list));
    int fd = -1;
    for (struct addrinfo *ai = list; ai != nullptr && fd < 0; ai = ai->ai_next)
        fd = listen_tcp(ai);
    int number = errno;
    freeaddrinfo(list);
    if (fd < 0)
        return listen_failed(address, number);
    std::string text = address;
    *real = text.substr(0, text.rfind(':') + 1) + std::to_string(port_of(fd));
    *out = fd;
    return HL_OK;
}

uint64_t socket_inode(const std::string &address)
{
    struct stat st;
    return is_unix(address) && lstat(address.c_str() + 5, &st) == 0 ? st.st_ino : 0;
}

void unlink_socket(const std::string &address, uint64_t inode)
{
    if (inode != 0 && socket_inode(address) == inode)
        unlink(address.c_str() + 5);
}

hl_status check_user(kj::AsyncIoStream &stream, const std::string &address)
{
    if (!is_unix(address))
        return HL_OK;
    KJ_IF_MAYBE (fd, stream.getFd())
        return hl_socket_check_peer(*fd);
    return hl_fail(HL_EPERM, "the peer's user can't be identified");
}

void set_keepalive(kj::AsyncIoStream &stream, const std::string &address)
{
    static const int on = 1, idle_s = 15, interval_s = 5, probes = 3;
    static const unsigned unacked_ms = 30000;
    if (is_unix(address))
        return;
    /* This throws if the connection is already lost; the next user of the stream will see that
     * too. */
    kj::runCatchingExceptions([&stream] {
        stream.setsockopt(SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
        stream.setsockopt(IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
        stream.setsockopt(IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
        stream.setsockopt(IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
        stream.setsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof(unacked_ms));
    });
}
} // namespace hl::rpc
