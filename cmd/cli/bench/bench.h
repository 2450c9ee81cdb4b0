/* cmd/cli/bench/bench.h - shared by the benchmarks: samples, rows, private daemons, raw TCP.
 *
 * Owns:    struct bench_report owns its rows; struct bench_l3d the daemon, its pool and its
 *          directory; struct bench_tcp its process and sockets.
 * Threads: one; bench_tcp serves from a separate process.
 * Errors:  those of what is measured; if a private daemon does not start, its last log line.
 * Units:   samples in ns, rows in microseconds and GB/s (10^9 bytes).
 * Limits:  BENCH_ROWS_MAX rows, BENCH_RATIOS_MAX ratios.
 */
#ifndef HL_CMD_CLI_BENCH_BENCH_H
#include <stdbool.h>
#define HL_CMD_CLI_BENCH_BENCH_H

#include "cli/cli/cli.h"
#include "helios/helios.h"

#define BENCH_ROWS_MAX   64
#define BENCH_RATIOS_MAX 32

struct bench_samples {
    uint64_t *ns;
    size_t count;
    size_t cap;
};

void bench_samples_fini(struct bench_samples *s);
/* Clears it and makes room for `cap` samples. */
hl_status bench_samples_init(struct bench_samples *s, size_t cap) HL_CHECK;

static inline void bench_add(struct bench_samples *s, uint64_t ns)
{
    if (s->count < s->cap)
        s->ns[s->count++] = ns;
}

/* How many operations move round_bytes, between `least` and `most`. */
static inline size_t bench_ops(uint64_t round_bytes, uint64_t size, size_t least, size_t most)
{
    size_t ops = (size_t)(round_bytes / size);
    return ops > most ? most : ops < least ? least : ops;
}

struct bench_row {
    char system[24];
    char op[16];
    uint64_t size;
    size_t n;
    double min_us, p50_us, p99_us, mean_us, gbps;
};

struct bench_ratio {
    char name[96];
    double value;
    double bar;
    bool at_most;
    bool barred; /* there is a bar */
};

struct bench_report {
    struct bench_row rows[BENCH_ROWS_MAX];
    size_t row_count;
    struct bench_ratio ratios[BENCH_RATIOS_MAX];
    size_t ratio_count;
};

/* Parses a flag's sizes, separated by commas, from 1 to `most` bytes. Otherwise a usage error. */
hl_status bench_sizes(struct cli *cli, const char *flag, const char *text, uint64_t most,
                      uint64_t *out, size_t cap, size_t *count) HL_CHECK;

/* Adds a row and sorts the samples; gbps is size over the median. */
const struct bench_row *bench_row(struct bench_report *r, const char *system, const char *op,
                                  uint64_t size, struct bench_samples *s);
/* Adds a ratio. bar 0 = none. */
void bench_ratio(struct bench_report *r, const char *name, double value, double bar, bool at_most);
/* Adds a value that should be 0. */
void bench_none(struct bench_report *r, const char *name, double value);
/* Prints CSV (rows, then "ratio" rows) or JSON. */
hl_status bench_print(struct cli *cli, const struct bench_report *r) HL_CHECK;

/* Memory of a process, from a line of its /proc/PID/status such as "VmHWM:". 0 = it has ended. */
uint64_t bench_process_bytes(pid_t pid, const char *what);

struct bench_l3d {
    pid_t pid;
    int pidfd; /* -1 = it has ended */
    char dir[64];
    char pool[96];
    char socket[128]; /* Unix socket */
    char address[128];
    char data[128]; /* of the data protocol */
};

/* Starts the helios-l3d next to this program, with its own pool. */
hl_status bench_l3d_start(struct cli *cli, uint64_t pool_bytes, struct bench_l3d *out) HL_CHECK;
/* Ends it and removes everything it left. A zeroed struct is allowed. */
void bench_l3d_stop(struct bench_l3d *d);

struct bench_controller {
    pid_t pid;
    int pidfd; /* -1 = it has ended */
    char address[128];
};

/* Starts the helios-controller next to this program, on top of that daemon; its state is in the
 * daemon's directory. */
hl_status bench_controller_start(struct cli *cli, const struct bench_l3d *l3d,
                                 struct bench_controller *out) HL_CHECK;
/* Ends it. A zeroed struct is allowed. */
void bench_controller_stop(struct bench_controller *c);

struct bench_tcp;

/* Starts a process that serves `len` bytes of `source`, one piece after another. */
hl_status bench_tcp_start(const unsigned char *source, uint64_t len,
                          struct bench_tcp **out) HL_CHECK;
void bench_tcp_stop(struct bench_tcp *t);
/* Sends one request and receives an answer of `size` bytes. */
hl_status bench_tcp_ask(struct bench_tcp *t, void *buf, uint64_t size) HL_CHECK;
/* Sends `size` bytes, and receives one byte when all have arrived. */
hl_status bench_tcp_give(struct bench_tcp *t, const void *data, uint64_t size) HL_CHECK;
/* Receives `count` pieces of `size` bytes without requests in between. Adds one sample, the mean
 * time per piece, because single pieces arrive in bursts. */
hl_status bench_tcp_stream(struct bench_tcp *t, void *buf, uint64_t size, unsigned count,
                           struct bench_samples *s) HL_CHECK;
/* Sends all `len` bytes on a blocking socket: 0, or -1 with errno. */
int bench_send_all(int fd, const void *data, uint64_t len) HL_CHECK;

/* Reads of 1 MiB with and without checksums; the pool must be larger than 64 MiB. */
struct bench_verify_of {
    helios_client *shm; /* NULL: this way is not measured */
    const helios_id *ids;
    size_t count; /* shards of 1 MiB */
    int net;
    const char *data; /* address of the data protocol */
};

hl_status bench_verify(struct bench_report *r, const struct bench_verify_of *of) HL_CHECK;

#endif
