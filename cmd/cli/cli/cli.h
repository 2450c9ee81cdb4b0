/* cmd/cli/cli/cli.h - shared by all commands of `helios`: context, arguments, peers, output.
 *
 * A command is one row of the table in cmd/cli/helios.c and one function in a file of a wing. It
 * reads its arguments with cli_args, talks to daemons with CLI_CALL, prints a table or JSON, and
 * returns a status: main prints the recorded sentence and turns the status into an exit code.
 *
 * Owns:    struct cli owns its texts, the RPC runtime and the peers (cli_fini).
 * Threads: one.
 * Errors:  a wrong argument goes through cli_usage (exit 2); any other failure is exit 1, or 2 for
 *          a comparison.
 * Units:   milliseconds, bytes.
 * Limits:  CLI_COLUMNS_MAX columns in a table; a command has one or two words.
 */
#ifndef HL_CMD_CLI_CLI_CLI_H
#define HL_CMD_CLI_CLI_CLI_H

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "api/api.h"
#include "api/types.h"
#include "base/buf.h"
#include "base/status.h"
#include "conf/options.h"
#include "program/conf.h"
#include "rpc/controller_calls.h"
#include "rpc/rpc.h"

#define CLI_COLUMNS_MAX     24
#define CLI_JOB_ID_MAX      256
#define CLI_COPY_TIMEOUT_MS (3600 * 1000) /* the Controller's deadline comes first */

struct helios_client;
struct cli;
struct cli_dump;
struct cli_progress;
struct local_cluster;

struct cli_command {
    const char *name; /* "model import" */
    const char *args; /* "DIR --name NAME [options]" */
    const char *help; /* one sentence */
    /* argv[0] is the first argument. NULL: the row is a heading in the help. */
    hl_status (*run)(struct cli *cli, int argc, char **argv);
};

/* Values of the options of every command. */
struct cli_globals {
    char *state, *controller, *output;
    uint64_t timeout_ms;
    bool wide, verbose;
};

enum cli_given { CLI_NOT_GIVEN, CLI_BY_ENVIRONMENT, CLI_BY_FLAG };

/* How the Controller's address was found. */
enum cli_controller_from {
    CLI_GIVEN,   /* --controller or HELIOS_CONTROLLER */
    CLI_LOCAL,   /* the local cluster */
    CLI_CONFIG,  /* controller.address or agent.controller */
    CLI_DEFAULT, /* the default of agent.controller */
};

struct cli {
    const struct cli_command *command; /* the command that runs */
    char *state;                       /* directory of the local cluster */
    enum cli_given state_given, controller_given;
    enum cli_controller_from controller_from;
    struct program_conf *conf;     /* the CLI's own options, NULL = not read yet */
    char *controller;              /* --controller or $HELIOS_CONTROLLER, NULL = not given */
    int timeout_ms;                /* of one call, 0 = not read yet */
    bool json;                     /* -o json */
    bool wide;                     /* -o wide: tables are not cut */
    struct cli_dump *dump;         /* not NULL: cli_args records the options and nothing runs */
    bool usage_failed;             /* the user's fault: exit 2 */
    bool undecided;                /* a comparison has no result: exit 2, because 1 is a result */
    char bin_dir[PATH_MAX];        /* where this program and the daemons are */
    struct local_cluster *cluster; /* STATE/cluster.json, NULL = not read yet */
    struct hl_rpc *rpc;
    struct hl_rpc_peer *controller_peer;
    struct hl_rpc_peer *l3_peer;
};

void cli_fini(struct cli *cli);

/* ---- the tree of commands ---- */

struct help_tree {
    const struct cli_command *rows; /* a row without `run` is the heading of the rows after it */
    size_t count;
    const struct hl_option *globals; /* options of every command */
    size_t global_count;
};

/* Finds the command whose words argv begins with, NULL if none; *words is their number. */
const struct cli_command *help_find(const struct help_tree *tree, int argc, char **argv,
                                    int *words);
/* Whether `word` is the first word of commands, like "model". */
bool help_is_group(const struct help_tree *tree, const char *word);
/* Prints `helios --help`. */
void help_print(const struct help_tree *tree, FILE *to);
/* Prints `helios model --help`: the commands of a group, one line each. */
void help_print_group(const struct help_tree *tree, const char *group, FILE *to);
/* Always fails: says that there is no such command, and suggests one. */
hl_status help_unknown(struct cli *cli, const struct help_tree *tree, int argc, char **argv);
/* Prints `helios help --dump-json`: the whole tree, for man pages and shell completion. */
hl_status help_dump(struct cli *cli, const struct help_tree *tree) HL_CHECK;

/* ---- arguments ---- */

/* Calls hl_args_parse with the command's own usage line; checks that min..max positional arguments
 * remain in argv[0..], and that none is empty. */
hl_status cli_args(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                   char **argv, void *target, int min, int max) HL_CHECK;
/* The same; *given is as in hl_args_parse_given. */
hl_status cli_args_given(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                         char **argv, void *target, int min, int max, struct hl_arena *arena,
                         struct hl_api_key_value_list *given) HL_CHECK;
/* The same for a command without options. */
hl_status cli_no_args(struct cli *cli, int argc, char **argv, int min, int max) HL_CHECK;
/* A failure that is the user's fault; adds the command's usage line. */
hl_status cli_usage(struct cli *cli, const char *fmt, ...) HL_PRINTF(2, 3);
/* Splits "name" or "name@3" (without a version: -1); `name` has `cap` bytes and must be UTF-8. */
hl_status cli_split_model(struct cli *cli, const char *text, char *name, size_t cap,
                          int64_t *version) HL_CHECK;
/* Formats a path. HL_EINVAL: it is too long. */
hl_status cli_path(char out[PATH_MAX], const char *fmt, ...) HL_CHECK HL_PRINTF(2, 3);
/* Makes a path that the user typed absolute; the file need not exist. */
hl_status cli_absolute(const char *path, char out[PATH_MAX]) HL_CHECK;

/* ---- daemons ---- */

/* STATE/cluster.json as `helios up` wrote it; borrowed. HL_ENOENT: there is no cluster. */
hl_status cli_cluster(struct cli *cli, const struct hl_api_local_cluster **out) HL_CHECK;
/* The CLI's own options, from file, environment and global flags; borrowed. */
hl_status cli_conf(struct cli *cli, const struct program_conf **out) HL_CHECK;
/* The Controller's address: the first that exists of --controller, --state's cluster,
 * $HELIOS_CONTROLLER, $HELIOS_STATE's cluster, the user's local cluster, option controller.address,
 * option agent.controller. Borrowed. HL_EUNAVAIL: a directory was named, but it has no cluster. */
hl_status cli_controller_address(struct cli *cli, const char **out) HL_CHECK;
/* Loads the secret of the cluster that is called into this process. */
hl_status cli_secret(struct cli *cli) HL_CHECK;
hl_status cli_runtime(struct cli *cli, struct hl_rpc **out) HL_CHECK;
hl_status cli_controller(struct cli *cli, struct hl_rpc_peer **out) HL_CHECK;
/* Connects to the L3 daemon that the Controller (or the local cluster) names. */
hl_status cli_l3(struct cli *cli, struct hl_rpc_peer **out) HL_CHECK;
/* The deadline of one call: --rpc-timeout, or the option rpc.timeout as the daemons read it. */
hl_status cli_timeout(struct cli *cli, int *out) HL_CHECK;
/* Forgets the Controller's connection and address, because it may have restarted elsewhere. */
void cli_disconnect(struct cli *cli);
/* Explains a failed call of the Controller to a user who did not give its address. */
hl_status cli_explain(struct cli *cli, hl_status st) HL_CHECK;

/* Whether the failure can be temporary: an absent daemon may come back, and a daemon that shuts
 * down cancels its calls. */
bool failure_may_pass(hl_status st);

/* How long a daemon can be silent. Zero-initialise unused members. */
struct patience {
    uint64_t limit_ms;
    const char *what_goes_on; /* for the message when time is up; NULL = nothing */
    uint64_t since_ns;        /* of the first consecutive failure; 0 = the last call succeeded */
};

/* Call it after a failure. HL_OK: after a pause, the call can be tried again; otherwise the
 * failure. Says once what is being waited for. */
hl_status patience_lose(struct patience *p, struct cli *cli, hl_status st) HL_CHECK;
/* Call it after a success. */
void patience_regain(struct patience *p);
/* Call it after a failed call. HL_OK: L3 was away and is back, so the call can be repeated;
 * otherwise `failed` with its text. If a daemon can come back, it waits and says so. */
hl_status cli_await_l3(struct cli *cli, hl_status failed) HL_CHECK;

/* Opens libhelios for the cluster that is called; path "auto", "shm" or "net", NULL = "auto". Waits
 * for an L3 daemon that is being restarted (cli_await_l3). */
hl_status cli_client(struct cli *cli, const char *path, int timeout_ms,
                     struct helios_client **out) HL_CHECK;

/* Calls hl_call_controller_NAME with a deadline. */
#define CLI_CALL_FOR(cli, name, params, ms, arena, results)                                        \
    ({                                                                                             \
        struct hl_rpc_peer *cli_peer_;                                                             \
        hl_status cli_status_ = cli_controller(cli, &cli_peer_);                                   \
        if (cli_status_ == HL_OK)                                                                  \
            cli_status_ = cli_explain(                                                             \
                cli, hl_call_controller_##name(cli_peer_, params, ms, arena, results));            \
        cli_status_;                                                                               \
    })
/* The same with the deadline of every call. */
#define CLI_CALL(cli, name, params, arena, results)                                                \
    ({                                                                                             \
        int cli_ms_;                                                                               \
        hl_status cli_got_ = cli_timeout(cli, &cli_ms_);                                           \
        if (cli_got_ == HL_OK)                                                                     \
            cli_got_ = CLI_CALL_FOR(cli, name, params, cli_ms_, arena, results);                   \
        cli_got_;                                                                                  \
    })

/* Connects to the Agent at that address, with the deadline of a call; end with
 * hl_rpc_peer_close. */
hl_status cli_agent(struct cli *cli, const char *address, struct hl_rpc_peer **out,
                    int *timeout_ms) HL_CHECK;
/* Calls hl_call_agent_NAME of the Agent at that address. */
#define CLI_CALL_AGENT(cli, address, name, params, arena, results)                                 \
    ({                                                                                             \
        struct hl_rpc_peer *cli_agent_;                                                            \
        int cli_agent_ms_;                                                                         \
        hl_status cli_said_ = cli_agent(cli, address, &cli_agent_, &cli_agent_ms_);                \
        if (cli_said_ == HL_OK) {                                                                  \
            cli_said_ = hl_call_agent_##name(cli_agent_, params, cli_agent_ms_, arena, results);   \
            hl_rpc_peer_close(cli_agent_);                                                         \
        }                                                                                          \
        cli_said_;                                                                                 \
    })
/* Calls hl_call_l3_NAME with the deadline of every call. */
#define CLI_CALL_L3(cli, name, params, arena, results)                                             \
    ({                                                                                             \
        struct hl_rpc_peer *cli_l3_;                                                               \
        int cli_l3_ms_;                                                                            \
        hl_status cli_said_ = cli_timeout(cli, &cli_l3_ms_);                                       \
        if (cli_said_ == HL_OK)                                                                    \
            cli_said_ = cli_l3(cli, &cli_l3_);                                                     \
        if (cli_said_ == HL_OK)                                                                    \
            cli_said_ = hl_call_l3_##name(cli_l3_, params, cli_l3_ms_, arena, results);            \
        cli_said_;                                                                                 \
    })

/* Gets a job from the Controller, with events, containers and plan. */
hl_status cli_job(struct cli *cli, const char *id, struct hl_arena *arena,
                  struct hl_api_job *out) HL_CHECK;
/* Converts the user's name for a job to what the Controller accepts: an id, a name, or the first
 * characters of a unique id. HL_EINVAL with the candidates if several ids match. Any other text is
 * passed on, because the Controller also knows forgotten jobs. */
hl_status cli_job_id(struct cli *cli, const char *text, char out[CLI_JOB_ID_MAX]) HL_CHECK;
/* Whether a job from cli_job has ended. */
bool cli_job_ended(const struct hl_api_job *job);

/* ---- output ---- */

/* Sets how stdout is written: with `wide` lines are not cut, otherwise they are cut to COLUMNS or
 * the terminal's width; colours on terminals only and never with NO_COLOR. Call it before printing,
 * and again when the terminal's width may have changed. */
void cli_output_setup(bool wide);
/* Replaces in place, by '?' or a space, what could control a terminal instead of being shown:
 * control characters and invalid UTF-8. `keep` is left alone, 0 = none. The text never grows. */
void cli_make_printable(char *text, char keep);
/* fprintf for foreign texts: prints only printable characters and line breaks. */
void cli_print(FILE *to, const char *fmt, ...) HL_PRINTF(2, 3);
/* Takes the reference. */
hl_status cli_print_json(json_t *value) HL_CHECK;
/* Prints a daemon's answer as JSON. */
hl_status cli_print_value(const struct hl_api_type *type, const void *value) HL_CHECK;
/* The same, but on stderr and in one line if stdout is the result itself: `out` is "-". */
hl_status cli_print_beside(const struct hl_api_type *type, const void *value,
                           const char *out) HL_CHECK;
/* Prints a list in the form {"items": [...]}. */
hl_status cli_print_items(const struct hl_api_type *type, const void *items, size_t count) HL_CHECK;

#define CLI_FIELDS_MAX 32

/* A type with fewer fields; it contains pointers into itself. */
struct cli_type {
    struct hl_api_type type;
    struct hl_api_field fields[CLI_FIELDS_MAX];
};

/* Makes a type without the fields at these offsets. */
void cli_type_without(const struct hl_api_type *type, const size_t *offsets, size_t count,
                      struct cli_type *out);

struct cli_table {
    size_t columns;
    bool right[CLI_COLUMNS_MAX];    /* aligned to the right */
    bool fixed[CLI_COLUMNS_MAX];    /* never cut */
    bool optional[CLI_COLUMNS_MAX]; /* left out if the terminal is too narrow */
    char **cells;                   /* row after row, the header first */
    size_t count;
    size_t cap;
    bool failed;
};

/* header: "NAME|>SIZE|?>READS". '>' aligns a column to the right, '!' never cuts its texts (numbers
 * and the first column never are), '?' before that makes it optional. */
void cli_table_init(struct cli_table *t, const char *header);
/* Adds the next cell. */
void cli_cell(struct cli_table *t, const char *fmt, ...) HL_PRINTF(2, 3);
/* Prints the table, aligned by what a terminal shows, not by bytes, and cut to its width. Ends the
 * table. */
hl_status cli_table_print(struct cli_table *t) HL_CHECK;

/* "" for 1, otherwise "s". */
const char *cli_plural(uint64_t count);
/* Adds "1.5 GiB" as a cell. */
void cli_cell_bytes(struct cli_table *t, uint64_t bytes);
/* "2026-01-31 12:30:05" in local time, "-" for 0. */
/* Formats the time into the buffer, which it returns; "-" for 0. */
const char *cli_format_time(int64_t ms, char *out, size_t cap);
void cli_cell_time(struct cli_table *t, int64_t ms);
#define CLI_END_MAX 192
/* Formats an entry of local_ends: "killed by signal 9 (Killed) at 2026-01-31 12:30:05, 2
 * restarts". */
void cli_format_end(const struct hl_api_local_end *end, char *out, size_t cap);
/* "4.2s", "3m05s", "2h03m", "5d02h"; "-" if negative. */
void cli_cell_duration(struct cli_table *t, int64_t ms);

/* ---- result files ---- */

/* A file that exists completely or not at all, even if the process is killed. HL_EINVAL for a
 * terminal and a directory, HL_ENOSPC, HL_EPERM, HL_EIO with the path. Call outfile_abort after any
 * failure; after outfile_commit it does nothing. */
struct outfile {
    int fd;
    bool is_stdout;
    bool in_place;   /* a device or a pipe: written directly */
    bool is_unnamed; /* it disappears with the process */
    uint64_t written;
    struct cli_progress *bar; /* progress of the writing; NULL = none */
    uint64_t before, total;   /* for `bar`: bytes of earlier files, and of all files */
    char path[PATH_MAX];
    char temp[PATH_MAX];
};

/* path: "-" is stdout, which must not be a terminal, because the result is binary. */
hl_status outfile_open(const char *path, struct outfile *out) HL_CHECK;
hl_status outfile_write(struct outfile *f, const void *data, uint64_t len) HL_CHECK;
/* Makes the file durable under its name. */
hl_status outfile_commit(struct outfile *f) HL_CHECK;
void outfile_abort(struct outfile *f);
/* Writes a small text as such a file. */
hl_status outfile_text(const char *path, const char *text) HL_CHECK;

/* ---- progress ---- */

/* One line on stderr that is redrawn; nothing if stderr is not a terminal. */
struct cli_progress {
    const char *title;
    uint64_t started_ns;
    uint64_t drawn_ns;
    bool tty;
    bool shown;
};

void cli_progress_start(struct cli_progress *p, const char *title);
void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total);
/* Removes the line. */
void cli_progress_end(struct cli_progress *p);
/* For a signal handler that was reset (SA_RESETHAND): ends a drawn line; the next signal ends the
 * program. */
void cli_progress_interrupted(void);

#endif
