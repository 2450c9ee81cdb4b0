/* mem/import/import_private.h - shared between the files of import.
 *
 * Threads: those of a run (run.c); an open import is read-only, but for atomic members.
 */
#ifndef HL_MEM_IMPORT_PRIVATE_H
#define HL_MEM_IMPORT_PRIVATE_H

#include <stdbool.h>

#include "mem/import/file_mark.h"
#include "mem/import/import.h"
#include "mem/import/megatron.h"
#include "mem/shard_sums.h"

struct hl_import_file {
    char *name; /* the path, as error texts name it */
    int fd;
    uint64_t size;
    struct hl_file_mark mark;
    struct hl_safetensors header;
};

struct hl_import_where {
    uint32_t file;
    uint64_t offset; /* in the file */
};

struct hl_import {
    char *dir;
    /* points into dir: the only file to read; NULL = everything in the directory */
    const char *only;
    bool adapter; /* LoRA: `config` is its base's */
    bool torch;   /* the files are torch.save's, not safetensors */
    struct hl_import_file *files;
    size_t file_count;
    struct hl_marked_texts texts; /* config.json, the index and the like */
    struct hl_tensor *sources;    /* of all files; names borrowed from the headers */
    struct hl_import_where *where;
    size_t source_count;
    bool megatron; /* uses `source` instead of files and sources */
    struct hl_megatron_source source;
    size_t state_first;         /* tensors of `plan` from this index on belong to the optimizer */
    struct hl_hf_config config; /* for an unsliced model only `hf` is set, and may be NULL */
    char unsliced_because[160]; /* "" = it is sliced */
    struct hl_partition_plan plan;
    struct hl_safetensors_image *headers; /* one per shard */
    uint64_t total_bytes;
    char *config_text;
    char *meta_text; /* NULL = none */
};

/* What one worker needs to fill a shard. */
struct hl_import_writer {
    const struct hl_import *im;
    const atomic_bool *cancel;
    const atomic_bool *failed;           /* another worker has failed: stop */
    const struct hl_megatron_held *held; /* Megatron checkpoint: what the tensor is made from */
    struct hl_shard_sums sums;
    uint8_t *scratch;
    size_t scratch_size;
};

/* Whether config.json describes no known family; `buf` then says why its model can't be sliced. */
bool hl_import_unsliced_because(const json_t *hf, char *buf, size_t cap);
/* Makes plan and config of an unsliced model; HL_EINVAL names an option that only sliced models
 * have. */
hl_status hl_import_plan_unsliced(struct hl_import *im,
                                  const struct hl_partition_options *o) HL_CHECK;

/* Writes tensor `tensor` of the plan at sums.at; *crc is the CRC of its bytes. */
hl_status hl_import_write_tensor(struct hl_import_writer *w, size_t tensor, uint32_t *crc) HL_CHECK;
/* Makes config, plan and config_text of a LoRA adapter; `text` is its adapter_config.json. */
hl_status hl_import_plan_adapter(struct hl_import *im, const struct hl_import_options *o,
                                 const char *text, size_t len) HL_CHECK;
/* HL_EINVAL when the two sources differ. */
hl_status hl_import_compare(struct hl_import_writer *w, uint32_t a, uint32_t b) HL_CHECK;

#endif
