/* A program with a GPU, for tests: the stand-ins for the driver and its kernels, a context, memory,
 * a stream; and graphs over that memory. */
#ifndef HL_TESTS_MACO_CUDA_RIG_H
#define HL_TESTS_MACO_CUDA_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cuda/driver.h"
#include "helios/maco.h"
#include "maco/cuda/host/context.h"

#define N 64 /* floats of a buffer */

#define MUST(r, call, args) assert_int_equal((r)->cu.call args, HL_CUDA_SUCCESS)

static char driver[512];

struct rig {
    struct cuda_driver cu;
    struct CUctx_st *context;
    struct CUstream_st *stream;
    cu_ptr memory;
    float *data; /* the same address for the CPU */
    maco_graph *graph;
    maco_plan *plan;
    maco_cuda *cuda;
    hybridps_group *group;
};

/* Where the build has a library for tests. */
static inline void find_library(const char *name, char path[512])
{
    const char *build = getenv("HELIOS_BUILD");
    snprintf(path, 512, "%s/tests/lib%s.so", build != NULL ? build : "build", name);
}

/* Exits with 77 and the reason if there are no kernels to run. */
static inline void find_stand_ins(void)
{
    char kernels[512];
    find_library("cuda_stub", driver);
    find_library("cuda_cpu_kernels", kernels);
    setenv("CUDA_STUB_NEAR", "1", 1);
    setenv("CUDA_STUB_KERNELS", kernels, 1);
    setenv("CUDA_STUB_THREADS", "1", 1);
    setenv("CUDA_STUB_DELAY_US", "100", 1);
}

static inline void open_device(struct rig *r)
{
    struct CUctx_st *old;
    assert_int_equal(cuda_driver_load(driver, &r->cu), HL_OK);
    MUST(r, cuDevicePrimaryCtxRetain, (&r->context, 0));
    MUST(r, cuCtxPushCurrent_v2, (r->context));
    MUST(r, cuMemAlloc_v2, (&r->memory, 1 << 20));
    MUST(r, cuStreamCreate, (&r->stream, HL_CU_STREAM_NON_BLOCKING));
    MUST(r, cuCtxPopCurrent_v2, (&old));
    r->data = (float *)(uintptr_t)r->memory;
}

/* The stub aborts the process if anything is left when its last context goes. */
static inline void close_device(struct rig *r)
{
    struct CUctx_st *old;
    MUST(r, cuCtxPushCurrent_v2, (r->context));
    MUST(r, cuStreamDestroy_v2, (r->stream));
    MUST(r, cuMemFree_v2, (r->memory));
    MUST(r, cuCtxPopCurrent_v2, (&old));
    MUST(r, cuDevicePrimaryCtxRelease_v2, (0));
}

static inline size_t free_memory(struct rig *r)
{
    struct CUctx_st *old;
    size_t free = 0, total;
    MUST(r, cuCtxPushCurrent_v2, (r->context));
    MUST(r, cuMemGetInfo_v2, (&free, &total));
    MUST(r, cuCtxPopCurrent_v2, (&old));
    return free;
}

/* Waits until what was left behind has been released. */
static inline void await_memory(struct rig *r, size_t all)
{
    for (int i = 0; i < 10000 && free_memory(r) < all; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_true(free_memory(r) == all);
}

static inline float *buffer(struct rig *r, int i)
{
    return r->data + (size_t)i * N;
}

static inline uint32_t add_op(struct rig *r, maco_op op)
{
    uint32_t id = MACO_NONE;
    assert_int_equal(maco_graph_add(r->graph, &op, &id), 0);
    return id;
}

/* y = 2 x + 1 */
static inline uint32_t add_step(struct rig *r, int from, int to, const char *name)
{
    return add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ELEMENTWISE,
                               .inputs = {buffer(r, from)}, .outputs = {buffer(r, to)},
                               .dims = {1, N, N, 0, N, MACO_AXPB, MACO_F32}, .aux = {2, 1},
                               .name = name});
}

static inline uint32_t add_allreduce(struct rig *r, int from, int to, uint32_t group,
                                     const char *name)
{
    return add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALLREDUCE,
                               .inputs = {buffer(r, from)}, .outputs = {buffer(r, to)},
                               .dims = {N, 0, MACO_SUM}, .group = group, .name = name});
}

struct gate {
    int open, calls, fails;
    const struct rig *rig;
};

/* Communication of the caller: waits until the gate is open, or for a second after the kernel has
 * ended the run, in which the run abandons its communication. */
static inline int pass(void *arg, const maco_task *task)
{
    struct gate *g = arg;
    (void)task;
    const uint64_t *outcome = &g->rig->cuda->host->outcome;
    uint64_t until = hl_now_ns() + 60 * HL_NS_PER_S;
    __atomic_fetch_add(&g->calls, 1, __ATOMIC_SEQ_CST);
    bool over = false;
    while (!__atomic_load_n(&g->open, __ATOMIC_SEQ_CST) && hl_now_ns() < until) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        if (!over && __atomic_load_n(outcome, __ATOMIC_ACQUIRE) != HL_GPU_OK) {
            until = hl_now_ns() + HL_NS_PER_S;
            over = true;
        }
    }
    if (!over && !__atomic_load_n(&g->open, __ATOMIC_SEQ_CST))
        return hl_fail(HL_ETIMEDOUT, "nobody opened the gate, and the run goes on after 60 s");
    return g->fails ? hl_fail(HL_EIO, "the gate is broken") : 0;
}

static inline void add_gate(struct rig *r, struct gate *g)
{
    static maco_range reads, writes;
    g->rig = r;
    reads = (maco_range){(uintptr_t)buffer(r, 1), N * sizeof(float)};
    writes = (maco_range){(uintptr_t)buffer(r, 2), N * sizeof(float)};
    add_step(r, 0, 1, "before");
    add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMM, .function = pass, .arg = g,
                        .reads = &reads, .n_reads = 1, .writes = &writes, .n_writes = 1,
                        .name = "gate"});
    add_step(r, 2, 3, "after");
}

static inline void compile(struct rig *r, int policy, int workers)
{
    const maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .workers = workers,
                                    .infer = 1};
    assert_int_equal(maco_compile(r->graph, &o, &r->plan), 0);
}

static inline void set_input(struct rig *r, float x)
{
    for (int i = 0; i < N; i++)
        buffer(r, 0)[i] = x;
}

static inline void assert_buffer(struct rig *r, int i, float x)
{
    for (int k = 0; k < N; k++)
        assert_true(buffer(r, i)[k] == x);
}

#endif
