#include "os/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/process.h"

#define TICK_MS 100
/* How long outputs are read after the end of the program: a grandchild may keep them open. */
#define LINGER_MS 500

void hl_command_fini(struct hl_command_result *r)
{
    hl_buf_fini(&r->out);
    hl_buf_fini(&r->err);
}

const char *hl_command_text(const struct hl_buf *b)
{
    return b->data != NULL ? b->data : "";
}

/* If there is more output than room, keeps the beginning or the end. */
static void output_keep(const struct hl_command *c, struct hl_buf *to, const char *block, size_t n)
{
    if (c->newest != 0 && to->len + n > c->newest) {
        size_t over = to->len + n - c->newest, old = over < to->len ? over : to->len;
        if (old > 0)
            memmove(to->data, to->data + old, to->len - old);
        to->len -= old;
        block += over - old;
        n -= over - old;
    }
    if (to->len + n < to->max)
        (void)!hl_buf_append(to, block, n);
}

/* Returns false at the end of the output. */
static bool output_take(const struct hl_command *c, int fd, struct hl_buf *to)
{
    char block[8192];
    ssize_t n = read(fd, block, sizeof(block));
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n > 0)
        output_keep(c, to, block, (size_t)n);
    return n > 0;
}

static int exit_code_of(int how)
{
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

/* Waits until the child has ended and its outputs are read. */
static hl_status await_command(const struct hl_command *c, pid_t pid, int out, int err,
                               struct hl_command_result *r)
{
    struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
    struct hl_buf *to[2] = {&r->out, &r->err};
    uint64_t deadline = hl_now_ns() + (uint64_t)c->timeout_ms * HL_NS_PER_MS;
    bool ended = false;
    while (!ended || fds[0].fd >= 0 || fds[1].fd >= 0) {
        int how;
        poll(fds, 2, TICK_MS);
        for (int i = 0; i < 2; i++)
            if (fds[i].fd >= 0 && fds[i].revents != 0 && !output_take(c, fds[i].fd, to[i]))
                fds[i].fd = -1;
        if (!ended && waitpid(pid, &how, WNOHANG) == pid) {
            ended = true;
            r->exit_code = exit_code_of(how);
            r->signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
            deadline = hl_now_ns() + LINGER_MS * HL_NS_PER_MS;
        }
        if (ended && hl_now_ns() >= deadline)
            return HL_OK;
        if (!ended && hl_now_ns() >= deadline)
            return hl_fail(HL_ETIMEDOUT, "%s did not answer within %d ms", c->argv[0],
                           c->timeout_ms);
        if (!ended && c->go_on != NULL && !c->go_on(c->arg, &r->out, &r->err))
            return hl_fail(HL_ECANCELED, "%s was interrupted", c->argv[0]);
    }
    return HL_OK;
}

/* Opens both ends of a new terminal, in the order of pipe2. */
static int terminal_open(int ends[2])
{
    char name[64];
    ends[0] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (ends[0] < 0 || grantpt(ends[0]) != 0 || unlockpt(ends[0]) != 0 ||
        ptsname_r(ends[0], name, sizeof(name)) != 0)
        return -1;
    ends[1] = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return ends[1] < 0 ? -1 : 0;
}

hl_status hl_command_run(const struct hl_command *c, struct hl_command_result *r)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t pid;
    r->out.max = r->err.max = HL_COMMAND_OUTPUT_MAX;
    if ((c->terminal ? terminal_open(out) : pipe2(out, O_CLOEXEC)) != 0 ||
        pipe2(err, O_CLOEXEC) != 0) {
        int e = errno;
        for (int i = 0; i < 2; i++)
            hl_closep(&out[i]);
        return hl_fail(hl_status_of_errno(e), "run %s: its output: %s", c->argv[0], strerror(e));
    }
    struct hl_spawn spawn = {.program = c->program,
                             .argv = c->argv,
                             .env = c->env,
                             .name = c->argv[0],
                             .std = {-1, out[1], c->join ? out[1] : err[1]},
                             .die_with_parent = true};
    hl_status st = hl_process_spawn(&spawn, &pid);
    hl_closep(&out[1]);
    hl_closep(&err[1]);
    if (st == HL_OK) {
        fcntl(out[0], F_SETFL, O_NONBLOCK);
        fcntl(err[0], F_SETFL, O_NONBLOCK);
        st = await_command(c, pid, out[0], err[0], r);
        if (st != HL_OK) {
            kill(-pid, SIGKILL);
            while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        }
    }
    hl_closep(&out[0]);
    hl_closep(&err[0]);
    return st;
}
