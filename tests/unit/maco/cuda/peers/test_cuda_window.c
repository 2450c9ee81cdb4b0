/* Where ranks get memory for collectives inside the kernel: NCCL's windows, CUDA IPC, otherwise
 * streams. All ranks choose the same, whatever fails on one. Ranks are threads with a runtime each,
 * with the stand-ins for the driver and for NCCL, which abort the process if something is left
 * behind or released too early. */
#include "support/test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "helios/hybridps.h"
#include "maco/cuda/device/abi.h"
#include "support/nccl_stub.h"
#include "unit/maco/cuda/cuda_rig.h"

#define WORLD 3
#define MANY  (HL_GPU_RANKS + 1)

static char nccl[3][512]; /* 2.18, 2.28.9, 2.29.2 */

enum { OLD, KERNEL, LIBRARY };

/* Input of the ranks, and their results. */
struct trial {
    int world;
    int version[MANY], alone[MANY]; /* alone: it has no communicator */
    int reversed;                   /* NCCL numbers the ranks in reverse order */
    uint64_t timeout_ns;
    struct nccl_stub_team team;
    struct ncclComm comms[MANY];
    int status[MANY];
    char route[MANY][512];
    uint32_t peer_ctas[MANY];
};

struct member {
    pthread_t thread;
    struct trial *trial;
    struct rig rig;
    int rank;
};

static maco_plan *plan_of(struct member *m)
{
    float *x = m->rig.data;
    const maco_op sum = {MACO_OP_INIT,       .type = MACO_TASK_ALLREDUCE, .inputs = {x},
                         .outputs = {x + N}, .dims = {N, 0, MACO_SUM},    .name = "sum"};
    const maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .infer = 1};
    maco_graph *g;
    maco_plan *p;
    uint32_t id;
    assert_int_equal(maco_graph_new(&g), 0);
    assert_int_equal(maco_graph_add(g, &sum, &id), 0);
    assert_int_equal(maco_compile(g, &o, &p), 0);
    maco_graph_free(g);
    return p;
}

/* Inside the kernel the sum is over all ranks; the stand-in's streams only copy. */
static int run(struct member *m, maco_cuda *c)
{
    float *x = m->rig.data;
    int inside = strncmp(maco_cuda_route(c, 0), "inside", 6) == 0;
    maco_plan *p = plan_of(m);
    int st = maco_cuda_load(c, p);
    for (int k = 1; st == 0 && k <= 3; k++) {
        float sum = 0;
        for (int r = 0; r < m->trial->world; r++)
            sum += (float)(k * (r + 1));
        for (int i = 0; i < N; i++)
            x[i] = (float)(k * (m->rank + 1));
        st = maco_cuda_run(c, m->rig.stream);
        for (int i = 0; st == 0 && i < N; i++)
            st = x[N + i] == (inside ? sum : x[i]) ? 0 : -1000 - i;
    }
    maco_cuda_close(c);
    maco_plan_free(p);
    return st;
}

static int open_and_run(struct member *m, hybridps_group *g)
{
    struct trial *t = m->trial;
    hybridps_group *groups[1] = {g};
    void *comms[1] = {t->alone[m->rank] ? NULL : &t->comms[m->rank]};
    maco_cuda *c = NULL;
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT,
                                 .driver = driver,
                                 .nccl = nccl[t->version[m->rank]],
                                 .workers = 1,
                                 .comms = comms,
                                 .groups = groups,
                                 .n_comms = 1,
                                 .peer_ctas = t->peer_ctas[m->rank],
                                 .timeout_ns = t->timeout_ns};
    int st = maco_cuda_open(0, &o, &c);
    snprintf(t->route[m->rank], sizeof(t->route[0]), "%s",
             st == 0 ? maco_cuda_route(c, 0) : hl_error_text());
    if (st == 0 && maco_cuda_route(c, 1) != NULL)
        return -1; /* there is one group */
    return st == 0 ? run(m, c) : st;
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    hybridps_group *g = NULL;
    char name[64];
    snprintf(name, sizeof(name), "helios-test-cuda-window-%d", (int)getpid());
    const hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = m->rank,
                                    .world = m->trial->world, .timeout_ms = 60000};
    int st = hybridps_group_shm(&o, &g);
    m->trial->status[m->rank] = st == 0 ? open_and_run(m, g) : st;
    hybridps_group_close(g);
    return NULL;
}

static void together(struct trial *t)
{
    struct member m[MANY];
    for (int k = 0; k < t->world; k++) {
        t->comms[k] = (struct ncclComm){
            .ranks = t->world, .rank = t->reversed ? t->world - 1 - k : k, .team = &t->team};
        m[k] = (struct member){.trial = t, .rank = k};
        open_device(&m[k].rig);
    }
    for (int k = 0; k < t->world; k++)
        assert_int_equal(pthread_create(&m[k].thread, NULL, member_main, &m[k]), 0);
    for (int k = 0; k < t->world; k++)
        pthread_join(m[k].thread, NULL);
    for (int k = 0; k < t->world; k++)
        close_device(&m[k].rig);
}

static void all_go(struct trial *t, const char *way)
{
    together(t);
    for (int k = 0; k < t->world; k++) {
        if (t->status[k] != 0 || strncmp(t->route[k], way, strlen(way)) != 0)
            fail_msg("rank %d: %d, \"%s\" and not \"%s\"", k, t->status[k], t->route[k], way);
    }
}

#define TRIAL(v)                                                                                   \
    {                                                                                              \
        .world = WORLD, .version = {[0 ... MANY - 1] = (v)}, .peer_ctas = {[0 ... MANY - 1] = 2},  \
        .timeout_ns = 60000000000ull, .team = NCCL_STUB_TEAM                                       \
    }

static int clean(void **state)
{
    static const char *const names[] = {"CUDA_STUB_FAIL",  "NCCL_STUB_FAIL",  "NCCL_STUB_ABSENT",
                                        "NCCL_STUB_LATE",  "NCCL_WIN_ENABLE", "NCCL_STUB_ASTRAY",
                                        "CUDA_STUB_MEMORY"};
    (void)state;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    return 0;
}

#define IPC "inside the kernel, over CUDA IPC; not over NCCL's windows: "

TEST_IN(clean, clean, windows_by_the_kernel_and_by_the_library)
{
    for (int version = KERNEL; version <= LIBRARY; version++)
        for (int reversed = 0; reversed <= 1; reversed++) {
            struct trial t = TRIAL(version);
            t.reversed = reversed;
            all_go(&t, "inside the kernel, over NCCL's windows");
        }
}

TEST_IN(clean, clean, a_communicator_that_does_not_block_is_asked_again)
{
    struct trial t = TRIAL(KERNEL);
    setenv("NCCL_STUB_LATE", "1", 1);
    all_go(&t, "inside the kernel, over NCCL's windows");
}

TEST_IN(clean, clean, a_library_without_windows_on_one_rank)
{
    struct trial t = TRIAL(KERNEL);
    t.version[1] = OLD;
    all_go(&t, IPC "rank 1: NCCL is version 21805 and has no ncclCommCuDevice");
}

TEST_IN(clean, clean, a_rank_without_a_communicator)
{
    struct trial t = TRIAL(LIBRARY);
    t.alone[2] = 1;
    all_go(&t, IPC "rank 2: it has no communicator");
}

TEST_IN(clean, clean, memory_is_refused)
{
    struct trial t = TRIAL(KERNEL);
    setenv("NCCL_STUB_FAIL", "ncclMemAlloc", 1);
    all_go(&t, IPC "rank 0: ncclMemAlloc: internal error of the stub (3)");
}

TEST_IN(clean, clean, registration_is_refused_on_one_rank)
{
    struct trial t = TRIAL(KERNEL);
    setenv("NCCL_STUB_FAIL", "ncclCommWindowRegister:1", 1);
    all_go(&t, IPC "rank 1: ncclCommWindowRegister: internal error of the stub (3)");
}

/* The others wait for it in NCCL, which has no deadline; Helios has one. */
TEST_IN(clean, clean, a_rank_that_never_registers)
{
    struct trial t = TRIAL(KERNEL);
    int late = 0;
    t.timeout_ns = 2000000000;
    setenv("NCCL_STUB_ABSENT", "1", 1);
    together(&t);
    for (int k = 0; k < WORLD; k++) {
        assert_non_null(strstr(t.route[k], IPC "rank 0: ncclCommWindowRegister: "));
        late += strstr(t.route[k], "not back after 2000 ms, its communicator was aborted") != NULL;
    }
    /* rank 0 or rank 2 gave up first, which ended the other one's call */
    assert_true(late == WORLD || late == 0);
    assert_true(late > 0 ? t.comms[0].aborted : t.comms[2].aborted);
    assert_false(t.comms[1].aborted);
}

TEST_IN(clean, clean, a_communicator_that_was_given_up_serves_no_streams)
{
    struct trial t = TRIAL(KERNEL);
    t.timeout_ns = 300000000;
    setenv("NCCL_STUB_ABSENT", "1", 1);
    setenv("CUDA_STUB_FAIL", "cuIpcGetMemHandle:1:801", 1);
    together(&t);
    for (int k = 0; k < WORLD; k++) {
        assert_int_not_equal(t.status[k], 0);
        assert_non_null(strstr(t.route[k], "; not by streams: rank "));
        assert_non_null(strstr(t.route[k], ": its communicator was aborted"));
    }
}

TEST_IN(clean, clean, no_symmetric_memory)
{
    struct trial t = TRIAL(LIBRARY);
    setenv("NCCL_WIN_ENABLE", "0", 1);
    all_go(&t, IPC "rank 0: NCCL has no symmetric memory here");
}

TEST_IN(clean, clean, ranks_that_do_not_all_reach_each_other)
{
    for (int version = KERNEL; version <= LIBRARY; version++) {
        struct trial t = TRIAL(version);
        (void)state;
        t.team.lsa = 1;
        all_go(&t, IPC "rank 0: 1 of its 3 ranks reach each other's memory");
    }
}

TEST_IN(clean, clean, an_address_that_leads_elsewhere)
{
    setenv("NCCL_STUB_ASTRAY", "1", 1);
    for (int version = KERNEL; version <= LIBRARY; version++) {
        struct trial t = TRIAL(version);
        all_go(&t, IPC "rank 1: the address for rank 0 leads to other memory");
    }
}

/* Without any such memory, those that can use streams do. */
TEST_IN(clean, clean, neither_goes_by_streams_if_all_have_a_communicator)
{
    struct trial t = TRIAL(OLD), u = TRIAL(OLD);
    setenv("CUDA_STUB_FAIL", "cuIpcGetMemHandle:2:801", 1);
    all_go(&t, "by streams; not over NCCL's windows: rank 0: NCCL is version 21805");
    assert_non_null(strstr(t.route[0], "; not over CUDA IPC: rank "));
    assert_non_null(strstr(t.route[0], "cuIpcGetMemHandle: "));
    setenv("CUDA_STUB_FAIL", "cuIpcGetMemHandle:1:801", 1);
    u.alone[2] = 1;
    together(&u);
    for (int k = 0; k < WORLD; k++) {
        assert_int_equal(u.status[k], HL_EUNSUPPORTED);
        assert_non_null(strstr(u.route[k], "neither inside the kernel nor by streams"));
        assert_non_null(strstr(u.route[k], "; not by streams: rank 2: it has no communicator"));
    }
}

#define TOO_MANY "; not inside the kernel: its 65 ranks are more than 64"

TEST_IN(clean, clean, more_ranks_than_the_kernel_knows_go_by_streams)
{
    struct trial t = TRIAL(OLD);
    t.world = MANY;
    setenv("CUDA_STUB_MEMORY", "536870912", 1); /* enough for all of them */
    all_go(&t, "by streams" TOO_MANY);
}

TEST_IN(clean, clean, of_more_ranks_than_the_kernel_knows_all_need_a_communicator)
{
    struct trial t = TRIAL(OLD);
    t.world = MANY;
    t.alone[7] = 1;
    together(&t);
    for (int k = 0; k < MANY; k++) {
        assert_int_equal(t.status[k], HL_EUNSUPPORTED);
        assert_non_null(strstr(t.route[k], TOO_MANY "; not by streams: rank 7: it has no"));
    }
}

TEST_IN(clean, clean, different_ctas_are_told)
{
    struct trial t = TRIAL(KERNEL);
    t.peer_ctas[2] = 3;
    together(&t);
    for (int k = 0; k < WORLD; k++) {
        assert_int_equal(t.status[k], HL_ECONFLICT);
        assert_non_null(strstr(t.route[k], k < 2 ? "2 CTAs here and 3 on rank 2"
                                                 : "3 CTAs here and 2 on rank 0"));
    }
}

/* Whichever call the driver refuses: another source, or an error; nothing is left behind. */
TEST_IN(clean, clean, each_call_of_the_driver_may_fail)
{
    static const char *const calls[] = {"cuMemAlloc:5", "cuLaunchCooperativeKernel:2",
                                        "cuMemcpyDtoHAsync:1", "cuMemcpyDtoHAsync:5",
                                        "cuMemcpyHtoDAsync:2"};
    for (size_t i = 0; i < HL_ARRAY_LEN(calls); i++) {
        struct trial t = TRIAL(KERNEL);
        setenv("CUDA_STUB_FAIL", calls[i], 1);
        together(&t);
        for (int k = 0; k < WORLD; k++) {
            assert_string_equal(t.route[k], t.route[0]);
            assert_true(t.status[k] == 0);
        }
    }
}

/* ---- closing waits for a while, and then no longer ---- */

static int *switch_of(const char *library, const char *name)
{
    void *so = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(so);
    int *found = dlsym(so, name);
    assert_non_null(found);
    return found;
}

TEST_IN(clean, clean, a_window_that_does_not_come_back_is_left_alone)
{
    struct trial t = TRIAL(KERNEL);
    struct rig r;
    int *holds = switch_of(nccl[KERNEL], "nccl_stub_holds_windows");
    open_device(&r);
    size_t before = free_memory(&r);
    __atomic_store_n(holds, 1, __ATOMIC_RELEASE);
    all_go(&t, "inside the kernel, over NCCL's windows");
    assert_true(free_memory(&r) < before);
    __atomic_store_n(holds, 0, __ATOMIC_RELEASE);
    await_memory(&r, before);
    close_device(&r);
}

/* Its frees wait for the device's work; what is left is released when they return. */
TEST_IN(clean, clean, a_driver_that_frees_nothing_does_not_hold_up_closing)
{
    const maco_cuda_options o = {MACO_CUDA_OPTIONS_INIT, .driver = driver, .workers = 1};
    int *holds = switch_of(driver, "cuda_stub_holds_frees");
    struct rig r = {0};
    open_device(&r);
    size_t before = free_memory(&r);
    assert_int_equal(maco_graph_new(&r.graph), 0);
    add_step(&r, 0, 1, NULL);
    compile(&r, MACO_DIRECT, 0);
    assert_int_equal(maco_cuda_open(0, &o, &r.cuda), 0);
    assert_int_equal(maco_cuda_load(r.cuda, r.plan), 0);
    assert_int_equal(maco_cuda_run(r.cuda, r.stream), 0);
    __atomic_store_n(holds, 1, __ATOMIC_RELEASE);
    maco_cuda_close(r.cuda);
    assert_true(free_memory(&r) < before);
    __atomic_store_n(holds, 0, __ATOMIC_RELEASE);
    await_memory(&r, before);
    maco_plan_free(r.plan);
    maco_graph_free(r.graph);
    close_device(&r);
}

int main(int argc, char **argv)
{
    static const char *const stubs[] = {"nccl_stub_21805", "nccl_stub_22809", "nccl_stub_22902"};
    find_stand_ins();
    for (int i = 0; i < 3; i++)
        find_library(stubs[i], nccl[i]);
    return tests_run(argc, argv);
}
