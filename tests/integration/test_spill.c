/* A client's chunks spill into a real pool through its socket; owners and clients die. */
#include "support/test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "helios/hybridps.h"
#include "hybridps/chunks/spill.h"
#include "mem/socket/socket.h"
#include "os/loop.h"
#include "support/copy_count.h"

#define MIB      ((uint64_t)1 << 20)
#define CAPACITY (64 * MIB)
#define TENSORS  8
#define BYTES    (3 * MIB)
#define HOST     (2 * BYTES)

struct world {
    struct hl_pool *pool;
    struct hl_loop *loop;
    struct hl_l3_server *server;
    pthread_t thread;
    uint64_t capacity;
    char pool_path[64], socket_path[72];
};

static void *run_loop(void *arg)
{
    struct world *w = arg;
    return hl_loop_run(w->loop) == HL_OK ? NULL : arg;
}

static void owner_start(struct world *w)
{
    assert_int_equal(hl_pool_open(&(struct hl_pool_options){.path = w->pool_path,
                                                            .capacity = w->capacity,
                                                            .quarantine_ms = 3600000,
                                                            .beat_ms = 1},
                                  NULL, &w->pool),
                     HL_OK);
    assert_int_equal(hl_loop_create(&w->loop), HL_OK);
    assert_int_equal(hl_l3_server_start(&(struct hl_l3_server_opts){.loop = w->loop,
                                                                    .pool = w->pool,
                                                                    .socket_path = w->socket_path},
                                        &w->server),
                     HL_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, run_loop, w), 0);
}

/* The pool's file stays. */
static void owner_end(struct world *w)
{
    hl_loop_stop(w->loop);
    pthread_join(w->thread, NULL);
    hl_l3_server_stop(w->server);
    hl_loop_destroy(w->loop);
    hl_pool_close(w->pool);
}

static void name_world(struct world *w, uint64_t capacity)
{
    *w = (struct world){.capacity = capacity};
    snprintf(w->pool_path, sizeof(w->pool_path), "/dev/shm/helios-test-spill-%d", (int)getpid());
    snprintf(w->socket_path, sizeof(w->socket_path), "%s.sock", w->pool_path);
}

static void world_start(struct world *w, uint64_t capacity)
{
    name_world(w, capacity);
    owner_start(w);
}

static void world_end(struct world *w)
{
    owner_end(w);
    unlink(w->pool_path);
}

static uint64_t used(struct world *w)
{
    struct hl_pool_info info;
    hl_pool_info(w->pool, &info);
    assert_int_equal(info.quarantined, 0);
    assert_int_equal(info.shards, 0);
    return info.used;
}

static void wait_until_empty(struct world *w)
{
    uint64_t deadline = hl_now_ns() + 10 * HL_NS_PER_S;
    while (used(w) > 0 && hl_now_ns() < deadline)
        poll(NULL, 0, 1);
    assert_int_equal(used(w), 0);
}

/* ---- a client ---- */

struct client {
    hybridps *h;
    uint32_t tensors[TENSORS];
};

static int client_open(struct client *c, const char *spill)
{
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:3MiB", .policy = "lru",
                          .chunk_bytes = BYTES,  .host_bytes = HOST,   .spill = spill};
    if (hybridps_open(&o, &c->h) != 0)
        return -1;
    for (int i = 0; i < TENSORS; i++)
        if (hybridps_add(c->h, "t", HYBRIDPS_PARAM, BYTES, &c->tensors[i]) != 0)
            return -1;
    return hybridps_layout(c->h);
}

static int client_fill(struct client *c, int from, int to)
{
    for (int i = from; i < to; i++) {
        hybridps_use u = {.tensor = c->tensors[i], .where = HYBRIDPS_HOST, .write = 1};
        int st = hybridps_access(c->h, &u, 1);
        if (st != 0)
            return st;
        memset(u.address, i + 1, BYTES);
        st = hybridps_release(c->h, &c->tensors[i], 1, HYBRIDPS_HOLD);
        if (st != 0)
            return st;
    }
    return 0;
}

static void must(int st)
{
    if (st != 0)
        fail_msg("%s", hl_error_text());
}

static void check_tensor(struct client *c, int i)
{
    hybridps_use u = {.tensor = c->tensors[i], .where = i % 2 ? HYBRIDPS_HOST : HYBRIDPS_DEVICE};
    if (hybridps_access(c->h, &u, 1) != 0)
        fail_msg("%s", hl_error_text());
    const uint8_t *p = u.address;
    for (uint64_t at = 0; at < BYTES; at += 511)
        assert_int_equal(p[at], i + 1);
    assert_int_equal(hybridps_release(c->h, &c->tensors[i], 1, HYBRIDPS_HOLD), 0);
}

static hybridps_stats_t stats(struct client *c)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    assert_int_equal(hybridps_stats(c->h, &s), 0);
    return s;
}

/* ---- tests ---- */

TEST(what_the_host_has_no_room_for_lies_in_the_pool_and_comes_back)
{
    struct world w;
    struct client c;
    hybridps_tensor_info info = {HYBRIDPS_TENSOR_INFO_INIT};
    world_start(&w, CAPACITY);
    setenv("HELIOS_L3_SOCKET", w.socket_path, 1); /* as an Agent does */
    assert_int_equal(client_open(&c, NULL), 0);
    unsetenv("HELIOS_L3_SOCKET");
    assert_int_equal(client_fill(&c, 0, TENSORS), 0);
    assert_int_equal(stats(&c).spilled, (TENSORS - 2) * BYTES);
    assert_int_equal(used(&w), (TENSORS - 2) * hl_pool_units(BYTES) * HL_POOL_UNIT);
    assert_int_equal(hybridps_tensor(c.h, c.tensors[0], &info), 0);
    assert_false(info.on_host || info.on_device);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < TENSORS; i++)
            check_tensor(&c, i);
    hybridps_stats_t s = stats(&c);
    assert_true(s.host_peak <= HOST);
    assert_true(s.spill_in > 0);
    assert_int_equal(s.spilled, s.spill_out - s.spill_in);
    for (int i = 0; i < TENSORS; i++) { /* without contents: nothing to keep */
        hybridps_use u = {.tensor = c.tensors[i]};
        assert_int_equal(hybridps_access(c.h, &u, 1), 0);
        assert_int_equal(hybridps_release(c.h, &c.tensors[i], 1, HYBRIDPS_FREE), 0);
    }
    assert_int_equal(used(&w), 0);
    assert_int_equal(client_fill(&c, 0, TENSORS), 0);
    hybridps_close(c.h);
    wait_until_empty(&w);
    world_end(&w);
}

TEST(a_full_pool_and_none_at_all_are_said_and_what_is_there_stays)
{
    struct world w;
    struct client c;
    world_start(&w, 4 * MIB);
    assert_int_equal(client_open(&c, w.socket_path), 0);
    assert_int_equal(client_fill(&c, 0, 3), 0);
    assert_int_equal(client_fill(&c, 3, 4), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "could not be moved to L3: pool"));
    assert_non_null(strstr(hl_error_text(), "make the pool larger"));
    assert_int_equal(stats(&c).spilled, BYTES);
    hybridps_close(c.h);
    wait_until_empty(&w);
    world_end(&w);

    assert_int_equal(client_open(&c, "none"), 0);
    assert_int_equal(client_fill(&c, 0, 3), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "no lower tier is configured"));
    check_tensor(&c, 1);
    hybridps_close(c.h);
    assert_int_equal(client_open(&c, w.socket_path), 0);
    assert_int_equal(client_fill(&c, 0, 3), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), w.socket_path));
    check_tensor(&c, 1);
    hybridps_close(c.h);
}

/* ---- children, forked before there are threads: ThreadSanitizer allows no others ---- */

struct child {
    pid_t pid;
    int go, ready; /* a byte tells it to go on; one comes when it has spilled */
};

static struct child to_be_killed, to_be_stopped;

/* Spills, says so, and waits to be killed. */
static void spill_and_wait(const struct world *w, int go, int ready)
{
    struct client c;
    char byte;
    if (read(go, &byte, 1) != 1 || client_open(&c, w->socket_path) != 0 ||
        client_fill(&c, 0, TENSORS) != 0 || write(ready, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* Spills, and checks everything when told to. */
static void spill_and_look(const struct world *w, int go, int ready)
{
    struct client c;
    char byte;
    if (read(go, &byte, 1) != 1 || client_open(&c, w->socket_path) != 0 ||
        client_fill(&c, 0, TENSORS) != 0 || write(ready, "x", 1) != 1 || read(go, &byte, 1) != 1)
        _exit(1);
    for (int k = 0; k < TENSORS; k++)
        check_tensor(&c, k);
    hybridps_close(c.h);
    _exit(0);
}

static struct child child_start(void (*run)(const struct world *, int go, int ready))
{
    struct world w;
    int go[2], ready[2];
    name_world(&w, CAPACITY);
    assert_int_equal(pipe2(go, O_CLOEXEC), 0);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run(&w, go[0], ready[1]);
    }
    assert_true(pid > 0);
    close(go[0]);
    close(ready[1]); /* so that the child's death ends the read */
    return (struct child){pid, go[1], ready[0]};
}

static int start_children(void **state)
{
    (void)state;
    to_be_killed = child_start(spill_and_wait);
    to_be_stopped = child_start(spill_and_look);
    return 0;
}

static void child_spill(const struct child *c, struct world *w)
{
    char byte;
    assert_int_equal(write(c->go, "x", 1), 1);
    assert_int_equal(read(c->ready, &byte, 1), 1);
    assert_int_equal(used(w), (TENSORS - 2) * hl_pool_units(BYTES) * HL_POOL_UNIT);
}

static int child_end(const struct child *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    close(c->go);
    close(c->ready);
    return status;
}

TEST(a_killed_client_leaves_nothing_in_the_pool)
{
    struct world w;
    world_start(&w, CAPACITY);
    child_spill(&to_be_killed, &w);
    kill(to_be_killed.pid, SIGKILL);
    assert_true(WIFSIGNALED(child_end(&to_be_killed)));
    wait_until_empty(&w);
    world_end(&w);
}

TEST(a_stopped_client_finds_its_chunks_after_a_restart)
{
    struct world w;
    int status;
    world_start(&w, CAPACITY);
    child_spill(&to_be_stopped, &w);
    assert_int_equal(kill(to_be_stopped.pid, SIGSTOP), 0);
    assert_int_equal(waitpid(to_be_stopped.pid, &status, WUNTRACED), to_be_stopped.pid);
    owner_end(&w);
    owner_start(&w);
    assert_int_equal(kill(to_be_stopped.pid, SIGCONT), 0);
    assert_int_equal(write(to_be_stopped.go, "x", 1), 1);
    assert_int_equal(child_end(&to_be_stopped), 0);
    wait_until_empty(&w);
    world_end(&w);
}

TEST(chunks_outlive_a_restart_of_the_pools_owner)
{
    struct world w;
    struct client c;
    world_start(&w, CAPACITY);
    assert_int_equal(client_open(&c, w.socket_path), 0);
    must(client_fill(&c, 0, TENSORS));
    for (int i = 0; i < 3; i++) {
        owner_end(&w);
        owner_start(&w);
        for (int k = 0; k < TENSORS; k++)
            check_tensor(&c, k);
    }
    hybridps_close(c.h);
    wait_until_empty(&w);
    world_end(&w);
}

/* Only the place of the spill, without a client: shorter waits. */
TEST(what_is_damaged_or_lost_below_is_said_and_kept_apart)
{
    struct world w;
    const struct hl_spill_ops *ops = NULL;
    void *place = NULL;
    uint64_t handle, bytes = 20 * MIB + 4096;
    uint8_t *data = malloc(bytes), *got = malloc(bytes);
    size_t len;
    for (uint64_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 20));
    world_start(&w, CAPACITY);
    assert_int_equal(hl_spill_l3_open(w.socket_path, 2000, 0, &ops, &place), HL_OK);
    assert_int_equal(ops->put(place, data, bytes, &handle), HL_OK);
    assert_int_equal(ops->get(place, handle, got, bytes), HL_OK);
    assert_memory_equal(data, got, bytes);
    uint8_t *base = hl_pool_base(w.pool, &len), *bad = NULL;
    for (uint8_t *p = base + len - bytes; bad == NULL && p > base; p--)
        bad = memcmp(p, data + 9 * MIB, 64) == 0 ? p : NULL;
    assert_non_null(bad);
    *bad ^= 1;
    assert_int_equal(ops->get(place, handle, got, bytes), HL_ECORRUPT);
    *bad ^= 1;
    assert_int_equal(ops->get(place, handle, got, bytes), HL_OK);
    assert_memory_equal(data, got, bytes);
    owner_end(&w);
    assert_int_equal(ops->get(place, handle, got, bytes), HL_EUNAVAIL);
    assert_int_equal(ops->put(place, data, bytes, &handle), HL_EUNAVAIL);
    unlink(w.pool_path);
    owner_start(&w);
    assert_int_equal(ops->get(place, handle, got, bytes), HL_ESTALE);
    assert_non_null(strstr(hl_error_text(), "from the last checkpoint"));
    ops->drop(place, handle);
    assert_int_equal(ops->put(place, data, bytes, &handle), HL_OK);
    assert_int_equal(ops->get(place, handle, got, bytes), HL_OK);
    ops->close(place);
    wait_until_empty(&w);
    world_end(&w);
    free(data);
    free(got);
}

TEST(a_chunk_goes_to_the_pool_and_back_by_the_copy_that_was_chosen_for_the_host)
{
    struct world w;
    const struct hl_spill_ops *ops = NULL;
    void *place = NULL;
    uint64_t handle, bytes = 9 * MIB + 4096;
    uint8_t *data = calloc(1, bytes), *got = malloc(bytes);
    data[bytes - 1] = 7;
    world_start(&w, CAPACITY);
    assert_int_equal(hl_spill_l3_open(w.socket_path, 2000, 0, &ops, &place), HL_OK);
    struct hl_copy_choice before = copy_count_begin();
    assert_int_equal(ops->put(place, data, bytes, &handle), HL_OK);
    assert_int_equal(copy_count_take(true), bytes);
    assert_int_equal(ops->get(place, handle, got, bytes), HL_OK);
    assert_int_equal(copy_count_take(true), bytes);
    assert_memory_equal(data, got, bytes);
    hl_copy_choose(&before);
    ops->close(place);
    world_end(&w);
    free(data);
    free(got);
}

TESTS_IN(start_children, NULL)
