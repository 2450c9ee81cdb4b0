/* cmd/cli/models/hf_export.h - writes a version as a Hugging Face checkpoint directory.
 *
 * The shards of all ranks are mapped part by part, and every logical tensor is assembled from them
 * in memory before it is written.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  those of libhelios and of core/reshard/whole.h; file errors name the path.
 * Units:   bytes.
 * Limits:  those of hf_files.h; needs memory for the largest tensor.
 */
#ifndef HL_CMD_CLI_MODELS_HF_EXPORT_H
#define HL_CMD_CLI_MODELS_HF_EXPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/helios.h"

struct cli;

struct hf_export {
    struct cli *cli;
    helios_client *client;
    const char *model;
    int64_t version;
    const char *out; /* directory, created if missing */
    bool optimizer;  /* also the optimizer state; HL_ENOENT: the version has none */
    bool replace;    /* replace the files of an earlier export */
    /* Results. */
    unsigned files;  /* files with tensors */
    uint64_t states; /* tensors of optimizer state */
    uint64_t bytes;
    bool has_optimizer, has_extra; /* what the version has */
    bool adapter;
    const char *config; /* the file that describes the tensors; NULL = the model has none */
};

/* Writes config.json last, so that anything a loader takes for a checkpoint is complete. */
hl_status hf_export_write(struct hf_export *e) HL_CHECK;

#endif
