/* core/reshard/whole.h - the logical (Hugging Face) tensors of a version out of the shards of its
 * ranks, or the shards of another split.
 *
 * What the model's config says of the split is planned again; the dtypes come from the stored
 * tensors, for a version may have been trained in another one than was imported. The result says
 * for every target tensor which bytes of which shards make it.
 *
 * Owns:    hl_whole owns everything reachable from it (hl_whole_fini).
 * Threads: any; pure, apart from what the caller's `find` does.
 * Errors:  HL_EUNSUPPORTED for a config without a Hugging Face config or a split; HL_EINVAL names a
 *          tensor that is not what the config says; HL_ECONFLICT one that ranks hold with
 *          different dtypes; those of `find`.
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
    struct hl_partition_plan ranks; /* shards as they are stored */
    struct hl_partition_plan
        whole;                   /* one tensor for each logical one, by part; or the other split */
    struct hl_reshard_plan plan; /* from ranks to whole */
    size_t beside_first; /* logical tensors from here on are not of the config; hl_whole_split */
    struct hl_arena beside_names;
};

/* The stored tensor of that name in the shard (pp, tp, part); borrowed. */
typedef hl_status (*hl_whole_find_fn)(void *arg, const struct hl_partition_shard *shard,
                                      const char *name, const struct hl_tensor **out);

/* `config`: as it comes with the shards of a position (ImportProgress.config). */
hl_status hl_whole_plan(const char *config, hl_whole_find_fn find, void *arg,
                        struct hl_whole *out) HL_CHECK;

/* All that a version's shards hold, which may be more than its config asks for. */
struct hl_whole_stored {
    hl_whole_find_fn find;
    /* The tensors of the shard; none where it is not stored. Borrowed. */
    hl_status (*list)(void *arg, const struct hl_partition_shard *shard,
                      const struct hl_tensor **out, size_t *count);
    /* The CRC-32 of one of them; HL_EUNSUPPORTED: it is not known. */
    hl_status (*crc)(void *arg, const struct hl_partition_shard *shard, const char *name,
                     uint32_t *out);
    void *arg;
};

/* The shards that `split`, which has no sizes unsaid, makes of it: `whole` is their plan, and
 * `plan` stays empty. A tensor that the config does not ask for is on every rank of its part, if
 * all tensor ranks hold it alike; HL_EUNSUPPORTED names one that they don't. */
hl_status hl_whole_split(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out) HL_CHECK;
/* The same with the plan of how they are made of the stored ones. */
hl_status hl_whole_recut(const char *config, const struct hl_api_split *split,
                         const struct hl_whole_stored *stored, struct hl_whole *out) HL_CHECK;
/* Of an unsliced model, whose logical tensors are those that are stored: tensor i in part parts[i]
 * at pp 0, tp 0. config.hf is NULL where the model has none. */
hl_status hl_whole_plan_unsliced(const char *config, const struct hl_tensor *tensors,
                                 const char *const *parts, size_t count,
                                 struct hl_whole *out) HL_CHECK;
/* Only what the ranks hold: `whole` and `plan` stay empty. */
hl_status hl_whole_ranks(const char *config, hl_whole_find_fn find, void *arg,
                         struct hl_whole *out) HL_CHECK;
/* The same of shards that follow `options` and a Hugging Face config instead of a model's config;
 * *config is taken over, also on failure. */
hl_status hl_whole_held(struct hl_hf_config *config, const struct hl_partition_options *options,
                        hl_whole_find_fn find, void *arg, struct hl_whole *out) HL_CHECK;
void hl_whole_fini(struct hl_whole *w);

/* What such a config says: the Hugging Face config, and how the model is split. */
hl_status hl_whole_read(const char *config, struct hl_hf_config *hf,
                        struct hl_partition_options *options) HL_CHECK;

#endif
