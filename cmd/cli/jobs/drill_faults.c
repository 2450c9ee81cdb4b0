#include "cli/jobs/drill_faults.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/text.h"
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

static hl_status make_kill(pid_t pid)
{
    return send_signal(pid, SIGKILL);
}

static hl_status make_stop(pid_t pid)
{
    return send_signal(pid, SIGSTOP);
}

static hl_status make_exit(pid_t pid)
{
    return send_signal(pid, SIGTERM);
}

hl_status drill_fault_end(pid_t pid)
{
    return send_signal(pid, SIGKILL);
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

/* Of the process's descriptor number: true when it was a connection, which is cut now. */
static bool cut_connection(int pidfd, int number)
{
    HL_AUTO(hl_closep) int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
    return fd >= 0 && is_tcp_connection(fd) && shutdown(fd, SHUT_RDWR) == 0;
}

static hl_status make_link(pid_t pid)
{
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
    {.name = "kill", .make = make_kill, .replaces = true},
    {.name = "stop", .make = make_stop, .replaces = true, .stops = true},
    {.name = "exit", .make = make_exit, .replaces = true},
    {.name = "link", .make = make_link},
    {.name = "oom",
     .refusal = "lowering the memory limit of a running container would affect all of its ranks"},
    {.name = "slow",
     .refusal = "ranks wait for a slow one in every step, and nothing tells it from them yet"},
    {.name = "disk", .refusal = "a disk that is filled is missing to others of the machine, too"},
    {.name = "bitflip",
     .refusal = "the replicas of data ranks are not compared, so that nothing would be found"},
};

const struct drill_fault *drill_fault_find(const char *name)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(faults); i++)
        if (strcmp(faults[i].name, name) == 0)
            return &faults[i];
    return NULL;
}
