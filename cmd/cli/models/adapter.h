/* cmd/cli/models/adapter.h - what the import of a LoRA adapter needs to know before and after.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  none: a file that can't be read here is left to the L3 daemon.
 * Units:   none.
 * Limits:  names of HL_MODEL_NAME_MAX bytes.
 */
#ifndef HL_CMD_CLI_MODELS_ADAPTER_H
#define HL_CMD_CLI_MODELS_ADAPTER_H

#include <stdint.h>

#include "core/catalog.h"

/* The model that the adapter in `dir` was trained for: what was said, else the last part of the
 * path in its adapter_config.json. "" = it is not an adapter, or does not say. */
void adapter_base(const char *dir, const char *said, char out[HL_MODEL_NAME_MAX + 1]);
/* The split of an imported adapter, which is its base's; unchanged for other models. */
void adapter_split(const char *config, int64_t *tp, int64_t *pp);

#endif
