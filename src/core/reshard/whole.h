/* core/reshard/whole.h - plans how to make the logical (Hugging Face) tensors of a version, or the
 * shards of another split, from the shards of its ranks.
 *
 * The split is planned again from the model's config. The dtypes come from the stored tensors,
 * because a version may have been trained in a different dtype than was imported. The result says
 * for every target tensor which bytes of which shards make it up.
 *
 * Owns:    hl_whole owns everything reachable from it (hl_whole_fini).
 * Threads: any; pure, except for the caller's `find`.
 * Errors:  HL_EUNSUPPORTED for a config without a Hugging Face config or a split; HL_EINVAL names a
 *          tensor that does not match the config; HL_ECONFLICT one that ranks hold with different
 *          dtypes; errors of `find`.
 * Units:   bytes.
 * Limits:  those of core/model/partition.h and core/reshard/reshard.h.
 */
#ifndef HL_CORE_RESHARD_WHOLE_H
#define HL_CORE_RESHARD_WHOLE_H

#include <stdbool.h>

#include "base/arena.h"
#include "core/families/logical.h"
#include "core/model/hf.h"
#include "core/reshard/reshard.h"

struct hl_whole {
    struct hl_hf_config config;
    bool adapter; /* LoRA: `config` is the base's */
    struct hl_logical logical;
    struct hl_partition_plan ranks; /* plan of the shards as stored */
    struct hl_partition_plan
        whole; /* one tensor for each logical one, by part; or the plan of the other split */
    struct hl_reshard_plan plan; /* from ranks to whole */
    /* logical tensors from here on are not in the config; see hl_whole_split */
    size_t beside_first;
    struct hl_arena beside_names;
};

/* Finds the stored tensor with that name in the shard (pp, tp, part); borrowed. */
typedef hl_status (*hl_whole_find_fn)(void *arg, const struct hl_partition_shard *shard,
                                      const char *name, const struct hl_tensor **out);

/* config: as delivered with the shards of a position (ImportProgress.config). */
hl_status hl_whole_plan(const char *config, hl_whole_find_fn find, void *arg,
                        struct hl_whole *out) HL_CHECK;

/* Access to everything in a version's shards, which may be more than its config asks for. */
struct hl_whole_stored {
    hl_whole_find_fn find;
    /* The tensors of the shard; none if it is not stored. Borrowed. */
    hl_status (*list)(void *arg, const struct hl_partition_shard *shard,
                      const struct hl_tensor **out, size_t *count);
    /* The CRC-32 of one of them; HL_EUNSUPPORTED: unknown. */
    hl_status (*crc)(void *arg, const struct hl_partition_shard *shard, const char *name,
                     uint32_t *out);
    void *arg;
};

/* Plans the shards of `split`, which must state every size: `whole` is their plan, and `plan` stays
 * empty. A tensor that the config does not ask for goes to every rank of its part if all tensor
 * ranks hold the same bytes; HL_EUNSUPPORTED names one for which they don't. */
hl_status hl_whole_split(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out) HL_CHECK;
/* The same, and `plan` says how they are made from the stored shards. */
hl_status hl_whole_recut(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out) HL_CHECK;
/* For an unsliced model, whose stored tensors are the logical ones: tensor i is in part parts[i] at
 * pp 0, tp 0. config.hf is NULL if the model has none. */
hl_status hl_whole_plan_unsliced(const char *config, const struct hl_tensor *tensors,
                                 const char *const *parts, size_t count,
                                 struct hl_whole *out) HL_CHECK;
/* Plans only what the ranks hold: `whole` and `plan` stay empty. */
hl_status hl_whole_ranks(const char *config, hl_whole_find_fn find, void *arg,
                         struct hl_whole *out) HL_CHECK;
/* The same for shards described by `options` and a Hugging Face config instead of a model's config;
 * takes ownership of *config, also on failure. */
hl_status hl_whole_held(struct hl_hf_config *config, const struct hl_partition_options *options,
                        hl_whole_find_fn find, void *arg, struct hl_whole *out) HL_CHECK;
void hl_whole_fini(struct hl_whole *w);

/* Reads such a config: the Hugging Face config, and how the model is split. */
hl_status hl_whole_read(const char *config, struct hl_hf_config *hf,
                        struct hl_partition_options *options) HL_CHECK;

#endif
