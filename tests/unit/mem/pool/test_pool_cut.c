/* A pool's file that is truncated while it is mapped: readers get an error, the owner ends with a
 * message. */
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/pool/pool.h"
#include "os/map_guard.h"

#define MIB    ((uint64_t)1 << 20)
#define SHARDS 3

static char path[64];

static struct hl_pool_ref put(struct hl_pool *pool, int byte)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_alloc(pool, MIB, &x), HL_OK);
    memset(x.ptr, byte, MIB);
    uint32_t crc = hl_crc32(0, x.ptr, MIB);
    assert_int_equal(hl_pool_seal(pool, &x, crc, &crc, 1, &ref), HL_OK);
    return ref;
}

static struct hl_pool *open_pool(uint32_t beat_ms)
{
    struct hl_pool *pool = NULL;
    snprintf(path, sizeof(path), "/dev/shm/helios-test-cut-%d.pool", (int)getpid());
    assert_int_equal(
        hl_pool_open(
            &(struct hl_pool_options){.path = path, .capacity = 8 * MIB, .beat_ms = beat_ms}, NULL,
            &pool),
        HL_OK);
    return pool;
}

static struct hl_pool_view *open_view(const struct hl_pool *pool)
{
    struct hl_pool_view *view = NULL;
    int fd = -1;
    assert_int_equal(hl_pool_reopen(pool, &fd), HL_OK);
    assert_int_equal(hl_pool_view_open(fd, &view), HL_OK);
    close(fd);
    return view;
}

/* These come first: they install the guard in a process of their own. */
TEST(an_owner_ends_with_a_sentence)
{
    int out[2], how = 0;
    char said[4096] = "";
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) {
        hl_map_guard_install();
        dup2(out[1], STDERR_FILENO);
        struct hl_pool *pool = open_pool(10);
        if (truncate(path, 0) != 0)
            _exit(99);
        alarm(30); /* the heartbeat ends this process earlier */
        for (;;)
            pause();
        hl_pool_close(pool);
    }
    close(out[1]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(read(out[0], said, sizeof(said) - 1) > 0);
    close(out[0]);
    snprintf(path, sizeof(path), "/dev/shm/helios-test-cut-%d.pool", (int)pid);
    unlink(path);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 1);
    assert_non_null(strstr(said, "truncated"));
    assert_non_null(strstr(said, path));
}

/* Half of the file is cut off, and nothing reads that half. */
TEST(an_owner_notices_a_cut_that_nobody_reads)
{
    int how = 0;
    pid_t pid = fork();
    if (pid == 0) {
        hl_map_guard_install();
        struct hl_pool *pool = open_pool(10);
        size_t size;
        hl_pool_base(pool, &size);
        if (truncate(path, (off_t)(size / 2)) != 0)
            _exit(99);
        alarm(30); /* the heartbeat ends this process earlier */
        for (;;)
            pause();
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    snprintf(path, sizeof(path), "/dev/shm/helios-test-cut-%d.pool", (int)pid);
    unlink(path);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 1);
}

/* Not a failed load: a signal from another process, for which no handler was installed before. */
TEST(a_signal_that_was_sent_ends_the_process)
{
    int how = 0;
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, SIG_DFL);
        hl_map_guard_install();
        kill(getpid(), SIGBUS);
        _exit(99);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFSIGNALED(how));
    assert_int_equal(WTERMSIG(how), SIGBUS);
}

static sigjmp_buf elsewhere;

static void note_elsewhere(int number)
{
    (void)number;
    siglongjmp(elsewhere, 1);
}

/* Run in a child that has installed its own handler before the guard. */
TEST(other_mappings_are_left_to_the_handler_before)
{
    int how = 0;
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGBUS, note_elsewhere);
        hl_map_guard_install();
        int fd = memfd_create("cut", 0);
        volatile char *p = NULL;
        if (ftruncate(fd, 1 << 16) == 0)
            p = mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
        if (p == NULL || ftruncate(fd, 0) != 0)
            _exit(99);
        if (sigsetjmp(elsewhere, 1) != 0)
            _exit(7);
        _exit(p[0] + 1);
    }
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(WIFEXITED(how));
    assert_int_equal(WEXITSTATUS(how), 7);
}

/* From here on this process has the guard itself. */
TEST(readers_get_an_error_where_the_file_has_ended)
{
    hl_map_guard_install();
    struct hl_pool *pool = open_pool(0);
    struct hl_pool_view *view = open_view(pool);
    struct hl_pool_ref refs[SHARDS];
    uint64_t last = 0;
    uint8_t *buf = malloc(MIB);
    for (int i = 0; i < SHARDS; i++) {
        refs[i] = put(pool, i + 1);
        last = refs[i].offset > last ? refs[i].offset : last;
    }
    assert_int_equal(hl_pool_view_read(view, &refs[0], 0, buf, MIB), HL_OK);
    assert_int_equal(truncate(path, (off_t)(last + MIB / 2)), 0);
    for (int i = 0; i < SHARDS; i++) {
        hl_status st = hl_pool_view_read(view, &refs[i], 0, buf, MIB);
        if (refs[i].offset < last && st == HL_OK) {
            assert_int_equal(buf[MIB - 1], i + 1);
            continue;
        }
        assert_int_equal(st, HL_EUNAVAIL);
        assert_non_null(strstr(hl_error_text(), "truncated"));
    }
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(hl_pool_view_read(view, &refs[0], 0, buf, MIB), HL_EUNAVAIL);
    struct hl_pool_ref found;
    assert_int_equal(hl_pool_view_find(view, refs[1].id, &found), HL_EUNAVAIL);
    hl_pool_view_put(view);
    hl_pool_close(pool);
    unlink(path);
    free(buf);
}

TEST(nothing_is_acknowledged_in_a_pool_that_was_cut_short)
{
    hl_map_guard_install();
    struct hl_pool *pool = open_pool(0);
    struct hl_pool_extent x, lease, other;
    struct hl_pool_ref ref, old = put(pool, 1);
    assert_int_equal(hl_pool_alloc(pool, MIB, &x), HL_OK);
    assert_int_equal(hl_pool_alloc(pool, MIB, &lease), HL_OK);
    assert_int_equal(hl_pool_alloc(pool, MIB, &other), HL_OK);
    memset(x.ptr, 1, MIB);
    uint32_t crc = hl_crc32(0, x.ptr, MIB);
    size_t size;
    hl_pool_base(pool, &size);
    assert_int_equal(truncate(path, (off_t)(size - MIB)), 0);
    assert_int_equal(hl_pool_seal(pool, &x, crc, &crc, 1, &ref), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), path));
    assert_int_equal(hl_pool_seal_leased(pool, &lease, crc, &crc, 1, &ref), HL_EUNAVAIL);
    assert_int_equal(hl_pool_replace(pool, &old, &other, &crc, 1, &ref), HL_EUNAVAIL);
    hl_pool_close(pool);
    unlink(path);
}
