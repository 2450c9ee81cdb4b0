/* The persistent kernel's protocol, run on the CPU: the kernel's own source, a CTA a thread
 * (support/cuda_cpu.h), over tables made from compiled plans. In the tsan build ThreadSanitizer
 * watches what is ordered by nothing but the kernel's acquires and releases. */
#include "support/test.h"

#include "support/cuda_cpu.h"

#include "maco/cuda/device/kernel.cu"

extern "C" {
#include "maco/cuda/host/tables.h"
}

thread_local gpu::cta_of_fibers *gpu::cta;

#define WIDTH 8u /* floats of a task */

struct random_plan {
    uint32_t n;
    std::vector<uint32_t> left, right; /* parents: n = the input */
    std::vector<int> affinity;         /* workers, -1 = any */
    std::vector<float> data;           /* n + 1 rows; the last is the input */
    maco_graph *graph = nullptr;
    maco_plan *plan = nullptr;
};

static uint32_t roll(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)((*state >> 33) % below);
}

static float *row(random_plan &p, uint32_t i)
{
    return &p.data[(size_t)i * WIDTH];
}

/* y = left + right, of earlier tasks or the input: order follows from what is read and written. */
static void add_task(random_plan &p, uint32_t i)
{
    maco_op op = {};
    op.size = sizeof(op);
    uint32_t id;
    op.type = MACO_TASK_ELEMENTWISE;
    op.inputs[0] = row(p, p.left[i]);
    op.inputs[1] = row(p, p.right[i]);
    op.outputs[0] = row(p, i);
    const int32_t dims[8] = {1, WIDTH, WIDTH, WIDTH, WIDTH, MACO_ADD, MACO_F32, 0};
    memcpy(op.dims, dims, sizeof(dims));
    op.on_worker = p.affinity.empty() ? 0 : p.affinity[i] + 1;
    assert_int_equal(maco_graph_add(p.graph, &op, &id), 0);
    assert_int_equal(id, i);
}

static void make_random(random_plan &p, uint64_t seed, uint32_t n, int policy, int balance,
                        int workers)
{
    maco_compile_options o = {};
    o.size = sizeof(o);
    p.n = n;
    p.data.assign((size_t)(n + 1) * WIDTH, 0);
    p.left.resize(n);
    p.right.resize(n);
    p.affinity.assign(n, -1);
    assert_int_equal(maco_graph_new(&p.graph), 0);
    for (uint32_t i = 0; i < n; i++) {
        if (policy != MACO_STATIC && seed % 4 != 0 && roll(&seed, 3) == 0)
            p.affinity[i] = (int)roll(&seed, (uint32_t)workers);
        /* chains, fans and joins: parents near by, far away, or the input */
        p.left[i] = i == 0 || roll(&seed, 6) == 0 ? n : i - 1 - roll(&seed, i < 9 ? i : 9);
        p.right[i] = i == 0 || roll(&seed, 2) == 0 ? p.left[i] : roll(&seed, i);
        add_task(p, i);
    }
    o.policy = policy;
    o.balance = balance;
    o.workers = workers;
    o.infer = 1;
    assert_int_equal(maco_compile(p.graph, &o, &p.plan), 0);
}

static void drop(random_plan &p)
{
    maco_plan_free(p.plan);
    maco_graph_free(p.graph);
}

struct machine {
    hl_cuda_tables tables = {};
    std::vector<unsigned char> host;
    hl_gpu_run run = {};
    uint32_t ctas = 0;
    uint64_t iteration = 0;
};

static void open_machine(machine &m, const random_plan &p, uint32_t workers, uint32_t ring,
                         uint32_t groups)
{
    hl_cuda_shape shape = {};
    maco_plan_view v;
    v = *maco_plan_read(p.plan);
    shape.workers = workers;
    shape.ring = ring;
    shape.groups = groups;
    shape.trace = 1;
    assert_int_equal(hl_cuda_tables_make(p.plan, &shape, &m.tables), HL_OK);
    m.ctas = workers + (v.policy == MACO_SCHEDULER) + (v.n_comm > 0);
    m.host.assign(sizeof(hl_gpu_host) + m.ctas * sizeof(hl_gpu_state), 0);
    m.run = hl_cuda_tables_at(&m.tables, (uint64_t)(uintptr_t)m.tables.image);
    m.run.host = (hl_gpu_host *)m.host.data();
}

static void one_cta(void *run)
{
    kernel_of_cta(*(const hl_gpu_run *)run);
}

static uint64_t go(machine &m, uint64_t timeout_ms)
{
    m.iteration++;
    m.run.iteration = m.iteration;
    m.run.timeout_ns = timeout_ms * 1000000;
    m.run.first_ticket = (m.iteration - 1) * m.tables.noted;
    gpu::run_grid(m.ctas, 1, 1, one_cta, &m.run);
    return m.run.host->outcome;
}

static void close_machine(machine &m)
{
    hl_cuda_tables_free(&m.tables);
}

/* New input, so that a task that runs too early takes the last run's and is found out. */
static void check_run(machine &m, random_plan &p, float input)
{
    std::vector<double> want(p.n + 1);
    maco_plan_view v;
    std::vector<uint32_t> seen(p.n, 0);
    for (uint32_t k = 0; k < WIDTH; k++)
        row(p, p.n)[k] = input;
    assert_int_equal(go(m, 60000), HL_GPU_OK);
    want[p.n] = input;
    for (uint32_t i = 0; i < p.n; i++) {
        want[i] = (float)((float)want[p.left[i]] + (float)want[p.right[i]]);
        for (uint32_t k = 0; k < WIDTH; k++)
            assert_true(row(p, i)[k] == (float)want[i]);
    }
    v = *maco_plan_read(p.plan);
    for (uint32_t i = 0; i < p.n; i++) {
        uint32_t id = v.id[m.run.order[i]];
        assert_true(id < p.n);
        assert_int_equal(seen[id]++, 0);
        if (!p.affinity.empty() && p.affinity[id] >= 0)
            assert_int_equal(m.run.spans[m.run.order[i]].worker, p.affinity[id]);
        assert_true(p.left[id] == p.n || seen[p.left[id]] == 1); /* parents were noted before */
        assert_true(p.right[id] == p.n || seen[p.right[id]] == 1);
    }
}

/* Of `percent` of MACO_GRAPHS; docs/testing.md. */
static uint32_t how_many(uint32_t percent)
{
    const char *text = getenv("MACO_GRAPHS");
#ifdef __SANITIZE_THREAD__
    unsigned long all = 1000;
#else
    unsigned long all = 10000;
#endif
    return (uint32_t)((text != nullptr ? strtoul(text, nullptr, 10) : all) * percent / 100);
}

static void random_graphs_run_in_order(int policy, int balance, uint32_t ring, uint32_t percent)
{
    uint32_t graphs = how_many(percent);
    for (uint64_t seed = 1; seed <= graphs; seed++) {
        random_plan p;
        machine m;
        uint32_t workers = 1 + (uint32_t)seed % 3;
        make_random(p, seed * 77, 5 + (uint32_t)(seed * 13) % 60, policy, balance, (int)workers);
        open_machine(m, p, workers, ring, 0);
        for (int run = 0; run < 3; run++)
            check_run(m, p, (float)(run + 1));
        close_machine(m);
        drop(p);
    }
}

TEST(direct)
{
    random_graphs_run_in_order(MACO_DIRECT, 0, 2, 40);
}

TEST(scheduler_in_turn)
{
    random_graphs_run_in_order(MACO_SCHEDULER, MACO_ROUND_ROBIN, 64, 10);
}

TEST(scheduler_least_loaded)
{
    random_graphs_run_in_order(MACO_SCHEDULER, MACO_LEAST_LOADED, 64, 10);
}

TEST(rings_of_two_slots_hold_back_and_lose_nothing)
{
    random_graphs_run_in_order(MACO_SCHEDULER, MACO_ROUND_ROBIN, 2, 10);
    random_graphs_run_in_order(MACO_SCHEDULER, MACO_LEAST_LOADED, 2, 10);
}

TEST(static_lists)
{
    random_graphs_run_in_order(MACO_STATIC, 0, 2, 20);
}

static maco_event *event_of(machine &m, uint32_t at_least)
{
    for (uint32_t i = 0; i < m.run.n_events; i++)
        if (m.run.events[i].needed >= at_least && m.run.events[i].kind != MACO_EVENT_END)
            return &m.run.events[i];
    fail_msg("no event needs %u", at_least);
    return nullptr;
}

/* One trigger that never comes: the run ends by itself, and says who waits for what. */
TEST(a_lost_trigger_ends_by_the_deadline)
{
    static const int policies[] = {MACO_DIRECT, MACO_SCHEDULER, MACO_STATIC};
    for (int policy : policies) {
        random_plan p;
        machine m;
        make_random(p, 5, 40, policy, 0, 2);
        open_machine(m, p, 2, 16, 0);
        event_of(m, 2)->needed++;
        assert_int_equal(go(m, 300), HL_GPU_TIMEOUT);
        uint32_t waiting = 0;
        for (uint32_t i = 0; i < m.ctas; i++)
            waiting += m.run.host->state[i].phase != HL_GPU_OUT;
        assert_true(waiting > 0);
        if (policy == MACO_STATIC) {
            int told = 0;
            for (uint32_t i = 0; i < m.ctas; i++)
                told |= m.run.host->state[i].phase == HL_GPU_EVENT &&
                        m.run.host->state[i].have < m.run.host->state[i].need;
            assert_true(told);
        }
        close_machine(m);
        drop(p);
    }
}

/* One trigger too many is not taken for the next run's. */
TEST(an_event_that_needs_less_is_found_out)
{
    static const int policies[] = {MACO_DIRECT, MACO_SCHEDULER};
#ifdef __SANITIZE_THREAD__
    skip(); /* a task starts before its second parent: that race is meant */
#endif
    for (int policy : policies) {
        random_plan p;
        machine m;
        make_random(p, 5, 40, policy, 0, 2);
        open_machine(m, p, 2, 16, 0);
        event_of(m, 2)->needed--;
        assert_int_equal(go(m, 20000), HL_GPU_OVERRUN);
        close_machine(m);
        drop(p);
    }
}

/* A long chain and a lone task, which both lead to the last one. */
static void make_two_parents(random_plan &p)
{
    maco_compile_options o = {};
    o.size = sizeof(o);
    p.n = 8;
    p.data.assign((size_t)(p.n + 1) * WIDTH, 0);
    p.left = {8, 8, 1, 2, 3, 4, 5, 0};
    p.right = {8, 8, 1, 2, 3, 4, 5, 6};
    assert_int_equal(maco_graph_new(&p.graph), 0);
    for (uint32_t i = 0; i < p.n; i++)
        add_task(p, i);
    o.policy = MACO_DIRECT;
    o.infer = 1;
    assert_int_equal(maco_compile(p.graph, &o, &p.plan), 0);
}

/* A plan that forgets a second parent gives a wrong value, or the oracle sees nothing at all. */
TEST(a_second_parent_that_is_ignored_is_noticed)
{
    random_plan p;
    machine m;
    make_two_parents(p);
    open_machine(m, p, 1, 16, 0);
    check_run(m, p, 1);
    close_machine(m);
    m = {};
    open_machine(m, p, 1, 16, 0);
    maco_event *join = event_of(m, 2), *end = &m.run.events[m.run.n_events - 1];
    maco_task *tasks = (maco_task *)(uintptr_t)m.run.tasks;
    uint32_t forgotten = 0;
    assert_int_equal(end->kind, MACO_EVENT_END);
    for (uint32_t i = 0; i < m.run.n_tasks; i++) /* the chain's end is the higher one */
        if (tasks[i].trigger_event == (uint32_t)(join - m.run.events))
            forgotten = i;
    tasks[forgotten].trigger_event = m.run.n_events - 1;
    tasks[forgotten].user |= MACO_NONE; /* nothing follows for certain */
    join->needed = 1;
    end->needed++;
    for (uint32_t k = 0; k < WIDTH; k++)
        row(p, p.n)[k] = 5;
    assert_int_equal(go(m, 20000), HL_GPU_OK);
    assert_true(row(p, 6)[0] == 5 * 64);
    assert_true(row(p, 7)[0] != row(p, 0)[0] + row(p, 6)[0]);
    close_machine(m);
    drop(p);
}

/* Slots that are zero are empty, not task 0 nor the end: workers without work stay. */
TEST(idle_workers_wait_though_all_slots_are_zero)
{
    static const int policies[] = {MACO_DIRECT, MACO_SCHEDULER};
    for (int policy : policies) {
        random_plan p;
        machine m;
        make_two_parents(p);
        maco_plan_free(p.plan);
        maco_compile_options o = {};
        o.size = sizeof(o);
        o.policy = policy;
        o.infer = 1;
        assert_int_equal(maco_compile(p.graph, &o, &p.plan), 0);
        open_machine(m, p, 4, 4, 0);
        for (uint32_t i = 0; i < m.run.n_events + 2; i++)
            assert_int_equal(m.run.ready[i], 0);
        for (int run = 1; run < 20; run++)
            check_run(m, p, (float)run);
        close_machine(m);
        drop(p);
    }
}

/* An affinity for a worker that does not exist has no effect; tasks of one worker go through its
 * queue. */
TEST(affinities_are_kept_and_impossible_ones_ignored)
{
    random_plan p;
    machine m;
    p.affinity = {2, 0, 1, 2, 0, 1, 2, 7};
    make_two_parents(p);
    open_machine(m, p, 3, 4, 0);
    for (int run = 1; run < 50; run++) {
        for (uint32_t k = 0; k < WIDTH; k++)
            row(p, p.n)[k] = (float)run;
        assert_int_equal(go(m, 60000), HL_GPU_OK);
        assert_true(row(p, 7)[0] == (float)run * 66);
        maco_plan_view v;
        v = *maco_plan_read(p.plan);
        for (uint32_t i = 0; i < v.n_tasks; i++)
            if (v.id[i] < 7)
                assert_int_equal(m.run.spans[i].worker, p.affinity[v.id[i]]);
    }
    close_machine(m);
    drop(p);
}

TEST(a_cancelled_run_ends)
{
    random_plan p;
    machine m;
    make_random(p, 5, 40, MACO_DIRECT, 0, 2);
    open_machine(m, p, 2, 16, 0);
    event_of(m, 2)->needed++;
    m.run.host->cancel = 1;
    assert_int_equal(go(m, 60000), HL_GPU_CANCELED);
    close_machine(m);
    drop(p);
}

TEST(a_task_without_a_body_ends_the_run)
{
    random_plan p;
    machine m;
    make_random(p, 5, 40, MACO_DIRECT, 0, 2);
    open_machine(m, p, 2, 16, 0);
    ((maco_task *)(uintptr_t)m.run.tasks)[7].type = 77;
    assert_int_equal(go(m, 20000), HL_GPU_UNKNOWN);
    assert_int_equal(m.run.host->task, 7);
    close_machine(m);
    drop(p);
}

/* ---- communication: a stand-in for the streams writes what is done ---- */

struct carrier {
    machine *m;
    const maco_plan_view *v;
    uint32_t group;
    uint64_t iteration;
};

/* Waits for each event as a stream does, copies, counts. */
static void carry(carrier c)
{
    uint64_t until = gpu::timer_ns() + 60000000000ull, done = 0, mine = 0;
    for (uint32_t i = 0; i < c.v->n_comm; i++)
        mine += c.v->tasks[c.v->comm[i]].group == c.group;
    done = mine * (c.iteration - 1);
    for (uint32_t i = 0; i < c.v->n_comm; i++) {
        const maco_task &t = c.v->tasks[c.v->comm[i]];
        if (t.group != c.group)
            continue;
        if (t.dependent_event != MACO_NONE) {
            maco_event &e = c.m->run.events[t.dependent_event];
            while (gpu::load_acquire(&e.count) < e.needed * c.iteration) {
                if (gpu::timer_ns() > until)
                    return;
                std::this_thread::yield();
            }
        }
        /* not memcpy: ThreadSanitizer does not see one that the compiler writes out */
        for (uint32_t k = 0; k < WIDTH; k++)
            ((float *)(uintptr_t)t.outputs[0])[k] = ((const float *)(uintptr_t)t.inputs[0])[k];
        gpu::store_release(&c.m->run.comm_done[c.group].value, ++done);
    }
}

/* Chunks: compute, communicate, compute again; two groups in turn. */
static void make_chunks(random_plan &p, uint32_t chunks, int policy, int workers)
{
    maco_compile_options o = {};
    o.size = sizeof(o);
    p.n = 3 * chunks;
    p.data.assign((size_t)(p.n + 1) * WIDTH, 0);
    p.left.resize(p.n);
    p.right.resize(p.n);
    assert_int_equal(maco_graph_new(&p.graph), 0);
    for (uint32_t i = 0; i < p.n; i++) {
        p.left[i] = p.right[i] = i % 3 == 0 ? p.n : i - 1;
        if (i % 3 != 1) {
            add_task(p, i);
            continue;
        }
        maco_op op = {};
        op.size = sizeof(op);
        uint32_t id;
        op.type = MACO_TASK_ALLREDUCE;
        op.inputs[0] = row(p, i - 1);
        op.outputs[0] = row(p, i);
        op.dims[0] = WIDTH;
        op.group = i / 3 % 2;
        assert_int_equal(maco_graph_add(p.graph, &op, &id), 0);
    }
    o.policy = policy;
    o.workers = workers;
    o.infer = 1;
    assert_int_equal(maco_compile(p.graph, &o, &p.plan), 0);
}

static void check_chunks(machine &m, random_plan &p, float input)
{
    maco_plan_view v;
    v = *maco_plan_read(p.plan);
    for (uint32_t k = 0; k < WIDTH; k++)
        row(p, p.n)[k] = input;
    std::vector<std::thread> streams;
    for (uint32_t g = 0; g < 2; g++)
        streams.emplace_back(carry, carrier{&m, &v, g, m.iteration + 1});
    assert_int_equal(go(m, 60000), HL_GPU_OK);
    for (std::thread &t : streams)
        t.join();
    for (uint32_t i = 0; i < p.n; i++)
        assert_true(row(p, i)[WIDTH - 1] == input * (i % 3 == 2 ? 4 : 2));
}

TEST(communication_is_started_by_counts_and_starts_what_waits)
{
    static const int policies[] = {MACO_DIRECT, MACO_SCHEDULER, MACO_STATIC};
    for (int policy : policies) {
        random_plan p;
        machine m;
        make_chunks(p, 7, policy, 2);
        open_machine(m, p, 2, 4, 2);
        for (int run = 0; run < 5; run++)
            check_chunks(m, p, (float)(1 << run));
        close_machine(m);
        drop(p);
    }
}

TEST(communication_that_never_comes_is_named)
{
    random_plan p;
    machine m;
    make_chunks(p, 3, MACO_DIRECT, 2);
    open_machine(m, p, 2, 4, 2);
    assert_int_equal(go(m, 200), HL_GPU_TIMEOUT);
    const hl_gpu_state &s = m.run.host->state[m.ctas - 1];
    assert_int_equal(s.phase, HL_GPU_COMM);
    assert_int_equal(m.run.tasks[s.task].type, MACO_TASK_ALLREDUCE);
    assert_int_equal(s.have, 0);
    close_machine(m);
    drop(p);
}
