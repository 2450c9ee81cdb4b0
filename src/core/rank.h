/* core/rank.h - the identity of a rank: its number and its (pp, tp, dp) triple.
 *
 * Megatron's default order is tp fastest, then dp, then pp: rank = tp + TP * (dp + DP * pp).
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for an unknown order name.
 * Units:   none.
 * Limits:  pp * tp * dp fits an int (checked where a job is parsed).
 */
#ifndef HL_CORE_RANK_H
#define HL_CORE_RANK_H

#include <string.h>

#include "base/status.h"

enum hl_rank_order { HL_ORDER_TP_DP_PP, HL_ORDER_TP_PP_DP };

/* How many of each, and the order in which ranks count through them. */
struct hl_grid {
    int pp;
    int tp;
    int dp;
    enum hl_rank_order order;
};

struct hl_rank {
    int pp;
    int tp;
    int dp;
};

static inline int hl_rank_world(const struct hl_grid *g)
{
    return g->pp * g->tp * g->dp;
}

static inline int hl_rank_number(const struct hl_grid *g, struct hl_rank r)
{
    if (g->order == HL_ORDER_TP_PP_DP)
        return r.tp + g->tp * (r.pp + g->pp * r.dp);
    return r.tp + g->tp * (r.dp + g->dp * r.pp);
}

static inline struct hl_rank hl_rank_of(const struct hl_grid *g, int number)
{
    int tp = number % g->tp;
    int group = number / g->tp;
    if (g->order == HL_ORDER_TP_PP_DP)
        return (struct hl_rank){.pp = group % g->pp, .tp = tp, .dp = group / g->pp};
    return (struct hl_rank){.pp = group / g->dp, .tp = tp, .dp = group % g->dp};
}

/* Which of the `ep` shares of the experts the rank has, where `etp` ranks share an expert. Megatron
 * counts the ranks of a stage through etp first, then ep. */
static inline int hl_rank_expert(const struct hl_grid *g, struct hl_rank r, int ep, int etp)
{
    return (r.tp + g->tp * r.dp) / etp % ep;
}

static inline const char *hl_rank_order_name(enum hl_rank_order order)
{
    return order == HL_ORDER_TP_PP_DP ? "tp-pp-dp" : "tp-dp-pp";
}

HL_CHECK static inline hl_status hl_rank_order_parse(const char *name, enum hl_rank_order *out)
{
    if (strcmp(name, "tp-dp-pp") == 0)
        *out = HL_ORDER_TP_DP_PP;
    else if (strcmp(name, "tp-pp-dp") == 0)
        *out = HL_ORDER_TP_PP_DP;
    else
        return hl_fail(HL_EINVAL, "rank order '%s' is neither tp-dp-pp nor tp-pp-dp", name);
    return HL_OK;
}

#endif
