/* cmd/cli/bench/model.h - makes a synthetic checkpoint of a given size, for bench import and
 * reshard.
 *
 * Owns:    the files in the directory given; the caller removes it.
 * Threads: one.
 * Errors:  HL_ENOSPC, HL_EIO with the path.
 * Units:   bytes.
 * Limits:  64 MB and more.
 */
#ifndef HL_CMD_CLI_BENCH_MODEL_H
#define HL_CMD_CLI_BENCH_MODEL_H

#include <stdint.h>

#include "cli/cli/cli.h"

struct bench_model {
    int tp, pp;  /* they divide its query groups and layers */
    int experts; /* of a mixtral; 0 = a llama */
};

/* Writes config.json and model.safetensors (bf16, grouped queries, about `bytes` long). *size =
 * length of the safetensors file, which is in the page cache afterwards. */
hl_status bench_model_make(const char *dir, uint64_t bytes, const struct bench_model *m,
                           uint64_t *size) HL_CHECK;

#define BENCH_MODEL_DIR_MAX 480 /* leaves room for the names of its files in a path */

/* Parses the size in --gb, in units of 10^9 bytes; otherwise a usage error. */
hl_status bench_model_bytes(struct cli *cli, const char *gb, uint64_t *bytes) HL_CHECK;
/* Makes a directory for a checkpoint in `parent`, --dir; a usage error if the path is too long. */
hl_status bench_model_dir_make(struct cli *cli, const char *parent,
                               char dir[BENCH_MODEL_DIR_MAX]) HL_CHECK;
/* Removes the directory, if it was made, and empties `dir`. */
void bench_model_dir_remove(char dir[BENCH_MODEL_DIR_MAX]);

#endif
