/* A file that a command writes is there as a whole or not at all, whenever the command is killed.
 */
#include "support/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli/cli.h"
#include "os/file.h"

static char dir[] = "/tmp/helios-outfile-XXXXXX";
static char path[64];

static int setup(void **state)
{
    (void)state;
    memset(dir + strlen(dir) - 6, 'X', 6);
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/out", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return hl_dir_remove(dir) == HL_OK ? 0 : -1;
}

/* Names in the directory. */
static int count_names(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void expect_text(const char *want)
{
    char got[32] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(got, sizeof(got), f));
    fclose(f);
    assert_string_equal(got, want);
}

TEST_IN(setup, teardown, a_file_has_no_name_before_it_is_whole)
{
    struct outfile f;
    int fd = open(dir, O_TMPFILE | O_WRONLY, 0600); /* the file system can do it */
    assert_int_equal(outfile_open(path, &f), HL_OK);
    assert_int_equal(outfile_write(&f, "first", 5), HL_OK);
    assert_int_equal(count_names(), fd >= 0 ? 0 : 1);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(outfile_commit(&f), HL_OK);
    assert_int_equal(count_names(), 1);
    expect_text("first");
    close(fd);
}

TEST_IN(setup, teardown, the_old_file_stays_until_the_new_one_is_whole)
{
    struct outfile f;
    char stale[96];
    assert_int_equal(outfile_text(path, "old"), HL_OK);
    snprintf(stale, sizeof(stale), "%s.%d.tmp", path, (int)getpid());
    assert_int_equal(outfile_text(stale, "left by another process of this number"), HL_OK);
    assert_int_equal(outfile_open(path, &f), HL_OK);
    assert_int_equal(outfile_write(&f, "new", 3), HL_OK);
    expect_text("old");
    assert_int_equal(outfile_commit(&f), HL_OK);
    expect_text("new");
    assert_int_equal(count_names(), 1);
    assert_int_equal(outfile_open(path, &f), HL_OK);
    outfile_abort(&f);
    assert_int_equal(count_names(), 1);
    expect_text("new");
}
