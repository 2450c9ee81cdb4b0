/* cmd/cli/models/adapter.h - finds the base model of a LoRA adapter, before its import.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  those of hl_lora_config_parse. If the file is not on this host, the L3 daemon reads it.
 * Units:   none.
 * Limits:  names of HL_MODEL_NAME_MAX bytes.
 */
#ifndef HL_CMD_CLI_MODELS_ADAPTER_H
#define HL_CMD_CLI_MODELS_ADAPTER_H

#include "core/catalog/catalog.h"

/* The model that the adapter in `dir` was trained for: `said`, or the last part of the path in its
 * adapter_config.json. "" = it is not an adapter, or does not say. */
hl_status adapter_base(const char *dir, const char *said, char out[HL_MODEL_NAME_MAX + 1]) HL_CHECK;

#endif
