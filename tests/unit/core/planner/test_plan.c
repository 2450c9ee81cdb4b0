#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/plan.h"

/* ---- building -------------------------------------------------------------------------------- */

struct slots {
    int count, gpus, cpus, first_numa, numa_step;
};

static void add_node(struct hl_cluster *c, const char *name, const char *host, struct slots s)
{
    struct hl_arena arena = {0};
    struct hl_api_slot *slots = hl_arena_array(&arena, (size_t)s.count, sizeof(*slots));
    for (int i = 0; i < s.count; i++) {
        struct hl_api_device *gpus = hl_arena_array(&arena, (size_t)s.gpus, sizeof(*gpus));
        for (int g = 0; g < s.gpus; g++)
            gpus[g].id = hl_arena_printf(&arena, "0000:%02x:%02x.0", i, g);
        slots[i] = (struct hl_api_slot){
            .numa_id = s.first_numa + i * s.numa_step,
            .cpus = hl_arena_printf(&arena, "%d-%d", i * s.cpus, (i + 1) * s.cpus - 1),
            .memory_bytes = (uint64_t)64 << 30,
            .gpus = {gpus, (size_t)s.gpus}};
    }
    const struct hl_api_node_info info = {
        .name = name, .host_id = host, .rank_address = host, .slots = {slots, (size_t)s.count}};
    assert_int_equal(hl_cluster_put(c, &info), HL_OK);
    hl_arena_fini(&arena);
}

static const struct slots plain = {.count = 2, .cpus = 4, .numa_step = 1};

static void add_nodes(struct hl_cluster *c, int n, struct slots s)
{
    for (int i = 0; i < n; i++) {
        char name[32], host[32];
        snprintf(name, sizeof(name), "node-%d", i);
        snprintf(host, sizeof(host), "10.0.0.%d", i);
        add_node(c, name, host, s);
    }
}

static struct hl_job job_of(int pp, int tp, int dp)
{
    static char name[] = "j", empty[] = "", restart[] = "restart";
    return (struct hl_job){.name = name,
                           .model = empty,
                           .model_size = empty,
                           .dataset = empty,
                           .image = empty,
                           .workdir = empty,
                           .venv = empty,
                           .conda = empty,
                           .python = empty,
                           .on_node_lost = empty,
                           .recovery = restart,
                           .node_lost_ms = -1,
                           .model_version = -1,
                           .virtual_stages = 1,
                           .ep = 1,
                           .etp = tp,
                           .gpus_per_rank = -1,
                           .grid = {pp, tp, dp, HL_ORDER_TP_DP_PP}};
}

static struct hl_plan *make(const struct hl_job *job, const struct hl_cluster *c)
{
    struct hl_plan *plan = NULL;
    assert_int_equal(hl_plan_make(job, c, &plan), HL_OK);
    return plan;
}

static int says(char *const *lines, const char *text)
{
    for (size_t i = 0; lines != NULL && lines[i] != NULL; i++)
        if (strstr(lines[i], text) != NULL)
            return 1;
    return 0;
}

/* Everything that must hold for any feasible plan. */
static void check_valid(const struct hl_job *job, const struct hl_cluster *c,
                        const struct hl_plan *p)
{
    const struct hl_grid *g = &job->grid;
    int rank = 0;
    assert_true(p->feasible);
    for (int i = 0; i < p->container_count; i++) {
        const struct hl_plan_container *a = &p->containers[i];
        const struct hl_cluster_node *node = hl_cluster_find(c, a->node);
        int found = 0;
        assert_non_null(node);
        assert_true(node->ready);
        assert_int_equal(a->index, i);
        for (int s = 0; s < node->slot_count; s++)
            found += node->slots[s].numa_id == a->numa_id && !node->slots[s].busy;
        assert_int_equal(found, 1);
        for (int k = 0; k < i; k++)
            assert_false(strcmp(a->node, p->containers[k].node) == 0 &&
                         a->numa_id == p->containers[k].numa_id);
        for (int r = 0; r < a->rank_count; r++, rank++) {
            struct hl_rank at = a->ranks[r].at;
            assert_int_equal(a->ranks[r].rank, rank);
            assert_int_equal(a->ranks[r].local_rank, r);
            assert_int_equal(rank, g->order == HL_ORDER_TP_DP_PP
                                       ? at.tp + g->tp * (at.dp + g->dp * at.pp)
                                       : at.tp + g->tp * (at.pp + g->pp * at.dp));
        }
    }
    assert_int_equal(rank, g->pp * g->tp * g->dp);
}

/* ---- by hand --------------------------------------------------------------------------------- */

TEST(two_by_two_on_two_nodes_puts_each_stage_on_its_own_node)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 2, 1);
    add_nodes(&c, 2, plain);
    struct hl_plan *p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->container_count, 4);
    assert_int_equal(p->ranks_per_container, 1);
    static const char *const nodes[] = {"node-0", "node-0", "node-1", "node-1"};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(p->containers[i].node, nodes[i]);
        assert_int_equal(p->containers[i].numa_id, i % 2);
    }
    assert_string_equal(p->arithmetic[0],
                        "PP 2 × TP 2 × DP 1 = 4 ranks; 1 rank per container → 4 containers, one "
                        "serverId:numaId slot each");
    assert_null(p->warnings);
    assert_string_equal(p->master_node, "node-0");
    assert_string_equal(p->master_address, "10.0.0.0");
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(the_specs_sixty_four_are_explained)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(8, 8, 16);
    add_nodes(&c, 300, (struct slots){2, 2, 88, 0, 8});
    struct hl_plan *p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->world_size, 1024);
    assert_int_equal(p->ranks_per_container, 2); /* GPUs of an AC922's slot */
    assert_int_equal(p->container_count, 512);
    assert_true(says(p->arithmetic, "PP 8 × TP 8 × DP 16 = 1024 ranks; 2 ranks per container → 512 "
                                    "containers"));
    assert_true(says(p->arithmetic, "16 data-parallel replicas of PP 8 × TP 8 = 64 ranks"));
    assert_true(says(p->warnings, "128 of 128 tensor-parallel groups are spread over up to 2 "
                                  "servers, because one group needs 4 slots"));
    assert_int_equal(p->containers[1].numa_id, 8);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(a_gang_that_does_not_fit_is_refused_with_numbers)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 2, 1);
    add_nodes(&c, 3, plain);
    hl_cluster_set_busy(&c, "node-0", 0, 1);
    hl_cluster_set_busy(&c, "node-1", 1, 1);
    hl_cluster_set_ready(&c, "node-2", 0);
    struct hl_plan *p = make(&job, &c);
    assert_false(p->feasible);
    assert_false(p->never);
    assert_null(p->containers);
    assert_string_equal(p->reason, "needs 4 slots, 2 are free of 4 on 2 ready servers; 1 server is "
                                   "not ready (`helios nodes` says why)");
    hl_plan_free(p);
    struct hl_job six = job_of(1, 1, 6);
    p = make(&six, &c);
    assert_false(p->feasible);
    assert_false(p->never); /* node-2 may come back */
    hl_plan_free(p);
    struct hl_job big = job_of(1, 1, 7);
    big.gpus_per_rank = 1;
    big.memory_bytes = 1ull << 30;
    p = make(&big, &c);
    assert_true(p->never);
    assert_string_equal(
        p->reason, "needs 7 slots with at least 1 GPU, at least 1.0 GiB, 0 are free of 4 on 2 "
                   "ready servers; 2 more free ones are too small; 1 server is not ready (`helios "
                   "nodes` says why); even an idle cluster has only 0 such slots: add servers or "
                   "make the job smaller");
    hl_plan_free(p);
    hl_cluster_fini(&c);
    p = make(&job, &c); /* no node at all */
    assert_true(p->never);
    hl_plan_free(p);
}

TEST(a_job_that_fits_the_idle_cluster_is_not_refused_for_ever)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 2, 1);
    add_nodes(&c, 1, plain);
    hl_cluster_set_busy(&c, "node-0", 0, 1);
    struct hl_plan *p = make(&job, &c);
    assert_false(p->feasible);
    assert_false(p->never);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(containers_hold_as_many_ranks_as_slots_have_gpus)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 4, 1);
    add_nodes(&c, 4, (struct slots){2, 2, 8, 0, 8});
    struct hl_plan *p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->ranks_per_container, 2);
    assert_int_equal(p->container_count, 4);
    assert_string_equal(p->containers[0].node, p->containers[1].node);
    assert_string_not_equal(p->containers[1].node, p->containers[2].node);
    assert_string_equal(p->containers[0].ranks[1].gpu, "0000:00:01.0");
    assert_null(p->warnings);
    hl_plan_free(p);
    /* TP 2 × DP 1 × PP 2 would fit in one slot of 4 GPUs, but would put its stages together. */
    hl_cluster_fini(&c);
    add_nodes(&c, 4, (struct slots){2, 4, 8, 0, 1});
    job = job_of(2, 2, 1);
    p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->ranks_per_container, 2);
    assert_string_not_equal(p->containers[0].node, p->containers[1].node);
    assert_true(says(p->arithmetic, "2 of up to 4 GPUs of a slot are used"));
    hl_plan_free(p);
    job = job_of(2, 2, 2); /* two replicas of one stage fit together */
    p = make(&job, &c);
    assert_int_equal(p->ranks_per_container, 4);
    check_valid(&job, &c, p);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(a_job_without_gpus_leaves_them_to_others)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 1, 2);
    struct hl_api_device gpus[] = {{.id = "g0"}, {.id = "g1"}};
    struct hl_api_slot slots[] = {{.numa_id = 0, .cpus = "0-5", .gpus = {&gpus[0], 1}},
                                  {.numa_id = 1, .cpus = "6-11"},
                                  {.numa_id = 2, .cpus = "12-17", .gpus = {&gpus[1], 1}},
                                  {.numa_id = 3, .cpus = "18-23"}};
    const struct hl_api_node_info info = {.name = "epyc", .slots = {slots, 4}};
    assert_int_equal(hl_cluster_put(&c, &info), HL_OK);
    struct hl_plan *p = make(&job, &c); /* the cluster has GPUs: they are used */
    assert_int_equal(p->containers[0].numa_id, 0);
    assert_int_equal(p->containers[1].numa_id, 2);
    assert_string_equal(p->containers[1].ranks[0].gpu, "g1");
    hl_plan_free(p);
    job.gpus_per_rank = 0;
    p = make(&job, &c);
    assert_int_equal(p->containers[0].numa_id, 1);
    assert_int_equal(p->containers[1].numa_id, 3);
    assert_string_equal(p->containers[1].ranks[0].gpu, "");
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(of_equal_slots_those_with_a_nic_of_their_own_come_first)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 1, 3);
    struct hl_api_device nics[] = {{.nic_class = "ConnectX-5"}, {.nic_class = "ConnectX-6"}};
    struct hl_api_slot slots[] = {{.numa_id = 0, .cpus = "0-5"},
                                  {.numa_id = 1, .cpus = "6-11", .nics = {&nics[0], 1}},
                                  {.numa_id = 2, .cpus = "12-17"},
                                  {.numa_id = 3, .cpus = "18-23", .nics = {&nics[1], 1}}};
    const struct hl_api_node_info info = {.name = "epyc", .slots = {slots, 4}};
    static const int order[] = {3, 1, 0};
    assert_int_equal(hl_cluster_put(&c, &info), HL_OK);
    struct hl_plan *p = make(&job, &c);
    for (int i = 0; i < 3; i++)
        assert_int_equal(p->containers[i].numa_id, order[i]);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(what_is_not_as_one_would_like_is_said)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 1, 1);
    add_nodes(&c, 1, plain);
    struct hl_plan *p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_true(says(p->warnings, "pipeline stages of 1 of 1 replica share a server"));
    hl_plan_free(p);
    hl_cluster_fini(&c);
    /* Two nodes of one machine that were given the same CPUs. */
    add_node(&c, "a", "host", plain);
    add_node(&c, "b", "host", plain);
    job = job_of(2, 2, 1);
    p = make(&job, &c);
    assert_true(says(p->warnings, "4 of 4 containers share CPUs with another container"));
    assert_false(says(p->warnings, "stages"));
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(ranks_per_slot_may_be_given)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 3, 3);
    add_nodes(&c, 3, plain);
    job.ranks_per_slot = 2; /* 9 ranks: 4 containers of two, one of one; groups are split */
    struct hl_plan *p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->container_count, 5);
    assert_int_equal(p->containers[4].rank_count, 1);
    hl_plan_free(p);
    job.ranks_per_slot = 100;
    p = make(&job, &c);
    check_valid(&job, &c, p);
    assert_int_equal(p->container_count, 1);
    hl_plan_free(p);
    job.ranks_per_slot = 3;
    job.cpus_per_rank = 2; /* slots have 4 CPUs */
    p = make(&job, &c);
    assert_true(p->never);
    assert_non_null(strstr(p->reason, "at least 6 CPUs"));
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

/* ---- against brute force --------------------------------------------------------------------- */

#define SERVERS 4
#define GROUPS  9

struct brute {
    int servers, groups, tp, pp;
    int left[SERVERS];
    int on[GROUPS][SERVERS]; /* slots of the group on the server */
    long best;               /* 1000 x servers over all groups + pairs of stages that share one */
};

/* Groups in stage-major order: group g is stage g / dp of replica g % dp. */
static long cost_of(const int on[GROUPS][SERVERS], int servers, int pp, int dp)
{
    long spread = 0, conflicts = 0;
    for (int g = 0; g < pp * dp; g++)
        for (int s = 0; s < servers; s++)
            spread += on[g][s] > 0;
    for (int r = 0; r < dp; r++)
        for (int s = 0; s < servers; s++) {
            int stages = 0;
            for (int p = 0; p < pp; p++)
                stages += on[p * dp + r][s] > 0;
            conflicts += stages > 1 ? stages - 1 : 0;
        }
    return 1000 * spread + conflicts;
}

static void try_all(struct brute *b, int group, int server, int need)
{
    if (group == b->groups) {
        long cost = cost_of((const int(*)[SERVERS])b->on, b->servers, b->pp, b->groups / b->pp);
        if (b->best < 0 || cost < b->best)
            b->best = cost;
        return;
    }
    if (server == b->servers) {
        if (need == 0)
            try_all(b, group + 1, 0, b->tp);
        return;
    }
    for (int n = 0; n <= need && n <= b->left[server]; n++) {
        b->on[group][server] = n;
        b->left[server] -= n;
        try_all(b, group, server + 1, need - n);
        b->left[server] += n;
        b->on[group][server] = 0;
    }
}

static long cost_of_plan(const struct hl_job *job, const struct hl_plan *p)
{
    int on[GROUPS][SERVERS] = {{0}};
    for (int i = 0; i < p->container_count; i++) {
        struct hl_rank at = p->containers[i].ranks[0].at;
        on[at.pp * job->grid.dp + at.dp][p->containers[i].node[5] - '0']++;
    }
    return cost_of((const int(*)[SERVERS])on, SERVERS, job->grid.pp, job->grid.dp);
}

static void compare(const int *free_slots, int servers, const struct hl_job *job, unsigned *checked)
{
    struct hl_cluster c = {0};
    int total = 0;
    struct brute b = {.servers = servers,
                      .groups = job->grid.pp * job->grid.dp,
                      .tp = job->grid.tp,
                      .pp = job->grid.pp,
                      .best = -1};
    for (int s = 0; s < servers; s++) {
        char name[32];
        snprintf(name, sizeof(name), "node-%d", s);
        add_node(&c, name, name, (struct slots){free_slots[s] + 1, 0, 1, 0, 1});
        hl_cluster_set_busy(&c, name, 0, 1);
        b.left[s] = free_slots[s];
        total += free_slots[s];
    }
    struct hl_plan *p = make(job, &c);
    assert_int_equal(p->feasible, total >= b.groups * b.tp);
    if (p->feasible) {
        check_valid(job, &c, p);
        try_all(&b, 0, 0, b.tp);
        long got = cost_of_plan(job, p);
        if (got / 1000 != b.best / 1000)
            fail_msg("free %d %d %d %d, PP %d TP %d DP %d: TP groups on %ld servers, %ld is best",
                     free_slots[0], free_slots[1], free_slots[2], servers > 3 ? free_slots[3] : 0,
                     job->grid.pp, job->grid.tp, job->grid.dp, got / 1000, b.best / 1000);
        /* Every group is whole on one server: then as few stages as possible share one. */
        if (b.best / 1000 == b.groups && got != b.best)
            fail_msg("free %d %d %d %d, PP %d TP %d DP %d: %ld stages share, %ld is best",
                     free_slots[0], free_slots[1], free_slots[2], servers > 3 ? free_slots[3] : 0,
                     job->grid.pp, job->grid.tp, job->grid.dp, got % 1000, b.best % 1000);
        ++*checked;
    }
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(no_placement_of_a_small_gang_is_better)
{

    static const struct {
        int pp, tp, dp, servers, most;
    } rows[] = {
        {1, 2, 1, 4, 3}, {2, 2, 1, 4, 3}, {1, 3, 2, 4, 4}, {2, 3, 1, 3, 5}, {1, 4, 2, 4, 4},
        {2, 1, 2, 4, 2}, {3, 1, 2, 3, 4}, {2, 1, 3, 3, 4}, {4, 1, 1, 4, 3}, {2, 2, 2, 3, 4},
        {1, 5, 1, 4, 4}, {1, 3, 3, 3, 5}, {3, 2, 1, 4, 3}, {1, 6, 1, 4, 4},
    };

    unsigned checked = 0;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int free_slots[SERVERS], cases = 1;
        for (int s = 0; s < rows[i].servers; s++)
            cases *= rows[i].most + 1;
        for (int n = 0; n < cases; n++) {
            struct hl_job job = job_of(rows[i].pp, rows[i].tp, rows[i].dp);
            job.grid.order = n % 2 ? HL_ORDER_TP_PP_DP : HL_ORDER_TP_DP_PP;
            for (int s = 0, x = n; s < rows[i].servers; s++, x /= rows[i].most + 1)
                free_slots[s] = x % (rows[i].most + 1);
            compare(free_slots, rows[i].servers, &job, &checked);
        }
    }
    assert_true(checked > 1000);
}

TEST(the_same_input_gives_the_same_plan)
{
    struct hl_cluster a = {0}, b = {0};
    struct hl_job job = job_of(2, 2, 3);
    for (int i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof(name), "node-%d", i);
        add_node(&a, name, name, plain);
        snprintf(name, sizeof(name), "node-%d", 11 - i);
        add_node(&b, name, name, plain);
    }
    assert_string_equal(a.nodes[2].name, "node-2");
    assert_string_equal(a.nodes[10].name, "node-10");
    struct hl_plan *p = make(&job, &a), *q = make(&job, &b);
    json_t *x = hl_plan_to_json(p), *y = hl_plan_to_json(q);
    assert_true(json_equal(x, y));
    json_decref(x);
    json_decref(y);
    hl_plan_free(p);
    hl_plan_free(q);
    hl_cluster_fini(&a);
    hl_cluster_fini(&b);
}

TEST(small_gangs_fill_half_used_servers_first)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 1, 1);
    add_nodes(&c, 3, plain);
    hl_cluster_set_busy(&c, "node-1", 0, 1);
    struct hl_plan *p = make(&job, &c);
    assert_string_equal(p->containers[0].node, "node-1");
    assert_int_equal(p->containers[0].numa_id, 1);
    hl_plan_mark(p, &c, 1);
    hl_plan_free(p);
    p = make(&job, &c);
    assert_string_equal(p->containers[0].node, "node-0");
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(n_free_slots_take_n_jobs_of_one_slot)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(1, 2, 1);
    add_nodes(&c, 50, (struct slots){2, 2, 8, 0, 8});
    for (int i = 0; i < 100; i++) {
        struct hl_plan *p = make(&job, &c);
        check_valid(&job, &c, p);
        assert_int_equal(p->container_count, 1);
        hl_plan_mark(p, &c, 1);
        hl_plan_free(p);
    }
    struct hl_plan *p = make(&job, &c);
    assert_false(p->feasible);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

/* ---- nodes, JSON ----------------------------------------------------------------------------- */

TEST(a_node_that_registers_again_keeps_what_is_held)
{
    struct hl_cluster c = {0};
    add_nodes(&c, 2, plain);
    hl_cluster_set_busy(&c, "node-1", 1, 1);
    hl_cluster_set_ready(&c, "node-1", 0);
    add_nodes(&c, 2, plain);
    assert_int_equal(c.count, 2);
    assert_true(c.nodes[1].ready);
    assert_true(c.nodes[1].slots[1].busy);
    assert_false(c.nodes[1].slots[0].busy);
    hl_cluster_remove(&c, "node-0");
    hl_cluster_remove(&c, "nobody");
    assert_int_equal(c.count, 1);
    assert_null(hl_cluster_find(&c, "node-0"));
    struct hl_api_slot nowhere = {.numa_id = -1}, no_cpus = {.cpus = "x"}, twice[2] = {0};
    const struct hl_api_node_info bad[] = {{0},
                                           {.name = "a", .slots = {&nowhere, 1}},
                                           {.name = "a", .slots = {&no_cpus, 1}},
                                           {.name = "a", .slots = {twice, 2}}};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_cluster_put(&c, &bad[i]), HL_EINVAL);
    hl_cluster_fini(&c);
}

TEST(a_plan_written_out_reads_back_the_same)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 2, 2);
    struct hl_plan *q = NULL;
    add_nodes(&c, 4, (struct slots){1, 2, 8, 0, 8});
    struct hl_plan *p = make(&job, &c);
    json_t *x = hl_plan_to_json(p);
    assert_non_null(x);
    assert_int_equal(json_object_size(x), 10); /* the fields of PlanRecord and no others */
    assert_int_equal(hl_plan_from_json(x, &q), HL_OK);
    json_t *y = hl_plan_to_json(q);
    assert_true(json_equal(x, y));
    json_t *broken = json_string("no plan");
    assert_int_equal(hl_plan_from_json(broken, &q), HL_EINVAL);
    json_decref(broken);
    json_decref(x);
    json_decref(y);
    hl_plan_free(p);
    hl_plan_free(q);
    hl_cluster_fini(&c);
}

static const char *value_of(const struct hl_api_key_value_list *env, const char *key)
{
    const char *found = NULL;
    for (size_t i = 0; i < env->count; i++)
        if (strcmp(env->items[i].key, key) == 0)
            found = env->items[i].value;
    return found;
}

TEST(a_container_is_told_everything_about_its_ranks)
{
    struct hl_cluster c = {0};
    struct hl_job job = job_of(2, 2, 1);
    static char model[] = "gpt", key[] = "LR", value[] = "1e-3";
    struct hl_job_var var = {.name = key, .value = value};
    job.model = model;
    job.env = &var;
    job.env_count = 1;
    add_nodes(&c, 2, (struct slots){1, 2, 8, 0, 8});
    struct hl_plan *p = make(&job, &c);
    struct hl_plan_spec_opts opts = {.job_id = "j-1",
                                     .attempt = 3,
                                     .controller_address = "c:1",
                                     .l3_address = "tcp://l:2",
                                     .model_version = 7,
                                     .master_port = 29500,
                                     .stop_grace_ms = 10000,
                                     .rank_table = "{}"};
    struct hl_arena arena = {0};
    struct hl_api_container_spec spec = hl_plan_container_spec(&job, p, 1, &opts, &arena);
    assert_string_equal(spec.id, "j-1.3.1");
    assert_int_equal(spec.gpus.count, 2);
    const struct hl_api_key_value_list *env = &spec.env;
    assert_string_equal(value_of(env, "LR"), "1e-3");
    assert_string_equal(value_of(env, "OMP_NUM_THREADS"), "4"); /* 8 CPUs, 2 ranks */
    assert_string_equal(value_of(env, "CONTROLLER_L3_CACHE_ADDRESS"), "tcp://l:2");
    assert_string_equal(value_of(env, "HELIOS_MODEL"), "gpt@7");
    assert_string_equal(value_of(env, "HELIOS_ATTEMPT"), "3");
    assert_string_equal(value_of(env, "MASTER_ADDR"), "10.0.0.0");
    assert_string_equal(value_of(env, "WORLD_SIZE"), "4");
    assert_string_equal(value_of(env, "LOCAL_WORLD_SIZE"), "2");
    assert_string_equal(value_of(env, "GROUP_RANK"), "1");
    assert_string_equal(value_of(env, "GROUP_WORLD_SIZE"), "2");
    assert_string_equal(value_of(env, "TORCHELASTIC_RESTART_COUNT"), "2");
    assert_string_equal(value_of(env, "HELIOS_RECOVERY"), "restart");
    assert_int_equal(spec.replace.max, 0);
    assert_string_equal(spec.rank_table, "{}");
    env = &spec.ranks.items[1].env;
    assert_string_equal(value_of(env, "GLOBAL_RANK"), "3");
    assert_string_equal(value_of(env, "RANK"), "3");
    assert_string_equal(value_of(env, "LOCAL_RANK"), "1");
    assert_string_equal(value_of(env, "PIPELINE_PARALLEL_RANK"), "1");
    assert_string_equal(value_of(env, "TENSOR_PARALLEL_RANK"), "1");
    assert_string_equal(value_of(env, "DATA_PARALLEL_RANK"), "0");
    assert_string_equal(value_of(env, "EXPERT_PARALLEL_RANK"), "0");
    job.ep = 2;
    job.etp = 1; /* tp 1 has the other half of the experts */
    spec = hl_plan_container_spec(&job, p, 1, &opts, &arena);
    assert_string_equal(value_of(&spec.env, "EXPERT_PARALLEL_SIZE"), "2");
    assert_string_equal(value_of(&spec.env, "EXPERT_TENSOR_PARALLEL_SIZE"), "1");
    assert_string_equal(value_of(&spec.ranks.items[0].env, "EXPERT_PARALLEL_RANK"), "0");
    assert_string_equal(value_of(&spec.ranks.items[1].env, "EXPERT_PARALLEL_RANK"), "1");
    hl_arena_fini(&arena);
    hl_plan_free(p);
    hl_cluster_fini(&c);
}

TEST(container_ids_are_read_from_the_end)
{
    char job[16];
    int attempt, index;
    assert_int_equal(hl_container_id_parse("a.b.c-1.12.3", job, sizeof(job), &attempt, &index),
                     HL_OK);
    assert_string_equal(job, "a.b.c-1");
    assert_int_equal(attempt, 12);
    assert_int_equal(index, 3);
    static const char *const bad[] = {"",
                                      "a",
                                      "a.1",
                                      ".1.2",
                                      "a.1.",
                                      "a..1",
                                      "a.x.1",
                                      "a.1.1234567890",
                                      "a-name-that-is-long.1.2"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(hl_container_id_parse(bad[i], job, sizeof(job), &attempt, &index),
                         HL_EINVAL);
}
