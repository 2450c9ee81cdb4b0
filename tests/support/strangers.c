/* strangers ADDRESS stream|packets SEEDS COUNT SEED WINDOW: sends COUNT mutated messages to a
 * daemon's port, each on a connection of its own, WINDOW connections at a time. A connection is
 * half closed after its message, at once or LINGER_NS later, and read to its end. Prints as JSON
 * how many connections the daemon answered with at least a byte, and how they ended: the daemon
 * closed one, reset it, left it open for PATIENCE_NS after its last byte, or did not accept it. The
 * daemon may do any of these. */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/stranger_seeds.h"

#define WINDOW_MAX  64
#define PATIENCE_NS (10 * HL_NS_PER_S)
#define SOURCES     200 /* addresses of 127/8 that connections come from: each has 28,000 ports */
#define LINGER_NS   (20 * HL_NS_PER_MS)
#define NEAR_MS     10

enum end { CLOSED, RESET, LEFT_OPEN, NOT_TAKEN, ENDS };

struct connection {
    int fd; /* -1: none */
    uint64_t deadline_ns;
    struct message message;
    size_t sent;  /* bytes; on a packet socket, pieces */
    size_t first; /* bytes sent first, on a stream */
    bool broken;  /* the daemon did not take all of it */
    bool answered;
    bool lingers; /* everything is sent, and it is not yet half closed */
    uint64_t linger_ns, half_close_ns;
};

struct sender {
    struct sockaddr_storage to;
    socklen_t to_len;
    bool packets;
    int epoll;
    int memory; /* the descriptor that packets carry */
    struct seeds *seeds;
    uint64_t begun, left; /* messages */
    uint64_t answered;
    uint64_t ends[ENDS];
    uint64_t bytes; /* sent */
    size_t window;
    struct connection connections[WINDOW_MAX];
};

static bool parse_address(const char *text, struct sender *s)
{
    const char *path = strncmp(text, "unix:", 5) == 0 ? text + 5 : text;
    const char *colon = strrchr(text, ':');
    char host[64];
    if (*path == '/') {
        struct sockaddr_un *un = (struct sockaddr_un *)&s->to;
        un->sun_family = AF_UNIX;
        s->to_len = sizeof(*un);
        return (size_t)snprintf(un->sun_path, sizeof(un->sun_path), "%s", path) <
               sizeof(un->sun_path);
    }
    struct sockaddr_in *in = (struct sockaddr_in *)&s->to;
    if (colon == NULL || (size_t)(colon - text) >= sizeof(host))
        return false;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
    in->sin_family = AF_INET;
    in->sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    s->to_len = sizeof(*in);
    return inet_pton(AF_INET, host, &in->sin_addr) == 1;
}

/* Uses another source address each time: a single one runs out of ports. */
static bool bind_source(const struct sender *s, int fd)
{
    int one = 1;
    struct sockaddr_in from = {.sin_family = AF_INET};
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + (uint32_t)(s->begun % SOURCES));
    return setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one)) == 0 &&
           bind(fd, (const struct sockaddr *)&from, sizeof(from)) == 0 &&
           setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0;
}

static int connect_to(const struct sender *s)
{
    int type = (s->packets ? SOCK_SEQPACKET : SOCK_STREAM) | SOCK_CLOEXEC | SOCK_NONBLOCK;
    int fd = socket(s->to.ss_family, type, 0);
    if (fd < 0)
        return -1;
    if ((s->to.ss_family == AF_UNIX || bind_source(s, fd)) &&
        (connect(fd, (const struct sockaddr *)&s->to, s->to_len) == 0 || errno == EINPROGRESS))
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void end(struct sender *s, struct connection *c, enum end how)
{
    s->ends[how]++;
    s->answered += c->answered;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static ssize_t send_packet(const struct sender *s, const struct connection *c)
{
    const struct message_piece *p = &c->message.pieces[c->sent];
    struct iovec iov = {c->message.bytes + p->start, p->len};

    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (p->carries) {
        msg.msg_control = control.space;
        msg.msg_controllen = sizeof(control.space);
        control.head = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(&control.head), &s->memory, sizeof(int));
    }
    return sendmsg(c->fd, &msg, MSG_NOSIGNAL);
}

static size_t remaining(const struct sender *s, const struct connection *c)
{
    return (s->packets ? c->message.count : c->message.len) - c->sent;
}

/* Sends what it can. If the daemon takes no more, it has closed the connection or will: reading
 * shows that. */
static void send_some(struct sender *s, struct connection *c)
{
    size_t once = c->sent == 0 ? c->first : SIZE_MAX;
    while (remaining(s, c) > 0) {
        size_t len = remaining(s, c) < once ? remaining(s, c) : once;
        ssize_t n = s->packets ? send_packet(s, c)
                               : send(c->fd, c->message.bytes + c->sent, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == ENOTCONN))
            return;
        if (n < 0) {
            c->broken = true;
            break;
        }
        c->deadline_ns = hl_now_ns() + PATIENCE_NS;
        s->bytes += (uint64_t)n;
        c->sent += s->packets ? 1 : (size_t)n;
        if (once != SIZE_MAX && remaining(s, c) > 0)
            return; /* the rest is sent at the next event */
    }
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    (void)epoll_ctl(s->epoll, EPOLL_CTL_MOD, c->fd, &e);
    c->lingers = c->linger_ns > 0 && !c->broken;
    c->half_close_ns = hl_now_ns() + c->linger_ns;
    if (!c->lingers)
        shutdown(c->fd, SHUT_WR);
}

static void begin(struct sender *s, struct connection *c)
{
    if (!seeds_next(s->seeds, &c->message))
        abort();
    s->left--;
    s->begun++;
    c->answered = false;
    c->fd = connect_to(s);
    if (c->fd < 0) {
        end(s, c, NOT_TAKEN);
        return;
    }
    c->sent = 0;
    c->broken = c->lingers = false;
    c->linger_ns = seeds_below(s->seeds, 8) == 0 ? LINGER_NS : 0;
    c->first = seeds_below(s->seeds, 8) == 0 ? 1 + seeds_below(s->seeds, c->message.len) : SIZE_MAX;
    c->deadline_ns = hl_now_ns() + PATIENCE_NS;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, c->fd, &e) != 0)
        abort();
    send_some(s, c);
}

static void read_some(struct sender *s, struct connection *c)
{
    static char answer[1 << 16];
    for (;;) {
        ssize_t n = recv(c->fd, answer, sizeof(answer), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            bool refused = n < 0 && errno == ECONNREFUSED;
            end(s, c, refused ? NOT_TAKEN : n == 0 && !c->broken ? CLOSED : RESET);
            return;
        }
        c->answered = true;
        c->deadline_ns = hl_now_ns() + PATIENCE_NS;
    }
}

static void look(struct sender *s)
{
    struct epoll_event events[WINDOW_MAX];
    int n = epoll_wait(s->epoll, events, WINDOW_MAX, NEAR_MS);
    for (int i = 0; i < n; i++) {
        struct connection *c = events[i].data.ptr;
        if ((events[i].events & EPOLLOUT) && remaining(s, c) > 0)
            send_some(s, c);
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
            read_some(s, c);
    }
    uint64_t now = hl_now_ns();
    for (size_t i = 0; i < s->window; i++) {
        struct connection *c = &s->connections[i];
        if (c->fd >= 0 && c->lingers && now >= c->half_close_ns) {
            c->lingers = false;
            shutdown(c->fd, SHUT_WR);
        }
        if (c->fd >= 0 && now > c->deadline_ns)
            end(s, c, LEFT_OPEN);
    }
}

static void run(struct sender *s)
{
    size_t open = 0;
    for (size_t i = 0; i < s->window; i++)
        s->connections[i].fd = -1;
    do {
        look(s);
        open = 0;
        for (size_t i = 0; i < s->window; i++) {
            if (s->connections[i].fd < 0 && s->left > 0)
                begin(s, &s->connections[i]);
            open += s->connections[i].fd >= 0;
        }
    } while (open > 0 || s->left > 0);
}

static void print(const struct sender *s, uint64_t ns)
{
    printf("{\"messages\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"seconds\": %.1f, ", s->begun,
           s->bytes, (double)ns / 1e9);
    printf("\"answered\": %" PRIu64 ", \"closed\": %" PRIu64 ", \"reset\": %" PRIu64
           ", \"left open\": %" PRIu64 ", \"not taken\": %" PRIu64 "}\n",
           s->answered, s->ends[CLOSED], s->ends[RESET], s->ends[LEFT_OPEN], s->ends[NOT_TAKEN]);
}

int main(int argc, char **argv)
{
    static struct sender s;
    if (argc != 7 || !parse_address(argv[1], &s)) {
        fprintf(stderr, "usage: strangers ADDRESS stream|packets SEEDS COUNT SEED WINDOW\n");
        return 2;
    }
    s.packets = strcmp(argv[2], "packets") == 0;
    s.left = strtoull(argv[4], NULL, 10);
    s.window = strtoull(argv[6], NULL, 10);
    s.window = s.window < WINDOW_MAX ? s.window : WINDOW_MAX;
    s.seeds = seeds_open(argv[3], strtoull(argv[5], NULL, 10));
    if (s.seeds == NULL)
        return 1;
    s.epoll = epoll_create1(EPOLL_CLOEXEC);
    s.memory = memfd_create("strangers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s.epoll < 0 || s.memory < 0 || ftruncate(s.memory, 4096) != 0) {
        fprintf(stderr, "strangers: %s\n", strerror(errno));
        return 1;
    }
    uint64_t since = hl_now_ns();
    run(&s);
    print(&s, hl_now_ns() - since);
    for (size_t i = 0; i < s.window; i++)
        message_fini(&s.connections[i].message);
    seeds_close(s.seeds);
    close(s.memory);
    close(s.epoll);
    return 0;
}
