/* core/model/split.h - how a version is split among pipeline and tensor ranks.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EINVAL with the arithmetic.
 * Units:   stages, ranks and layers count from 0.
 * Limits:  those of core/model/partition.h.
 */
#ifndef HL_CORE_MODEL_SPLIT_H
#define HL_CORE_MODEL_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"
#include "core/model/partition.h"

/* The split states at least one size. */
static inline bool hl_split_said(const struct hl_api_split *s)
{
    return s->tp != 0 || s->pp != 0 || s->virtual_stages != 0 || s->first_stage_layers != 0 ||
           s->last_stage_layers != 0 || s->ep != 0 || s->etp != 0;
}

/* Ranks over which a layer's experts are distributed: 1 unless stated. */
static inline int hl_split_ep(const struct hl_api_split *s)
{
    return s->ep > 0 ? s->ep : 1;
}

/* Ranks over which each expert is split: tp unless stated. */
static inline int hl_split_etp(const struct hl_api_split *s)
{
    return s->etp > 0 ? s->etp : s->tp;
}

/* Chunks per stage: 1 without virtual stages. */
static inline int hl_split_chunks(const struct hl_api_split *s)
{
    return s->virtual_stages > 1 ? s->virtual_stages : 1;
}

/* Completes `want` from `own`: a size that is not stated is taken from `own`. If the numbers of
 * ranks and stages are the same, and the first and last stage are not stated, the result is
 * `own`. */
struct hl_api_split hl_split_resolve(const struct hl_api_split *want,
                                     const struct hl_api_split *own);
/* Whether rank (tp, ep) of the split reads that shard of its stage. */
bool hl_split_reads(const struct hl_api_split *s, int tp, int ep, const char *part, int shard_tp,
                    int shard_ep);
/* Both splits cut every tensor in the same way, so shards of one fit the other. */
bool hl_split_same_cut(const struct hl_api_split *a, const struct hl_api_split *b);
/* The same, and every layer is in the same place. */
bool hl_split_equal(const struct hl_api_split *a, const struct hl_api_split *b);
struct hl_partition_options hl_split_options(const struct hl_api_split *s);
/* Checks that the model's layers can be distributed over the stages, and that etp divides tp. */
hl_status hl_split_check(const struct hl_api_split *s, uint64_t layers) HL_CHECK;
#define HL_SPLIT_TEXT_MAX 128
/* "TP2 x PP4 x EP2, 2 virtual stages" into buf. */
const char *hl_split_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX]);
/* The name of a cut for the split: "TP2", "TP2 x EP4, ETP1"; without stages, which are views. */
const char *hl_split_cut_text(const struct hl_api_split *s, char buf[HL_SPLIT_TEXT_MAX]);

#endif
