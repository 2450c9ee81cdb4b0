/* One reading: first the table of processes, once, then each container.
 *
 *    group of a rank's process --differs from ours--> its files: memory, processor time, OOM kills
 *           '--is ours--> the tree below each rank's process, from the table
 *
 * Cgroup versions 1 and 2 may both be mounted; each number comes from the hierarchy that has it. */
#include "hw/load/container_load.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>

#include "base/clock.h"
#include "os/cgroup.h"
#include "os/file.h"

#define PROCESSES_MAX 65536
#define DEPTH_MAX     64
/* v1 shows "no limit" as the largest number of pages. */
#define V1_UNLIMITED ((uint64_t)1 << 60)

struct hl_container_before {
    char id[160];
    uint64_t cpu_ns;
    bool seen;
    UT_hash_handle hh;
};

struct proc_row {
    int32_t pid, parent;
    uint64_t cpu_ticks;
};

/* The working data of one reading. */
struct scan {
    const char *proc;
    struct proc_row *rows; /* NULL = not read yet */
    size_t count;
    struct hl_buf mounts;
    struct hl_cgroup_layout own;
    bool layout; /* `own` is valid */
};

struct usage {
    uint64_t cpu_ns, memory_bytes, limit_bytes, oom_kills;
    uint32_t processes;
    const char *source;
};

/* ---- processes ------------------------------------------------------------------------------- */

static bool proc_text(const struct scan *s, const char *pid, const char *name, struct hl_buf *out)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s/%s", s->proc, pid, name);
    hl_buf_clear(out);
    return hl_file_read(path, out) == HL_OK && out->len > 0;
}

/* "PID (NAME) S PPID ... utime(14) stime(15)"; the name can contain any character. */
static bool row_parse(const char *stat, struct proc_row *out)
{
    uint64_t user, system;
    const char *tail = strrchr(stat, ')');
    if (tail == NULL || sscanf(stat, "%" SCNd32, &out->pid) != 1)
        return false;
    if (sscanf(tail + 1,
               " %*c %" SCNd32 " %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
               &out->parent, &user, &system) != 3)
        return false;
    out->cpu_ticks = user + system;
    return true;
}

static uint64_t private_bytes(const struct scan *s, const char *pid)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    uint64_t resident, shared;
    if (!proc_text(s, pid, "statm", &text) ||
        sscanf(text.data, "%*u %" SCNu64 " %" SCNu64, &resident, &shared) != 2 || resident < shared)
        return 0;
    return (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void rows_read(struct scan *s)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    const struct dirent *e;
    size_t cap = 0;
    DIR *d = opendir(s->proc);
    while (d != NULL && (e = readdir(d)) != NULL && s->count < PROCESSES_MAX) {
        struct proc_row row = {0};
        if (!isdigit((unsigned char)e->d_name[0]) || !proc_text(s, e->d_name, "stat", &text) ||
            !row_parse(text.data, &row))
            continue;
        if (s->count == cap) {
            struct proc_row *more = realloc(s->rows, (cap * 2 + 256) * sizeof(*more));
            if (more == NULL)
                break;
            cap = cap * 2 + 256;
            s->rows = more;
        }
        s->rows[s->count++] = row;
    }
    if (d != NULL)
        closedir(d);
}

static void row_count(const struct scan *s, const struct proc_row *row, struct usage *u)
{
    char pid[16];
    snprintf(pid, sizeof(pid), "%" PRId32, row->pid);
    u->processes++;
    u->cpu_ns += row->cpu_ticks * HL_NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
    u->memory_bytes += private_bytes(s, pid);
}

static int row_compare(const void *a, const void *b)
{
    const struct proc_row *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

static const struct proc_row *row_find(const struct scan *s, int32_t pid)
{
    const struct proc_row key = {.pid = pid};
    return s->count > 0 ? bsearch(&key, s->rows, s->count, sizeof(key), row_compare) : NULL;
}

static bool is_rank(const struct hl_api_container_status *c, int32_t pid)
{
    for (size_t i = 0; i < c->ranks.count; i++)
        if (c->ranks.items[i].pid == pid)
            return true;
    return false;
}

/* Whether the process is a rank, or a descendant of one. */
static bool row_belongs(const struct scan *s, const struct proc_row *row,
                        const struct hl_api_container_status *c)
{
    for (int depth = 0; row != NULL && row->pid > 1 && depth < DEPTH_MAX; depth++) {
        if (is_rank(c, row->pid))
            return true;
        row = row_find(s, row->parent);
    }
    return false;
}

static void tree_usage(struct scan *s, const struct hl_api_container_status *c, struct usage *u)
{
    if (s->rows == NULL) {
        rows_read(s);
        if (s->count > 0)
            qsort(s->rows, s->count, sizeof(*s->rows), row_compare);
    }
    for (size_t i = 0; i < s->count; i++)
        if (row_belongs(s, &s->rows[i], c))
            row_count(s, &s->rows[i], u);
    u->source = "processes";
}

/* ---- control groups -------------------------------------------------------------------------- */

/* The number after `key` in a file, or its only number if the key is "". */
static bool group_number(const char *dir, const char *name, const char *key, uint64_t *out)
{
    char path[HL_CGROUP_PATH + 64];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(16384);
    if (dir[0] == '\0')
        return false;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (hl_file_read(path, &text) != HL_OK || text.len == 0)
        return false;
    const char *at = text.data;
    while (key[0] != '\0' && at != NULL && strncmp(at, key, strlen(key)) != 0) {
        at = strchr(at, '\n');
        at = at != NULL ? at + 1 : NULL;
    }
    return at != NULL && sscanf(at + strlen(key), "%" SCNu64, out) == 1;
}

static uint32_t group_processes(const char *dir)
{
    char path[HL_CGROUP_PATH + 64];
    uint32_t n = 0;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF((size_t)1 << 20);
    snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    if (hl_file_read(path, &text) != HL_OK)
        return 0;
    for (size_t i = 0; i < text.len; i++)
        n += text.data[i] == '\n';
    return n;
}

static bool group_differs(const char *dir, const char *own)
{
    return dir[0] != '\0' && strcmp(dir, own) != 0;
}

/* False: the container has no group that counts its memory. */
static bool group_memory(const struct scan *s, const struct hl_cgroup_layout *g, struct usage *u)
{
    uint64_t limit;
    if (group_differs(g->v2, s->own.v2) &&
        group_number(g->v2, "memory.current", "", &u->memory_bytes)) {
        if (group_number(g->v2, "memory.max", "", &limit)) /* "max" means no limit */
            u->limit_bytes = limit;
        (void)group_number(g->v2, "memory.events", "oom_kill ", &u->oom_kills);
        u->processes = group_processes(g->v2);
        u->source = "cgroup v2";
        return true;
    }
    if (!group_differs(g->memory, s->own.memory) ||
        !group_number(g->memory, "memory.usage_in_bytes", "", &u->memory_bytes))
        return false;
    if (group_number(g->memory, "memory.limit_in_bytes", "", &limit) && limit < V1_UNLIMITED)
        u->limit_bytes = limit;
    (void)group_number(g->memory, "memory.oom_control", "oom_kill ", &u->oom_kills);
    u->processes = group_processes(g->memory);
    u->source = "cgroup v1";
    return true;
}

/* CPU time, from whichever hierarchy has it. */
static bool group_cpu(const struct scan *s, const struct hl_cgroup_layout *g, uint64_t *cpu_ns)
{
    uint64_t us;
    if (group_differs(g->v2, s->own.v2) && group_number(g->v2, "cpu.stat", "usage_usec ", &us)) {
        *cpu_ns = us * 1000;
        return true;
    }
    return group_differs(g->cpu, s->own.cpu) && group_number(g->cpu, "cpuacct.usage", "", cpu_ns);
}

static bool layout_of(const struct scan *s, const char *pid, struct hl_cgroup_layout *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF((size_t)64 << 10);
    if (s->mounts.len == 0 || !proc_text(s, pid, "cgroup", &text))
        return false;
    hl_cgroup_layout(s->mounts.data, text.data, out);
    return true;
}

static bool group_usage(struct scan *s, const struct hl_api_container_status *c, struct usage *u)
{
    struct hl_cgroup_layout g;
    struct usage tree = {0};
    bool found = false;
    for (size_t i = 0; i < c->ranks.count && s->layout && !found; i++) {
        char pid[16];
        snprintf(pid, sizeof(pid), "%" PRId32, c->ranks.items[i].pid);
        found = c->ranks.items[i].pid > 0 && layout_of(s, pid, &g);
    }
    if (!found || !group_memory(s, &g, u))
        return false;
    if (!group_cpu(s, &g, &u->cpu_ns)) {
        tree_usage(s, c, &tree);
        u->cpu_ns = tree.cpu_ns;
    }
    return true;
}

/* ---- a reading ------------------------------------------------------------------------------- */

/* CPU use since the previous reading; 0 for a new container. */
static double cpu_percent(struct hl_container_probe *p, const char *id, uint64_t cpu_ns,
                          uint64_t now_ns)
{
    struct hl_container_before *b;
    double percent = 0;
    HASH_FIND_STR(p->before, id, b);
    if (b == NULL) {
        b = calloc(1, sizeof(*b));
        if (b == NULL)
            return 0;
        snprintf(b->id, sizeof(b->id), "%s", id);
        HASH_ADD_STR(p->before, id, b);
    } else if (cpu_ns >= b->cpu_ns && now_ns > p->read_ns) {
        percent = 100.0 * (double)(cpu_ns - b->cpu_ns) / (double)(now_ns - p->read_ns);
    }
    b->cpu_ns = cpu_ns;
    b->seen = true;
    return percent;
}

static void forget_unseen(struct hl_container_probe *p)
{
    struct hl_container_before *b, *next;
    HASH_ITER (hh, p->before, b, next) {
        if (!b->seen) {
            HASH_DEL(p->before, b);
            free(b);
        } else {
            b->seen = false;
        }
    }
}

static void container_read(struct hl_container_probe *p, struct scan *s, uint64_t now_ns,
                           const struct hl_api_container_status *c, struct hl_arena *arena,
                           struct hl_api_container_load_list *list)
{
    struct usage u = {0};
    if (!group_usage(s, c, &u)) {
        u = (struct usage){0};
        tree_usage(s, c, &u);
    }
    if (u.processes == 0 && u.memory_bytes == 0)
        return;
    list->items[list->count++] =
        (struct hl_api_container_load){.id = hl_arena_strdup(arena, c->id),
                                       .cpu_percent = cpu_percent(p, c->id, u.cpu_ns, now_ns),
                                       .memory_bytes = u.memory_bytes,
                                       .limit_bytes = u.limit_bytes,
                                       .oom_kills = u.oom_kills,
                                       .processes = u.processes,
                                       .source = u.source};
}

static void scan_open(struct scan *s)
{
    s->mounts = (struct hl_buf)HL_BUF((size_t)1 << 20);
    s->layout = proc_text(s, "self", "mountinfo", &s->mounts) && layout_of(s, "self", &s->own);
}

hl_status hl_container_loads_read(struct hl_container_probe *p, const char *proc, uint64_t now_ns,
                                  const struct hl_api_container_status_list *containers,
                                  struct hl_arena *arena, struct hl_api_container_load_list *out,
                                  uint32_t *left_out)
{
    struct scan s = {.proc = proc};
    struct hl_api_container_load_list list = {0};
    uint32_t left = 0;
    list.items = hl_arena_array(arena, HL_CONTAINER_LOADS_MAX, sizeof(*list.items));
    if (containers->count > 0)
        scan_open(&s);
    for (size_t i = 0; list.items != NULL && i < containers->count; i++) {
        if (containers->items[i].state != HL_API_CONTAINER_STATE_RUNNING)
            continue;
        if (list.count == HL_CONTAINER_LOADS_MAX)
            left++;
        else
            container_read(p, &s, now_ns, &containers->items[i], arena, &list);
    }
    hl_buf_fini(&s.mounts);
    free(s.rows);
    forget_unseen(p);
    p->read_ns = now_ns;
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory measuring containers");
    *out = list;
    *left_out += left;
    return HL_OK;
}

void hl_container_probe_fini(struct hl_container_probe *p)
{
    struct hl_container_before *b, *next;
    HASH_ITER (hh, p->before, b, next) {
        HASH_DEL(p->before, b);
        free(b);
    }
    p->before = NULL;
}
