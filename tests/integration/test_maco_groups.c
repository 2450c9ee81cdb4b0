/* Plans with collectives, run by two to four processes over shared memory: results, a rank that
 * would run something else, one that dies, one that never comes. A rank is this program again, with
 * arguments: ThreadSanitizer does not allow a child that only forked to start threads. */
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "helios/hybridps.h"
#include "helios/maco.h"

#define N     4096
#define RANKS 4

/* What a rank leaves behind for the test to check. */
struct report {
    int status, again; /* the first run that failed, and the one after it */
    int gave_up;
    uint64_t took_ns;
    char text[HL_ERROR_TEXT_MAX];
    float got[N];
};

struct rank {
    int rank, world, what;
    struct report *report;
};

enum what { WELL, SWAPPED, DIES, NEVER_COMES, HANGS };

static int fill(void *arg, const maco_task *task)
{
    float *x = arg;
    (void)task;
    for (int i = 0; i < N; i++)
        x[i] = x[N] * (float)(i % 17);
    return 0;
}

static int die(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    raise(SIGKILL);
    return 0;
}

static const int
    *others_gave_up; /* set when rank 0 has its verdict, and that of the run after it */

static void await_verdict(void)
{
    uint64_t end = hl_now_ns() + 15 * HL_NS_PER_S;
    while (!__atomic_load_n(others_gave_up, __ATOMIC_ACQUIRE) && hl_now_ns() < end)
        usleep(1000);
}

static int hang(void *arg, const maco_task *task)
{
    (void)arg;
    (void)task;
    await_verdict();
    return HL_ECANCELED;
}

static uint32_t add(maco_graph *g, int type, const char *name, float *x, maco_function f,
                    int32_t count)
{
    maco_range range = {(uint64_t)(uintptr_t)x, N * sizeof(float)};
    maco_op op = {MACO_OP_INIT, .type = type, .name = name, .dims = {count}};
    uint32_t id = MACO_NONE;
    if (type == MACO_TASK_CUSTOM_COMPUTE) {
        op.function = f;
        op.arg = x;
        op.writes = &range;
        op.n_writes = 1;
    } else {
        op.inputs[0] = op.outputs[0] = x;
    }
    if (maco_graph_add(g, &op, &id) != 0)
        fprintf(stderr, "add %s: %s\n", name, hl_error_text());
    return id;
}

/* Fills two tensors and sums them. */
static int run_rank(const struct rank *r, hybridps_group *group, int policy)
{
    static float x[N + 1], y[N + 1];
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_runtime *rt = NULL;
    maco_compile_options c = {MACO_COMPILE_OPTIONS_INIT, .policy = policy, .workers = 2,
                              .infer = 1};
    /* Not on the rank that hangs: what it runs uses the plan until it returns. */
    int short_of_time = r->what >= NEVER_COMES && r->rank == 0;
    maco_runtime_options o = {
        MACO_RUNTIME_OPTIONS_INIT, .workers = 2,
        .policy = policy,          .timeout_ns = (short_of_time ? 1 : 20) * HL_NS_PER_S,
        .groups = &group,          .n_groups = 1};
    x[N] = (float)(r->rank + 1);
    y[N] = (float)(10 * (r->rank + 1));
    int st = maco_graph_new(&g);
    int swap = r->what == SWAPPED && r->rank == 1;
    maco_function fault = r->rank != 1       ? NULL
                          : r->what == DIES  ? die
                          : r->what == HANGS ? hang
                                             : NULL;
    add(g, MACO_TASK_CUSTOM_COMPUTE, "fill x", x, fault != NULL ? fault : fill, 0);
    add(g, MACO_TASK_CUSTOM_COMPUTE, "fill y", y, fill, 0);
    add(g, MACO_TASK_ALLREDUCE, "sum x", x, NULL, N);
    add(g, MACO_TASK_ALLREDUCE, "sum y", y, NULL, swap ? N / 2 : N);
    if (st == 0)
        st = maco_compile(g, &c, &p);
    if (st == 0)
        st = maco_runtime_open(&o, &rt);
    for (int k = 0; k < 3 && st == 0; k++)
        st = maco_run(rt, p);
    snprintf(r->report->text, sizeof(r->report->text), "%s", hl_error_text());
    if (r->what == HANGS && r->rank == 0)
        r->report->again = maco_run(rt, p);
    __atomic_store_n(&r->report->gave_up, r->rank == 0, __ATOMIC_RELEASE);
    for (int i = 0; i < N; i++)
        r->report->got[i] = x[i] + y[i];
    maco_runtime_close(rt);
    maco_plan_free(p);
    maco_graph_free(g);
    return st;
}

static void be_rank(const struct rank *r, const char *name, int policy)
{
    hybridps_group *group = NULL;
    hybridps_shm_options o = {HYBRIDPS_SHM_OPTIONS_INIT, .name = name, .rank = r->rank,
                              .world = r->world};
    o.timeout_ms = r->what == HANGS ? 60000 : 20000; /* also that of joining */
    if (hybridps_group_shm(&o, &group) != 0)
        _exit(9);
    uint64_t began = hl_now_ns();
    if (r->what == NEVER_COMES && r->rank == 1)
        await_verdict(); /* it is alive, and does not call */
    else
        r->report->status = run_rank(r, group, policy);
    r->report->took_ns = hl_now_ns() - began;
    hybridps_group_close(group);
    _exit(0);
}

static struct report *map_reports(int fd)
{
    return mmap(NULL, RANKS * sizeof(struct report), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* argv: rank world what policy name fd */
static void rank_main(char **argv)
{
    struct rank r = {atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), NULL};
    struct report *reports = map_reports(atoi(argv[6]));
    if (reports == MAP_FAILED)
        _exit(8);
    r.report = &reports[r.rank];
    others_gave_up = &reports[0].gave_up;
    be_rank(&r, argv[5], atoi(argv[4]));
}

static pid_t start_rank(int rank, int world, int what, int policy, char *name, int fd)
{
    char text[5][16], self[] = "rank";
    int numbers[] = {rank, world, what, policy, fd};
    for (int i = 0; i < 5; i++)
        snprintf(text[i], sizeof(text[i]), "%d", numbers[i]);
    char *argv[] = {self, text[0], text[1], text[2], text[3], name, text[4], NULL};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execv("/proc/self/exe", argv);
        _exit(7);
    }
    return pid;
}

static struct report *run_world(int world, int what, int policy)
{
    int fd = memfd_create("reports", 0);
    pid_t pids[RANKS];
    char name[64];
    assert_int_equal(ftruncate(fd, RANKS * sizeof(struct report)), 0);
    struct report *reports = map_reports(fd);
    assert_true(reports != MAP_FAILED);
    snprintf(name, sizeof(name), "maco-%d-%d-%d-%d", (int)getpid(), world, what, policy);
    for (int k = 0; k < world; k++) {
        reports[k].status = -99;
        pids[k] = start_rank(k, world, what, policy, name, fd);
    }
    for (int k = 0; k < world; k++) {
        int status;
        waitpid(pids[k], &status, 0);
        if (!WIFSIGNALED(status))
            assert_int_equal(WEXITSTATUS(status), 0);
    }
    close(fd);
    return reports;
}

TEST(all_ranks_get_the_sums)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++)
        for (int world = 2; world <= RANKS; world += 2) {
            struct report *r = run_world(world, WELL, policy);
            float ranks = (float)(world * (world + 1) / 2);
            for (int k = 0; k < world; k++) {
                if (r[k].status != 0)
                    fail_msg("rank %d of %d: %s", k, world, r[k].text);
                for (int i = 0; i < N; i++)
                    assert_true(r[k].got[i] == 11 * ranks * (float)(i % 17));
            }
            munmap(r, RANKS * sizeof(*r));
        }
}

TEST(a_rank_with_another_order_is_named_by_all)
{
    struct report *r = run_world(3, SWAPPED, MACO_DIRECT);
    for (int k = 0; k < 3; k++) {
        assert_int_equal(r[k].status, HL_ECONFLICT);
        assert_non_null(strstr(r[k].text, "collective 1 is"));
        assert_non_null(strstr(r[k].text, "\"sum y\" (ALLREDUCE of 4096 F32) on rank 0"));
        assert_non_null(strstr(r[k].text, "of 2048 F32) on rank 1"));
        assert_true(r[k].got[1] == 0); /* nothing was started */
    }
    munmap(r, RANKS * sizeof(*r));
}

TEST(a_rank_that_dies_is_an_error_that_names_the_task)
{
    for (int world = 2; world <= RANKS; world += 2) {
        struct report *r = run_world(world, DIES, MACO_DIRECT);
        for (int k = 0; k < world; k++) {
            if (k == 1)
                continue;
            assert_int_equal(r[k].status, HL_EUNAVAIL);
            assert_non_null(strstr(r[k].text, "sum x"));
            assert_true(r[k].took_ns < 15 * HL_NS_PER_S);
        }
        munmap(r, RANKS * sizeof(*r));
    }
}

TEST(a_rank_that_never_comes_is_an_error_by_the_deadline)
{
    struct report *r = run_world(2, NEVER_COMES, MACO_DIRECT);
    if (r[0].status != HL_ETIMEDOUT)
        fail_msg("%s: %s", hl_status_name(r[0].status), r[0].text);
    assert_non_null(strstr(r[0].text, "order of"));
    assert_true(r[0].took_ns < 10 * HL_NS_PER_S);
    munmap(r, RANKS * sizeof(*r));
}

/* The group would wait for a minute; the run aborts its collective, and with it the group. */
TEST(a_rank_that_hangs_does_not_hold_a_collective_past_the_deadline)
{
    for (int policy = MACO_DIRECT; policy <= MACO_STATIC; policy++) {
        struct report *r = run_world(2, HANGS, policy);
        assert_int_equal(r[0].status, HL_ETIMEDOUT);
        assert_non_null(strstr(r[0].text, "sum x"));
        assert_null(strstr(r[0].text, "still at work"));
        assert_int_not_equal(r[0].again, 0);
        assert_int_not_equal(r[0].again, HL_EBUSY);
        assert_true(r[0].took_ns < 30 * HL_NS_PER_S);
        munmap(r, RANKS * sizeof(*r));
    }
}

int main(int argc, char **argv)
{
    if (argc == 7)
        rank_main(argv);
    return tests_run(argc, argv);
}
