/* Runs other task libraries, controlled over pipes (bench/maco_peers). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench/maco.h"
#include "os/file.h"
#include "os/process.h"

hl_status bench_maco_peer_start(struct cli *cli, const char *name, int threads,
                                struct bench_maco_peer *out)
{
    char program[PATH_MAX + 64], count[16];
    int in[2], answer[2];
    snprintf(program, sizeof(program), "%s/../bench/maco_peer_%s", cli->bin_dir, name);
    if (access(program, X_OK) != 0)
        return hl_fail(HL_ENOENT, "%s was not built; `./run bench maco` does", program);
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(answer, O_CLOEXEC) != 0)
        return hl_fail(HL_EIO, "pipe: %s", strerror(errno));
    snprintf(count, sizeof(count), "%d", threads);
    const char *argv[] = {program, count, NULL};
    hl_status st = hl_process_spawn(&(struct hl_spawn){.program = program,
                                                       .argv = (char *const *)argv,
                                                       .env = environ,
                                                       .name = name,
                                                       .std = {in[0], answer[1], 2},
                                                       .die_with_parent = 1},
                                    &out->pid);
    close(in[0]);
    close(answer[1]);
    out->to = in[1];
    out->from = answer[0];
    return st;
}

hl_status bench_maco_peer_ask(struct bench_maco_peer *p, const char *graph, uint32_t tasks,
                              uint64_t *ns)
{
    char line[64];
    size_t len = 0;
    kill(p->pid, SIGCONT);
    int n = snprintf(line, sizeof(line), "%s %u\n", graph, tasks);
    if (write(p->to, line, (size_t)n) != n)
        return hl_fail(HL_EIO, "the process of the measured task library has ended");
    while (len == 0 || line[len - 1] != '\n') {
        struct pollfd fd = {.fd = p->from, .events = POLLIN};
        if (poll(&fd, 1, BENCH_MACO_ANSWER_MS) != 1 || len + 1 == sizeof(line))
            return hl_fail(HL_ETIMEDOUT,
                           "the process of the measured task library does not answer");
        ssize_t got = read(p->from, line + len, sizeof(line) - 1 - len);
        if (got <= 0)
            return hl_fail(HL_EIO, "the process of the measured task library has ended");
        len += (size_t)got;
    }
    line[len] = '\0';
    *ns = strtoull(line, NULL, 10);
    kill(p->pid, SIGSTOP); /* otherwise its threads would spin next to the next library */
    return HL_OK;
}

void bench_maco_peer_stop(struct bench_maco_peer *p)
{
    if (p->pid <= 0)
        return;
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close(p->to);
    close(p->from);
    *p = (struct bench_maco_peer){0};
}
