/* The ranks' output, from a pipe into their logs. A rank never waits for a full disk: its output is
 * read all the same, what can't be stored is counted, and the log says where it is missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"

#define PIPE_BYTES   (256 << 10)
#define LOG_ALIGN    65536
#define LOG_RETRY_NS HL_NS_PER_S
/* Logs leave this much of their disk free for records that must be written; on a small disk a
 * share. */
#define DISK_RESERVE ((uint64_t)16 << 20)
#define DISK_SHARE   16

/* ---- room on the disk ---- */

/* True if the disk has `times` its reserve left after `len` more bytes. */
static bool disk_has_room(int fd, uint64_t len, uint64_t times)
{
    struct statvfs fs;
    if (fstatvfs(fd, &fs) != 0 || fs.f_blocks == 0)
        return true; /* unknown; the write will show it */
    uint64_t total = (uint64_t)fs.f_blocks * fs.f_frsize;
    uint64_t left = (uint64_t)(geteuid() == 0 ? fs.f_bfree : fs.f_bavail) * fs.f_frsize;
    uint64_t keep = total / DISK_SHARE < DISK_RESERVE ? total / DISK_SHARE : DISK_RESERVE;
    return left >= keep * times + len;
}

/* ---- the warning ---- */

/* Reports which logs have gaps: when a gap begins and when it ends, not for every byte. */
static void tell_gaps(struct hl_shim *s)
{
    size_t ranks = 0, open = 0;
    uint64_t lost = 0;
    char size[32], whose[64], what[64];
    int first = 0, error = 0;
    for (size_t i = 0; i < s->status.rank_count; i++) {
        const struct hl_shim_output *o = &s->outputs[i];
        if (o->lost + o->lost_before == 0)
            continue;
        if (ranks++ == 0) {
            first = s->status.ranks[i].rank;
            error = o->error;
        }
        open += o->lost > 0 && o->pipe >= 0;
        lost += o->lost + o->lost_before;
    }
    snprintf(whose, sizeof(whose), ranks > 1 ? "logs of %zu ranks" : "log of rank %zu",
             ranks > 1 ? ranks : (size_t)first);
    snprintf(what, sizeof(what), "%s dropped", hl_format_bytes(lost, size, sizeof(size)));
    if (hl_text_set(&s->status.warning, "%s: %s; %s", whose, strerror(error),
                    open > 0 ? "output is dropped" : what) != HL_OK)
        hl_error("%s", hl_error_text());
    s->dirty = true;
}

/* ---- into the log ---- */

/* Gives the oldest output back to the file system; offsets stay the same. */
static void trim_log(struct hl_shim *s, struct hl_shim_output *o)
{
    struct stat sb;
    if (s->options.log_max_bytes == 0 || o->untrimmed < LOG_ALIGN)
        return;
    o->untrimmed = 0;
    if (fstat(o->log, &sb) != 0 || (uint64_t)sb.st_size <= s->options.log_max_bytes + LOG_ALIGN ||
        (uint64_t)sb.st_blocks * 512 <= s->options.log_max_bytes + LOG_ALIGN)
        return;
    off_t drop = (sb.st_size - (off_t)s->options.log_max_bytes) & ~(off_t)(LOG_ALIGN - 1);
    if (fallocate(o->log, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, drop) != 0)
        hl_debug("a log can't be trimmed: %s", strerror(errno));
}

/* Returns how many bytes were written to the log. errno: why not all. */
static size_t write_log(struct hl_shim_output *o, const char *text, size_t len)
{
    size_t at = 0;
    while (at < len) {
        ssize_t n = write(o->log, text + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    if (at > 0)
        o->midline = text[at - 1] != '\n';
    o->untrimmed += at;
    return at;
}

static void lose_output(struct hl_shim *s, struct hl_shim_output *o, size_t len, int error)
{
    bool begins = o->lost == 0;
    o->lost += len;
    o->error = error;
    o->retry_ns = hl_now_ns() + LOG_RETRY_NS;
    if (begins)
        tell_gaps(s);
}

/* Writes into the log how much is missing, if the disk has at least `times` its reserve left. */
static bool close_gap(struct hl_shim *s, struct hl_shim_output *o, uint64_t times)
{
    char mark[192], size[32];
    int n = snprintf(mark, sizeof(mark), "%s[%s dropped: %s]\n", o->midline ? "\n" : "",
                     hl_format_bytes(o->lost, size, sizeof(size)), strerror(o->error));
    if (!disk_has_room(o->log, (size_t)n, times))
        return false;
    size_t done = write_log(o, mark, (size_t)n);
    if (done < (size_t)n)
        return false;
    o->lost_before += o->lost;
    o->lost = 0;
    tell_gaps(s);
    return true;
}

/* After a gap the log continues with a whole line. */
static void keep_output(struct hl_shim *s, struct hl_shim_output *o, const char *text, size_t len)
{
    if (o->lost > 0) {
        const char *nl = hl_now_ns() < o->retry_ns ? NULL : memchr(text, '\n', len);
        size_t cut = nl != NULL ? (size_t)(nl - text) + 1 : len;
        o->lost += cut;
        text += cut;
        len -= cut;
        if (nl == NULL)
            return;
        if (!close_gap(s, o, 2)) { /* 2: a little free space is not enough to go on */
            lose_output(s, o, len, o->error);
            return;
        }
    }
    if (len > 0 && !disk_has_room(o->log, len, 1)) {
        lose_output(s, o, len, ENOSPC);
        return;
    }
    size_t done = write_log(o, text, len);
    if (done < len)
        lose_output(s, o, len - done, errno);
    trim_log(s, o);
}

/* ---- out of the pipe ---- */

static void close_pipe(struct hl_shim *s, struct hl_shim_output *o)
{
    if (o->pipe < 0)
        return;
    hl_closep(&o->pipe);
    if (o->lost > 0 && !close_gap(s, o, 0))
        tell_gaps(s);
    hl_closep(&o->log);
}

size_t hl_shim_output_take(struct hl_shim *s, size_t i)
{
    static char block[65536];
    struct hl_shim_output *o = &s->outputs[i];
    if (o->pipe < 0)
        return 0;
    ssize_t n = read(o->pipe, block, sizeof(block));
    size_t skip = n > 0 && o->skip < (uint64_t)n ? (size_t)o->skip : n > 0 ? (size_t)n : 0;
    o->skip -= skip;
    if (n > 0)
        keep_output(s, o, block + skip, (size_t)n - skip);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        close_pipe(s, o);
    return n > 0 ? (size_t)n : 0;
}

void hl_shim_output_drain(struct hl_shim *s, size_t i)
{
    size_t n, sum = 0;
    int capacity = s->outputs[i].pipe >= 0 ? fcntl(s->outputs[i].pipe, F_GETPIPE_SZ) : 0;
    while (sum < (size_t)(capacity > 0 ? capacity : 0) && (n = hl_shim_output_take(s, i)) > 0)
        sum += n;
}

/* ---- begin and end ---- */

hl_status hl_shim_outputs_init(struct hl_shim *s)
{
    s->outputs = calloc(s->status.rank_count + 1, sizeof(*s->outputs));
    s->polls = calloc(s->status.rank_count + 2, sizeof(*s->polls));
    if (s->outputs == NULL || s->polls == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the output of %zu ranks",
                       s->status.rank_count);
    for (size_t i = 0; i < s->status.rank_count; i++)
        s->outputs[i].pipe = s->outputs[i].log = -1;
    hl_process_raise_files(); /* each rank needs two */
    return HL_OK;
}

hl_status hl_shim_output_adopt(struct hl_shim *s, size_t i, int pipe)
{
    struct hl_path path = hl_path_of_log(s->dir, s->status.ranks[i].rank);
    struct stat sb;
    int log = open(path.s, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "log %s: %s", path.s, strerror(err));
    }
    fcntl(pipe, F_SETFL, O_NONBLOCK);
    (void)fcntl(pipe, F_SETPIPE_SZ, PIPE_BYTES); /* a smaller pipe works too */
    s->outputs[i] = (struct hl_shim_output){.pipe = pipe, .log = log};
    if (s->way == &hl_engine_way && fstat(log, &sb) == 0)
        s->outputs[i].skip = (uint64_t)sb.st_size; /* an engine sends a log from its beginning */
    return HL_OK;
}

hl_status hl_shim_output_open(struct hl_shim *s, size_t i, int *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "pipe of the log of rank %d: %s",
                       s->status.ranks[i].rank, strerror(err));
    }
    HL_AUTO(hl_closep) int read_end = ends[0];
    HL_AUTO(hl_closep) int write_end = ends[1];
    HL_TRY(hl_shim_output_adopt(s, i, read_end));
    *out = write_end;
    read_end = write_end = -1;
    return HL_OK;
}

void hl_shim_output_end(struct hl_shim *s, size_t i)
{
    hl_shim_output_drain(s, i);
    close_pipe(s, &s->outputs[i]);
}

void hl_shim_outputs_fini(struct hl_shim *s)
{
    for (size_t i = 0; s->outputs != NULL && i < s->status.rank_count; i++)
        hl_shim_output_end(s, i);
}
