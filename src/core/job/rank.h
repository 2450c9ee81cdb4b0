/* core/job/rank.h - the identity of a rank: its number and its place in the grid.
 *
 * Megatron's default order is tp fastest, then cp, dp and pp: rank = tp + TP * (cp + CP * (dp + DP
 * * pp)). Ranks with the same tp and pp have the same parameters; to decide who saves what, they
 * share one replica number, cp + CP * dp. The experts' grid is laid over the ranks of a stage: etp
 * fastest, then ep, then the experts' data ranks.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for an unknown order name.
 * Units:   none.
 * Limits:  pp * tp * cp * dp fits an int (checked where a job is parsed).
 */
#ifndef HL_CORE_JOB_RANK_H
#define HL_CORE_JOB_RANK_H

#include <string.h>

#include "base/status.h"

enum hl_rank_order { HL_ORDER_TP_DP_PP, HL_ORDER_TP_PP_DP };

/* Sizes of the dimensions, and the order in which ranks are numbered. */
struct hl_grid {
    int pp;
    int tp;
    int dp;
    enum hl_rank_order order;
    int cp; /* 0 = 1 */
};

struct hl_rank {
    int pp;
    int tp;
    int dp;
    int cp;
};

/* A rank's coordinates in the experts' grid. */
struct hl_expert_rank {
    int ep, etp, dp;
};

static inline int hl_grid_cp(const struct hl_grid *g)
{
    return g->cp > 0 ? g->cp : 1;
}

/* Number of ranks that have the same parameters. */
static inline int hl_grid_replicas(const struct hl_grid *g)
{
    return hl_grid_cp(g) * g->dp;
}

static inline int hl_rank_replica(const struct hl_grid *g, struct hl_rank r)
{
    return r.cp + hl_grid_cp(g) * r.dp;
}

static inline int hl_rank_world(const struct hl_grid *g)
{
    return g->pp * g->tp * hl_grid_replicas(g);
}

static inline int hl_rank_number(const struct hl_grid *g, struct hl_rank r)
{
    int outer = g->order == HL_ORDER_TP_PP_DP ? r.pp + g->pp * r.dp : r.dp + g->dp * r.pp;
    return r.tp + g->tp * (r.cp + hl_grid_cp(g) * outer);
}

static inline struct hl_rank hl_rank_of(const struct hl_grid *g, int number)
{
    int tp = number % g->tp, cp = number / g->tp % hl_grid_cp(g);
    int outer = number / g->tp / hl_grid_cp(g);
    if (g->order == HL_ORDER_TP_PP_DP)
        return (struct hl_rank){.pp = outer % g->pp, .tp = tp, .dp = outer / g->pp, .cp = cp};
    return (struct hl_rank){.pp = outer / g->dp, .tp = tp, .dp = outer % g->dp, .cp = cp};
}

/* The rank's place in the experts' grid of its stage, numbered by etp first, then ep. */
static inline struct hl_expert_rank hl_rank_experts(const struct hl_grid *g, struct hl_rank r,
                                                    int ep, int etp)
{
    int at = r.tp + g->tp * hl_rank_replica(g, r);
    return (struct hl_expert_rank){.etp = at % etp, .ep = at / etp % ep, .dp = at / etp / ep};
}

/* Which of the `ep` shares of the experts the rank has, where `etp` ranks share an expert. */
static inline int hl_rank_expert(const struct hl_grid *g, struct hl_rank r, int ep, int etp)
{
    return hl_rank_experts(g, r, ep, etp).ep;
}

static inline const char *hl_rank_order_name(enum hl_rank_order order)
{
    return order == HL_ORDER_TP_PP_DP ? "tp-pp-dp" : "tp-dp-pp";
}

/* Megatron's own names, which also contain cp and ep, are accepted as synonyms. */
HL_CHECK static inline hl_status hl_rank_order_parse(const char *name, enum hl_rank_order *out)
{
    if (strcmp(name, "tp-dp-pp") == 0 || strcmp(name, "tp-cp-ep-dp-pp") == 0)
        *out = HL_ORDER_TP_DP_PP;
    else if (strcmp(name, "tp-pp-dp") == 0 || strcmp(name, "tp-cp-ep-pp-dp") == 0)
        *out = HL_ORDER_TP_PP_DP;
    else
        return hl_fail(HL_EINVAL, "rank order '%s' is neither tp-dp-pp nor tp-pp-dp", name);
    return HL_OK;
}

#endif
