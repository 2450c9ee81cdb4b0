/* cmd/cli/models/adapter.h - what the import of a LoRA adapter needs to know before.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  those of hl_lora_config_parse. A file that is not here is left to the L3 daemon.
 * Units:   none.
 * Limits:  names of HL_MODEL_NAME_MAX bytes.
 */
#ifndef HL_CMD_CLI_MODELS_ADAPTER_H
#define HL_CMD_CLI_MODELS_ADAPTER_H

#include "core/catalog/catalog.h"

/* The model that the adapter in `dir` was trained for: what was said, else the last part of the
 * path in its adapter_config.json. "" = it is not an adapter, or does not say. */
hl_status adapter_base(const char *dir, const char *said, char out[HL_MODEL_NAME_MAX + 1]) HL_CHECK;

#endif
