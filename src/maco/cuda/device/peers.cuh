/* maco/cuda/device/peers.cuh - collectives inside the kernel, over memory that each rank maps from
 * the others. Separate CTAs carry out a group's communication in the plan's order.
 *
 * CTA c of a rank only works with CTA c of the other ranks. In a step, each CTA copies its part
 * into a buffer of its own rank, all CTAs meet, and each reads what it needs from the others'
 * buffers. Buffers alternate, so a step needs only one meeting: a rank that arrives at a meeting
 * has read what was stored before the previous one. Meetings are counted over all runs, so nothing
 * is reset. Reductions follow the order of ranks, and each step is rounded to the type, so the bits
 * are the same as those of the CPU's groups.
 */
#ifndef HL_MACO_CUDA_DEVICE_PEERS_CUH
#define HL_MACO_CUDA_DEVICE_PEERS_CUH

#include "maco/cuda/device/body_copy.cuh"
#include "maco/cuda/device/protocol.cuh"

namespace gpu
{

struct hl_peer_shared {
    uint32_t go, missing; /* missing: 1 + the rank that did not arrive */
};

struct hl_peer {
    const hl_gpu_run *r;
    const hl_gpu_peers *g;
    uint32_t cta, task;
    uint64_t meetings;
    hl_patience patience;
};

/* ---- the ranks' memory ---- */

/* The word with which rank `from` signals this CTA's twin on rank `at`. */
HL_DEV uint64_t *signal_of(const hl_peer &x, uint32_t at, uint32_t from)
{
    return (uint64_t *)(x.g->memory[at] + ((uint64_t)x.cta * x.g->ranks + from) * 64);
}

HL_DEV uint64_t *meetings_of(const hl_peer &x)
{
    uint64_t words = (uint64_t)x.r->peer_ctas * x.g->ranks + x.cta;
    return (uint64_t *)(x.g->memory[x.g->rank] + words * 64);
}

HL_DEV unsigned char *buffer(const hl_peer &x, uint32_t rank, uint64_t turn)
{
    return (unsigned char *)(x.g->memory[rank] + HL_PEER_WORDS(x.r->peer_ctas, x.g->ranks) +
                             (2ull * x.cta + turn % 2) * HL_PEER_STAGE);
}

/* The buffer to fill before the next meeting. */
HL_DEV unsigned char *mine(const hl_peer &x)
{
    return buffer(x, x.g->rank, x.meetings + 1);
}

/* The buffer that a rank filled before the last meeting. */
HL_DEV const unsigned char *theirs(const hl_peer &x, uint32_t rank)
{
    return buffer(x, rank, x.meetings);
}

/* ---- meeting ---- */

HL_DEV int await_rank(hl_peer &x, uint32_t rank)
{
    const uint64_t *signal = signal_of(x, x.g->rank, rank);
    uint64_t is = load_acquire_sys(signal);
    while (is < x.meetings) {
        if (run_is_over(x.r, &x.patience))
            return 0;
        is = load_acquire_sys(signal);
    }
    if (is == HL_PEER_GONE)
        end_run(x.r, HL_GPU_LOST, x.task);
    return is != HL_PEER_GONE;
}

/* Called by all threads. Afterwards all of them see what each rank's CTA stored before. 0: the run
 * is over. */
HL_DEV int meet(hl_peer &x, hl_peer_shared &sh)
{
    const uint32_t rank = x.g->rank;
    x.meetings++;
    block_sync();
    if (thread_id() == 0)
        sh.missing = 0;
    for (uint32_t k = thread_id(); k < x.g->ranks; k += thread_count())
        if (k != rank)
            store_release_sys(signal_of(x, k, rank), x.meetings);
    block_sync(); /* this rank has signalled all others before it waits */
    for (uint32_t k = thread_id(), here = 1; k < x.g->ranks && here; k += thread_count()) {
        here = k == rank || await_rank(x, k);
        if (!here)
            sh.missing = 1 + k; /* later threads have given up by now, or will */
    }
    block_sync();
    if (sh.missing != 0 && thread_id() == 0)
        tell(x.r, HL_GPU_PEER, x.task, MACO_NONE, sh.missing - 1, x.meetings);
    return sh.missing == 0;
}

/* Signals the others, so that they need not wait for their deadline. */
HL_DEV void give_up(const hl_peer &x)
{
    for (uint32_t k = thread_id(); k < x.g->ranks; k += thread_count())
        if (k != x.g->rank)
            store_release_sys(signal_of(x, k, x.g->rank), HL_PEER_GONE);
}

/* ---- arithmetic ---- */

template <typename T> HL_DEV T chosen(T a, T b, int less)
{
    return (less ? a < b : a > b) || a != a ? a : b;
}

template <typename T> HL_DEV T joined(T a, T b, int op)
{
    if (op == MACO_SUM || op == MACO_AVG)
        return a + b;
    return op == MACO_PROD ? a * b : chosen(a, b, op == MACO_MIN);
}

/* Integers wrap around. */
HL_DEV int32_t joined(int32_t a, int32_t b, int op)
{
    if (op == MACO_SUM)
        return (int32_t)((uint32_t)a + (uint32_t)b);
    return op == MACO_PROD ? (int32_t)((uint32_t)a * (uint32_t)b) : chosen(a, b, op == MACO_MIN);
}

HL_DEV int64_t joined(int64_t a, int64_t b, int op)
{
    if (op == MACO_SUM)
        return (int64_t)((uint64_t)a + (uint64_t)b);
    return op == MACO_PROD ? (int64_t)((uint64_t)a * (uint64_t)b) : chosen(a, b, op == MACO_MIN);
}

HL_DEV uint8_t joined(uint8_t a, uint8_t b, int op)
{
    return (uint8_t)joined((uint32_t)a, (uint32_t)b, op);
}

template <typename T> HL_DEV T joined_half(T a, T b, int op)
{
    T out;
    from_float(joined(to_float(a), to_float(b), op), &out);
    return out;
}

HL_DEV f16 joined(f16 a, f16 b, int op)
{
    return joined_half(a, b, op);
}

HL_DEV bf16 joined(bf16 a, bf16 b, int op)
{
    return joined_half(a, b, op);
}

/* For types with fractions; other types have no average. */
HL_DEV float shared_by(float a, uint32_t n)
{
    return a / (float)n;
}

HL_DEV double shared_by(double a, uint32_t n)
{
    return a / n;
}

template <typename T> HL_DEV T shared_by(T a, uint32_t n)
{
    T out;
    from_float(to_float(a) / (float)n, &out);
    return out;
}

HL_DEV int32_t shared_by(int32_t a, uint32_t)
{
    return a;
}

HL_DEV int64_t shared_by(int64_t a, uint32_t)
{
    return a;
}

HL_DEV uint8_t shared_by(uint8_t a, uint32_t)
{
    return a;
}

template <typename T> struct alignas(16) hl_pack {
    T e[16 / sizeof(T)];
};

/* to[i] = the reduction of all ranks' elements, which start `from` bytes into the buffers. A pack
 * can read beyond the end of the elements. */
template <typename T>
HL_DEV void reduce_as(const hl_peer &x, uint64_t from, T *to, uint64_t n, int op)
{
    const uint32_t each = 16 / sizeof(T);
    for (uint64_t i = thread_id() * each; i < n; i += (uint64_t)thread_count() * each) {
        uint64_t at = from + i * sizeof(T);
        hl_pack<T> sum = *(const hl_pack<T> *)(theirs(x, 0) + at);
        for (uint32_t k = 1; k < x.g->ranks; k++) {
            hl_pack<T> part = *(const hl_pack<T> *)(theirs(x, k) + at);
            for (uint32_t e = 0; e < each; e++)
                sum.e[e] = joined(sum.e[e], part.e[e], op);
        }
        for (uint32_t e = 0; op == MACO_AVG && e < each; e++)
            sum.e[e] = shared_by(sum.e[e], x.g->ranks);
        if (i + each <= n && (uint64_t)(to + i) % 16 == 0)
            *(hl_pack<T> *)(to + i) = sum;
        else
            for (uint32_t e = 0; e < each && i + e < n; e++)
                to[i + e] = sum.e[e];
    }
}

HL_BODY void reduce(const hl_peer &x, const maco_task *t, uint64_t from, void *to, uint64_t n)
{
    int op = t->dims[2];
    switch (t->flags & MACO_FLAG_DTYPE) {
    case MACO_F32:
        reduce_as(x, from, (float *)to, n, op);
        return;
    case MACO_F16:
        reduce_as(x, from, (f16 *)to, n, op);
        return;
    case MACO_BF16:
        reduce_as(x, from, (bf16 *)to, n, op);
        return;
    case MACO_F64:
        reduce_as(x, from, (double *)to, n, op);
        return;
    case MACO_I32:
        reduce_as(x, from, (int32_t *)to, n, op);
        return;
    case MACO_I64:
        reduce_as(x, from, (int64_t *)to, n, op);
        return;
    case MACO_U8:
        reduce_as(x, from, (uint8_t *)to, n, op);
        return;
    }
}

/* ---- collectives: each CTA takes every peer_ctas-th chunk ---- */

struct hl_collective {
    const unsigned char *in;
    unsigned char *out;
    uint64_t count, size; /* elements per rank, bytes per element */
    uint64_t each;        /* elements per chunk; chunks begin at multiples of 16 bytes */
};

HL_DEV uint64_t size_of(const maco_task *t)
{
    int type = t->flags & MACO_FLAG_DTYPE;
    if (type == MACO_F64 || type == MACO_I64)
        return 8;
    return type == MACO_U8 ? 1 : type == MACO_F16 || type == MACO_BF16 ? 2 : 4;
}

/* Chooses chunks so small that `parts` of them fit into a buffer, and that all CTAs have some. */
HL_DEV hl_collective collective_of(const hl_peer &x, const maco_task *t, uint32_t parts)
{
    hl_collective c;
    c.in = (const unsigned char *)t->inputs[0];
    c.out = (unsigned char *)t->outputs[0];
    c.count = (uint64_t)(uint32_t)t->dims[0] | (uint64_t)(uint32_t)t->dims[1] << 32;
    c.size = size_of(t);
    uint64_t most = HL_PEER_STAGE / parts / 16 * 16 / c.size;
    uint64_t fair = (c.count + x.r->peer_ctas - 1) / x.r->peer_ctas;
    fair = (fair * c.size + 15) / 16 * 16 / c.size;
    c.each = fair < most ? fair : most;
    return c;
}

HL_DEV uint64_t chunk_at(const hl_collective &c, uint64_t at)
{
    return c.count - at < c.each ? c.count - at : c.each;
}

#define HL_EACH_CHUNK(x, c, at)                                                                    \
    for (uint64_t at = (x).cta * (c).each; at < (c).count; at += (x).r->peer_ctas * (c).each)

/* Each rank reduces its share of a chunk; then all ranks read it. */
HL_DEV int reduce_shares(hl_peer &x, hl_peer_shared &sh, const maco_task *t, const hl_collective &c,
                         uint64_t at, uint64_t n)
{
    const uint64_t ranks = x.g->ranks;
    uint64_t share = ((n + ranks - 1) / ranks * c.size + 15) / 16 * 16 / c.size;
    uint64_t first = share * x.g->rank < n ? share * x.g->rank : n;
    uint64_t own = n - first < share ? n - first : share;
    reduce(x, t, first * c.size, mine(x) + first * c.size, own);
    if (!meet(x, sh))
        return 0;
    for (uint64_t k = 0; k < ranks && k * share < n; k++) {
        uint64_t from = k * share, m = n - from < share ? n - from : share;
        copy_bytes(theirs(x, (uint32_t)k) + from * c.size, c.out + (at + from) * c.size,
                   m * c.size);
    }
    return 1;
}

HL_DEV int all_reduce(hl_peer &x, hl_peer_shared &sh, const maco_task *t)
{
    hl_collective c = collective_of(x, t, 1);
    int at_once = x.g->ranks <= 2 || c.count * c.size <= HL_PEER_SMALL;
    HL_EACH_CHUNK(x, c, at)
    {
        uint64_t n = chunk_at(c, at);
        copy_bytes(c.in + at * c.size, mine(x), n * c.size);
        if (!meet(x, sh))
            return 0;
        if (at_once)
            reduce(x, t, 0, c.out + at * c.size, n);
        else if (!reduce_shares(x, sh, t, c, at, n))
            return 0;
    }
    return 1;
}

/* Copies a part for each rank into the buffer: REDUCE_SCATTER, ALL_TO_ALL. */
HL_DEV int scatter(hl_peer &x, hl_peer_shared &sh, const maco_task *t, int reduces)
{
    const uint32_t ranks = x.g->ranks;
    hl_collective c = collective_of(x, t, ranks);
    uint64_t part = c.each * c.size;
    HL_EACH_CHUNK(x, c, at)
    {
        uint64_t n = chunk_at(c, at);
        for (uint32_t k = 0; k < ranks; k++)
            copy_bytes(c.in + (k * c.count + at) * c.size, mine(x) + k * part, n * c.size);
        if (!meet(x, sh))
            return 0;
        if (reduces)
            reduce(x, t, x.g->rank * part, c.out + at * c.size, n);
        for (uint32_t k = 0; !reduces && k < ranks; k++)
            copy_bytes(theirs(x, k) + x.g->rank * part, c.out + (k * c.count + at) * c.size,
                       n * c.size);
    }
    return 1;
}

HL_DEV int all_gather(hl_peer &x, hl_peer_shared &sh, const maco_task *t)
{
    hl_collective c = collective_of(x, t, 1);
    HL_EACH_CHUNK(x, c, at)
    {
        uint64_t n = chunk_at(c, at);
        copy_bytes(c.in + at * c.size, mine(x), n * c.size);
        if (!meet(x, sh))
            return 0;
        for (uint32_t k = 0; k < x.g->ranks; k++)
            copy_bytes(theirs(x, k), c.out + (k * c.count + at) * c.size, n * c.size);
    }
    return 1;
}

HL_DEV int broadcast(hl_peer &x, hl_peer_shared &sh, const maco_task *t)
{
    const uint32_t root = (uint32_t)t->dims[3];
    hl_collective c = collective_of(x, t, 1);
    HL_EACH_CHUNK(x, c, at)
    {
        uint64_t n = chunk_at(c, at);
        if (x.g->rank == root)
            copy_bytes(c.in + at * c.size, mine(x), n * c.size);
        if (!meet(x, sh))
            return 0;
        copy_bytes(theirs(x, root), c.out + at * c.size, n * c.size);
    }
    return 1;
}

HL_BODY int communicate(hl_peer &x, hl_peer_shared &sh, const maco_task *t)
{
    switch (t->type) {
    case MACO_TASK_ALLREDUCE:
        return all_reduce(x, sh, t);
    case MACO_TASK_REDUCE_SCATTER:
        return scatter(x, sh, t, 1);
    case MACO_TASK_ALL_TO_ALL:
        return scatter(x, sh, t, 0);
    case MACO_TASK_ALLGATHER:
        return all_gather(x, sh, t);
    case MACO_TASK_BROADCAST:
        return broadcast(x, sh, t);
    }
    end_run(x.r, HL_GPU_UNKNOWN, x.task);
    return 0;
}

/* ---- the group's CTAs ---- */

/* Thread 0: waits until the task may start, and until the ready queue is open, so that what the
 * task completes is published after that. */
HL_DEV int await_start(hl_peer &x)
{
    const hl_gpu_run *r = x.r;
    uint32_t event = r->tasks[x.task].dependent_event;
    uint64_t need = event == MACO_NONE ? 0 : (uint64_t)r->events[event].needed * r->iteration;
    while ((r->policy != MACO_STATIC && load_acquire(&r->ready[0]) >> 32 != r->iteration) ||
           (event != MACO_NONE && load_acquire(&r->events[event].count) < need)) {
        if (run_is_over(r, &x.patience)) {
            tell(r, HL_GPU_EVENT, x.task, event,
                 event == MACO_NONE ? 0 : load_relaxed(&r->events[event].count), need);
            return 0;
        }
    }
    return 1;
}

/* Thread 0: the last CTA of the group to arrive completes the task. */
HL_DEV void arrive(const hl_peer &x, uint32_t entry, uint64_t start)
{
    const hl_gpu_run *r = x.r;
    if (add_acq_rel(&r->arrived[entry], 1) + 1 != r->peer_ctas * r->iteration)
        return;
    if (r->spans != nullptr)
        note_done(r, x.task, 0, start, x.g->group);
    complete(r, r->tasks[x.task].trigger_event, 1, nullptr);
}

HL_DEV void peers_run(const hl_gpu_run *r, uint32_t index, hl_peer_shared &sh)
{
    uint32_t group = index / r->peer_ctas;
    hl_peer x;
    x.r = r;
    x.g = &r->peers[group];
    x.cta = index % r->peer_ctas;
    x.meetings = load_relaxed(meetings_of(x));
    x.patience = patience(r);
    for (uint32_t i = r->first_of_peer_comm[group]; i < r->first_of_peer_comm[group + 1]; i++) {
        x.task = r->peer_comm[i];
        if (thread_id() == 0)
            sh.go = (uint32_t)await_start(x);
        block_sync();
        uint64_t start = timer_ns();
        if (!sh.go || !communicate(x, sh, &r->tasks[x.task])) {
            give_up(x);
            return;
        }
        block_sync();
        if (thread_id() == 0)
            arrive(x, i, start);
    }
    if (thread_id() == 0)
        store_relaxed(meetings_of(x), x.meetings);
}

} // namespace gpu

#endif
