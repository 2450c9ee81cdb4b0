/* hybridps.h - C ABI of HybridPS: training data in chunks that move between host and device, and
 * the optimizer's kernels.
 *
 * Structs that begin with `size` may grow, as helios.h explains; each has an _INIT macro.
 *
 * Owns:    a hybridps owns its device, its chunks and the addresses of both until hybridps_close.
 *          The kernels own nothing.
 * Threads: any function may be called from any thread. A kernel splits its work over `nthreads`
 *          threads and returns when all have finished; the results do not depend on their number.
 *          Only the process that opened a hybridps may use it: calls in a forked child fail.
 * Errors:  0, or a negative HELIOS_E... code of helios.h; helios_last_error() says why. A failed
 *          call changes no content, no state and no pin (chunks may have moved).
 * Units:   bytes, except that the kernels count elements. Every array is contiguous.
 * Limits:  arrays may overlap only where the description says so.
 */
#ifndef HELIOS_HYBRIDPS_H
#define HELIOS_HYBRIDPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef HELIOS_API
#define HELIOS_API __attribute__((visibility("default")))
#endif

/* Adam's order of rounding: that of torch 2 (default) or of torch 1.13. Also set by
 * HYBRIDPS_ADAM_ROUNDING=torch1 in the environment. */
enum { HYBRIDPS_ROUNDING_TORCH2 = 0, HYBRIDPS_ROUNDING_TORCH1 = 1 };

HELIOS_API int hybridps_adam_set_rounding(int rounding);
HELIOS_API int hybridps_adam_rounding(void);

/* One step of torch.optim.Adam (adamw 0: weight decay is added to the gradient) or AdamW on n
 * float32 elements, bit-identical to that version's single-tensor and foreach code on a CPU with
 * FMA (verified against 1.13.0 and 2.6.0). step counts from 1. nthreads 0 = one per CPU. */
HELIOS_API int hybridps_adam_step(float *p, const float *g, float *m, float *v, size_t n, long step,
                                  double lr, double b1, double b2, double eps, double wd, int adamw,
                                  int nthreads);

enum { HYBRIDPS_F32 = 0, HYBRIDPS_F16 = 1, HYBRIDPS_BF16 = 2 };

/* The same step in one pass for mixed precision: it reads the gradient in its own type, multiplies
 * it by grad_scale (1 / loss scale, times the clipping factor), and also writes the new parameters
 * in a second type. */
struct hybridps_adam {
    size_t size;      /* HYBRIDPS_ADAM_INIT */
    float *p, *m, *v; /* n elements each */
    const void *g;    /* n elements of grad_type */
    int grad_type;    /* HYBRIDPS_F32, ... */
    void *p16;        /* NULL, or n elements of p16_type; may be `g` if both have the same type */
    int p16_type;     /* HYBRIDPS_F16 or HYBRIDPS_BF16 */
    size_t n;
    long step; /* from 1 */
    double lr, b1, b2, eps, wd;
    double grad_scale; /* 1 = unscaled */
    int adamw;
    int nthreads; /* 0 = one per CPU */
};

#define HYBRIDPS_ADAM_INIT .size = sizeof(struct hybridps_adam)

HELIOS_API int hybridps_adam_run(const struct hybridps_adam *step);

/* Computes the sum of the squares of scale * g and whether all elements are finite (no infinity, no
 * NaN), reading g once. The sum is accumulated in float64 in a fixed order. */
HELIOS_API int hybridps_grad_norm(const void *g, int grad_type, size_t n, double scale,
                                  int nthreads, double *sum_of_squares, int *finite);

/* Copies a gradient to its place in memory. That place has dropped out of all caches since the last
 * step, which makes this a quarter faster than memcpy there. The ranges must not overlap. */
HELIOS_API void hybridps_grad_put(void *to, const void *g, size_t bytes);

/* ---- tensors in chunks ----
 *
 *     hybridps_open, hybridps_add..., hybridps_layout
 *     access on the host with write, fill in the values, release          once per tensor
 *     each iteration: hybridps_iteration
 *         each moment: hybridps_moment; access, compute, release
 *
 * The chunk is the unit that moves. In mode "move" it is in one place at a time. In mode "copy" a
 * chunk that was only read on the device keeps its host copy, so it can leave the device without a
 * transfer. When the host is full too, the chunks that will be needed last are spilled. They come
 * back when accessed; an access needs host memory for everything that it brings back, at once. A
 * chunk has one address on the host and one on the device for its whole life. An address is valid
 * between access and release; using it where the chunk is not present faults.
 *
 * The manager's table may ask its processes for memory. At hybridps_iteration, hybridps_moment and
 * hybridps_access, chunks that are not in use then leave the device for the host, and the host for
 * the place of `spill`. No call fails and no content changes because of it. */
typedef struct hybridps hybridps;

typedef struct hybridps_options {
    size_t size;        /* HYBRIDPS_OPTIONS_INIT */
    const char *device; /* "emu:256MiB", "cuda:0" */
    const char *policy; /* which chunk is evicted: NULL = "opt"; "fifo", "lru", "heat", "random" */
    const char *mode;   /* NULL = "copy"; "move" */
    uint64_t chunk_bytes; /* 0 = each layout picks the size that wastes least, up to 64 MiB and 1/16
                             of the device */
    uint64_t host_bytes;  /* limit of host memory; 0 = none */
    const char *manager;  /* name of the node's existing table; NULL = $HYBRIDPS_MANAGER, which
                             Agents set, if it can be joined; "none". "cuda:N" is device N of the
                             table; of an Agent's, the Nth number in $HYBRIDPS_DEVICES, if set */
    int prefetch;         /* number of chunks fetched ahead; 0 = none, -1 = 2 */
    uint64_t seed;        /* of "random" */
    /* When the host is full (host_bytes, or the manager's table), chunks that are not in use are
     * spilled to the pool behind this Unix socket: the L3 pool or the node's store. NULL:
     * $HELIOS_L3_SOCKET, else $HELIOS_STORE_SOCKET, which Agents set; "none": no spilling. */
    const char *spill;
    int plan_ahead; /* number of iterations that a plan of "opt" covers: 3 to 1000; 0 = 6 */
    /* Of "heat": alpha * uses in the last `window` moments / window + beta * exp(-moments since the
     * last / tau). If all four are 0, the defaults 0.7, 0.3, 300, 60 apply; otherwise they are used
     * as given, and a weight of 0 is 0. */
    double heat_alpha, heat_beta, heat_window, heat_tau;
    int spill_pause_ms; /* pause before an unreachable pool is tried again: 1 to 60000; 0 = 20 */
} hybridps_options;

#define HYBRIDPS_OPTIONS_INIT .size = sizeof(hybridps_options)

enum { HYBRIDPS_HOST = 0, HYBRIDPS_DEVICE = 1 };

/* Kinds of tensors; tensors of different kinds never share a chunk. */
enum {
    HYBRIDPS_PARAM = 0,
    HYBRIDPS_GRAD = 1,
    HYBRIDPS_P32 = 2,
    HYBRIDPS_MOMENTUM = 3,
    HYBRIDPS_VARIANCE = 4,
    HYBRIDPS_OTHER = 5,
    HYBRIDPS_KINDS = 6
};

/* States of a tensor. A FREE tensor has no content: the next access gets fresh memory with
 * undefined content and costs no transfer. A tensor is in COMPUTE from access to release. */
enum {
    HYBRIDPS_FREE = 0,
    HYBRIDPS_HOLD = 1,
    HYBRIDPS_COMPUTE = 2,
    HYBRIDPS_AFTER_FWD = 3,
    HYBRIDPS_AFTER_BWD = 4
};

HELIOS_API int hybridps_open(const hybridps_options *options, hybridps **out);
/* NULL is fine. No tensor may be used after this. */
HELIOS_API void hybridps_close(hybridps *h);

/* Call before the layout. Tensors of a kind are laid out in chunks in the order in which they were
 * added, each at a multiple of 64 bytes. The name is for messages; it need not be unique. */
HELIOS_API int hybridps_add(hybridps *h, const char *name, int kind, uint64_t bytes,
                            uint32_t *tensor);
/* Gives the tensors added since the last layout their chunks and addresses. */
HELIOS_API int hybridps_layout(hybridps *h);

typedef struct hybridps_use {
    uint32_t tensor;
    int where;     /* HYBRIDPS_HOST, HYBRIDPS_DEVICE */
    int write;     /* the content will change; the copy in the other place is invalid from now on */
    void *address; /* out */
} hybridps_use;

/* All or nothing: brings n tensors (each may be named several times) to the requested places, where
 * they stay until released as often as they were accessed. A tensor is in COMPUTE in one place at a
 * time. HELIOS_ENOSPC: pinned chunks leave too little room. HELIOS_EBUSY: the tensor or its chunk
 * is pinned in the other place. */
HELIOS_API int hybridps_access(hybridps *h, hybridps_use *uses, size_t n);
/* All or nothing. `state` is HOLD, AFTER_FWD, AFTER_BWD or FREE and takes effect with the last
 * release of a tensor. HELIOS_EINVAL when a tensor is not in COMPUTE. Once all tensors of a chunk
 * are FREE, its content is discarded. */
HELIOS_API int hybridps_release(hybridps *h, const uint32_t *tensors, size_t n, int state);
/* Discards the tensors' content wherever it is, without a transfer, and makes them FREE.
 * HELIOS_EBUSY when one of them is in COMPUTE. Tensors that are already FREE stay so. */
HELIOS_API int hybridps_drop(hybridps *h, const uint32_t *tensors, size_t n);
/* The tensor's address in that place; it never changes after the layout. */
HELIOS_API int hybridps_address(hybridps *h, uint32_t tensor, int where, void **address);

/* Ends the running iteration and begins one of the given phase ("train", "eval"); NULL only ends
 * it. The first iteration of a phase is recorded, and policy "opt" plans the following ones from
 * that record. An iteration that deviates from it falls back to "lru" and is recorded again. */
HELIOS_API int hybridps_iteration(hybridps *h, const char *phase);
/* Begins a new moment: from now on `other_bytes` of the device are used outside the chunks. Chunks
 * are evicted at once if that is needed. An access after a release also begins a new moment.
 * HELIOS_ENOSPC: the pinned chunks do not fit beside `other_bytes`. */
HELIOS_API int hybridps_moment(hybridps *h, const char *stage, const char *op,
                               uint64_t other_bytes);

/* From now on, using a tensor's address in a place where its chunk is absent no longer fails. The
 * access finds the tensor's content there, as a copy in host memory that counts towards neither the
 * device's nor the host's limit. What is written becomes the tensor's content when its chunk is
 * accessed next, at the latest with hybridps_settle. A write to the host address while the device
 * also has the content invalidates the device's copy, as an access with `write` does. Such an
 * access moves no chunk and is not recorded. Any thread may fault, except inside a call of this
 * library. After hybridps_close these addresses fault as before. This installs a SIGSEGV handler;
 * other faults go to the handler that was there before. HELIOS_EUNSUPPORTED on a device whose
 * memory the CPU can't reach (CUDA). */
HELIOS_API int hybridps_serve_faults(hybridps *h);
/* A forked child reads what was there at the fork. What it can't read (content that was spilled
 * below the host, is shared by ranks, or did not exist) is shown as bytes that are NaN in every
 * float type. Then `text` (of `size` bytes) says which tensor and why, and later(tell, arg) is
 * called on the thread that faulted. `later` only arranges for tell(arg) to be called, as
 * Py_AddPendingCall does, and returns 0. Without `later`, or if it fails, a warning is printed.
 * Each chunk is reported once, and again after hybridps_settle, which in a child does nothing else.
 * All arguments must stay valid as long as the client and its children live. */
HELIOS_API int hybridps_on_unreadable(hybridps *h, int (*later)(int (*tell)(void *), void *),
                                      int (*tell)(void *arg), void *arg, char *text, size_t size);
/* Makes what was written that way the tensors' content and frees the copies. HELIOS_ESTALE, once,
 * when a tensor was used that no longer had content (it was released as FREE, or dropped): it was
 * shown as bytes that are NaN in every float type. */
HELIOS_API int hybridps_settle(hybridps *h);

/* Call before hybridps_close, to keep the memory of a tensor's chunk in one place for users that
 * still hold its address; the caller frees it with hybridps_kept_free. Ask once per chunk and place
 * (see hybridps_tensor_info). The content ends up on the host even if that exceeds the host's
 * limit; what is kept of the device is a copy. After this only further hybridps_keep calls and
 * hybridps_close are allowed on the client. HELIOS_EUNSUPPORTED without hybridps_serve_faults. */
typedef struct hybridps_kept {
    size_t size; /* HYBRIDPS_KEPT_INIT */
    void *address;
    uint64_t bytes;
} hybridps_kept;

#define HYBRIDPS_KEPT_INIT .size = sizeof(hybridps_kept)

HELIOS_API int hybridps_keep(hybridps *h, uint32_t tensor, int where, hybridps_kept *out);
HELIOS_API void hybridps_kept_free(void *address, uint64_t bytes);

/* Lets the ranks of one host share a single copy of chunks. Chunks of these kinds (bits, 1 <<
 * HYBRIDPS_PARAM; 0: none) that are laid out from now on take their host memory from `file`, which
 * must be long enough for all of them. All ranks add the same tensors in the same order, with the
 * same options. A rank's write is visible to that rank alone until it publishes the tensor; the
 * other ranks then renew theirs to see it. The ranks have to agree among themselves on who
 * publishes what, and at a time when no rank reads it. Tensors that follow each other in a chunk
 * are named in that order; each must be in COMPUTE on the host. A forked child can't read shared
 * chunks. */
HELIOS_API int hybridps_share_host(hybridps *h, int file, unsigned kinds);
HELIOS_API int hybridps_publish(hybridps *h, const uint32_t *tensors, size_t n);
HELIOS_API int hybridps_renew(hybridps *h, const uint32_t *tensors, size_t n);
/* Frees the file's memory of the tensor's whole chunk until it is published again. No rank may read
 * it any more, and the chunk must not be on this rank's host. */
HELIOS_API int hybridps_withdraw(hybridps *h, uint32_t tensor);

typedef struct hybridps_traffic {
    uint64_t h2d, d2h;         /* bytes */
    uint64_t loads, evictions; /* copies to the device; chunks that left it */
    uint64_t drops;            /* evictions without a copy */
    uint64_t stalls, stall_ns; /* accesses and moments that had to wait for copies */
} hybridps_traffic;

typedef struct hybridps_stats_t {
    size_t size;                /* HYBRIDPS_STATS_INIT */
    uint64_t capacity, granule; /* of the device */
    uint64_t avail;             /* available to chunks in this moment */
    uint64_t device, device_peak, host, host_peak,
        pinned;               /* bytes of chunks; pinned on the device */
    uint64_t peak_over_avail; /* largest excess over avail in any moment; 0 = never */
    uint64_t device_by_kind[HYBRIDPS_KINDS], host_by_kind[HYBRIDPS_KINDS];
    uint64_t tensors, chunks;
    uint64_t iterations, moments, deviations; /* begun; in this iteration; from the record */
    int planned;                              /* 1: this iteration follows a plan */
    hybridps_traffic total, iteration, last;  /* in all; this iteration; the one before */
    uint64_t spilled, spilled_peak;           /* bytes of chunks below the host */
    uint64_t spill_out, spill_in;             /* bytes written there, and read back */
    /* limit of host memory: host_bytes, or the one of the manager's table; 0 = none */
    uint64_t host_limit;
    uint64_t faults;      /* served accesses outside hybridps_access (see hybridps_serve_faults) */
    uint64_t fault_bytes; /* bytes copied for them */
    /* bytes of chunks that left the device or the host because the node's table asks for memory */
    uint64_t given_back_bytes;
} hybridps_stats_t;

#define HYBRIDPS_STATS_INIT .size = sizeof(hybridps_stats_t)

HELIOS_API int hybridps_stats(hybridps *h, hybridps_stats_t *out);

typedef struct hybridps_tensor_info {
    size_t size; /* HYBRIDPS_TENSOR_INFO_INIT */
    uint32_t chunk;
    uint64_t offset, bytes; /* in the chunk */
    int kind, state;
    int on_host, on_device; /* where its content is; both = two copies; neither = spilled */
    uint64_t chunk_bytes;   /* size of its chunk, which moves as a whole */
} hybridps_tensor_info;

#define HYBRIDPS_TENSOR_INFO_INIT .size = sizeof(hybridps_tensor_info)

HELIOS_API int hybridps_tensor(hybridps *h, uint32_t tensor, hybridps_tensor_info *out);

/* The recorded iteration of a phase (NULL: the last one recorded) in the format that `helios mem
 * replay` reads. HELIOS_ENOENT until one was recorded completely. Release with
 * hybridps_free_text. */
HELIOS_API int hybridps_trace(hybridps *h, const char *phase, char **json);
HELIOS_API void hybridps_free_text(char *text);

/* ---- collectives ----
 *
 * A group is the processes that train one model: ranks 0 to world - 1. All of them call the same
 * collectives in the same order, and a process makes one call at a time. Reductions go in rank
 * order, each step rounded to the type as torch does, so every rank gets the same bits, whatever
 * the transport and however an array is cut into calls. Every wait has a deadline, and a dead rank
 * is detected before it. After a failure of another rank (deadline, death, a different call there)
 * the group is lost: each further call fails with HELIOS_EUNAVAIL and says why. A call of no bytes
 * returns without waiting for the others: it is not a barrier, and all ranks must give the same
 * size. Calls after fork() fail.
 */
typedef struct hybridps_group hybridps_group;

/* Types that groups support in addition to HYBRIDPS_F32, _F16 and _BF16. */
enum { HYBRIDPS_F64 = 3, HYBRIDPS_I32 = 4, HYBRIDPS_I64 = 5, HYBRIDPS_U8 = 6 };

/* Integers have no mean; their sums and products wrap around. NaN wins every minimum and
 * maximum. */
enum { HYBRIDPS_SUM = 0, HYBRIDPS_MEAN = 1, HYBRIDPS_MIN = 2, HYBRIDPS_MAX = 3, HYBRIDPS_PROD = 4 };

/* The functions that carry the bytes. They return 0 or a negative HELIOS_E... code; `what` is the
 * caller's name for the call. The first two are required, the others may be NULL. `op` is never
 * HYBRIDPS_MEAN: the group itself divides. `in` and `out` may start at the same byte. */
typedef struct hybridps_transport {
    size_t size; /* HYBRIDPS_TRANSPORT_INIT */
    int rank, world;
    void *arg;
    /* Gathers `bytes` of every rank, one after the other, in `all`. */
    int (*allgather)(void *arg, const char *what, const void *mine, void *all, uint64_t bytes);
    /* `data` becomes that of rank `src`. */
    int (*broadcast)(void *arg, const char *what, void *data, uint64_t bytes, int src);
    /* `data`, n elements of `type`, becomes the sum in the order of ranks. NULL: by allgather. */
    int (*allreduce)(void *arg, const char *what, void *data, uint64_t n, int type);
    /* The text of what failed last, for messages. NULL: none. */
    const char *(*why)(void *arg);
    void (*close)(void *arg);
    /* allreduce with any operation. NULL: by allreduce or allgather. */
    int (*reduce)(void *arg, const char *what, void *data, uint64_t n, int type, int op);
    /* `in` has n elements for each rank; `out`, n elements, becomes the reduction of what all ranks
     * have for this one. NULL: by alltoall. */
    int (*reduce_scatter)(void *arg, const char *what, const void *in, void *out, uint64_t n,
                          int type, int op);
    /* `bytes` from each rank to each. NULL: by allgather. */
    int (*alltoall)(void *arg, const char *what, const void *in, void *out, uint64_t bytes);
    /* Between two ranks; `send` may return before the receiver has everything. NULL:
     * unsupported. */
    int (*send)(void *arg, const char *what, const void *data, uint64_t bytes, int dst, int tag);
    int (*recv)(void *arg, const char *what, void *data, uint64_t bytes, int src, int tag);
    /* From any thread: makes the running call, and each further one, fail soon. NULL: the running
     * call fails at its deadline. */
    void (*cancel)(void *arg);
} hybridps_transport;

#define HYBRIDPS_TRANSPORT_INIT .size = sizeof(hybridps_transport)

/* A group over a transport of the caller's, which is closed with the group. */
HELIOS_API int hybridps_group_over(const hybridps_transport *transport, hybridps_group **out);

typedef struct hybridps_shm_options {
    size_t size;      /* HYBRIDPS_SHM_OPTIONS_INIT */
    const char *name; /* of the group on this node; 1 to 200 characters, no '/' */
    int rank, world;  /* at most 256 */
    int timeout_ms;   /* of joining and of every wait for others; 0 = 300000 */
} hybridps_shm_options;

#define HYBRIDPS_SHM_OPTIONS_INIT .size = sizeof(hybridps_shm_options)

/* The built-in transport: the processes of one node over shared memory. Returns when all have
 * joined; from then on nothing is left in /dev/shm. HELIOS_ECONFLICT: a living process has this
 * rank, or the others gave a different world. */
HELIOS_API int hybridps_group_shm(const hybridps_shm_options *options, hybridps_group **out);

typedef struct hybridps_net_options {
    size_t size;         /* HYBRIDPS_NET_OPTIONS_INIT */
    const char *address; /* "host:port" of rank 0 */
    const char *listen;  /* address of this rank; NULL: rank 0 listens at `address`, the others at
                            any port of the interface that leads to it */
    int rank, world;     /* at most 256 */
    int timeout_ms;      /* of joining and of every wait for others; 0 = 300000 */
} hybridps_net_options;

#define HYBRIDPS_NET_OPTIONS_INIT .size = sizeof(hybridps_net_options)

/* Between hosts, over Helios's own network layer: RDMA where available, else TCP. Returns when all
 * have joined. A rank whose process ended is detected within a second or two. A rank that hangs or
 * whose host is gone is detected at the deadline, or after 30 s in the middle of a message.
 * Identities are not checked and nothing is encrypted: use it only in a network of trusted
 * hosts. */
HELIOS_API int hybridps_group_net(const hybridps_net_options *options, hybridps_group **out);
/* NULL is fine. Ranks that still wait for this one fail, as does a call that another thread is in;
 * no thread may begin a new call. */
HELIOS_API void hybridps_group_close(hybridps_group *g);
HELIOS_API int hybridps_group_rank(const hybridps_group *g);
HELIOS_API int hybridps_group_world(const hybridps_group *g);

/* From any thread: a call that waits for other ranks fails with HELIOS_ECANCELED and the group is
 * lost. This happens at once with the built-in transports, and at the deadline with a transport
 * that has no `cancel`. */
HELIOS_API void hybridps_group_cancel(hybridps_group *g);

/* Reduces in place. `what` (may be NULL) is for messages. */
HELIOS_API int hybridps_group_allreduce(hybridps_group *g, const char *what, void *data, uint64_t n,
                                        int type, int op);
HELIOS_API int hybridps_group_broadcast(hybridps_group *g, const char *what, void *data,
                                        uint64_t bytes, int src);
HELIOS_API int hybridps_group_allgather(hybridps_group *g, const char *what, const void *mine,
                                        void *all, uint64_t bytes);
/* `in` has n elements for each rank, in the order of ranks; `out` receives this rank's n elements,
 * reduced in that order. It may be the start of `in` or this rank's part of it. */
HELIOS_API int hybridps_group_reduce_scatter(hybridps_group *g, const char *what, const void *in,
                                             void *out, uint64_t n, int type, int op);
/* `in` and `out` have `bytes` for each rank; they may be the same buffer. */
HELIOS_API int hybridps_group_alltoall(hybridps_group *g, const char *what, const void *in,
                                       void *out, uint64_t bytes);
/* Between two ranks, independently of the others; tag and bytes must be the same on both sides.
 * `send` may block until the receiver takes the data, so of two ranks that exchange data one has to
 * receive first. HELIOS_EUNSUPPORTED: the transport has no send and recv. */
HELIOS_API int hybridps_group_send(hybridps_group *g, const char *what, const void *data,
                                   uint64_t bytes, int dst, int tag);
HELIOS_API int hybridps_group_recv(hybridps_group *g, const char *what, void *data, uint64_t bytes,
                                   int src, int tag);

#define HYBRIDPS_NEW UINT32_MAX

/* The same with a managed tensor as the result of each rank's `local`. *tensor is HYBRIDPS_NEW, or
 * a tensor of the same size that an earlier call made and that is not in use. After a failure a new
 * tensor remains, without content. g NULL: a world of one rank. */
HELIOS_API int hybridps_allreduce(hybridps *h, hybridps_group *g, const char *name,
                                  const void *local, uint64_t n, int type, int op,
                                  uint32_t *tensor);
HELIOS_API int hybridps_broadcast(hybridps *h, hybridps_group *g, const char *name,
                                  const void *local, uint64_t bytes, int src, uint32_t *tensor);

/* ---- the manager: one table of the node's memory for all its processes ----
 *
 * A table has a name and lies in POSIX shared memory. Device -1 is the host, the others count from
 * 0. What a process has added is in its row, and is given back when the process closes the manager
 * or dies. The bytes in use and reserved on a device never exceed its capacity. A forked child has
 * to open the manager itself; using its parent's fails with HELIOS_EPERM. Every wait for another
 * process ends with HELIOS_ETIMEDOUT at the latest. */
typedef struct hybridps_manager hybridps_manager;

#define HYBRIDPS_MANAGER_HOST (-1)

typedef struct hybridps_manager_options {
    size_t size;                  /* HYBRIDPS_MANAGER_OPTIONS_INIT */
    const char *name;             /* 1 to 254 characters, no '/' */
    uint64_t host_bytes;          /* capacity of the host; 0 = join an existing table */
    const uint64_t *device_bytes; /* of each device */
    uint32_t devices;             /* at most 32 */
    int lock_ms;                  /* longest wait for a lock; 0 = 5000 */
    int reap_ms;                  /* interval between searches for dead processes; 0 = 1000 */
} hybridps_manager_options;

#define HYBRIDPS_MANAGER_OPTIONS_INIT .size = sizeof(hybridps_manager_options)

/* Creates the table, or joins it: HELIOS_ECONFLICT when it has other capacities, HELIOS_ENOENT when
 * no process has given any. */
HELIOS_API int hybridps_manager_open(const hybridps_manager_options *options,
                                     hybridps_manager **out);
/* NULL is fine. The last process to close removes the table. */
HELIOS_API void hybridps_manager_close(hybridps_manager *m);

/* Finds a device with room for `size`, trying the host, then `refer_device`, then the others, and
 * reserves the room with a ticket. HELIOS_ENOSPC lists what each device has when none has room;
 * HELIOS_EBUSY when the chosen device already has 256 tickets outstanding. */
HELIOS_API int hybridps_manager_schedule(hybridps_manager *m, uint64_t size, int refer_device,
                                         int *device, uint64_t *ticket);
/* Gives the ticket back. */
HELIOS_API int hybridps_manager_cancel(hybridps_manager *m, uint64_t ticket);
/* Counts `size` more bytes as used by this process. With a ticket these are the bytes it reserved:
 * device and size must match it. Without one (0), HELIOS_ENOSPC when there is no room. */
HELIOS_API int hybridps_manager_add(hybridps_manager *m, int device, uint64_t size,
                                    uint64_t ticket);
/* HELIOS_EINVAL, and nothing changes, when this process uses less than that there. */
HELIOS_API int hybridps_manager_remove(hybridps_manager *m, int device, uint64_t size);

typedef struct hybridps_manager_info_t {
    size_t size;                       /* HYBRIDPS_MANAGER_INFO_INIT */
    uint64_t capacity, used, reserved; /* of all processes */
    uint64_t mine;                     /* in use by this process */
    uint32_t devices, processes;       /* of the table */
} hybridps_manager_info_t;

#define HYBRIDPS_MANAGER_INFO_INIT .size = sizeof(hybridps_manager_info_t)

HELIOS_API int hybridps_manager_info(hybridps_manager *m, int device, hybridps_manager_info_t *out);

#ifdef __cplusplus
}
#endif
#endif
