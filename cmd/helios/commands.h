/* cmd/helios/commands.h - the functions behind the table of commands.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_HELIOS_COMMANDS_H
#define HL_CMD_HELIOS_COMMANDS_H

#include "helios/cli.h"

/* up.c */
hl_status cmd_up(struct cli *cli, int argc, char **argv);
hl_status cmd_down(struct cli *cli, int argc, char **argv);
/* config.c */
hl_status cmd_conf(struct cli *cli, int argc, char **argv);
/* cluster.c */
hl_status cmd_nodes(struct cli *cli, int argc, char **argv);
hl_status cmd_info(struct cli *cli, int argc, char **argv);
hl_status cmd_topo(struct cli *cli, int argc, char **argv);
/* net.c */
hl_status cmd_net(struct cli *cli, int argc, char **argv);
hl_status cmd_metrics(struct cli *cli, int argc, char **argv);
/* jobs.c */
hl_status cmd_plan(struct cli *cli, int argc, char **argv);
hl_status cmd_submit(struct cli *cli, int argc, char **argv);
hl_status cmd_list(struct cli *cli, int argc, char **argv);
hl_status cmd_describe(struct cli *cli, int argc, char **argv);
hl_status cmd_ranktable(struct cli *cli, int argc, char **argv);
hl_status cmd_cancel(struct cli *cli, int argc, char **argv);
/* recover.c */
hl_status cmd_recover(struct cli *cli, int argc, char **argv);
/* logs.c */
hl_status cmd_logs(struct cli *cli, int argc, char **argv);
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
/* mem_estimate.c */
hl_status cmd_mem_estimate(struct cli *cli, int argc, char **argv);
/* mem_replay.c */
hl_status cmd_mem_replay(struct cli *cli, int argc, char **argv);
/* mem_trace.c */
hl_status cmd_mem_trace(struct cli *cli, int argc, char **argv);
/* bench_adam.c, bench_archive.c, bench_bodies.c, bench_chunks.c, bench_get.c, bench_group.c,
 * bench_import.c, bench_maco.c, bench_migrate.c, bench_plan.c, bench_plank.c, bench_put.c */
hl_status cmd_bench_adam(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_bodies(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_group(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_chunks(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_archive(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_get(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_import(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_migrate(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_maco(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_put(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_plan(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_plank(struct cli *cli, int argc, char **argv);

#endif
