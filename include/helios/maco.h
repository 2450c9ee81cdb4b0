/* maco.h - C ABI of MACO: a graph of compute and communication tasks, run by persistent workers.
 *
 *     maco_graph_new, maco_graph_add..., maco_graph_depend...     what is to be done
 *     maco_compile                                                a plan: tasks, events, order
 *     maco_run                                                    any number of times
 *
 * Structs that begin with `size` may grow, as helios.h explains; each has an _INIT macro.
 *
 * Owns:    a graph owns its tasks, a plan a copy of what it needs from the graph, a runtime its
 *          threads. Memory that tasks refer to stays the caller's and must live while a plan runs.
 * Threads: a graph is used by one thread at a time. A plan is read-only and any number of runtimes
 *          may run it, but only one at a time if its tasks write the same memory. A runtime does
 *          one run at a time.
 * Errors:  0, or a negative HELIOS_E... code of helios.h; helios_last_error() says what, which
 *          task, and what to do. Every wait ends at the run's deadline at the latest.
 * Units:   bytes, elements, nanoseconds; strides count elements.
 * Limits:  MACO_MAX_TASKS tasks in a graph, 4 inputs and 2 outputs a task, 2^31 - 1 in a
 *          dimension.
 */
#ifndef HELIOS_MACO_H
#define HELIOS_MACO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HELIOS_API
#define HELIOS_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#define MACO_ALIGNED(n)           alignas(n)
#define MACO_LAYOUT(is, sentence) static_assert(is, sentence)
#else
#define MACO_ALIGNED(n)           _Alignas(n)
#define MACO_LAYOUT(is, sentence) _Static_assert(is, sentence)
#endif

#define MACO_MAX_TASKS (1u << 24)
#define MACO_NONE      UINT32_MAX

/* What a task does. The numbers are those of MACO's maco_types.h. In each line: inputs -> outputs;
 * dims; aux. */
enum maco_task_type {
    MACO_TASK_TERMINATE = 0, /* reserved: graphs and plans with it are refused */
    MACO_TASK_NOP = 1,
    /* A[M,K], B[K,N](, bias[N]) -> C = alpha op(A) op(B) + beta C (+ bias);
     * M, N, K, lda, ldb, ldc, transA, transB; alpha, beta */
    MACO_TASK_MATMUL = 100,
    /* Q[B,Hq,Sq,D], K, V[B,Hkv,Sk,D](, mask[Sq,Sk] added) -> O(, lse[B,Hq,Sq] float32);
     * B, Hq, Hkv, Sq, Sk, D, causal (aligned to the last key); scale */
    MACO_TASK_ATTENTION = 101,
    /* X[M,K], W[N,K](, bias[N]) -> Y = X W^T (+ bias); M, N, K, ldx, ldw, ldy */
    MACO_TASK_LINEAR = 102,
    /* X(, gamma[cols](, beta[cols])) -> Y; rows, cols, ldx, ldy; eps */
    MACO_TASK_LAYERNORM = 103,
    MACO_TASK_GELU = 104,    /* X -> Y; rows, cols, ldx, ldy, 0 erf or 1 tanh */
    MACO_TASK_SILU = 105,    /* X -> Y; rows, cols, ldx, ldy */
    MACO_TASK_SOFTMAX = 106, /* X -> Y over each row; rows, cols, ldx, ldy */
    MACO_TASK_RMSNORM = 107, /* X(, gamma[cols]) -> Y; rows, cols, ldx, ldy; eps */
    /* A(, B) -> Y; rows, cols, lda, ldb (0: B is one row for all), ldy, op (enum maco_elementwise),
     * dtype of Y; alpha, beta */
    MACO_TASK_ELEMENTWISE = 120,
    MACO_TASK_CUSTOM_COMPUTE = 150, /* a function of the caller */
    /* X -> Y, which may be X; count (low, high 32 bits), op (enum maco_reduce), peer or root, tag,
     * ranks. count is the number of X's elements, except: in REDUCE_SCATTER that of Y, one rank's
     * share; in ALLGATHER that of X, also one rank's; in ALL_TO_ALL what goes to each rank. These
     * three must give the group's number of ranks, the others may. SEND has no Y, RECV no X */
    MACO_TASK_ALLREDUCE = 200,
    MACO_TASK_ALLGATHER = 201,
    MACO_TASK_REDUCE_SCATTER = 202,
    MACO_TASK_ALL_TO_ALL = 203,
    MACO_TASK_SEND = 204,
    MACO_TASK_RECV = 205,
    MACO_TASK_BROADCAST = 206,
    MACO_TASK_CUSTOM_COMM =
        250,                /* a function of the caller, run by the group's proxy in its order */
    MACO_TASK_MEMCPY = 300, /* X -> Y; rows, bytes of a row, byte stride of X, of Y */
    MACO_TASK_MEMSET = 301, /* -> Y; rows, bytes of a row, 0, byte stride of Y, value */
};

enum maco_dtype {
    MACO_F32 = 0,
    MACO_F16 = 1,
    MACO_BF16 = 2,
    MACO_F64 = 3, /* this and the following: collectives and copies only */
    MACO_I32 = 4,
    MACO_I64 = 5,
    MACO_U8 = 6,
};

enum maco_elementwise {
    MACO_ADD = 0,
    MACO_MUL = 1,
    MACO_AXPB = 2, /* fma(a, alpha, beta) */
    MACO_RELU = 3,
    MACO_CAST = 4,
    MACO_SUB = 5,
    MACO_SCALE_ADD = 6, /* fma(alpha, a, b) */
};

enum maco_reduce { MACO_SUM = 0, MACO_AVG = 1, MACO_MIN = 2, MACO_MAX = 3, MACO_PROD = 4 };

/* flags of a task; other bits are refused */
#define MACO_FLAG_DTYPE 0x000fu /* enum maco_dtype of its inputs and outputs */
/* compute each element in a fixed order that no chunking changes */
#define MACO_FLAG_DETERMINISTIC 0x0010u

/* One task as the back ends read it: the same bytes on a CPU and a GPU. */
typedef struct maco_task {
    uint16_t type, flags;
    uint32_t dependent_event; /* the task starts when it has fired; MACO_NONE */
    uint32_t trigger_event;   /* the task adds to its count when done; MACO_NONE */
    uint32_t cost_ns;         /* estimate; 0 = unknown */
    uint64_t inputs[4], outputs[2];
    int32_t dims[8];
    float aux[4];
    uint32_t group; /* of collectives: index among the runtime's groups */
    uint32_t name;  /* offset in the plan's names */
    uint64_t user;  /* CUSTOM_...: index among the plan's functions */
} maco_task;

enum maco_event_kind {
    MACO_EVENT_EMPTY = 0,          /* only counted */
    MACO_EVENT_LAUNCH_TASK = 1,    /* launches task `first` */
    MACO_EVENT_LAUNCH_MASSIVE = 2, /* launches tasks first <= i < last */
    MACO_EVENT_BARRIER = 3,        /* the same, when all before it are done */
    MACO_EVENT_END = 4,            /* the graph is done */
};

/* An event fires when `count` reaches needed * iteration: counters are not reset between runs. */
typedef struct maco_event {
    MACO_ALIGNED(64) uint64_t count;
    uint32_t needed; /* triggers per run, at least 1 */
    uint32_t first, last;
    uint16_t kind, reserved;
    int32_t target_worker; /* -1 = any */
    uint32_t name;
    uint64_t cursor; /* next task of a massive launch that a worker takes */
    uint64_t reserved2[3];
} maco_event;

MACO_LAYOUT(sizeof(maco_task) == 128, "a task is two cache lines");
MACO_LAYOUT(sizeof(maco_event) == 64, "an event has a cache line of its own");

/* ---- the graph ---- */
typedef struct maco_graph maco_graph;
typedef struct maco_plan maco_plan;
typedef struct maco_runtime maco_runtime;

/* Bytes that a task reads or writes. They serve to infer an order, and to reject two writers that
 * have none. */
typedef struct maco_range {
    uint64_t first, bytes;
} maco_range;

/* A function of the caller. It returns 0, or a negative HELIOS_E... code, which ends the run. A
 * worker calls it (CUSTOM_COMPUTE) or the group's proxy (CUSTOM_COMM). */
typedef int (*maco_function)(void *arg, const maco_task *task);

/* A task as it is added to a graph. For built-in types the ranges follow from dims; for CUSTOM_...
 * they have to be given. */
typedef struct maco_op {
    size_t size;     /* MACO_OP_INIT */
    int type, dtype; /* enum maco_task_type, enum maco_dtype */
    int deterministic;
    const void *inputs[4];
    void *outputs[2];
    int32_t dims[8];
    float aux[4];
    uint32_t group;
    const char *name; /* for messages and traces; all ranks also compare the names of collectives
                         (maco_run). NULL = TYPE and its number, which they don't compare */
    int on_worker;    /* 1 + the worker that is to run it; 0 = any */
    int priority;     /* among tasks that are ready at the same time the highest goes first */
    uint32_t cost_ns; /* 0 = estimated from dims */
    int local_name;   /* 1: ranks don't compare this name */
    maco_function function;
    void *arg;
    const maco_range *reads, *writes; /* of CUSTOM_... */
    uint32_t n_reads, n_writes;
} maco_op;

#define MACO_OP_INIT .size = sizeof(maco_op)

HELIOS_API int maco_graph_new(maco_graph **out);
HELIOS_API void maco_graph_free(maco_graph *g); /* NULL is fine */
/* *id counts from 0. HELIOS_EINVAL: unknown type, a missing input, dims that do not fit, strides
 * too small. */
HELIOS_API int maco_graph_add(maco_graph *g, const maco_op *op, uint32_t *id);
/* `task` waits for `on`. Adding the same dependency twice has no further effect. */
HELIOS_API int maco_graph_depend(maco_graph *g, uint32_t task, uint32_t on);

/* ---- the plan ---- */
enum maco_policy {
    MACO_DIRECT = 0,    /* the thread that completes an event launches what follows (default) */
    MACO_SCHEDULER = 1, /* a scheduler thread hands tasks to workers' queues */
    MACO_STATIC = 2,    /* one list per worker, made from costs; workers wait for events */
};

enum maco_balance { MACO_ROUND_ROBIN = 0, MACO_LEAST_LOADED = 1 };

/* The tasks of one worker, in the order in which it runs them. */
typedef struct maco_list {
    const uint32_t *ids;
    uint32_t n;
} maco_list;

typedef struct maco_compile_options {
    size_t size;                  /* MACO_COMPILE_OPTIONS_INIT */
    int policy, balance, workers; /* workers: the runtime's, for the lists of MACO_STATIC */
    int infer; /* 1: infer an order from overlapping ranges (RAW, WAR, WAW), following the order of
                  adding unless dependencies say otherwise; 0: refuse two unordered tasks of which
                  one writes what the other uses */
    const maco_list *lists; /* for MACO_STATIC, `workers` of them; together they name every task
                               that is not communication exactly once. NULL = made from costs */
} maco_compile_options;

#define MACO_COMPILE_OPTIONS_INIT .size = sizeof(maco_compile_options)

/* HELIOS_ECONFLICT: a cycle, named task by task; unordered writers; with `infer`, dependencies that
 * put a task before an earlier-added one whose result it reads; lists whose order deadlocks. */
HELIOS_API int maco_compile(const maco_graph *g, const maco_compile_options *options,
                            maco_plan **out);
HELIOS_API void maco_plan_free(maco_plan *p); /* NULL is fine */

/* The plan as the back ends see it, valid as long as the plan. Tasks are numbered in launch order,
 * not in the order of adding: `id` of each is its id in the graph, MACO_NONE for a join. A join is
 * a NOP that only passes a trigger on. The thread that fires its event triggers it at once, and it
 * is in no list. Among tasks that start together (those of an event, the roots) joins come first,
 * then communication, then the rest; within each group higher priority comes first. Every task has
 * a trigger. Every task but the roots depends on an event and lies in that event's range. Exactly
 * one event is the END, the last one. */
typedef struct maco_plan_view {
    const maco_task *tasks;
    const maco_event *events;
    const uint32_t *id,
        *worker; /* per task; worker: from the static list or on_worker, MACO_NONE = any */
    const int32_t *priority; /* per task */
    uint32_t n_tasks, n_events;
    uint32_t n_roots; /* tasks 0 <= i < n_roots start immediately */
    int policy, balance;
    /* MACO_STATIC: worker w runs list[first_of_list[w]] .. list[first_of_list[w + 1] - 1] */
    const uint32_t *list, *first_of_list;
    uint32_t n_lists;
    const uint32_t *comm; /* n_comm tasks: those of each group begin in this order */
    const char *names;
    uint64_t names_bytes;
    /* hash of the collectives in order, without SEND and RECV. This has to be equal on all ranks:
     * otherwise they would hang, or mix up two similar collectives */
    uint64_t comm_hash;
    uint32_t n_comm;
} maco_plan_view;

/* Owned by the plan; a newer library may add members at its end. */
HELIOS_API const maco_plan_view *maco_plan_read(const maco_plan *p);
/* JSON about the plan: tasks, events, levels, critical path, lists. free() it. */
HELIOS_API int maco_plan_describe(const maco_plan *p, char **json);

/* Simulates the plan on a virtual clock: each task takes its cost, and the link of each group its
 * own time. The result is exact and the same each time. Read the trace with the functions below. */
typedef struct maco_virtual {
    size_t size; /* MACO_VIRTUAL_INIT */
    int workers;
    uint64_t hop_ns; /* latency from an event to a task that it launches */
    uint64_t link_bytes_per_s, link_latency_ns; /* for collectives without a cost */
} maco_virtual;

#define MACO_VIRTUAL_INIT .size = sizeof(maco_virtual)

typedef struct maco_trace maco_trace;

HELIOS_API int maco_run_virtual(const maco_plan *p, const maco_virtual *model, maco_trace **out);

/* ---- the CPU runtime ---- */
typedef struct hybridps_group hybridps_group; /* helios/hybridps.h: ranks over any transport */

typedef struct maco_runtime_options {
    size_t size;         /* MACO_RUNTIME_OPTIONS_INIT */
    int workers;         /* 0 = CPUs of the affinity mask and of the control group's quota */
    int policy, balance; /* as the plan was compiled */
    uint64_t timeout_ns; /* of a run; 0 = 60 s */
    int trace;           /* 1: record what each worker does */
    uint32_t ring;       /* slots of a worker's queue, a power of two; 0 = 1024 */
    hybridps_group *const *groups; /* indexed by a task's `group`; the caller's, who must not use
                                      them otherwise meanwhile */
    uint32_t n_groups;
    int (*poll)(void *arg); /* called by the thread in maco_run while it waits, four times a second
                               and after a signal; a result other than 0 ends the run as maco_cancel
                               does. NULL = none */
    void *poll_arg;
} maco_runtime_options;

#define MACO_RUNTIME_OPTIONS_INIT .size = sizeof(maco_runtime_options)

HELIOS_API int maco_runtime_open(const maco_runtime_options *options, maco_runtime **out);
HELIOS_API void maco_runtime_close(maco_runtime *r); /* NULL is fine */
/* Returns when all tasks are done. HELIOS_ETIMEDOUT names the waiting tasks, how many triggers
 * their events have and need, and what each worker does. HELIOS_ECONFLICT, before a plan's first
 * run: a rank's plan has different collectives, or the same ones in a different order. Collectives
 * of the same type, size, operation and name are told apart by the order of adding. A runtime can
 * run again after a failure. A collective that still waits one second after its run was given up is
 * cancelled, and its group is lost. */
HELIOS_API int maco_run(maco_runtime *r, const maco_plan *p);
/* From any thread: the run ends with HELIOS_ECANCELED. */
HELIOS_API void maco_cancel(maco_runtime *r);
/* The graph's ids in an order of completion, without joins. It agrees with each worker's own order,
 * and no task comes before one that it waited for. A failed run gives fewer ids. The plan must
 * still exist. */
HELIOS_API int maco_run_order(const maco_runtime *r, uint32_t *ids, uint32_t capacity, uint32_t *n);
/* The trace of the last run, whose plan must still exist; NULL without `trace`. The caller owns
 * it. */
HELIOS_API int maco_run_trace(const maco_runtime *r, maco_trace **out);

/* ---- the CUDA runtime ---- */

/* Runs the same plans on a GPU, as one cooperative launch of a persistent kernel. Its CTAs are the
 * workers, plus one scheduler (MACO_SCHEDULER) and one communication proxy (if the plan
 * communicates). Inputs and outputs are device addresses; CUSTOM_COMPUTE is refused. Each group
 * communicates on a stream of its own: the stream waits for the task's event, NCCL communicates,
 * and the stream writes that it is done. Alternatively the kernel itself communicates (peer_ctas).
 * CUSTOM_COMM is called on the driver's thread and may not call CUDA. Threads: one at a time,
 * except for maco_cuda_cancel. */
typedef struct maco_cuda maco_cuda;

typedef struct maco_cuda_options {
    size_t size;         /* MACO_CUDA_OPTIONS_INIT */
    int workers;         /* 0 = all that fit beside `reserved`; for MACO_STATIC the plan decides */
    int reserved;        /* multiprocessors that are kept free for NCCL's kernels */
    uint64_t timeout_ns; /* of a run; 0 = 60 s */
    int trace;           /* 1: record what each worker does */
    uint32_t ring;       /* slots of a worker's ring (MACO_SCHEDULER), a power of two; 0 = 1024 */
    /* ncclComm_t of each group; the caller's, alive until maco_cuda_close and warmed up by one
     * collective of each kind. NULL = a group of one rank: its copy engine copies X to Y */
    void *const *comms;
    uint32_t n_comms;
    const char *driver, *nccl; /* libraries; NULL = libcuda.so.1, libnccl.so.2 */
    hybridps_group *const
        *groups; /* n_comms of them: the ranks of each group compare their plans over these; NULL or
                    a NULL entry = over NCCL, if there is a comm */
    /* > 0: every group that has an entry in `groups` communicates inside the kernel, on this many
     * CTAs, between GPUs of one node that can reach each other's memory; must be the same on all
     * ranks. Groups of more than 64 ranks, and those for which no shared memory is found, use
     * streams. 0 = all use streams */
    uint32_t peer_ctas;
} maco_cuda_options;

#define MACO_CUDA_OPTIONS_INIT .size = sizeof(maco_cuda_options)

typedef struct maco_cuda_info {
    size_t size; /* MACO_CUDA_INFO_INIT */
    char name[96];
    int multiprocessors, major, minor;
    int limit;   /* CTAs that can be resident on the device at once */
    int workers; /* of the loaded plan, or if none is loaded, of the next one */
    uint64_t image_bytes;
} maco_cuda_info;

#define MACO_CUDA_INFO_INIT .size = sizeof(maco_cuda_info)

/* 0: this library contains kernels, and there are a driver and a device. Otherwise it returns what
 * maco_cuda_open would, and helios_last_error() says why. `driver` NULL = libcuda.so.1 */
HELIOS_API int maco_cuda_available(const char *driver);
HELIOS_API int maco_cuda_open(int device, const maco_cuda_options *options, maco_cuda **out);
/* NULL is fine. Waits for the current run, and for the ranks of groups inside the kernel to get
 * here too; then at most 10 s for the driver and NCCL to release everything. What they have not
 * released by then they release later, and a warning says so. */
HELIOS_API void maco_cuda_close(maco_cuda *c);
/* Sets the plan that is run from now on. It must live until another one is loaded or the runtime is
 * closed. HELIOS_ENOSPC: it needs more CTAs than fit (NotCoResident). HELIOS_EUNSUPPORTED: it has a
 * task that a GPU can't do. */
HELIOS_API int maco_cuda_load(maco_cuda *c, const maco_plan *p);
/* Enqueues a run on `stream` (CUstream, cudaStream_t; NULL = the default stream), in stream order.
 * A plan's first run waits for the other ranks, which compare the order of their collectives:
 * HELIOS_ECONFLICT names two that differ. */
HELIOS_API int maco_cuda_start(maco_cuda *c, void *stream);
/* Returns when the run is over, as maco_run does. The timeout counts from the kernel's start; a
 * run that fails aborts the communicators that it left waiting. */
HELIOS_API int maco_cuda_wait(maco_cuda *c);
HELIOS_API int maco_cuda_run(maco_cuda *c, void *stream); /* start and wait */
/* From any thread: the current run ends with HELIOS_ECANCELED. */
HELIOS_API void maco_cuda_cancel(maco_cuda *c);
/* As maco_run_order and maco_run_trace; both need `trace`. The trace uses the GPU's clock.
 * Communication starts when its event fired, as the proxy saw it. */
HELIOS_API int maco_cuda_order(const maco_cuda *c, uint32_t *ids, uint32_t capacity, uint32_t *n);
HELIOS_API int maco_cuda_trace(const maco_cuda *c, maco_trace **out);
HELIOS_API int maco_cuda_describe(const maco_cuda *c, maco_cuda_info *out);
/* How a group communicates, in words, and why the ways that are tried first were not taken: inside
 * the kernel over NCCL's windows, over CUDA IPC, over NVSHMEM, or by streams. All ranks of a group
 * use the same way. A communicator is aborted if not all its ranks arrive to register a window. The
 * text is valid as long as the runtime; NULL: no such group. */
HELIOS_API const char *maco_cuda_route(const maco_cuda *c, uint32_t group);

/* ---- traces ---- */
HELIOS_API void maco_trace_free(maco_trace *t); /* NULL is fine */
/* Chrome's trace format, for Perfetto; pid is `rank`. */
HELIOS_API int maco_trace_write(const maco_trace *t, int rank, const char *path);

/* Overlap of compute and communication, computed from the trace's intervals alone. */
typedef struct maco_overlap {
    size_t size;         /* MACO_OVERLAP_INIT */
    uint64_t total_ns;   /* first start to last end */
    uint64_t compute_ns; /* union of compute intervals */
    uint64_t comm_ns;    /* union of communication */
    uint64_t both_ns;    /* their intersection */
    uint64_t busy_ns;    /* sum over workers of compute */
    uint64_t launch_ns;  /* longest delay between the end of a comm task's last parent and its start
                            while the link is free */
    uint32_t tasks, comm_before_producer; /* the second has to be 0 */
} maco_overlap;

#define MACO_OVERLAP_INIT .size = sizeof(maco_overlap)

HELIOS_API int maco_trace_overlap(const maco_trace *t, maco_overlap *out);

/* A demo of SM scheduling that goes through the real queues. Worker w owns data[w * (n / workers)
 * ...); the last worker also takes the remainder. In each round every worker computes x = fma(x,
 * 1.5, 0.1) on its part, and a barrier follows. `order` receives worker * 1000 + round as they
 * complete, rounds x workers entries. Up to `threads` threads share a worker's part: no more than
 * there are processors per worker, or elements in its part. */
HELIOS_API int maco_demo(float *data, uint64_t n, int rounds, int workers, int threads, int policy,
                         int32_t *order);

#ifdef __cplusplus
}
#endif

#endif
