/* cmd/cli/cli/help.h - the tree of commands: finding one, help pages, the dump for generators.
 *
 * The tree is the table in cmd/cli/helios.c. The options of a command stay beside its function,
 * which hands them to cli_args; the dump runs every command with cli->dump set, so that it shows
 * exactly the rows that are parsed.
 *
 * Owns:    nothing; rows are static.
 * Threads: one.
 * Errors:  HL_EINVAL with usage_failed set for a name that is no command.
 * Units:   none.
 * Limits:  a command has one or two words.
 */
#ifndef HL_CMD_CLI_CLI_HELP_H
#define HL_CMD_CLI_CLI_HELP_H

#include <stdio.h>

#include "cli/cli/cli.h"

struct help_tree {
    const struct cli_command *rows; /* a row without `run` is the heading of those after it */
    size_t count;
    const struct hl_option *globals; /* options of every command */
    size_t global_count;
};

/* The command whose words argv begins with, NULL if none; *words says how many they are. */
const struct cli_command *help_find(const struct help_tree *tree, int argc, char **argv,
                                    int *words);
/* Is `word` the first word of commands, as "model"? */
bool help_is_group(const struct help_tree *tree, const char *word);
/* `helios --help`. */
void help_print(const struct help_tree *tree, FILE *to);
/* `helios model --help`: the commands of a group, one line each. */
void help_print_group(const struct help_tree *tree, const char *group, FILE *to);
/* Always fails: says that there is no such command, and which one may be meant. */
hl_status help_unknown(struct cli *cli, const struct help_tree *tree, int argc, char **argv);

/* What a command takes besides options, from its usage line: "FILE", "[NODE]", "ID...". */
struct help_argument {
    char name[64];
    bool required, repeated;
};

/* Argument number `index` of the command; false when it has fewer. */
bool help_argument(const struct cli_command *command, int index, struct help_argument *out);
/* Adds the rows of the command that runs to cli->dump. */
hl_status help_dump_options(struct cli *cli, const struct hl_option *rows, size_t count) HL_CHECK;
/* `helios help --dump-json`: the whole tree, for man pages and shell completion. */
hl_status help_dump(struct cli *cli, const struct help_tree *tree) HL_CHECK;

#endif
