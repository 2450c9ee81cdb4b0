/* cmd/cli/jobs/commands.h - the commands of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_JOBS_COMMANDS_H
#define HL_CMD_CLI_JOBS_COMMANDS_H

#include "cli/cli/cli.h"

/* jobs.c */
hl_status cmd_plan(struct cli *cli, int argc, char **argv);
hl_status cmd_submit(struct cli *cli, int argc, char **argv);
hl_status cmd_list(struct cli *cli, int argc, char **argv);
hl_status cmd_describe(struct cli *cli, int argc, char **argv);
hl_status cmd_ranktable(struct cli *cli, int argc, char **argv);
hl_status cmd_cancel(struct cli *cli, int argc, char **argv);
/* queue.c */
hl_status cmd_explain(struct cli *cli, int argc, char **argv);
hl_status cmd_queue(struct cli *cli, int argc, char **argv);
/* drill.c */
hl_status cmd_drill(struct cli *cli, int argc, char **argv);
/* logs.c */
hl_status cmd_logs(struct cli *cli, int argc, char **argv);

#endif
