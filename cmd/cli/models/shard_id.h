/* cmd/cli/models/shard_id.h - names of shards: ids, first digits of ids, keys.
 *
 * A shard is named by its id (32 hexadecimal digits), by the first digits of the id if they are
 * unique (at least SHARD_PREFIX_MIN), or by its key MODEL@VERSION/ppP/tpT/PART. A key means the
 * version's own shard; if there is none, that of the only cut which has one.
 *
 * Owns:    lists are in the caller's arena.
 * Threads: one.
 * Errors:  HL_EINVAL (usage) for any other text, and, with the candidates, for an ambiguous one;
 *          HL_ENOENT: no shard has the key or prefix.
 * Units:   none.
 * Limits:  a prefix only finds shards that the Controller knows; others need their whole id.
 */
#ifndef HL_CMD_CLI_MODELS_SHARD_ID_H
#define HL_CMD_CLI_MODELS_SHARD_ID_H

#include "base/id.h"
#include "cli/cli/cli.h"

#define SHARD_PREFIX_MIN 2
#define SHARD_DIGITS_MIN 8 /* as shown in tables */

/* Lists all shards of the model, "" = of all models; version -1 = of all versions. */
hl_status shard_list(struct cli *cli, const char *model, int64_t version, struct hl_arena *arena,
                     struct hl_api_shard_list *out) HL_CHECK;
/* Converts an id, prefix or key to the id. */
hl_status shard_resolve(struct cli *cli, const char *text, char out[HL_ID_TEXT_LEN + 1]) HL_CHECK;
/* How many digits, SHARD_DIGITS_MIN or more, distinguish all ids of the list. */
size_t shard_unique_digits(const struct hl_api_shard_list *shards);
/* "model@3/pp0/tp1/layer-0002" */
const char *shard_key(const struct hl_api_shard *shard, char *buf, size_t cap);

#endif
