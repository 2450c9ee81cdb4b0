#include "os/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#define DIR_DEPTH_MAX 64

hl_status hl_status_of_errno(int err)
{
    switch (err) {
    case ENOENT:
    case ENOTDIR:
    case ESRCH:
        return HL_ENOENT;
    case EACCES:
    case EPERM:
    case EROFS:
        return HL_EPERM;
    case ENOSPC:
    case EDQUOT:
        return HL_ENOSPC;
    case EEXIST:
        return HL_EEXIST;
    case ENOMEM:
        return HL_ENOMEM;
    case EINVAL:
    case ENAMETOOLONG:
        return HL_EINVAL;
    default:
        return HL_EIO;
    }
}

void hl_closep(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static hl_status fail_errno(const char *what, const char *path)
{
    int err = errno;
    return hl_fail(hl_status_of_errno(err), "%s %s: %s", what, path, strerror(err));
}

static hl_status read_all(int fd, const char *path, struct hl_buf *out)
{
    for (;;) {
        char block[4096];
        ssize_t n = read(fd, block, sizeof(block));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail_errno("read", path);
        if (n == 0)
            return HL_OK;
        if (hl_buf_append(out, block, (size_t)n) != HL_OK)
            return hl_fail(HL_EINVAL, "read %s: larger than %zu bytes", path, out->max);
    }
}

hl_status hl_file_read(const char *path, struct hl_buf *out)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? fail_errno("read", path) : read_all(fd, path, out);
}

/* O_PATH opens nothing that could wait, and what it names can't be exchanged any more. */
hl_status hl_file_open_regular(const char *path, int *out)
{
    HL_AUTO(hl_closep) int at = open(path, O_PATH | O_CLOEXEC);
    char self[64];
    struct stat sb;
    if (at < 0 || fstat(at, &sb) != 0)
        return fail_errno("read", path);
    if (!S_ISREG(sb.st_mode))
        return hl_fail(HL_EINVAL, "read %s: not a regular file; a program has replaced it", path);
    snprintf(self, sizeof(self), "/proc/self/fd/%d", at);
    int fd = open(self, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno("read", path);
    *out = fd;
    return HL_OK;
}

hl_status hl_file_read_regular(const char *path, struct hl_buf *out)
{
    HL_AUTO(hl_closep) int fd = -1;
    HL_TRY(hl_file_open_regular(path, &fd));
    return read_all(fd, path, out);
}

bool hl_file_read_number(const char *path, int64_t *out)
{
    struct hl_buf text = HL_BUF(64);
    char *end = NULL, digits[65] = "";
    hl_status st = hl_file_read(path, &text);
    if (st != HL_OK)
        hl_error_clear();
    else if (text.len > 0)
        memcpy(digits, text.data, text.len);
    hl_buf_fini(&text);
    errno = 0;
    long long number = strtoll(digits, &end, 10);
    if (st != HL_OK || end == digits || errno != 0 || (*end != '\0' && strcmp(end, "\n") != 0))
        return false;
    *out = number;
    return true;
}

static int write_all(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Never writes to an existing file or link of that name: a dead process left it, or an attacker
 * made it. */
static int open_temporary(const char *temp, mode_t mode)
{
    const int how = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(temp, how, mode);
    if (fd < 0 && errno == EEXIST && unlink(temp) == 0)
        fd = open(temp, how, mode);
    return fd;
}

hl_status hl_file_write_atomic(const char *path, const void *data, size_t len)
{
    char temp[PATH_MAX];
    int n = snprintf(temp, sizeof(temp), "%s.%d.tmp", path, (int)gettid());
    if (n < 0 || (size_t)n >= sizeof(temp))
        return hl_fail(HL_EINVAL, "write %s: the path is too long", path);
    HL_AUTO(hl_closep) int fd = open_temporary(temp, 0644);
    if (fd < 0)
        return fail_errno("write", path);
    if (write_all(fd, data, len) != 0 || rename(temp, path) != 0) {
        hl_status st = fail_errno("write", path);
        unlink(temp);
        return st;
    }
    return HL_OK;
}

static int sync_parent(const char *path)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash != NULL)
        slash[slash == dir] = '\0';
    HL_AUTO(hl_closep)
    int fd = open(slash != NULL ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -1 : fsync(fd);
}

hl_status hl_file_write_durable(const char *path, const void *data, size_t len, mode_t mode)
{
    char temp[PATH_MAX];
    int n = snprintf(temp, sizeof(temp), "%s.%d.tmp", path, (int)gettid());
    if (n < 0 || (size_t)n >= sizeof(temp))
        return hl_fail(HL_EINVAL, "write %s: the path is too long", path);
    HL_AUTO(hl_closep) int fd = open_temporary(temp, mode);
    if (fd < 0)
        return fail_errno("write", path);
    if (write_all(fd, data, len) != 0 || fchmod(fd, mode) != 0 || fsync(fd) != 0 ||
        rename(temp, path) != 0) {
        hl_status st = fail_errno("write", path);
        unlink(temp);
        return st;
    }
    return sync_parent(path) == 0 ? HL_OK : fail_errno("write", path);
}

hl_status hl_stdout_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return HL_OK;
    if (errno != EPIPE)
        return hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
    hl_error_clear(); /* as in `helios list | head`: the reader has seen enough */
    return HL_ECANCELED;
}

hl_status hl_file_write_control(const char *path, const char *text)
{
    HL_AUTO(hl_closep) int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        return fail_errno("write", path);
    return HL_OK;
}

hl_status hl_file_check_private(int fd, const char *path)
{
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        return fail_errno("look at", path);
    if (sb.st_uid == geteuid() && (sb.st_mode & 077) == 0 && sb.st_nlink <= 1)
        return HL_OK;
    return hl_fail(HL_EPERM,
                   "%s is not private to this user: it belongs to user %u, has mode %03o and %u "
                   "names; remove it or choose another path",
                   path, (unsigned)sb.st_uid, (unsigned)sb.st_mode & 0777, (unsigned)sb.st_nlink);
}

hl_status hl_dir_make(const char *path, mode_t mode)
{
    char part[PATH_MAX];
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(part))
        return hl_fail(HL_EINVAL, "make directory '%s': the path is empty or too long", path);
    memcpy(part, path, len + 1);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char end = *p;
        *p = '\0';
        if (mkdir(part, mode) != 0 && errno != EEXIST)
            return fail_errno("make directory", part);
        if (end == '\0')
            break;
        *p = end;
    }
    struct stat sb;
    if (stat(path, &sb) != 0 || !S_ISDIR(sb.st_mode)) {
        errno = ENOTDIR;
        return fail_errno("make directory", path);
    }
    return HL_OK;
}

hl_status hl_dir_make_private(const char *path)
{
    struct stat sb;
    HL_TRY(hl_dir_make(path, 0700));
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &sb) != 0)
        return fail_errno("look at directory", path);
    if (sb.st_uid != geteuid())
        return hl_fail(HL_EPERM,
                       "directory %s belongs to user %u, not to user %u, who wants to keep private "
                       "files there; choose another one, or chown it",
                       path, (unsigned)sb.st_uid, (unsigned)geteuid());
    return fchmod(fd, 0700) == 0 ? HL_OK : fail_errno("chmod 0700", path);
}

/* Takes ownership of dir_fd. Returns 0, or -1 with errno. */
static int remove_below(int dir_fd, int depth)
{
    DIR *dir = fdopendir(dir_fd);
    if (dir == NULL) {
        close(dir_fd);
        return -1;
    }
    int rc = 0;
    struct dirent *e;
    while (rc == 0 && (e = readdir(dir)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dir_fd, e->d_name, 0) == 0 || errno == ENOENT)
            continue;
        if (errno != EISDIR && errno != EPERM) {
            rc = -1;
            break;
        }
        int fd = openat(dir_fd, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || depth >= DIR_DEPTH_MAX) {
            hl_closep(&fd);
            rc = -1;
            break;
        }
        rc = remove_below(fd, depth + 1);
        if (rc == 0)
            rc = unlinkat(dir_fd, e->d_name, AT_REMOVEDIR);
    }
    int err = errno;
    closedir(dir);
    errno = err;
    return rc;
}

void hl_dir_identity(const char *path, char *out, size_t size)
{
    struct statx sx;
    out[0] = '\0';
    if (statx(AT_FDCWD, path, 0, STATX_INO | STATX_BTIME, &sx) != 0)
        return;
    uint64_t made_ns = (sx.stx_mask & STATX_BTIME) == 0
                           ? 0
                           : (uint64_t)sx.stx_btime.tv_sec * HL_NS_PER_S + sx.stx_btime.tv_nsec;
    snprintf(out, size, "%x:%x:%" PRIx64 ":%" PRIx64, sx.stx_dev_major, sx.stx_dev_minor,
             (uint64_t)sx.stx_ino, made_ns);
}

hl_status hl_dir_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? HL_OK : fail_errno("remove", path);
    if (remove_below(fd, 0) != 0 || rmdir(path) != 0)
        return fail_errno("remove", path);
    return HL_OK;
}
