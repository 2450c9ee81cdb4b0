/* The site's own script: its exit code decides, the last line of its output is shown. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/health/health_private.h"
#include "os/file.h"
#include "os/process.h"

#define OUTPUT_MAX 4096

extern char **environ;

/* The newest OUTPUT_MAX bytes of what it writes, until it closes the pipe or the deadline. */
static void output_read(int fd, uint64_t deadline_ns, char *out)
{
    char block[OUTPUT_MAX];
    size_t len = 0;
    for (;;) {
        uint64_t now = hl_now_ns();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= deadline_ns || poll(&p, 1, (int)((deadline_ns - now) / HL_NS_PER_MS) + 1) <= 0)
            break;
        ssize_t n = read(fd, block, sizeof(block) - 1);
        if (n <= 0)
            break;
        size_t keep = (size_t)n + len < OUTPUT_MAX ? len : OUTPUT_MAX - 1 - (size_t)n;
        memmove(out, out + len - keep, keep);
        memcpy(out + keep, block, (size_t)n);
        len = keep + (size_t)n;
    }
    out[len] = '\0';
}

static const char *last_line(char *text)
{
    size_t len = strlen(text);
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        text[--len] = '\0';
    char *line = strrchr(text, '\n');
    line = line != NULL ? line + 1 : text;
    for (char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c >= 0x7f)
            *c = '?';
    if (strlen(line) > 200)
        line[200] = '\0';
    return line;
}

/* Its end; a script that is still there at the deadline is killed with all of its group. */
static int script_wait(pid_t pid, uint64_t deadline_ns, bool *late)
{
    struct hl_process p;
    int fd = -1, how = 0;
    uint64_t now = hl_now_ns();
    int left = now < deadline_ns ? (int)((deadline_ns - now) / HL_NS_PER_MS) + 1 : 0;
    *late = hl_process_identify(pid, &p) == HL_OK && hl_process_open(p, &fd) == HL_OK &&
            !hl_process_wait(fd, left);
    if (*late)
        kill(-pid, SIGKILL);
    hl_closep(&fd);
    while (waitpid(pid, &how, 0) < 0 && errno == EINTR)
        ;
    return how;
}

static void script_judge(struct hl_health_run *r, int how, bool late, char *output)
{
    char text[300] = "", value[64];
    const char *said = last_line(output);
    if (late)
        snprintf(text, sizeof(text), "it was not done within the test's %d ms and was killed",
                 r->opts->deadline_ms);
    else if (WIFSIGNALED(how))
        snprintf(text, sizeof(text), "it was killed by signal %d", WTERMSIG(how));
    else if (WEXITSTATUS(how) != 0)
        snprintf(text, sizeof(text), "exit code %d%s%.250s", WEXITSTATUS(how),
                 said[0] != '\0' ? ": " : "", said);
    snprintf(value, sizeof(value), "%.60s", said);
    hl_health_row(r, "script",
                  text[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED, value,
                  text);
}

void hl_health_script(struct hl_health_run *r)
{
    const char *script = r->opts->script;
    char name[512], output[OUTPUT_MAX];
    int ends[2];
    pid_t pid;
    bool late;
    if (script[0] == '\0')
        return;
    snprintf(name, sizeof(name), "%s", script);
    char *argv[] = {name, NULL};
    if (pipe2(ends, O_CLOEXEC) != 0) {
        hl_health_row(r, "script", HL_API_HEALTH_STATE_FAILED, "", strerror(errno));
        return;
    }
    const struct hl_spawn spawn = {.program = script,
                                   .argv = argv,
                                   .env = environ,
                                   .std = {-1, ends[1], ends[1]},
                                   .die_with_parent = true};
    hl_status st = hl_process_spawn(&spawn, &pid);
    close(ends[1]);
    if (st == HL_OK) {
        output_read(ends[0], r->deadline_ns, output);
        int how = script_wait(pid, r->deadline_ns, &late);
        script_judge(r, how, late, output);
    } else {
        hl_health_row(r, "script", HL_API_HEALTH_STATE_FAILED, "", hl_error_text());
    }
    close(ends[0]);
}
