/* Ranks compared with the groups that Megatron-Core makes of 40 grids
 * (tests/data/megatron_grids.txt). */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/rank.h"

#define WORLD_MAX 128

struct case_ {
    struct hl_grid grid;
    int ep, etp;
};

/* A rank's index along each dimension. */
struct place {
    int tp, cp, dp, pp, etp, ep, edp;
};

static struct place place_of(const struct case_ *c, int rank)
{
    const struct hl_rank r = hl_rank_of(&c->grid, rank);
    const struct hl_expert_rank e = hl_rank_experts(&c->grid, r, c->ep, c->etp);
    assert_int_equal(hl_rank_number(&c->grid, r), rank);
    return (struct place){r.tp, r.cp, r.dp, r.pp, e.etp, e.ep, e.dp};
}

/* What the ranks of a group of that kind share, as one number; and the rank's index within the
 * group. */
static void split_place(const char *kind, const struct case_ *c, int rank, int *common, int *at)
{
    const struct place p = place_of(c, rank);
    int cp = hl_grid_cp(&c->grid);

    const struct {
        const char *kind;
        int common, at;
    } rows[] = {
        {"tp", (p.cp * 100 + p.dp) * 100 + p.pp, p.tp},
        {"cp", (p.tp * 100 + p.dp) * 100 + p.pp, p.cp},
        {"dp", (p.tp * 100 + p.cp) * 100 + p.pp, p.dp},
        {"dp-cp", p.tp * 100 + p.pp, p.cp + cp * p.dp},
        {"pp", (p.tp * 100 + p.cp) * 100 + p.dp, p.pp},
        {"etp", (p.ep * 100 + p.edp) * 100 + p.pp, p.etp},
        {"ep", (p.etp * 100 + p.edp) * 100 + p.pp, p.ep},
        {"edp", (p.etp * 100 + p.ep) * 100 + p.pp, p.edp},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].kind, kind) == 0) {
            *common = rows[i].common;
            *at = rows[i].at;
            return;
        }
    fail_msg("no groups of kind %s", kind);
}

/* "0,2 1,3": ranks of a group share one key, in the order of the dimension; two groups have
 * different keys; every rank is in one group. */
static void check_groups(const char *kind, const struct case_ *c, char *list)
{
    int seen[WORLD_MAX], groups = 0, ranks = 0;
    char *rest = NULL;
    for (char *group = strtok_r(list, " \n", &rest); group; group = strtok_r(NULL, " \n", &rest)) {
        int size = 0;
        for (const char *text = group; text != NULL; text = strchr(text, ',')) {
            int common = 0, at = 0;
            text += *text == ',';
            split_place(kind, c, atoi(text), &common, &at);
            if (size == 0) {
                for (int g = 0; g < groups; g++)
                    assert_int_not_equal(seen[g], common);
                seen[groups++] = common;
            }
            if (common != seen[groups - 1] || at != size)
                fail_msg("%s of PP %d TP %d CP %d DP %d EP %d ETP %d: rank %s is number %d of %s",
                         kind, c->grid.pp, c->grid.tp, c->grid.cp, c->grid.dp, c->ep, c->etp, text,
                         at, group);
            size++;
            ranks++;
            if (strchr(text, ',') == NULL)
                break;
        }
    }
    assert_int_equal(ranks, hl_rank_world(&c->grid));
}

TEST(forty_grids_have_the_groups_that_megatron_makes)
{
    char path[4096], line[8192], kind[32], order[32];
    const char *source = getenv("HELIOS_SOURCE");
    struct case_ c = {0};
    int grids = 0, lists = 0;
    snprintf(path, sizeof(path), "%s/tests/data/megatron_grids.txt", source != NULL ? source : ".");
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        int at = 0;
        if (line[0] == '#')
            continue;
        if (sscanf(line, "grid %d %d %d %d %d %d %31s", &c.grid.tp, &c.grid.cp, &c.ep, &c.etp,
                   &c.grid.dp, &c.grid.pp, order) == 7) {
            assert_int_equal(hl_rank_order_parse(order, &c.grid.order), HL_OK);
            grids++;
            continue;
        }
        assert_int_equal(sscanf(line, "%31s %n", kind, &at), 1);
        check_groups(kind, &c, line + at);
        lists++;
    }
    fclose(f);
    assert_int_equal(grids, 40);
    assert_int_equal(lists, 40 * 8);
}

static void check_list(const char *kind, const struct case_ *c, const char *list)
{
    char text[256];
    snprintf(text, sizeof(text), "%s", list);
    check_groups(kind, c, text);
}

/* As listed in Megatron-Core's own documentation: of initialize_model_parallel, 16 devices with TP
 * 2, PP 4; of generate_masked_orthogonal_rank_groups, tp-pp-dp of 2, 2 and 2, and 24 ranks, of
 * which the first, second and last data-parallel group are given. */
TEST(the_groups_of_megatrons_documentation_are_ours)
{
    const struct case_ sixteen = {.grid = {.tp = 2, .pp = 4, .dp = 2}, .ep = 1, .etp = 2};
    check_list("tp", &sixteen, "0,1 2,3 4,5 6,7 8,9 10,11 12,13 14,15");
    check_list("dp", &sixteen, "0,2 1,3 4,6 5,7 8,10 9,11 12,14 13,15");
    check_list("pp", &sixteen, "0,4,8,12 1,5,9,13 2,6,10,14 3,7,11,15");
    const struct case_ eight = {
        .grid = {.tp = 2, .pp = 2, .dp = 2, .order = HL_ORDER_TP_PP_DP}, .ep = 1, .etp = 2};
    check_list("dp", &eight, "0,4 1,5 2,6 3,7");
    const struct case_ all = {.grid = {.tp = 2, .pp = 4, .dp = 3}, .ep = 1, .etp = 2};
    check_list("dp", &all, "0,2,4 1,3,5 6,8,10 7,9,11 12,14,16 13,15,17 18,20,22 19,21,23");
}

/* By hand: eight ranks of one stage. Dense: tp varies fastest, then cp, then dp. Experts: etp
 * varies fastest, then ep, and the rest are their replicas. */
TEST(experts_count_through_etp_then_ep_whatever_the_dense_grid)
{
    struct case_ c = {.grid = {.tp = 2, .pp = 1, .dp = 4}, .ep = 4, .etp = 1};
    check_list("ep", &c, "0,1,2,3 4,5,6,7");
    check_list("edp", &c, "0,4 1,5 2,6 3,7");
    c = (struct case_){.grid = {.tp = 2, .pp = 1, .dp = 4}, .ep = 2, .etp = 2};
    check_list("etp", &c, "0,1 2,3 4,5 6,7");
    check_list("ep", &c, "0,2 1,3 4,6 5,7");
    check_list("edp", &c, "0,4 1,5 2,6 3,7");
    c = (struct case_){.grid = {.tp = 2, .pp = 1, .dp = 2, .cp = 2}, .ep = 8, .etp = 1};
    check_list("cp", &c, "0,2 1,3 4,6 5,7");
    check_list("dp", &c, "0,4 1,5 2,6 3,7");
    check_list("dp-cp", &c, "0,2,4,6 1,3,5,7");
    check_list("ep", &c, "0,1,2,3,4,5,6,7");
}
