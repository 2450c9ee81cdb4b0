/* cmd/cli/cli/help.h - the interface between cli_args and the dump of all commands.
 *
 * A command's options are defined next to its function, which passes them to cli_args. The dump
 * runs every command with cli->dump set, so that it shows exactly the rows that are parsed.
 *
 * Owns:    struct cli_dump owns what it recorded.
 * Threads: one.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  a name of an argument has 63 bytes.
 */
#ifndef HL_CMD_CLI_CLI_HELP_H
#define HL_CMD_CLI_CLI_HELP_H

#include "cli/cli/cli.h"

/* The tree under construction. */
struct cli_dump {
    struct hl_arena arena;
    bool told; /* the running command has reported its options */
    struct hl_api_help_option_list options;
};

/* An argument of a command besides its options, from its usage line: "FILE", "[NODE]", "ID...". */
struct help_argument {
    char name[64];
    bool required, repeated;
};

/* Finds argument number `index` of the command; false: it has fewer. */
bool help_argument(const struct cli_command *command, int index, struct help_argument *out);
/* Records the rows of the running command. */
hl_status help_dump_options(struct cli *cli, const struct hl_option *rows, size_t count) HL_CHECK;

#endif
