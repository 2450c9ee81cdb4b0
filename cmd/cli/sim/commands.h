/* cmd/cli/sim/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_SIM_COMMANDS_H
#define HL_CMD_CLI_SIM_COMMANDS_H

#include "cli/cli/cli.h"
#include "whatif/access_trace.h"

/* sim.c */
hl_status cmd_sim(struct cli *cli, int argc, char **argv);
/* Prints the trace as CSV. */
hl_status trace_print(const struct hl_access_trace *trace, struct outfile *file) HL_CHECK;

/* record.c */
hl_status cmd_trace_record(struct cli *cli, int argc, char **argv);

#endif
