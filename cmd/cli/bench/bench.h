/* cmd/cli/bench/bench.h - what the benchmarks share: samples, rows, private daemons, raw TCP.
 *
 * Owns:    struct bench_report its rows; struct bench_l3d the daemon, its pool and its directory;
 *          struct bench_tcp its process and sockets.
 * Threads: one; bench_tcp serves from a process of its own.
 * Errors:  those of what is measured; a private daemon that does not start tells its last words.
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
/* Cleared, with room for `cap`. */
hl_status bench_samples_init(struct bench_samples *s, size_t cap) HL_CHECK;

static inline void bench_add(struct bench_samples *s, uint64_t ns)
{
    if (s->count < s->cap)
        s->ns[s->count++] = ns;
}

/* Operations that move round_bytes, from `least` to `most`. */
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

/* Sizes of a flag, separated by commas, from 1 to `most` bytes. A usage error otherwise. */
hl_status bench_sizes(struct cli *cli, const char *flag, const char *text, uint64_t most,
                      uint64_t *out, size_t cap, size_t *count) HL_CHECK;

/* Sorts the samples; gbps is size over the median. */
const struct bench_row *bench_row(struct bench_report *r, const char *system, const char *op,
                                  uint64_t size, struct bench_samples *s);
/* bar 0 = none. */
void bench_ratio(struct bench_report *r, const char *name, double value, double bar, bool at_most);
/* A value whose bar is 0: there should be none of it. */
void bench_none(struct bench_report *r, const char *name, double value);
/* CSV: rows, then "ratio" rows; or JSON. */
hl_status bench_print(struct cli *cli, const struct bench_report *r) HL_CHECK;

/* Of a process, by a line of its /proc/PID/status: "VmHWM:". 0 = it is gone. */
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

/* helios-l3d beside this program, with a pool of its own. */
hl_status bench_l3d_start(struct cli *cli, uint64_t pool_bytes, struct bench_l3d *out) HL_CHECK;
/* Ends it and removes all it left. Zeroed is fine. */
void bench_l3d_stop(struct bench_l3d *d);

struct bench_controller {
    pid_t pid;
    int pidfd; /* -1 = it has ended */
    char address[128];
};

/* helios-controller beside this program, over that daemon, in whose directory its state is. */
hl_status bench_controller_start(struct cli *cli, const struct bench_l3d *l3d,
                                 struct bench_controller *out) HL_CHECK;
/* Ends it. Zeroed is fine. */
void bench_controller_stop(struct bench_controller *c);

struct bench_tcp;

/* Serves `len` bytes of `source`, walking through it. */
hl_status bench_tcp_start(const unsigned char *source, uint64_t len,
                          struct bench_tcp **out) HL_CHECK;
void bench_tcp_stop(struct bench_tcp *t);
/* One question, one answer of `size` bytes. */
hl_status bench_tcp_ask(struct bench_tcp *t, void *buf, uint64_t size) HL_CHECK;
/* `size` bytes to the other side, one byte back when all have come. */
hl_status bench_tcp_give(struct bench_tcp *t, const void *data, uint64_t size) HL_CHECK;
/* `count` pieces of `size` bytes without questions in between. One sample: the time of a piece over
 * all of them, for single ones come in bursts. */
hl_status bench_tcp_stream(struct bench_tcp *t, void *buf, uint64_t size, unsigned count,
                           struct bench_samples *s) HL_CHECK;
/* All of `len` bytes on a blocking socket: 0, or -1 with errno. */
int bench_send_all(int fd, const void *data, uint64_t len) HL_CHECK;

/* Reads of 1 MiB with and without checksums; the pool has more than 64 MiB. */
struct bench_verify_of {
    helios_client *shm; /* NULL: not this way */
    const helios_id *ids;
    size_t count; /* shards of 1 MiB */
    int net;
    const char *data; /* address of the data protocol */
};

hl_status bench_verify(struct bench_report *r, const struct bench_verify_of *of) HL_CHECK;

#endif
