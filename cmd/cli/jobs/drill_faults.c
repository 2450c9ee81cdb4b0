#include "cli/jobs/drill_faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/process.h"

static hl_status send_signal(pid_t pid, int signum)
{
    if (kill(pid, signum) == 0)
        return HL_OK;
    int err = errno;
    return hl_fail(err == ESRCH ? HL_ENOENT : hl_status_of_errno(err),
                   "signal %d to process %d: %s", signum, (int)pid, strerror(err));
}

static hl_status make_kill(struct drill_target *t)
{
    return send_signal(t->pid, SIGKILL);
}

static hl_status make_stop(struct drill_target *t)
{
    return send_signal(t->pid, SIGSTOP);
}

static hl_status make_exit(struct drill_target *t)
{
    return send_signal(t->pid, SIGTERM);
}

static const char *stop_refusal(const struct hl_api_job *job)
{
    return job->launch.ends_hung
               ? NULL
               : "with the job's recovery.onHang, hung ranks are only named, not ended";
}

/* ---- it gets a fifth of the time ------------------------------------------------------------- */

#define STOPPED_MS 16

static const char *slow_refusal(const struct hl_api_job *job)
{
    return job->world_size > 1 ? NULL : "a single rank can't be slower than others";
}

/* Lets the process run for a quarter of the time for which it was stopped. The stops are short
 * compared to a step; otherwise all of them could fall into its waiting for others, which is not
 * its own time. They are long enough that the process gets a processor in between. */
static hl_status go_on_slow(struct drill_target *t, uint64_t now_ns)
{
    if (now_ns < t->stopped_ns + STOPPED_MS * HL_NS_PER_MS)
        return HL_OK;
    uint64_t run_ns = (now_ns - t->stopped_ns) / 4;
    HL_TRY(send_signal(t->pid, SIGCONT));
    nanosleep(&(struct timespec){.tv_sec = (time_t)(run_ns / HL_NS_PER_S),
                                 .tv_nsec = (long)(run_ns % HL_NS_PER_S)},
              NULL);
    t->stopped_ns = hl_now_ns();
    return send_signal(t->pid, SIGSTOP);
}

static hl_status make_slow(struct drill_target *t)
{
    t->stopped_ns = hl_now_ns();
    return send_signal(t->pid, SIGSTOP);
}

static void end_slow(struct drill_target *t)
{
    if (send_signal(t->pid, SIGCONT) != HL_OK)
        hl_debug("%s", hl_error_text()); /* the process has ended since */
}

/* ---- its log's disk is full ------------------------------------------------------------------ */

#define STATUS_BYTES 16384 /* the container's state must still fit */

/* For the directory entry "/proc/PID/fd/NUMBER": whether it is the rank's log, and the file's
 * size. */
static bool is_log(const char *path, int rank, off_t *size)
{
    char target[PATH_MAX], name[64];
    struct stat sb;
    ssize_t n = readlink(path, target, sizeof(target) - 1);
    snprintf(name, sizeof(name), "/rank-%d.log", rank);
    if (n <= 0 || stat(path, &sb) != 0)
        return false;
    target[n] = '\0';
    size_t len = strlen(name);
    *size = sb.st_size;
    return (size_t)n > len && strcmp(target + n - len, name) == 0;
}

static hl_status find_parent(pid_t pid, pid_t *out)
{
    char path[64];
    int parent = 0;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    HL_TRY(hl_file_read(path, &text));
    const char *name_end = text.len > 0 ? strrchr(text.data, ')') : NULL;
    if (name_end == NULL || sscanf(name_end, ") %*c %d", &parent) != 1 || parent <= 1)
        return hl_fail(HL_ENOENT, "process %d has no shim", (int)pid);
    *out = parent;
    return HL_OK;
}

static hl_status find_log_size(const struct drill_target *t, off_t *size)
{
    char dir_path[64];
    bool found = false;
    snprintf(dir_path, sizeof(dir_path), "/proc/%d/fd", (int)t->shim);
    DIR *dir = opendir(dir_path);
    const struct dirent *d;
    while (dir != NULL && !found && (d = readdir(dir)) != NULL) {
        char path[384];
        snprintf(path, sizeof(path), "%s/%s", dir_path, d->d_name);
        found = is_log(path, t->rank, size);
    }
    if (dir != NULL)
        closedir(dir);
    return found ? HL_OK
                 : hl_fail(HL_ENOENT, "process %d writes no log of rank %d", (int)t->shim, t->rank);
}

/* Writes lines in place of the rank, which may not write for a long time, until there are
 * `bytes`. */
static void write_lines(const struct drill_target *t, const char *line, size_t bytes)
{
    char path[64];
    struct stat sb;
    snprintf(path, sizeof(path), "/proc/%d/fd/1", (int)t->pid);
    HL_AUTO(hl_closep) int fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    bool is_pipe = fd >= 0 && fstat(fd, &sb) == 0 && S_ISFIFO(sb.st_mode);
    ssize_t n = 1;
    for (size_t at = 0; is_pipe && at < bytes && n > 0; at += (size_t)n)
        n = write(fd, line, strlen(line));
    if (!is_pipe || n <= 0) /* then only the rank's own output counts */
        hl_debug("can't write a line to the log of process %d", (int)t->pid);
}

/* The shim only reports that a gap has ended when it writes again, so this writes a line. */
static bool log_is_whole(struct drill_target *t)
{
    if (t->warned && !t->nudged)
        write_lines(t, "helios drill: there is room again\n", 1);
    t->nudged = true;
    return !t->warned;
}

/* The shim writes the logs; this limits the size of its files, so it gets an error as on a full
 * disk. Files of others, and what the shim overwrites, are not affected. */
static hl_status make_disk(struct drill_target *t)
{
    off_t size = 0;
    HL_TRY(find_parent(t->pid, &t->shim));
    HL_TRY(find_log_size(t, &size));
    off_t limit = size > STATUS_BYTES ? size : STATUS_BYTES;
    struct rlimit full = {.rlim_cur = (rlim_t)limit};
    if (prlimit(t->shim, RLIMIT_FSIZE, NULL, &t->file) != 0 ||
        (full.rlim_max = t->file.rlim_max, prlimit(t->shim, RLIMIT_FSIZE, &full, NULL) != 0)) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "limit the files of process %d: %s", (int)t->shim,
                       strerror(err));
    }
    write_lines(t, "helios drill: from here on the disk of this log is full\n",
                (size_t)(limit - size) + 1);
    return HL_OK;
}

static void end_disk(struct drill_target *t)
{
    if (prlimit(t->shim, RLIMIT_FSIZE, &t->file, NULL) != 0)
        hl_warn("can't restore the file limit of process %d: %s", (int)t->shim, strerror(errno));
}

/* ---- it finds no memory ---------------------------------------------------------------------- */

/* Names a group for this process alone, at a place where it can be created. */
static hl_status name_group(struct drill_target *t, bool *v2)
{
    char path[64];
    struct hl_cgroup_layout where;
    HL_AUTO(hl_buf_fini) struct hl_buf mounts = HL_BUF(1 << 20), own = HL_BUF(1 << 16);
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)t->pid);
    HL_TRY(hl_file_read("/proc/self/mountinfo", &mounts));
    HL_TRY(hl_file_read(path, &own));
    hl_cgroup_layout(mounts.data, own.data, &where);
    *v2 = where.memory[0] == '\0';
    if (!*v2)
        snprintf(t->group, sizeof(t->group), "%.460s/helios-drill-%d", where.memory, (int)t->pid);
    /* In version 2, a group that has processes can't have child groups with limits. */
    const char *last = strrchr(where.v2, '/');
    if (*v2 && last != NULL)
        snprintf(t->group, sizeof(t->group), "%.*s/helios-drill-%d",
                 (int)(last - where.v2 < 460 ? last - where.v2 : 460), where.v2, (int)t->pid);
    return t->group[0] != '\0' ? HL_OK
                               : hl_fail(HL_EUNSUPPORTED, "no memory controller is mounted");
}

static hl_status group_write(const struct drill_target *t, const char *file, const char *text)
{
    char path[640];
    snprintf(path, sizeof(path), "%s/%s", t->group, file);
    return hl_file_write_control(path, text);
}

static void end_oom(struct drill_target *t)
{
    if (t->group[0] != '\0' && rmdir(t->group) != 0 && errno != ENOENT)
        hl_warn("remove %s: %s", t->group, strerror(errno));
    t->group[0] = '\0';
}

#define PAGES_MAX 256

/* Makes the process need new pages of its own memory between `from` and `to`: writes zeros where it
 * has no page yet, which does not change its data. True: that failed, or there were enough
 * pages. */
static bool ask_pages(pid_t pid, int pagemap, uint64_t from, uint64_t to, int *asked)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), entry;
    char zero = 0;
    for (uint64_t at = from; at < to; at += page) {
        struct iovec here = {&zero, 1}, there = {(void *)(uintptr_t)at, 1};
        if (pread(pagemap, &entry, sizeof(entry), (off_t)(at / page * sizeof(entry))) !=
            (ssize_t)sizeof(entry))
            return true;
        if (entry >> 62 != 0) /* the page is present, or swapped out */
            continue;
        if (process_vm_writev(pid, &here, 1, &there, 1, 0) != 1 || ++*asked == PAGES_MAX)
            return true;
    }
    return false;
}

/* A training that has all its memory may not need new pages for a long time. */
static void ask_memory(const struct drill_target *t)
{
    char path[64], line[512];
    int asked = 0;
    bool over = false;
    snprintf(path, sizeof(path), "/proc/%d/pagemap", (int)t->pid);
    HL_AUTO(hl_closep) int pagemap = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)t->pid);
    FILE *maps = pagemap >= 0 ? fopen(path, "re") : NULL;
    while (maps != NULL && !over && fgets(line, sizeof(line), maps) != NULL) {
        uint64_t from, to;
        char rights[8], file[8];
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %7s", &from, &to, rights, file) ==
                4 &&
            strcmp(rights, "rw-p") == 0 && strcmp(file, "0") == 0 && strstr(line, "[stack") == NULL)
            over = ask_pages(t->pid, pagemap, from, to, &asked);
    }
    if (maps != NULL)
        fclose(maps);
    else
        hl_debug("process %d asks for memory when it does", (int)t->pid);
}

/* Moves the process to a group of its own without room: at its next new page, the kernel kills it
 * like any process that exceeds its limit. The other ranks keep their container's limit. */
static hl_status make_oom(struct drill_target *t)
{
    char pid[16];
    bool v2 = false;
    HL_TRY(name_group(t, &v2));
    if (mkdir(t->group, 0700) != 0 && errno != EEXIST) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "make the group %s: %s", t->group, strerror(err));
    }
    snprintf(pid, sizeof(pid), "%d", (int)t->pid);
    hl_status st = group_write(t, v2 ? "memory.max" : "memory.limit_in_bytes", "4096");
    if (st == HL_OK)
        st = group_write(t, "cgroup.procs", pid);
    if (st == HL_OK)
        ask_memory(t);
    else
        end_oom(t);
    return st;
}

/* ---- a bit of its parameters flips ----------------------------------------------------------- */

static const char *bitflip_refusal(const struct hl_api_job *job)
{
    return job->launch.replicas > 2
               ? NULL
               : "at least three replicas are needed to tell which one is wrong";
}

/* Only while the rank trains: when a gang re-forms, it drops its state without comparing it. */
static bool has_told_memory(struct drill_target *t)
{
    struct hl_step_state s;
    return hl_step_read(t->page, &s) && s.held_size > 0 && s.steps > 0 &&
           s.activity == HL_STEP_TRAINING;
}

static hl_status make_bitflip(struct drill_target *t)
{
    struct hl_step_state s;
    unsigned char byte;
    if (!hl_step_read(t->page, &s) || s.held_size == 0)
        return hl_fail(HL_ENOENT, "rank %d has released its parameters", t->rank);
    struct iovec here = {&byte, 1}, there = {(void *)(uintptr_t)(s.held_at + s.held_size / 2), 1};
    if (process_vm_readv(t->pid, &here, 1, &there, 1, 0) == 1) {
        byte ^= 0x10;
        if (process_vm_writev(t->pid, &here, 1, &there, 1, 0) == 1)
            return HL_OK;
    }
    int err = errno;
    return hl_fail(hl_status_of_errno(err), "memory of process %d: %s", (int)t->pid, strerror(err));
}

/* ---- its connections are cut ----------------------------------------------------------------- */

static bool is_tcp_connection(int fd)
{
    int domain = 0, type = 0;
    socklen_t len = sizeof(domain);
    struct sockaddr_storage peer;
    socklen_t peer_len = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 &&
           (domain == AF_INET || domain == AF_INET6) &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM &&
           getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0;
}

/* Cuts the connection with this descriptor number in the process; true if it was a connection. */
static bool cut_connection(int pidfd, int number)
{
    HL_AUTO(hl_closep) int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
    return fd >= 0 && is_tcp_connection(fd) && shutdown(fd, SHUT_RDWR) == 0;
}

static hl_status make_link(struct drill_target *t)
{
    const pid_t pid = t->pid;
    char path[64];
    struct hl_process process;
    HL_AUTO(hl_closep) int pidfd = -1;
    unsigned cut = 0;
    HL_TRY(hl_process_identify(pid, &process));
    HL_TRY(hl_process_open(process, &pidfd));
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    if (dir == NULL) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "read %s: %s", path, strerror(err));
    }
    const struct dirent *d;
    while ((d = readdir(dir)) != NULL) {
        uint64_t number;
        const char *end = hl_scan_number(d->d_name, INT32_MAX, &number);
        cut += end != NULL && *end == '\0' && cut_connection(pidfd, (int)number);
    }
    closedir(dir);
    if (cut == 0)
        return hl_fail(HL_ENOENT, "process %d has no TCP connection that could be cut", (int)pid);
    return HL_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static const struct drill_fault faults[] = {
    {.name = "kill", .says = {"killed by signal 9"}, .make = make_kill},
    {.name = "stop",
     .says = {"its process is stopped"},
     .refusal = stop_refusal,
     .make = make_stop},
    {.name = "exit", .says = {"exit code 143", "killed by signal 15"}, .make = make_exit},
    {.name = "link", .make = make_link},
    {.name = "oom", .says = {"want of memory"}, .make = make_oom, .end = end_oom},
    {.name = "slow",
     .says = {"is slow"},
     .stays = true,
     .refusal = slow_refusal,
     .make = make_slow,
     .go_on = go_on_slow,
     .end = end_slow},
    {.name = "disk",
     .says = {"output is dropped"},
     .stays = true,
     .is_ready = log_is_whole,
     .make = make_disk,
     .end = end_disk},
    {.name = "bitflip",
     .says = {"has other bytes"},
     .spoils = true,
     .refusal = bitflip_refusal,
     .is_ready = has_told_memory,
     .make = make_bitflip},
};

const struct drill_fault *drill_fault_find(const char *name)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(faults); i++)
        if (strcmp(faults[i].name, name) == 0)
            return &faults[i];
    return NULL;
}
