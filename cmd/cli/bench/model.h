/* cmd/cli/bench/model.h - a made-up llama checkpoint of a given size, for bench import.
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

/* config.json and model.safetensors (bf16, grouped queries, about `bytes` long, layers a multiple
 * of pp). *size = length of the safetensors file, which is in the page cache afterwards. */
hl_status bench_model_make(const char *dir, uint64_t bytes, int tp, int pp,
                           uint64_t *size) HL_CHECK;

#endif
