#include "support/test.h"

#include "unit/maco/maker.h"

static maco_plan *lists_of(const maco_graph *g, int workers, const maco_list *lists,
                           maco_plan_view *v)
{
    maco_plan *p = NULL;
    OK(maco_compile(g,
                    &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC,
                                            .workers = workers, .infer = 1, .lists = lists},
                    &p));
    *v = *maco_plan_read(p);
    return p;
}

TEST(the_longest_way_goes_first)
{
    maco_graph *g = NULL;
    maco_plan_view v;
    OK(maco_graph_new(&g));
    add_work(g, "short", 10);
    uint32_t a = add_work(g, "head", 10), b = add_work(g, "tail", 100);
    OK(maco_graph_depend(g, b, a));
    maco_plan *p = lists_of(g, 1, NULL, &v);
    assert_int_equal(v.id[v.list[0]], a);
    assert_int_equal(v.id[v.list[1]], b);
    assert_int_equal(v.id[v.list[2]], 0);
    maco_plan_free(p);
    p = lists_of(g, 2, NULL, &v);
    assert_int_equal(v.n_lists, 2);
    assert_int_equal(v.first_of_list[2], 3);
    maco_plan_free(p);
    maco_graph_free(g);
}

TEST(lists_hold_every_task_once_but_joins_and_communication)
{
    uint64_t seed = 7;
    for (int k = 0; k < 500; k++) {
        maco_graph *g = NULL;
        maco_plan_view v;
        uint32_t n = 1 + below(&seed, 60);
        OK(maco_graph_new(&g));
        for (uint32_t i = 0; i < n; i++) {
            below(&seed, 4) ? add_work(g, NULL, 1 + below(&seed, 9)) : add_comm(g, NULL, 0, 1);
            for (uint32_t e = below(&seed, 4); i > 0 && e-- > 0;)
                OK(maco_graph_depend(g, i, below(&seed, i)));
        }
        int workers = 1 + (int)below(&seed, 4);
        maco_plan *p = lists_of(g, workers, NULL, &v);
        uint32_t *times = calloc(v.n_tasks, sizeof(*times));
        for (int w = 0; w < workers; w++)
            for (uint32_t i = v.first_of_list[w]; i < v.first_of_list[w + 1]; i++) {
                times[v.list[i]]++;
                assert_int_equal(v.worker[v.list[i]], w);
            }
        for (uint32_t i = 0; i < v.n_tasks; i++) {
            int listed = v.id[i] != MACO_NONE && !hl_maco_is_comm(v.tasks[i].type);
            assert_int_equal(times[i], listed);
            assert_true(listed || v.worker[i] == MACO_NONE);
        }
        free(times);
        maco_plan_free(p);
        maco_graph_free(g);
    }
}

TEST(a_callers_lists_are_taken_or_their_deadlock_is_named)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_plan_view v;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "a", 1), b = add_work(g, "b", 1), c = add_work(g, "c", 1);
    uint32_t d = add_work(g, "d", 1);
    OK(maco_graph_depend(g, b, a));
    OK(maco_graph_depend(g, d, c));
    uint32_t one[] = {d, a}, two[] = {b, c}, good[] = {a, d};
    maco_list bad[] = {{one, 2}, {two, 2}}, fine[] = {{good, 2}, {(uint32_t[]){c, b}, 2}};
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC, .workers = 2,
                              .infer = 1, .lists = bad};
    REFUSED(maco_compile(g, &o, &p), HL_ECONFLICT, "the order of the lists deadlocks");
    for (const char *name = "abcd"; *name != '\0'; name++) {
        char quoted[4] = {'"', *name, '"', 0};
        assert_non_null(strstr(hl_error_text(), quoted));
    }
    p = lists_of(g, 2, fine, &v);
    assert_int_equal(v.id[v.list[0]], a);
    assert_int_equal(v.id[v.list[1]], d);
    assert_int_equal(v.id[v.list[2]], c);
    maco_plan_free(p);
    maco_graph_free(g);
}

/* x waits for the second transfer, the first transfer waits for y, and y is queued behind x. */
TEST(the_order_of_communication_counts_as_a_queue)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    maco_plan_view v;
    OK(maco_graph_new(&g));
    uint32_t y = add_work(g, "y", 1), first = add_comm(g, "first", 0, 1);
    uint32_t second = add_comm(g, "second", 0, 1), x = add_work(g, "x", 1);
    OK(maco_graph_depend(g, first, y));
    OK(maco_graph_depend(g, x, second));
    maco_list bad = {(uint32_t[]){x, y}, 2}, good = {(uint32_t[]){y, x}, 2};
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC, .workers = 1,
                              .infer = 1, .lists = &bad};
    REFUSED(maco_compile(g, &o, &p), HL_ECONFLICT,
            "\"second\" waits for \"first\" waits for \"y\" waits for \"x\" waits for");
    p = lists_of(g, 1, &good, &v);
    maco_plan_free(p);
    maco_graph_free(g);
}

TEST(lists_that_are_wrong_are_refused)
{
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    uint32_t a = add_work(g, "a", 1), c = add_comm(g, "talk", 0, 1);
    uint32_t b = add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_CUSTOM_COMPUTE, .on_worker = 2,
                                     .name = "b", .function = do_nothing});
    maco_list l[2] = {{(uint32_t[]){a}, 1}, {(uint32_t[]){a}, 1}};
    maco_compile_options o = {MACO_COMPILE_OPTIONS_INIT, .policy = MACO_STATIC, .workers = 2,
                              .infer = 1, .lists = l};
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "\"a\" is in lists twice");
    l[1] = (maco_list){NULL, 0};
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "\"b\" is in no list");
    l[0] = (maco_list){(uint32_t[]){a, b}, 2};
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "\"b\" requests worker 1 but is in list 0");
    l[1] = (maco_list){(uint32_t[]){c}, 1};
    l[0] = (maco_list){(uint32_t[]){a}, 1};
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "\"talk\", which is communication");
    l[1] = (maco_list){(uint32_t[]){b, 3}, 2};
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "task 3 of 3");
    o.policy = MACO_DIRECT;
    REFUSED(maco_compile(g, &o, &p), HL_EINVAL, "lists without MACO_STATIC");
    maco_graph_free(g);
}

/* ---- the order of communication ---- */

/* One rank's program: `swap` exchanges two collectives, `slow` changes costs and the target of its
 * sends. */
static maco_plan *rank_of(int swap, int slow, int32_t count, maco_plan_view *v)
{
    static float x[64];
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    for (int i = 0; i < 8; i++) {
        int k = swap && (i == 4 || i == 5) ? 9 - i : i;
        add_work(g, NULL, slow ? (uint32_t)(1000 - 100 * i) : 5);
        uint32_t c =
            add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_BROADCAST, .inputs = {&x[k]},
                                .outputs = {&x[k]}, .group = (uint32_t)i % 2,
                                .dims = {i == 7 ? count : 1, 0, 0, k}});
        OK(maco_graph_depend(g, c, c - 1));
    }
    add_op(g,
           (maco_op){MACO_OP_INIT, .type = MACO_TASK_SEND, .inputs = {x}, .dims = {1, 0, 0, slow}});
    OK(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &p));
    maco_graph_free(g);
    *v = *maco_plan_read(p);
    return p;
}

TEST(ranks_with_one_program_agree_and_others_do_not)
{
    maco_plan_view a, b, c, d;
    maco_plan *pa = rank_of(0, 0, 1, &a), *pb = rank_of(0, 1, 1, &b), *pc = rank_of(1, 0, 1, &c);
    maco_plan *pd = rank_of(0, 0, 2, &d);
    assert_int_equal(a.n_comm, 9);
    assert_true(a.comm_hash == b.comm_hash);
    assert_true(a.comm_hash != c.comm_hash && a.comm_hash != d.comm_hash);
    for (uint32_t i = 1; i < 8; i++) /* the order of adding */
        assert_true(a.id[a.comm[i]] > a.id[a.comm[i - 1]]);
    /* The lowest n at which hashes differ finds the collective. */
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t n = 0; n <= 4; n++)
            assert_int_equal(hl_maco_plan_order_hash(pa, g, n) == hl_maco_plan_order_hash(pc, g, n),
                             n <= 2);
    assert_int_equal(a.tasks[hl_maco_plan_collective(pa, 0, 2)].dims[3], 4);
    assert_int_equal(c.tasks[hl_maco_plan_collective(pc, 0, 2)].dims[3], 5);
    assert_int_equal(hl_maco_plan_collective(pa, 0, 4), MACO_NONE);
    assert_true(hl_maco_plan_order_hash(pa, 0, UINT32_MAX) ==
                hl_maco_plan_order_hash(pd, 0, UINT32_MAX));
    assert_true(hl_maco_plan_order_hash(pa, 1, UINT32_MAX) !=
                hl_maco_plan_order_hash(pd, 1, UINT32_MAX));
    maco_plan_free(pa);
    maco_plan_free(pb);
    maco_plan_free(pc);
    maco_plan_free(pd);
}

/* Two sums of one size and one of another; `swapped` reverses the order of adding. */
static maco_plan *alike(const char *a, const char *b, int local, int swapped, int first)
{
    static float x[3][4];
    maco_graph *g = NULL;
    maco_plan *p = NULL;
    OK(maco_graph_new(&g));
    for (int i = 0; i < 3; i++) {
        int k = swapped && i < 2 ? 1 - i : i;
        add_op(g, (maco_op){MACO_OP_INIT, .type = MACO_TASK_ALLREDUCE, .inputs = {x[k]},
                            .outputs = {x[k]}, .dims = {k == 2 ? 3 : 4}, .priority = k == first,
                            .local_name = local,
                            .name = k == 0   ? a
                                    : k == 1 ? b
                                             : NULL});
    }
    OK(maco_compile(g, &(maco_compile_options){MACO_COMPILE_OPTIONS_INIT, .infer = 1}, &p));
    maco_graph_free(g);
    assert_int_equal(hl_maco_plan_alike(p, hl_maco_plan_collective(p, 0, 2)), 0);
    return p;
}

/* Whether both hashes agree for both plans. */
static int agree(maco_plan *a, maco_plan *b)
{
    maco_plan_view va, vb;
    va = *maco_plan_read(a);
    vb = *maco_plan_read(b);
    int same = va.comm_hash == vb.comm_hash;
    assert_int_equal(hl_maco_plan_order_hash(a, 0, UINT32_MAX) ==
                         hl_maco_plan_order_hash(b, 0, UINT32_MAX),
                     same);
    maco_plan_free(a);
    maco_plan_free(b);
    return same;
}

TEST(collectives_that_are_alike_are_told_apart)
{
    /* Matched by name, whatever the order of adding. */
    assert_true(agree(alike("a", "b", 0, 0, 9), alike("a", "b", 0, 0, 9)));
    assert_false(agree(alike("a", "b", 0, 0, 9), alike("a", "b", 0, 1, 9)));
    assert_false(agree(alike("a", "b", 0, 0, 9), alike("a", "b", 0, 0, 1)));
    assert_true(agree(alike("a", "b", 0, 0, 9), alike("a", "b", 0, 1, 0)));
    assert_false(agree(alike("a", "b", 0, 0, 9), alike("a", "c", 0, 0, 9)));
    assert_false(agree(alike("a", "b", 0, 0, 9), alike("a", NULL, 0, 0, 9)));
    /* Without names, or with a rank's own names, by the order of adding. */
    assert_false(agree(alike(NULL, NULL, 0, 0, 9), alike(NULL, NULL, 0, 0, 1)));
    assert_false(agree(alike("same", "same", 0, 0, 9), alike("same", "same", 0, 0, 1)));
    assert_true(agree(alike("a", "b", 1, 0, 9), alike("b", "c", 1, 0, 9)));
    assert_true(agree(alike("a", "b", 1, 0, 9), alike(NULL, NULL, 0, 0, 9)));
    /* If only the order differs, there is nothing to tell them apart by. */
    assert_true(agree(alike(NULL, NULL, 0, 0, 9), alike(NULL, NULL, 0, 1, 9)));
    maco_plan *p = alike(NULL, NULL, 0, 0, 1);
    assert_int_equal(hl_maco_plan_alike(p, hl_maco_plan_collective(p, 0, 0)), 1);
    maco_plan_free(p);
}
