/* core/rank.h - global rank <-> (pp, tp, dp), in Megatron's two orders.
 *
 * Owns: nothing.  Threads: any; pure.
 * Errors:  HL_EINVAL names the coordinate that is out of range, or the unknown order.
 * Units:   ranks count from 0.
 * Limits:  pp·tp·dp ≤ 2^31 - 1.
 */
#ifndef HL_CORE_RANK_H
#define HL_CORE_RANK_H

#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* The leftmost coordinate varies fastest. */
enum hl_rank_order { HL_ORDER_TP_DP_PP, HL_ORDER_TP_PP_DP };

struct hl_rank_sizes {
    int pp, tp, dp;
};

struct hl_rank_at {
    int pp, tp, dp;
};

static inline const char *hl_rank_order_name(enum hl_rank_order order)
{
    return order == HL_ORDER_TP_PP_DP ? "tp-pp-dp" : "tp-dp-pp";
}

/* NULL or "" is the default, tp-dp-pp. */
HL_CHECK static inline hl_status hl_rank_order_parse(const char *text, enum hl_rank_order *out)
{
    if (text == NULL || *text == '\0' || strcmp(text, "tp-dp-pp") == 0)
        *out = HL_ORDER_TP_DP_PP;
    else if (strcmp(text, "tp-pp-dp") == 0)
        *out = HL_ORDER_TP_PP_DP;
    else
        return hl_fail(HL_EINVAL, "rank order '%.40s' is unknown: use tp-dp-pp or tp-pp-dp", text);
    return HL_OK;
}

/* Number of ranks; HL_EINVAL for sizes below 1 or a product beyond 2^31 - 1. */
HL_CHECK static inline hl_status hl_rank_world(struct hl_rank_sizes n, int *out)
{
    int64_t world = (int64_t)n.pp * n.tp;
    if (n.pp < 1 || n.tp < 1 || n.dp < 1 || world > INT32_MAX || world * n.dp > INT32_MAX)
        return hl_fail(HL_EINVAL,
                       "pp %d x tp %d x dp %d is not a number of ranks: each is at least 1", n.pp,
                       n.tp, n.dp);
    *out = (int)(world * n.dp);
    return HL_OK;
}

HL_CHECK static inline hl_status hl_rank_of(enum hl_rank_order order, struct hl_rank_sizes n,
                                            struct hl_rank_at at, int *out)
{
    int world;
    HL_TRY(hl_rank_world(n, &world));
    if (at.pp < 0 || at.pp >= n.pp || at.tp < 0 || at.tp >= n.tp || at.dp < 0 || at.dp >= n.dp)
        return hl_fail(HL_EINVAL, "pp %d tp %d dp %d is outside pp %d tp %d dp %d", at.pp, at.tp,
                       at.dp, n.pp, n.tp, n.dp);
    *out = order == HL_ORDER_TP_PP_DP ? at.tp + n.tp * (at.pp + n.pp * at.dp)
                                      : at.tp + n.tp * (at.dp + n.dp * at.pp);
    return HL_OK;
}

HL_CHECK static inline hl_status hl_rank_at(enum hl_rank_order order, struct hl_rank_sizes n,
                                            int rank, struct hl_rank_at *out)
{
    int world;
    HL_TRY(hl_rank_world(n, &world));
    if (rank < 0 || rank >= world)
        return hl_fail(HL_EINVAL, "rank %d is outside 0..%d", rank, world - 1);
    int rest = rank / n.tp;
    out->tp = rank % n.tp;
    out->pp = order == HL_ORDER_TP_PP_DP ? rest % n.pp : rest / n.dp;
    out->dp = order == HL_ORDER_TP_PP_DP ? rest / n.pp : rest % n.dp;
    return HL_OK;
}

#endif
