#include "hw/load/oom_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/file.h"

/* "4,1234,5678901,-;Memory cgroup out of memory: Killed process 42 (python3) total-vm:..." */
static bool line_matches(const char *line, int pid, uint64_t since_us, const char **text)
{
    uint64_t us;
    int killed;
    const char *body = strchr(line, ';'), *kill = strstr(line, "Killed process ");
    if (body == NULL || kill == NULL || kill < body || sscanf(line, "%*u,%*u,%" SCNu64, &us) != 1 ||
        us < since_us || sscanf(kill, "Killed process %d", &killed) != 1 || killed != pid)
        return false;
    *text = body + 1;
    return true;
}

/* The device gives one record a read, a file all lines at once. */
static void take_lines(char *block, int pid, uint64_t since_us, char *out, size_t cap)
{
    char *rest = NULL;
    const char *text;
    for (char *line = strtok_r(block, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        if (line_matches(line, pid, since_us, &text))
            snprintf(out, cap, "%s", text);
}

hl_status hl_oom_log_find(const char *path, int pid, uint64_t since_us, char *out, size_t cap)
{
    char block[8193];
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return hl_fail(errno == EPERM || errno == EACCES ? HL_EPERM : HL_EIO,
                       "%s can't be read: %s", path, strerror(errno));
    out[0] = '\0';
    for (;;) {
        ssize_t n = read(fd, block, sizeof(block) - 1);
        if (n < 0 && (errno == EPIPE || errno == EINTR)) /* records were overwritten meanwhile */
            continue;
        if (n <= 0)
            break;
        block[n] = '\0';
        take_lines(block, pid, since_us, out, cap);
    }
    return HL_OK;
}
