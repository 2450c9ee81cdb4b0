#include "support/test.h"

#include "unit/maco/maker.h"

#define TASKS_MAX 24
#define BYTES     48
#define GRAPHS    10000

/* ---- random graphs and what they mean ---- */

struct spec {
    uint32_t n, n_edges;
    uint32_t edge[TASKS_MAX * 3][2]; /* task, on */
    maco_range read[TASKS_MAX][2], write[TASKS_MAX];
    uint32_t n_reads[TASKS_MAX], n_writes[TASKS_MAX];
    int priority[TASKS_MAX], comm[TASKS_MAX];
};

static maco_range some_bytes(uint64_t *seed)
{
    uint64_t first = below(seed, BYTES);
    return (maco_range){0x1000 + first, 1 + below(seed, (uint32_t)(BYTES - first))};
}

/* Edges go anywhere along a hidden order, so ids are not a topological order. */
static struct spec some_graph(uint64_t *seed, int memory)
{
    struct spec s = {.n = 1 + below(seed, TASKS_MAX)};
    uint32_t hidden[TASKS_MAX];
    for (uint32_t i = 0; i < s.n; i++)
        hidden[i] = i;
    for (uint32_t i = 0; i < s.n && below(seed, 2); i++) {
        uint32_t j = below(seed, s.n), t = hidden[i];
        hidden[i] = hidden[j];
        hidden[j] = t;
    }
    for (uint32_t i = below(seed, s.n * 3 + 1); i-- > 0;) {
        uint32_t a = below(seed, s.n), b = below(seed, s.n);
        if (a == b)
            continue;
        s.edge[s.n_edges][0] = hidden[a > b ? a : b];
        s.edge[s.n_edges++][1] = hidden[a > b ? b : a];
    }
    for (uint32_t i = 0; i < s.n; i++) {
        s.n_reads[i] = memory ? below(seed, 3) : 0;
        s.n_writes[i] = memory ? below(seed, 4) == 0 : 0;
        for (uint32_t k = 0; k < s.n_reads[i]; k++)
            s.read[i][k] = some_bytes(seed);
        s.write[i] = some_bytes(seed);
        s.priority[i] = below(seed, 4) == 0 ? (int)below(seed, 5) - 2 : 0;
        s.comm[i] = below(seed, 4) == 0;
    }
    return s;
}

static maco_graph *graph_of(const struct spec *s, uint32_t skip_edge)
{
    maco_graph *g = NULL;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < s->n; i++)
        assert_int_equal(
            add_op(g,
                   (maco_op){MACO_OP_INIT,
                             .type = s->comm[i] ? MACO_TASK_CUSTOM_COMM : MACO_TASK_CUSTOM_COMPUTE,
                             .priority = s->priority[i], .group = s->comm[i] ? i % 2 : 0,
                             .cost_ns = 1 + i * 7 % 5, .function = do_nothing, .reads = s->read[i],
                             .writes = &s->write[i], .n_reads = s->n_reads[i],
                             .n_writes = s->n_writes[i]}),
            i);
    for (uint32_t i = 0; i < s->n_edges; i++)
        if (i != skip_edge)
            OK(maco_graph_depend(g, s->edge[i][0], s->edge[i][1]));
    return g;
}

static int meet(maco_range a, maco_range b)
{
    return a.first < b.first + b.bytes && b.first < a.first + a.bytes;
}

static int conflict(const struct spec *s, uint32_t a, uint32_t b)
{
    if (s->n_writes[a] && s->n_writes[b] && meet(s->write[a], s->write[b]))
        return 1;
    for (uint32_t k = 0; k < s->n_reads[a]; k++)
        if (s->n_writes[b] && meet(s->read[a][k], s->write[b]))
            return 1;
    for (uint32_t k = 0; k < s->n_reads[b]; k++)
        if (s->n_writes[a] && meet(s->write[a], s->read[b][k]))
            return 1;
    return 0;
}

/* Only explicit edges. */
static struct order explicit_order(const struct spec *s)
{
    struct order o = {0};
    for (uint32_t i = 0; i < s->n_edges; i++)
        put_before(&o, s->edge[i][1], s->edge[i][0]);
    close_order(&o, s->n);
    return o;
}

/* Program order as far as dependencies allow it: the lowest of those that can come. */
static void program_order(const struct spec *s, const struct order *o, uint32_t *line)
{
    int placed[TASKS_MAX] = {0};
    for (uint32_t k = 0; k < s->n; k++)
        for (uint32_t b = 0; b < s->n; b++) {
            int free_to = !placed[b];
            for (uint32_t a = 0; a < s->n; a++)
                free_to &= !is_before(o, a, b) || placed[a];
            if (!free_to)
                continue;
            placed[b] = 1;
            line[k] = b;
            break;
        }
}

/* Whether a task reads bytes whose last writer, by the order of adding, comes only after it. */
static int reads_too_early(const struct spec *s)
{
    struct order o = explicit_order(s);
    uint32_t line[TASKS_MAX], place[TASKS_MAX];
    int early = 0;
    program_order(s, &o, line);
    for (uint32_t i = 0; i < s->n; i++)
        place[line[i]] = i;
    for (uint64_t byte = 0x1000; byte < 0x1000 + BYTES; byte++) {
        uint32_t writer = MACO_NONE;
        for (uint32_t i = 0; i < s->n; i++) {
            for (uint32_t k = 0; k < s->n_reads[i]; k++)
                early |= meet(s->read[i][k], (maco_range){byte, 1}) && writer != MACO_NONE &&
                         place[writer] > place[i];
            if (s->n_writes[i] && meet(s->write[i], (maco_range){byte, 1}))
                writer = i;
        }
    }
    return early;
}

/* Compiling must fail if dependencies contradict what the graph reads. */
static int refused_as_too_early(const struct spec *s)
{
    maco_plan *p = NULL;
    if (!reads_too_early(s))
        return 0;
    maco_graph *g = graph_of(s, MACO_NONE);
    REFUSED(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &p),
            HL_ECONFLICT, "dependencies put");
    maco_graph_free(g);
    return 1;
}

static struct order full_order(const struct spec *s)
{
    struct order o = explicit_order(s);
    uint32_t line[TASKS_MAX];
    program_order(s, &o, line);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t j = i + 1; j < s->n; j++)
            if (conflict(s, line[i], line[j]))
                put_before(&o, line[i], line[j]);
    close_order(&o, s->n);
    return o;
}

/* The order that a plan's events define, by ids. */
static struct order order_of(const maco_plan_view *v, uint32_t n)
{
    struct order o = {0};
    uint64_t(*before)[2] =
        calloc(v->n_events, sizeof(*before)); /* by event: the tasks that triggered it */
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const maco_task *t = &v->tasks[i];
        uint64_t mine[2] = {0, 0};
        if (t->dependent_event != MACO_NONE)
            memcpy(mine, before[t->dependent_event], sizeof(mine));
        if (v->id[i] != MACO_NONE) {
            memcpy(o.before[v->id[i]], mine, sizeof(mine));
            mine[v->id[i] / 64] |= 1ull << (v->id[i] % 64);
        }
        before[t->trigger_event][0] |= mine[0];
        before[t->trigger_event][1] |= mine[1];
    }
    free(before);
    close_order(&o, n);
    return o;
}

/* Everything that maco_plan_view promises. */
static void check_shape(const maco_plan_view *v, uint32_t n)
{
    uint32_t *triggers = calloc(v->n_events, sizeof(*triggers)), real = 0, launched = v->n_roots;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        const maco_task *t = &v->tasks[i];
        assert_true(t->trigger_event < v->n_events);
        triggers[t->trigger_event]++;
        real += v->id[i] != MACO_NONE;
        assert_true((t->dependent_event == MACO_NONE) == (i < v->n_roots));
        if (t->dependent_event == MACO_NONE)
            continue;
        const maco_event *e = &v->events[t->dependent_event];
        assert_true(e->first <= i && i < e->last);
        if (i > e->first && v->id[i] == MACO_NONE)
            assert_true(v->id[i - 1] == MACO_NONE);
        if (i > e->first && hl_maco_is_comm(t->type))
            assert_true(v->id[i - 1] == MACO_NONE || hl_maco_is_comm(v->tasks[i - 1].type));
    }
    assert_int_equal(real, n);
    for (uint32_t i = 0; i < v->n_events; i++) {
        const maco_event *e = &v->events[i];
        assert_true(e->needed > 0);
        assert_int_equal(e->needed, triggers[i]);
        assert_true((e->kind == MACO_EVENT_END) == (i == v->n_events - 1));
        assert_true(e->kind == MACO_EVENT_END || e->first < e->last);
        assert_true(e->kind != MACO_EVENT_LAUNCH_TASK || e->last == e->first + 1);
        assert_int_equal((uintptr_t)e % 64, 0);
        launched += e->last - e->first;
    }
    assert_int_equal(launched, v->n_tasks);
    free(triggers);
}

static maco_plan *compiled(const maco_graph *g, maco_compile_options o, maco_plan_view *v)
{
    maco_plan *p = NULL;
    OK(maco_compile(g, &o, &p));
    *v = *maco_plan_read(p);
    return p;
}

/* A barrier is an event to which everything numbered before it leads. */
static void check_barriers(const maco_plan_view *v, const struct order *o)
{
    for (uint32_t e = 0; e < v->n_events; e++) {
        const maco_event *ev = &v->events[e];
        int all = ev->needed > 1 && ev->kind != MACO_EVENT_END;
        for (uint32_t i = 0; i < ev->first && all; i++)
            for (uint32_t k = ev->first; k < ev->last; k++)
                all &= v->id[i] == MACO_NONE || v->id[k] == MACO_NONE ||
                       is_before(o, v->id[i], v->id[k]);
        assert_int_equal(all, ev->kind == MACO_EVENT_BARRIER);
    }
}

TEST(random_graphs_mean_what_was_said)
{
    uint64_t seed = 1;
    int refused = 0;
    for (int k = 0; k < GRAPHS; k++) {
        struct spec s = some_graph(&seed, k % 2);
        struct order want = full_order(&s);
        if (refused_as_too_early(&s)) {
            refused++;
            continue;
        }
        maco_graph *g = graph_of(&s, MACO_NONE);
        maco_plan_view v;
        maco_plan *p =
            compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
        maco_graph_free(g); /* a plan has copies of its own */
        check_shape(&v, s.n);
        struct order got = order_of(&v, s.n);
        if (memcmp(&got, &want, sizeof(got)) != 0)
            fail_msg("graph %d: the order of its plan is another one", k);
        assert_true(walk_plan(&v, s.n, &want, &seed, MACO_NONE));
        assert_true(walk_plan(&v, s.n, &want, &seed, below(&seed, s.n)));
        check_barriers(&v, &want);
        maco_plan_free(p);
    }
    assert_in_range(refused, 500, GRAPHS / 2 - 500); /* half of them use memory */
}

TEST(a_dependency_that_puts_a_reader_before_its_writer_is_refused)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    float a[16], b[16];
    OK(maco_graph_new(&g));
    maco_op op = {MACO_OP_INIT,  .type = MACO_TASK_GELU, .name = "make",
                  .inputs = {a}, .outputs = {b},         .dims = {4, 4, 4, 4}};
    add_op(g, op);
    op.name = "use"; /* in place */
    op.inputs[0] = op.outputs[0] = b;
    add_op(g, op);
    maco_compile_options infer = {MACO_COMPILE_OPTIONS_INIT, .infer = 1};
    OK(maco_graph_depend(g, 0, 1));
    REFUSED(maco_compile(g, &infer, &p), HL_ECONFLICT,
            "task \"use\" reads what task \"make\" writes, but dependencies put \"use\" first");
    maco_graph_free(g);
    OK(maco_graph_new(&g)); /* "clear" before "make", whose result is not read in between: fine */
    op = (maco_op){MACO_OP_INIT,  .type = MACO_TASK_GELU, .name = "make",
                   .inputs = {a}, .outputs = {b},         .dims = {4, 4, 4, 4}};
    add_op(g, op);
    op.name = "clear";
    add_op(g, op);
    OK(maco_graph_depend(g, 0, 1));
    OK(maco_compile(g, &infer, &p));
    maco_plan_free(p);
    maco_graph_free(g);
}

/* ---- the check of the checker ---- */

/* The parent of event e with the highest number, so that no other one waits for it. */
static uint32_t last_parent(const maco_plan_view *v, uint32_t e)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < v->n_tasks; i++) {
        uint32_t t = i;
        if (v->tasks[i].trigger_event != e)
            continue;
        while (v->id[t] == MACO_NONE)
            for (uint32_t k = 0, home = v->tasks[t].dependent_event; k < v->n_tasks; k++)
                if (v->tasks[k].trigger_event == home)
                    t = k;
        last = t > last ? t : last;
    }
    return v->id[last];
}

TEST(one_trigger_less_is_noticed)
{
    uint64_t seed = 2;
    int tried = 0;
    for (int k = 0; k < 2000; k++) {
        struct spec s = some_graph(&seed, k % 2);
        struct order want = full_order(&s);
        if (refused_as_too_early(&s))
            continue;
        maco_graph *g = graph_of(&s, MACO_NONE);
        maco_plan_view v;
        maco_plan *p =
            compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
        maco_event *events = aligned_alloc(64, v.n_events * sizeof(*events));
        memcpy(events, v.events, v.n_events * sizeof(*events));
        v.events = events;
        for (uint32_t e = 0; e < v.n_events; e++) {
            if (events[e].needed < 2)
                continue;
            events[e].needed--;
            assert_false(walk_plan(&v, s.n, &want, &seed, last_parent(&v, e)));
            events[e].needed += 2;
            assert_false(walk_plan(&v, s.n, &want, &seed, MACO_NONE)); /* no progress */
            events[e].needed--;
            tried++;
        }
        free(events);
        maco_plan_free(p);
        maco_graph_free(g);
    }
    assert_true(tried > 2000);
}

TEST(a_forgotten_parent_is_noticed)
{
    uint64_t seed = 3;
    int tried = 0;
    for (int k = 0; k < 2000; k++) {
        struct spec s = some_graph(&seed, 0);
        if (s.n_edges == 0)
            continue;
        uint32_t gone = below(&seed, s.n_edges);
        struct order want = explicit_order(&s), less = {0};
        for (uint32_t i = 0; i < s.n_edges; i++)
            if (i != gone)
                put_before(&less, s.edge[i][1], s.edge[i][0]);
        close_order(&less, s.n);
        if (memcmp(&less, &want, sizeof(less)) == 0)
            continue; /* others imply the same */
        maco_graph *g = graph_of(&s, gone);
        maco_plan_view v;
        maco_plan *p =
            compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
        assert_false(walk_plan(&v, s.n, &want, &seed, s.edge[gone][1]));
        tried++;
        maco_plan_free(p);
        maco_graph_free(g);
    }
    assert_true(tried > 500);
}

/* ---- unordered writers ---- */

TEST(without_inference_unordered_writers_are_refused)
{
    uint64_t seed = 4;
    int refused = 0, taken = 0;
    for (int k = 0; k < GRAPHS; k++) {
        struct spec s = some_graph(&seed, 1);
        struct order o = explicit_order(&s);
        int fine = 1;
        for (uint32_t a = 0; a < s.n; a++)
            for (uint32_t b = a + 1; b < s.n; b++)
                fine &= !conflict(&s, a, b) || is_before(&o, a, b) || is_before(&o, b, a);
        maco_graph *g = graph_of(&s, MACO_NONE);
        maco_plan *p = NULL;
        maco_compile_options no = {MACO_COMPILE_OPTIONS_INIT, .infer = 0};
        if (fine)
            OK(maco_compile(g, &no, &p));
        else
            REFUSED(maco_compile(g, &no, &p), HL_ECONFLICT, "neither waits for the other. Hint");
        fine ? taken++ : refused++;
        maco_plan_free(p);
        maco_graph_free(g);
    }
    assert_true(taken > 500 && refused > 500);
}

TEST(both_tasks_and_the_kind_of_use_are_named)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    float c[16], d[16];
    OK(maco_graph_new(&g));
    maco_op op = {MACO_OP_INIT,  .type = MACO_TASK_GELU, .name = "act",
                  .inputs = {c}, .outputs = {d},         .dims = {4, 4, 4, 4}};
    add_op(g, op);
    op.name = "again";
    op.inputs[0] = d;
    op.outputs[0] = c;
    add_op(g, op);
    maco_compile_options no = {MACO_COMPILE_OPTIONS_INIT, .infer = 0};
    REFUSED(maco_compile(g, &no, &p), HL_ECONFLICT,
            "task \"again\" reads what task \"act\" writes and neither waits");
    OK(maco_graph_depend(g, 0, 1)); /* also against the order of adding */
    OK(maco_compile(g, &no, &p));
    maco_plan_free(p);
    maco_graph_free(g);
}

/* ---- cycles ---- */

TEST(a_cycle_is_named_task_by_task)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "a", 1), b = add_work(g, "b", 1), c = add_work(g, "c", 1);
    uint32_t d = add_work(g, "before", 1), e = add_work(g, "behind", 1);
    OK(maco_graph_depend(g, b, a));
    OK(maco_graph_depend(g, c, b));
    OK(maco_graph_depend(g, a, c));
    OK(maco_graph_depend(g, a, d));
    OK(maco_graph_depend(g, e, c));
    REFUSED(maco_compile(g, NULL, &p), HL_ECONFLICT,
            "\"a\" waits for \"c\" waits for \"b\" waits for \"a\" (3 tasks)");
    assert_null(strstr(hl_error_text(), "behind"));
    REFUSED(maco_graph_depend(g, a, a), HL_ECONFLICT, "\"a\" would wait for itself");
    maco_graph_free(g);
}

TEST(a_long_cycle_fits_a_message)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < 1000; i++)
        add_work(g, NULL, 1);
    for (uint32_t i = 0; i < 1000; i++)
        OK(maco_graph_depend(g, i, (i + 1) % 1000));
    REFUSED(maco_compile(g, NULL, &p), HL_ECONFLICT, "... waits for \"CUSTOM_COMPUTE 0\" (1000");
    maco_graph_free(g);
}

/* ---- kinds of events ---- */

TEST(rounds_of_workers_are_barriers_and_a_chain_launches_one)
{
    maco_graph *g = NULL;
    maco_plan_view v;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < 12; i++) {
        add_work(g, NULL, 1);
        for (uint32_t k = 0; i >= 4 && k < 4; k++)
            OK(maco_graph_depend(g, i, i / 4 * 4 - 4 + k));
    }
    maco_plan *p = compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
    assert_int_equal(v.n_tasks, 12); /* no joins */
    assert_int_equal(v.n_events, 3);
    assert_int_equal(v.events[0].kind, MACO_EVENT_BARRIER);
    assert_int_equal(v.events[1].kind, MACO_EVENT_BARRIER);
    assert_int_equal(v.events[1].needed, 4);
    assert_int_equal(v.events[2].kind, MACO_EVENT_END);
    assert_int_equal(v.events[2].needed, 4);
    maco_plan_free(p);
    maco_graph_free(g);

    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < 5; i++) {
        add_work(g, NULL, 1);
        if (i > 0)
            OK(maco_graph_depend(g, i, i < 3 ? i - 1 : 2));
    }
    p = compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
    assert_int_equal(v.events[0].kind, MACO_EVENT_LAUNCH_TASK);
    assert_int_equal(v.events[1].kind, MACO_EVENT_LAUNCH_TASK);
    assert_int_equal(v.events[2].kind, MACO_EVENT_LAUNCH_MASSIVE);
    assert_int_equal(v.events[2].last - v.events[2].first, 2);
    maco_plan_free(p);
    maco_graph_free(g);
}

TEST(siblings_go_by_kind_then_priority)
{
    maco_graph *g = NULL;
    maco_plan_view v;
    static const int32_t want[] = {4, 3, 1, 2};
    OK(maco_graph_new(&g));
    add_work(g, "root", 1);
    for (int i = 1; i < 4; i++)
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .on_worker = 4,
                            .priority = i == 3 ? 5 : 0, .function = do_nothing});
    add_comm(g, "comm", 0, 1);
    for (uint32_t i = 1; i < 5; i++)
        OK(maco_graph_depend(g, i, 0));
    maco_plan *p = compiled(g, (maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &v);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(v.id[v.events[0].first + i], want[i]);
    assert_int_equal(v.events[0].target_worker, -1);
    assert_int_equal(v.worker[v.events[0].first + 1], 3);
    assert_int_equal(v.priority[v.events[0].first + 1], 5);
    maco_plan_free(p);
    maco_graph_free(g);
}

TEST(a_plan_has_its_functions_and_options_are_checked)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_function f = NULL;
    void *arg = NULL;
    OK(maco_graph_new(&g));
    REFUSED(maco_compile(g, NULL, &p), HL_EINVAL, "no tasks");
    add_work(g, NULL, 1);
    add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .function = do_nothing,
                        .arg = &g});
    REFUSED(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = 3}, &p),
            HL_EINVAL, "policy 3");
    REFUSED(maco_compile(
                g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC}, &p),
            HL_EINVAL, "lists for 0 workers");
    REFUSED(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 2}, &p),
            HL_EINVAL, "infer is 2");
    assert_null(p);
    OK(maco_compile(g, NULL, &p));
    OK(hl_maco_plan_function(p, 1, &f, &arg));
    assert_true(f == do_nothing && arg == &g);
    REFUSED(hl_maco_plan_function(p, 2, &f, &arg), HL_EINVAL,
            "2 functions, so none has the number 2");
    assert_string_equal(hl_maco_plan_name(p, 1), "CUSTOM_COMPUTE 1");
    maco_plan_free(p);
    maco_graph_free(g);
}
