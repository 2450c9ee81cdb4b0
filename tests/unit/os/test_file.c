#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/helios-test-file-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    return hl_dir_remove(dir) != HL_OK;
}

static const char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

TEST_IN(setup, teardown, a_written_file_is_read_back_and_leaves_no_other)
{
    struct hl_buf text = HL_BUF(64);
    assert_int_equal(hl_file_write_atomic(in_dir("a"), "one", 3), HL_OK);
    assert_int_equal(hl_file_write_atomic(in_dir("a"), "two", 3), HL_OK);
    assert_int_equal(hl_file_read(in_dir("a"), &text), HL_OK);
    assert_string_equal(text.data, "two");
    hl_buf_fini(&text);
    assert_int_equal(unlink(in_dir("a")), 0);
    assert_int_equal(rmdir(dir), 0); /* empty: no temporary file stayed */
    assert_int_equal(mkdir(dir, 0700), 0);
}

TEST_IN(setup, teardown, a_private_directory_is_closed_to_others)
{
    struct stat sb;
    assert_int_equal(mkdir(in_dir("open"), 0755), 0);
    assert_int_equal(hl_dir_make_private(in_dir("open")), HL_OK);
    assert_int_equal(stat(in_dir("open"), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
    assert_int_equal(hl_dir_make_private(in_dir("new/below")), HL_OK);
    assert_int_equal(stat(in_dir("new/below"), &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0700);
}

TEST_IN(setup, teardown, a_directory_of_another_user_is_not_private)
{
    if (geteuid() != 0)
        skip();
    assert_int_equal(mkdir(in_dir("theirs"), 0700), 0);
    assert_int_equal(chown(in_dir("theirs"), 1, 1), 0);
    assert_int_equal(hl_dir_make_private(in_dir("theirs")), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "theirs"));
}

TEST_IN(setup, teardown, a_link_laid_in_the_way_is_not_written_through)
{
    struct hl_buf text = HL_BUF(64);
    char temp[300];
    assert_int_equal(hl_file_write_atomic(in_dir("victim"), "whole", 5), HL_OK);
    snprintf(temp, sizeof(temp), "%s.%d.tmp", in_dir("a"), (int)gettid());
    assert_int_equal(symlink("victim", temp), 0);
    assert_int_equal(hl_file_write_atomic(in_dir("a"), "one", 3), HL_OK);
    assert_int_equal(symlink("victim", temp), 0);
    assert_int_equal(hl_file_write_durable(in_dir("a"), "two", 3, 0600), HL_OK);
    assert_int_equal(hl_file_read(in_dir("victim"), &text), HL_OK);
    assert_string_equal(text.data, "whole");
    hl_buf_fini(&text);
    assert_int_equal(unlink(in_dir("a")), 0);
    assert_int_equal(unlink(in_dir("victim")), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
}

TEST_IN(setup, teardown, a_file_larger_than_allowed_is_refused)
{
    struct hl_buf text = HL_BUF(8);
    assert_int_equal(hl_file_write_atomic(in_dir("big"), "0123456789", 10), HL_OK);
    assert_int_equal(hl_file_read(in_dir("big"), &text), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "larger than 8 bytes"));
    hl_buf_fini(&text);
}

TEST_IN(setup, teardown, failures_name_the_path)
{
    struct hl_buf text = HL_BUF(8);
    assert_int_equal(hl_file_read("/no/such", &text), HL_ENOENT);
    assert_string_equal(hl_error_text(), "read /no/such: No such file or directory");
    assert_int_equal(hl_file_write_atomic("/no/such", "", 0), HL_ENOENT);
    assert_string_equal(hl_error_text(), "write /no/such: No such file or directory");
    assert_int_equal(hl_dir_make("/proc/x/y", 0755), HL_ENOENT);
    assert_int_equal(hl_dir_make("", 0755), HL_EINVAL);
}

TEST_IN(setup, teardown, directories_are_made_with_their_parents)
{
    struct stat sb;
    assert_int_equal(hl_dir_make(in_dir("x/y/z"), 0755), HL_OK);
    assert_int_equal(hl_dir_make(in_dir("x/y/z"), 0755), HL_OK);
    assert_int_equal(stat(in_dir("x/y/z"), &sb), 0);
    assert_int_equal(hl_file_write_atomic(in_dir("file"), "", 0), HL_OK);
    assert_int_equal(hl_dir_make(in_dir("file"), 0755), HL_ENOENT);
    assert_int_equal(hl_dir_make(in_dir("file/below"), 0755), HL_ENOENT);
}

TEST_IN(setup, teardown, a_durable_file_has_its_mode_and_leaves_no_other)
{
    struct stat sb;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(64);
    mode_t before = umask(0077);
    assert_int_equal(hl_dir_make(in_dir("durable"), 0755), HL_OK);
    assert_int_equal(hl_file_write_durable(in_dir("durable/f"), "one", 3, 0600), HL_OK);
    assert_int_equal(hl_file_write_durable(in_dir("durable/f"), "second", 6, 0644), HL_OK);
    umask(before);
    assert_int_equal(stat(in_dir("durable/f"), &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0644);
    assert_int_equal(hl_file_read(in_dir("durable/f"), &text), HL_OK);
    assert_string_equal(text.data, "second");
    assert_int_equal(unlink(in_dir("durable/f")), 0);
    assert_int_equal(rmdir(in_dir("durable")), 0); /* nothing else was in it */
    assert_int_equal(hl_file_write_durable(in_dir("durable/f"), "x", 1, 0644), HL_ENOENT);
}

TEST_IN(setup, teardown, removal_does_not_follow_links)
{
    char target[256];
    assert_int_equal(hl_dir_make(in_dir("keep"), 0755), HL_OK);
    assert_int_equal(hl_file_write_atomic(in_dir("keep/file"), "x", 1), HL_OK);
    assert_int_equal(hl_dir_make(in_dir("gone/deep/er"), 0755), HL_OK);
    assert_int_equal(hl_file_write_atomic(in_dir("gone/deep/f"), "x", 1), HL_OK);
    snprintf(target, sizeof(target), "%s", in_dir("keep"));
    assert_int_equal(symlink(target, in_dir("gone/link")), 0);
    assert_int_equal(hl_dir_remove(in_dir("gone")), HL_OK);
    assert_int_equal(access(in_dir("gone"), F_OK), -1);
    assert_int_equal(access(in_dir("keep/file"), F_OK), 0);
    assert_int_equal(hl_dir_remove(in_dir("gone")), HL_OK);
}

TEST_IN(setup, teardown, a_file_of_one_number_is_that_number_and_no_other_file_is)
{
    static const struct {
        const char *text;
        bool is_number;
        int64_t number;
    } files[] = {
        {"100000\n", true, 100000},
        {"-1\n", true, -1},
        {"7", true, 7},
        {"", false, 0},
        {"\n", false, 0},
        {"1 2\n", false, 0},
        {"0x10\n", false, 0},
        {"ten", false, 0},
        {"99999999999999999999\n", false, 0},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++) {
        int64_t number = 42;
        assert_int_equal(hl_file_write_atomic(in_dir("n"), files[i].text, strlen(files[i].text)),
                         HL_OK);
        assert_int_equal(hl_file_read_number(in_dir("n"), &number), files[i].is_number);
        assert_int_equal(number, files[i].is_number ? files[i].number : 42);
    }
    int64_t number = 42;
    assert_false(hl_file_read_number(in_dir("none"), &number));
    assert_int_equal(number, 42);
}

static struct timespec time_of(const char *path)
{
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_mtim;
}

/* Waits for a tick of the file system's clock, which is coarser than the system's. */
static void await_tick(struct timespec since)
{
    uint64_t deadline = hl_now_ns() + 10 * HL_NS_PER_S;
    struct timespec now;
    do {
        assert_true(hl_now_ns() < deadline);
        assert_int_equal(hl_file_write_atomic(in_dir("tick"), "", 0), HL_OK);
        now = time_of(in_dir("tick"));
    } while (now.tv_sec == since.tv_sec && now.tv_nsec == since.tv_nsec);
}

TEST_IN(setup, teardown, a_directory_keeps_its_identity_and_a_new_one_in_its_place_has_another)
{
    char first[64], moved[64], second[64], none[64];
    assert_int_equal(hl_dir_make(in_dir("one"), 0755), HL_OK);
    struct timespec made = time_of(in_dir("one"));
    hl_dir_identity(in_dir("one"), first, sizeof(first));
    assert_true(first[0] != '\0');
    char other[256];
    snprintf(other, sizeof(other), "%s", in_dir("other"));
    assert_int_equal(rename(in_dir("one"), other), 0);
    hl_dir_identity(other, moved, sizeof(moved));
    assert_string_equal(moved, first);
    await_tick(made);
    for (int i = 0; i < 20; i++) { /* inode numbers are reused */
        assert_int_equal(hl_dir_remove(other), HL_OK);
        assert_int_equal(hl_dir_make(other, 0755), HL_OK);
        hl_dir_identity(other, second, sizeof(second));
        assert_string_not_equal(second, first);
    }
    hl_dir_identity(in_dir("none"), none, sizeof(none));
    assert_string_equal(none, "");
}
