/* cmd/cli/cli/help.h - what cli_args and the dump of the commands ask of each other.
 *
 * The options of a command stay beside its function, which hands them to cli_args. The dump runs
 * every command with cli->dump set, so that it shows exactly the rows that are parsed.
 *
 * Owns:    struct cli_dump owns what it noted.
 * Threads: one.
 * Errors:  HL_ENOMEM.
 * Units:   none.
 * Limits:  a name of an argument has 63 bytes.
 */
#ifndef HL_CMD_CLI_CLI_HELP_H
#define HL_CMD_CLI_CLI_HELP_H

#include "cli/cli/cli.h"

/* The tree as it is put together. */
struct cli_dump {
    struct hl_arena arena;
    bool told; /* the command that runs has told its options */
    struct hl_api_help_option_list options;
};

/* What a command takes besides options, from its usage line: "FILE", "[NODE]", "ID...". */
struct help_argument {
    char name[64];
    bool required, repeated;
};

/* Argument number `index` of the command; false when it has fewer. */
bool help_argument(const struct cli_command *command, int index, struct help_argument *out);
/* Notes the rows of the command that runs. */
hl_status help_dump_options(struct cli *cli, const struct hl_option *rows, size_t count) HL_CHECK;

#endif
