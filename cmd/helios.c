/* helios: the command line. A command is a row of the table below; its function lives in
 * cmd/helios/. */
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "helios/commands.h"

/* clang-format off */
static const struct cli_command commands[] = {
    {"Cluster", "", "", NULL},
    {"up", "[--nodes N] [--slots M] [--l3-size BYTES] [--l2-size BYTES] [options]",
     "Start a local cluster of real daemons in the background.", cmd_up},
    {"down", "[--keep|--purge]",
     "Stop the local cluster and its containers; remove its pool, or keep it.", cmd_down},
    {"nodes", "", "List the nodes' slots and who holds them.", cmd_nodes},
    {"store", "[NODE]", "Show the tiers: quota, use, watermarks, pressure, backing.", cmd_store},
    {"info", "", "Show the pool and the counters of the cluster.", cmd_info},
    {"net", "", "Show the traffic of the three networks: by daemon, by path, and why.", cmd_net},
    {"metrics", "controller|l3|NODE", "Print a daemon's metrics, Prometheus text.", cmd_metrics},
    {"topo", "[FILE.xml]", "Show the slots of this machine or of an hwloc XML file.", cmd_topo},
    {"conf", "[NAME] [--config FILE]",
     "Show the options in force in the cluster, and where each value comes from.", cmd_conf},

    {"Jobs", "", "", NULL},
    {"plan", "FILE [--export LIST]",
     "Show what a job would get: ranks, slots, environment; exits with 1 when it does not fit.",
     cmd_plan},
    {"submit", "FILE [--export LIST] [--key KEY] [--wait [--logs]]",
     "Submit a job; prints its id. With --wait the exit status is the job's.", cmd_submit},
    {"list", "", "List the jobs.", cmd_list},
    {"describe", "JOB", "Show a job's containers, events and plan.", cmd_describe},
    {"logs", "JOB [--rank R|--all] [--attempt N] [-f] [--tail LINES]",
     "Show the output of a rank, or of all.", cmd_logs},
    {"ranktable", "JOB [--json v1|v2|1.2]",
     "Print a job's rank table: which rank has which device at which address.", cmd_ranktable},
    {"cancel", "JOB", "Stop a job and all its processes.", cmd_cancel},

    {"Models", "", "", NULL},
    {"model import", "DIR --name NAME --tp T --pp P [options]",
     "Slice a Hugging Face checkpoint into the L3 pool.", cmd_model_import},
    {"model cancel", "NAME", "End the import that is making a model; nothing of it stays.",
     cmd_model_cancel},
    {"model ls", "", "List the models.", cmd_model_ls},
    {"model show", "NAME", "Show one model and its versions.", cmd_model_show},
    {"model rm", "NAME[@VERSION]", "Remove a model or one of its versions.", cmd_model_rm},
    {"model export", "NAME[@VERSION] --format safetensors|torch --out DIR",
     "Write one file per rank: safetensors, or Megatron's own torch checkpoint.",
     cmd_model_export},

    {"Shards", "", "", NULL},
    {"pull", "--model NAME[@VERSION] --pp P --tp T --out FILE|-",
     "Write what one rank loads as one safetensors file, read as a rank reads it.", cmd_pull},
    {"shard ls", "[--model NAME[@VERSION]]", "List the shards.", cmd_shard_ls},
    {"shard show", "ID|KEY [--verify]",
     "Show a shard's copies, the ways nodes read them, and its tensors.", cmd_shard_show},
    {"shard get", "ID --out FILE|-", "Write one shard, a safetensors file.", cmd_shard_get},
    {"shard copy", "ID --to NODE[:l1[:DEVICE]|:l2]|l3|l4 [--migrate|--write]",
     "Copy a shard to a tier.", cmd_shard_copy},
    {"shard drop", "ID --from NODE[:l1[:DEVICE]|:l2]|l3|l4",
     "Drop one copy; the last readable one stays.", cmd_shard_drop},
    {"shard rm", "ID... [--force]", "Free shards in the L3 pool.", cmd_shard_rm},

    {"Device memory", "", "", NULL},
    {"mem estimate", "PARAMETERS|CONFIG.json [--dtype T] [--world N] [--gradients G]",
     "What training a model needs of host and device: 1.5B, or a Hugging Face config.",
     cmd_mem_estimate},
    {"mem replay", "TRACE.json [--policy P] [--mode move|copy] [--scale N]",
     "Replay an access trace on an emulated device: bytes moved per iteration.", cmd_mem_replay},
    {"mem trace", "TRACE.json [--csv FILE] [--json FILE] [--svg FILE] [--policy P]",
     "Show device memory by moment and kind: a table, CSV, JSON, a picture.", cmd_mem_trace},

    {"Measuring", "", "", NULL},
    {"bench adam", "[--elements N] [--rounds N]",
     "Time the optimizer's step against a loop with the same loads and stores.", cmd_bench_adam},
    {"bench archive", "[--dir DIR] [--s3-endpoint URL]",
     "Time stores into the archive and loads from it against plain files.", cmd_bench_archive},
    {"bench bodies", "[--rounds N]",
     "Time MACO's tasks on one CPU against BLAS and memcpy.", cmd_bench_bodies},
    {"bench chunks", "[--rounds N] [--chunk SIZE]",
     "Time accesses of managed parameters that are on the device, and chunks that move.",
     cmd_bench_chunks},
    {"bench get", "[--size LIST] [--path shm|net|both]",
     "Time reads of shards against memcpy and raw TCP; needs no cluster.", cmd_bench_get},
    {"bench group", "[--ranks N] [--size LIST]",
     "Time collectives between processes of this node against memcpy.", cmd_bench_group},
    {"bench import", "[--gb N] [--tp T --pp P]",
     "Time the slicing of a checkpoint against memcpy; needs no cluster.", cmd_bench_import},
    {"bench maco", "[--tasks N] [--rounds N]",
     "Time tasks of a graph against oneTBB and OpenMP, and overlap with a simulated link.",
     cmd_bench_maco},
    {"bench migrate", "[--size LIST] [--chunk LIST]",
     "Time migrations over ZeroMQ between two processes against plain TCP.", cmd_bench_migrate},
    {"bench put", "[--size LIST]",
     "Time writes of objects against memcpy and raw TCP; needs no cluster.", cmd_bench_put},
    {"bench plan", "", "Time the placement of gangs on 1,000 and 10,000 servers.", cmd_bench_plan},
    {"bench plank", "[--size LIST] [--link local|tcp|both] [--piece BYTES]",
     "Time transfers through staging against direct ones into a device.", cmd_bench_plank},
};

/* clang-format on */

static void print_help(FILE *to)
{
    fputs("usage: helios [--state DIR] [--controller ADDRESS] [--rpc-timeout TIME] [-o text|json] "
          "COMMAND ...\n",
          to);
    for (size_t i = 0; i < HL_ARRAY_LEN(commands); i++) {
        const struct cli_command *c = &commands[i];
        if (c->run == NULL)
            fprintf(to, "\n%s\n", c->name);
        else
            fprintf(to, "  %-14s  %s\n", c->name, c->help);
    }
    fputs("\nOptions of every command\n"
          "  --state DIR           directory of the local cluster (HELIOS_STATE, "
          "~/.local/state/helios)\n"
          "  --controller ADDRESS  RPC address of the Controller (HELIOS_CONTROLLER, the local "
          "cluster's,\n"
          "                        option controller.address)\n"
          "  --rpc-timeout TIME    deadline of one call to a daemon (HELIOS_RPC_TIMEOUT, option "
          "rpc.timeout: 10s)\n"
          "  -o text|json          how results are printed\n"
          "\n`helios help COMMAND` says more about one command.\n",
          to);
}

/* The command whose words argv begins with; *words says how many they are. */
static const struct cli_command *find_command(int argc, char **argv, int *words)
{
    char name[128];
    for (int n = argc < 2 ? argc : 2; n > 0; n--) {
        snprintf(name, sizeof(name), n == 2 ? "%s %s" : "%s", argv[0], n == 2 ? argv[1] : "");
        for (size_t i = 0; i < HL_ARRAY_LEN(commands); i++)
            if (commands[i].run != NULL && strcmp(commands[i].name, name) == 0) {
                *words = n;
                return &commands[i];
            }
    }
    return NULL;
}

static hl_status unknown_command(struct cli *cli, int argc, char **argv)
{
    const char *names[HL_ARRAY_LEN(commands)];
    size_t count = 0, len = strlen(argv[0]);
    char typed[128], group[512] = "";
    for (size_t i = 0; i < HL_ARRAY_LEN(commands); i++) {
        const struct cli_command *c = &commands[i];
        if (c->run == NULL)
            continue;
        names[count++] = c->name;
        if (strncmp(c->name, argv[0], len) == 0 && c->name[len] == ' ') {
            size_t at = strlen(group);
            snprintf(group + at, sizeof(group) - at, "%s%s", at > 0 ? ", " : "", c->name + len + 1);
        }
    }
    cli->usage_failed = 1;
    if (group[0] != '\0')
        return hl_fail(HL_EINVAL, "'helios %s' wants one of: %s", argv[0], group);
    snprintf(typed, sizeof(typed), "%s%s%s", argv[0], argc > 1 && argv[1][0] != '-' ? " " : "",
             argc > 1 && argv[1][0] != '-' ? argv[1] : "");
    const char *near = hl_did_you_mean(typed, names, count);
    if (near == NULL)
        near = hl_did_you_mean(argv[0], names, count);
    if (near != NULL)
        return hl_fail(HL_EINVAL, "'%s' is no command, did you mean 'helios %s'?", argv[0], near);
    return hl_fail(HL_EINVAL, "'%s' is no command; `helios help` lists them", argv[0]);
}

static hl_status set_text(char **to, const char *value)
{
    char *copy = strdup(value);
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "memory is short");
    free(*to);
    *to = copy;
    return HL_OK;
}

/* Takes one global option with its value; *taken = number of arguments it was. */
static hl_status global_option(struct cli *cli, int argc, char **argv, int *taken)
{
    static const char *const names[] = {"--state", "--controller", "--rpc-timeout", "-o",
                                        "--output"};
    *taken = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        size_t len = strlen(names[i]);
        if (strncmp(argv[0], names[i], len) != 0 || (argv[0][len] != '\0' && argv[0][len] != '='))
            continue;
        const char *value = argv[0][len] == '=' ? argv[0] + len + 1 : argc > 1 ? argv[1] : NULL;
        *taken = argv[0][len] == '=' ? 1 : 2;
        if (value == NULL || value[0] == '\0') {
            cli->usage_failed = 1;
            return hl_fail(HL_EINVAL, "%s wants a value", names[i]);
        }
        if (i == 0) {
            cli->state_given = CLI_BY_FLAG;
            return set_text(&cli->state, value);
        }
        if (i == 1) {
            cli->controller_given = CLI_BY_FLAG;
            return set_text(&cli->controller, value);
        }
        if (i == 2)
            return set_text(&cli->rpc_timeout, value);
        cli->json = strcmp(value, "json") == 0;
        if (!cli->json && strcmp(value, "text") != 0) {
            cli->usage_failed = 1;
            return hl_fail(HL_EINVAL, "-o '%s' is neither text nor json", value);
        }
        return HL_OK;
    }
    return HL_OK;
}

/* Global options may stand anywhere before "--"; they are taken out of argv. */
static hl_status take_globals(struct cli *cli, int *argc, char **argv)
{
    int kept = 0, i = 0;
    while (i < *argc) {
        int taken = 0;
        if (strcmp(argv[i], "--") == 0)
            break;
        HL_TRY(global_option(cli, *argc - i, argv + i, &taken));
        if (taken == 0)
            argv[kept++] = argv[i++];
        i += taken;
    }
    while (i < *argc)
        argv[kept++] = argv[i++];
    *argc = kept;
    return HL_OK;
}

static hl_status init(struct cli *cli)
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

static hl_status dispatch(struct cli *cli, int argc, char **argv)
{
    int words = 0;
    HL_TRY(init(cli));
    HL_TRY(take_globals(cli, &argc, argv));
    int help = argc > 0 && (strcmp(argv[0], "help") == 0 || strcmp(argv[0], "--help") == 0 ||
                            strcmp(argv[0], "-h") == 0);
    if (argc == 0) {
        print_help(stderr);
        cli->usage_failed = 1;
        return HL_EINVAL;
    }
    if (help && argc == 1) {
        print_help(stdout);
        return HL_OK;
    }
    if (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "version") == 0) {
        puts("helios " HELIOS_VERSION);
        return HL_OK;
    }
    argc -= help;
    argv += help;
    cli->command = find_command(argc, argv, &words);
    if (cli->command == NULL)
        return unknown_command(cli, argc, argv);
    if (help) {
        char *ask[] = {(char[]){"--help"}, NULL};
        return cli->command->run(cli, 1, ask);
    }
    return cli->command->run(cli, argc - words, argv + words);
}

int main(int argc, char **argv)
{
    struct cli cli = {0};
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    signal(SIGPIPE, SIG_IGN);
    hl_log_init("helios", HL_LOG_WARN);
    hl_error_clear();
    hl_status st = dispatch(&cli, argc - 1, argv + 1);
    if (st != HL_OK && hl_error_text()[0] != '\0') /* an answered --help has none */
        fprintf(stderr, "helios: %s\n", hl_error_text());
    int code = st == HL_OK || (st == HL_ECANCELED && hl_error_text()[0] == '\0') ? 0
               : cli.usage_failed                                                ? 2
                                                                                 : 1;
    cli_fini(&cli);
    return code;
}
