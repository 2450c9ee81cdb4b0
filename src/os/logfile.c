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

struct hl_logfile {
    struct hl_timer *timer;
    uint64_t max_bytes;
    int keep;
    char path[PATH_LEN_MAX + 1];
};

static hl_status logfile_open(const struct hl_logfile *f)
{
    int fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return hl_fail(errno == ENOENT   ? HL_ENOENT
                       : errno == EACCES ? HL_EPERM
                                         : HL_EIO,
                       "log file %s: %m", f->path);
    bool both = dup2(fd, STDOUT_FILENO) >= 0 && dup2(fd, STDERR_FILENO) >= 0;
    close(fd);
    return both ? HL_OK : hl_fail(HL_EIO, "log file %s: %m", f->path);
}

/* PATH.N; the file itself is number 0. */
static const char *numbered_path(const struct hl_logfile *f, int number, char *out, size_t cap)
{
    if (number == 0)
        snprintf(out, cap, "%s", f->path);
    else
        snprintf(out, cap, "%s.%d", f->path, number);
    return out;
}

static void logfile_rotate(const struct hl_logfile *f)
{
    char from[PATH_LEN_MAX + 16], to[PATH_LEN_MAX + 16];
    if (f->keep == 0)
        unlink(f->path);
    for (int i = f->keep; i > 0; i--) /* the last one is replaced */
        if (rename(numbered_path(f, i - 1, from, sizeof(from)),
                   numbered_path(f, i, to, sizeof(to))) != 0 &&
            errno != ENOENT)
            hl_warn("log file is not rotated file=%s error=\"%s\"", from, strerror(errno));
    if (logfile_open(f) != HL_OK)
        hl_warn("log goes on in the old file error=\"%s\"", hl_error_text());
}

static void logfile_check(void *arg)
{
    const struct hl_logfile *f = arg;
    struct stat sb;
    if (fstat(STDERR_FILENO, &sb) == 0 && (uint64_t)sb.st_size >= f->max_bytes)
        logfile_rotate(f);
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
        st = hl_timer_create(loop, LOOK_MS, LOOK_MS, logfile_check, f, &f->timer);
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
