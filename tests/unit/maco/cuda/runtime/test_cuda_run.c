/* The CUDA runtime with a driver for tests (support/cuda_stub.c) that runs the real kernels' source
 * on the CPU: loading, launching, deadlines, communication in streams, reports. */
#include "support/test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "helios/hybridps.h"
#include "maco/cuda/device/abi.h"
#include "support/nccl_stub.h"
#include "unit/maco/cuda/cuda_rig.h"

#define GROUPS 3

static char nccl[512];

static int open_rig(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    setenv("CUDA_STUB_THREADS", "1", 1);
    setenv("CUDA_STUB_MULTIPROCESSORS", "8", 1);
    unsetenv("CUDA_STUB_FAIL");
    unsetenv("CUDA_STUB_WITHOUT");
    open_device(r);
    assert_int_equal(maco_graph_new(&r->graph), 0);
    *state = r;
    return 0;
}

static int close_rig(void **state)
{
    struct rig *r = *state;
    unsetenv("CUDA_STUB_FAIL");
    maco_cuda_close(r->cuda);
    hybridps_group_close(r->group);
    maco_plan_free(r->plan);
    maco_graph_free(r->graph);
    close_device(r);
    free(r);
    return 0;
}

static void open_cuda(struct rig *r, maco_cuda_options o)
{
    o.driver = driver;
    if (o.nccl == NULL)
        o.nccl = nccl;
    assert_int_equal(maco_cuda_open(0, &o, &r->cuda), 0);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), 0);
}

/* ---- */

TEST(a_machine_without_a_driver_is_told)
{
    maco_cuda *c = NULL;
    assert_int_equal(maco_cuda_available("libno-such-driver.so.1"), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libno-such-driver.so.1"));
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = "libno-such-driver.so.1"};
    assert_int_equal(maco_cuda_open(0, &o, &c), HL_EUNAVAIL);
    assert_null(c);
}

TEST_IN(open_rig, close_rig, the_device_is_described)
{
    struct rig *r = *state;
    maco_cuda_info info = {MACO_CUDA_INFO_INIT};
    add_step(r, 0, 1, NULL);
    compile(r, MACO_SCHEDULER, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .reserved = 2});
    assert_int_equal(maco_cuda_available(driver), 0);
    assert_int_equal(maco_cuda_describe(r->cuda, &info), 0);
    assert_string_equal(info.name, "Stub");
    assert_int_equal(info.multiprocessors, 8);
    assert_int_equal(info.limit, 8);
    assert_int_equal(info.workers, 5); /* of 8: 2 reserved, 1 the scheduler */
    assert_true(info.image_bytes > 10000);
}

TEST_IN(open_rig, close_rig, runs_of_each_policy)
{
    struct rig *r = *state;
    static const int policies[] = {MACO_DIRECT, MACO_SCHEDULER, MACO_STATIC};
    for (int i = 0; i < 20; i++)
        add_step(r, i % 5 == 0 ? 0 : i, i + 1, NULL);
    for (size_t k = 0; k < HL_ARRAY_LEN(policies); k++) {
        compile(r, policies[k], 3);
        open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 3, .ring = 2});
        for (int run = 0; run < 4; run++) {
            set_input(r, (float)run);
            assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
            assert_buffer(r, 20, (float)(run * 32 + 31));
        }
        maco_cuda_close(r->cuda);
        maco_plan_free(r->plan);
        r->cuda = NULL;
        r->plan = NULL;
    }
}

/* CTAs of 256 threads, with all their barriers. */
TEST_IN(open_rig, close_rig, whole_blocks)
{
    struct rig *r = *state;
    setenv("CUDA_STUB_THREADS", "256", 1);
    for (int i = 0; i < 6; i++)
        add_step(r, i, i + 1, NULL);
    compile(r, MACO_SCHEDULER, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2});
    set_input(r, 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
    assert_buffer(r, 6, 127);
}

TEST_IN(open_rig, close_rig, more_ctas_than_fit_are_refused_with_both_numbers)
{
    struct rig *r = *state;
    add_step(r, 0, 1, NULL);
    compile(r, MACO_SCHEDULER, 0);
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver, .workers = 300,
                                 .reserved = 1};
    assert_int_equal(maco_cuda_open(0, &o, &r->cuda), 0);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "NotCoResident: 300 workers"));
    assert_non_null(strstr(hl_error_text(), "at most 6 workers"));
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_EINVAL); /* nothing is loaded */
}

TEST_IN(open_rig, close_rig, a_device_that_has_no_room_now_is_told)
{
    struct rig *r = *state;
    add_step(r, 0, 1, NULL);
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 4});
    setenv("CUDA_STUB_MULTIPROCESSORS", "3", 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), "NotCoResident: 4 CTAs"));
    setenv("CUDA_STUB_MULTIPROCESSORS", "8", 1);
    set_input(r, 3);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
    assert_buffer(r, 1, 7);
}

static int not_called(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    return -1;
}

TEST_IN(open_rig, close_rig, a_function_of_the_host_is_refused_at_load)
{
    struct rig *r = *state;
    add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .function = not_called,
                        .name = "mine"});
    compile(r, MACO_DIRECT, 0);
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver};
    assert_int_equal(maco_cuda_open(0, &o, &r->cuda), 0);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "task mine"));
}

TEST_IN(open_rig, close_rig, communication_of_one_rank_is_a_copy_in_its_stream)
{
    struct rig *r = *state;
    void *comms[2] = {NULL, NULL};
    for (int i = 0; i < 4; i++) {
        add_step(r, 0, 10 + i, NULL);
        add_allreduce(r, 10 + i, 20 + i, (uint32_t)i % 2, NULL);
        add_step(r, 20 + i, 30 + i, NULL);
    }
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms,
                                     .n_comms = 2, .trace = 1});
    for (int run = 1; run <= 3; run++) {
        set_input(r, (float)run);
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
        for (int i = 0; i < 4; i++)
            assert_buffer(r, 30 + i, (float)(4 * run + 3));
    }
    maco_trace *t = NULL;
    maco_overlap o = {MACO_OVERLAP_INIT};
    assert_int_equal(maco_cuda_trace(r->cuda, &t), 0);
    assert_int_equal(maco_trace_overlap(t, &o), 0);
    assert_int_equal(o.tasks, 12);
    assert_int_equal(o.comm_before_producer, 0);
    assert_true(o.comm_ns > 0 && o.compute_ns > 0);
    maco_trace_free(t);
}

TEST_IN(open_rig, close_rig, completion_is_told_in_order)
{
    struct rig *r = *state;
    uint32_t ids[8], n = 0;
    for (int i = 0; i < 6; i++)
        add_step(r, i, i + 1, NULL);
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .trace = 1});
    assert_int_equal(maco_cuda_order(r->cuda, ids, 8, &n), HL_EINVAL); /* no run yet */
    for (int run = 0; run < 2; run++) {
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
        assert_int_equal(maco_cuda_order(r->cuda, ids, 8, &n), 0);
        assert_int_equal(n, 6);
        for (uint32_t i = 0; i < 6; i++)
            assert_int_equal(ids[i], i);
    }
}

TEST_IN(open_rig, close_rig, a_run_that_waits_too_long_ends_and_says_for_what)
{
    struct rig *r = *state;
    void *comms[1] = {NULL};
    struct gate g = {0};
    add_gate(r, &g);
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms,
                                     .n_comms = 1, .timeout_ns = 1000000000});
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ETIMEDOUT);
    assert_non_null(strstr(hl_error_text(), "did not end in 1000 ms"));
    assert_non_null(strstr(hl_error_text(), "after (event"));
    assert_non_null(strstr(hl_error_text(), "communication gate is not done: 0 of 1"));
    assert_non_null(strstr(hl_error_text(), "2 of 2 workers looked for work"));
    __atomic_store_n(&g.open, 1, __ATOMIC_SEQ_CST); /* and it runs again */
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
    assert_int_equal(g.calls, 2);
}

TEST_IN(open_rig, close_rig, a_function_that_fails_ends_the_run_with_its_words)
{
    struct rig *r = *state;
    void *comms[1] = {NULL};
    struct gate g = {.open = 1, .fails = 1};
    add_gate(r, &g);
    compile(r, MACO_DIRECT, 0);
    open_cuda(
        r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms, .n_comms = 1});
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "task gate: its function failed: the gate is broken"));
    g.fails = 0;
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
}

TEST_IN(open_rig, close_rig, a_cancelled_run_ends)
{
    struct rig *r = *state;
    void *comms[1] = {NULL};
    struct gate g = {0};
    add_gate(r, &g);
    compile(r, MACO_SCHEDULER, 0);
    open_cuda(
        r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms, .n_comms = 1});
    assert_int_equal(maco_cuda_start(r->cuda, r->stream), 0);
    assert_int_equal(maco_cuda_start(r->cuda, r->stream), HL_EBUSY);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), HL_EBUSY);
    maco_cuda_cancel(r->cuda);
    assert_int_equal(maco_cuda_wait(r->cuda), HL_ECANCELED);
    __atomic_store_n(&g.open, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
}

TEST_IN(open_rig, close_rig, a_task_of_a_missing_group_is_named)
{
    struct rig *r = *state;
    add_allreduce(r, 0, 1, 3, "sum");
    compile(r, MACO_DIRECT, 0);
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver};
    assert_int_equal(maco_cuda_open(0, &o, &r->cuda), 0);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "task sum is of group 3"));
}

/* ---- NCCL: a stand-in that records its calls ---- */

static void *in_nccl(const char *name)
{
    void *so = dlopen(nccl, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(so);
    void *at = dlsym(so, name);
    assert_non_null(at);
    return at;
}

static char *nccl_log(void)
{
    return in_nccl("nccl_stub_log");
}

static struct ncclComm comm_of_one_rank = {.ranks = 1}, comm_of_two_ranks = {.ranks = 2};

/* A step, its sum, another step. Returns the empty log. */
static char *open_sum(struct rig *r, void *comm, uint64_t timeout_ns)
{
    char *log = nccl_log();
    add_step(r, 0, 1, NULL);
    add_allreduce(r, 1, 2, 0, "sum");
    add_step(r, 2, 3, NULL);
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = &comm,
                                     .n_comms = 1, .timeout_ns = timeout_ns});
    log[0] = '\0';
    return log;
}

TEST_IN(open_rig, close_rig, nccl_is_called_in_the_order_of_the_plan)
{
    struct rig *r = *state;
    void *comms[1] = {&comm_of_one_rank};
    char *log = nccl_log();
    add_step(r, 0, 1, NULL);
    add_allreduce(r, 1, 2, 0, NULL);
    add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALL_TO_ALL, .inputs = {buffer(r, 2)},
                        .outputs = {buffer(r, 3)}, .dims = {N, 0, 0, 0, 0, 1}});
    add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_BROADCAST, .inputs = {buffer(r, 3)},
                        .outputs = {buffer(r, 4)}, .dims = {N}});
    add_step(r, 4, 5, NULL);
    compile(r, MACO_DIRECT, 0);
    open_cuda(
        r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms, .n_comms = 1});
    log[0] = '\0';
    for (int run = 1; run <= 2; run++) {
        set_input(r, (float)run);
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
        assert_buffer(r, 5, (float)(4 * run + 3));
    }
    assert_string_equal(log, "ncclAllReduce(64, 7, 0) ncclGroupStart(0, 0, 0) ncclSend(64, 7, 0) "
                             "ncclRecv(64, 7, 0) ncclGroupEnd(0, 0, 0) ncclBroadcast(64, 7, 0) "
                             "ncclAllReduce(64, 7, 0) ncclGroupStart(0, 0, 0) ncclSend(64, 7, 0) "
                             "ncclRecv(64, 7, 0) ncclGroupEnd(0, 0, 0) ncclBroadcast(64, 7, 0) ");
    setenv("NCCL_STUB_FAIL", "ncclSend", 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_EIO);
    unsetenv("NCCL_STUB_FAIL");
    assert_non_null(strstr(hl_error_text(), "ncclSend: internal error of the stub"));
    assert_non_null(strstr(log, "ncclSend(64, 7, 0) ncclGroupEnd(0, 0, 0) ")); /* even so */
}

TEST_IN(open_rig, close_rig, an_error_of_nccl_names_the_task_and_ends_the_run)
{
    struct rig *r = *state;
    open_sum(r, &comm_of_one_rank, 0);
    setenv("NCCL_STUB_FAIL", "ncclAllReduce", 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "task sum: ncclAllReduce: internal error of the stub"));
    unsetenv("NCCL_STUB_FAIL");
}

/* The stream waits for an event that never fires: its communicator is abandoned with the run. */
TEST_IN(open_rig, close_rig, a_communicator_that_waits_is_aborted_with_the_run)
{
    struct rig *r = *state;
    void *comms[2] = {NULL, &comm_of_one_rank};
    struct gate g = {0};
    char *log = nccl_log();
    add_gate(r, &g);
    add_allreduce(r, 3, 4, 1, "sum");
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms,
                                     .n_comms = 2, .timeout_ns = 200000000});
    log[0] = '\0';
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ETIMEDOUT);
    assert_non_null(strstr(log, "ncclCommAbort(0, 0, 1)"));
    __atomic_store_n(&g.open, 1, __ATOMIC_SEQ_CST);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ESTALE);
    assert_non_null(strstr(hl_error_text(), "communicator of group 1 was aborted"));
}

/* ---- several ranks: threads of this process, on one device ---- */

struct member {
    pthread_t thread;
    struct rig *rig;
    struct CUstream_st
        *stream; /* its own: a run in another rank's stream would wait for that one */
    int rank, world, runs, late; /* late: rank 1's plan sums fewer */
    int status;
    char why[512];
};

static maco_plan *plan_of(struct member *m)
{
    struct rig own = {.data = m->rig->data + (size_t)m->rank * 8 * N};
    int32_t n = m->late && m->rank == 1 ? N - 4 : N;
    assert_int_equal(maco_graph_new(&own.graph), 0);
    add_step(&own, 0, 1, NULL);
    add_op(&own, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALLREDUCE, .inputs = {buffer(&own, 1)},
                           .outputs = {buffer(&own, 2)}, .dims = {n, 0, MACO_SUM}, .name = "sum"});
    add_step(&own, 2, 3, NULL);
    compile(&own, MACO_DIRECT, 0);
    maco_graph_free(own.graph);
    return own.plan;
}

static int run_member(struct member *m, hybridps_group *g)
{
    hybridps_group *groups[1] = {g};
    maco_cuda *c = NULL;
    maco_plan *p = plan_of(m);
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT,   .driver = driver, .workers = 1,
                                 .groups = groups,         .n_comms = 1,     .peer_ctas = 2,
                                 .timeout_ns = 60000000000};
    int st = maco_cuda_open(0, &o, &c);
    if (st == 0)
        st = maco_cuda_load(c, p);
    for (int run = 1; st == 0 && run <= m->runs; run++) {
        struct rig own = {.data = m->rig->data + (size_t)m->rank * 8 * N};
        set_input(&own, (float)(run + m->rank));
        st = maco_cuda_run(c, m->stream);
        float sum = 0; /* of 2 (run + rank) + 1 */
        for (int k = 0; k < m->world; k++)
            sum += (float)(2 * (run + k) + 1);
        for (int i = 0; st == 0 && i < N; i++)
            st = buffer(&own, 3)[i] == 2 * sum + 1 ? 0 : -1000 - i;
    }
    snprintf(m->why, sizeof(m->why), "%s", hl_error_text());
    maco_cuda_close(c);
    maco_plan_free(p);
    return st;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    hybridps_group *g = NULL;
    char name[64];
    snprintf(name, sizeof(name), "helios-test-cuda-run-%d", (int)getpid());
    const hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = m->rank,
                                    .world = m->world, .timeout_ms = 60000};
    m->status = hybridps_group_shm(&o, &g);
    if (m->status == 0)
        m->status = run_member(m, g);
    hybridps_group_close(g);
    return NULL;
}

static void together(struct rig *r, struct member *m, int world, int runs, int late)
{
    struct CUctx_st *old;
    for (int k = 0; k < world; k++) {
        m[k] = (struct member){.rig = r, .rank = k, .world = world, .runs = runs, .late = late};
        MUST(r, cuCtxPushCurrent_v2, (r->context));
        MUST(r, cuStreamCreate, (&m[k].stream, HL_CU_STREAM_NON_BLOCKING));
        MUST(r, cuCtxPopCurrent_v2, (&old));
        assert_int_equal(pthread_create(&m[k].thread, NULL, member_main, &m[k]), 0);
    }
    for (int k = 0; k < world; k++) {
        pthread_join(m[k].thread, NULL);
        MUST(r, cuCtxPushCurrent_v2, (r->context));
        MUST(r, cuStreamDestroy_v2, (m[k].stream));
        MUST(r, cuCtxPopCurrent_v2, (&old));
    }
}

TEST_IN(open_rig, close_rig, ranks_communicate_inside_the_kernel)
{
    struct member m[3];
    together(*state, m, 3, 4, 0);
    for (int k = 0; k < 3; k++)
        assert_string_equal(m[k].status != 0 ? m[k].why : "", "");
}

TEST_IN(open_rig, close_rig, ranks_with_different_plans_are_told_before_the_run)
{
    struct member m[3];
    together(*state, m, 3, 1, 1);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(m[k].status, HL_ECONFLICT);
        assert_non_null(
            strstr(m[k].why, "collective 0 is \"sum\" (ALLREDUCE of 64 F32) on rank 0"));
        assert_non_null(strstr(m[k].why, "(ALLREDUCE of 60 F32) on rank 1"));
    }
}

static hybridps_group *group_of_one(struct rig *r)
{
    char name[64];
    snprintf(name, sizeof(name), "helios-test-cuda-run-%d", (int)getpid());
    const hybridps_shm_options alone = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .world = 1};
    assert_int_equal(hybridps_group_shm(&alone, &r->group), 0);
    return r->group;
}

TEST_IN(open_rig, close_rig, what_the_kernel_has_not_is_refused_for_its_groups)
{
    struct rig *r = *state;
    hybridps_group *groups[1] = {group_of_one(r)};
    add_op(r, (maco_op){MACO_OP_INIT, .type = MACO_TASK_SEND, .inputs = {buffer(r, 0)},
                        .dims = {N, 0, 0, 0, 0, 1}, .name = "away"});
    compile(r, MACO_DIRECT, 0);
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver, .groups = groups,
                                 .n_comms = 1, .peer_ctas = 1};
    assert_int_equal(maco_cuda_open(0, &o, &r->cuda), 0);
    assert_int_equal(maco_cuda_load(r->cuda, r->plan), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "task away: group 0 communicates inside the kernel"));
}

/* A group inside the kernel that a failed run used cannot be used again; runs without it go on. */
TEST_IN(open_rig, close_rig, a_group_whose_run_failed_is_not_used_again)
{
    struct rig *r = *state;
    struct gate gate = {0};
    hybridps_group *groups[2] = {NULL, group_of_one(r)};
    add_gate(r, &gate);
    compile(r, MACO_DIRECT, 0);
    maco_plan *without = r->plan;
    add_allreduce(r, 3, 4, 1, "sum");
    add_allreduce(r, 4, 5, 1, "sum of sums");
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .groups = groups,
                                     .n_comms = 2, .peer_ctas = 1, .timeout_ns = 500000000});
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ETIMEDOUT);
    gate.open = 1;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(maco_cuda_load(r->cuda, r->plan), 0);
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ESTALE);
        assert_non_null(strstr(hl_error_text(), "task sum: a run of group 1 failed"));
        assert_int_equal(maco_cuda_load(r->cuda, without), 0);
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
    }
    maco_plan_free(r->plan);
    r->plan = without;
}

TEST_IN(open_rig, close_rig, a_plan_for_other_ranks_than_the_groups_is_refused)
{
    struct rig *r = *state;
    void *comms[1] = {&comm_of_two_ranks};
    add_op(r,
           (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALLGATHER, .inputs = {buffer(r, 0)},
                     .outputs = {buffer(r, 1)}, .dims = {N, 0, 0, 0, 0, 3}, .name = "all of it"});
    compile(r, MACO_DIRECT, 0);
    open_cuda(
        r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms, .n_comms = 1});
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "task all of it is for 3 ranks (dims[5]), and its "
                                            "group has 2"));
}

TEST_IN(open_rig, close_rig, plans_are_compared_over_nccl_where_there_is_no_group)
{
    struct rig *r = *state;
    char *log = open_sum(r, &comm_of_two_ranks, 0);
    setenv("NCCL_STUB_OTHER", "another order", 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ECONFLICT);
    unsetenv("NCCL_STUB_OTHER");
    assert_non_null(strstr(hl_error_text(), "group 0: collective 0 is \"sum\""));
    assert_null(strstr(log, "ncclAllReduce"));
    log[0] = '\0';
    for (int run = 0; run < 2; run++)
        assert_int_equal(maco_cuda_run(r->cuda, r->stream), 0);
    assert_string_equal(log, "ncclAllGather(8, 1, 0) ncclAllReduce(64, 7, 0) "
                             "ncclAllReduce(64, 7, 0) "); /* once per plan */
}

/* No other rank comes to the comparison; the next run finds no communicator. */
static void nobody_comes(struct rig *r)
{
    setenv("NCCL_STUB_ALONE", "1", 1);
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ETIMEDOUT);
    unsetenv("NCCL_STUB_ALONE");
    assert_non_null(strstr(hl_error_text(), "comparing the order of collectives over NCCL"));
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ESTALE);
    assert_non_null(strstr(hl_error_text(), "communicator of group 0 was aborted"));
}

TEST_IN(open_rig, close_rig, a_rank_that_does_not_come_to_the_comparison_costs_the_communicator)
{
    struct rig *r = *state;
    char *log = open_sum(r, &comm_of_two_ranks, 200000000);
    nobody_comes(r);
    assert_string_equal(log, "ncclAllGather(8, 1, 0) ncclCommAbort(0, 0, 2) ");
}

/* Then it is not waited for, and what NCCL may still write to stays NCCL's until it returns. */
TEST_IN(open_rig, close_rig, an_abort_that_does_not_come_back_is_left_alone)
{
    struct rig *r = *state;
    int *holds = in_nccl("nccl_stub_holds_aborts");
    (void)open_sum(r, &comm_of_two_ranks, 200000000);
    size_t before = free_memory(r);
    __atomic_store_n(holds, 1, __ATOMIC_RELEASE);
    nobody_comes(r);
    assert_true(free_memory(r) < before);
    __atomic_store_n(holds, 0, __ATOMIC_RELEASE);
    await_memory(r, before);
}

/* They are abandoned together. */
TEST_IN(open_rig, close_rig, several_aborts_that_do_not_come_back_have_one_deadline)
{
    struct rig *r = *state;
    static struct ncclComm each[GROUPS]; /* a thread that aborts one may still be returning */
    void *comms[GROUPS];
    int *holds = in_nccl("nccl_stub_holds_aborts");
    struct gate g = {0};
    add_gate(r, &g);
    for (uint32_t k = 0; k < GROUPS; k++) {
        each[k] = (struct ncclComm){.ranks = 1};
        comms[k] = &each[k];
        add_allreduce(r, 3, 4 + (int)k, k, NULL);
    }
    compile(r, MACO_DIRECT, 0);
    open_cuda(r, (maco_cuda_options){MACO_CUDA_OPTIONS_INIT, .workers = 2, .comms = comms,
                                     .n_comms = GROUPS, .timeout_ns = 200000000});
    __atomic_store_n(holds, 1, __ATOMIC_RELEASE);
    uint64_t began = hl_now_ns();
    assert_int_equal(maco_cuda_run(r->cuda, r->stream), HL_ETIMEDOUT);
    uint64_t took = hl_now_ns() - began;
    __atomic_store_n(holds, 0, __ATOMIC_RELEASE);
    for (uint32_t k = 0; k < GROUPS; k++)
        while (!__atomic_load_n(&each[k].aborted, __ATOMIC_ACQUIRE)) /* CTest ends it */
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_in_range(took, 5 * HL_NS_PER_S, 10 * HL_NS_PER_S);
}

/* Whichever call of the driver fails: an error with its name, and nothing is left behind. */
TEST_IN(open_rig, close_rig, each_call_may_fail)
{
    static const char *const calls[] = {
        "cuModuleLoadData:1",  "cuModuleGetFunction:1",
        "cuStreamCreate:1",    "cuEventCreate:2",
        "cuMemHostAlloc:1",    "cuMemAlloc:1",
        "cuMemcpyHtoDAsync:1", "cuLaunchCooperativeKernel:1",
        "cuStreamWaitEvent:1", "cuStreamWaitValue64:1",
        "cuMemcpyAsync:1",     "cuStreamWriteValue64:1",
    };
    struct rig *r = *state;
    void *comms[1] = {NULL};
    add_step(r, 0, 1, NULL);
    add_allreduce(r, 1, 2, 0, NULL);
    compile(r, MACO_DIRECT, 0);
    for (size_t i = 0; i < HL_ARRAY_LEN(calls); i++) {
        char name[64];
        const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver, .comms = comms,
                                     .n_comms = 1};
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(calls[i], ":"), calls[i]);
        setenv("CUDA_STUB_FAIL", calls[i], 1);
        int st = maco_cuda_open(0, &o, &r->cuda);
        if (st == 0)
            st = maco_cuda_load(r->cuda, r->plan);
        if (st == 0)
            st = maco_cuda_run(r->cuda, r->stream);
        if (st == 0)
            fail_msg("%s failed and nobody said so", calls[i]);
        assert_non_null(strstr(hl_error_text(), name));
        maco_cuda_close(r->cuda);
        r->cuda = NULL;
    }
}

int main(int argc, char **argv)
{
    find_stand_ins();
    find_library("nccl_stub_21805", nccl);
    return tests_run(argc, argv);
}
