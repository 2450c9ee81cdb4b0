/* Bytes are written to a file without a name in the same directory, so it disappears with the
 * process however that ends. For a moment it is called PATH.PID.tmp, before a rename gives it its
 * final name; if the file system has no such files, it has that name from the start. The bytes are
 * on the disk before the rename, so after a crash there is either the old file or the whole new
 * one. The directory is not synced, so the old one may come back.
 *
 * A PATH.PID.tmp that a killed process left is removed when the same PATH is written again. A
 * writer holds a lock on its file, which is valid for all hosts and namespaces that see the file
 * system; where there are no locks, the process id decides. */
#include "cli/cli/cli.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/file.h"

#define WRITE_MAX ((uint64_t)64 << 20) /* in one write: Linux moves less than 2 GiB at once */
#define SUFFIX    ".tmp"
#define FD_LINK   64

static hl_status fail_errno(const char *what, const char *path)
{
    int err = errno;
    return hl_fail(hl_status_of_errno(err), "%s %s: %s", what, path, strerror(err));
}

/* ---- what killed processes left -------------------------------------------------------------- */

/* "NAME.PID.tmp" of a process that has ended, or of an earlier one with our pid. */
static bool is_left_of(const char *entry, const char *name)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(entry, name, n) != 0 || entry[n] != '.' || !isdigit((unsigned char)entry[n + 1]))
        return false;
    errno = 0;
    long pid = strtol(entry + n + 1, &end, 10);
    if (errno != 0 || pid <= 0 || pid > INT_MAX || strcmp(end, SUFFIX) != 0)
        return false;
    return pid == getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

/* Removes a left file if it is ours and no host has a writer for it, in which case its lock is
 * free. */
static void left_remove(int dir, const char *entry)
{
    struct stat sb;
    HL_AUTO(hl_closep) int fd = openat(dir, entry, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &sb) == 0 && S_ISREG(sb.st_mode) && sb.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)unlinkat(dir, entry, 0);
}

/* Errors are ignored: the new file is written next to what is left. */
static void left_sweep(const char *dir, const char *name)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        if (is_left_of(e->d_name, name))
            left_remove(dirfd(d), e->d_name);
    closedir(d);
}

/* ---- the file -------------------------------------------------------------------------------- */

static void fd_link(int fd, char path[FD_LINK])
{
    snprintf(path, FD_LINK, "/proc/self/fd/%d", fd);
}

/* -1: the file system has no files without a name, or the file could not be named later. */
static int open_unnamed(const char *dir)
{
    char link[FD_LINK];
    int fd = open(dir, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0644);
    if (fd < 0)
        return -1;
    fd_link(fd, link);
    if (access(link, F_OK) == 0)
        return fd;
    close(fd);
    return -1;
}

static hl_status open_temp(struct outfile *f)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(f->path, '/');
    snprintf(dir, sizeof(dir), "%.*s", slash != NULL ? (int)(slash - f->path) + 1 : 1,
             slash != NULL ? f->path : ".");
    left_sweep(dir, slash != NULL ? slash + 1 : f->path);
    f->fd = open_unnamed(dir);
    f->is_unnamed = f->fd >= 0;
    if (!f->is_unnamed)
        f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return fail_errno("write", errno == EEXIST ? f->temp : f->path);
    (void)flock(f->fd, LOCK_EX | LOCK_NB); /* some file systems have no locks */
    return HL_OK;
}

hl_status outfile_open(const char *path, struct outfile *out)
{
    struct outfile f = {.fd = -1};
    struct stat sb;
    if (strcmp(path, "-") == 0) {
        if (isatty(STDOUT_FILENO))
            return hl_fail(HL_EINVAL, "the result is binary and stdout is a terminal; redirect "
                                      "stdout or name a file with --out");
        f.fd = STDOUT_FILENO;
        f.is_stdout = true;
        snprintf(f.path, sizeof(f.path), "stdout");
        *out = f;
        return HL_OK;
    }
    HL_TRY(cli_path(f.temp, "%s.%d" SUFFIX, path, (int)getpid()));
    snprintf(f.path, sizeof(f.path), "%s", path);
    bool exists = stat(path, &sb) == 0;
    if (exists && S_ISDIR(sb.st_mode))
        return hl_fail(HL_EINVAL, "%s is a directory; name a file", path);
    /* A rename would replace a device or a pipe by a file. */
    f.in_place = exists && !S_ISREG(sb.st_mode);
    if (f.in_place)
        f.fd = open(path, O_WRONLY | O_CLOEXEC);
    else
        HL_TRY(open_temp(&f));
    if (f.fd < 0)
        return fail_errno("write", path);
    *out = f;
    return HL_OK;
}

/* The file's header is written too, but it is not part of the total. */
static void outfile_draw(const struct outfile *f)
{
    uint64_t done = f->before + f->written;
    if (f->bar != NULL)
        cli_progress_update(f->bar, done < f->total ? done : f->total, f->total);
}

hl_status outfile_write(struct outfile *f, const void *data, uint64_t len)
{
    const char *at = data;
    while (len > 0) {
        ssize_t n = write(f->fd, at, len < WRITE_MAX ? len : WRITE_MAX);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("write", f->path);
        at += n;
        len -= (uint64_t)n;
        f->written += (uint64_t)n;
        outfile_draw(f);
    }
    return HL_OK;
}

hl_status outfile_commit(struct outfile *f)
{
    if (f->is_stdout) {
        f->fd = -1;
        return HL_OK;
    }
    if (!f->in_place && fsync(f->fd) != 0)
        return fail_errno("sync", f->path);
    if (f->is_unnamed) {
        char link[FD_LINK];
        fd_link(f->fd, link);
        if (linkat(AT_FDCWD, link, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW) != 0)
            return fail_errno("write", errno == EEXIST ? f->temp : f->path);
        f->is_unnamed = false;
    }
    if (!f->in_place && rename(f->temp, f->path) != 0)
        return fail_errno("write", f->path);
    int fd = f->fd;
    f->fd = -1;
    return close(fd) == 0 ? HL_OK : fail_errno("write", f->path);
}

void outfile_abort(struct outfile *f)
{
    if (f->fd < 0 || f->is_stdout)
        return;
    close(f->fd);
    if (!f->in_place && !f->is_unnamed)
        unlink(f->temp);
    f->fd = -1;
}

hl_status outfile_text(const char *path, const char *text)
{
    struct outfile f;
    HL_TRY(outfile_open(path, &f));
    hl_status st = outfile_write(&f, text, strlen(text));
    if (st == HL_OK)
        st = outfile_commit(&f);
    outfile_abort(&f);
    return st;
}
