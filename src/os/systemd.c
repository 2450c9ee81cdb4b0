#include "os/systemd.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/process.h"

#define PATH_OF_TOOLS "/usr/local/bin:/usr/bin:/bin"
#define POLL_MS       2

int hl_systemd_booted(void)
{
    return access("/run/systemd/system", F_OK) == 0;
}

static int is_in_scope(const char *scope)
{
    HL_AUTO(hl_buf_fini) struct hl_buf own = HL_BUF(64 << 10);
    return hl_file_read("/proc/self/cgroup", &own) == HL_OK && own.len > 0 &&
           strstr(own.data, scope) != NULL;
}

/* Its own deadline is the bus's; a busctl that does not even keep that is killed. */
static hl_status await_busctl(pid_t pid, uint64_t deadline)
{
    int how;
    while (waitpid(pid, &how, WNOHANG) == 0) {
        if (hl_now_ns() >= deadline) {
            kill(pid, SIGKILL);
            waitpid(pid, &how, 0);
            return hl_fail(HL_ETIMEDOUT, "busctl has not ended in time");
        }
        poll(NULL, 0, POLL_MS);
    }
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        return hl_fail(HL_EIO, "systemd gave no scope; `busctl status` tells whether its bus runs");
    return HL_OK;
}

static hl_status request_scope(const char *unit, uint64_t deadline, int timeout_ms)
{
    char program[256], pid[16], timeout[32];
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    snprintf(timeout, sizeof(timeout), "--timeout=%dms", timeout_ms);
    /* clang-format off */
    const char *const argv[] = {
        "busctl", "--system", "--quiet", timeout, "call", "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartTransientUnit",
        "ssa(sv)a(sa(sv))", unit, "fail", "5",
        "Description", "s", "ranks of a Helios container",
        "Slice", "s", "helios.slice",
        "DelegateControllers", "as", "2", "cpuset", "memory",
        "CollectMode", "s", "inactive-or-failed",
        "PIDs", "au", "1", pid,
        "0", NULL};
    /* clang-format on */
    HL_TRY(hl_process_find(argv[0], PATH_OF_TOOLS, program, sizeof(program)));
    struct hl_spawn spawn = {.program = program,
                             .argv = (char *const *)argv,
                             .env = (char *const[]){NULL},
                             .std = {-1, STDERR_FILENO, STDERR_FILENO},
                             .die_with_parent = 1};
    pid_t child;
    HL_TRY(hl_process_spawn(&spawn, &child));
    return await_busctl(child, deadline);
}

hl_status hl_systemd_scope(const char *name, int timeout_ms)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    char unit[256];
    int n = snprintf(unit, sizeof(unit), "%s.scope", name);
    if (n < 0 || (size_t)n >= sizeof(unit))
        return hl_fail(HL_EINVAL, "the name of a scope, %.64s..., is too long", name);
    HL_TRY(request_scope(unit, deadline, timeout_ms));
    while (!is_in_scope(unit)) { /* the call only queues it */
        if (hl_now_ns() >= deadline)
            return hl_fail(HL_ETIMEDOUT, "systemd has not made %s within %d ms", unit, timeout_ms);
        poll(NULL, 0, POLL_MS);
    }
    return HL_OK;
}
