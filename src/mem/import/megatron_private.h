/* mem/import/megatron_private.h - shared between the files of the Megatron source.
 *
 * Threads: one while it is opened; then read-only.
 */
#ifndef HL_MEM_IMPORT_MEGATRON_PRIVATE_H
#define HL_MEM_IMPORT_MEGATRON_PRIVATE_H

#include "core/torch/file.h"
#include "mem/import/megatron.h"

#define HL_MEGATRON_FILES_MAX 4096

/* Maps a regular file and appends it to the files of `s`; *index is its number. */
hl_status hl_megatron_map(struct hl_megatron_source *s, const char *path, uint32_t *index) HL_CHECK;
/* Checks that the folder has the file, with at least `size` bytes. Files that are not read are
 * checked too, because a missing one means that the checkpoint was not copied completely. */
hl_status hl_megatron_check_file(const struct hl_megatron_source *s, const char *name,
                                 uint64_t size) HL_CHECK;
/* Opens a torch.save file that lies in bytes [offset, offset + size) of a mapped file. */
hl_status hl_megatron_open_torch(const struct hl_mapped_file *f, uint64_t offset, uint64_t size,
                                 struct hl_torch_file *out) HL_CHECK;
/* Records that `what` is not imported. */
hl_status hl_megatron_leave_out(struct hl_megatron_source *s, json_t *what) HL_CHECK;
/* The model's config, from the checkpoint's config.json or else from its args, and the split of the
 * files. */
hl_status hl_megatron_read_model(const char *dir, struct hl_megatron_source *s,
                                 const struct hl_pickle_value *root,
                                 struct hl_hf_config *config) HL_CHECK;
/* Whether the name is that of a buffer, not a weight: extra state of modules, computed tables. */
bool hl_megatron_is_buffer(const char *name);
/* Adds a second copy of a tensor; the caller decides whether the tensor is already held. */
hl_status hl_megatron_add_copy(struct hl_megatron_held *held,
                               const struct hl_megatron_copy *copy) HL_CHECK;
/* Allocates the arrays of `held`, one entry per tensor of the plan. */
hl_status hl_megatron_hold(struct hl_megatron_held *held,
                           const struct hl_partition_plan *plan) HL_CHECK;
/* Makes s->whole and s->target for shards that follow `split`; takes ownership of the config. */
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

/* Finds the kind that Megatron calls `kind`, and adds it if it is new. */
hl_status hl_megatron_add_kind(struct hl_megatron_kinds *kinds, const char *kind, size_t len,
                               const char **out) HL_CHECK;

/* Finds the state of a parameter that a shard of s->whole.ranks holds; *out stays NULL if there is
 * none. */
typedef hl_status (*hl_megatron_state_fn)(void *arg, const struct hl_partition_shard *shard,
                                          const char *kind, const struct hl_tensor *param,
                                          const struct hl_tensor **out);

/* s->meta: what the file says about optimizer and scheduler, as JSON; values that JSON can't
 * express are left out. */
hl_status hl_megatron_describe_optimizer(struct hl_megatron_source *s,
                                         const struct hl_pickle_value *root) HL_CHECK;
/* s->state: requires every parameter to have every kind; HL_ENOENT names one that lacks it. */
hl_status hl_megatron_plan_state(struct hl_megatron_source *s,
                                 const struct hl_megatron_kinds *kinds, hl_megatron_state_fn find,
                                 void *arg) HL_CHECK;

/* --ckpt-format torch: makes the plans and locates the tensors that the files hold. */
hl_status hl_megatron_open_ranks(const char *dir, struct hl_megatron_source *s) HL_CHECK;
/* --ckpt-format torch_dist: the same. */
hl_status hl_megatron_open_dist(const char *dir, struct hl_megatron_source *s) HL_CHECK;

#endif
