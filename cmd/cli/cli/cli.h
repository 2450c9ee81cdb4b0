/* cmd/cli/cli/cli.h - what every command of `helios` shares: context, arguments, peers, output.
 *
 * A command is one row of the table in cmd/cli/helios.c and one function in a file of a wing. It
 * reads its arguments with cli_args, talks to daemons with CLI_CALL, prints a table or JSON, and
 * returns a status: main prints the recorded sentence and makes the exit code of it.
 *
 * Owns:    struct cli owns its texts, the RPC runtime and the peers (cli_fini).
 * Threads: one.
 * Errors:  a wrong argument goes through cli_usage (exit 2); any other failure is exit 1, of a
 *          comparison 2.
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
    /* argv[0] is the first argument. NULL: the row is a heading of the help. */
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
    const struct cli_command *command; /* that runs */
    char *state;                       /* directory of the local cluster */
    enum cli_given state_given, controller_given;
    enum cli_controller_from controller_from;
    struct program_conf *conf;     /* the CLI's own options, NULL = not read yet */
    char *controller;              /* --controller or $HELIOS_CONTROLLER, NULL = not given */
    int timeout_ms;                /* of one call, 0 = not read yet */
    bool json;                     /* -o json */
    bool wide;                     /* -o wide: tables are not cut */
    struct cli_dump *dump;         /* not NULL: cli_args notes the options and runs nothing */
    bool usage_failed;             /* the failure is the caller's: exit 2 */
    bool undecided;                /* a comparison has no result: exit 2, for 1 is one */
    char bin_dir[PATH_MAX];        /* where this program lies, and the daemons beside it */
    struct local_cluster *cluster; /* STATE/cluster.json, NULL = not read yet */
    struct hl_rpc *rpc;
    struct hl_rpc_peer *controller_peer;
    struct hl_rpc_peer *l3_peer;
};

void cli_fini(struct cli *cli);

/* ---- the tree of commands ---- */

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
/* `helios help --dump-json`: the whole tree, for man pages and shell completion. */
hl_status help_dump(struct cli *cli, const struct help_tree *tree) HL_CHECK;

/* ---- arguments ---- */

/* hl_args_parse with the command's own usage line; checks that min..max positional ones are left
 * in argv[0..]. */
hl_status cli_args(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                   char **argv, void *target, int min, int max) HL_CHECK;
/* The same; *given is that of hl_args_parse_given. */
hl_status cli_args_given(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                         char **argv, void *target, int min, int max, struct hl_arena *arena,
                         struct hl_api_key_value_list *given) HL_CHECK;
/* The same for a command without options. */
hl_status cli_no_args(struct cli *cli, int argc, char **argv, int min, int max) HL_CHECK;
/* A failure of the one who typed; the command's usage line is added. */
hl_status cli_usage(struct cli *cli, const char *fmt, ...) HL_PRINTF(2, 3);
/* "name" or "name@3" (version -1 without one) into a buffer of `cap` bytes; a name is UTF-8. */
hl_status cli_split_model(struct cli *cli, const char *text, char *name, size_t cap,
                          int64_t *version) HL_CHECK;
/* HL_EINVAL: the path is too long. */
hl_status cli_path(char out[PATH_MAX], const char *fmt, ...) HL_CHECK HL_PRINTF(2, 3);
/* Absolute form of a path the user typed; it need not exist. */
hl_status cli_absolute(const char *path, char out[PATH_MAX]) HL_CHECK;

/* ---- daemons ---- */

/* STATE/cluster.json as `helios up` wrote it; borrowed. HL_ENOENT without a cluster there. */
hl_status cli_cluster(struct cli *cli, const struct hl_api_local_cluster **out) HL_CHECK;
/* The CLI's own options, from file, environment and global flags; borrowed. */
hl_status cli_conf(struct cli *cli, const struct program_conf **out) HL_CHECK;
/* Address of the Controller: --controller, --state's cluster, $HELIOS_CONTROLLER, $HELIOS_STATE's
 * cluster, the user's local cluster, option controller.address, option agent.controller; the first
 * of them that there is. Borrowed. HL_EUNAVAIL: a directory was named and no cluster is there. */
hl_status cli_controller_address(struct cli *cli, const char **out) HL_CHECK;
/* Have this process know the secret of the cluster it calls. */
hl_status cli_secret(struct cli *cli) HL_CHECK;
hl_status cli_runtime(struct cli *cli, struct hl_rpc **out) HL_CHECK;
hl_status cli_controller(struct cli *cli, struct hl_rpc_peer **out) HL_CHECK;
/* The L3 daemon, as the Controller (or the local cluster) names it. */
hl_status cli_l3(struct cli *cli, struct hl_rpc_peer **out) HL_CHECK;
/* Deadline of one call: --rpc-timeout, else the option rpc.timeout as the daemons read it. */
hl_status cli_timeout(struct cli *cli, int *out) HL_CHECK;
/* Forget the Controller's connection and address: it may have come back elsewhere. */
void cli_disconnect(struct cli *cli);
/* Explains a failed call of the Controller to a user who did not name its address. */
hl_status cli_explain(struct cli *cli, hl_status st) HL_CHECK;

/* A daemon that is away may come back; one that ends in good order cancels its calls. */
bool failure_may_pass(hl_status st);

/* How long a daemon may stay silent. Zero-initialise what is not said. */
struct patience {
    uint64_t limit_ms;
    const char *what_goes_on; /* for the message when it is over; NULL = nothing */
    uint64_t since_ns;        /* of the first failure in a row; 0 = the last call went well */
};

/* After a failure: HL_OK when the same may be tried again, after a pause; else the failure. What
 * is being waited for is said once. */
hl_status patience_lose(struct patience *p, struct cli *cli, hl_status st) HL_CHECK;
/* After a success. */
void patience_regain(struct patience *p);
/* After a call that failed: HL_OK when L3 was away and is back, for what is called may be called
 * again; else `failed` with its text. Waits where a daemon can come back, and says so. */
hl_status cli_await_l3(struct cli *cli, hl_status failed) HL_CHECK;

/* libhelios for the cluster that is called; path "auto", "shm" or "net", NULL = "auto". An L3
 * daemon that is being restarted is waited for (cli_await_l3). */
hl_status cli_client(struct cli *cli, const char *path, int timeout_ms,
                     struct helios_client **out) HL_CHECK;

/* hl_call_controller_NAME with a deadline. */
#define CLI_CALL_FOR(cli, name, params, ms, arena, results)                                        \
    ({                                                                                             \
        struct hl_rpc_peer *cli_peer_;                                                             \
        hl_status cli_status_ = cli_controller(cli, &cli_peer_);                                   \
        if (cli_status_ == HL_OK)                                                                  \
            cli_status_ = cli_explain(                                                             \
                cli, hl_call_controller_##name(cli_peer_, params, ms, arena, results));            \
        cli_status_;                                                                               \
    })
/* The same with that of every call. */
#define CLI_CALL(cli, name, params, arena, results)                                                \
    ({                                                                                             \
        int cli_ms_;                                                                               \
        hl_status cli_got_ = cli_timeout(cli, &cli_ms_);                                           \
        if (cli_got_ == HL_OK)                                                                     \
            cli_got_ = CLI_CALL_FOR(cli, name, params, cli_ms_, arena, results);                   \
        cli_got_;                                                                                  \
    })

/* An Agent at its address, and the deadline of a call; end with hl_rpc_peer_close. */
hl_status cli_agent(struct cli *cli, const char *address, struct hl_rpc_peer **out,
                    int *timeout_ms) HL_CHECK;
/* hl_call_agent_NAME of the Agent at that address. */
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
/* hl_call_l3_NAME with the deadline of every call. */
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

/* A job as the Controller tells it, with events, containers and plan. */
hl_status cli_job(struct cli *cli, const char *id, struct hl_arena *arena,
                  struct hl_api_job *out) HL_CHECK;
/* What the user calls a job to what the Controller takes: an id, a name, or the first characters of
 * an id that no other id has. HL_EINVAL with the candidates if several have them. A text that
 * fits nothing is passed on; the Controller knows about forgotten jobs. */
hl_status cli_job_id(struct cli *cli, const char *text, char out[CLI_JOB_ID_MAX]) HL_CHECK;
/* A job of cli_job is over. */
bool cli_job_ended(const struct hl_api_job *job);

/* ---- output ---- */

/* How stdout is written: not cut when `wide`, else to COLUMNS or the terminal's width; colours on
 * terminals only and never with NO_COLOR. Called before anything is printed, and again where the
 * terminal may have another width since. */
void cli_output_setup(bool wide);
/* Replaces in place what could change a terminal instead of being shown (controls, what is no
 * UTF-8) by '?' or a space; `keep` may stay, 0 = none. The text never grows. */
void cli_make_printable(char *text, char keep);
/* fprintf for texts of others: only printable characters and line breaks come out. */
void cli_print(FILE *to, const char *fmt, ...) HL_PRINTF(2, 3);
/* Takes the reference. */
hl_status cli_print_json(json_t *value) HL_CHECK;
/* What a daemon said, as JSON. */
hl_status cli_print_value(const struct hl_api_type *type, const void *value) HL_CHECK;
/* The same on stderr, in a line, where stdout is the result itself: `out` is "-". */
hl_status cli_print_beside(const struct hl_api_type *type, const void *value,
                           const char *out) HL_CHECK;
/* The shape of every list, {"items": [...]}. */
hl_status cli_print_items(const struct hl_api_type *type, const void *items, size_t count) HL_CHECK;

#define CLI_FIELDS_MAX 32

/* A type with fewer fields; it points into itself. */
struct cli_type {
    struct hl_api_type type;
    struct hl_api_field fields[CLI_FIELDS_MAX];
};

/* The fields at these offsets are not shown. */
void cli_type_without(const struct hl_api_type *type, const size_t *offsets, size_t count,
                      struct cli_type *out);

struct cli_table {
    size_t columns;
    bool right[CLI_COLUMNS_MAX];    /* aligned to the right */
    bool fixed[CLI_COLUMNS_MAX];    /* never cut */
    bool optional[CLI_COLUMNS_MAX]; /* left out where a terminal is too narrow */
    char **cells;                   /* row after row, the header first */
    size_t count;
    size_t cap;
    bool failed;
};

/* "NAME|>SIZE|?>READS": '>' aligns a column to the right, '!' keeps its texts whole (numbers and
 * the first column always are), '?' before that makes it optional. */
void cli_table_init(struct cli_table *t, const char *header);
/* The next cell. */
void cli_cell(struct cli_table *t, const char *fmt, ...) HL_PRINTF(2, 3);
/* Aligned by what a terminal shows, not by bytes, and cut to its width. Ends the table. */
hl_status cli_table_print(struct cli_table *t) HL_CHECK;

/* "" for 1, else "s". */
const char *cli_plural(uint64_t count);
/* "1.5 GiB" as a cell. */
void cli_cell_bytes(struct cli_table *t, uint64_t bytes);
/* "2026-01-31 12:30:05" in local time, "-" for 0. */
/* Into the buffer, which it returns; "-" for 0. */
const char *cli_format_time(int64_t ms, char *out, size_t cap);
void cli_cell_time(struct cli_table *t, int64_t ms);
#define CLI_END_MAX 192
/* "killed by signal 9 (Killed) at 2026-01-31 12:30:05, 2 restarts", of an entry of local_ends. */
void cli_format_end(const struct hl_api_local_end *end, char *out, size_t cap);
/* "4.2s", "3m05s", "2h03m", "5d02h"; "-" if negative. */
void cli_cell_duration(struct cli_table *t, int64_t ms);

/* ---- result files ---- */

/* A file that is there as a whole or not at all, also when the process is killed. HL_EINVAL for a
 * terminal and a directory, HL_ENOSPC, HL_EPERM, HL_EIO with the path. outfile_abort after any
 * failure, also after outfile_commit (then it does nothing). */
struct outfile {
    int fd;
    bool is_stdout;
    bool in_place;   /* a device or a pipe, which stays what it is */
    bool is_unnamed; /* it ends with the process */
    uint64_t written;
    struct cli_progress *bar; /* drawn with what is written; NULL = none */
    uint64_t before, total;   /* for `bar`: bytes of files before this one, of all of them */
    char path[PATH_MAX];
    char temp[PATH_MAX];
};

/* "-" is stdout, which must not be a terminal: the result is bytes. */
hl_status outfile_open(const char *path, struct outfile *out) HL_CHECK;
hl_status outfile_write(struct outfile *f, const void *data, uint64_t len) HL_CHECK;
/* On disk and under its name. */
hl_status outfile_commit(struct outfile *f) HL_CHECK;
void outfile_abort(struct outfile *f);
/* The same for a small text. */
hl_status outfile_text(const char *path, const char *text) HL_CHECK;

/* ---- progress ---- */

/* One line on stderr that is drawn anew; nothing when stderr is not a terminal. */
struct cli_progress {
    const char *title;
    uint64_t started_ns;
    uint64_t drawn_ns;
    bool tty;
    bool shown;
};

void cli_progress_start(struct cli_progress *p, const char *title);
void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total);
/* Take the line away. */
void cli_progress_end(struct cli_progress *p);
/* In a handler that was reset (SA_RESETHAND): the next signal ends the program, and a drawn line.
 */
void cli_progress_interrupted(void);

#endif
