/* cmd/cli/mem/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_MEM_COMMANDS_H
#define HL_CMD_CLI_MEM_COMMANDS_H

#include "cli/cli/cli.h"

/* estimate.c */
hl_status cmd_mem_estimate(struct cli *cli, int argc, char **argv);
/* replay.c */
hl_status cmd_mem_replay(struct cli *cli, int argc, char **argv);
/* trace.c */
hl_status cmd_mem_trace(struct cli *cli, int argc, char **argv);

#endif
