/* Collectives inside the kernel, run on the CPU: the kernel's own source for several ranks at once,
 * each a grid of its own, over memory that they share as GPUs of a node map each other's. Results
 * are held against the reductions of the CPU's groups, bit by bit. */
#include "support/test.h"

#include "support/cuda_cpu.h"

#include "maco/cuda/device/kernel.cu"

extern "C" {
#include "group/group.h"
#include "maco/cuda/host/tables.h"
}

thread_local gpu::cta_of_fibers *gpu::cta;

#define SLACK 64 /* bytes around an array, to see what is written beside it */

/* What all ranks do: a collective; with `between` on what a worker has copied, and a worker copies
 * its result. */
struct job {
    int type, dtype, op, in_place, between;
    uint64_t count;
    uint32_t ranks, ctas, threads, root;
};

struct rank_of {
    std::vector<unsigned char> x, y, host, copy_of_x, copy_of_y;
    unsigned char *peer_memory = nullptr;
    maco_graph *graph = nullptr;
    maco_plan *plan = nullptr;
    hl_cuda_tables tables = {};
    hl_gpu_run run = {};
    uint32_t grid = 0;
};

static uint64_t bytes_in(const job &j)
{
    uint64_t parts = j.type == MACO_TASK_REDUCE_SCATTER || j.type == MACO_TASK_ALL_TO_ALL;
    return j.count * hl_collective_size(j.dtype) * (parts ? j.ranks : 1);
}

static uint64_t bytes_out(const job &j)
{
    uint64_t parts = j.type == MACO_TASK_ALLGATHER || j.type == MACO_TASK_ALL_TO_ALL;
    return j.count * hl_collective_size(j.dtype) * (parts ? j.ranks : 1);
}

static void fill(const job &j, uint32_t rank, unsigned char *to)
{
    uint64_t n = bytes_in(j) / hl_collective_size(j.dtype);
    uint32_t state = 12345 + rank * 977;
    for (uint64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        float f = (float)(int32_t)state / 1e9f;
        uint16_t h = j.dtype == MACO_F16 ? gpu::half_of_float(f) : gpu::bfloat_of_float(f);
        double d = f;
        int64_t w = (int64_t)(int32_t)state * (1 << 20);
        const void *from = &state;
        if (j.dtype == MACO_F32)
            from = &f;
        else if (j.dtype == MACO_F16 || j.dtype == MACO_BF16)
            from = &h;
        else if (j.dtype == MACO_F64)
            from = &d;
        else if (j.dtype == MACO_I64)
            from = &w;
        size_t size = hl_collective_size(j.dtype);
        memcpy(to + i * size, from, size);
    }
}

static void add_copy(maco_graph *g, const void *from, void *to, uint64_t bytes)
{
    maco_op op = {};
    op.size = sizeof(op);
    uint32_t id;
    op.type = MACO_TASK_MEMCPY;
    op.dtype = MACO_U8;
    op.inputs[0] = from;
    op.outputs[0] = to;
    op.dims[0] = 1;
    for (int i = 1; i < 4; i++)
        op.dims[i] = (int32_t)bytes;
    op.name = "copy";
    if (maco_graph_add(g, &op, &id) != 0)
        fail_msg("%s", hl_error_text());
}

static void open_rank(rank_of &r, const job &j, uint32_t rank, const hl_gpu_peers &peers,
                      uint64_t count)
{
    maco_op op = {};
    op.size = sizeof(op);
    maco_compile_options o = {};
    o.size = sizeof(o);
    hl_cuda_shape shape = {};
    uint32_t id;
    uint64_t most = bytes_in(j) > bytes_out(j) ? bytes_in(j) : bytes_out(j);
    r.x.assign(most + SLACK, 0xee);
    r.y.assign(most + SLACK, 0xee);
    fill(j, rank, r.x.data());
    op.type = j.type;
    op.dtype = j.dtype;
    r.copy_of_x = r.x;
    r.copy_of_y = r.y;
    op.inputs[0] = j.between ? r.copy_of_x.data() : r.x.data();
    op.outputs[0] = j.in_place ? r.x.data() : r.y.data();
    op.dims[0] = (int32_t)count;
    op.dims[2] = j.op;
    op.dims[3] = (int32_t)j.root;
    op.dims[5] = (int32_t)j.ranks;
    op.name = "together";
    assert_int_equal(maco_graph_new(&r.graph), 0);
    if (j.between)
        add_copy(r.graph, r.x.data(), r.copy_of_x.data(), bytes_in(j));
    if (maco_graph_add(r.graph, &op, &id) != 0)
        fail_msg("%s", hl_error_text());
    if (j.between)
        add_copy(r.graph, r.y.data(), r.copy_of_y.data(), bytes_out(j));
    o.infer = 1;
    assert_int_equal(maco_compile(r.graph, &o, &r.plan), 0);
    shape.workers = 1;
    shape.ring = 4;
    shape.groups = 1;
    shape.trace = 1;
    shape.peers = &peers;
    shape.n_peers = 1;
    shape.peer_ctas = j.ctas;
    assert_int_equal(hl_cuda_tables_make(r.plan, &shape, &r.tables), HL_OK);
    r.grid = 1 + j.ctas;
    r.host.assign(sizeof(hl_gpu_host) + r.grid * sizeof(hl_gpu_state), 0);
    r.run = hl_cuda_tables_at(&r.tables, (uint64_t)(uintptr_t)r.tables.image);
    r.run.host = (hl_gpu_host *)r.host.data();
}

static void open_ranks(std::vector<rank_of> &ranks, const job &j)
{
    hl_gpu_peers peers = {};
    peers.ranks = j.ranks;
    ranks.resize(j.ranks);
    for (uint32_t k = 0; k < j.ranks; k++) {
        size_t bytes = HL_PEER_BYTES(j.ctas, j.ranks);
        ranks[k].peer_memory = (unsigned char *)aligned_alloc(128, bytes);
        memset(ranks[k].peer_memory, 0, HL_PEER_WORDS(j.ctas, j.ranks));
        peers.memory[k] = (uint64_t)(uintptr_t)ranks[k].peer_memory;
    }
    for (uint32_t k = 0; k < j.ranks; k++) {
        peers.rank = k;
        open_rank(ranks[k], j, k, peers, j.count);
    }
}

static void close_ranks(std::vector<rank_of> &ranks)
{
    for (rank_of &r : ranks) {
        hl_cuda_tables_free(&r.tables);
        maco_plan_free(r.plan);
        maco_graph_free(r.graph);
        free(r.peer_memory);
    }
}

static void one_cta(void *run)
{
    kernel_of_cta(*(const hl_gpu_run *)run);
}

static void one_grid(rank_of *r, uint64_t iteration, uint64_t timeout_ms, uint32_t threads)
{
    r->run.iteration = iteration;
    r->run.timeout_ns = timeout_ms * 1000000;
    r->run.first_ticket = (iteration - 1) * r->tables.noted;
    gpu::run_grid(r->grid, threads, (uint32_t)iteration, one_cta, &r->run);
}

/* All but the rank `dead`. */
static void run_ranks(std::vector<rank_of> &ranks, const job &j, uint64_t iteration,
                      uint64_t timeout_ms, uint32_t dead)
{
    std::vector<std::thread> grids;
    for (uint32_t k = 0; k < j.ranks; k++)
        if (k != dead)
            grids.emplace_back(one_grid, &ranks[k], iteration, timeout_ms, j.threads);
    for (std::thread &t : grids)
        t.join();
}

/* What rank k is to have, made of all inputs by the CPU's reductions. */
static std::vector<unsigned char> wanted(const job &j, uint32_t k)
{
    std::vector<std::vector<unsigned char>> in(j.ranks, std::vector<unsigned char>(bytes_in(j)));
    std::vector<unsigned char> out(bytes_out(j));
    std::vector<const void *> parts(j.ranks);
    uint64_t part = j.count * hl_collective_size(j.dtype);
    int reduces = j.type == MACO_TASK_ALLREDUCE || j.type == MACO_TASK_REDUCE_SCATTER;
    for (uint32_t r = 0; r < j.ranks; r++) {
        fill(j, r, in[r].data());
        parts[r] = in[r].data() + (j.type == MACO_TASK_REDUCE_SCATTER ? k * part : 0);
        if (j.type == MACO_TASK_ALLGATHER)
            memcpy(out.data() + r * part, in[r].data(), part);
        if (j.type == MACO_TASK_ALL_TO_ALL)
            memcpy(out.data() + r * part, in[r].data() + k * part, part);
    }
    if (j.type == MACO_TASK_BROADCAST)
        out = in[j.root];
    if (reduces)
        hl_collective_reduce(out.data(), parts.data(), (int)j.ranks, j.dtype, j.op, 0, j.count);
    if (reduces && j.op == MACO_AVG)
        hl_collective_divide(out.data(), j.count, j.dtype, (int)j.ranks);
    return out;
}

static void check(const job &j, int runs)
{
    std::vector<rank_of> ranks;
    open_ranks(ranks, j);
    for (int run = 1; run <= runs; run++) {
        for (uint32_t k = 0; k < j.ranks; k++)
            fill(j, k, ranks[k].x.data());
        run_ranks(ranks, j, (uint64_t)run, 60000, MACO_NONE);
        for (uint32_t k = 0; k < j.ranks; k++) {
            std::vector<unsigned char> want = wanted(j, k);
            const std::vector<unsigned char> &got = j.between    ? ranks[k].copy_of_y
                                                    : j.in_place ? ranks[k].x
                                                                 : ranks[k].y;
            assert_int_equal(ranks[k].run.host->outcome, HL_GPU_OK);
            assert_memory_equal(got.data(), want.data(), want.size());
            for (int i = 0; i < SLACK; i++)
                assert_int_equal(got[got.size() - 1 - i], 0xee);
        }
    }
    close_ranks(ranks);
}

static job job_of(int type, uint64_t count, uint32_t ranks)
{
    job j = {};
    j.type = type;
    j.count = count;
    j.ranks = ranks;
    j.ctas = 2;
    j.threads = 1;
    return j;
}

TEST(every_type_and_operation_has_the_cpus_bits)
{
    for (int dtype = MACO_F32; dtype <= MACO_U8; dtype++)
        for (int op = MACO_SUM; op <= MACO_PROD; op++)
            for (uint32_t ranks = 2; ranks <= 3; ranks++) {
                job j = job_of(MACO_TASK_ALLREDUCE, 501, ranks);
                j.dtype = dtype;
                j.op = op;
                if (hl_collective_op_fits(op, dtype))
                    check(j, 1);
            }
}

TEST(every_collective_over_sizes_ranks_and_runs)
{
    static const int types[] = {MACO_TASK_ALLREDUCE, MACO_TASK_REDUCE_SCATTER, MACO_TASK_ALLGATHER,
                                MACO_TASK_ALL_TO_ALL, MACO_TASK_BROADCAST};
    static const uint64_t counts[] = {1, 7, 3001};
    for (int type : types)
        for (uint64_t count : counts)
            for (uint32_t ranks = 1; ranks <= 4; ranks++) {
                job j = job_of(type, count, ranks);
                j.root = type == MACO_TASK_BROADCAST ? ranks - 1 : 0;
                j.in_place = type != MACO_TASK_BROADCAST && count == 7;
                check(j, 3);
            }
}

/* A worker's stores are there when CTAs of all ranks read them, and those of all CTAs when a worker
 * reads the result. */
TEST(between_tasks_of_a_worker)
{
    for (int type : {MACO_TASK_ALLREDUCE, MACO_TASK_ALLGATHER, MACO_TASK_BROADCAST})
        for (uint32_t ranks = 1; ranks <= 3; ranks++) {
            job j = job_of(type, 3001, ranks);
            j.between = 1;
            check(j, 5);
        }
}

/* Many chunks and steps: buffers are used again, shares are reduced by one rank for all. */
TEST(more_than_the_buffers_hold)
{
    static const int types[] = {MACO_TASK_ALLREDUCE, MACO_TASK_REDUCE_SCATTER, MACO_TASK_ALLGATHER};
    for (int type : types) {
        job j = job_of(type, 5 * HL_PEER_STAGE / 4 + 13, 3);
        j.dtype = MACO_BF16;
        j.op = MACO_SUM;
        check(j, 2);
    }
    job whole = job_of(MACO_TASK_ALLREDUCE, 100001, 3); /* CTAs with all their threads */
    whole.threads = 64;
    check(whole, 2);
}

TEST(a_rank_that_never_comes_is_named)
{
    job j = job_of(MACO_TASK_ALLREDUCE, 100, 3);
    std::vector<rank_of> ranks;
    open_ranks(ranks, j);
    run_ranks(ranks, j, 1, 2000, 1); /* all CTAs are there by then */
    for (uint32_t k = 0; k < 3; k += 2) {
        const hl_gpu_host *h = ranks[k].run.host;
        int told = 0;
        for (uint32_t i = 1; i < ranks[k].grid; i++)
            told += h->state[i].phase == HL_GPU_PEER && h->state[i].have == 1;
        /* the first to see its deadline ends its run, and tells the other one */
        assert_true(h->outcome == HL_GPU_TIMEOUT || h->outcome == HL_GPU_LOST);
        assert_true(told > 0 || h->outcome == HL_GPU_LOST);
    }
    assert_true(ranks[0].run.host->outcome == HL_GPU_TIMEOUT ||
                ranks[2].run.host->outcome == HL_GPU_TIMEOUT);
    close_ranks(ranks);
}

/* Who gives up tells the others, who need not wait for their deadlines. */
TEST(a_rank_that_ends_its_run_ends_the_others)
{
    job j = job_of(MACO_TASK_ALLREDUCE, 100, 3);
    std::vector<rank_of> ranks;
    open_ranks(ranks, j);
    /* rank 2 waits for what never comes, and is cancelled */
    ranks[2].run.host->cancel = 1;
    maco_task *tasks = (maco_task *)(uintptr_t)ranks[2].run.tasks;
    for (uint32_t i = 0; i < ranks[2].run.n_tasks; i++)
        if (tasks[i].type == MACO_TASK_ALLREDUCE)
            tasks[i].dependent_event = tasks[i].trigger_event;
    uint64_t began = gpu::timer_ns();
    run_ranks(ranks, j, 1, 60000, MACO_NONE);
    assert_true(gpu::timer_ns() - began < 50000000000ull);
    assert_int_equal(ranks[2].run.host->outcome, HL_GPU_CANCELED);
    assert_int_equal(ranks[0].run.host->outcome, HL_GPU_LOST);
    assert_int_equal(ranks[1].run.host->outcome, HL_GPU_LOST);
    close_ranks(ranks);
}
