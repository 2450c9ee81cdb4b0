/* cmd/cli/models/verify.h - every copy of a shard, asked of the daemon that holds it.
 *
 * Owns:    what is found lies in the arena that is given.
 * Threads: one.
 * Errors:  HL_ECORRUPT when a copy is bad, HL_EUNAVAIL when one could not be asked.
 * Units:   bytes; chunks of 1 MiB.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_MODELS_VERIFY_H
#define HL_CMD_CLI_MODELS_VERIFY_H

#include "cli/cli/cli.h"

struct verified {
    bool asked; /* false: it was not asked for */
    struct hl_api_verification found;
};

/* `shard` (what the Controller knows) or `extent` (in the pool) may be NULL. */
hl_status verify_copies(struct cli *cli, const char *id, const struct hl_api_shard *shard,
                        const struct hl_api_extent *extent, struct hl_arena *arena,
                        struct verified *out) HL_CHECK;
/* One line per copy. */
void verify_print(const struct verified *v);
/* HL_OK also when nothing was asked. */
hl_status verify_verdict(const char *id, const struct verified *v) HL_CHECK;

#endif
