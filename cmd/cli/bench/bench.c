#include "cli/bench/bench.h"
#include "cli/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "os/file.h"
#include "os/process.h"

#define READY_MS 60000
#define STOP_MS  5000
#define LOOK_MS  5 /* for the ready file */

hl_status bench_samples_init(struct bench_samples *s, size_t cap)
{
    if (cap > s->cap) {
        uint64_t *ns = realloc(s->ns, cap * sizeof(*ns));
        if (ns == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %zu samples", cap);
        s->ns = ns;
        s->cap = cap;
    }
    s->count = 0;
    return HL_OK;
}

void bench_samples_fini(struct bench_samples *s)
{
    free(s->ns);
    *s = (struct bench_samples){0};
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

hl_status bench_sizes(struct cli *cli, const char *flag, const char *text, uint64_t most,
                      uint64_t *out, size_t cap, size_t *count)
{
    char one[32];
    *count = 0;
    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        if (*count == cap || len >= sizeof(one))
            return cli_usage(cli, "%s takes at most %zu sizes", flag, cap);
        memcpy(one, text, len);
        one[len] = '\0';
        if (hl_parse_bytes(one, &out[*count]) != HL_OK || out[*count] == 0 || out[*count] > most)
            return cli_usage(cli, "%s '%s' is not a size from 1 to %llu bytes", flag, one,
                             (unsigned long long)most);
        ++*count;
        text += len + (text[len] == ',');
    }
    return *count > 0 ? HL_OK : cli_usage(cli, "%s is empty", flag);
}

const struct bench_row *bench_row(struct bench_report *r, const char *system, const char *op,
                                  uint64_t size, struct bench_samples *s)
{
    struct bench_row *row = &r->rows[r->row_count < BENCH_ROWS_MAX ? r->row_count++ : 0];
    double sum = 0;
    *row = (struct bench_row){.size = size, .n = s->count};
    snprintf(row->system, sizeof(row->system), "%s", system);
    snprintf(row->op, sizeof(row->op), "%s", op);
    if (s->count == 0)
        return row;
    qsort(s->ns, s->count, sizeof(*s->ns), by_value);
    for (size_t i = 0; i < s->count; i++)
        sum += (double)s->ns[i];
    row->min_us = (double)s->ns[0] / 1e3;
    row->p50_us = (double)s->ns[s->count / 2] / 1e3;
    row->p99_us = (double)s->ns[(s->count - 1) * 99 / 100] / 1e3;
    row->mean_us = sum / (double)s->count / 1e3;
    if (row->p50_us > 0)
        row->gbps = (double)size / row->p50_us / 1e3;
    return row;
}

void bench_ratio(struct bench_report *r, const char *name, double value, double bar, bool at_most)
{
    if (r->ratio_count == BENCH_RATIOS_MAX)
        return;
    struct bench_ratio *q = &r->ratios[r->ratio_count++];
    snprintf(q->name, sizeof(q->name), "%s", name);
    q->value = value;
    q->bar = bar;
    q->at_most = at_most;
}

static bool ratio_is_met(const struct bench_ratio *q)
{
    return q->at_most ? q->value <= q->bar : q->value >= q->bar;
}

static struct hl_api_bench_ratio ratio_to_api(const struct bench_ratio *q)
{
    struct hl_api_bench_ratio ratio = {.name = q->name, .value = q->value};
    if (q->bar > 0)
        ratio.bound = (struct hl_api_bench_bound){
            q->bar, q->at_most ? HL_API_BENCH_SIDE_AT_MOST : HL_API_BENCH_SIDE_AT_LEAST,
            ratio_is_met(q)};
    return ratio;
}

static hl_status print_bench_json(const struct bench_report *r)
{
    struct hl_api_bench_row rows[BENCH_ROWS_MAX];
    struct hl_api_bench_ratio ratios[BENCH_RATIOS_MAX];
    for (size_t i = 0; i < r->row_count; i++) {
        const struct bench_row *w = &r->rows[i];
        rows[i] = (struct hl_api_bench_row){.system = w->system,
                                            .op = w->op,
                                            .size = w->size,
                                            .n = w->n,
                                            .min_us = w->min_us,
                                            .p50_us = w->p50_us,
                                            .p99_us = w->p99_us,
                                            .mean_us = w->mean_us,
                                            .gb_per_s = w->gbps};
    }
    for (size_t i = 0; i < r->ratio_count; i++)
        ratios[i] = ratio_to_api(&r->ratios[i]);
    return cli_print_value(
        &hl_api_bench_report_type,
        &(struct hl_api_bench_report){{rows, r->row_count}, {ratios, r->ratio_count}});
}

hl_status bench_print(struct cli *cli, const struct bench_report *r)
{
    if (cli->json)
        return print_bench_json(r);
    puts("system,op,size,n,min_us,p50_us,p99_us,mean_us,gb_per_s");
    for (size_t i = 0; i < r->row_count; i++) {
        const struct bench_row *w = &r->rows[i];
        printf("%s,%s,%llu,%zu,%.3f,%.3f,%.3f,%.3f,%.3f\n", w->system, w->op,
               (unsigned long long)w->size, w->n, w->min_us, w->p50_us, w->p99_us, w->mean_us,
               w->gbps);
    }
    for (size_t i = 0; i < r->ratio_count; i++) {
        const struct bench_ratio *q = &r->ratios[i];
        printf("ratio,%s,%.3f", q->name, q->value);
        if (q->bar > 0)
            printf(",%s %.2f,%s", q->at_most ? "at most" : "at least", q->bar,
                   ratio_is_met(q) ? "met" : "missed");
        fputc('\n', stdout);
    }
    return fflush(stdout) == 0 ? HL_OK : hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
}

/* ---- a private L3 daemon ---- */

static hl_status wait_ready(struct bench_l3d *d, const char *ready, const char *log)
{
    uint64_t end = hl_now_ns() + READY_MS * HL_NS_PER_MS;
    char line[512];
    while (access(ready, R_OK) != 0) {
        if (d->pidfd < 0 || hl_process_wait(d->pidfd, LOOK_MS)) {
            local_last_line(log, line, sizeof(line));
            return hl_fail(HL_EUNAVAIL, "helios-l3d did not start: %s", line);
        }
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "helios-l3d is not ready after %d s", READY_MS / 1000);
    }
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_daemon_ready l3;
    HL_TRY(local_read_file(ready, &hl_api_daemon_ready_type, &arena, &l3));
    snprintf(d->address, sizeof(d->address), "%s", l3.address);
    snprintf(d->socket, sizeof(d->socket), "%s", l3.socket != NULL ? l3.socket : "");
    snprintf(d->data, sizeof(d->data), "%s", l3.data_address != NULL ? l3.data_address : "");
    return HL_OK;
}

static hl_status spawn_l3d(struct cli *cli, struct bench_l3d *d, uint64_t pool_bytes,
                           const char *ready, const char *log)
{
    char program[PATH_MAX + 32], size[32];
    snprintf(program, sizeof(program), "%s/helios-l3d", cli->bin_dir);
    snprintf(size, sizeof(size), "%llu", (unsigned long long)pool_bytes);
    const char *argv[] = {program,       "--pool",        d->pool,       "--size",
                          size,          "--socket",      d->socket,     "--listen",
                          "127.0.0.1:0", "--data-listen", "127.0.0.1:0", "--ready-file",
                          ready,         "--log-level",   "warn",        NULL};
    HL_AUTO(hl_closep) int out = open(log, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return hl_fail(HL_EIO, "open %s: %s", log, strerror(errno));
    return hl_process_spawn(&(struct hl_spawn){.program = program,
                                               .argv = (char *const *)argv,
                                               .env = environ,
                                               .name = "helios-l3d",
                                               .std = {-1, out, out},
                                               .die_with_parent = 1},
                            &d->pid);
}

hl_status bench_l3d_start(struct cli *cli, uint64_t pool_bytes, struct bench_l3d *out)
{
    struct bench_l3d d = {.pidfd = -1};
    char ready[128], log[128];
    snprintf(d.dir, sizeof(d.dir), "/tmp/helios-bench-XXXXXX");
    if (mkdtemp(d.dir) == NULL)
        return hl_fail(HL_EIO, "make directory %s: %s", d.dir, strerror(errno));
    snprintf(d.pool, sizeof(d.pool), "/dev/shm/%s.pool", strrchr(d.dir, '/') + 1);
    snprintf(d.socket, sizeof(d.socket), "%s/l3.sock", d.dir);
    snprintf(ready, sizeof(ready), "%s/ready.json", d.dir);
    snprintf(log, sizeof(log), "%s/log", d.dir);
    struct hl_process process;
    hl_status st = spawn_l3d(cli, &d, pool_bytes, ready, log);
    if (st == HL_OK && hl_process_identify(d.pid, &process) == HL_OK)
        (void)!hl_process_open(process, &d.pidfd); /* it may have ended already */
    if (st == HL_OK)
        st = wait_ready(&d, ready, log);
    if (st != HL_OK) {
        bench_l3d_stop(&d);
        return st;
    }
    *out = d;
    return HL_OK;
}

void bench_l3d_stop(struct bench_l3d *d)
{
    if (d->pid > 0) {
        kill(d->pid, SIGTERM);
        if (d->pidfd < 0 || !hl_process_wait(d->pidfd, STOP_MS))
            kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
        if (d->pidfd >= 0)
            close(d->pidfd);
    }
    if (d->pool[0] != '\0')
        unlink(d->pool);
    if (d->dir[0] != '\0' && hl_dir_remove(d->dir) != HL_OK)
        hl_error_clear();
    *d = (struct bench_l3d){0};
}
