/* helios: the command line. A command is a row of the table below; its function is in a folder next
 * to this file. */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/bench/commands.h"
#include "cli/cluster/commands.h"
#include "cli/jobs/commands.h"
#include "cli/mem/commands.h"
#include "cli/models/commands.h"
#include "cli/sim/commands.h"
#include "cli/validate/commands.h"
#include "os/file.h"

/* clang-format off */
static const struct cli_command commands[] = {
    {"Cluster", "", "", NULL},
    {"up", "[--nodes N] [--slots M] [--l3-size BYTES] [--l2-size BYTES] [options]",
     "Start a local cluster of real daemons in the background.", cmd_up},
    {"down", "[--keep|--purge]",
     "Stop the local cluster; remove its pool, or keep it.", cmd_down},
    {"nodes", "", "List the nodes' slots and the jobs that hold them.", cmd_nodes},
    {"node drain", "NODE [--reason TEXT]",
     "Place nothing new on a node; what runs there stays.", cmd_node_drain},
    {"node undrain", "NODE", "Place jobs on a drained node again.", cmd_node_undrain},
    {"node reserve", "NODE[,NODE...] --for DURATION [--in DURATION] [--reason TEXT]",
     "Reserve nodes for maintenance; jobs that would still run then don't start there.",
     cmd_node_reserve},
    {"node unreserve", "NODE[,NODE...]", "End the reservation of nodes.", cmd_node_unreserve},
    {"node test", "NODE", "Have a node test itself now; exits with 1 if it fails.", cmd_node_test},
    {"top", "[--interval DURATION] [--once]",
     "Show what nodes, slots and jobs use; live on a terminal.", cmd_top},
    {"store", "[NODE]", "Show every tier: quota, use, watermarks, pressure, backing.", cmd_store},
    {"info", "", "Show the pool and the counters of the cluster.", cmd_info},
    {"net", "", "Show the traffic of the three networks by daemon and path.", cmd_net},
    {"metrics", "controller|l3|NODE", "Print a daemon's metrics, Prometheus text.", cmd_metrics},
    {"topo", "[FILE.xml]", "Show the slots of this machine or of an hwloc XML file.", cmd_topo},
    {"recover", "[--dry-run] [--discard]",
     "Rebuild a lost catalogue from the pool and the archive, and claim both.", cmd_recover},
    {"conf", "[NAME|NAME=VALUE] [--config FILE]",
     "Show the options in force, or change one of those that can change at run time.", cmd_conf},

    {"Jobs", "", "", NULL},
    {"plan", "FILE [--export LIST] [--defrag]",
     "Show where a job would run; exits with 1 if it does not fit.",
     cmd_plan},
    {"submit", "FILE [--export LIST] [--key KEY] [--wait|--logs] [--retry TIME]",
     "Submit a job; prints its id. With --wait the exit status is the job's.", cmd_submit},
    {"list", "[--last N]", "List the jobs, the newest first.", cmd_list},
    {"queue", "[--first N]", "Show the queues, and the line of jobs that wait for slots.",
     cmd_queue},
    {"explain", "JOB", "Show why a job waits, what would make it run, and when it can start.",
     cmd_explain},
    {"drill", "--job JOB [--faults LIST] [--times N] [options]",
     "Inject faults into a running job and verify that it continues unchanged.",
     cmd_drill},
    {"describe", "JOB", "Show a job's containers, events and plan.", cmd_describe},
    {"logs", "JOB [--rank R|--all|--first-failure] [--attempt N] [-f] [--tail LINES] [options]",
     "Show the output of a rank, or of all.", cmd_logs},
    {"ranktable", "JOB [--json v1|v2|1.2]",
     "Print a job's rank table: ranks, their devices and addresses.", cmd_ranktable},
    {"cancel", "JOB", "Stop a job and all its processes.", cmd_cancel},

    {"Models", "", "", NULL},
    {"model import", "DIR|FILE --name NAME [options]",
     "Store a checkpoint of Hugging Face or Megatron in the L3 pool.", cmd_model_import},
    {"model cancel", "NAME", "Cancel a running import; nothing of the model is kept.",
     cmd_model_cancel},
    {"model ls", "", "List the models.", cmd_model_ls},
    {"model show", "NAME[@VERSION]", "Show one model and its versions, or one of them.",
     cmd_model_show},
    {"model verify", "NAME[@VERSION]",
     "Read every copy of a version and verify that it is whole.", cmd_model_verify},
    {"model diff", "A[@VERSION] B[@VERSION] [--tensor PATTERN] [--all] [options]",
     "Compare two versions by their tensors; exits with 1 if they differ, like diff.",
     cmd_model_diff},
    {"model rm", "NAME[@VERSION] [--force]", "Remove a model or one of its versions.",
     cmd_model_rm},
    {"model export", "NAME[@VERSION] --format safetensors|torch|hf --out DIR [options]",
     "Write a file per rank (or Megatron's checkpoint), or a Hugging Face one.",
     cmd_model_export},
    {"model pin", "NAME[@VERSION]", "Keep all shards of a version where they are.",
     cmd_model_pin},
    {"model unpin", "NAME[@VERSION]", "Unpin a version; its shards can be moved again.",
     cmd_model_unpin},
    {"model reshard", "NAME[@VERSION] [--tp-size T] [--pp-size P] [--ep-size E] [options]",
     "Make another layout of a version before its first reader needs it.", cmd_model_reshard},

    {"Shards", "", "", NULL},
    {"pull", "--model NAME[@VERSION] --out FILE|- [--pp P] [--tp T] [options]",
     "Write what one rank loads as one safetensors file.", cmd_pull},
    {"shard ls", "[--model NAME[@VERSION]]", "List the shards.", cmd_shard_ls},
    {"shard show", "ID|KEY [--verify]",
     "Show a shard's copies, routes, readers, history and tensors.",
     cmd_shard_show},
    {"shard get", "ID|KEY --out FILE|- [--path auto|shm|net]",
     "Write one shard, a safetensors file.",
     cmd_shard_get},
    {"shard copy", "ID|KEY --to NODE[:l1[:DEVICE]|:l2]|l3|l4 [--migrate|--write]",
     "Copy a shard to a tier.", cmd_shard_copy},
    {"shard drop", "ID|KEY --from NODE[:l1[:DEVICE]|:l2]|l3|l4",
     "Drop one copy; the last readable one stays.", cmd_shard_drop},
    {"shard move", "ID|KEY [--node NODE] --tier l1|l2|l3|l4 [--rate RATE]",
     "Move a shard without disturbing its readers.", cmd_shard_move},
    {"shard moves", "[--cancel ID]",
     "List moves in flight and recent ones, and why others are paused; or cancel one.",
     cmd_shard_moves},
    {"shard pin", "ID|KEY", "Keep a shard where it is: neither the policy nor a move removes it.",
     cmd_shard_pin},
    {"shard unpin", "ID|KEY", "Unpin a shard; it can be moved again.", cmd_shard_unpin},
    {"shard rm", "ID|KEY... [--force]", "Free shards in the L3 pool.", cmd_shard_rm},

    {"Device memory", "", "", NULL},
    {"mem estimate", "PARAMETERS|CONFIG.json [--dtype T] [--world N] [--gradients G] [options]",
     "Show the host and device memory that training a model needs.",
     cmd_mem_estimate},
    {"mem replay", "TRACE.json [--policy P] [--mode move|copy] [--scale N] [options]",
     "Replay an access trace on an emulated device.", cmd_mem_replay},
    {"mem trace", "TRACE.json [--csv FILE] [--json FILE] [--svg FILE] [--policy P] [options]",
     "Show device memory by moment and kind: table, CSV, picture.", cmd_mem_trace},

    {"Measuring", "", "", NULL},
    {"validate", "[--rows LIST] [--time DURATION] [--topology FILE] [options]",
     "Validate this cluster against the specification; exits with 1 if a row fails.",
     cmd_validate},
    {"sim", "--trace FILE|--generate KIND [--policy P] [--l1 SIZE] [--l2 SIZE] [options]",
     "Compare what a trace of shard accesses would cost under placement policies.", cmd_sim},
    {"trace record", "--out FILE|- [--for DURATION]",
     "Record the shard accesses of the cluster, for `helios sim`.", cmd_trace_record},
    {"bench adam", "[--elements N] [--rounds N]",
     "Time the optimizer's step against a plain loop.", cmd_bench_adam},
    {"bench archive", "[--dir DIR] [--s3-endpoint URL] [options]",
     "Time the archive's stores and loads against plain files.", cmd_bench_archive},
    {"bench bodies", "[--rounds N]",
     "Time MACO's tasks on one CPU against BLAS and memcpy.", cmd_bench_bodies},
    {"bench chunks", "[--rounds N] [--chunk SIZE]",
     "Time accesses of managed parameters, and chunks that move.",
     cmd_bench_chunks},
    {"bench device", "[--device cuda:N] [--size LIST] [options]",
     "Time copies to and from a CUDA device against the driver's own.", cmd_bench_device},
    {"bench follow", "[--shards N]",
     "Time the Controller's loop while it follows shards that come and go.", cmd_bench_follow},
    {"bench get", "[--size LIST] [--path shm|net|both] [options]",
     "Time reads of shards against memcpy and TCP.", cmd_bench_get},
    {"bench group", "[--ranks N] [--size LIST] [options]",
     "Time collectives between processes of a node against memcpy.", cmd_bench_group},
    {"bench import", "[--gb N] [--tp T --pp P] [options]",
     "Time the slicing of a checkpoint against memcpy.", cmd_bench_import},
    {"bench maco", "[--tasks N] [--rounds N]",
     "Time graphs of tasks against oneTBB and OpenMP.",
     cmd_bench_maco},
    {"bench migrate", "[--size LIST] [--chunk LIST] [options]",
     "Time migrations over ZeroMQ against plain TCP.", cmd_bench_migrate},
    {"bench put", "[--size LIST] [options]",
     "Time writes of objects against memcpy and TCP.", cmd_bench_put},
    {"bench place", "", "Time the placement of gangs on 1,000 and 10,000 servers.",
     cmd_bench_place},
    {"bench plank", "[--size LIST] [--link local|tcp|both] [--piece BYTES] [options]",
     "Time staged transfers into a device against direct ones.", cmd_bench_plank},
    {"bench policy", "[--shards N] [--passes N]",
     "Time access reports and passes of the placement policy.", cmd_bench_policy},
    {"bench queue", "[--jobs N]",
     "Time passes over waiting jobs, and the submission of many at once.", cmd_bench_queue},
    {"bench reshard", "[--gb N] [--rounds N] [--dir DIR]",
     "Time reads of a model at other layouts against its import.", cmd_bench_reshard},
};

/* clang-format on */

/* clang-format off */
static const struct hl_option globals[] = {
    {"state", "--state", "",
     "Directory of the local cluster, as HELIOS_STATE; empty for ~/.local/state/helios.",
     HL_OPT_PATH, 0, 0, NULL, HL_OPTION_FIELD(struct cli_globals, state)},
    {"controller", "--controller", "",
     "Address of the Controller, as HELIOS_CONTROLLER; empty for the local cluster's "
     "or the option controller.address.",
     HL_OPT_STRING, 0, 0, NULL, HL_OPTION_FIELD(struct cli_globals, controller)},
    {"rpc-timeout", "--rpc-timeout", "",
     "Deadline of one call to a daemon; empty for HELIOS_RPC_TIMEOUT or the option rpc.timeout.",
     HL_OPT_DURATION, 10, 3600000, NULL, HL_OPTION_FIELD(struct cli_globals, timeout_ms)},
    {"output", "-o,--output", "text",
     "How results are printed: tables cut to the terminal, whole tables, or JSON.",
     HL_OPT_ENUM, 0, 0, "text|wide|json", HL_OPTION_FIELD(struct cli_globals, output)},
    {"wide", "--wide", "false", "Print whole tables, like -o wide.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct cli_globals, wide)},
    {"verbose", "-v,--verbose", "false",
     "With an error, name the call and the daemon that failed, as HELIOS_LOG_LEVEL=debug.",
     HL_OPT_BOOL, 0, 0, NULL, HL_OPTION_FIELD(struct cli_globals, verbose)},
};

/* clang-format on */

static const struct help_tree tree = {
    .rows = commands,
    .count = HL_ARRAY_LEN(commands),
    .globals = globals,
    .global_count = HL_ARRAY_LEN(globals),
};

static hl_status set_text(char **to, const char *value)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading the command line");
    free(*to);
    *to = copy;
    return HL_OK;
}

/* The number of words in argv that form one global option with its value; 0 if there is none. The
 * short -o may include its value: -ojson. */
static int global_words(int argc, char **argv)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(globals); i++) {
        const struct hl_option *row = &globals[i];
        for (const char *flag = row->flag; *flag != '\0';) {
            size_t len = strcspn(flag, ",");
            if (strncmp(argv[0], flag, len) == 0 && (argv[0][len] == '\0' || argv[0][len] == '='))
                return argv[0][len] == '=' || row->kind == HL_OPT_BOOL || argc < 2 ? 1 : 2;
            flag += len + (flag[len] == ',');
        }
    }
    return strncmp(argv[0], "-o", 2) == 0 ? 1 : 0;
}

static hl_status set_globals(struct cli *cli, struct cli_globals *g)
{
    if (g->state[0] != '\0') {
        cli->state_given = CLI_BY_FLAG;
        HL_TRY(set_text(&cli->state, g->state));
    }
    if (g->controller[0] != '\0') {
        cli->controller_given = CLI_BY_FLAG;
        HL_TRY(set_text(&cli->controller, g->controller));
    }
    cli->timeout_ms = (int)g->timeout_ms;
    cli->json = strcmp(g->output, "json") == 0;
    cli->wide = g->wide || strcmp(g->output, "wide") == 0;
    cli_output_setup(cli->wide);
    const char *level = getenv("HELIOS_LOG_LEVEL");
    if (g->verbose || (level != NULL && strcmp(level, "debug") == 0))
        hl_log_set_level(HL_LOG_DEBUG);
    return HL_OK;
}

/* Takes global options out of argv; they may be anywhere before "--". */
static hl_status take_globals(struct cli *cli, int *argc, char **argv)
{
    struct cli_globals g = {0};
    int kept = 0, taken = 0, i = 0, none;
    char short_output[] = "-o";
    HL_AUTO(hl_freep) char **own = calloc(2 * (size_t)*argc + 1, sizeof(*own));
    if (own == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading the arguments");
    while (i < *argc && strcmp(argv[i], "--") != 0) {
        int words = global_words(*argc - i, argv + i);
        if (words == 0) {
            argv[kept++] = argv[i++];
            continue;
        }
        if (strncmp(argv[i], "-o", 2) == 0 && argv[i][2] != '\0' && argv[i][2] != '=') {
            own[taken++] = short_output;
            own[taken++] = argv[i++] + 2;
            continue;
        }
        for (int k = 0; k < words; k++)
            own[taken++] = argv[i++];
    }
    while (i < *argc)
        argv[kept++] = argv[i++];
    argv[kept] = NULL;
    *argc = kept;
    hl_status st = hl_args_parse(globals, HL_ARRAY_LEN(globals), "helios", taken, own, &g, &none);
    cli->usage_failed |= st == HL_EINVAL;
    HL_TRY(st);
    st = set_globals(cli, &g);
    hl_args_fini(globals, HL_ARRAY_LEN(globals), &g);
    return st;
}

static hl_status cli_init(struct cli *cli)
{
    const char *state = getenv("HELIOS_STATE");
    const char *controller = getenv("HELIOS_CONTROLLER");
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", cli->bin_dir, sizeof(cli->bin_dir) - 1);
    cli->bin_dir[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(cli->bin_dir, '/');
    if (slash != NULL)
        *slash = '\0';
    if (controller != NULL && controller[0] != '\0') {
        cli->controller_given = CLI_BY_ENVIRONMENT;
        HL_TRY(set_text(&cli->controller, controller));
    }
    cli->state_given = CLI_BY_ENVIRONMENT;
    if (state == NULL || state[0] == '\0') {
        cli->state_given = CLI_NOT_GIVEN;
        const char *home = getenv("HOME");
        snprintf(path, sizeof(path), "%s/.local/state/helios", home != NULL ? home : "");
        state = path;
    }
    return set_text(&cli->state, state);
}

static bool is_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

/* `helios`, `helios --help`, `helios help ...`, `helios GROUP --help`. */
static hl_status print_help(struct cli *cli, int argc, char **argv)
{
    int words = 0;
    if (argc == 0 || is_help(argv[0])) {
        help_print(&tree, stdout);
        return HL_OK;
    }
    if (strcmp(argv[0], "--dump-json") == 0) /* for generators; not listed */
        return help_dump(cli, &tree);
    cli->command = help_find(&tree, argc, argv, &words);
    if (cli->command != NULL) {
        char *ask[] = {(char[]){"--help"}, NULL};
        return cli->command->run(cli, 1, ask);
    }
    if (!help_is_group(&tree, argv[0]) || (argc > 1 && !is_help(argv[1])))
        return help_unknown(cli, &tree, argc, argv);
    help_print_group(&tree, argv[0], stdout);
    return HL_OK;
}

static hl_status run_command(struct cli *cli, int argc, char **argv)
{
    int words = 0;
    HL_TRY(cli_init(cli));
    HL_TRY(take_globals(cli, &argc, argv));
    if (argc == 0) {
        help_print(&tree, stderr);
        cli->usage_failed = true;
        return HL_EINVAL;
    }
    if (strcmp(argv[0], "help") == 0)
        return print_help(cli, argc - 1, argv + 1);
    if (is_help(argv[0]) || (argc > 1 && help_is_group(&tree, argv[0]) && is_help(argv[1])))
        return print_help(cli, argc - is_help(argv[0]), argv + is_help(argv[0]));
    if (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "version") == 0) {
        puts("helios " HELIOS_VERSION);
        return HL_OK;
    }
    if (strcmp(argv[0], "supervise") == 0 && argc == 1) /* what `up` becomes; not listed */
        return cmd_supervise(cli);
    cli->command = help_find(&tree, argc, argv, &words);
    if (cli->command != NULL)
        return cli->command->run(cli, argc - words, argv + words);
    if (argc > 1 || !help_is_group(&tree, argv[0]))
        return help_unknown(cli, &tree, argc, argv);
    help_print_group(&tree, argv[0], stderr);
    cli->usage_failed = true;
    return HL_EINVAL;
}

/* Prints one line, whatever the text contains. */
static void print_error(const char *text)
{
    char line[HL_ERROR_TEXT_MAX];
    snprintf(line, sizeof(line), "%s", text);
    cli_make_printable(line, 0);
    fprintf(stderr, "helios: %s\n", line);
}

/* After --help there is no text. */
static bool is_done(hl_status st)
{
    return st == HL_OK || (st == HL_ECANCELED && hl_error_text()[0] == '\0');
}

/* What the caller has closed must not become a file or a connection of ours: printing there fails.
 */
static void hold_standard_fds(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", modes[fd]);
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    hold_standard_fds();
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    signal(SIGPIPE, SIG_IGN);
    hl_log_init("helios", HL_LOG_WARN);
    hl_error_clear();
    hl_status st = run_command(&cli, argc - 1, argv + 1);
    if (is_done(st))
        st = hl_stdout_flush();
    if (st != HL_OK && hl_error_text()[0] != '\0')
        print_error(hl_error_text());
    int code = is_done(st) ? 0 : cli.usage_failed || cli.undecided ? 2 : 1;
    cli_fini(&cli);
    return code;
}
