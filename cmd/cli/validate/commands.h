/* cmd/cli/validate/commands.h - the command of this wing, for the table in cmd/cli/helios.c.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  as in cli.h.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_VALIDATE_COMMANDS_H
#define HL_CMD_CLI_VALIDATE_COMMANDS_H

#include "cli/cli/cli.h"

/* validate.c. HL_EIO: a row has failed. */
hl_status cmd_validate(struct cli *cli, int argc, char **argv);

#endif
