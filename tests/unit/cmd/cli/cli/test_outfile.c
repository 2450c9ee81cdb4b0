/* Result files of the command line: complete or absent, however the process ends; what an earlier
 * one left is removed. */
#include "support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli/cli.h"
#include "os/file.h"

static char home[64];

static int make_home(void **state __attribute__((unused)))
{
    snprintf(home, sizeof(home), "/tmp/helios-outfile-XXXXXX");
    return mkdtemp(home) != NULL ? 0 : -1;
}

static int remove_home(void **state __attribute__((unused)))
{
    return hl_dir_remove(home) == HL_OK ? 0 : -1;
}

struct path {
    char s[160];
};

static struct path in_home(const char *name)
{
    struct path p;
    snprintf(p.s, sizeof(p.s), "%s/%s", home, name);
    return p;
}

static struct path temp_of(const char *name, long pid)
{
    struct path p;
    snprintf(p.s, sizeof(p.s), "%s/%s.%ld.tmp", home, name, pid);
    return p;
}

static void put_file(struct path p, const char *text)
{
    FILE *f = fopen(p.s, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static bool is_there(struct path p)
{
    struct stat sb;
    return lstat(p.s, &sb) == 0;
}

static void assert_holds(struct path p, const char *text)
{
    HL_AUTO(hl_buf_fini) struct hl_buf bytes = HL_BUF(4096);
    assert_int_equal(hl_file_read(p.s, &bytes), HL_OK);
    assert_int_equal(bytes.len, strlen(text));
    assert_memory_equal(bytes.data, text, bytes.len);
}

static size_t entries(void)
{
    size_t n = 0;
    DIR *d = opendir(home);
    assert_non_null(d);
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Starts a process that writes half of a file and is killed; returns its pid. `root`: it sees
 * nothing above. */
static long die_writing(const char *root, const char *path)
{
    pid_t pid = fork();
    int status;
    assert_true(pid >= 0);
    if (pid == 0) {
        struct outfile f;
        if (root == NULL || (chroot(root) == 0 && chdir("/") == 0))
            if (outfile_open(path, &f) == HL_OK && outfile_write(&f, "half", 4) == HL_OK)
                raise(SIGKILL);
        _exit(1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return pid;
}

TEST_IN(make_home, remove_home, a_file_replaces_the_old_one_and_nothing_else_stays)
{
    struct path p = in_home("x");
    struct stat sb;
    put_file(p, "old");
    assert_int_equal(outfile_text(p.s, "new"), HL_OK);
    assert_holds(p, "new");
    assert_int_equal(stat(p.s, &sb), 0);
    mode_t mask = umask(0);
    umask(mask);
    assert_int_equal(sb.st_mode & 0777, 0644 & ~mask);
    assert_int_equal(entries(), 1);
}

TEST_IN(make_home, remove_home, what_is_not_committed_leaves_nothing)
{
    struct outfile f;
    put_file(in_home("x"), "old");
    assert_int_equal(outfile_open(in_home("x").s, &f), HL_OK);
    assert_int_equal(outfile_write(&f, "half", 4), HL_OK);
    assert_int_equal(entries(), 1); /* the new one has no name yet */
    outfile_abort(&f);
    assert_holds(in_home("x"), "old");
    assert_int_equal(entries(), 1);
}

TEST_IN(make_home, remove_home, a_killed_process_leaves_nothing)
{
    put_file(in_home("x"), "old");
    die_writing(NULL, in_home("x").s);
    assert_holds(in_home("x"), "old");
    assert_int_equal(entries(), 1);
}

/* Without /proc a file without a name could not get one later. */
TEST_IN(make_home, remove_home, what_a_killed_process_had_to_name_goes_with_the_next_file)
{
    if (geteuid() != 0)
        TEST_SKIP("needs root");
    long pid = die_writing(home, "x");
    assert_holds(temp_of("x", pid), "half");
    assert_int_equal(outfile_text(in_home("y").s, "another"), HL_OK);
    assert_true(is_there(temp_of("x", pid)));
    assert_int_equal(outfile_text(in_home("x").s, "new"), HL_OK);
    assert_holds(in_home("x"), "new");
    assert_int_equal(entries(), 2);
}

TEST_IN(make_home, remove_home, an_own_number_of_an_earlier_process_is_no_obstacle)
{
    put_file(temp_of("x", getpid()), "left");
    assert_int_equal(outfile_text(in_home("x").s, "new"), HL_OK);
    assert_holds(in_home("x"), "new");
    assert_int_equal(entries(), 1);
}

/* Files of a live process, and of one on another host that holds a lock on its file. */
TEST_IN(make_home, remove_home, what_others_write_stays)
{
    long dead = die_writing(NULL, in_home("z").s);
    int fd = open(temp_of("x", dead).s, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    put_file(temp_of("x", getppid()), "of a living one");
    assert_int_equal(outfile_text(in_home("x").s, "new"), HL_OK);
    assert_true(is_there(temp_of("x", dead)));
    assert_true(is_there(temp_of("x", getppid())));
    close(fd);
    assert_int_equal(outfile_text(in_home("x").s, "new"), HL_OK);
    assert_false(is_there(temp_of("x", dead)));
    assert_true(is_there(temp_of("x", getppid())));
}

TEST_IN(make_home, remove_home, what_only_looks_like_one_stays)
{
    long dead = die_writing(NULL, in_home("z").s);
    char number[32];
    snprintf(number, sizeof(number), "%ld", dead);
    put_file(in_home("outside"), "outside");
    assert_int_equal(symlink(in_home("outside").s, temp_of("x", dead).s), 0);
    static const char *const others[] = {"x.tmp",
                                         "x..tmp",
                                         "x.0.tmp",
                                         "x.12a.tmp",
                                         "x.-5.tmp",
                                         "x. 5.tmp",
                                         "x.99999999999999999999.tmp"};
    for (size_t i = 0; i < HL_ARRAY_LEN(others); i++)
        put_file(in_home(others[i]), "mine");
    put_file(temp_of("xx", dead), "of another target");
    assert_int_equal(mkdir(temp_of("w", dead).s, 0700), 0);
    assert_int_equal(outfile_text(in_home("x").s, "new"), HL_OK);
    assert_int_equal(outfile_text(in_home("w").s, "new"), HL_OK);
    assert_int_equal(entries(), HL_ARRAY_LEN(others) + 6);
    assert_holds(in_home("outside"), "outside");
}

TEST_IN(make_home, remove_home, a_directory_is_refused_before_anything_is_written)
{
    struct outfile f;
    assert_int_equal(outfile_open(home, &f), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), home));
    assert_non_null(strstr(hl_error_text(), "is a directory"));
}
