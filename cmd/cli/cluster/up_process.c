#include "cli/cluster/up_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cluster/commands.h"
#include "cli/local/local.h"

/* The processes, and what goes through the pipe:
 *
 *     waiting process ──fork──▶ working process ──exec──▶ supervisor
 *           ▲                        │                        (the pipe is closed by the exec)
 *           └───── "0" or "1TEXT" ───┘
 *
 * The waiting process reads the pipe to its end. A record is written right before the exec, and a
 * second one, "1...", only if the exec has failed. Without any record the worker has ended by
 * itself, and its exit status tells how. Signals are blocked from before the fork until each side
 * is ready for them; otherwise one in between could end the waiting process and leave the
 * worker. */
static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP};
static volatile sig_atomic_t worker;

static void pass_on(int number)
{
    kill(worker, number);
}

static void mask_signals(int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < HL_ARRAY_LEN(passed_on); i++)
        sigaddset(&set, passed_on[i]);
    sigprocmask(how, &set, NULL);
}

/* Passes signals on: interrupting the waiting process is meant for the working one. */
static void pass_signals_on(pid_t pid)
{
    struct sigaction now, on = {.sa_handler = pass_on};
    worker = pid;
    for (size_t i = 0; i < HL_ARRAY_LEN(passed_on); i++)
        if (sigaction(passed_on[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            sigaction(passed_on[i], &on, NULL);
}

/* Reads the last record: '0', or '1' with a text; false: there was none. */
static bool read_outcome(int fd, char *out, size_t cap)
{
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, out + len, cap - 1 - len);
        if (n > 0)
            len += (size_t)n;
        else if (n == 0 || errno != EINTR)
            break;
    }
    out[len] = '\0';
    return len > 0;
}

/* The worker has printed its messages itself. */
static hl_status outcome_of_end(struct cli *cli, pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        return hl_fail(HL_EIO, "`helios up` was killed by signal %d (%s); repeat it",
                       WTERMSIG(status), strsignal(WTERMSIG(status)));
    hl_error_clear();
    cli->usage_failed |= WEXITSTATUS(status) == 2;
    return WEXITSTATUS(status) == 0 ? HL_OK : HL_EIO;
}

static hl_status wait_for_worker(struct cli *cli, pid_t pid, int fd)
{
    char said[HL_ERROR_TEXT_MAX + 2];
    if (!read_outcome(fd, said, sizeof(said)))
        return outcome_of_end(cli, pid);
    const char *failed = strchr(said, '1');
    return said[0] == '0' && said[1] == '\0' ? HL_OK
                                             : hl_fail(HL_EIO, "%s", failed ? failed + 1 : said);
}

hl_status up_process_begin(struct cli *cli, struct up_process *out)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return hl_fail(HL_EIO, "making a pipe: %m");
    pid_t self = getpid();
    fflush(NULL);
    mask_signals(SIG_BLOCK);
    pid_t pid = fork();
    if (pid < 0) {
        hl_status st = hl_fail(HL_EIO, "starting a process: %m");
        mask_signals(SIG_UNBLOCK);
        close(fds[0]);
        close(fds[1]);
        return st;
    }
    if (pid > 0) {
        pass_signals_on(pid);
        mask_signals(SIG_UNBLOCK);
        close(fds[1]);
        *out = (struct up_process){.works = false, .pipe = -1};
        hl_status st = wait_for_worker(cli, pid, fds[0]);
        close(fds[0]);
        return st;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) /* the parent died before */
        _exit(1);
    mask_signals(SIG_UNBLOCK);
    close(fds[0]);
    *out = (struct up_process){.works = true, .pipe = fds[1]};
    return HL_OK;
}

/* Detaches from the terminal, the caller's pipes and the directory. */
static hl_status detach_supervisor(const char *state)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof(path), "%s/log/supervisor.log", state);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (log < 0)
        return hl_fail(HL_EIO, "log file %s: %m", path);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    bool done = null >= 0 && chdir("/") == 0 && dup2(null, STDIN_FILENO) >= 0 &&
                dup2(log, STDOUT_FILENO) >= 0 && dup2(log, STDERR_FILENO) >= 0;
    hl_status st = done ? HL_OK : hl_fail(HL_EIO, "leaving the terminal: %m");
    close(log);
    close(null);
    if (st == HL_OK) {
        setsid(); /* works because a forked process does not lead a group */
        prctl(PR_SET_PDEATHSIG, 0);
    }
    return st;
}

static void write_text(int fd, const char *text)
{
    (void)!write(fd, text, strlen(text));
}

hl_status up_process_supervise(struct cli *cli, struct up_process *p, const char *state,
                               hl_status outcome)
{
    char said[HL_ERROR_TEXT_MAX + 2] = "0", path[PATH_MAX + 16];
    if (outcome != HL_OK)
        snprintf(said, sizeof(said), "1%s", hl_error_text());
    fflush(NULL);
    HL_TRY(detach_supervisor(state));
    write_text(p->pipe, said);
    snprintf(path, sizeof(path), "%s/helios", cli->bin_dir);
    char *argv[] = {(char[]){"helios"}, (char[]){"--state"}, strdup(state), (char[]){"supervise"},
                    NULL};
    execv(path, argv);
    snprintf(said, sizeof(said), "1the daemons run, but nothing restarts them: exec of helios: %s",
             strerror(errno));
    write_text(p->pipe, said);
    _exit(1);
}

hl_status cmd_supervise(struct cli *cli)
{
    char state[PATH_MAX];
    HL_TRY(cli_absolute(cli->state, state));
    hl_log_init("supervisor", HL_LOG_INFO);
    return local_supervise(state);
}
