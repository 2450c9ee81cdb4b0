/* cmd/cli/models/hf_files.h - names and writes the files of a Hugging Face checkpoint directory.
 *
 * The format is foreign. Only this module knows the keys of its index and config.json.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_EINVAL for a path that is too long, HL_ENOMEM, those of outfile_text.
 * Units:   bytes.
 * Limits:  stems of at most 32 bytes; a file has HF_FILE_BYTES of tensors, or one tensor that is
 *          larger.
 */
#ifndef HL_CMD_CLI_MODELS_HF_FILES_H
#define HL_CMD_CLI_MODELS_HF_FILES_H

#include <jansson.h>

#include "core/model/partition.h"

#define HF_FILE_BYTES ((uint64_t)5 << 30)
#define HF_MODEL      "model"     /* stem of files */
#define HF_OPTIMIZER  "optimizer" /* the same, and their folder */

/* Tensors [first, end) of a plan. */
struct hf_file {
    size_t first, end;
};

/* The file that begins with tensor `first`. */
struct hf_file hf_file_next(const struct hl_partition_plan *p, size_t first);
unsigned hf_file_count(const struct hl_partition_plan *p);
/* The name of file `number` (from 1) of `count`: "STEM.safetensors" or
 * "STEM-00001-of-00003.safetensors". */
void hf_file_name(const char *stem, unsigned number, unsigned count, char *buf, size_t cap);

/* Whether the name is that of such a file, with any number, or of their index. */
bool hf_is_file_of(const char *name, const char *stem);
/* Writes DIR/model.safetensors.index.json: which file has which tensor. */
hl_status hf_write_index(const char *dir, const struct hl_partition_plan *p) HL_CHECK;
/* Writes DIR/NAME. Takes the reference to `doc`; NULL: out of memory. */
hl_status hf_write_document(const char *dir, const char *name, json_t *doc) HL_CHECK;
/* Writes DIR/config.json: the model's own, with the dtype that its tensors have now;
 * HL_DTYPE_COUNT: with the dtype that it states. */
hl_status hf_write_config(const char *dir, const json_t *config, enum hl_dtype dtype) HL_CHECK;

#endif
