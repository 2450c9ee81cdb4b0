/* core/whole.h - the logical (Hugging Face) tensors of a version out of the shards of its ranks.
 *
 * What the model's config says of the split is planned again; the dtypes come from the stored
 * tensors, for a version may have been trained in another one than was imported. The result says
 * for every logical tensor which bytes of which shards make it.
 *
 * Owns:    hl_whole owns everything reachable from it (hl_whole_fini).
 * Threads: any; pure, apart from what the caller's `find` does.
 * Errors:  HL_EUNSUPPORTED for a config without a Hugging Face config or a split; HL_EINVAL names a
 *          tensor that is not what the config says; HL_ECONFLICT one that ranks hold with
 *          different dtypes; those of `find`.
 * Units:   bytes.
 * Limits:  those of core/partition.h and core/reshard.h.
 */
#ifndef HL_CORE_WHOLE_H
#define HL_CORE_WHOLE_H

#include "core/families/logical.h"
#include "core/hf.h"
#include "core/reshard.h"

struct hl_whole {
    struct hl_hf_config config;
    struct hl_logical logical;
    struct hl_partition_plan ranks; /* shards as they are stored */
    struct hl_partition_plan whole; /* one tensor for each logical one, by part */
    struct hl_reshard_plan plan;    /* from ranks to whole */
};

/* The stored tensor of that name in the shard (pp, tp, part); borrowed. */
typedef hl_status (*hl_whole_find_fn)(void *arg, const struct hl_partition_shard *shard,
                                      const char *name, const struct hl_tensor **out);

/* `config`: as it comes with the shards of a position (ImportProgress.config). */
hl_status hl_whole_plan(const char *config, hl_whole_find_fn find, void *arg,
                        struct hl_whole *out) HL_CHECK;
/* Only what the ranks hold: `whole` and `plan` stay empty. */
hl_status hl_whole_ranks(const char *config, hl_whole_find_fn find, void *arg,
                         struct hl_whole *out) HL_CHECK;
void hl_whole_fini(struct hl_whole *w);

#endif
