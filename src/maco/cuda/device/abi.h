/* maco/cuda/device/abi.h - what the host writes and the persistent kernel reads, with the same
 * layout in C and CUDA, and what the kernel reports to the host.
 *
 * The device's copies of tasks and events reuse fields that mean nothing on a GPU: task.user holds
 * HL_TASK_NEXT and HL_TASK_AFFINITY, event.reserved holds HL_EVENT_WATCHED, and event.reserved2[0]
 * says where in the event's range the joins end and the work begins.
 *
 * Owns:    nothing.
 * Threads: host and device take turns, except for `cancel` and the states.
 * Errors:  outcome, one of HL_GPU_...
 * Units:   nanoseconds of the GPU's global timer.
 * Limits:  64 groups; 2^31 runs of one upload; HL_GPU_RANKS ranks of a group inside the kernel.
 */
#ifndef HL_MACO_CUDA_DEVICE_ABI_H
#define HL_MACO_CUDA_DEVICE_ABI_H

#include <stdint.h>

#include "helios/maco.h"

#define HL_GPU_KERNEL  "hl_maco_persistent"
#define HL_GPU_THREADS 256
#define HL_GPU_GROUPS  64
#define HL_GPU_JOINS   8 /* nesting depth of joins that fire joins */
#define HL_EXIT        0xfffffffeu

/* Memory that all ranks of a group can reach, for groups that communicate inside the kernel: a word
 * for each CTA and each rank that signals it, a word for each CTA's own count, and two buffers per
 * CTA. */
#define HL_GPU_RANKS  64
#define HL_PEER_CTAS  32
#define HL_PEER_STAGE 262144u    /* bytes of a buffer */
#define HL_PEER_SMALL 32768u     /* in an ALLREDUCE up to this size every rank reads from all */
#define HL_PEER_GONE  UINT64_MAX /* replaces a count: that rank's run was ended */

/* Items of the ready queue that are not an index of an event. */
#define HL_ITEM_ROOTS 0xfffffff0u
#define HL_ITEM_END   0xfffffff1u

#define HL_EVENT_WATCHED    1u /* a stream of the host waits for its count */
#define HL_EVENT_AFFINE     2u /* MACO_DIRECT: some of its work belongs to one worker */
#define HL_TASK_NEXT(t)     ((uint32_t)(t)->user) /* the task that certainly runs next; MACO_NONE */
#define HL_TASK_AFFINITY(t) ((uint32_t)((t)->user >> 32))         /* a worker; MACO_NONE */
#define HL_EVENT_JOINS(e)   ((uint32_t)(e)->reserved2[0])         /* first <= join < this */
#define HL_EVENT_WORK(e)    ((uint32_t)((e)->reserved2[0] >> 32)) /* this <= work < last */

/* A counter with a cache line of its own. */
struct hl_gpu_line {
    uint64_t value, unused[7];
};

enum hl_gpu_lines {
    HL_LINE_TAIL,   /* of the ready queue, in this run */
    HL_LINE_HINT,   /* iteration << 32 | number of entries used up */
    HL_LINE_ROOTS,  /* cursor of the roots */
    HL_LINE_TICKET, /* number of completed tasks, over all runs */
    HL_LINE_ABORT,  /* outcome that ends the run; 0 */
    HL_GPU_LINES
};

enum hl_gpu_outcome {
    HL_GPU_OK = 0,
    HL_GPU_TIMEOUT = 1,
    HL_GPU_CANCELED = 2,
    HL_GPU_OVERRUN = 3, /* an event got more triggers than it needs: the plan is broken */
    HL_GPU_UNKNOWN = 4, /* a task of a type or dtype that has no body here */
    HL_GPU_LOST = 5,    /* another rank of a group ended its run */
};

enum hl_gpu_phase {
    HL_GPU_OUT = 0,   /* ended */
    HL_GPU_IDLE = 1,  /* waited for work */
    HL_GPU_EVENT = 2, /* waited for an event */
    HL_GPU_FULL = 3,  /* the scheduler waited because a worker's ring is full */
    HL_GPU_COMM = 4,  /* the proxy waited for communication */
    HL_GPU_PEER = 5,  /* communication inside the kernel waited for rank `have` */
};

/* What a CTA was doing when the run was ended. */
struct hl_gpu_state {
    uint32_t phase, task, event, unused;
    uint64_t have, need;
};

/* A group that communicates inside the kernel. */
struct hl_gpu_peers {
    uint64_t memory[HL_GPU_RANKS]; /* each rank's memory, at this device's address for it */
    uint32_t group, rank, ranks, unused;
};

/* The argument of the kernel that asks an NCCL window for the addresses of the ranks' memory. The
 * kernel's name ends with the NCCL version whose header it was compiled with, because the window's
 * format is that version's. */
#define HL_GPU_WINDOW "hl_maco_window_"

struct hl_gpu_window {
    uint64_t window, out; /* out: an address for each rank */
    uint32_t ranks;
    int32_t rank[HL_GPU_RANKS]; /* in NCCL's communicator */
};

/* Mapped host memory. */
struct hl_gpu_host {
    uint64_t cancel;  /* set by the host */
    uint64_t outcome; /* enum hl_gpu_outcome */
    uint64_t task;    /* of HL_GPU_OVERRUN, HL_GPU_UNKNOWN */
    uint64_t unused[5];
    struct hl_gpu_state state[1]; /* one a CTA */
};

/* Timing of a traced task. */
struct hl_gpu_span {
    uint64_t wait, start, end; /* wait: since when its worker was idle; 0 */
    uint32_t worker, unused;
};

/* The kernel's argument. */
struct hl_gpu_run {
    const maco_task *tasks;
    maco_event *events;
    uint64_t *ready;                      /* n_events + 2 slots: iteration << 32 | item */
    struct hl_gpu_line *lines;            /* HL_GPU_LINES */
    const uint32_t *list, *first_of_list; /* MACO_STATIC */
    uint64_t *rings;                      /* MACO_SCHEDULER: position + 1 << 32 | task */
    struct hl_gpu_line *taken;            /* per worker: tasks taken from its ring and done */
    uint64_t *affine; /* MACO_DIRECT, per task with an affinity: iteration << 32 | task */
    const uint32_t *first_of_affine;   /* per worker: its slots; NULL = no task has an affinity */
    struct hl_gpu_line *affine_queued; /* per worker: such tasks queued, over all runs */
    struct hl_gpu_span *spans;         /* per task; NULL = no trace */
    uint32_t *order;                   /* per ticket; NULL = no trace */
    const uint32_t *comm, *first_of_comm; /* tasks of each group, in order */
    struct hl_gpu_line *comm_done;        /* per group, written by its stream; over all runs */
    const struct hl_gpu_peers *peers;     /* groups that communicate inside the kernel */
    const uint32_t *peer_comm, *first_of_peer_comm; /* tasks of each of them, in order */
    uint64_t *arrived; /* per entry of peer_comm: CTAs that have done it, over all runs */
    struct hl_gpu_host *host;
    uint64_t iteration, timeout_ns;
    uint64_t first_ticket;                           /* first ticket of this run */
    uint32_t n_tasks, n_events, n_roots, roots_work; /* roots_work: the first that is not a comm */
    uint32_t workers, groups, ring_slots;
    uint32_t n_peers, peer_ctas; /* CTAs of each group inside the kernel, the last of the grid */
    uint16_t policy, balance;
};

/* Bytes of a rank's memory for its group, and where its buffers begin. */
#define HL_PEER_WORDS(ctas, ranks) (((uint64_t)(ctas) * ((ranks) + 1) * 64 + 127) / 128 * 128)
#define HL_PEER_BYTES(ctas, ranks) (HL_PEER_WORDS(ctas, ranks) + 2ull * (ctas)*HL_PEER_STAGE)

#ifdef __cplusplus
#define HL_GPU_SAME(is, sentence) static_assert(is, sentence)
#else
#define HL_GPU_SAME(is, sentence) _Static_assert(is, sentence)
#endif

HL_GPU_SAME(sizeof(struct hl_gpu_run) == 21 * 8 + 3 * 8 + 9 * 4 + 4, "no holes but at the end");
HL_GPU_SAME(sizeof(struct hl_gpu_state) == 32 && sizeof(struct hl_gpu_span) == 32, "32 bytes");
HL_GPU_SAME(sizeof(struct hl_gpu_line) == 64, "a cache line");

#endif
