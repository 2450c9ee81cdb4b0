/* Connecting to a socket with a full backlog; sockets whose process has ended. */
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/socket.h"
#include "support/process_state.h"

#define CLIENTS_MAX 1024
#define PATIENT_MS  20000

struct queue {
    char dir[32], path[64];
    int listener, clients[CLIENTS_MAX];
    size_t count;
};

static int connect_at_once(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    if (connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0)
        return fd;
    assert_int_equal(errno, EAGAIN);
    close(fd);
    return -1;
}

static void queue_fill(struct queue *q)
{
    *q = (struct queue){.dir = "/tmp/hl-socket-XXXXXX"};
    assert_non_null(mkdtemp(q->dir));
    snprintf(q->path, sizeof(q->path), "%s/socket", q->dir);
    assert_int_equal(hl_socket_listen(q->path, &q->listener), HL_OK);
    for (int fd; (fd = connect_at_once(q->path)) >= 0; q->clients[q->count++] = fd)
        assert_true(q->count < CLIENTS_MAX);
}

static void queue_empty(struct queue *q)
{
    while (q->count > 0)
        close(q->clients[--q->count]);
    close(q->listener);
    unlink(q->path);
    rmdir(q->dir);
}

TEST(a_full_queue_is_a_timeout)
{
    struct queue q;
    int fd = 7;
    queue_fill(&q);
    assert_int_equal(hl_socket_connect(q.path, 50, &fd), HL_ETIMEDOUT);
    assert_int_equal(hl_socket_connect(q.path, 0, &fd), HL_ETIMEDOUT);
    assert_int_equal(fd, 7);
    queue_empty(&q);
}

struct client {
    const char *path;
    pid_t thread; /* atomic */
    hl_status st;
    int fd;
};

static void *connect_patiently(void *arg)
{
    struct client *c = arg;
    __atomic_store_n(&c->thread, gettid(), __ATOMIC_RELEASE);
    c->st = hl_socket_connect(c->path, PATIENT_MS, &c->fd);
    return NULL;
}

/* It sleeps and does not wake up. */
static bool is_asleep(const struct client *c)
{
    char path[64];
    pid_t thread = __atomic_load_n(&c->thread, __ATOMIC_ACQUIRE);
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
    for (int i = 0; i < 10; i++, poll(NULL, 0, 1))
        if (thread == 0 || process_state(path) != 'S')
            return false;
    return true;
}

TEST(a_place_in_the_queue_is_waited_for)
{
    struct queue q;
    pthread_t thread;
    int one;
    queue_fill(&q);
    struct client c = {.path = q.path, .fd = -1};
    uint64_t limit = hl_now_ns() + PATIENT_MS * HL_NS_PER_MS;
    assert_int_equal(pthread_create(&thread, NULL, connect_patiently, &c), 0);
    while (!is_asleep(&c))
        assert_true(hl_now_ns() < limit);
    assert_int_equal(hl_socket_accept(q.listener, &one), HL_OK);
    pthread_join(thread, NULL);
    assert_int_equal(c.st, HL_OK);
    struct timeval t = {1, 1};
    socklen_t len = sizeof(t);
    assert_true((fcntl(c.fd, F_GETFL) & O_NONBLOCK) != 0);
    assert_int_equal(getsockopt(c.fd, SOL_SOCKET, SO_SNDTIMEO, &t, &len), 0);
    assert_true(t.tv_sec == 0 && t.tv_usec == 0);
    close(one);
    close(c.fd);
    queue_empty(&q);
}

TEST(nobody_listens_is_said_at_once)
{
    int fd;
    assert_int_equal(hl_socket_connect("/nonexistent/socket", PATIENT_MS, &fd), HL_EUNAVAIL);
}

static void leave_socket(const char *dir, const char *name)
{
    char path[96];
    int fd;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(hl_socket_listen(path, &fd), HL_OK);
    close(fd); /* as a process that is killed */
}

static bool is_there(const char *dir, const char *name)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

TEST(a_sweep_takes_sockets_at_which_no_process_listens_and_nothing_else)
{
    char dir[] = "/tmp/hl-sweep-XXXXXX", path[96];
    int alive;
    assert_non_null(mkdtemp(dir));
    leave_socket(dir, "helios-0-a.l2.sock");
    leave_socket(dir, "helios-1-a.l2.sock");
    leave_socket(dir, "helios-0-a.sock");
    snprintf(path, sizeof(path), "%s/helios-0-b.l2.sock", dir);
    assert_int_equal(hl_socket_listen(path, &alive), HL_OK);
    snprintf(path, sizeof(path), "%s/helios-0-c.l2.sock", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600)); /* a file with such a name */
    assert_int_equal(hl_socket_sweep(dir, "helios-0-", ".l2.sock", 3600), 0);
    assert_int_equal(hl_socket_sweep(dir, "helios-0-", ".l2.sock", 0), 1);
    assert_false(is_there(dir, "helios-0-a.l2.sock"));
    assert_true(is_there(dir, "helios-1-a.l2.sock"));
    assert_true(is_there(dir, "helios-0-a.sock"));
    assert_true(is_there(dir, "helios-0-b.l2.sock"));
    assert_true(is_there(dir, "helios-0-c.l2.sock"));
    assert_int_equal(hl_socket_sweep("/no/such", "", "", 0), 0);
    close(alive);
    assert_int_equal(hl_dir_remove(dir), HL_OK);
}
