#include "support/test.h"

#include "maco/trace/trace.h"
#include "unit/maco/maker.h"

#include <jansson.h>
#include <unistd.h>

/* A plan of `n` tasks; the odd ones are communication and wait for the previous task. */
static maco_plan *pairs(uint32_t n, maco_plan_view *v)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = i % 2 == 0 ? add_work(g, i == 0 ? "say \"a\\b\"" : NULL, 1)
                                 : add_comm(g, NULL, i / 2 % 2, 1);
        if (i % 2 == 1)
            OK(maco_graph_depend(g, id, id - 1));
    }
    OK(maco_compile(g, NULL, &p));
    maco_graph_free(g);
    *v = *maco_plan_read(p);
    return p;
}

#define TASKS 16
#define LAST  200

/* One record for each task, at random times. */
static void some_records(uint64_t *seed, const maco_plan_view *v, struct hl_maco_record *r)
{
    for (uint32_t i = 0; i < TASKS; i++) {
        int comm = hl_maco_is_comm(v->tasks[i].type);
        uint64_t start = below(seed, LAST), end = start + below(seed, LAST + 1 - (uint32_t)start);
        r[i] =
            (struct hl_maco_record){.start_ns = start,
                                    .end_ns = end,
                                    .task = i,
                                    .worker = (uint16_t)(comm ? v->tasks[i].group : below(seed, 3)),
                                    .kind = comm ? HL_MACO_COMM : HL_MACO_COMPUTE};
    }
}

/* Counts nanosecond by nanosecond. */
static maco_overlap count(const maco_plan *p, const struct hl_maco_record *r)
{
    maco_overlap o = {MACO_OVERLAP_INIT, .tasks = TASKS};
    uint64_t first = LAST, last = 0;
    for (uint32_t i = 0; i < TASKS; i++) {
        uint32_t n;
        const uint32_t *parents = hl_maco_plan_parents(p, i, &n);
        first = r[i].start_ns < first ? r[i].start_ns : first;
        last = r[i].end_ns > last ? r[i].end_ns : last;
        o.busy_ns += r[i].kind == HL_MACO_COMPUTE ? r[i].end_ns - r[i].start_ns : 0;
        o.comm_before_producer +=
            r[i].kind == HL_MACO_COMM && n == 1 && r[parents[0]].end_ns > r[i].start_ns;
    }
    o.total_ns = last - first;
    for (uint64_t t = 0; t < LAST; t++) {
        int on[2] = {0, 0};
        for (uint32_t i = 0; i < TASKS; i++)
            on[r[i].kind] |= r[i].start_ns <= t && t < r[i].end_ns;
        o.compute_ns += on[0];
        o.comm_ns += on[1];
        o.both_ns += on[0] && on[1];
    }
    return o;
}

/* The longest time from a producer's end to the start, with nothing else on the link in between. */
static uint64_t slowest_launch(const maco_plan *p, const struct hl_maco_record *r)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < TASKS; i++) {
        uint32_t n;
        const uint32_t *parents = hl_maco_plan_parents(p, i, &n);
        if (r[i].kind != HL_MACO_COMM || n == 0 || r[parents[0]].end_ns == 0)
            continue;
        uint64_t ready = r[parents[0]].end_ns;
        for (uint32_t k = 0; k < TASKS; k++) /* before it, by start, then by place */
            if (k != i && r[k].kind == HL_MACO_COMM && r[k].worker == r[i].worker &&
                (r[k].start_ns < r[i].start_ns || (r[k].start_ns == r[i].start_ns && k < i)) &&
                r[k].end_ns > ready)
                ready = r[k].end_ns;
        if (r[i].start_ns > ready && r[i].start_ns - ready > most)
            most = r[i].start_ns - ready;
    }
    return most;
}

TEST(statistics_are_those_of_counting)
{
    uint64_t seed = 8;
    maco_plan_view v;
    maco_plan *p = pairs(TASKS, &v);
    assert_int_equal(v.n_tasks, TASKS);
    for (int k = 0; k < 3000; k++) {
        struct hl_maco_record r[TASKS];
        maco_trace *t = NULL;
        maco_overlap got = {MACO_OVERLAP_INIT};
        some_records(&seed, &v, r);
        OK(hl_maco_trace_new(p, r, TASKS, &t));
        OK(maco_trace_overlap(t, &got));
        maco_overlap want = count(p, r);
        want.launch_ns = slowest_launch(p, r);
        assert_memory_equal(&got, &want, sizeof(got));
        maco_trace_free(t);
    }
    maco_plan_free(p);
}

TEST(records_that_can_not_be_are_refused)
{
    maco_plan_view v;
    maco_plan *p = pairs(2, &v);
    maco_trace *t = NULL;
    struct hl_maco_record r[2] = {{.start_ns = 5, .end_ns = 4}};
    REFUSED(hl_maco_trace_new(p, r, 1, &t), HL_EINVAL, "ends before it starts");
    r[0] = (struct hl_maco_record){.task = 2};
    REFUSED(hl_maco_trace_new(p, r, 1, &t), HL_EINVAL, "of task 2, the plan has 2");
    r[0] = (struct hl_maco_record){.kind = 4};
    REFUSED(hl_maco_trace_new(p, r, 1, &t), HL_EINVAL, "kind 4");
    r[0] = r[1] = (struct hl_maco_record){.task = 1, .kind = HL_MACO_COMM};
    REFUSED(hl_maco_trace_new(p, r, 2, &t), HL_EINVAL, "\"CUSTOM_COMM 1\" ran twice");
    r[0] = (struct hl_maco_record){.task = MACO_NONE, .kind = HL_MACO_WAIT};
    OK(hl_maco_trace_new(p, r, 1, &t));
    REFUSED(maco_trace_write(t, 0, "/nowhere/at/all"), HL_EIO, "/nowhere/at/all");
    maco_trace_free(t);
    maco_trace_free(NULL);
    maco_plan_free(p);
}

/* ---- the file ---- */

static json_t *written(const maco_trace *t, int rank)
{
    char path[] = "/tmp/maco_trace_XXXXXX";
    json_error_t err;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    OK(maco_trace_write(t, rank, path));
    json_t *doc = json_load_file(path, JSON_REJECT_DUPLICATES, &err);
    unlink(path);
    if (doc == NULL)
        fail_msg("line %d: %s", err.line, err.text);
    return doc;
}

static const char *text(const json_t *e, const char *key)
{
    return json_string_value(json_object_get(e, key));
}

static int64_t whole(const json_t *e, const char *key)
{
    return json_integer_value(json_object_get(e, key));
}

static int64_t ns(const json_t *e, const char *key)
{
    return (int64_t)(json_number_value(json_object_get(e, key)) * 1000 + 0.5);
}

/* The slice that a flow event binds to: the one on its line at its time. */
static const json_t *slice_at(const json_t *events, const json_t *flow)
{
    const json_t *e;
    size_t i;
    json_array_foreach (events, i, e)
        if (text(e, "ph")[0] == 'X' && whole(e, "tid") == whole(flow, "tid") &&
            ns(e, "ts") <= ns(flow, "ts") && ns(flow, "ts") < ns(e, "ts") + ns(e, "dur"))
            return e;
    return NULL;
}

static void check_flow(const json_t *events, const json_t *flow, int64_t task)
{
    const json_t *slice = slice_at(events, flow);
    assert_non_null(slice);
    assert_int_equal(whole(flow, "pid"), 3);
    assert_int_equal(whole(json_object_get(slice, "args"), "task"), task);
}

TEST(the_file_has_slices_lines_and_arrows)
{
    maco_plan_view v;
    maco_plan *p = pairs(4, &v);
    maco_trace *t = NULL;
    struct hl_maco_record r[6];
    int slices = 0, arrows = 0, lines = 0;
    for (uint32_t i = 0; i < 4; i++) { /* 0, 1: compute; 2, 3: the transfers after them */
        int comm = hl_maco_is_comm(v.tasks[i].type);
        r[i] = (struct hl_maco_record){.start_ns = 1000001 + i * 1000,
                                       .end_ns = 1000002 + i * 1000 + 999 * (i % 2),
                                       .task = i,
                                       .worker = (uint16_t)(comm ? v.tasks[i].group : 1),
                                       .kind = comm ? HL_MACO_COMM : HL_MACO_COMPUTE};
    }
    r[4] = (struct hl_maco_record){.start_ns = 5,
                                   .end_ns = 9,
                                   .task = 2,
                                   .worker = 7,
                                   .kind = HL_MACO_WAIT,
                                   .have = 1,
                                   .need = 2};
    r[5] = (struct hl_maco_record){.start_ns = 5, .end_ns = 6, .task = MACO_NONE, .kind = 3};
    OK(hl_maco_trace_new(p, r, 6, &t));
    json_t *doc = written(t, 3), *events = json_object_get(doc, "traceEvents"), *e;
    size_t i;
    json_array_foreach (events, i, e) {
        char ph = text(e, "ph")[0];
        slices += ph == 'X';
        lines += ph == 'M' && strcmp(text(e, "name"), "thread_name") == 0;
        arrows += ph == 's';
        if (ph == 'X' && ns(e, "ts") == 1000001)
            assert_string_equal(text(e, "name"), "say \"a\\b\"");
        if (ph == 'X' && strcmp(text(e, "cat"), "wait") == 0) {
            assert_int_equal(whole(json_object_get(e, "args"), "need"), 2);
            assert_non_null(strstr(text(e, "name"), "wait for "));
        }
        if (ph == 's')
            check_flow(events, e, whole(e, "id"));
        if (ph == 'f') {
            assert_string_equal(text(e, "bp"), "e");
            check_flow(events, e, whole(e, "id") + 2);
        }
    }
    assert_int_equal(slices, 6);
    assert_int_equal(arrows, 2);
    assert_int_equal(lines, 5); /* two workers, two links, a scheduler */
    json_decref(doc);
    maco_trace_free(t);
    maco_plan_free(p);
}

/* A reader of the file gets the library's numbers. */
TEST(overlap_can_be_computed_from_the_file)
{
    maco_plan_view v;
    maco_plan *p = pairs(TASKS, &v);
    maco_trace *t = NULL;
    maco_overlap o = {MACO_OVERLAP_INIT};
    uint8_t on[2][100000] = {{0}};
    int64_t both = 0;
    OK(maco_run_virtual(p, &(maco_virtual){MACO_VIRTUAL_INIT, .workers = 2, .hop_ns = 1}, &t));
    OK(maco_trace_overlap(t, &o));
    json_t *doc = written(t, 0), *e;
    size_t i;
    json_array_foreach (json_object_get(doc, "traceEvents"), i, e)
        for (int64_t at = 0; text(e, "ph")[0] == 'X' && at < ns(e, "dur"); at++)
            on[strcmp(text(e, "cat"), "comm") == 0][ns(e, "ts") + at] = 1;
    for (i = 0; i < sizeof(on[0]); i++)
        both += on[0][i] & on[1][i];
    assert_int_equal(both, o.both_ns);
    assert_true(both > 0);
    json_decref(doc);
    maco_trace_free(t);
    maco_plan_free(p);
}

/* ---- a plan described ---- */

TEST(a_plan_describes_itself)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    char *text_of = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "a", 10), b = add_work(g, "b", 30), c = add_work(g, "c \"q\"", 5);
    uint32_t d = add_comm(g, "d", 4, 7), e = add_work(g, "e", 1);
    OK(maco_graph_depend(g, c, a));
    OK(maco_graph_depend(g, d, a));
    OK(maco_graph_depend(g, d, b));
    OK(maco_graph_depend(g, e, b));
    OK(maco_compile(g,
                    &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC,
                                            .workers = 2, .infer = 1},
                    &p));
    OK(maco_plan_describe(p, &text_of));
    json_t *doc = json_loads(text_of, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(doc);
    assert_string_equal(text(doc, "policy"), "static");
    assert_int_equal(whole(doc, "critical_path_ns"), 37);
    assert_int_equal(whole(doc, "levels"), 2);
    assert_int_equal(whole(doc, "roots"), 2);
    assert_int_equal(whole(doc, "joins"), 2);
    assert_int_equal(json_array_size(json_object_get(doc, "tasks")), 7);
    assert_int_equal(json_array_size(json_object_get(doc, "lists")), 2);
    assert_int_equal(json_array_size(json_object_get(doc, "comm")), 1);
    assert_int_equal(json_array_size(json_object_get(doc, "critical_path")), 2);
    json_t *events = json_object_get(doc, "events");
    json_t *end = json_array_get(events, json_array_size(events) - 1);
    assert_string_equal(text(end, "kind"), "END");
    assert_int_equal(whole(end, "needed"), 3);
    json_decref(doc);
    free(text_of);
    REFUSED(maco_plan_describe(NULL, &text_of), HL_EINVAL, "NULL");
    maco_plan_free(p);
    maco_plan_free(NULL);
    maco_graph_free(g);
}
