#include "cli/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/file.h"

/* Bytes go to a file of the same directory that has no name, which a kill leaves no trace of. It is
 * on the disk before it gets one: PATH.PID.tmp, from which a rename brings it to its own. So after
 * a crash the file is the old one or the whole new one. The directory is not synced, so the old one
 * may come back. Where a file can't be without a name it is PATH.PID.tmp from the beginning. */

#define WRITE_MAX ((uint64_t)64 << 20) /* of one write: Linux moves less than 2 GiB in one */

static hl_status fail_errno(const char *what, const char *path)
{
    int err = errno;
    return hl_fail(hl_status_of_errno(err), "%s %s: %s", what, path, strerror(err));
}

/* A device or a pipe: a rename would put a file in its place. */
static bool is_special(const char *path)
{
    struct stat sb;
    return stat(path, &sb) == 0 && !S_ISREG(sb.st_mode) && !S_ISDIR(sb.st_mode);
}

/* -1: the file system, or what is mounted here, has no such files. */
static int open_nameless(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    if (access("/proc/self/fd", X_OK) != 0)
        return -1;
    if (slash == NULL)
        snprintf(dir, sizeof(dir), ".");
    else
        snprintf(dir, sizeof(dir), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    return open(dir, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
}

static int open_temp(struct outfile *f)
{
    int fd = open_nameless(f->path);
    f->nameless = fd >= 0;
    return fd >= 0 ? fd : open(f->temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
}

hl_status outfile_open(const char *path, struct outfile *out)
{
    struct outfile f = {.fd = -1};
    if (strcmp(path, "-") == 0) {
        if (isatty(STDOUT_FILENO))
            return hl_fail(HL_EINVAL, "the result is bytes and stdout a terminal; redirect it or "
                                      "name a file with --out");
        f.fd = STDOUT_FILENO;
        f.is_stdout = true;
        snprintf(f.path, sizeof(f.path), "stdout");
        *out = f;
        return HL_OK;
    }
    HL_TRY(cli_path(f.temp, "%s.%d.tmp", path, (int)getpid()));
    snprintf(f.path, sizeof(f.path), "%s", path);
    f.in_place = is_special(path);
    f.fd = f.in_place ? open(path, O_WRONLY | O_CLOEXEC) : open_temp(&f);
    if (f.fd < 0)
        return fail_errno("write", path);
    *out = f;
    return HL_OK;
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
    }
    return HL_OK;
}

/* Another process of this number may have been killed after this. */
static int link_temp(const struct outfile *f)
{
    char own[64];
    snprintf(own, sizeof(own), "/proc/self/fd/%d", f->fd);
    int rc = linkat(AT_FDCWD, own, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW);
    if (rc != 0 && errno == EEXIST && unlink(f->temp) == 0)
        rc = linkat(AT_FDCWD, own, AT_FDCWD, f->temp, AT_SYMLINK_FOLLOW);
    return rc;
}

hl_status outfile_commit(struct outfile *f)
{
    if (f->is_stdout) {
        f->fd = -1;
        return HL_OK;
    }
    if (!f->in_place && fsync(f->fd) != 0)
        return fail_errno("sync", f->path);
    if (f->nameless && link_temp(f) != 0)
        return fail_errno("write", f->path);
    int fd = f->fd;
    f->fd = -1;
    if (f->in_place)
        return close(fd) == 0 ? HL_OK : fail_errno("write", f->path);
    if (close(fd) != 0 || rename(f->temp, f->path) != 0) {
        hl_status st = fail_errno("write", f->path);
        unlink(f->temp);
        return st;
    }
    return HL_OK;
}

void outfile_abort(struct outfile *f)
{
    if (f->fd < 0 || f->is_stdout)
        return;
    close(f->fd);
    if (!f->in_place && !f->nameless)
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
