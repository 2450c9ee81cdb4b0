/* OpenMP tasks: libgomp or LLVM's, by the compiler. argv: threads. */
#include "peer.h"

#include <omp.h>
#include <stdlib.h>

static char chain;

static void indep(int n)
{
#pragma omp parallel
#pragma omp single
    for (int i = 0; i < n; i++) {
#pragma omp task firstprivate(i)
        call(i);
    }
}

static void in_chain(int n)
{
#pragma omp parallel
#pragma omp single
    for (int i = 0; i < n; i++) {
#pragma omp task firstprivate(i) depend(inout : chain)
        call(i);
    }
}

static void in_layers(int n)
{
#pragma omp parallel
#pragma omp single
    for (int first = 0; first < n; first += WIDTH) {
        for (int i = first; i < first + WIDTH; i++) {
#pragma omp task firstprivate(i)
            call(i);
        }
#pragma omp taskwait
    }
}

static void run_graph(const char *graph, int tasks)
{
    if (strcmp(graph, "indep") == 0)
        indep(tasks);
    else if (strcmp(graph, "chain") == 0)
        in_chain(tasks);
    else
        in_layers(tasks);
}

int main(int argc, char **argv)
{
    (void)chain;
    omp_set_num_threads(argc > 1 ? atoi(argv[1]) : 1);
    return serve();
}
