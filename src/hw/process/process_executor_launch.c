/* Starts the shim of a container's directory. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "hw/process/process_executor.h"
#include "hw/process/process_executor_private.h"
#include "os/file.h"

hl_status hl_px_lock_shim(const char *dir, int *fd)
{
    struct hl_path path = hl_path_in(dir, "shim.pid");
    HL_AUTO(hl_closep) int f = open(path.s, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (f < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open %s: %s", path.s, strerror(err));
    }
    if (flock(f, LOCK_EX | LOCK_NB) != 0)
        return hl_fail(HL_EBUSY, "%s belongs to a running shim", dir);
    *fd = f;
    f = -1;
    return HL_OK;
}

static hl_status spawn_shim(const struct hl_px *px, const char *dir, int lock_fd, int ready_fd,
                            pid_t *out)
{
    char *argv[16];
    size_t n = 0;
    argv[n++] = (char *)"helios-agent"; /* shown by ps */
    for (const char *const *p = px->shim + 1; *p != NULL && n < HL_ARRAY_LEN(argv) - 2; p++)
        argv[n++] = (char *)*p;
    argv[n++] = (char *)dir;
    argv[n] = NULL;
    struct hl_path log_path = hl_path_in(dir, "shim.log");
    HL_AUTO(hl_closep)
    int log = open(log_path.s, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (log < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open %s: %s", log_path.s, strerror(err));
    }
    int pass[2] = {lock_fd, ready_fd};
    struct hl_spawn spawn = {
        .program = px->shim[0],
        .argv = argv,
        .env = environ,
        .workdir = "/",
        .name = "the shim",
        .std = {-1, log, log},
        .pass = pass,
        .pass_count = 2,
    };
    return hl_process_spawn(&spawn, out);
}

hl_status hl_px_launch_shim(const struct hl_px *px, const char *dir, struct hl_process *out)
{
    int ready[2];
    pid_t pid;
    HL_AUTO(hl_closep) int lock_fd = -1;
    HL_TRY(hl_px_lock_shim(dir, &lock_fd));
    if (pipe2(ready, O_CLOEXEC) != 0)
        return hl_fail(HL_EIO, "start the shim: pipe: %s", strerror(errno));
    HL_AUTO(hl_closep) int wait_fd = ready[0];
    HL_AUTO(hl_closep) int ready_fd = ready[1];
    HL_TRY(spawn_shim(px, dir, lock_fd, ready_fd, &pid));
    hl_closep(&ready_fd);
    struct pollfd p = {.fd = wait_fd, .events = POLLIN};
    if (hl_process_identify(pid, out) != HL_OK)
        *out = (struct hl_process){0};
    poll(&p, 1, HL_SHIM_START_MS);
    return HL_OK;
}
