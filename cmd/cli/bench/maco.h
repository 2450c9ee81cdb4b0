/* cmd/cli/bench/maco.h - shared by the parts of `bench maco`: plans, and other task libraries in
 * separate processes.
 *
 * Owns:    a plan owns its graph; a peer its process, which is stopped while it is not used.
 * Threads: one.
 * Errors:  HL_ENOENT: that library was not built (`./run bench maco` builds what is installed).
 * Units:   nanoseconds.
 * Limits:  a peer answers within BENCH_MACO_ANSWER_MS.
 */
#ifndef HL_CMD_CLI_BENCH_MACO_H
#define HL_CMD_CLI_BENCH_MACO_H

#include <sys/types.h>

#include "cli/bench/bench.h"
#include "helios/maco.h"

#define BENCH_MACO_WIDTH     50 /* of a layer */
#define BENCH_MACO_ANSWER_MS 60000

struct bench_maco_plan {
    maco_graph *graph;
    maco_plan *plan;
    uint32_t tasks;
};

/* Makes a plan of tasks that call f(arg); graph: "indep", "chain" or "layer". */
hl_status bench_maco_plan(const char *graph, int policy, int workers, uint32_t tasks,
                          maco_function f, void *arg, struct bench_maco_plan *out) HL_CHECK;
void bench_maco_plan_free(struct bench_maco_plan *p);
/* Measures one run. */
hl_status bench_maco_time(maco_runtime *rt, const maco_plan *p, uint64_t *ns) HL_CHECK;
/* Executes that many dependent operations; returns a number that depends on them. */
double bench_maco_spin(uint64_t operations);
/* The body of a task that executes *(uint64_t *)arg such operations. */
int bench_maco_spin_task(void *arg, const maco_task *task);
double bench_maco_median(struct bench_samples *s);

struct bench_maco_peer {
    pid_t pid;
    int to, from;
};

hl_status bench_maco_peer_start(struct cli *cli, const char *name, int threads,
                                struct bench_maco_peer *out) HL_CHECK;
hl_status bench_maco_peer_ask(struct bench_maco_peer *p, const char *graph, uint32_t tasks,
                              uint64_t *ns) HL_CHECK;
void bench_maco_peer_stop(struct bench_maco_peer *p);

/* maco_link.c: overlap with a simulated link. */
hl_status bench_maco_link(struct bench_report *r, int rounds) HL_CHECK;

#endif
