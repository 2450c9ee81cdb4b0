#include "cli/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/file.h"

/* Bytes go to PATH.PID.tmp in the same directory, so that a rename can put them under their name.
 * They are on the disk before that: after a crash the file is the old one or the whole new one. The
 * directory is not synced, so the old one may come back. */

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
    f.fd = f.in_place ? open(path, O_WRONLY | O_CLOEXEC)
                      : open(f.temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
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

hl_status outfile_commit(struct outfile *f)
{
    if (f->is_stdout) {
        f->fd = -1;
        return HL_OK;
    }
    if (!f->in_place && fsync(f->fd) != 0)
        return fail_errno("sync", f->path);
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
    if (!f->in_place)
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
