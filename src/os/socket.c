#include "os/socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/poll.h"

#define BACKLOG 128

static hl_status fill_address(const char *path, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(out->sun_path))
        return hl_fail(HL_EINVAL, "socket path '%s' must have 1 to %zu bytes; choose a shorter one",
                       path, sizeof(out->sun_path) - 1);
    memcpy(out->sun_path, path, len + 1);
    return HL_OK;
}

static hl_status fail_errno(const char *what, const char *path, int err)
{
    hl_status st = err == ECONNREFUSED || err == ENOENT ? HL_EUNAVAIL : hl_status_of_errno(err);
    return hl_fail(st, "%s %s: %s", what, path, strerror(err));
}

/* Tries to connect and returns the errno; 0 = connected. */
static int connect_errno(const struct sockaddr_un *addr)
{
    HL_AUTO(hl_closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool connected = fd >= 0 && connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) == 0;
    return connected ? 0 : errno;
}

/* Whether a process accepts connections there. */
static bool somebody_listens(const struct sockaddr_un *addr)
{
    int err = connect_errno(addr);
    return err == 0 || err == EAGAIN || err == EPROTOTYPE;
}

hl_status hl_socket_listen(const char *path, int *out)
{
    struct sockaddr_un addr;
    struct stat sb;
    HL_TRY(fill_address(path, &addr));
    if (lstat(path, &sb) == 0) {
        if (!S_ISSOCK(sb.st_mode))
            return hl_fail(HL_EEXIST,
                           "listen on %s: there is a file that is not a socket; move it "
                           "away or choose another path",
                           path);
        if (somebody_listens(&addr))
            return hl_fail(HL_EBUSY, "listen on %s: another process listens there already", path);
        unlink(path);
    }
    HL_AUTO(hl_closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0 || listen(fd, BACKLOG) != 0)
        return fail_errno("listen on", path, errno);
    *out = fd;
    fd = -1;
    return HL_OK;
}

/* The socket's age counts from its ctime. */
static bool socket_is_dead(const char *path, int min_age_s)
{
    struct sockaddr_un addr;
    struct stat sb;
    if (fill_address(path, &addr) != HL_OK) {
        hl_error_clear();
        return false;
    }
    return lstat(path, &sb) == 0 && S_ISSOCK(sb.st_mode) && sb.st_uid == geteuid() &&
           hl_wall_ms() / 1000 - sb.st_ctime >= min_age_s && connect_errno(&addr) == ECONNREFUSED;
}

size_t hl_socket_sweep(const char *dir, const char *head, const char *tail, int min_age_s)
{
    size_t removed = 0, head_len = strlen(head), tail_len = strlen(tail);
    DIR *list = opendir(dir);
    for (struct dirent *d; list != NULL && (d = readdir(list)) != NULL;) {
        char path[PATH_MAX];
        size_t len = strlen(d->d_name);
        if (len < head_len + tail_len || strncmp(d->d_name, head, head_len) != 0 ||
            strcmp(d->d_name + len - tail_len, tail) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, d->d_name);
        removed += socket_is_dead(path, min_age_s) && unlink(path) == 0;
    }
    if (list != NULL)
        closedir(list);
    return removed;
}

hl_status hl_socket_accept(int listener, int *out)
{
    int fd;
    do
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0 && errno == EAGAIN)
        return HL_EBUSY;
    if (fd < 0)
        return hl_fail(hl_status_of_errno(errno), "accept a client: %m");
    *out = fd;
    return HL_OK;
}

static hl_status identify_peer(int fd, struct ucred *who)
{
    socklen_t len = sizeof(*who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &len) != 0)
        return hl_fail(HL_EPERM, "identify the peer of a socket: %m");
    return HL_OK;
}

hl_status hl_socket_check_peer(int fd)
{
    struct ucred who;
    HL_TRY(identify_peer(fd, &who));
    if (who.uid == geteuid() || who.uid == 0)
        return HL_OK;
    return hl_fail(HL_EPERM, "process %d belongs to user %u, not to root or user %u, who owns this",
                   (int)who.pid, (unsigned)who.uid, (unsigned)geteuid());
}

hl_status hl_socket_check_listener(int fd)
{
    struct ucred who;
    HL_TRY(identify_peer(fd, &who));
    if (who.uid == geteuid() || who.uid == 0 || geteuid() == 0)
        return HL_OK;
    return hl_fail(HL_EPERM,
                   "process %d, which listens there, belongs to user %u, not to root or user %u",
                   (int)who.pid, (unsigned)who.uid, (unsigned)geteuid());
}

int hl_socket_peer_pid(int fd)
{
    struct ucred who;
    socklen_t len = sizeof(who);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 ? (int)who.pid : 0;
}

static uint64_t deadline_of(int timeout_ms)
{
    return timeout_ms <= 0 ? 0 : hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
}

/* Waits for `events`. Returns HL_EBUSY at once if there is no time to wait. */
static hl_status wait_for(int fd, short events, uint64_t deadline_ns)
{
    if (deadline_ns == 0)
        return HL_EBUSY;
    int ready = hl_poll_until(fd, events, deadline_ns);
    if (ready < 0)
        return hl_fail(HL_EIO, "wait on a socket: %m");
    return ready > 0 ? HL_OK : hl_fail(HL_ETIMEDOUT, "the socket's peer did not answer in time");
}

/* Sets how long connect waits for a place in a full backlog, which poll can't wait for; returns
 * false if no time is left. */
static bool set_patience(int fd, uint64_t deadline)
{
    uint64_t now = hl_now_ns(), left = deadline > now ? deadline - now : 0;
    struct timeval t = {(time_t)(left / HL_NS_PER_S), (suseconds_t)(left % HL_NS_PER_S / 1000)};
    return left >= 1000 && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) == 0;
}

hl_status hl_socket_connect(const char *path, int timeout_ms, int *out)
{
    static const struct timeval none;
    struct sockaddr_un addr;
    uint64_t deadline = deadline_of(timeout_ms);
    HL_TRY(fill_address(path, &addr));
    HL_AUTO(hl_closep) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return fail_errno("connect to", path, errno);
    bool blocks = set_patience(fd, deadline); /* otherwise it tries once */
    if (!blocks && fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        return fail_errno("connect to", path, errno);
    while (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) != 0) {
        if (errno == EINTR && (!blocks || set_patience(fd, deadline)))
            continue;
        if (errno == EAGAIN || errno == EINTR)
            return hl_fail(HL_ETIMEDOUT, "connect to %s: its queue of clients is full", path);
        return fail_errno("connect to", path, errno);
    }
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none)) != 0)
        return fail_errno("connect to", path, errno);
    *out = fd;
    fd = -1;
    return HL_OK;
}

union control {
    struct cmsghdr header; /* for alignment */
    char bytes[CMSG_SPACE(sizeof(int) * 4)];
};

hl_status hl_socket_send(int fd, const void *msg, size_t len, int pass, int timeout_ms)
{
    uint64_t deadline = deadline_of(timeout_ms);
    struct iovec iov = {.iov_base = (void *)msg, .iov_len = len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    union control control;
    memset(&control, 0, sizeof(control));
    if (pass >= 0) {
        mh.msg_control = control.bytes;
        mh.msg_controllen = CMSG_SPACE(sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&mh);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass, sizeof(int));
    }
    for (;;) {
        ssize_t n = sendmsg(fd, &mh, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n >= 0 && (size_t)n == len)
            return HL_OK;
        if (n >= 0)
            return hl_fail(HL_EPROTO, "send on a socket: cut to %zd of %zu bytes", n, len);
        if (errno == EINTR)
            continue;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return hl_fail(HL_EUNAVAIL, "send on a socket: the peer has closed the connection");
        if (errno != EAGAIN)
            return hl_fail(hl_status_of_errno(errno), "send on a socket: %m");
        HL_TRY(wait_for(fd, POLLOUT, deadline));
    }
}

/* Returns the first descriptor that was received; closes any others. */
static int take_descriptor(struct msghdr *mh)
{
    int first = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c != NULL; c = CMSG_NXTHDR(mh, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (first < 0)
                first = fd;
            else
                close(fd);
        }
    }
    return first;
}

hl_status hl_socket_recv(int fd, void *msg, size_t len, int *passed, int timeout_ms)
{
    uint64_t deadline = deadline_of(timeout_ms);
    struct iovec iov = {.iov_base = msg, .iov_len = len};
    union control control;
    for (;;) {
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
        ssize_t n = recvmsg(fd, &mh, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n >= 0) {
            HL_AUTO(hl_closep) int got = take_descriptor(&mh);
            if (n == 0)
                return hl_fail(HL_EUNAVAIL, "the socket's peer has closed the connection");
            if ((size_t)n != len || (mh.msg_flags & MSG_TRUNC) != 0)
                return hl_fail(HL_EPROTO, "a message of %zd bytes came where %zu are expected", n,
                               len);
            *passed = got;
            got = -1;
            return HL_OK;
        }
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET)
            return hl_fail(HL_EUNAVAIL, "the socket's peer has closed the connection");
        if (errno != EAGAIN)
            return hl_fail(hl_status_of_errno(errno), "receive on a socket: %m");
        HL_TRY(wait_for(fd, POLLIN, deadline));
    }
}

bool hl_socket_hung_up(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}
