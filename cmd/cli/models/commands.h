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
/* model_verify.c */
hl_status cmd_model_verify(struct cli *cli, int argc, char **argv);
/* model_diff.c */
hl_status cmd_model_diff(struct cli *cli, int argc, char **argv);
/* export.c */
hl_status cmd_model_export(struct cli *cli, int argc, char **argv);
/* reshard.c */
hl_status cmd_model_reshard(struct cli *cli, int argc, char **argv);
/* pull.c */
hl_status cmd_pull(struct cli *cli, int argc, char **argv);
/* shard.c */
hl_status cmd_shard_ls(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_show(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_get(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_rm(struct cli *cli, int argc, char **argv);
/* copies.c */
hl_status cmd_shard_copy(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_drop(struct cli *cli, int argc, char **argv);
hl_status cmd_store(struct cli *cli, int argc, char **argv);
/* placement.c */
hl_status cmd_shard_move(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_moves(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_pin(struct cli *cli, int argc, char **argv);
hl_status cmd_shard_unpin(struct cli *cli, int argc, char **argv);
hl_status cmd_model_pin(struct cli *cli, int argc, char **argv);
hl_status cmd_model_unpin(struct cli *cli, int argc, char **argv);
/* *known: the Controller places the shard. */
hl_status placement_get(struct cli *cli, const char *id, struct hl_arena *arena,
                        struct hl_api_shard_placement *out, bool *known) HL_CHECK;
hl_status placement_print(const struct hl_api_shard_placement *p) HL_CHECK;
/* copies.c */
hl_status copies_print(const struct hl_api_copy_list *copies) HL_CHECK;
hl_status routes_print(const struct hl_api_route_list *routes) HL_CHECK;

#endif
