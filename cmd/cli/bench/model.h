/* cmd/cli/bench/model.h - a made-up checkpoint of a given size, for bench import and reshard.
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

#include "base/status.h"

struct bench_model {
    int tp, pp;  /* divide its query groups and layers */
    int experts; /* of a mixtral; 0 = a llama */
};

/* config.json and model.safetensors (bf16, grouped queries, about `bytes` long). *size = length of
 * the safetensors file, which is in the page cache afterwards. */
hl_status bench_model_make(const char *dir, uint64_t bytes, const struct bench_model *m,
                           uint64_t *size) HL_CHECK;

#endif
