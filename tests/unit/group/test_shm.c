/* Groups of one node when a rank deviates or dies, and with a transport of the caller's; what all
 * transports do is in test_conformance.c. */
#include "support/test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "group/shm.h"
#include "helios/helios.h"
#include "helios/hybridps.h"
#include "unit/group/group_world.h"

/* ---- ranks that deviate ---- */

static int contradict(int rank, int world)
{
    float x[64] = {0};
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL);
    int code = rank == 1 ? hybridps_group_broadcast(g, "mine", x, 16, 1)
                         : hybridps_group_allreduce(g, "ours", x, 64, HYBRIDPS_F32, 0);
    WANT(code == HELIOS_ECONFLICT);
    WANT(strstr(hl_error_text(), "broadcast of \"mine\", 16 bytes from rank 1") != NULL);
    WANT(strstr(hl_error_text(), "allreduce of \"ours\", 256 bytes of type 0") != NULL);
    WANT(hybridps_group_allreduce(g, "ours", x, 64, HYBRIDPS_F32, 0) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "lost") != NULL && strstr(hl_error_text(), "mine") != NULL);
    hybridps_group_close(g);
    return 0;
}

TEST(ranks_that_call_different_things_are_told_what_each_called)
{
    together(3, contradict);
}

static int dies(int rank, int world)
{
    float x[4] = {1};
    hybridps_group *g = join(rank, world, 1000 * CHILD_S);
    WANT(g != NULL);
    WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == 0);
    if (rank == 1)
        _exit(0); /* silently, as if killed */
    uint64_t began = hl_now_ns();
    WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "rank 1 (process ") != NULL &&
         strstr(hl_error_text(), "died") != NULL); /* whichever rank noticed first */
    WANT(hl_now_ns() - began < UINT64_C(20) * HL_NS_PER_S);
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_that_died_is_found_long_before_the_deadline)
{
    together(3, dies);
}

static int closes(int rank, int world)
{
    float x[4] = {1};
    hybridps_group *g = join(rank, world, 1000 * CHILD_S);
    WANT(g != NULL);
    if (rank != 1) {
        WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == HELIOS_EUNAVAIL);
        WANT(strstr(hl_error_text(), "rank 1 has closed the group") != NULL);
    }
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_that_closed_the_group_is_not_waited_for)
{
    together(2, closes);
}

static int late[2];

static int comes_late(int rank, int world)
{
    float x[4] = {1};
    char c;
    hybridps_group *g = join(rank, world, rank == 0 ? 300 : 20000);
    WANT(g != NULL);
    if (rank == 1) {
        WANT(read(late[0], &c, 1) == 1);
        WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == HELIOS_EUNAVAIL);
    } else {
        uint64_t began = hl_now_ns();
        WANT(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == HELIOS_ETIMEDOUT);
        WANT(strstr(hl_error_text(), "rank 1 (process ") && strstr(hl_error_text(), "300 ms"));
        WANT(hl_now_ns() - began >= 300 * HL_NS_PER_MS);
        WANT(write(late[1], "x", 1) == 1);
    }
    hybridps_group_close(g);
    return 0;
}

TEST(a_wait_ends_with_its_deadline)
{
    assert_int_equal(pipe(late), 0);
    together(2, comes_late);
}

/* ---- joining ---- */

static int exists(void)
{
    char path[96];
    snprintf(path, sizeof(path), "/dev/shm/%s", name);
    return access(path, F_OK) == 0;
}

static void expect_words(int code, int want, const char *words)
{
    assert_int_equal(code, want);
    if (strstr(hl_error_text(), words) == NULL)
        fail_msg("\"%s\" is not in: %s", words, hl_error_text());
}

TEST(joining_fails_with_who_is_missing_and_leaves_nothing)
{
    hybridps_group *g = NULL;
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = 1, .world = 3,
                              .timeout_ms = 50};
    expect_words(hybridps_group_shm(&o, &g), HELIOS_ETIMEDOUT, "1 of 3 ranks joined");
    expect_words(HELIOS_ETIMEDOUT, HELIOS_ETIMEDOUT, "not 0 2");
    assert_false(exists());
    o.rank = 3;
    expect_words(hybridps_group_shm(&o, &g), HELIOS_EINVAL, "rank 3 of 3");
    o = (hybridps_shm_options){HYBRIDPS_SHM_OPTIONS_INIT, .name = "a/b", .world = 1};
    expect_words(hybridps_group_shm(&o, &g), HELIOS_EINVAL, "no '/'");
    expect_words(hybridps_group_shm(NULL, &g), HELIOS_EINVAL, "options");
    o.size = 0;
    expect_words(hybridps_group_shm(&o, &g), HELIOS_EINVAL, "sizeof(hybridps_shm_options)");
    assert_null(g);
}

/* A child that has joined as rank 0 of 2, as the file shows, and waits for the other rank. */
static pid_t half_a_group(void)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(CHILD_S);
        _exit(join(0, 2, 1000 * CHILD_S) != NULL ? 0 : 1);
    }
    struct hl_collective_shared seen = {0};
    char path[96];
    uint64_t until = hl_now_ns() + UINT64_C(20) * HL_NS_PER_S;
    snprintf(path, sizeof(path), "/dev/shm/%s", name);
    while (seen.rows[0].process.pid != pid) {
        int fd = open(path, O_RDONLY);
        if (fd >= 0 && read(fd, &seen, sizeof(seen)) < 0)
            fail_msg("read %s", path);
        close(fd);
        assert_true(hl_now_ns() < until);
    }
    return pid;
}

/* A group that all its ranks find and use. */
static int joins(int rank, int world)
{
    int all[2] = {-1, -1};
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL && hybridps_group_allgather(g, "a", &rank, all, sizeof(rank)) == 0);
    WANT(all[0] == 0 && all[1] == 1);
    hybridps_group_close(g);
    return 0;
}

TEST(a_rank_and_a_world_are_given_once_and_the_dead_give_theirs_back)
{
    int status;
    hybridps_group *g = NULL;
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = 0, .world = 2,
                              .timeout_ms = 100};
    pid_t pid = half_a_group();
    expect_words(hybridps_group_shm(&o, &g), HELIOS_ECONFLICT, "rank 0 is process");
    o.world = 3;
    o.rank = 2;
    expect_words(hybridps_group_shm(&o, &g), HELIOS_ECONFLICT, "the others gave 2");
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(exists());
    together(2, joins); /* under the same name */
    assert_false(exists());
}

TEST(a_fork_is_refused)
{
    float x[4] = {0};
    int status;
    hybridps_group *g = join(0, 1, 1000);
    assert_non_null(g);
    pid_t pid = fork();
    if (pid == 0)
        _exit(hybridps_group_allreduce(g, "x", x, 4, HYBRIDPS_F32, 0) == HELIOS_EPERM ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    hybridps_group_close(g);
}

/* ---- a transport of the caller's ---- */

struct own {
    uint64_t calls, most;
    int fail, closed;
};

/* Rank r contributes r times what rank 1, which is this one, contributes. */
static int own_allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    struct own *o = arg;
    const float *x = mine;
    float *y = all;
    assert_string_equal(what, "grad");
    o->calls++;
    o->most = bytes > o->most ? bytes : o->most;
    for (int r = 0; r < 3; r++)
        for (size_t i = 0; i < bytes / 4; i++)
            *y++ = (float)r * x[i];
    return o->fail;
}

static int own_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    (void)arg;
    (void)what;
    memset(data, src, bytes);
    return 0;
}

static const char *own_why(void *arg)
{
    return ((struct own *)arg)->fail ? "the cable is out" : "";
}

static void own_close(void *arg)
{
    ((struct own *)arg)->closed++;
}

TEST(a_transport_without_sums_has_them_made_piece_by_piece)
{
    struct own own = {0};
    hybridps_transport t = {HYBRIDPS_TRANSPORT_INIT,
                            .rank = 1,
                            .world = 3,
                            .arg = &own,
                            .allgather = own_allgather,
                            .broadcast = own_broadcast,
                            .why = own_why,
                            .close = own_close};
    hybridps_group *g = NULL;
    size_t n = 600001;
    float *x = malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(i % 1000);
    assert_int_equal(hybridps_group_over(&t, &g), 0);
    assert_int_equal(hybridps_group_allreduce(g, "grad", x, n, HYBRIDPS_F32, HYBRIDPS_MEAN), 0);
    for (size_t i = 0; i < n; i++)
        assert_true(x[i] == (float)(i % 1000));
    assert_int_equal(own.calls, 3);
    assert_int_equal(own.most, 1 << 20);
    expect_words(hybridps_group_broadcast(g, "b", x, 4, 3), HELIOS_EINVAL, "ranks 0 to 2");
    expect_words(hybridps_group_allreduce(g, "b", x, 4, 9, 0), HELIOS_EINVAL, "type 9 is unknown");
    own.fail = HELIOS_EIO;
    expect_words(hybridps_group_allreduce(g, "grad", x, n, 0, 0), HELIOS_EIO, "cable is out");
    own.fail = 0;
    expect_words(hybridps_group_allreduce(g, "grad", x, n, 0, 0), HELIOS_EUNAVAIL, "cable is out");
    hybridps_group_close(g);
    assert_int_equal(own.closed, 1);
    free(x);
    t.allgather = NULL;
    expect_words(hybridps_group_over(&t, &g), HELIOS_EINVAL, "allgather");
    hybridps_group_close(NULL);
}

int main(int argc, char **argv)
{
    snprintf(name, sizeof(name), "helios-test-group-%d", (int)getpid());
    return tests_run(argc, argv);
}
