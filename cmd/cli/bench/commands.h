/* cmd/cli/bench/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_BENCH_COMMANDS_H
#define HL_CMD_CLI_BENCH_COMMANDS_H

#include "cli/cli/cli.h"

/* adam.c, archive.c, bodies.c, chunks.c, device.c, follow.c, get.c, group.c,
 * import.c, maco.c, migrate.c, place.c, plank.c, policy.c, put.c, queue.c, reshard.c */
hl_status cmd_bench_adam(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_bodies(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_group(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_chunks(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_device(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_archive(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_follow(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_get(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_import(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_migrate(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_maco(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_put(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_place(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_plank(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_policy(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_queue(struct cli *cli, int argc, char **argv);
hl_status cmd_bench_reshard(struct cli *cli, int argc, char **argv);

#endif
