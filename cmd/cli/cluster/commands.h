/* cmd/cli/cluster/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_CLUSTER_COMMANDS_H
#define HL_CMD_CLI_CLUSTER_COMMANDS_H

#include "cli/cli/cli.h"

/* up.c */
hl_status cmd_up(struct cli *cli, int argc, char **argv);
hl_status cmd_down(struct cli *cli, int argc, char **argv);
/* `helios supervise`, which users do not run: up_process.c. */
hl_status cmd_supervise(struct cli *cli);
/* config.c */
hl_status cmd_conf(struct cli *cli, int argc, char **argv);
/* cluster.c */
hl_status cmd_nodes(struct cli *cli, int argc, char **argv);
hl_status cmd_info(struct cli *cli, int argc, char **argv);
hl_status cmd_topo(struct cli *cli, int argc, char **argv);
/* drain.c */
hl_status cmd_node_drain(struct cli *cli, int argc, char **argv);
hl_status cmd_node_undrain(struct cli *cli, int argc, char **argv);
hl_status cmd_node_reserve(struct cli *cli, int argc, char **argv);
hl_status cmd_node_unreserve(struct cli *cli, int argc, char **argv);
/* node_test.c */
hl_status cmd_node_test(struct cli *cli, int argc, char **argv);
/* top.c */
hl_status cmd_top(struct cli *cli, int argc, char **argv);
/* net.c */
hl_status cmd_net(struct cli *cli, int argc, char **argv);
hl_status cmd_metrics(struct cli *cli, int argc, char **argv);
/* recover.c */
hl_status cmd_recover(struct cli *cli, int argc, char **argv);

#endif
