#include "hw/load/oom_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "os/file.h"

/* State of the reader. */
struct oom_reader {
    const struct hl_oom_query *query;
    int named; /* process of the group that the previous line named; 0 = none */
    char *out;
    size_t cap;
};

/* "oom-kill:constraint=CONSTRAINT_MEMCG,...,task_memcg=/a/GROUP,task=python3,pid=42,uid=0". If
 * systemd creates an engine's groups, the last part is docker-GROUP.scope. */
static int pid_of_group(const char *body, const char *group)
{
    const char *path = strstr(body, "task_memcg="), *pid = strstr(body, ",pid=");
    size_t len = strlen(group);
    int number;
    if (len == 0 || path == NULL || pid == NULL || sscanf(pid, ",pid=%d", &number) != 1)
        return 0;
    const char *end = path + strcspn(path, ",");
    for (const char *at = path; (at = strstr(at, group)) != NULL && at < end; at++)
        if ((at[-1] == '/' || at[-1] == '-') &&
            (at[len] == '/' || at[len] == ',' || strncmp(at + len, ".scope", 6) == 0))
            return number;
    return 0;
}

/* "4,1234,5678901,-;Memory cgroup out of memory: Killed process 42 (python3) total-vm:..." */
static void take_line(struct oom_reader *r, const char *line)
{
    uint64_t us;
    int killed;
    const char *body = strchr(line, ';');
    if (body == NULL || sscanf(line, "%*u,%*u,%" SCNu64, &us) != 1 || us < r->query->since_us)
        return;
    if (strncmp(++body, "oom-kill:", 9) == 0)
        r->named = pid_of_group(body, r->query->group);
    const char *kill = strstr(body, "Killed process ");
    if (kill == NULL || sscanf(kill, "Killed process %d", &killed) != 1)
        return;
    if (killed == r->named || (killed == r->query->pid && killed != 0))
        snprintf(r->out, r->cap, "%s", body);
    r->named = 0;
}

/* The device returns one record per read, a file all lines at once. */
static void take_lines(struct oom_reader *r, char *block)
{
    char *rest = NULL;
    for (char *line = strtok_r(block, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        take_line(r, line);
}

hl_status hl_oom_log_find(const char *path, const struct hl_oom_query *query, char *out, size_t cap)
{
    char block[8193];
    struct oom_reader reader = {.query = query, .out = out, .cap = cap};
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
        take_lines(&reader, block);
    }
    return HL_OK;
}
