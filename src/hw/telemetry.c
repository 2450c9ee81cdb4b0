/* Load of the machine, from /proc below `root`. The CPU's share is a difference to the last
 * reading, which is kept in the probe: `lock` guards it and is held for a whole reading, so that
 * two callers at once do not divide one interval between them. */
#include "hw/telemetry.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

void hl_telemetry_init(struct hl_telemetry_probe *p, const char *root)
{
    *p = (struct hl_telemetry_probe){0};
    pthread_mutex_init(&p->lock, NULL);
    snprintf(p->root, sizeof(p->root), "%s", root);
}

void hl_telemetry_fini(struct hl_telemetry_probe *p)
{
    pthread_mutex_destroy(&p->lock);
}

typedef bool (*line_fn)(const char *line, void *arg);

/* fn for every line until it returns false. */
static hl_status each_line(const struct hl_telemetry_probe *p, const char *name, line_fn fn,
                           void *arg)
{
    char path[300], line[1024];
    snprintf(path, sizeof(path), "%s/%s", p->root, name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return hl_fail(HL_EIO, "%s can't be read: %m", path);
    while (fgets(line, sizeof(line), f) != NULL && fn(line, arg))
        ;
    fclose(f);
    return HL_OK;
}

static bool load_line(const char *line, void *arg)
{
    struct hl_api_telemetry *t = arg;
    (void)sscanf(line, "%lf", &t->load1);
    return false;
}

struct ticks {
    uint64_t busy, total;
};

/* "cpu  user nice system idle iowait irq softirq steal ..."; guest time is part of user. */
static bool stat_line(const char *line, void *arg)
{
    struct ticks *k = arg;
    uint64_t v[8] = {0};
    if (strncmp(line, "cpu ", 4) != 0)
        return true;
    (void)sscanf(line + 4,
                 "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                 " %" SCNu64,
                 &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]);
    for (int i = 0; i < 8; i++)
        k->total += v[i];
    k->busy = k->total - v[3] - v[4];
    return false;
}

static bool memory_line(const char *line, void *arg)
{
    struct hl_api_telemetry *t = arg;
    uint64_t kib;
    if (sscanf(line, "MemTotal: %" SCNu64 " kB", &kib) == 1)
        t->memory_total_bytes = kib * 1024;
    else if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
        t->memory_available_bytes = kib * 1024;
    return true;
}

/* "  eth0: rx_bytes 7 more columns tx_bytes ..." */
static bool net_line(const char *line, void *arg)
{
    struct hl_api_telemetry *t = arg;
    uint64_t rx, tx;
    const char *colon = strchr(line, ':');
    const char *name = line + strspn(line, " ");
    if (colon == NULL || strncmp(name, "lo:", 3) == 0)
        return true;
    if (sscanf(colon + 1, "%" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, &rx, &tx) == 2) {
        t->rx_bytes += rx;
        t->tx_bytes += tx;
    }
    return true;
}

static hl_status read_all(struct hl_telemetry_probe *p, struct hl_api_telemetry *t)
{
    struct ticks k = {0};
    HL_TRY(each_line(p, "loadavg", load_line, t));
    HL_TRY(each_line(p, "stat", stat_line, &k));
    HL_TRY(each_line(p, "meminfo", memory_line, t));
    HL_TRY(each_line(p, "net/dev", net_line, t));
    if (k.total > p->total && k.busy >= p->busy)
        p->last_percent = 100.0 * (double)(k.busy - p->busy) / (double)(k.total - p->total);
    p->busy = k.busy;
    p->total = k.total;
    t->cpu_busy_percent = p->last_percent;
    t->time_ms = hl_wall_ms();
    return HL_OK;
}

hl_status hl_telemetry_read(struct hl_telemetry_probe *p, struct hl_api_telemetry *out)
{
    struct hl_api_telemetry t = {0};
    pthread_mutex_lock(&p->lock);
    hl_status st = read_all(p, &t);
    pthread_mutex_unlock(&p->lock);
    if (st == HL_OK)
        *out = t;
    return st;
}
