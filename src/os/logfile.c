#include "os/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define LOOK_MS      1000
#define PATH_LEN_MAX 4000
#define PATH_ROOM    (PATH_LEN_MAX + 16)

struct hl_logfile {
    struct hl_timer *timer;
    uint64_t max_bytes;
    int keep;
    char path[PATH_LEN_MAX + 1];
};

static hl_status open_failed(const char *path)
{
    return hl_fail(errno == ENOENT   ? HL_ENOENT
                   : errno == EACCES ? HL_EPERM
                                     : HL_EIO,
                   "log file %s: %m", path);
}

/* Redirects stdout and stderr to `fd`, and closes `fd`. */
static hl_status logfile_use(const struct hl_logfile *f, int fd)
{
    bool both = dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0;
    close(fd);
    return both ? HL_OK : hl_fail(HL_EIO, "log file %s: %m", f->path);
}

static hl_status logfile_open(const struct hl_logfile *f)
{
    int fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? open_failed(f->path) : logfile_use(f, fd);
}

/* PATH.N */
static const char *numbered_path(const struct hl_logfile *f, int number, char *out, size_t cap)
{
    snprintf(out, cap, "%s.%d", f->path, number);
    return out;
}

/* DIR/.NAME.SUFFIX, which the pattern NAME* for the logs does not match. */
static const char *hidden_path(const struct hl_logfile *f, const char *suffix, char *out,
                               size_t cap)
{
    const char *slash = strrchr(f->path, '/');
    int dir = slash == NULL ? 0 : (int)(slash + 1 - f->path);
    snprintf(out, cap, "%.*s.%s.%s", dir, f->path, f->path + dir, suffix);
    return out;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return lstat(a, &x) == 0 && lstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Gives the file the second name PATH.1 and moves the older ones on by one. The file keeps its own
 * name, so that readers find it at any moment; it loses that name on a file system without hard
 * links. */
static hl_status logfile_number(const struct hl_logfile *f)
{
    char from[PATH_ROOM], to[PATH_ROOM], first[PATH_ROOM], second[PATH_ROOM];
    if (is_same_file(
            f->path,
            numbered_path(f, 1, first, sizeof(first)))) /* a process died right after the link */
        return HL_OK;
    for (int i = f->keep; i > 1; i--) /* the last one is overwritten */
        if (rename(numbered_path(f, i - 1, from, sizeof(from)),
                   numbered_path(f, i, to, sizeof(to))) != 0 &&
            errno != ENOENT)
            hl_warn("log file is not rotated file=%s error=\"%s\"", from, strerror(errno));
    hidden_path(f, "old", second, sizeof(second));
    unlink(second); /* left by a process that died between the two lines below */
    bool numbered = link(f->path, second) == 0 ? rename(second, first) == 0
                                               : rename(f->path, first) == 0 || errno == ENOENT;
    return numbered ? HL_OK : hl_fail(HL_EIO, "%s: %m", first);
}

/* Makes the new file first: if that fails, nothing is renamed. */
static hl_status logfile_rotate(const struct hl_logfile *f)
{
    char fresh[PATH_ROOM];
    hidden_path(f, "new", fresh, sizeof(fresh));
    unlink(fresh); /* left by a process that died here */
    int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return open_failed(fresh);
    hl_status st = f->keep == 0 ? HL_OK : logfile_number(f);
    if (st == HL_OK && rename(fresh, f->path) != 0)
        st = hl_fail(HL_EIO, "%s: %m", f->path);
    if (st == HL_OK)
        return logfile_use(f, fd);
    close(fd);
    unlink(fresh);
    return st;
}

static void logfile_check(void *arg)
{
    const struct hl_logfile *f = arg;
    struct stat sb;
    if (fstat(STDERR_FILENO, &sb) != 0 || (uint64_t)sb.st_size < f->max_bytes)
        return;
    if (logfile_rotate(f) != HL_OK)
        hl_warn("log continues in the old file error=\"%s\"", hl_error_text());
}

hl_status hl_logfile_start(struct hl_loop *loop, const char *path, uint64_t max_bytes, int keep,
                           struct hl_logfile **out)
{
    *out = NULL;
    if (path[0] == '\0')
        return HL_OK;
    if (strlen(path) > PATH_LEN_MAX)
        return hl_fail(HL_EINVAL, "log file: a path of more than %d bytes", PATH_LEN_MAX);
    struct hl_logfile *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the log file");
    f->max_bytes = max_bytes;
    f->keep = keep;
    snprintf(f->path, sizeof(f->path), "%s", path);
    hl_status st = logfile_open(f);
    if (st == HL_OK && max_bytes > 0)
        st = hl_timer_create(loop, 0, LOOK_MS, logfile_check, f, &f->timer);
    if (st != HL_OK) {
        free(f);
        return st;
    }
    *out = f;
    return HL_OK;
}

void hl_logfile_stop(struct hl_logfile *f)
{
    if (f == NULL)
        return;
    hl_timer_destroy(f->timer);
    free(f);
}
