/* cmd/cli/models/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_MODELS_COMMANDS_H
#define HL_CMD_CLI_MODELS_COMMANDS_H

#include "cli/cli/cli.h"

/* model.c */
hl_status cmd_model_import(struct cli *cli, int argc, char **argv);
hl_status cmd_model_cancel(struct cli *cli, int argc, char **argv);
hl_status cmd_model_ls(struct cli *cli, int argc, char **argv);
hl_status cmd_model_show(struct cli *cli, int argc, char **argv);
hl_status cmd_model_rm(struct cli *cli, int argc, char **argv);
/* export.c */
hl_status cmd_model_export(struct cli *cli, int argc, char **argv);
/* pull.c */
hl_status cmd_pull(struct cli *cli, int argc, char **argv);
/* shard.c */
hl_status cmd_shard_ls(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_show(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_get(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_rm(struct cli *cli, int argc, char **argv);
/* verify.c: every copy, asked of whoever holds it */
/* {"ok", "copies": [{"tier", "node", "device", "state": ok|bad|unknown, "badChunks", "error"}]},
 * new reference. `shard` (what the Controller knows) or `extent` (in the pool) may be NULL. */
hl_status verify_copies(struct cli *cli, const char *id, const json_t *shard, const json_t *extent,
                        json_t **out) HL_CHECK;
/* One line per copy. */
void verify_print(const json_t *verified);
/* HL_ECORRUPT when a copy is bad; HL_EUNAVAIL when one could not be asked. NULL is fine. */
hl_status verify_verdict(const char *id, const json_t *verified) HL_CHECK;
/* copies.c */
hl_status cmd_shard_copy(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_drop(struct cli *cli, int argc, char **argv);
hl_status cmd_store(struct cli *cli, int argc, char **argv);
/* Tables of Shard.copies and of routes. */
hl_status copies_print(const json_t *shard) HL_CHECK;
hl_status routes_print(const json_t *routes) HL_CHECK;

#endif
