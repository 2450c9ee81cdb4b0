#include "os/cpus.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "os/cgroup.h"
#include "os/file.h"

unsigned hl_cpus_quota(const char *text)
{
    long long quota, period;
    if (sscanf(text, "%lld %lld", &quota, &period) != 2 || quota <= 0 || period <= 0)
        return 0;
    long long cpus = (quota + period - 1) / period;
    return cpus < UINT_MAX ? (unsigned)cpus : UINT_MAX;
}

/* Appends a file's content to `out`, after a blank. */
static void append_file(const char *dir, const char *file, char *out, size_t room)
{
    char path[HL_CGROUP_PATH + 64];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 10);
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    size_t used = strlen(out);
    if (hl_file_read(path, &text) == HL_OK && text.len > 0)
        snprintf(out + used, room - used, "%s ", text.data);
    else
        hl_error_clear();
}

static unsigned smaller_quota(unsigned a, unsigned b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Checks the group and those above it, up to the mount: the smallest quota counts. */
static unsigned quota_v2(const struct hl_cgroup_layout *layout)
{
    char path[HL_CGROUP_PATH], text[128];
    size_t top = strlen(layout->v2_top);
    unsigned least = 0;
    snprintf(path, sizeof(path), "%s", layout->v2);
    while (strlen(path) >= top && top > 0) {
        text[0] = '\0';
        append_file(path, "cpu.max", text, sizeof(text));
        least = smaller_quota(least, hl_cpus_quota(text));
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            break;
        *slash = '\0';
    }
    return least;
}

static unsigned quota_v1(const struct hl_cgroup_layout *layout)
{
    char text[128] = "";
    if (layout->cpu[0] == '\0')
        return 0;
    append_file(layout->cpu, "cpu.cfs_quota_us", text, sizeof(text));
    append_file(layout->cpu, "cpu.cfs_period_us", text, sizeof(text));
    return hl_cpus_quota(text);
}

static unsigned read_quota(void)
{
    HL_AUTO(hl_buf_fini) struct hl_buf mounts = HL_BUF(1 << 20);
    HL_AUTO(hl_buf_fini) struct hl_buf own = HL_BUF(64 << 10);
    struct hl_cgroup_layout layout;
    if (hl_file_read("/proc/self/mountinfo", &mounts) != HL_OK || mounts.len == 0 ||
        hl_file_read("/proc/self/cgroup", &own) != HL_OK || own.len == 0) {
        hl_error_clear();
        return 0;
    }
    hl_cgroup_layout(mounts.data, own.data, &layout);
    return smaller_quota(quota_v2(&layout), quota_v1(&layout));
}

unsigned hl_cpus_usable(void)
{
    cpu_set_t set;
    unsigned n = 0;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = (unsigned)CPU_COUNT(&set);
    if (n == 0) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        n = online > 0 ? (unsigned)online : 1;
    }
    return smaller_quota(n, read_quota());
}
