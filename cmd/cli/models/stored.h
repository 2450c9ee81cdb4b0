/* cmd/cli/models/stored.h - reads the shards of a version, as its ranks or its import stored them.
 *
 * Owns:    lists are in the caller's arena.
 * Threads: one.
 * Errors:  those of the Controller and of libhelios.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_MODELS_STORED_H
#define HL_CMD_CLI_MODELS_STORED_H

#include "cli/cli/cli.h"
#include "core/safetensors/safetensors.h"
#include "helios/helios.h"

#define STORED_MODEL_MAX 128

struct stored_version {
    const char *model;
    int64_t version;
    const char *config; /* for core/reshard/whole.h */
    struct hl_api_split split;
    struct hl_api_shard_list shards; /* without derived ones */
};

/* Lists the shards. version -1: the newest whole one. */
hl_status stored_list(struct cli *cli, const char *model, int64_t version, struct hl_arena *arena,
                      struct stored_version *out) HL_CHECK;
/* Reads a shard's header and compares it with what the Controller says; hl_safetensors_fini. */
hl_status stored_header(helios_client *client, const struct hl_api_shard *shard,
                        struct hl_safetensors *out) HL_CHECK;
/* Maps a shard's verified bytes; end with helios_unmap. */
hl_status stored_map(helios_client *client, const struct hl_api_shard *shard,
                     const void **out) HL_CHECK;

#endif
