/* mem/import/megatron_private.h - shared between the files of the Megatron source. */
#ifndef HL_MEM_IMPORT_MEGATRON_PRIVATE_H
#define HL_MEM_IMPORT_MEGATRON_PRIVATE_H

#include "core/torch/file.h"
#include "mem/import/megatron.h"

#define HL_MEGATRON_FILES_MAX 4096

/* Maps a regular file behind those of `s`; *index is its number. */
hl_status hl_megatron_map(struct hl_megatron_source *s, const char *path, uint32_t *index) HL_CHECK;
/* The folder has the file, of at least `size` bytes: also what is not read says whether all of the
 * checkpoint was copied. */
hl_status hl_megatron_check_file(const struct hl_megatron_source *s, const char *name,
                                 uint64_t size) HL_CHECK;
/* A file of torch.save in bytes [offset, offset + size) of a mapped one. */
hl_status hl_megatron_open_torch(const struct hl_mapped_file *f, uint64_t offset, uint64_t size,
                                 struct hl_torch_file *out) HL_CHECK;
/* `what` was not imported. */
hl_status hl_megatron_leave_out(struct hl_megatron_source *s, json_t *what) HL_CHECK;
/* Config: config.json of the checkpoint, else what args say; split of the files. */
hl_status hl_megatron_read_model(const char *dir, struct hl_megatron_source *s,
                                 const struct hl_pickle_value *root,
                                 struct hl_hf_config *config) HL_CHECK;
/* Names that hold no weight: extra state of modules, tables that are computed. */
bool hl_megatron_is_buffer(const char *name);
/* Whether a mapped tensor is already held is the caller's business. */
hl_status hl_megatron_add_copy(struct hl_megatron_held *held,
                               const struct hl_megatron_copy *copy) HL_CHECK;
/* Room for what is known of each tensor of the plan. */
hl_status hl_megatron_hold(struct hl_megatron_held *held,
                           const struct hl_partition_plan *plan) HL_CHECK;
/* s->whole and s->target of shards that follow `split`; the config is taken over. */
hl_status hl_megatron_plan(struct hl_megatron_source *s, struct hl_hf_config *config,
                           const struct hl_partition_options *split, hl_whole_find_fn find,
                           void *arg) HL_CHECK;

/* Kinds of optimizer state as Helios calls them: "exp_avg", "param". */
#define HL_MEGATRON_KINDS_MAX 16
#define HL_MEGATRON_KIND_MAX  31

struct hl_megatron_kinds {
    char names[HL_MEGATRON_KINDS_MAX][HL_MEGATRON_KIND_MAX + 1];
    size_t count;
};

/* The kind that Megatron calls `kind`, which is added when it is new. */
hl_status hl_megatron_add_kind(struct hl_megatron_kinds *kinds, const char *kind, size_t len,
                               const char **out) HL_CHECK;

/* State of a parameter that a shard of s->whole.ranks holds; *out stays NULL where there is none.
 */
typedef hl_status (*hl_megatron_state_fn)(void *arg, const struct hl_partition_shard *shard,
                                          const char *kind, const struct hl_tensor *param,
                                          const struct hl_tensor **out);

/* s->meta: what the file says of optimizer and scheduler, in JSON; what of it can't be said so is
 * left out. */
hl_status hl_megatron_describe_optimizer(struct hl_megatron_source *s,
                                         const struct hl_pickle_value *root) HL_CHECK;
/* s->state: every parameter has every kind, or HL_ENOENT names the one that lacks it. */
hl_status hl_megatron_plan_state(struct hl_megatron_source *s,
                                 const struct hl_megatron_kinds *kinds, hl_megatron_state_fn find,
                                 void *arg) HL_CHECK;

/* --ckpt-format torch: the plans, and where the tensors are that are held. */
hl_status hl_megatron_open_ranks(const char *dir, struct hl_megatron_source *s) HL_CHECK;
/* --ckpt-format torch_dist: the same. */
hl_status hl_megatron_open_dist(const char *dir, struct hl_megatron_source *s) HL_CHECK;

#endif
