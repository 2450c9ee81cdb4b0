/* cmd/cli/models/verify.h - verifies every copy of a shard, by asking the daemon that has it.
 *
 * Owns:    results are in the caller's arena.
 * Threads: one.
 * Errors:  HL_ECORRUPT: a copy is bad; HL_EUNAVAIL: one could not be verified.
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

/* shard: what the Controller knows; extent: the copy in the pool. Either can be NULL. */
hl_status verify_copies(struct cli *cli, const char *id, const struct hl_api_shard *shard,
                        const struct hl_api_extent *extent, struct hl_arena *arena,
                        struct verified *out) HL_CHECK;
/* Prints one line per copy. */
void verify_print(const struct verified *v);
/* HL_OK also if nothing was asked. */
hl_status verify_verdict(const char *id, const struct verified *v) HL_CHECK;

#endif
