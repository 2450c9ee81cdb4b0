/* mem/import/megatron_private.h - shared between the files of the Megatron source. */
#ifndef HL_MEM_IMPORT_MEGATRON_PRIVATE_H
#define HL_MEM_IMPORT_MEGATRON_PRIVATE_H

#include "core/torch/file.h"
#include "mem/import/megatron.h"

#define HL_MEGATRON_FILES_MAX 4096

/* Maps a regular file behind those of `s`; *index is its number. */
hl_status hl_megatron_map(struct hl_megatron_source *s, const char *path, uint32_t *index) HL_CHECK;
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
/* Whether a mapped tensor is already in `held` is the caller's business. */
hl_status hl_megatron_add_copy(struct hl_megatron_source *s,
                               const struct hl_megatron_copy *copy) HL_CHECK;
/* Room for what is known of each tensor of `held`. */
hl_status hl_megatron_hold(struct hl_megatron_source *s,
                           const struct hl_partition_plan *held) HL_CHECK;

/* --ckpt-format torch: s->whole, s->held and where its tensors are. */
hl_status hl_megatron_open_ranks(const char *dir, struct hl_megatron_source *s) HL_CHECK;
/* --ckpt-format torch_dist: the same. */
hl_status hl_megatron_open_dist(const char *dir, struct hl_megatron_source *s) HL_CHECK;

#endif
