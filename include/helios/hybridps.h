/* hybridps.h - C ABI of HybridPS: training data in chunks that move between host and device, and
 * the optimizer's kernels.
 *
 * Structs that begin with `size` may grow, as helios.h explains; each has an _INIT macro.
 *
 * Owns:    a hybridps owns its device, its chunks and the addresses of both; hybridps_close ends
 *          them. The kernels own nothing.
 * Threads: any function from any thread. A step of a kernel splits its work over `nthreads` threads
 *          and returns when all have ended; results do not depend on how many they are. After
 *          fork() the child is refused: only the process that opened it may use a hybridps.
 * Errors:  0, or a negative HELIOS_E... code of helios.h; helios_last_error() says why. Nothing was
 *          changed after a failure: no content, no state, no pin (chunks may have moved).
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

/* The order in which Adam rounds: that of torch 2 (default), or of torch 1.13. Also set by
 * HYBRIDPS_ADAM_ROUNDING=torch1 in the environment. */
enum { HYBRIDPS_ROUNDING_TORCH2 = 0, HYBRIDPS_ROUNDING_TORCH1 = 1 };

HELIOS_API int hybridps_adam_set_rounding(int rounding);
HELIOS_API int hybridps_adam_rounding(void);

/* One step of torch.optim.Adam (adamw 0: weight decay is added to the gradient) or AdamW on n
 * float32 elements, bit-equal to that version's single-tensor and foreach code on a CPU with FMA:
 * seen on 1.13.0 and 2.6.0. step counts from 1. nthreads 0 = one per CPU. */
HELIOS_API int hybridps_adam_step(float *p, const float *g, float *m, float *v, size_t n, long step,
                                  double lr, double b1, double b2, double eps, double wd, int adamw,
                                  int nthreads);

enum { HYBRIDPS_F32 = 0, HYBRIDPS_F16 = 1, HYBRIDPS_BF16 = 2 };

/* The same step as one pass for mixed precision: the gradient is read in its own type and
 * multiplied by grad_scale (1 / loss scale, times the clipping factor), and the new parameters are
 * also written in another type. */
struct hybridps_adam {
    size_t size;      /* HYBRIDPS_ADAM_INIT */
    float *p, *m, *v; /* n elements each */
    const void *g;    /* n elements of grad_type */
    int grad_type;    /* HYBRIDPS_F32, ... */
    void *p16;        /* NULL, or n elements of p16_type; may be `g` where both types are alike */
    int p16_type;     /* HYBRIDPS_F16 or HYBRIDPS_BF16 */
    size_t n;
    long step; /* from 1 */
    double lr, b1, b2, eps, wd;
    double grad_scale; /* 1 = as it is */
    int adamw;
    int nthreads; /* 0 = one per CPU */
};

#define HYBRIDPS_ADAM_INIT .size = sizeof(struct hybridps_adam)

HELIOS_API int hybridps_adam_run(const struct hybridps_adam *step);

/* Sum of the squares of scale * g, and whether an element is infinite or no number, in one read.
 * The sum is taken in float64 in a fixed order. */
HELIOS_API int hybridps_grad_norm(const void *g, int grad_type, size_t n, double scale,
                                  int nthreads, double *sum_of_squares, int *finite);

/* A gradient to its place, which has left all caches since the last step: a quarter faster there
 * than memcpy. The two don't overlap. */
HELIOS_API void hybridps_grad_put(void *to, const void *g, size_t bytes);

/* ---- tensors in chunks ----
 *
 *     hybridps_open, hybridps_add..., hybridps_layout
 *     access on the host with write, fill in the values, release          once per tensor
 *     each iteration: hybridps_iteration
 *         each moment: hybridps_moment; access, compute, release
 *
 * A chunk is what moves. In mode "move" it is in one place; in mode "copy" a chunk that was only
 * read on the device still has its host copy, and leaves the device without a transfer. Where the
 * host is full too, chunks that will be needed last are spilled; they come back when accessed, and
 * an access needs host memory for all it brings back, at once. A chunk has one address on the host
 * and one on the device for all its life. An address is good between access and release; where the
 * chunk is not, using it faults. */
typedef struct hybridps hybridps;

typedef struct hybridps_options {
    size_t size;          /* HYBRIDPS_OPTIONS_INIT */
    const char *device;   /* "emu:256MiB", "cuda:0" */
    const char *policy;   /* who leaves: NULL = "opt"; "fifo", "lru", "heat", "random" */
    const char *mode;     /* NULL = "copy"; "move" */
    uint64_t chunk_bytes; /* 0 = by each layout: what wastes least, to 64 MiB and 1/16 device */
    uint64_t host_bytes;  /* limit of host memory; 0 = none */
    const char *manager;  /* the node's table, which somebody made; NULL = $HYBRIDPS_MANAGER, which
                             Agents set, if it can be joined; "none" */
    int prefetch;         /* chunks fetched ahead; 0 = none, -1 = 2 */
    uint64_t seed;        /* of "random" */
    /* Where the host is full (host_bytes, or the manager's table), chunks that are not in use are
     * put into the pool that this Unix socket hands out: L3's, or the node's store's. NULL: that of
     * $HELIOS_L3_SOCKET, else $HELIOS_STORE_SOCKET, which Agents set; "none": nowhere. */
    const char *spill;
    int plan_ahead; /* iterations that a plan of "opt" is made of: 3 to 1000; 0 = 6 */
    /* Of "heat": alpha * uses in the last `window` moments / window + beta * exp(-moments since the
     * last / tau). All four 0: 0.7, 0.3, 300, 60; else they are taken as they are, and a weight of
     * 0 is 0. */
    double heat_alpha, heat_beta, heat_window, heat_tau;
    int spill_pause_ms; /* until a pool that is away is asked again: 1 to 60000; 0 = 20 */
} hybridps_options;

#define HYBRIDPS_OPTIONS_INIT .size = sizeof(hybridps_options)

enum { HYBRIDPS_HOST = 0, HYBRIDPS_DEVICE = 1 };

/* Kinds of tensors; each has chunks of its own. */
enum {
    HYBRIDPS_PARAM = 0,
    HYBRIDPS_GRAD = 1,
    HYBRIDPS_P32 = 2,
    HYBRIDPS_MOMENTUM = 3,
    HYBRIDPS_VARIANCE = 4,
    HYBRIDPS_OTHER = 5,
    HYBRIDPS_KINDS = 6
};

/* States of a tensor. FREE has no content: the next access finds new memory, whose content is
 * undefined, and costs no transfer. COMPUTE is from access to release. */
enum {
    HYBRIDPS_FREE = 0,
    HYBRIDPS_HOLD = 1,
    HYBRIDPS_COMPUTE = 2,
    HYBRIDPS_AFTER_FWD = 3,
    HYBRIDPS_AFTER_BWD = 4
};

HELIOS_API int hybridps_open(const hybridps_options *options, hybridps **out);
/* NULL is fine. No tensor may be used any more. */
HELIOS_API void hybridps_close(hybridps *h);

/* Before the layout. Tensors of a kind lie in chunks in the order they were added, each at a
 * multiple of 64 bytes. The name is for messages; it need not be unique. */
HELIOS_API int hybridps_add(hybridps *h, const char *name, int kind, uint64_t bytes,
                            uint32_t *tensor);
/* Gives the tensors added since the last layout their chunks and addresses. */
HELIOS_API int hybridps_layout(hybridps *h);

typedef struct hybridps_use {
    uint32_t tensor;
    int where;     /* HYBRIDPS_HOST, HYBRIDPS_DEVICE */
    int write;     /* content will change; the other place's copy is void from now on */
    void *address; /* out */
} hybridps_use;

/* All or nothing: n tensors (any number of times each) are where they are asked for and stay until
 * released as often as accessed. A tensor is in COMPUTE in one place at a time. HELIOS_ENOSPC: what
 * is pinned leaves too little room. HELIOS_EBUSY: it (or its chunk) is pinned in the other place.
 */
HELIOS_API int hybridps_access(hybridps *h, hybridps_use *uses, size_t n);
/* All or nothing. `state` is HOLD, AFTER_FWD, AFTER_BWD or FREE, taken with the last release of a
 * tensor. HELIOS_EINVAL when it is not in COMPUTE. FREE of all tensors of a chunk ends its content.
 */
HELIOS_API int hybridps_release(hybridps *h, const uint32_t *tensors, size_t n, int state);
/* Their content ends wherever it is, without a transfer: FREE. HELIOS_EBUSY when one of them is in
 * COMPUTE; those that are FREE stay so. */
HELIOS_API int hybridps_drop(hybridps *h, const uint32_t *tensors, size_t n);
/* The address it has there for ever, once laid out. */
HELIOS_API int hybridps_address(hybridps *h, uint32_t tensor, int where, void **address);

/* Ends the running iteration and begins one of that phase ("train", "eval"); NULL only ends. The
 * first of a phase is recorded, and policy "opt" plans the further ones by it; one that goes
 * another way falls back to "lru" and is recorded anew. */
HELIOS_API int hybridps_iteration(hybridps *h, const char *phase);
/* A new moment: `other_bytes` of the device are used by others from now on. Chunks leave at once
 * where that is needed. An access after a release begins another moment by itself.
 * HELIOS_ENOSPC: what is pinned does not fit beside the others. */
HELIOS_API int hybridps_moment(hybridps *h, const char *stage, const char *op,
                               uint64_t other_bytes);

/* From now on, using the address of a tensor where its chunk is not does not fault: the tensor's
 * content is found there, as a copy in host memory beside the device's and the host's limits. What
 * is written becomes the tensor's content when its chunk is accessed next, at the latest with
 * hybridps_settle. A write to the host's address where the device has the content too makes the
 * device's void, as an access that writes does. Nothing moves for it, and it is in no record. Any
 * thread may fault, but none that is in a call of this library. After hybridps_close addresses
 * fault as before. It handles SIGSEGV; other faults go to whoever handled it before.
 * HELIOS_EUNSUPPORTED on a device whose memory the CPU does not reach (CUDA). */
HELIOS_API int hybridps_serve_faults(hybridps *h);
/* A forked child reads what was there at the fork. What it can't read (what lay below the host, is
 * shared by ranks, or had no content) is shown as bytes of which no float is a number. Then `text`
 * (of `size` bytes) says which and why, and later(tell, arg) is called on the thread that faulted:
 * it only arranges for tell(arg) to be called, as Py_AddPendingCall does, and returns 0. Without
 * it, or where it fails, there is a warning. Each chunk is told of once, and again after
 * hybridps_settle, which does only this in a child. All of it stays valid as long as the client and
 * its children. */
HELIOS_API int hybridps_on_unreadable(hybridps *h, int (*later)(int (*tell)(void *), void *),
                                      int (*tell)(void *arg), void *arg, char *text, size_t size);
/* What was written in that way becomes content; the copies end. HELIOS_ESTALE, once, when a tensor
 * was used that had no content any more (it was released as FREE, or dropped): it was shown as
 * bytes of which no float is a number. */
HELIOS_API int hybridps_settle(hybridps *h);

/* Before hybridps_close: the memory of a tensor's chunk in one place stays, for those who still use
 * its address; the caller gives it back by hybridps_kept_free. Ask once for a chunk and a place
 * (see hybridps_tensor_info). Content ends up on the host, also where it had no room under its
 * limit; what is kept of the device is a copy. From now on nothing can be done with the client but
 * this and hybridps_close. HELIOS_EUNSUPPORTED without hybridps_serve_faults. */
typedef struct hybridps_kept {
    size_t size; /* HYBRIDPS_KEPT_INIT */
    void *address;
    uint64_t bytes;
} hybridps_kept;

#define HYBRIDPS_KEPT_INIT .size = sizeof(hybridps_kept)

HELIOS_API int hybridps_keep(hybridps *h, uint32_t tensor, int where, hybridps_kept *out);
HELIOS_API void hybridps_kept_free(void *address, uint64_t bytes);

/* Ranks of one host hold chunks in one copy: host memory of the chunks that layouts make from now
 * on, of these kinds (bits, 1 << HYBRIDPS_PARAM; 0: of none), is `file`'s, which is long enough for
 * all. All ranks add the same tensors in the same order, with the same options. A write is seen by
 * this rank alone, until it publishes the tensor; the others renew theirs to see it. The ranks
 * agree on who publishes what, and when nobody reads it. Tensors that follow each other in a chunk
 * are named in that order; each is in COMPUTE on the host. A forked child can't read what is
 * shared. */
HELIOS_API int hybridps_share_host(hybridps *h, int file, unsigned kinds);
HELIOS_API int hybridps_publish(hybridps *h, const uint32_t *tensors, size_t n);
HELIOS_API int hybridps_renew(hybridps *h, const uint32_t *tensors, size_t n);
/* What the file has of a tensor's whole chunk ends, where no rank reads it any more: its memory is
 * free until it is published again. The chunk is not on this rank's host. */
HELIOS_API int hybridps_withdraw(hybridps *h, uint32_t tensor);

typedef struct hybridps_traffic {
    uint64_t h2d, d2h;         /* bytes */
    uint64_t loads, evictions; /* copies to the device; chunks that left it */
    uint64_t drops;            /* of these, without a copy */
    uint64_t stalls, stall_ns; /* accesses and moments that waited for copies */
} hybridps_traffic;

typedef struct hybridps_stats_t {
    size_t size;                /* HYBRIDPS_STATS_INIT */
    uint64_t capacity, granule; /* of the device */
    uint64_t avail;             /* to chunks in this moment */
    uint64_t device, device_peak, host, host_peak,
        pinned;               /* bytes of chunks; pinned on the device */
    uint64_t peak_over_avail; /* most bytes above avail in any moment; 0 = never */
    uint64_t device_by_kind[HYBRIDPS_KINDS], host_by_kind[HYBRIDPS_KINDS];
    uint64_t tensors, chunks;
    uint64_t iterations, moments, deviations; /* begun; in this iteration; from the record */
    int planned;                              /* this iteration follows a plan */
    hybridps_traffic total, iteration, last;  /* all; the running iteration; the one before */
    uint64_t spilled, spilled_peak;           /* bytes of chunks below the host */
    uint64_t spill_out, spill_in;             /* bytes that went there, and came back */
    uint64_t host_limit;  /* of host memory: host_bytes, or the manager's table's; 0 = none */
    uint64_t faults;      /* accesses outside of hybridps_access that were served */
    uint64_t fault_bytes; /* bytes copied for them */
} hybridps_stats_t;

#define HYBRIDPS_STATS_INIT .size = sizeof(hybridps_stats_t)

HELIOS_API int hybridps_stats(hybridps *h, hybridps_stats_t *out);

typedef struct hybridps_tensor_info {
    size_t size; /* HYBRIDPS_TENSOR_INFO_INIT */
    uint32_t chunk;
    uint64_t offset, bytes; /* in the chunk */
    int kind, state;
    int on_host, on_device; /* where its content is; both = copies; neither = spilled */
    uint64_t chunk_bytes;   /* of its chunk, which moves as a whole */
} hybridps_tensor_info;

#define HYBRIDPS_TENSOR_INFO_INIT .size = sizeof(hybridps_tensor_info)

HELIOS_API int hybridps_tensor(hybridps *h, uint32_t tensor, hybridps_tensor_info *out);

/* The recorded iteration of a phase (NULL: the last one recorded), as `helios mem replay` reads it.
 * HELIOS_ENOENT before one was recorded to its end. Release with hybridps_free_text. */
HELIOS_API int hybridps_trace(hybridps *h, const char *phase, char **json);
HELIOS_API void hybridps_free_text(char *text);

/* ---- collectives ----
 *
 * A group is the processes that train one model: ranks 0 to world - 1. All of them call the same
 * collectives in the same order, one at a time in a process. Reductions go in the order of ranks,
 * each step rounded to the type as torch does, so that every rank has the same bits whatever
 * carries them and however an array is cut into calls. Every wait has a deadline, and a rank that
 * died is found out before it. After a failure of others (deadline, death, another call there) the
 * group is lost: each further call fails with HELIOS_EUNAVAIL and says why. Refused after fork().
 */
typedef struct hybridps_group hybridps_group;

/* What groups add beside HYBRIDPS_F32, _F16 and _BF16. */
enum { HYBRIDPS_F64 = 3, HYBRIDPS_I32 = 4, HYBRIDPS_I64 = 5, HYBRIDPS_U8 = 6 };

/* Whole numbers have no mean; their sums and products wrap around. A NaN is its own minimum. */
enum { HYBRIDPS_SUM = 0, HYBRIDPS_MEAN = 1, HYBRIDPS_MIN = 2, HYBRIDPS_MAX = 3, HYBRIDPS_PROD = 4 };

/* What carries the bytes. 0 or a negative HELIOS_E... code; `what` is the caller's name for it.
 * The first two must be there, the others may be NULL. Operations are not HYBRIDPS_MEAN: the group
 * divides. `in` and `out` may start at the same byte. */
typedef struct hybridps_transport {
    size_t size; /* HYBRIDPS_TRANSPORT_INIT */
    int rank, world;
    void *arg;
    /* `bytes` of every rank, one after the other in `all`. */
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
    /* `in` has n elements for each rank; `out`, n elements, becomes what all have for this one.
     * NULL: by alltoall. */
    int (*reduce_scatter)(void *arg, const char *what, const void *in, void *out, uint64_t n,
                          int type, int op);
    /* `bytes` from each rank to each. NULL: by allgather. */
    int (*alltoall)(void *arg, const char *what, const void *in, void *out, uint64_t bytes);
    /* Between two ranks; `send` may return before the other has everything. NULL: there is none. */
    int (*send)(void *arg, const char *what, const void *data, uint64_t bytes, int dst, int tag);
    int (*recv)(void *arg, const char *what, void *data, uint64_t bytes, int src, int tag);
    /* From any thread: the call under way, and each further one, fails soon. NULL: at its deadline.
     */
    void (*cancel)(void *arg);
} hybridps_transport;

#define HYBRIDPS_TRANSPORT_INIT .size = sizeof(hybridps_transport)

/* A group over somebody's own transport; it is closed with the group. */
HELIOS_API int hybridps_group_over(const hybridps_transport *transport, hybridps_group **out);

typedef struct hybridps_shm_options {
    size_t size;      /* HYBRIDPS_SHM_OPTIONS_INIT */
    const char *name; /* of the group on this node; 1 to 200 characters, no '/' */
    int rank, world;  /* at most 256 */
    int timeout_ms;   /* of joining and of every wait for others; 0 = 300000 */
} hybridps_shm_options;

#define HYBRIDPS_SHM_OPTIONS_INIT .size = sizeof(hybridps_shm_options)

/* The built-in one: the processes of one node over shared memory. Returns when all have joined;
 * nothing is left in /dev/shm from then on. HELIOS_ECONFLICT: a living process has this rank, or
 * another world was given. */
HELIOS_API int hybridps_group_shm(const hybridps_shm_options *options, hybridps_group **out);

typedef struct hybridps_net_options {
    size_t size;         /* HYBRIDPS_NET_OPTIONS_INIT */
    const char *address; /* "host:port" of rank 0 */
    const char *listen; /* of this rank; NULL: rank 0 there, the others at any port of the interface
                           that leads there */
    int rank, world;    /* at most 256 */
    int timeout_ms;     /* of joining and of every wait for others; 0 = 300000 */
} hybridps_net_options;

#define HYBRIDPS_NET_OPTIONS_INIT .size = sizeof(hybridps_net_options)

/* Between hosts, by Helios's own network layer: RDMA where there is, else TCP. Returns when all
 * have joined. A rank whose process ended is found out within a second or two, one that stands
 * still or whose host is gone at the deadline, or after 30 s in the middle of a message. Nobody's
 * identity is checked and nothing is encrypted: for a network of trusted hosts. */
HELIOS_API int hybridps_group_net(const hybridps_net_options *options, hybridps_group **out);
/* NULL is fine. Others that still wait for this rank fail, as does a call that another thread is
 * in; no thread may begin one any more. */
HELIOS_API void hybridps_group_close(hybridps_group *g);
HELIOS_API int hybridps_group_rank(const hybridps_group *g);
HELIOS_API int hybridps_group_world(const hybridps_group *g);

/* From any thread: a call that waits for others ends with HELIOS_ECANCELED and the group is lost;
 * at once with the built-in transport, with one that has no `cancel` by its deadline. */
HELIOS_API void hybridps_group_cancel(hybridps_group *g);

/* In place. `what` (may be NULL) is for messages. */
HELIOS_API int hybridps_group_allreduce(hybridps_group *g, const char *what, void *data, uint64_t n,
                                        int type, int op);
HELIOS_API int hybridps_group_broadcast(hybridps_group *g, const char *what, void *data,
                                        uint64_t bytes, int src);
HELIOS_API int hybridps_group_allgather(hybridps_group *g, const char *what, const void *mine,
                                        void *all, uint64_t bytes);
/* `in` has n elements for each rank, in the order of ranks; `out` becomes this rank's n, reduced in
 * that order. It may be where `in` starts, or this rank's part of it. */
HELIOS_API int hybridps_group_reduce_scatter(hybridps_group *g, const char *what, const void *in,
                                             void *out, uint64_t n, int type, int op);
/* Both have `bytes` for each rank; they may be one. */
HELIOS_API int hybridps_group_alltoall(hybridps_group *g, const char *what, const void *in,
                                       void *out, uint64_t bytes);
/* Between two ranks, while the others do what they like; tag and bytes must be the same on both
 * sides. `send` may wait until the other one takes it: of two that exchange something one receives
 * first. HELIOS_EUNSUPPORTED: the transport has none. */
HELIOS_API int hybridps_group_send(hybridps_group *g, const char *what, const void *data,
                                   uint64_t bytes, int dst, int tag);
HELIOS_API int hybridps_group_recv(hybridps_group *g, const char *what, void *data, uint64_t bytes,
                                   int src, int tag);

#define HYBRIDPS_NEW UINT32_MAX

/* The same with a managed tensor as the result, from each rank's `local`. *tensor is
 * HYBRIDPS_NEW, or the tensor that an earlier call made with as many bytes, which is not in use.
 * On failure a tensor that was new stays, without content. g NULL: a world of one. */
HELIOS_API int hybridps_allreduce(hybridps *h, hybridps_group *g, const char *name,
                                  const void *local, uint64_t n, int type, int op,
                                  uint32_t *tensor);
HELIOS_API int hybridps_broadcast(hybridps *h, hybridps_group *g, const char *name,
                                  const void *local, uint64_t bytes, int src, uint32_t *tensor);

/* ---- the manager: one table of the node's memory for all its processes ----
 *
 * A table has a name and lies in POSIX shared memory. Device -1 is the host, the others count from
 * 0. What a process added is in its row, and is given back when the process closes the manager or
 * dies; a device never has more in use and reserved than its capacity. After fork() a child opens
 * the manager itself; its parent's is refused there (HELIOS_EPERM). Any wait for another process
 * ends with HELIOS_ETIMEDOUT. */
typedef struct hybridps_manager hybridps_manager;

#define HYBRIDPS_MANAGER_HOST (-1)

typedef struct hybridps_manager_options {
    size_t size;                  /* HYBRIDPS_MANAGER_OPTIONS_INIT */
    const char *name;             /* 1 to 254 characters, no '/' */
    uint64_t host_bytes;          /* capacity of the host; 0 = join a table as it is */
    const uint64_t *device_bytes; /* of each device */
    uint32_t devices;             /* at most 32 */
    int lock_ms;                  /* longest wait for a lock; 0 = 5000 */
    int reap_ms;                  /* look for dead processes as often; 0 = 1000 */
} hybridps_manager_options;

#define HYBRIDPS_MANAGER_OPTIONS_INIT .size = sizeof(hybridps_manager_options)

/* Makes the table, or joins it: HELIOS_ECONFLICT where others gave other capacities,
 * HELIOS_ENOENT where nobody has given any. */
HELIOS_API int hybridps_manager_open(const hybridps_manager_options *options,
                                     hybridps_manager **out);
/* NULL is fine. The last one to close takes the table away. */
HELIOS_API void hybridps_manager_close(hybridps_manager *m);

/* A device with room for `size`, and a ticket that keeps the room: the host, `refer_device`, the
 * others. HELIOS_ENOSPC, with what each device has, when there is none; HELIOS_EBUSY when 256
 * tickets of the device that has it are out. */
HELIOS_API int hybridps_manager_schedule(hybridps_manager *m, uint64_t size, int refer_device,
                                         int *device, uint64_t *ticket);
/* Gives the ticket back. */
HELIOS_API int hybridps_manager_cancel(hybridps_manager *m, uint64_t ticket);
/* `size` more are in use by this process. With a ticket these are what it kept: device and size
 * must be its own. Without one (0) HELIOS_ENOSPC where there is no room. */
HELIOS_API int hybridps_manager_add(hybridps_manager *m, int device, uint64_t size,
                                    uint64_t ticket);
/* HELIOS_EINVAL, and nothing changes, when this process has less in use there. */
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
