/* A reading, from /proc and /sys below the given roots, and from the other sources of this
 * folder. */
#include "hw/load/telemetry.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "base/clock.h"
#include "base/log.h"
#include "hw/load/container_load.h"
#include "hw/load/gpu_watch.h"
#include "hw/load/nic_load.h"
#include "hw/load/nvml.h"
#include "hw/process/log_disk.h"
#include "os/file.h"
#include "os/netline.h"
#include "os/process.h"

#define STAT_MAX ((size_t)4 << 20)

struct ticks {
    uint64_t busy, total;
};

struct slot {
    struct hl_cpuset cpus; /* its processors that were online at the first reading */
    struct ticks ticks;    /* at the first reading */
    double percent;
    bool has_node; /* the memory of its NUMA node could be read */
};

struct hl_telemetry {
    pthread_mutex_t lock;
    struct hl_arena arena; /* memory of opts */
    struct hl_telemetry_opts opts;
    struct slot slots[HL_TELEMETRY_SLOTS_MAX];
    struct ticks ticks;
    double percent;
    bool started; /* there was a reading */
    struct hl_nic_probe nics;
    struct hl_netline backbone;
    struct hl_container_probe containers;
    struct hl_nvml *nvml;
    struct hl_gpu_watch gpus;
    uint64_t read_ns;           /* when `last` was read */
    struct hl_arena last_arena; /* memory of `last` */
    struct hl_api_telemetry last;
};

/* ---- files ----------------------------------------------------------------------------------- */

static hl_status read_proc(const struct hl_telemetry *t, const char *name, struct hl_buf *out)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", t->opts.proc, name);
    hl_buf_clear(out);
    if (hl_file_read(path, out) != HL_OK || out->len == 0)
        return hl_fail(HL_EIO, "%s can't be read: %m", path);
    return HL_OK;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end != NULL && end[1] != '\0' ? end + 1 : NULL;
}

/* ---- processors ------------------------------------------------------------------------------ */

/* " user nice system idle iowait irq softirq steal ..."; guest time is part of user. */
static struct ticks ticks_parse(const char *text)
{
    uint64_t v[8] = {0};
    struct ticks k = {0};
    (void)sscanf(text,
                 "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                 " %" SCNu64,
                 &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]);
    for (int i = 0; i < 8; i++)
        k.total += v[i];
    k.busy = k.total - v[3] - v[4];
    return k;
}

static void percent_take(double *percent, struct ticks *before, struct ticks now)
{
    if (now.total > before->total && now.busy >= before->busy)
        *percent = 100.0 * (double)(now.busy - before->busy) / (double)(now.total - before->total);
    *before = now;
}

/* Sums up a slot's processors; *online gets those that are online. */
static struct ticks slot_ticks(const char *stat, const struct hl_cpuset *cpus,
                               struct hl_cpuset *online)
{
    struct ticks sum = {0};
    *online = (struct hl_cpuset){0};
    for (const char *line = stat; line != NULL; line = next_line(line)) {
        unsigned cpu;
        int end = 0;
        if (sscanf(line, "cpu%u%n", &cpu, &end) != 1 || line[3] == ' ' || cpu >= HL_CPUSET_MAX ||
            !hl_cpuset_has(cpus, cpu))
            continue;
        struct ticks k = ticks_parse(line + end);
        sum.busy += k.busy;
        sum.total += k.total;
        hl_cpuset_add(online, cpu);
    }
    return sum;
}

static void slot_trouble(int numa, const struct hl_cpuset *was, const struct hl_cpuset *online,
                         struct hl_arena *arena, struct hl_api_telemetry *out)
{
    struct hl_cpuset gone = *was;
    for (size_t i = 0; i < HL_ARRAY_LEN(gone.bits); i++)
        gone.bits[i] &= ~online->bits[i];
    if (hl_cpuset_count(&gone) == 0)
        return;
    char list[256];
    hl_cpuset_format(&gone, list, sizeof(list));
    hl_api_text_add(arena, &out->troubles,
                    hl_arena_printf(arena,
                                    "slot %d: %s %s went offline since the Agent was started: put "
                                    "%s online again, or restart the Agent to offer the rest",
                                    numa, hl_cpuset_count(&gone) == 1 ? "processor" : "processors",
                                    list, hl_cpuset_count(&gone) == 1 ? "it" : "them"));
}

/* Total and free memory of a NUMA node; false: there is no such node. */
static bool numa_memory(const struct hl_telemetry *t, int numa, struct hl_api_slot_load *out)
{
    char path[512];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(65536);
    uint64_t kib;
    snprintf(path, sizeof(path), "%s/devices/system/node/node%d/meminfo", t->opts.sys, numa);
    if (hl_file_read(path, &text) != HL_OK || text.len == 0)
        return false;
    for (const char *line = text.data; line != NULL; line = next_line(line)) {
        if (sscanf(line, "Node %*d MemTotal: %" SCNu64 " kB", &kib) == 1)
            out->memory_total_bytes = kib * 1024;
        else if (sscanf(line, "Node %*d MemFree: %" SCNu64 " kB", &kib) == 1)
            out->memory_free_bytes = kib * 1024;
    }
    return true;
}

static void read_slot(struct hl_telemetry *t, size_t i, const char *stat, struct hl_arena *arena,
                      struct hl_api_telemetry *out)
{
    const struct hl_api_slot *offer = &t->opts.slots->items[i];
    struct hl_api_slot_load *load = &out->slots.items[out->slots.count++];
    struct slot *s = &t->slots[i];
    struct hl_cpuset online;
    load->numa_id = offer->numa_id;
    if (!t->started && hl_cpuset_parse(offer->cpus, &s->cpus) != HL_OK)
        s->cpus = (struct hl_cpuset){0};
    struct ticks now = slot_ticks(stat, &s->cpus, &online);
    if (!t->started)
        s->cpus = online;
    else
        slot_trouble(offer->numa_id, &s->cpus, &online, arena, out);
    percent_take(&s->percent, &s->ticks, now);
    load->cpu_busy_percent = s->percent;
    bool has_node = t->opts.own_numa && numa_memory(t, offer->numa_id, load);
    if (s->has_node && !has_node)
        hl_api_text_add(arena, &out->troubles,
                        hl_arena_printf(arena,
                                        "slot %d: its NUMA node went offline since the Agent was "
                                        "started; put it online again, or restart the Agent",
                                        offer->numa_id));
    s->has_node |= has_node;
}

static hl_status read_processors(struct hl_telemetry *t, struct hl_arena *arena,
                                 struct hl_api_telemetry *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf stat = HL_BUF(STAT_MAX);
    size_t n = t->opts.slots->count;
    HL_TRY(read_proc(t, "stat", &stat));
    if (strncmp(stat.data, "cpu ", 4) == 0)
        percent_take(&t->percent, &t->ticks, ticks_parse(stat.data + 4));
    out->cpu_busy_percent = t->percent;
    if (n > HL_TELEMETRY_SLOTS_MAX) {
        out->left_out += (uint32_t)(n - HL_TELEMETRY_SLOTS_MAX);
        n = HL_TELEMETRY_SLOTS_MAX;
    }
    out->slots.items = hl_arena_array(arena, n, sizeof(*out->slots.items));
    for (size_t i = 0; out->slots.items != NULL && i < n; i++)
        read_slot(t, i, stat.data, arena, out);
    return HL_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static void memory_line(const char *line, struct hl_api_telemetry *t)
{
    uint64_t kib;
    if (sscanf(line, "MemTotal: %" SCNu64 " kB", &kib) == 1)
        t->memory_total_bytes = kib * 1024;
    else if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
        t->memory_available_bytes = kib * 1024;
}

/* "  eth0: rx_bytes 7 more columns tx_bytes ..." */
static void net_line(const char *line, struct hl_api_telemetry *t)
{
    uint64_t rx, tx;
    const char *name = line + strspn(line, " "), *end = line + strcspn(line, "\n");
    const char *colon = memchr(line, ':', (size_t)(end - line));
    if (colon == NULL || strncmp(name, "lo:", 3) == 0)
        return;
    if (sscanf(colon + 1, "%" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &rx, &tx) == 2) {
        t->rx_bytes += rx;
        t->tx_bytes += tx;
    }
}

static hl_status read_machine(const struct hl_telemetry *t, struct hl_api_telemetry *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(STAT_MAX);
    HL_TRY(read_proc(t, "loadavg", &text));
    (void)sscanf(text.data, "%lf", &out->load1);
    HL_TRY(read_proc(t, "meminfo", &text));
    for (const char *line = text.data; line != NULL; line = next_line(line))
        memory_line(line, out);
    HL_TRY(read_proc(t, "net/dev", &text));
    for (const char *line = text.data; line != NULL; line = next_line(line))
        net_line(line, out);
    return HL_OK;
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* If a driver was present before and is not any more, all of its GPUs are lost. */
static hl_status read_gpus(struct hl_telemetry *t, struct hl_arena *arena,
                           struct hl_api_telemetry *out)
{
    if (t->nvml == NULL)
        return HL_OK;
    if (hl_nvml_read(t->nvml, arena, &out->gpus) != HL_OK) {
        hl_debug("telemetry: %s", hl_error_text());
        out->gpus = (struct hl_api_gpu_load_list){0};
    }
    return hl_gpu_watch_check(&t->gpus, &out->gpus, arena, &out->troubles);
}

static void open_gpus(struct hl_telemetry *t)
{
    if (t->opts.nvml[0] == '\0')
        return;
    hl_status st = hl_nvml_open(t->opts.nvml, &t->nvml);
    if (st == HL_ENOENT)
        hl_debug("telemetry: %s", hl_error_text());
    else if (st != HL_OK)
        hl_warn("GPUs are not measured error=\"%s\"", hl_error_text());
}

/* ---- the disk of the logs -------------------------------------------------------------------- */

static void check_disk(const struct hl_telemetry *t, struct hl_arena *arena,
                       struct hl_api_telemetry *out)
{
    char why[512];
    uint64_t free_bytes;
    if (t->opts.log_dir[0] != '\0' &&
        hl_log_disk_look(t->opts.log_dir, t->opts.log_free_bytes, &free_bytes, why, sizeof(why)) ==
            HL_OK &&
        why[0] != '\0')
        hl_api_text_add(arena, &out->troubles, why);
}

/* ---- a reading ------------------------------------------------------------------------------- */

static hl_status read_all(struct hl_telemetry *t,
                          const struct hl_api_container_status_list *containers,
                          struct hl_arena *arena, struct hl_api_telemetry *out)
{
    uint64_t now = hl_now_ns();
    HL_TRY(read_machine(t, out));
    HL_TRY(read_processors(t, arena, out));
    HL_TRY(hl_nics_read(&t->nics, t->opts.sys, now, arena, &out->nics, &out->left_out));
    out->backbone =
        (struct hl_api_line_load){.interface = hl_arena_strdup(arena, t->backbone.interface),
                                  .bits_per_second = t->backbone.bits_per_second,
                                  .busy_percent = hl_netline_busy_pct(&t->backbone, now)};
    HL_TRY(read_gpus(t, arena, out));
    HL_TRY(hl_container_loads_read(&t->containers, t->opts.proc, now, containers, arena,
                                   &out->containers, &out->left_out));
    check_disk(t, arena, out);
    if (out->troubles.count > HL_TELEMETRY_TROUBLES_MAX) {
        out->left_out += (uint32_t)(out->troubles.count - HL_TELEMETRY_TROUBLES_MAX);
        out->troubles.count = HL_TELEMETRY_TROUBLES_MAX;
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory measuring the node");
    t->started = true;
    return HL_OK;
}

static bool is_fresh(const struct hl_telemetry *t)
{
    return t->read_ns != 0 && hl_now_ns() - t->read_ns < (uint64_t)t->opts.period_ms * HL_NS_PER_MS;
}

static hl_status reading_refresh(struct hl_telemetry *t,
                                 const struct hl_api_container_status_list *containers)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_telemetry now = {0};
    HL_TRY(read_all(t, containers, &arena, &now));
    hl_arena_fini(&t->last_arena);
    hl_arena_move(&t->last_arena, &arena);
    t->last = now;
    t->read_ns = hl_now_ns();
    return HL_OK;
}

hl_status hl_telemetry_read(struct hl_telemetry *t,
                            const struct hl_api_container_status_list *containers,
                            struct hl_arena *arena, struct hl_api_telemetry *out)
{
    pthread_mutex_lock(&t->lock);
    hl_status st = is_fresh(t) ? HL_OK : reading_refresh(t, containers);
    if (st == HL_OK)
        st = hl_api_copy(&hl_api_telemetry_type, &t->last, arena, out);
    if (st == HL_OK)
        out->time_ms = hl_wall_ms();
    pthread_mutex_unlock(&t->lock);
    return st;
}

hl_status hl_telemetry_open(const struct hl_telemetry_opts *opts, struct hl_telemetry **out)
{
    struct hl_telemetry *t = calloc(1, sizeof(*t));
    struct hl_api_slot_list *slots = t != NULL ? hl_arena_alloc(&t->arena, sizeof(*slots)) : NULL;
    if (slots == NULL) {
        free(t);
        return hl_fail(HL_ENOMEM, "out of memory allocating telemetry");
    }
    pthread_mutex_init(&t->lock, NULL);
    t->opts = *opts;
    t->opts.slots = slots;
    t->opts.proc = hl_arena_strdup(&t->arena, opts->proc);
    t->opts.sys = hl_arena_strdup(&t->arena, opts->sys);
    t->opts.nvml = hl_arena_strdup(&t->arena, opts->nvml);
    t->opts.log_dir = hl_arena_strdup(&t->arena, opts->log_dir);
    t->opts.backbone = NULL; /* the line keeps it */
    slots->items = hl_arena_array(&t->arena, opts->slots->count, sizeof(*slots->items));
    for (size_t i = 0; slots->items != NULL && i < opts->slots->count; i++)
        slots->items[slots->count++] =
            (struct hl_api_slot){.numa_id = opts->slots->items[i].numa_id,
                                 .cpus = hl_arena_strdup(&t->arena, opts->slots->items[i].cpus)};
    if (hl_arena_failed(&t->arena)) {
        hl_telemetry_close(t);
        return hl_fail(HL_ENOMEM, "out of memory allocating telemetry");
    }
    hl_netline_init(&t->backbone, t->opts.sys, opts->backbone, opts->backbone_bits);
    open_gpus(t);
    *out = t;
    return HL_OK;
}

void hl_telemetry_close(struct hl_telemetry *t)
{
    if (t == NULL)
        return;
    hl_nvml_close(t->nvml);
    hl_gpu_watch_fini(&t->gpus);
    hl_container_probe_fini(&t->containers);
    hl_arena_fini(&t->last_arena);
    hl_arena_fini(&t->arena);
    pthread_mutex_destroy(&t->lock);
    free(t);
}
