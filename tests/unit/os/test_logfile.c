#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/file.h"
#include "os/logfile.h"

#define SIZE 64

static char dir[64];
static struct hl_loop *loop;
static struct hl_timer *timer;
static int out_fd, err_fd; /* the test's own, while the log has its numbers */
static bool no_links;      /* as on a file system without hard links */

/* Replaces libc's. */
int link(const char *from, const char *to)
{
    if (no_links) {
        errno = EPERM;
        return -1;
    }
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

static int setup(void **state)
{
    (void)state;
    no_links = false;
    snprintf(dir, sizeof(dir), "/tmp/helios-test-logfile-XXXXXX");
    fflush(stdout);
    out_fd = dup(STDOUT_FILENO);
    err_fd = dup(STDERR_FILENO);
    return mkdtemp(dir) == NULL || hl_loop_create(&loop) != HL_OK;
}

static int teardown(void **state)
{
    (void)state;
    hl_loop_destroy(loop);
    return hl_dir_remove(dir) != HL_OK;
}

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof(path[0]), "%s/%s", dir, name);
    return out;
}

static void write_file(const char *name, const char *text)
{
    assert_int_equal(hl_file_write_atomic(in_dir(name), text, strlen(text)), HL_OK);
}

static void assert_content(const char *name, const char *want)
{
    struct hl_buf text = HL_BUF(4096);
    assert_int_equal(hl_file_read(in_dir(name), &text), HL_OK);
    assert_string_equal(text.data, want);
    hl_buf_fini(&text);
}

static bool exists(const char *name)
{
    return access(in_dir(name), F_OK) == 0;
}

static ino_t inode_of(const char *name)
{
    struct stat sb;
    return stat(in_dir(name), &sb) == 0 ? sb.st_ino : 0;
}

static ino_t was;

static void stop_when_rotated(void *arg)
{
    (void)arg;
    ino_t is = inode_of("log");
    if (is != 0 && is != was)
        hl_loop_stop(loop);
}

/* Writes until the log has been rotated; then a line into the new one. */
static void rotate(int keep)
{
    struct hl_logfile *log = NULL;
    was = inode_of("log");
    assert_int_equal(hl_logfile_start(loop, in_dir("log"), SIZE, keep, &log), HL_OK);
    hl_status st = hl_timer_create(loop, 5, 5, stop_when_rotated, NULL, &timer);
    if (st == HL_OK)
        st = hl_loop_run(loop);
    bool written = write(STDERR_FILENO, "new\n", 4) == 4;
    hl_timer_destroy(timer);
    hl_logfile_stop(log);
    dup2(out_fd, STDOUT_FILENO);
    dup2(err_fd, STDERR_FILENO);
    close(out_fd);
    close(err_fd);
    assert_int_equal(st, HL_OK);
    assert_true(written);
}

static const char full[] =
    "a line\nsixty-four bytes and more, so that there is no room for others\n";

/* How often the directory lost a name; a replacement does not count. */
static int removals_of(int watch, const char *name)
{
    char events[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
    ssize_t got = read(watch, events, sizeof(events));
    assert_true(got > 0);
    int count = 0;
    for (ssize_t at = 0; at < got;) {
        const struct inotify_event *e = (const void *)(events + at);
        count += e->len > 0 && strcmp(e->name, name) == 0;
        at += (ssize_t)sizeof(*e) + e->len;
    }
    return count;
}

static void rotate_watched(int keep, int removals)
{
    write_file("log", full);
    int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_true(watch >= 0);
    assert_true(inotify_add_watch(watch, dir, IN_MOVED_FROM | IN_DELETE) >= 0);
    rotate(keep);
    assert_int_equal(removals_of(watch, "log"), removals);
    close(watch);
    assert_content("log", "new\n");
}

TEST_IN(setup, teardown, a_rotated_log_is_at_its_path_at_every_moment)
{
    write_file("log.1", "older");
    write_file("log.2", "oldest");
    rotate_watched(2, 0);
    assert_content("log.1", full);
    assert_content("log.2", "older");
    assert_false(exists("log.3"));
}

TEST_IN(setup, teardown, a_log_of_which_none_is_kept_is_at_its_path_at_every_moment)
{
    rotate_watched(0, 0);
    assert_false(exists("log.1"));
}

TEST_IN(setup, teardown, a_log_is_rotated_without_hard_links_too)
{
    no_links = true;
    write_file("log.1", "older");
    rotate_watched(1, 1); /* for a moment it is only PATH.1 */
    assert_content("log.1", full);
}

TEST_IN(setup, teardown, what_a_dead_process_left_of_a_rotation_does_not_matter)
{
    write_file("log", full);
    write_file(".log.new", "a new file that was never used");
    write_file(".log.old", "a second name of another log");
    rotate(1);
    assert_content("log", "new\n");
    assert_content("log.1", full);
    assert_false(exists(".log.new"));
    assert_false(exists(".log.old"));
}

TEST_IN(setup, teardown, a_rotation_that_was_broken_off_is_finished)
{
    write_file("log", full);
    write_file("log.2", "older");
    assert_int_equal(link(in_dir("log"), in_dir("log.1")), 0);
    rotate(2);
    assert_content("log", "new\n");
    assert_content("log.1", full);
    assert_content("log.2", "older");
}
