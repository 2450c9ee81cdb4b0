#include "cli/bench/bench.h"
#include "cli/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "os/file.h"
#include "os/process.h"

#define READY_MS 60000
#define STOP_MS  5000
#define LOOK_MS  5 /* between checks of the ready file */

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
    q->barred = bar > 0;
}

void bench_none(struct bench_report *r, const char *name, double value)
{
    size_t before = r->ratio_count;
    bench_ratio(r, name, value, 0, true);
    if (r->ratio_count > before)
        r->ratios[before].barred = true;
}

static bool ratio_is_met(const struct bench_ratio *q)
{
    return q->at_most ? q->value <= q->bar : q->value >= q->bar;
}

static struct hl_api_bench_ratio ratio_to_api(const struct bench_ratio *q)
{
    struct hl_api_bench_ratio ratio = {.name = q->name, .value = q->value};
    if (q->barred)
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
        if (q->barred)
            printf(",%s %.2f,%s", q->at_most ? "at most" : "at least", q->bar,
                   ratio_is_met(q) ? "met" : "missed");
        fputc('\n', stdout);
    }
    return fflush(stdout) == 0 ? HL_OK : hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
}

uint64_t bench_process_bytes(pid_t pid, const char *what)
{
    char path[64];
    struct hl_buf text = HL_BUF(1 << 16);
    uint64_t kb = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    if (hl_file_read(path, &text) == HL_OK) {
        const char *line = strstr(text.data, what);
        if (line != NULL)
            kb = strtoull(line + strlen(what), NULL, 10);
    }
    hl_buf_fini(&text);
    return kb * 1024;
}

/* ---- private daemons ---- */

static hl_status wait_ready(int pidfd, const char *name, const char *dir, struct hl_arena *arena,
                            struct hl_api_daemon_ready *out)
{
    uint64_t end = hl_now_ns() + READY_MS * HL_NS_PER_MS;
    char ready[128], log[128], line[512];
    snprintf(ready, sizeof(ready), "%s/%s.ready", dir, name);
    snprintf(log, sizeof(log), "%s/%s.log", dir, name);
    while (access(ready, R_OK) != 0) {
        if (pidfd < 0 || hl_process_wait(pidfd, LOOK_MS)) {
            local_last_line(log, line, sizeof(line));
            return hl_fail(HL_EUNAVAIL, "%s did not start: %s", name, line);
        }
        if (hl_now_ns() > end)
            return hl_fail(HL_ETIMEDOUT, "%s is not ready after %d s", name, READY_MS / 1000);
    }
    return local_read_file(ready, &hl_api_daemon_ready_type, arena, out);
}

/* Starts a program with `args`; it ends with this process. Its log and ready file are in `dir`. */
static hl_status program_spawn(struct cli *cli, const char *name, const char *dir,
                               const char *const *args, pid_t *pid, int *pidfd)
{
    char program[PATH_MAX + 32], ready[128], log[128];
    const char *argv[32] = {program, "--ready-file", ready, "--log-level", "warn"};
    snprintf(program, sizeof(program), "%s/%s", cli->bin_dir, name);
    snprintf(ready, sizeof(ready), "%s/%s.ready", dir, name);
    snprintf(log, sizeof(log), "%s/%s.log", dir, name);
    for (size_t n = 5; *args != NULL && n < HL_ARRAY_LEN(argv) - 1; n++)
        argv[n] = *args++;
    HL_AUTO(hl_closep) int out = open(log, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
    if (out < 0)
        return hl_fail(HL_EIO, "open %s: %s", log, strerror(errno));
    struct hl_process process;
    HL_TRY(hl_process_spawn(&(struct hl_spawn){.program = program,
                                               .argv = (char *const *)argv,
                                               .env = environ,
                                               .name = name,
                                               .std = {-1, out, out},
                                               .die_with_parent = 1},
                            pid));
    if (hl_process_identify(*pid, &process) == HL_OK)
        (void)!hl_process_open(process, pidfd); /* it may have ended already */
    return HL_OK;
}

static void program_stop(pid_t pid, int pidfd)
{
    if (pid <= 0)
        return;
    kill(pid, SIGTERM);
    if (pidfd < 0 || !hl_process_wait(pidfd, STOP_MS))
        kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (pidfd >= 0)
        close(pidfd);
}

static hl_status wait_l3d(struct bench_l3d *d)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_daemon_ready l3;
    HL_TRY(wait_ready(d->pidfd, "helios-l3d", d->dir, &arena, &l3));
    snprintf(d->address, sizeof(d->address), "%s", l3.address);
    snprintf(d->socket, sizeof(d->socket), "%s", l3.socket != NULL ? l3.socket : "");
    snprintf(d->data, sizeof(d->data), "%s", l3.data_address != NULL ? l3.data_address : "");
    return HL_OK;
}

hl_status bench_l3d_start(struct cli *cli, uint64_t pool_bytes, struct bench_l3d *out)
{
    struct bench_l3d d = {.pidfd = -1};
    char size[32];
    snprintf(d.dir, sizeof(d.dir), "/tmp/helios-bench-XXXXXX");
    if (mkdtemp(d.dir) == NULL)
        return hl_fail(HL_EIO, "make directory %s: %s", d.dir, strerror(errno));
    snprintf(d.pool, sizeof(d.pool), "/dev/shm/%s.pool", strrchr(d.dir, '/') + 1);
    snprintf(d.socket, sizeof(d.socket), "%s/l3.sock", d.dir);
    snprintf(size, sizeof(size), "%llu", (unsigned long long)pool_bytes);
    const char *const args[] = {"--pool",        d.pool,        "--size",   size,
                                "--socket",      d.socket,      "--listen", "127.0.0.1:0",
                                "--data-listen", "127.0.0.1:0", NULL};
    hl_status st = program_spawn(cli, "helios-l3d", d.dir, args, &d.pid, &d.pidfd);
    if (st == HL_OK)
        st = wait_l3d(&d);
    if (st != HL_OK) {
        bench_l3d_stop(&d);
        return st;
    }
    *out = d;
    return HL_OK;
}

void bench_l3d_stop(struct bench_l3d *d)
{
    program_stop(d->pid, d->pidfd);
    if (d->pool[0] != '\0')
        unlink(d->pool);
    if (d->dir[0] != '\0' && hl_dir_remove(d->dir) != HL_OK)
        hl_error_clear();
    *d = (struct bench_l3d){0};
}

hl_status bench_controller_start(struct cli *cli, const struct bench_l3d *l3d,
                                 struct bench_controller *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct bench_controller c = {.pidfd = -1};
    struct hl_api_daemon_ready ready;
    char state[96];
    snprintf(state, sizeof(state), "%s/controller", l3d->dir);
    const char *const args[] = {"--state",  state,         "--l3", l3d->address,
                                "--listen", "127.0.0.1:0", NULL};
    hl_status st = program_spawn(cli, "helios-controller", l3d->dir, args, &c.pid, &c.pidfd);
    if (st == HL_OK)
        st = wait_ready(c.pidfd, "helios-controller", l3d->dir, &arena, &ready);
    if (st != HL_OK) {
        bench_controller_stop(&c);
        return st;
    }
    snprintf(c.address, sizeof(c.address), "%s", ready.address);
    *out = c;
    return HL_OK;
}

void bench_controller_stop(struct bench_controller *c)
{
    program_stop(c->pid, c->pidfd);
    *c = (struct bench_controller){0};
}
