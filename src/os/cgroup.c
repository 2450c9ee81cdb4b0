#include "os/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "os/file.h"
#include "os/systemd.h"

#define REMOVE_PAUSE_NS (5 * HL_NS_PER_MS)

/* ---- where groups can be made ---- */

/* `options` is a comma-separated list. */
static bool has_option(const char *options, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = options; p != NULL; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, name, len) == 0 && (p[len] == ',' || p[len] == '\0'))
            return true;
    }
    return false;
}

/* Finds the caller's group in a hierarchy: a line such as "7:cpuset:/a/b", in v2 "0::/a".
 * controller NULL = v2. */
static void own_path(const char *cgroup, const char *controller, char *out, size_t size)
{
    out[0] = '\0';
    for (const char *line = cgroup; line != NULL && *line != '\0';) {
        size_t len = strcspn(line, "\n");
        const char *names = memchr(line, ':', len);
        const char *path =
            names != NULL ? memchr(names + 1, ':', len - (size_t)(names + 1 - line)) : NULL;
        if (path != NULL) {
            char list[256];
            snprintf(list, sizeof(list), "%.*s", (int)(path - names - 1), names + 1);
            if (controller != NULL ? has_option(list, controller) : list[0] == '\0') {
                snprintf(out, size, "%.*s", (int)(len - (size_t)(path + 1 - line)), path + 1);
                return;
            }
        }
        line += len;
        line += *line == '\n';
    }
}

/* Finds the directory of group `own` below a mount that shows the hierarchy from `root` on. */
static void join_paths(const char *mount, const char *root, const char *own, char *out)
{
    size_t len = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(own, root, len) == 0 && (own[len] == '/' || own[len] == '\0'))
        own += len;
    else
        own = "";
    while (own[0] == '/' && own[1] == '\0')
        own++;
    snprintf(out, HL_CGROUP_PATH, "%.255s%.255s", mount, own);
}

static void layout_mount(const char *root, const char *mount, const char *type, const char *super,
                         const char *cgroup, struct hl_cgroup_layout *out)
{
    char own[256];
    if (strcmp(type, "cgroup2") == 0 && out->v2[0] == '\0') {
        own_path(cgroup, NULL, own, sizeof(own));
        join_paths(mount, root, own, out->v2);
        snprintf(out->v2_top, sizeof(out->v2_top), "%s", mount);
    } else if (strcmp(type, "cgroup") == 0) {
        static const char *const names[] = {"cpuset", "memory", "freezer", "cpu"};
        char *dirs[] = {out->cpuset, out->memory, out->freezer, out->cpu};
        for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
            if (!has_option(super, names[i]) || dirs[i][0] != '\0')
                continue;
            own_path(cgroup, names[i], own, sizeof(own));
            join_paths(mount, root, own, dirs[i]);
        }
    }
}

void hl_cgroup_layout(const char *mountinfo, const char *cgroup, struct hl_cgroup_layout *out)
{
    memset(out, 0, sizeof(*out));
    for (const char *line = mountinfo; *line != '\0';) {
        size_t len = strcspn(line, "\n");
        char copy[2048], root[256], mount[256], type[64], super[512];
        snprintf(copy, sizeof(copy), "%.*s", (int)(len < sizeof(copy) ? len : 0), line);
        /* A line reads: 34 31 0:31 ROOT MOUNT OPTIONS [TAGS] - TYPE SOURCE SUPER */
        const char *tail = strstr(copy, " - ");
        if (tail != NULL && sscanf(copy, "%*s %*s %*s %255s %255s", root, mount) == 2 &&
            sscanf(tail + 3, "%63s %*s %511s", type, super) == 2)
            layout_mount(root, mount, type, super, cgroup, out);
        line += len;
        line += *line == '\n';
    }
}

/* ---- making them ---- */

static hl_status write_in(const char *dir, const char *file, const char *text)
{
    char path[HL_CGROUP_PATH + 64];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    return hl_file_write_control(path, text);
}

static bool exists_in(const char *dir, const char *file)
{
    char path[HL_CGROUP_PATH + 64];
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    return access(path, F_OK) == 0;
}

static bool make_dir(struct hl_cgroup *cg, const char *parent, const char *name)
{
    if (parent[0] == '\0' || cg->count == HL_CGROUP_DIRS)
        return false;
    char *path = cg->dirs[cg->count].path;
    int n = snprintf(path, HL_CGROUP_PATH, "%s/%s", parent, name);
    if (n < 0 || n >= HL_CGROUP_PATH || (mkdir(path, 0755) != 0 && errno != EEXIST))
        return false;
    cg->dirs[cg->count].means = 0;
    cg->count++;
    return true;
}

static void drop_last(struct hl_cgroup *cg)
{
    rmdir(cg->dirs[--cg->count].path);
}

static unsigned set_cpuset(const char *dir, const struct hl_cgroup_spec *spec)
{
    char cpus[HL_CPUSET_TEXT_MAX], mems[HL_CPUSET_TEXT_MAX];
    if (spec->cpus == NULL)
        return 0;
    hl_cpuset_format(spec->cpus, cpus, sizeof(cpus));
    hl_cpuset_format(spec->mems, mems, sizeof(mems));
    if (write_in(dir, "cpuset.cpus", cpus) != HL_OK || write_in(dir, "cpuset.mems", mems) != HL_OK)
        return 0;
    return HL_CGROUP_CPUSET;
}

static unsigned set_memory(const char *dir, const char *file, const struct hl_cgroup_spec *spec)
{
    char text[32];
    if (spec->memory_bytes == 0)
        return 0;
    snprintf(text, sizeof(text), "%llu", (unsigned long long)spec->memory_bytes);
    return write_in(dir, file, text) == HL_OK ? HL_CGROUP_MEMORY : 0;
}

static bool has_controllers(const char *dir)
{
    char path[HL_CGROUP_PATH + 64];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    snprintf(path, sizeof(path), "%s/cgroup.controllers", dir);
    return dir[0] != '\0' && hl_file_read(path, &text) == HL_OK && text.len > 0 &&
           strstr(text.data, "cpuset") != NULL;
}

/* A group that delegates controllers must have no processes of its own. */
static void leave_group(const char *dir)
{
    char leaf[HL_CGROUP_PATH + 16];
    snprintf(leaf, sizeof(leaf), "%s/caller", dir);
    if (mkdir(leaf, 0755) == 0 || errno == EEXIST)
        (void)!write_in(leaf, "cgroup.procs", "0");
}

/* If v2 has the controllers, makes a group inside what was delegated to the caller, otherwise
 * beside the caller's slice. */
static void make_v2(struct hl_cgroup *cg, const struct hl_cgroup_layout *where,
                    const struct hl_cgroup_spec *spec)
{
    struct hl_cgroup_spec kept = *spec;
    const char *parent = spec->delegated || spec->inside ? where->v2 : where->v2_top;
    if (!spec->inside && has_controllers(parent)) {
        if (spec->delegated)
            leave_group(parent);
        else if (hl_systemd_booted())
            kept.cpus = NULL;
        if (kept.cpus != NULL)
            (void)!write_in(parent, "cgroup.subtree_control", "+cpuset");
        (void)!write_in(parent, "cgroup.subtree_control", "+memory");
    } else {
        parent = where->v2;
    }
    if (!make_dir(cg, parent, spec->name) && !make_dir(cg, where->v2, spec->name))
        return;
    const char *dir = cg->dirs[cg->count - 1].path;
    unsigned means = HL_CGROUP_V2;
    if (exists_in(dir, "cgroup.kill"))
        means |= HL_CGROUP_KILL;
    means |= set_cpuset(dir, &kept);
    means |= set_memory(dir, "memory.max", spec);
    cg->dirs[cg->count - 1].means = means;
}

unsigned hl_cgroup_means(const struct hl_cgroup *cg)
{
    unsigned means = 0;
    for (size_t i = 0; i < cg->count; i++)
        means |= cg->dirs[i].means;
    return means;
}

void hl_cgroup_create(const struct hl_cgroup_spec *spec, struct hl_cgroup *out)
{
    struct hl_cgroup_layout where;
    HL_AUTO(hl_buf_fini) struct hl_buf mounts = HL_BUF(1 << 20);
    HL_AUTO(hl_buf_fini) struct hl_buf own = HL_BUF(64 << 10);
    out->count = 0;
    if (hl_file_read("/proc/self/mountinfo", &mounts) != HL_OK || mounts.len == 0 ||
        hl_file_read("/proc/self/cgroup", &own) != HL_OK || own.len == 0)
        return;
    hl_cgroup_layout(mounts.data, own.data, &where);
    make_v2(out, &where, spec);
    unsigned have = hl_cgroup_means(out);
    if (spec->cpus != NULL && (have & HL_CGROUP_CPUSET) == 0 &&
        make_dir(out, where.cpuset, spec->name)) {
        size_t i = out->count - 1;
        out->dirs[i].means = set_cpuset(out->dirs[i].path, spec);
        if (out->dirs[i].means == 0)
            drop_last(out); /* no process can enter a v1 group without CPUs */
    }
    if (spec->memory_bytes > 0 && (have & HL_CGROUP_MEMORY) == 0 &&
        make_dir(out, where.memory, spec->name)) {
        size_t i = out->count - 1;
        out->dirs[i].means = set_memory(out->dirs[i].path, "memory.limit_in_bytes", spec);
        if (out->dirs[i].means == 0)
            drop_last(out);
    }
    if ((have & HL_CGROUP_KILL) == 0 && make_dir(out, where.freezer, spec->name))
        out->dirs[out->count - 1].means = HL_CGROUP_FREEZER;
}

size_t hl_cgroup_join_open(const struct hl_cgroup *cg, int fds[HL_CGROUP_DIRS])
{
    size_t n = 0;
    for (size_t i = 0; i < cg->count; i++) {
        char path[HL_CGROUP_PATH + 64];
        snprintf(path, sizeof(path), "%s/cgroup.procs", cg->dirs[i].path);
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0)
            fds[n++] = fd;
    }
    return n;
}

/* ---- ending them ---- */

/* Sends SIGKILL to every listed process; returns how many there were. */
static size_t kill_listed(const char *dir)
{
    char path[HL_CGROUP_PATH + 64];
    snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 20);
    if (hl_file_read(path, &text) != HL_OK || text.len == 0)
        return 0;
    size_t count = 0;
    char *end;
    for (char *p = text.data; *p != '\0'; p = end) {
        long pid = strtol(p, &end, 10);
        if (end == p)
            break;
        if (pid > 0)
            kill((pid_t)pid, SIGKILL);
        count++;
    }
    return count;
}

void hl_cgroup_kill(const struct hl_cgroup *cg)
{
    for (size_t i = 0; i < cg->count; i++) {
        const char *dir = cg->dirs[i].path;
        unsigned means = cg->dirs[i].means;
        if ((means & HL_CGROUP_KILL) != 0 && write_in(dir, "cgroup.kill", "1") == HL_OK)
            continue;
        /* Frozen processes can't fork and escape the list; they die when thawed. */
        if ((means & HL_CGROUP_FREEZER) != 0)
            (void)!write_in(dir, "freezer.state", "FROZEN");
        kill_listed(dir);
        if ((means & HL_CGROUP_FREEZER) != 0)
            (void)!write_in(dir, "freezer.state", "THAWED");
    }
}

uint64_t hl_cgroup_oom_kills(const struct hl_cgroup *cg)
{
    for (size_t i = 0; i < cg->count; i++) {
        if ((cg->dirs[i].means & HL_CGROUP_MEMORY) == 0)
            continue;
        bool v2 = (cg->dirs[i].means & HL_CGROUP_V2) != 0;
        char path[HL_CGROUP_PATH + 64];
        snprintf(path, sizeof(path), "%s/%s", cg->dirs[i].path,
                 v2 ? "memory.events" : "memory.oom_control");
        HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
        if (hl_file_read(path, &text) != HL_OK || text.len == 0)
            return 0;
        const char *at = strstr(text.data, "oom_kill ");
        return at != NULL ? strtoull(at + 9, NULL, 10) : 0;
    }
    return 0;
}

hl_status hl_cgroup_remove(struct hl_cgroup *cg, int timeout_ms)
{
    uint64_t deadline = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    for (;;) {
        hl_cgroup_kill(cg);
        size_t left = 0;
        for (size_t i = 0; i < cg->count; i++) {
            if (rmdir(cg->dirs[i].path) == 0 || errno == ENOENT)
                continue;
            cg->dirs[left++] = cg->dirs[i];
        }
        cg->count = left;
        if (left == 0)
            return HL_OK;
        if (hl_now_ns() >= deadline)
            return hl_fail(HL_ETIMEDOUT, "control group %s still has processes after %d ms",
                           cg->dirs[0].path, timeout_ms);
        /* The kernel refuses rmdir until it has reaped the last process. Version 1 of control
         * groups sends no event for that, and killed processes end within milliseconds. */
        nanosleep(&(struct timespec){.tv_nsec = REMOVE_PAUSE_NS}, NULL);
    }
}

static bool add_found(struct hl_cgroup *cg, const char *parent, const char *name, unsigned means)
{
    struct stat sb;
    char *path = cg->dirs[cg->count].path;
    int n = snprintf(path, HL_CGROUP_PATH, "%s/%s", parent, name);
    if (parent[0] == '\0' || n < 0 || n >= HL_CGROUP_PATH || stat(path, &sb) != 0)
        return false;
    bool kill = (means & HL_CGROUP_V2) != 0 && exists_in(path, "cgroup.kill");
    cg->dirs[cg->count++].means = means | (kill ? HL_CGROUP_KILL : 0);
    return true;
}

void hl_cgroup_find(pid_t maker, const char *name, struct hl_cgroup *out)
{
    struct hl_cgroup_layout where;
    char path[64], above[HL_CGROUP_PATH];
    HL_AUTO(hl_buf_fini) struct hl_buf mounts = HL_BUF(1 << 20);
    HL_AUTO(hl_buf_fini) struct hl_buf own = HL_BUF(64 << 10);
    out->count = 0;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)maker);
    if (hl_file_read("/proc/self/mountinfo", &mounts) != HL_OK || mounts.len == 0 ||
        hl_file_read(path, &own) != HL_OK || own.len == 0)
        return;
    hl_cgroup_layout(mounts.data, own.data, &where);
    memcpy(above, where.v2, sizeof(above));
    if (strrchr(above, '/') != NULL)
        *strrchr(above, '/') = '\0'; /* it may have moved to an inner group: leave_group */
    if (!add_found(out, where.v2_top, name, HL_CGROUP_V2) &&
        !add_found(out, where.v2, name, HL_CGROUP_V2))
        (void)add_found(out, above, name, HL_CGROUP_V2);
    (void)add_found(out, where.cpuset, name, HL_CGROUP_CPUSET);
    (void)add_found(out, where.memory, name, HL_CGROUP_MEMORY);
    (void)add_found(out, where.freezer, name, HL_CGROUP_FREEZER);
}

hl_status hl_cgroup_record(const struct hl_cgroup *cg, struct hl_buf *out)
{
    for (size_t i = 0; i < cg->count; i++)
        HL_TRY(hl_buf_printf(out, "%u %s\n", cg->dirs[i].means, cg->dirs[i].path));
    return HL_OK;
}

void hl_cgroup_recall(const char *text, struct hl_cgroup *out)
{
    out->count = 0;
    while (out->count < HL_CGROUP_DIRS && *text != '\0') {
        unsigned means;
        char path[HL_CGROUP_PATH];
        if (sscanf(text, "%u %511[^\n]", &means, path) == 2 && path[0] == '/') {
            out->dirs[out->count].means = means;
            memcpy(out->dirs[out->count].path, path, sizeof(path));
            out->count++;
        }
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
}
