/* bench plank: bytes that go directly into an emulated device's memory against bytes that go
 * through staging, over the same link: a copy within the host, and TCP from another process. The
 * checksums are verified either way. Both take turns, so that a busy minute affects both.
 *
 * A plank costs one more copy of every byte (the row "copy": warm pieces into the device). If a
 * processor is free, that is hidden; "processors busy" tells how many were at work, including both
 * ends of the link. With a real device the copy is the device's own work.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/crc32.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "mem/plank/plank.h"
#include "net/net.h"
#include "os/copy_measure.h"

#define SIZES_MAX   8
#define FOOTPRINT   ((uint64_t)192 << 20) /* of the source: more than most caches hold */
#define SLOTS_MAX   3072
#define STRIDE      ((uint64_t)64 << 10)
#define ROUND_BYTES ((uint64_t)512 << 20)
#define ROUND_OPS   10000
#define NET_OPS     1000
#define BULK        ((uint64_t)16 << 20)
#define WAIT_MS     30000

struct plank_args {
    char *size, *link;
    uint64_t piece;
    int64_t buffers, rounds;
};

#define AT(field) HL_OPTION_FIELD(struct plank_args, field)

static const struct hl_option plank_rows[] = {
    {"size", "--size", "64,4KiB,1MiB,64MiB", "Sizes of the transfers, separated by commas.",
     HL_OPT_STRING, 0, 0, NULL, AT(size)},
    {"link", "--link", "both", "Which link to use.", HL_OPT_ENUM, 0, 0, "local|tcp|both", AT(link)},
    {"piece", "--piece", "1MiB", "Bytes of one staging buffer.", HL_OPT_BYTES, 4096, 64 << 20, NULL,
     AT(piece)},
    {"buffers", "--buffers", "4", "Staging buffers.", HL_OPT_INT, 2, HL_PLANK_BUFFERS_MAX, NULL,
     AT(buffers)},
    {"rounds", "--rounds", "5", "Rounds; all systems take turns in each.", HL_OPT_INT, 1, 100, NULL,
     AT(rounds)},
};

enum link { LOCAL, TCP };

struct size_run {
    uint64_t size, stride;
    size_t slots;
    uint32_t *crcs; /* per slot, for every MiB, also a partial one */
    size_t chunks;
    struct bench_samples copy_s, local_s, local_plank_s, tcp_s, tcp_plank_s;
    uint64_t cpu_ns[2], wall_ns[2]; /* of the plank, by enum link */
};

struct plank_bench {
    struct size_run sizes[SIZES_MAX];
    size_t count;
    int local, tcp, rounds;
    unsigned char *source;
    uint64_t source_len, largest;
    pid_t server;
    struct hl_net_client *client;
    struct hl_device *device;
    struct hl_device_block block;
    struct hl_plank *plank;
    struct bench_report report;
};

/* One transfer: from `at` in the source to the start of the device's block. */
struct way {
    struct plank_bench *b;
    const struct size_run *run;
    uint64_t at;
    const uint32_t *crcs;
};

static hl_status parse_sizes(struct cli *cli, const char *text, struct plank_bench *b)
{
    uint64_t sizes[SIZES_MAX];
    HL_TRY(bench_sizes(cli, "--size", text, FOOTPRINT, sizes, SIZES_MAX, &b->count));
    for (size_t i = 0; i < b->count; i++) {
        b->sizes[i].size = sizes[i];
        b->largest = sizes[i] > b->largest ? sizes[i] : b->largest;
    }
    return HL_OK;
}

/* ---- the other host ---- */

/* Serves the source until its parent is gone. */
static void serve_source(struct plank_bench *b, int tell)
{
    struct hl_net_server *server;
    struct hl_net_server_opts o = {
        .listen = "127.0.0.1:0", .pool = b->source, .pool_len = b->source_len};
    char address[64] = "";
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (hl_net_server_start(&o, &server) == HL_OK)
        snprintf(address, sizeof(address), "%s", hl_net_server_address(server));
    else
        snprintf(address, sizeof(address), "!%.60s", hl_error_text());
    if (write(tell, address, sizeof(address)) != (ssize_t)sizeof(address))
        _exit(1);
    for (;;)
        pause();
}

static hl_status start_server(struct plank_bench *b)
{
    int tell[2];
    char address[64] = "";
    pid_t parent = getpid();
    if (pipe(tell) != 0)
        return hl_fail(HL_EIO, "pipe: %s", strerror(errno));
    b->server = fork();
    if (b->server == 0) {
        close(tell[0]);
        if (getppid() == parent)
            serve_source(b, tell[1]);
        _exit(1);
    }
    close(tell[1]);
    ssize_t n = b->server > 0 ? read(tell[0], address, sizeof(address)) : -1;
    close(tell[0]);
    if (n != (ssize_t)sizeof(address) || address[0] == '!')
        return hl_fail(HL_EUNAVAIL, "the serving process did not start: %.63s", address + 1);
    struct hl_net_connect_opts o = {.address = address, .timeout_ms = WAIT_MS};
    return hl_net_connect_with(&o, &b->client);
}

/* ---- setting up ---- */

static hl_status make_source(struct plank_bench *b)
{
    b->source_len = (FOOTPRINT + b->largest + 65535) / 65536 * 65536;
    void *m = mmap(NULL, b->source_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating %llu bytes",
                       (unsigned long long)b->source_len);
    b->source = m;
    for (uint64_t i = 0; i < b->source_len; i += 8) {
        uint64_t word = i * UINT64_C(0x9e3779b97f4a7c15);
        memcpy(b->source + i, &word, 8);
    }
    return HL_OK;
}

static hl_status make_crcs(struct plank_bench *b, struct size_run *run)
{
    run->stride = (run->size + STRIDE - 1) / STRIDE * STRIDE;
    run->slots = FOOTPRINT / run->stride < SLOTS_MAX ? FOOTPRINT / run->stride : SLOTS_MAX;
    run->chunks = (run->size + HL_CHUNK - 1) / HL_CHUNK;
    run->crcs = calloc(run->slots * run->chunks, sizeof(*run->crcs));
    if (run->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu checksums",
                       run->slots * run->chunks);
    for (size_t i = 0; i < run->slots * run->chunks; i++) {
        uint64_t chunk = i % run->chunks * HL_CHUNK, left = run->size - chunk;
        run->crcs[i] = hl_crc32(0, b->source + i / run->chunks * run->stride + chunk,
                                left < HL_CHUNK ? left : HL_CHUNK);
    }
    return HL_OK;
}

static hl_status setup_plank_bench(struct plank_bench *b, const struct plank_args *a)
{
    char spec[64];
    HL_TRY(make_source(b));
    for (size_t i = 0; i < b->count; i++)
        HL_TRY(make_crcs(b, &b->sizes[i]));
    if (b->tcp)
        HL_TRY(start_server(b)); /* forks, so it comes before there are threads */
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)b->largest + (4 << 20));
    HL_TRY(hl_device_open(spec, NULL, &b->device));
    HL_TRY(hl_device_alloc(b->device, b->largest, HL_DEVICE_ANYWHERE, &b->block));
    struct hl_plank_options o = {
        .piece = a->piece, .buffers = (unsigned)a->buffers, .lanes = 1, .device = b->device};
    return hl_plank_create(&o, &b->plank);
}

/* ---- links: both bring bytes to `dst` and verify what they bring ---- */

static hl_status over_local(void *arg, uint64_t offset, void *dst, size_t len, int timeout_ms)
{
    const struct way *w = arg;
    (void)timeout_ms;
    for (uint64_t at = offset, end = offset + len; at < end;) {
        uint64_t chunk = at / HL_CHUNK, left = HL_CHUNK - at % HL_CHUNK;
        uint64_t n = left < end - at ? left : end - at;
        uint32_t crc =
            hl_copy_crc32(0, (char *)dst + (at - offset), w->b->source + w->at + at, n, len);
        if (n == HL_CHUNK && crc != w->crcs[chunk])
            return hl_fail(HL_ECORRUPT, "chunk %llu differs", (unsigned long long)chunk);
        at += n;
    }
    return HL_OK;
}

static hl_status over_tcp(void *arg, uint64_t offset, void *dst, size_t len, int timeout_ms)
{
    const struct way *w = arg;
    if (offset % HL_CHUNK != 0 || (len % HL_CHUNK != 0 && offset + len != w->run->size))
        return hl_net_fetch(w->b->client, w->at + offset, dst, len, timeout_ms);
    return hl_net_fetch_verified(w->b->client, w->at + offset, dst, len,
                                 w->crcs + offset / HL_CHUNK, timeout_ms, NULL);
}

/* ---- measuring ---- */

static hl_status time_direct(struct way *w, hl_plank_fn link, struct bench_samples *s)
{
    uint64_t start = hl_now_ns();
    HL_TRY(link(w, 0, w->b->block.host, w->run->size, WAIT_MS));
    bench_add(s, hl_now_ns() - start);
    return HL_OK;
}

/* CPU time of this process and, if it takes part, of the serving one. */
static uint64_t cpu_now(const struct plank_bench *b, enum link link)
{
    const clockid_t own = CLOCK_PROCESS_CPUTIME_ID;
    clockid_t servers;
    struct timespec a = {0}, c = {0};
    clock_gettime(own, &a);
    if (link == TCP && clock_getcpuclockid(b->server, &servers) == 0)
        clock_gettime(servers, &c);
    return (uint64_t)(a.tv_sec + c.tv_sec) * HL_NS_PER_S + (uint64_t)(a.tv_nsec + c.tv_nsec);
}

static hl_status time_plank(struct way *w, enum link link, struct bench_samples *s)
{
    struct size_run *run = &w->b->sizes[w->run - w->b->sizes];
    struct hl_plank_device to = {w->b->device, &w->b->block, 0};
    struct hl_plank_job job = {.size = w->run->size,
                               .fetch = {.move = link == TCP ? over_tcp : over_local, .arg = w},
                               .deliver = {.move = hl_plank_to_device, .arg = &to},
                               .timeout_ms = WAIT_MS};
    uint64_t cpu = run->size >= BULK ? cpu_now(w->b, link) : 0, start = hl_now_ns();
    HL_TRY(hl_plank_copy(w->b->plank, &job, NULL));
    uint64_t took = hl_now_ns() - start;
    bench_add(s, took);
    if (run->size >= BULK) {
        run->cpu_ns[link] += cpu_now(w->b, link) - cpu;
        run->wall_ns[link] += took;
    }
    return HL_OK;
}

static hl_status time_copy(struct way *w, uint64_t piece)
{
    struct bench_samples *s = &w->b->sizes[w->run - w->b->sizes].copy_s;
    uint64_t start = hl_now_ns();
    for (uint64_t at = 0; at < w->run->size; at += piece) {
        uint64_t left = w->run->size - at;
        HL_TRY(hl_device_copy_in(w->b->device, &w->b->block, at, w->b->source,
                                 left < piece ? left : piece));
    }
    bench_add(s, hl_now_ns() - start);
    return HL_OK;
}

static size_t ops_of(const struct size_run *run, size_t most)
{
    return bench_ops(ROUND_BYTES, run->size, 4, most);
}

static struct way way_of(struct plank_bench *b, const struct size_run *run, size_t i)
{
    size_t slot = i % run->slots;
    return (struct way){b, run, slot * run->stride, run->crcs + slot * run->chunks};
}

static hl_status one_round(struct plank_bench *b, struct size_run *run, uint64_t piece)
{
    size_t local = b->local ? ops_of(run, ROUND_OPS) : 0, tcp = b->tcp ? ops_of(run, NET_OPS) : 0;
    for (size_t i = 0; i < local || i < tcp; i++) {
        /* The two are neighbours in time, so that a disturbance affects both, but not in place, so
         * that the second does not find the first one's bytes in a cache. */
        struct way one = way_of(b, run, 2 * i), two = way_of(b, run, 2 * i + 1);
        if (i < local) {
            HL_TRY(time_copy(&one, piece));
            HL_TRY(time_direct(&one, over_local, &run->local_s));
            HL_TRY(time_plank(&two, LOCAL, &run->local_plank_s));
        }
        if (i < tcp) {
            HL_TRY(time_direct(&one, over_tcp, &run->tcp_s));
            HL_TRY(time_plank(&two, TCP, &run->tcp_plank_s));
        }
    }
    return HL_OK;
}

static hl_status measure_plank(struct plank_bench *b, struct size_run *run, uint64_t piece)
{
    struct bench_samples *all[] = {&run->copy_s, &run->local_s, &run->local_plank_s, &run->tcp_s,
                                   &run->tcp_plank_s};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        HL_TRY(bench_samples_init(all[i], ops_of(run, ROUND_OPS) * ((size_t)b->rounds + 1)));
    HL_TRY(one_round(b, run, piece)); /* warm-up of page tables, connections and the helper */
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        all[i]->count = 0;
    memset(run->cpu_ns, 0, sizeof(run->cpu_ns));
    memset(run->wall_ns, 0, sizeof(run->wall_ns));
    for (int r = 0; r < b->rounds; r++)
        HL_TRY(one_round(b, run, piece));
    return HL_OK;
}

static void report_link(struct plank_bench *b, enum link which, const struct size_run *run,
                        struct bench_samples *direct_s, struct bench_samples *plank_s)
{
    const char *link = which == TCP ? hl_net_path_name(b->client) : "local";
    char system[24], name[96], size[32];
    snprintf(system, sizeof(system), "%s-direct", link);
    const struct bench_row *direct = bench_row(&b->report, system, "get", run->size, direct_s);
    snprintf(system, sizeof(system), "%s-plank", link);
    const struct bench_row *plank = bench_row(&b->report, system, "get", run->size, plank_s);
    hl_format_bytes(run->size, size, sizeof(size));
    if (run->size <= 4096) {
        snprintf(name, sizeof(name), "plank - direct us %s %s", link, size);
        bench_ratio(&b->report, name, plank->p50_us - direct->p50_us, run->size <= 64 ? 0.8 : 0, 1);
        return;
    }
    /* Compares the best of each, because overlap needs a processor that is idle at that moment. */
    snprintf(name, sizeof(name), "plank/direct %s %s", link, size);
    bench_ratio(&b->report, name, direct->min_us / plank->min_us, run->size >= BULK ? 0.85 : 0, 0);
    if (run->size >= BULK) {
        snprintf(name, sizeof(name), "processors busy of %ld, plank %s %s",
                 sysconf(_SC_NPROCESSORS_ONLN), link, size);
        bench_ratio(&b->report, name,
                    (double)run->cpu_ns[which] / ((double)run->wall_ns[which] + 1), 0, 0);
    }
}

static hl_status run_plank_bench(struct cli *cli, struct plank_bench *b, const struct plank_args *a)
{
    HL_TRY(setup_plank_bench(b, a));
    for (size_t i = 0; i < b->count; i++) {
        struct size_run *s = &b->sizes[i];
        HL_TRY(measure_plank(b, s, a->piece));
        if (b->local) {
            bench_row(&b->report, "local", "copy", s->size, &s->copy_s);
            report_link(b, LOCAL, s, &s->local_s, &s->local_plank_s);
        }
        if (b->tcp)
            report_link(b, TCP, s, &s->tcp_s, &s->tcp_plank_s);
    }
    return bench_print(cli, &b->report);
}

static void fini_plank_bench(struct plank_bench *b)
{
    hl_plank_destroy(b->plank);
    hl_device_close(b->device);
    hl_net_close(b->client);
    if (b->server > 0) {
        kill(b->server, SIGKILL);
        waitpid(b->server, NULL, 0);
    }
    for (size_t i = 0; i < b->count; i++) {
        struct size_run *s = &b->sizes[i];
        struct bench_samples *all[] = {&s->copy_s, &s->local_s, &s->local_plank_s, &s->tcp_s,
                                       &s->tcp_plank_s};
        for (size_t k = 0; k < HL_ARRAY_LEN(all); k++)
            bench_samples_fini(all[k]);
        free(s->crcs);
    }
    if (b->source != NULL)
        munmap(b->source, b->source_len);
    free(b);
}

hl_status cmd_bench_plank(struct cli *cli, int argc, char **argv)
{
    struct plank_args a = {0};
    struct plank_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, plank_rows, HL_ARRAY_LEN(plank_rows), argc, argv, &a, 0, 0);
    if (st == HL_OK) {
        b->local = strcmp(a.link, "tcp") != 0;
        b->tcp = strcmp(a.link, "local") != 0;
        b->rounds = (int)a.rounds;
        st = parse_sizes(cli, a.size, b);
        hl_copy_measure(); /* as the Agent does */
        if (st == HL_OK)
            st = run_plank_bench(cli, b, &a);
        hl_args_fini(plank_rows, HL_ARRAY_LEN(plank_rows), &a);
    }
    fini_plank_bench(b);
    return st;
}
