/* The pool's socket: a real server on a loop of its own, and clients that are good, bad and
 * dying. */
#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/log.h"
#include "integration/l3_socket_world.h"
#include "os/shm.h"
#include "support/fault.h"

TEST(what_is_put_is_read_through_the_view_of_another_client)
{
    struct world w;
    struct hl_pool_ref made, found;
    uint64_t size = 3 * MIB + 77;
    uint8_t *buf = malloc(size), *expected = malloc(size);
    world_start(&w, 0);
    struct hl_l3_client *a = connect_to(&w), *b = connect_to(&w);
    memset(expected, 0x5a, size);
    assert_int_equal(put(a, size, 0x5a, &made), HL_OK);
    assert_int_equal(made.size, size);
    assert_int_equal(made.crc32, hl_crc32(0, expected, size));
    assert_int_equal(hl_pool_view_find(hl_l3_view(b), made.id, &found), HL_OK);
    assert_memory_equal(&found, &made, offsetof(struct hl_pool_ref, kept)); /* padding follows */
    assert_int_equal(found.kept, made.kept);
    assert_int_equal(hl_pool_view_read(hl_l3_view(b), &found, 0, buf, size), HL_OK);
    assert_memory_equal(buf, expected, size);
    assert_int_equal(hl_l3_alive(a), HL_OK);
    /* Only the client that put a shard may take it back, and only its last one. */
    assert_int_equal(hl_l3_drop(b, made.id, MS), HL_EPERM);
    assert_int_equal(hl_l3_drop(a, made.id, MS), HL_OK);
    assert_int_equal(hl_pool_view_read(hl_l3_view(b), &found, 0, buf, size), HL_ESTALE);
    wait_for_space(&w, 0, 0);
    hl_l3_close(a);
    hl_l3_close(b);
    world_end(&w);
    free(buf);
    free(expected);
}

TEST(pins_hold_freed_bytes_until_unpinned_or_the_client_vanishes)
{
    struct world w;
    struct hl_pool_ref ref, pin;
    struct hl_pool_info info;
    world_start(&w, 0);
    struct hl_l3_client *a = connect_to(&w), *b = connect_to(&w);
    assert_int_equal(put(a, 100, 7, &ref), HL_OK);
    assert_int_equal(hl_l3_pin(a, ref.id, 0, MS, &pin), HL_OK);
    assert_int_equal(hl_l3_pin(a, ref.id, 0, MS, &pin), HL_OK);
    assert_int_equal(hl_l3_pin(b, ref.id, ref.offset, MS, &pin), HL_OK);
    assert_int_equal(hl_pool_free(w.pool, ref.id), HL_OK);
    assert_int_equal(hl_l3_pin(b, ref.id, 0, MS, &pin), HL_ENOENT);
    assert_int_equal(hl_l3_pin(b, ref.id, ref.offset, MS, &pin), HL_OK); /* already mapped */
    assert_int_equal(hl_l3_unpin(a, &pin, MS), HL_OK);
    assert_int_equal(hl_l3_unpin(a, &pin, MS), HL_OK);
    assert_int_equal(hl_l3_unpin(a, &pin, MS), HL_ENOENT);
    for (int i = 0; i < 20; i++)
        poll(NULL, 0, 1);
    hl_pool_info(w.pool, &info);
    assert_int_equal(info.quarantined, HL_POOL_UNIT);
    assert_int_equal(*(const uint8_t *)hl_pool_view_data(hl_l3_view(b), &pin), 7);
    hl_l3_close(b);
    wait_for_space(&w, 0, 0);
    hl_l3_close(a);
    world_end(&w);
}

static hl_status lease(struct hl_l3_client *c, uint64_t size, int byte, struct hl_pool_ref *ref)
{
    struct hl_l3_staging s = {0};
    HL_TRY(hl_l3_staging_open(size, &s));
    memset(s.ptr, byte, size);
    hl_status st = hl_l3_lease(c, &s, size, MS, ref);
    hl_l3_staging_close(&s);
    return st;
}

static void check_lease(struct hl_l3_client *c, const struct hl_pool_ref *ref, int byte)
{
    uint8_t *buf = malloc(ref->size);
    assert_int_equal(hl_pool_view_read(hl_l3_view(c), ref, 0, buf, ref->size), HL_OK);
    for (uint64_t i = 0; i < ref->size; i += 4097)
        assert_int_equal(buf[i], byte);
    free(buf);
}

TEST(a_lease_is_its_connections_alone_and_ends_with_it)
{
    struct world w;
    struct hl_pool_ref one, two, got;
    struct hl_pool_info info;
    uint64_t size = 2 * MIB + 5, units = hl_pool_units(size) * HL_POOL_UNIT;
    world_start(&w, 0);
    struct hl_l3_client *a = connect_to(&w), *b = connect_to(&w);
    assert_int_equal(lease(a, size, 3, &one), HL_OK);
    assert_int_equal(lease(a, size, 4, &two), HL_OK);
    wait_for_space(&w, 0, 2 * units);
    assert_int_equal(hl_pool_view_find(hl_l3_view(b), one.id, &got), HL_ENOENT);
    assert_int_equal(hl_l3_pin(b, one.id, 0, MS, &got), HL_ENOENT);
    assert_int_equal(hl_l3_drop(a, two.id, MS), HL_EPERM);
    check_lease(a, &one, 3);
    check_lease(a, &two, 4);
    assert_int_equal(hl_l3_unpin(a, &one, MS), HL_OK);
    hl_pool_info(w.pool, &info); /* at once: no other client can be reading it */
    assert_int_equal(info.used, units);
    assert_int_equal(info.quarantined, 0);
    assert_int_equal(lease(a, CAPACITY, 5, &one), HL_ENOSPC);
    check_lease(a, &two, 4);
    hl_l3_close(a);
    wait_for_space(&w, 0, 0);
    hl_l3_close(b);
    world_end(&w);
}

TEST(foreign_bytes_end_only_their_own_connection)
{
    static const struct hl_l3_request bad[] = {
        {.magic = 0x47455420, .type = HL_L3_HELLO},
        {.version = 9, .type = HL_L3_HELLO},
        {.type = HL_L3_PIN}, /* before hello */
        {.type = HL_L3_PUT, .size = 10},
        {.type = 0},
        {.type = 999},
    };
    struct world w;
    struct hl_pool_ref ref;
    char noise[400];
    int passed;
    world_start(&w, 0);
    struct hl_l3_client *good = connect_to(&w);
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        int fd = raw_connect(&w);
        assert_int_equal(raw(fd, bad[i], -1), HL_EUNAVAIL);
        close(fd);
    }
    memset(noise, 0xff, sizeof(noise));
    for (size_t len = 1; len <= sizeof(noise); len += 47) {
        int fd = raw_connect(&w);
        assert_int_equal(hl_socket_send(fd, noise, len, -1, MS), HL_OK);
        assert_int_equal(hl_socket_recv(fd, noise, len, &passed, MS), HL_EUNAVAIL);
        close(fd);
    }
    assert_int_equal(put(good, 100, 1, &ref), HL_OK);
    hl_l3_close(good);
    world_end(&w);
    fault_shown("shm", "foreign", "refused-served-on");
}

/* A server that has the pool and gives false positions of shards. */
struct liar {
    int listener;
    int pool_fd;
    struct hl_pool_view_info info;
    const uint64_t (*extents)[2]; /* offset and size of each answer; ends with 0, 0 */
};

static void *lie(void *arg)
{
    struct liar *l = arg;
    int fd = -1;
    struct pollfd p = {.fd = l->listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, MS), 1);
    assert_int_equal(hl_socket_accept(l->listener, &fd), HL_OK);
    for (size_t i = 0;;) {
        struct hl_l3_request req;
        int passed = -1;
        if (hl_socket_recv(fd, &req, sizeof(req), &passed, MS) != HL_OK)
            break;
        struct hl_l3_answer a = {.magic = HL_L3_MAGIC,
                                 .version = HL_L3_VERSION,
                                 .type = req.type,
                                 .seq = req.seq,
                                 .uuid_hi = l->info.uuid.hi,
                                 .uuid_lo = l->info.uuid.lo,
                                 .incarnation = l->info.incarnation};
        if (req.type == HL_L3_PIN) {
            a.offset = l->extents[i][0];
            a.size = l->extents[i][1];
            i++;
        }
        int pass = req.type == HL_L3_HELLO ? l->pool_fd : -1;
        if (hl_socket_send(fd, &a, sizeof(a), pass, MS) != HL_OK)
            break;
    }
    close(fd);
    return NULL;
}

TEST(an_answer_that_leads_out_of_the_pool_is_refused)
{
    static const uint64_t extents[][2] = {{0, 100},
                                          {UINT64_C(1) << 62, 100},
                                          {MIB, UINT64_C(1) << 62},
                                          {UINT64_MAX - 99, 100},
                                          {MIB, UINT64_MAX},
                                          {MIB, 0},
                                          {0, 0}};
    struct world w;
    world_start(&w, 0);
    struct liar l = {.extents = extents};
    struct hl_pool_view *view = NULL;
    struct hl_l3_client *c = NULL;
    char path[128];
    snprintf(path, sizeof(path), "%s-liar", w.socket_path);
    assert_int_equal(hl_pool_reopen(w.pool, &l.pool_fd), HL_OK);
    assert_int_equal(hl_pool_view_open(l.pool_fd, &view), HL_OK);
    hl_pool_view_info(view, &l.info);
    assert_int_equal(hl_socket_listen(path, &l.listener), HL_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, lie, &l), 0);
    assert_int_equal(hl_l3_connect(path, MS, &c), HL_OK);
    for (size_t i = 0; i + 1 < HL_ARRAY_LEN(extents); i++) {
        struct hl_pool_ref ref;
        assert_int_equal(hl_l3_pin(c, (struct hl_id){1, i}, 0, MS, &ref), HL_EPROTO);
        assert_non_null(strstr(hl_error_text(), path));
    }
    hl_l3_close(c);
    pthread_join(thread, NULL);
    hl_pool_view_put(view);
    close(l.pool_fd);
    close(l.listener);
    unlink(path);
    world_end(&w);
}

TEST(only_a_memfd_that_cannot_shrink_is_copied_from)
{
    struct world w;
    int pipes[2], sealed = -1;
    world_start(&w, 0);
    int fd = raw_connect(&w);
    struct hl_l3_request req = {.type = HL_L3_PUT, .size = 100};
    assert_int_equal(raw(fd, (struct hl_l3_request){.type = HL_L3_HELLO}, -1), HL_OK);
    assert_int_equal(raw(fd, req, -1), HL_EINVAL);
    int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(loose, 100), 0);
    assert_int_equal(raw(fd, req, loose), HL_EPERM);
    int file = open(w.pool_path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(raw(fd, req, file), HL_EPERM);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(raw(fd, req, pipes[0]), HL_EPERM);
    assert_int_equal(hl_memfd_create("sealed", 99, &sealed), HL_OK);
    assert_int_equal(raw(fd, req, sealed), HL_EINVAL); /* one byte short */
    req.size = 0;
    assert_int_equal(raw(fd, req, sealed), HL_EINVAL);
    req.size = 99;
    assert_int_equal(raw(fd, req, sealed), HL_OK);
    close(sealed);
    assert_int_equal(hl_memfd_create("sparse", 8 * CAPACITY, &sealed), HL_OK);
    req.size = 8 * CAPACITY;
    assert_int_equal(raw(fd, req, sealed), HL_ENOSPC);
    wait_for_space(&w, 1, HL_POOL_UNIT);
    close(sealed);
    close(loose);
    close(file);
    close(pipes[0]);
    close(pipes[1]);
    close(fd);
    world_end(&w);
    fault_shown("shm", "wrong-size", "refused-exact");
}

TEST(nobody_can_write_through_the_descriptor)
{
    struct world w;
    struct hl_l3_answer a;
    struct hl_l3_request req = {
        .magic = HL_L3_MAGIC, .version = HL_L3_VERSION, .type = HL_L3_HELLO};
    int got = -1;
    world_start(&w, 0);
    int fd = raw_connect(&w);
    assert_int_equal(hl_socket_send(fd, &req, sizeof(req), -1, MS), HL_OK);
    assert_int_equal(hl_socket_recv(fd, &a, sizeof(a), &got, MS), HL_OK);
    assert_true(got >= 0);
    assert_int_equal(pwrite(got, "x", 1, 0), -1);
    assert_int_equal(errno, EBADF);
    assert_int_equal(ftruncate(got, 0), -1);
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, got, 0), MAP_FAILED);
    void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, got, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    assert_int_equal(mprotect(p, 4096, PROT_READ | PROT_WRITE), -1);
    munmap(p, 4096);
    close(got);
    close(fd);
    world_end(&w);
}

TEST(more_clients_than_allowed_are_turned_away)
{
    struct world w;
    struct hl_l3_client *c[3], *more = NULL;
    world_start(&w, 3);
    for (int i = 0; i < 3; i++)
        c[i] = connect_to(&w);
    assert_int_equal(hl_l3_connect(w.socket_path, MS, &more), HL_EUNAVAIL);
    hl_l3_close(c[0]);
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    while (hl_l3_connect(w.socket_path, MS, &more) != HL_OK && hl_now_ns() < deadline)
        poll(NULL, 0, 1);
    assert_non_null(more);
    hl_l3_close(more);
    hl_l3_close(c[1]);
    hl_l3_close(c[2]);
    world_end(&w);
}

#define OWNER  65534 /* of the socket */
#define CLIENT 65533

/* Ends with status 0 if the client is refused because of the other user. */
static pid_t connect_as_client(const char *path)
{
    struct hl_l3_client *c = NULL;
    pid_t child = fork();
    if (child == 0)
        _exit(setuid(CLIENT) == 0 && hl_l3_connect(path, MS, &c) == HL_EPERM &&
                      strstr(hl_error_text(), "belongs to user 65534") != NULL
                  ? 0
                  : 1);
    return child;
}

/* In /dev/shm any user can take the name of a daemon that is down. */
TEST(a_client_does_not_believe_another_users_socket)
{
    char dir[] = "/tmp/helios-test-XXXXXX", path[sizeof(dir) + 8];
    int fd, status;
    if (geteuid() != 0)
        TEST_SKIP("two users are needed, and only root can be both");
    assert_non_null(mkdtemp(dir));
    assert_int_equal(chmod(dir, 0777), 0);
    snprintf(path, sizeof(path), "%s/l3.sock", dir);
    assert_int_equal(seteuid(OWNER), 0); /* SO_PEERCRED tells who listens */
    assert_int_equal(hl_socket_listen(path, &fd), HL_OK);
    assert_int_equal(chmod(path, 0777), 0);
    assert_int_equal(seteuid(0), 0);
    pid_t child = connect_as_client(path);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(fd);
    unlink(path);
    rmdir(dir);
}

TEST(a_process_that_leaks_connections_locks_out_no_other)
{
    enum { MOST = 256, ALL = 300, TRIES = 320 };
    struct world w;
    struct hl_l3_client *more = NULL;
    int fds[TRIES], status;
    world_start(&w, ALL);
    unsigned warnings = hl_log_count(HL_LOG_WARN);
    uint64_t began_ns = hl_now_ns();
    for (int i = 0; i < TRIES; i++)
        assert_int_equal(hl_socket_connect(w.socket_path, MS, &fds[i]), HL_OK);
    assert_int_equal(hl_l3_connect(w.socket_path, MS, &more), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "too many connections of a process"));
    pid_t child = fork();
    if (child == 0)
        _exit(hl_l3_connect(w.socket_path, MS, &more) == HL_OK ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (int i = 0; i < TRIES; i++)
        close(fds[i]);
    server_end(&w);
    assert_int_equal(w.stats.refused, TRIES + 1 - MOST);
    unsigned seconds = (unsigned)((hl_now_ns() - began_ns) / HL_NS_PER_S);
    assert_in_range(hl_log_count(HL_LOG_WARN), warnings + 1, warnings + 1 + seconds);
    world_end(&w);
}

TEST(clients_notice_an_absent_a_silent_and_an_ended_server)
{
    struct world w;
    struct hl_pool_ref ref;
    struct hl_l3_client *c = NULL;
    char path[80];
    int silent = -1;
    world_start(&w, 0);
    snprintf(path, sizeof(path), "%s.other", w.socket_path);
    assert_int_equal(hl_l3_connect(path, MS, &c), HL_EUNAVAIL);
    assert_int_equal(hl_socket_listen(path, &silent), HL_OK);
    uint64_t start = hl_now_ns();
    assert_int_equal(hl_l3_connect(path, 50, &c), HL_ETIMEDOUT);
    assert_true(hl_now_ns() - start < TEST_PATIENCE_NS);
    close(silent);
    unlink(path);
    c = connect_to(&w);
    assert_int_equal(put(c, 100, 1, &ref), HL_OK);
    server_end(&w);
    assert_int_equal(hl_l3_alive(c), HL_EUNAVAIL);
    assert_int_equal(hl_l3_pin(c, ref.id, 0, MS, &ref), HL_EUNAVAIL);
    assert_int_equal(hl_l3_pin(c, ref.id, 0, MS, &ref), HL_EUNAVAIL);
    hl_l3_close(c);
    world_end(&w);
}

/* Sends a put without waiting for the answer. */
static void lease_and_be_killed(const struct world *w)
{
    struct hl_l3_client *c = NULL;
    struct hl_pool_ref ref;
    if (hl_l3_connect(w->socket_path, MS, &c) != HL_OK)
        _exit(1);
    for (int i = 0; i < 3; i++)
        if (lease(c, 3 * MIB, i, &ref) != HL_OK)
            _exit(1);
    kill(getpid(), SIGKILL);
    _exit(1);
}

TEST(a_client_killed_with_leases_leaves_nothing)
{
    struct world w;
    int status;
    world_start(&w, 0);
    pid_t child = fork();
    if (child == 0)
        lease_and_be_killed(&w);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    wait_for_space(&w, 0, 0);
    server_end(&w);
    assert_int_equal(w.stats.puts, 3);
    world_end(&w);
}

/* Maps a shard, reports that, and waits to be killed. */
static void pin_and_wait(const struct world *w, struct hl_id id, int said)
{
    struct hl_l3_client *c = NULL;
    struct hl_pool_ref pin;
    if (hl_l3_connect(w->socket_path, MS, &c) == HL_OK && hl_l3_pin(c, id, 0, MS, &pin) == HL_OK &&
        hl_l3_pin(c, id, 0, MS, &pin) == HL_OK && write(said, "", 1) == 1)
        poll(NULL, 0, 6 * MS);
    _exit(1);
}

TEST(pins_of_a_killed_client_are_released)
{
    struct world w;
    struct hl_pool_ref ref;
    struct hl_pool_info info;
    int status, said[2];
    char byte;
    world_start(&w, 0);
    struct hl_l3_client *c = connect_to(&w);
    assert_int_equal(put(c, 3 * MIB, 7, &ref), HL_OK);
    assert_int_equal(pipe2(said, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0)
        pin_and_wait(&w, ref.id, said[1]);
    close(said[1]);
    assert_int_equal(read(said[0], &byte, 1), 1);
    close(said[0]);
    assert_int_equal(hl_pool_free(w.pool, ref.id), HL_OK);
    poll(NULL, 0, 20); /* longer than the quarantine of unpinned bytes */
    hl_pool_info(w.pool, &info);
    assert_in_range(info.quarantined, 3 * MIB, 4 * MIB);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    wait_for_space(&w, 0, 0);
    server_end(&w);
    assert_int_equal(w.stats.pins, 0);
    hl_l3_close(c);
    world_end(&w);
}

static void put_and_be_killed(const struct world *w)
{
    struct hl_l3_staging s;
    struct hl_l3_answer a;
    struct hl_l3_request req = {
        .magic = HL_L3_MAGIC, .version = HL_L3_VERSION, .type = HL_L3_HELLO};
    int fd = -1, got = -1;
    if (hl_socket_connect(w->socket_path, MS, &fd) != HL_OK ||
        hl_socket_send(fd, &req, sizeof(req), -1, MS) != HL_OK ||
        hl_socket_recv(fd, &a, sizeof(a), &got, MS) != HL_OK ||
        hl_l3_staging_open(32 * MIB, &s) != HL_OK)
        _exit(1);
    req.type = HL_L3_PUT;
    req.size = 32 * MIB;
    if (hl_socket_send(fd, &req, sizeof(req), s.fd, MS) != HL_OK)
        _exit(1);
    kill(getpid(), SIGKILL);
}

/* A client that dies after the answer was sent and before it read it leaves a whole shard, which
 * the Controller's sweep frees; it must not leave anything else. Returns how many there were. */
static size_t free_whole_shards(struct world *w)
{
    struct hl_pool_ref refs[16];
    uint64_t cursor = 0;
    size_t n = hl_pool_list(w->pool, &cursor, refs, 16);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(refs[i].size, 32 * MIB);
        assert_int_equal(hl_pool_free(w->pool, refs[i].id), HL_OK);
    }
    return n;
}

TEST(a_client_killed_while_it_puts_leaves_nothing)
{
    struct world w;
    struct hl_pool_ref ref;
    size_t whole = 0, tries = 0;
    world_start(&w, 0);
    for (int i = 0; i < 10; i++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            put_and_be_killed(&w);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
    }
    struct hl_l3_client *c = connect_to(&w);
    uint64_t deadline = hl_now_ns() + 20 * HL_NS_PER_S;
    hl_status st;
    do {
        tries++;
        whole += free_whole_shards(&w);
        st = put(c, 60 * MIB, 1, &ref); /* all the space comes back */
    } while (st == HL_ENOSPC && hl_now_ns() < deadline);
    assert_int_equal(st, HL_OK);
    hl_l3_close(c);
    wait_for_space(&w, 1, hl_pool_units(60 * MIB) * HL_POOL_UNIT);
    server_end(&w);
    assert_int_equal(w.stats.puts, 1 + whole);
    assert_int_equal(w.stats.puts_aborted, 10 - whole + tries - 1);
    assert_int_equal(w.stats.refused, 0);
    world_end(&w);
}
