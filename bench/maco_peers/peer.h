/* A task library in a process of its own, asked over pipes by `helios bench maco`.
 *
 * A line "GRAPH TASKS" in, the nanoseconds of one run out. Graphs: "indep"; "chain", each waits for
 * the one before; "layer", 50 wait for the 50 before. A task calls a function through a table, as
 * MACO's do. What a library can build beforehand it builds at the first question. Nothing of this
 * is part of the product. */
#ifndef MACO_PEER_H
#define MACO_PEER_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define WIDTH     50
#define TASKS_MAX 100000

static int empty(void *arg)
{
    (void)arg;
    return 0;
}

static struct call {
    int (*function)(void *arg);
    void *arg;
} calls[TASKS_MAX];

static inline void call(int i)
{
    calls[i].function(calls[i].arg);
}

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void run_graph(const char *graph, int tasks);

static int serve(void)
{
    char graph[16];
    int tasks;
    for (int i = 0; i < TASKS_MAX; i++)
        calls[i].function = empty;
    while (scanf("%15s %d", graph, &tasks) == 2 && tasks > 0 && tasks <= TASKS_MAX) {
        uint64_t from = now_ns();
        run_graph(graph, tasks);
        printf("%llu\n", (unsigned long long)(now_ns() - from));
        fflush(stdout);
    }
    return 0;
}

#endif
