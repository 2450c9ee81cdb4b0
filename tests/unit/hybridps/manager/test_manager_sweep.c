/* Tables that are removed because all their users are dead, and those that are not. */
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hybridps/manager/table.h"
#include "os/map_guard.h"

#define END "-sweep"

static char begin[48];

static void name_of(const char *which, char *out, size_t size)
{
    snprintf(out, size, "%s%s" END, begin, which);
}

static hl_status open_table(const char *which, struct hl_manager_table *t)
{
    static const uint64_t capacity[] = {100, 100};
    char name[96];
    name_of(which, name, sizeof(name));
    struct hl_manager_options o = {.name = name, .capacity = capacity, .devices = 2};
    return hl_manager_table_open(&o, t);
}

/* Made by a process that ends without closing it. */
static void dead_table(const char *which)
{
    struct hl_manager_table t;
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(open_table(which, &t) == HL_OK ? 0 : 1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* A descriptor of the file, or -1. */
static int file_of(const char *which)
{
    char name[96], path[100];
    name_of(which, name, sizeof(name));
    snprintf(path, sizeof(path), "/%s", name);
    return shm_open(path, O_RDWR, 0);
}

static int exists(const char *which)
{
    int fd = file_of(which);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

TEST(the_dead_ones_table_goes_and_anothers_stays)
{
    struct hl_manager_table t;
    dead_table("dead");
    dead_table("shared");
    assert_int_equal(open_table("shared", &t), HL_OK); /* now belongs to a live process */
    assert_int_equal(hl_manager_sweep(begin, END, 0), 1);
    assert_false(exists("dead"));
    assert_true(exists("shared"));
    assert_int_equal(hl_manager_lock(&t, 0), HL_OK);
    hl_manager_unlock(&t, 0);
    hl_manager_table_close(&t);
    assert_false(exists("shared"));
}

/* By another process, while a live daemon has it mapped; the daemon makes a new one. */
TEST(a_table_that_was_cut_short_is_an_error_and_is_replaced)
{
    const off_t sizes[] = {0, sizeof(struct hl_manager_shared) / 2};
    hl_map_guard_install(); /* cmocka takes the signal for each test */
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hl_manager_table t;
        assert_int_equal(open_table("cut", &t), HL_OK);
        int fd = file_of("cut");
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        (void)!hl_manager_reap_by_age(&t); /* lives on */
        assert_int_equal(hl_manager_check_whole(&t), HL_EUNAVAIL);
        assert_non_null(strstr(hl_error_text(), "truncated"));
        hl_manager_table_close(&t);
        assert_false(exists("cut"));
        assert_int_equal(open_table("cut", &t), HL_OK);
        assert_int_equal(hl_manager_check_whole(&t), HL_OK);
        hl_manager_table_close(&t);
    }
}

TEST(a_table_that_somebody_is_about_to_open_stays)
{
    dead_table("locked");
    int fd = file_of("locked");
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(hl_manager_sweep(begin, END, 0), 0);
    assert_true(exists("locked"));
    close(fd);
    assert_int_equal(hl_manager_sweep(begin, END, 0), 1);
    assert_false(exists("locked"));
}

TEST(one_that_was_looked_into_of_late_stays)
{
    dead_table("young");
    assert_int_equal(hl_manager_sweep(begin, END, 3600 * 1000), 0);
    assert_int_equal(hl_manager_sweep(begin, "-other", 0), 0);
    assert_int_equal(hl_manager_sweep("other-", END, 0), 0);
    assert_true(exists("young"));
    assert_int_equal(hl_manager_sweep(begin, END, 0), 1);
}

TEST(what_is_no_table_of_ours_stays)
{
    static const off_t sizes[] = {0, 5, sizeof(struct hl_manager_shared)};
    char name[96], path[100];
    name_of("foreign", name, sizeof(name));
    snprintf(path, sizeof(path), "/%s", name);
    for (size_t i = 0; i < 3; i++) {
        int fd = shm_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
        assert_int_equal(ftruncate(fd, sizes[i]), 0);
        close(fd);
        assert_int_equal(hl_manager_sweep(begin, END, 0), 0);
        assert_true(exists("foreign"));
        assert_int_equal(shm_unlink(path), 0);
    }
    dead_table("foreign"); /* whose processes are not visible here */
    int fd = file_of("foreign");
    uint64_t elsewhere = 1;
    off_t at = offsetof(struct hl_manager_shared, pid_namespace);
    assert_int_equal(pwrite(fd, &elsewhere, sizeof(elsewhere), at), sizeof(elsewhere));
    close(fd);
    assert_int_equal(hl_manager_sweep(begin, END, 0), 0);
    assert_int_equal(shm_unlink(path), 0);
}

int main(int argc, char **argv)
{
    snprintf(begin, sizeof(begin), "helios-test-%d-", (int)getpid());
    return tests_run(argc, argv);
}
