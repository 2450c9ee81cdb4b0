/* Peers' memory through NVSHMEM: the plug-in's source, built against a stand-in for NVSHMEM that
 * aborts a process that breaks its rules. Ranks are processes, because NVSHMEM has one PE in each.
 * CUDA's IPC handles, which would be preferred, are refused. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "helios/hybridps.h"
#include "helios/maco.h"

#define N     64
#define WORLD 3
#define TIMES 2 /* runtimes that a process opens */

static char driver[512], kernels[512], plugin[512];

/* Results of the ranks; shared with them. */
struct trial {
    int status[TIMES][WORLD];
    char route[TIMES][WORLD][1024];
    int without; /* 1 + the rank that has no plug-in */
    int times;
    uint64_t timeout_ns;
};

struct rank {
    struct trial *trial;
    struct cuda_driver cu;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    cu_ptr memory;
    int rank;
};

static maco_plan *plan_of(float *x)
{
    const maco_op sum = {MACO_OP_INIT,       .type = MACO_TASK_ALLREDUCE, .inputs = {x},
                         .outputs = {x + N}, .dims = {N, 0, MACO_SUM},    .name = "sum"};
    const maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .infer = 1};
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    uint32_t id;
    if (maco_graph_new(&g) != 0 || maco_graph_add(g, &sum, &id) != 0 ||
        maco_compile(g, &o, &p) != 0)
        exit(3);
    maco_graph_free(g);
    return p;
}

static int run(struct rank *r, maco_cuda *c)
{
    float *x = (float *)(uintptr_t)r->memory;
    maco_plan *p = plan_of(x);
    int st = maco_cuda_load(c, p);
    for (int k = 1; st == 0 && k <= 3; k++) {
        float sum = 0;
        for (int i = 0; i < WORLD; i++)
            sum += (float)(k * (i + 1));
        for (int i = 0; i < N; i++)
            x[i] = (float)(k * (r->rank + 1));
        st = maco_cuda_run(c, r->stream);
        for (int i = 0; st == 0 && i < N; i++)
            st = x[N + i] == sum ? 0 : -1000 - i;
    }
    maco_plan_free(p);
    return st;
}

static void open_and_run(struct rank *r, hybridps_group *g, int time)
{
    struct trial *t = r->trial;
    hybridps_group *groups[1] = {g};
    maco_cuda *c = NULL;
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT,     .driver = driver, .workers = 1,
                                 .groups = groups,           .n_comms = 1,     .peer_ctas = 2,
                                 .timeout_ns = t->timeout_ns};
    /* the first call, which is CUDA IPC's own; a changed setting restarts the count */
    setenv("CUDA_STUB_FAIL", time == 0 ? "cuIpcGetMemHandle:1:801" : "cuIpcGetMemHandle:01:801", 1);
    int st = maco_cuda_open(0, &o, &c);
    snprintf(t->route[time][r->rank], sizeof(t->route[0][0]), "%s",
             st == 0 ? maco_cuda_route(c, 0) : hl_error_text());
    t->status[time][r->rank] = st == 0 ? run(r, c) : st;
    maco_cuda_close(c);
}

static void rank_main(struct trial *t, int rank, const char *name)
{
    struct rank r = {.trial = t, .rank = rank};
    struct CUctx_st *old;
    hybridps_group *g = NULL;
    const hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = rank,
                                    .world = WORLD, .timeout_ms = 60000};
    setenv("HELIOS_NVSHMEM", t->without == rank + 1 ? "libno-such-plugin.so" : plugin, 1);
    if (cuda_driver_load(driver, &r.cu) != HL_OK ||
        r.cu.cuDevicePrimaryCtxRetain(&r.context, 0) != HL_CUDA_SUCCESS ||
        r.cu.cuCtxPushCurrent_v2(r.context) != HL_CUDA_SUCCESS ||
        r.cu.cuMemAlloc_v2(&r.memory, 2 * N * sizeof(float)) != HL_CUDA_SUCCESS ||
        r.cu.cuStreamCreate(&r.stream, HL_CU_STREAM_NON_BLOCKING) != HL_CUDA_SUCCESS ||
        r.cu.cuCtxPopCurrent_v2(&old) != HL_CUDA_SUCCESS || hybridps_group_shm(&o, &g) != 0)
        _exit(2);
    for (int time = 0; time < t->times; time++)
        open_and_run(&r, g, time);
    hybridps_group_close(g);
    /* the stub checks what is left when the last context goes */
    if (r.cu.cuCtxPushCurrent_v2(r.context) != HL_CUDA_SUCCESS ||
        r.cu.cuStreamDestroy_v2(r.stream) != HL_CUDA_SUCCESS ||
        r.cu.cuMemFree_v2(r.memory) != HL_CUDA_SUCCESS ||
        r.cu.cuCtxPopCurrent_v2(&old) != HL_CUDA_SUCCESS ||
        r.cu.cuDevicePrimaryCtxRelease_v2(0) != HL_CUDA_SUCCESS)
        _exit(2);
    _exit(0);
}

static void together(struct trial *t)
{
    pid_t children[WORLD];
    char name[64];
    snprintf(name, sizeof(name), "helios-test-cuda-nvshmem-%d", (int)getpid());
    for (int k = 0; k < WORLD; k++) {
        children[k] = fork();
        assert_true(children[k] >= 0);
        if (children[k] == 0)
            rank_main(t, k, name);
    }
    for (int k = 0; k < WORLD; k++) {
        int status = -1;
        assert_int_equal(waitpid(children[k], &status, 0), children[k]);
        if (status != 0)
            fail_msg("rank %d ended with %#x: \"%s\"", k, (unsigned)status, t->route[0][k]);
    }
}

static int new_trial(void **state)
{
    static const char *const names[] = {"NVSHMEM_STUB_FAR", "NVSHMEM_STUB_FULL",
                                        "NVSHMEM_STUB_ABSENT"};
    struct trial *t =
        mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(t != MAP_FAILED);
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    t->times = 1;
    t->timeout_ns = 60000000000;
    *state = t;
    return 0;
}

static int end_trial(void **state)
{
    return munmap(*state, sizeof(struct trial));
}

#define WAY "inside the kernel, over NVSHMEM; not over NCCL's windows: "

static void refused(struct trial *t, const char *why)
{
    together(t);
    for (int k = 0; k < WORLD; k++) {
        assert_int_not_equal(t->status[0][k], 0);
        if (strstr(t->route[0][k], why) == NULL)
            fail_msg("rank %d: \"%s\" does not say \"%s\"", k, t->route[0][k], why);
    }
}

/* A second runtime can't use it, and has no other way here. */
TEST_IN(new_trial, end_trial, it_serves_a_process_once)
{
    struct trial *t = *state;
    t->times = 2;
    together(t);
    for (int k = 0; k < WORLD; k++) {
        if (t->status[0][k] != 0 || strncmp(t->route[0][k], WAY, strlen(WAY)) != 0)
            fail_msg("rank %d: %d, \"%s\"", k, t->status[0][k], t->route[0][k]);
        assert_int_equal(t->status[1][k], HL_EUNSUPPORTED);
        assert_non_null(
            strstr(t->route[1][k],
                   "; not over NVSHMEM: rank 0: NVSHMEM serves only one group per process, once"));
    }
}

TEST_IN(new_trial, end_trial, a_rank_without_the_plug_in)
{
    struct trial *t = *state;
    t->without = 2;
    refused(t, "; not over NVSHMEM: rank 1: no NVSHMEM: libno-such-plugin.so");
}

TEST_IN(new_trial, end_trial, memory_that_a_gpu_does_not_reach)
{
    setenv("NVSHMEM_STUB_FAR", "2", 1);
    refused(*state, "; not over NVSHMEM: rank 0: this GPU does not reach the memory of rank 2");
}

TEST_IN(new_trial, end_trial, a_heap_that_is_full)
{
    setenv("NVSHMEM_STUB_FULL", "1", 1);
    refused(*state, "; not over NVSHMEM: rank 0: NVSHMEM's symmetric heap has no ");
}

/* The others wait for it in NVSHMEM, which has no deadline; Helios has one. */
TEST_IN(new_trial, end_trial, a_rank_that_never_begins)
{
    struct trial *t = *state;
    t->timeout_ns = 500000000;
    setenv("NVSHMEM_STUB_ABSENT", "1", 1);
    refused(t, "; not over NVSHMEM: rank 0: initialization of NVSHMEM: not back after 500 ms");
}

int main(int argc, char **argv)
{
    const char *build = getenv("HELIOS_BUILD");
    build = build != NULL ? build : "build";
    snprintf(driver, sizeof(driver), "%s/tests/libcuda_stub.so", build);
    snprintf(kernels, sizeof(kernels), "%s/tests/libcuda_cpu_kernels.so", build);
    snprintf(plugin, sizeof(plugin), "%s/tests/libhelios_nvshmem_stub.so", build);
    setenv("CUDA_STUB_NEAR", "1", 1);
    setenv("CUDA_STUB_KERNELS", kernels, 1);
    setenv("CUDA_STUB_THREADS", "1", 1);
    setenv("CUDA_STUB_DELAY_US", "100", 1);
    return tests_run(argc, argv);
}
