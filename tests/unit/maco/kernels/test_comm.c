/* Collective tasks on groups of real processes. */
#include "support/test.h"

#include <string.h>

#include "maco/kernels/bodies.h"
#include "unit/group/group_world.h"

#define N 1001

static maco_task task(int type, const void *in, void *out, uint64_t count, int dtype, int op,
                      int peer)
{
    return (maco_task){.type = (uint16_t)type,
                       .flags = (uint16_t)dtype,
                       .inputs = {(uintptr_t)in},
                       .outputs = {(uintptr_t)out},
                       .dims = {(int32_t)count, (int32_t)(count >> 32), op, peer, 5}};
}

static int run(const maco_task *t, hybridps_group *g)
{
    return hl_maco_comm(t, "the task", g);
}

/* Element i of rank r is r * 100000 + i. */
static void fill(int64_t *x, int rank, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rank * INT64_C(100000) + (int64_t)i;
}

static int reductions(hybridps_group *g, int rank, int world)
{
    int64_t x[4 * N], y[N] = {0}, last = (world - 1) * INT64_C(100000);
    fill(x, rank, N);
    maco_task t = task(MACO_TASK_ALLREDUCE, x, y, N, MACO_I64, MACO_MAX, 0);
    WANT(run(&t, g) == HL_OK && y[0] == last && y[N - 1] == last + N - 1);
    WANT(x[3] == rank * 100000 + 3); /* unchanged */
    t = task(MACO_TASK_ALLREDUCE, x, x, N, MACO_I64, MACO_SUM, 0);
    WANT(run(&t, g) == HL_OK && x[7] == last * world / 2 + 7 * world);
    fill(x, rank, N * (size_t)world);
    t = task(MACO_TASK_REDUCE_SCATTER, x, y, N, MACO_I64, MACO_MIN, 0);
    WANT(run(&t, g) == HL_OK && y[0] == rank * N && y[N - 1] == rank * N + N - 1);
    float f = (float)rank;
    t = task(MACO_TASK_ALLREDUCE, &f, &f, 1, MACO_F32, MACO_AVG, 0);
    WANT(run(&t, g) == HL_OK && f == (float)(world - 1) / 2);
    return 0;
}

static int copies(hybridps_group *g, int rank, int world)
{
    int64_t x[4 * N], y[4 * N];
    size_t all = N * (size_t)world;
    fill(x, rank, N);
    maco_task t = task(MACO_TASK_ALLGATHER, x, y, N, MACO_I64, 0, 0);
    WANT(run(&t, g) == HL_OK);
    for (size_t i = 0; i < all; i++)
        WANT(y[i] == (int64_t)(i / N * 100000 + i % N));
    fill(x, rank, all);
    t = task(MACO_TASK_ALL_TO_ALL, x, x, N, MACO_I64, 0, 0);
    WANT(run(&t, g) == HL_OK);
    for (size_t i = 0; i < all; i++)
        WANT(x[i] == (int64_t)(i / N * 100000 + (size_t)rank * N + i % N));
    fill(x, rank, N);
    memset(y, 0, sizeof(y));
    t = task(MACO_TASK_BROADCAST, x, y, N, MACO_I64, 0, world - 1);
    WANT(run(&t, g) == HL_OK && y[1] == (world - 1) * 100000 + 1 && x[1] == rank * 100000 + 1);
    return 0;
}

/* Once around the ring. */
static int ring(hybridps_group *g, int rank, int world)
{
    uint8_t x[N] = {0}, y[N];
    memset(x, 40 + rank, N);
    maco_task send = task(MACO_TASK_SEND, x, NULL, N, MACO_U8, 0, (rank + 1) % world);
    maco_task recv = task(MACO_TASK_RECV, NULL, y, N, MACO_U8, 0, (rank + world - 1) % world);
    WANT(run(rank == 0 ? &send : &recv, g) == HL_OK);
    WANT(run(rank == 0 ? &recv : &send, g) == HL_OK);
    WANT(y[0] == 40 + (rank + world - 1) % world && y[N - 1] == y[0]);
    return 0;
}

static int everything(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL);
    WANT(reductions(g, rank, world) == 0);
    WANT(copies(g, rank, world) == 0);
    WANT(world == 1 || ring(g, rank, world) == 0);
    hybridps_group_close(g);
    return 0;
}

TEST(every_collective_task_is_a_call_of_its_group)
{
    for (int world = 1; world <= 4; world++)
        together(world, everything);
}

static int mistaken(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    float x[4] = {0};
    maco_task t = task(MACO_TASK_MATMUL, x, x, 4, MACO_F32, 0, 0);
    WANT(g != NULL);
    WANT(run(&t, g) == HL_EINVAL && strstr(hl_error_text(), "the task") != NULL);
    t = task(MACO_TASK_ALLREDUCE, x, x, 4, 9, 0, 0);
    WANT(run(&t, g) == HL_EINVAL);
    t = task(MACO_TASK_ALLREDUCE, x, x, 4, MACO_I32, MACO_AVG, 0);
    WANT(run(&t, g) == HL_EINVAL);
    t = task(MACO_TASK_BROADCAST, x, x, 4, MACO_F32, 0, world);
    WANT(run(&t, g) == HL_EINVAL);
    t = task(rank == 0 ? MACO_TASK_ALLREDUCE : MACO_TASK_ALLGATHER, x, x, 4, MACO_F32, 0, 0);
    WANT(run(&t, g) == HL_ECONFLICT); /* on both ranks, with both names */
    WANT(strstr(hl_error_text(), "allreduce of \"the task\"") != NULL);
    WANT(strstr(hl_error_text(), "allgather of \"the task\"") != NULL);
    hybridps_group_close(g);
    return 0;
}

/* Result of running a plan of one task on a group of one rank. */
static int run_alone(hybridps_group *g, const maco_op *op)
{
    const maco_runtime_options o = {MACO_RUNTIME_OPTIONS_INIT, .workers = 1, .groups = &g,
                                    .n_groups = 1};
    maco_graph *graph;
    maco_plan *plan;
    maco_runtime *rt;
    uint32_t id;
    assert_int_equal(maco_graph_new(&graph), 0);
    assert_int_equal(maco_graph_add(graph, op, &id), 0);
    assert_int_equal(maco_compile(graph, NULL, &plan), 0);
    assert_int_equal(maco_runtime_open(&o, &rt), 0);
    int st = maco_run(rt, plan);
    maco_runtime_close(rt);
    maco_plan_free(plan);
    maco_graph_free(graph);
    return st;
}

TEST(a_plan_for_other_ranks_than_the_groups_is_refused)
{
    hybridps_group *g = join(0, 1, 20000);
    float x[4] = {1}, y[8] = {0};
    maco_op op = {MACO_OP_INIT,   .type = MACO_TASK_ALLGATHER, .name = "all of it", .inputs = {x},
                  .outputs = {y}, .dims = {4, 0, 0, 0, 0, 2}};
    assert_non_null(g);
    assert_int_equal(run_alone(g, &op), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "task all of it is for 2 ranks (dims[5]), and its "
                                            "group has 1"));
    op.dims[5] = 1;
    assert_int_equal(run_alone(g, &op), 0);
    assert_true(y[0] == 1);
    op.type = MACO_TASK_BROADCAST;
    op.dims[3] = 1;
    op.dims[5] = 0;
    assert_int_equal(run_alone(g, &op), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "task all of it names rank 1 (dims[3]), and its "
                                            "group has 1"));
    hybridps_group_close(g);
}

TEST(what_is_wrong_is_said_with_the_name_of_the_task)
{
    together(2, mistaken);
}

int main(int argc, char **argv)
{
    snprintf(name, sizeof(name), "helios-test-comm-%d", (int)getpid());
    return tests_run(argc, argv);
}
