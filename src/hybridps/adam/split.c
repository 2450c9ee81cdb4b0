/* Splits a step into parts, one per thread; the caller's thread computes the first.
 *
 *    blocks   | part 0: the caller | part 1: a thread | part 2: a thread | ...
 *
 * Threads live for one step. A part belongs to its thread until the join. Parts share only data
 * that fn(arg) does not write, so no lock is needed. If a thread can't be started, the caller
 * computes its part. */
#include "hybridps/adam/split.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

struct part {
    hl_split_fn fn;
    void *arg;
    size_t first, last;
    pthread_t thread;
    int started;
};

static int usable_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

static void *part_main(void *arg)
{
    struct part *p = arg;
    p->fn(p->arg, p->first, p->last);
    return NULL;
}

void hl_split(size_t blocks, int threads, hl_split_fn fn, void *arg)
{
    struct part parts[HL_SPLIT_THREADS_MAX];
    size_t n = (size_t)(threads > 0 ? threads : usable_cpus());
    if (n > HL_SPLIT_THREADS_MAX)
        n = HL_SPLIT_THREADS_MAX;
    if (n > blocks)
        n = blocks;
    for (size_t i = 0; i < n; i++)
        parts[i] = (struct part){
            .fn = fn, .arg = arg, .first = blocks * i / n, .last = blocks * (i + 1) / n};
    for (size_t i = 1; i < n; i++)
        parts[i].started = pthread_create(&parts[i].thread, NULL, part_main, &parts[i]) == 0;
    if (n > 0)
        part_main(&parts[0]);
    for (size_t i = 1; i < n; i++) {
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
        else
            part_main(&parts[i]);
    }
}
