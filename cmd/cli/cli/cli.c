/* The context of a command: arguments, the local cluster, connections to the daemons. */
#include "cli/cli/cli.h"
#include "auth/secret.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "cli/cli/help.h"
#include "cli/local/local.h"
#include "core/job/jobstate.h"
#include "os/file.h"

#define JOBS_NAMED 4 /* if a prefix fits several jobs */

static void forget_cluster(struct cli *cli)
{
    if (cli->cluster != NULL)
        local_cluster_fini(cli->cluster);
    free(cli->cluster);
    cli->cluster = NULL;
}

void cli_fini(struct cli *cli)
{
    hl_rpc_peer_close(cli->l3_peer);
    hl_rpc_peer_close(cli->controller_peer);
    hl_rpc_destroy(cli->rpc);
    forget_cluster(cli);
    if (cli->conf != NULL)
        program_conf_fini(cli->conf);
    free(cli->conf);
    free(cli->state);
    free(cli->controller);
    *cli = (struct cli){0};
}

hl_status cli_usage(struct cli *cli, const char *fmt, ...)
{
    char text[HL_ERROR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cli->usage_failed = true;
    size_t len = strlen(text);
    return hl_fail(HL_EINVAL, "%s%s usage: helios %s%s%s", text,
                   len > 0 && text[len - 1] == '?' ? "" : ";", cli->command->name,
                   cli->command->args[0] != '\0' ? " " : "", cli->command->args);
}

/* Other programs have --json; here some commands have one that means a file or a format. */
static hl_status check_json_flag(struct cli *cli, const struct hl_option *rows, size_t count,
                                 int argc, char **argv)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(rows[i].flag, "--json") == 0)
            return HL_OK;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--json") == 0)
            return cli_usage(cli, "unknown flag --json; for JSON give -o json");
    return HL_OK;
}

/* The last argument of a command may be repeated. */
static const char *argument_name(const struct cli *cli, int index, struct help_argument *a)
{
    for (; index >= 0; index--)
        if (help_argument(cli->command, index, a))
            return a->name;
    return "an argument";
}

/* An empty argument, as from "$NODE" of a shell that has none, is not the same as no argument. */
static hl_status check_arguments(struct cli *cli, char **argv, int count, int min, int max)
{
    struct help_argument a;
    if (count > max)
        return cli_usage(cli, "unexpected argument '%s'", argv[max]);
    if (count < min)
        return cli_usage(cli, "%s is missing", argument_name(cli, count, &a));
    for (int i = 0; i < count; i++)
        if (argv[i][0] == '\0')
            return cli_usage(cli, "%s is empty", argument_name(cli, i, &a));
    return HL_OK;
}

hl_status cli_args_given(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                         char **argv, void *target, int min, int max, struct hl_arena *arena,
                         struct hl_api_key_value_list *given)
{
    char usage[1024];
    int rest = 0;
    if (cli->dump != NULL) {
        HL_TRY(help_dump_options(cli, rows, count));
        return HL_ECANCELED;
    }
    HL_TRY(check_json_flag(cli, rows, count, argc, argv));
    snprintf(usage, sizeof(usage), "helios %s%s%s\n\n%s", cli->command->name,
             cli->command->args[0] != '\0' ? " " : "", cli->command->args, cli->command->help);
    hl_status st = hl_args_parse_given(rows, count, usage, argc, argv, target, &rest, arena, given);
    if (st == HL_EINVAL)
        cli->usage_failed = true;
    if (st == HL_ECANCELED) /* help was printed, so there is no failure to explain */
        hl_error_clear();
    HL_TRY(st);
    st = check_arguments(cli, argv, rest, min, max);
    if (st != HL_OK)
        hl_args_fini(rows, count, target);
    return st;
}

hl_status cli_args(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                   char **argv, void *target, int min, int max)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list given;
    return cli_args_given(cli, rows, count, argc, argv, target, min, max, &arena, &given);
}

hl_status cli_no_args(struct cli *cli, int argc, char **argv, int min, int max)
{
    static const struct hl_option none[1];
    char target;
    return cli_args(cli, none, 0, argc, argv, &target, min, max);
}

hl_status cli_split_model(struct cli *cli, const char *text, char *name, size_t cap,
                          int64_t *version)
{
    const char *at = strrchr(text, '@');
    size_t len = at != NULL ? (size_t)(at - text) : strlen(text);
    int64_t number = -1;
    if (at != NULL) {
        char *end;
        errno = 0;
        number = strtoll(at + 1, &end, 10);
        if (!isdigit((unsigned char)at[1]) || *end != '\0' || errno != 0 || number < 1)
            return cli_usage(cli, "model '%s': what follows '@' must be a version number from 1",
                             text);
    }
    if (len == 0 || len >= cap)
        return cli_usage(cli, "model '%s': a name has 1 to %zu bytes", text, cap - 1);
    if (!hl_utf8_valid(text))
        return cli_usage(cli, "the name is not UTF-8");
    memcpy(name, text, len);
    name[len] = '\0';
    *version = number;
    return HL_OK;
}

hl_status cli_path(char out[PATH_MAX], const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(out, PATH_MAX, fmt, ap);
    va_end(ap);
    return n >= 0 && n < PATH_MAX ? HL_OK : hl_fail(HL_EINVAL, "path '%.64s…' is too long", out);
}

hl_status cli_absolute(const char *path, char out[PATH_MAX])
{
    char cwd[PATH_MAX];
    if (path[0] == '/')
        return cli_path(out, "%s", path);
    if (getcwd(cwd, sizeof(cwd)) == NULL)
        return hl_fail(HL_EIO, "reading the working directory: %s", strerror(errno));
    return cli_path(out, "%s/%s", cwd, path);
}

hl_status cli_cluster(struct cli *cli, const struct hl_api_local_cluster **out)
{
    if (cli->cluster == NULL) {
        struct local_cluster *cluster = calloc(1, sizeof(*cluster));
        if (cluster == NULL)
            return hl_fail(HL_ENOMEM, "out of memory reading the cluster's state");
        hl_status st = local_read(cli->state, cluster);
        if (st != HL_OK) {
            free(cluster);
            return st;
        }
        cli->cluster = cluster;
    }
    *out = &cli->cluster->doc;
    return HL_OK;
}

hl_status cli_conf(struct cli *cli, const struct program_conf **out)
{
    if (cli->conf == NULL) {
        char name[] = "helios", *own[] = {name, NULL};
        struct program_conf *conf = calloc(1, sizeof(*conf));
        if (conf == NULL)
            return hl_fail(HL_ENOMEM, "out of memory reading the options");
        hl_status st = program_conf_load(HL_CLI, 1, own, conf, NULL);
        if (st != HL_OK) {
            free(conf);
            cli->usage_failed |= st == HL_EINVAL;
            return st;
        }
        cli->conf = conf;
    }
    *out = cli->conf;
    return HL_OK;
}

static hl_status local_controller(struct cli *cli, const struct hl_api_local_cluster *cluster,
                                  const char **out)
{
    const char *address = cluster->controller;
    if (address == NULL || address[0] == '\0')
        return hl_fail(HL_EUNAVAIL,
                       "the last `helios up` in %s did not finish; repeat it, or remove what it "
                       "left with `helios down`",
                       cli->state);
    cli->controller_from = CLI_LOCAL;
    *out = address;
    return HL_OK;
}

static hl_status configured_controller(struct cli *cli, const char **out)
{
    const struct program_conf *conf;
    HL_TRY(cli_conf(cli, &conf));
    bool own = conf->calls.controller[0] != '\0';
    cli->controller_from =
        own || hl_conf_is_set(&conf->conf, "agent.controller") ? CLI_CONFIG : CLI_DEFAULT;
    *out = own ? conf->calls.controller : conf->calls.agent_controller;
    return HL_OK;
}

static hl_status no_cluster(struct cli *cli)
{
    if (cli->controller_from == CLI_GIVEN)
        cli->controller_from = CLI_LOCAL;
    return hl_fail(HL_EUNAVAIL,
                   "no cluster: %s/cluster.json does not exist; start one with `helios up`, or "
                   "name a Controller with --controller, HELIOS_CONTROLLER or the option "
                   "controller.address",
                   cli->state);
}

hl_status cli_controller_address(struct cli *cli, const char **out)
{
    const struct hl_api_local_cluster *cluster = NULL;
    if (cli->controller != NULL && cli->controller_given >= cli->state_given) {
        cli->controller_from = CLI_GIVEN;
        *out = cli->controller;
        return HL_OK;
    }
    hl_status st = cli_cluster(cli, &cluster);
    if (st == HL_OK)
        return local_controller(cli, cluster, out);
    if (st != HL_ENOENT)
        return st;
    return cli->state_given != CLI_NOT_GIVEN ? no_cluster(cli) : configured_controller(cli, out);
}

/* No process listens at the address. The user may not have given it, so the error says where it
 * comes from. */
static hl_status explain_absence(struct cli *cli)
{
    if (cli->controller_from == CLI_DEFAULT)
        return no_cluster(cli);
    if (cli->controller_from != CLI_LOCAL || cli->cluster == NULL ||
        local_daemon_runs(local_daemon_find(&cli->cluster->doc, "controllerd")))
        return HL_EUNAVAIL;
    if (local_supervisor_runs(&cli->cluster->doc))
        return hl_fail(HL_EUNAVAIL,
                       "the Controller of the cluster of %s has ended; its supervisor restarts it "
                       "after a pause of at most 30 s, `helios up` at once",
                       cli->state);
    if (local_runs(&cli->cluster->doc))
        return hl_fail(HL_EUNAVAIL,
                       "the Controller of the cluster of %s is not running; `helios up` starts it "
                       "again",
                       cli->state);
    return hl_fail(HL_EUNAVAIL, "the cluster of %s is down; `helios up` starts it", cli->state);
}

static hl_status use_secret_of(const struct hl_api_local_cluster *cluster)
{
    return hl_auth_use_file(cluster->secret_file != NULL ? cluster->secret_file : "");
}

/* Uses the secret in cluster.json for the cluster of this machine, otherwise the one of the
 * options. */
hl_status cli_secret(struct cli *cli)
{
    const struct program_conf *conf = NULL;
    const struct hl_api_local_cluster *cluster;
    if (cli->controller_from == CLI_LOCAL && cli_cluster(cli, &cluster) == HL_OK)
        return use_secret_of(cluster);
    HL_TRY(cli_conf(cli, &conf));
    if (conf->auth.secret_file[0] != '\0')
        return hl_auth_use_file(conf->auth.secret_file);
    if (cli_cluster(cli, &cluster) == HL_OK)
        return use_secret_of(cluster);
    hl_error_clear();
    return HL_OK;
}

hl_status cli_runtime(struct cli *cli, struct hl_rpc **out)
{
    if (cli->rpc == NULL)
        HL_TRY(hl_rpc_create(&cli->rpc));
    *out = cli->rpc;
    return HL_OK;
}

hl_status cli_controller(struct cli *cli, struct hl_rpc_peer **out)
{
    if (cli->controller_peer == NULL) {
        const char *address;
        struct hl_rpc *rpc;
        HL_TRY(cli_controller_address(cli, &address));
        HL_TRY(cli_secret(cli));
        HL_TRY(cli_runtime(cli, &rpc));
        HL_TRY(hl_rpc_open(rpc, address, "Controller", &cli->controller_peer));
    }
    *out = cli->controller_peer;
    return HL_OK;
}

void cli_disconnect(struct cli *cli)
{
    hl_rpc_peer_close(cli->controller_peer);
    cli->controller_peer = NULL;
    hl_rpc_peer_close(cli->l3_peer);
    cli->l3_peer = NULL;
    forget_cluster(cli);
}

static const char *skip_scheme(const char *address)
{
    const char *at = strstr(address, "://");
    return at != NULL ? at + 3 : address;
}

hl_status cli_l3(struct cli *cli, struct hl_rpc_peer **out)
{
    if (cli->l3_peer == NULL) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_controller_cluster_info_results r;
        struct hl_rpc *rpc;
        HL_TRY(cli_runtime(cli, &rpc));
        HL_TRY(CLI_CALL(cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0},
                        &arena, &r));
        if (r.info.l3_address[0] == '\0')
            return hl_fail(HL_EUNAVAIL,
                           "the Controller names no L3 daemon; is helios-l3d running?");
        HL_TRY(hl_rpc_open(rpc, skip_scheme(r.info.l3_address), "L3", &cli->l3_peer));
    }
    *out = cli->l3_peer;
    return HL_OK;
}

hl_status cli_agent(struct cli *cli, const char *address, struct hl_rpc_peer **out, int *timeout_ms)
{
    struct hl_rpc *rpc;
    HL_TRY(cli_timeout(cli, timeout_ms));
    HL_TRY(cli_runtime(cli, &rpc));
    return hl_rpc_open(rpc, address, "Agent", out);
}

hl_status cli_timeout(struct cli *cli, int *out)
{
    if (cli->timeout_ms == 0) {
        const struct program_conf *conf = NULL;
        HL_TRY(cli_conf(cli, &conf));
        cli->timeout_ms = conf->calls.timeout_ms;
    }
    *out = cli->timeout_ms;
    return HL_OK;
}

hl_status cli_explain(struct cli *cli, hl_status st)
{
    return st == HL_EUNAVAIL ? explain_absence(cli) : st;
}

bool cli_job_ended(const struct hl_api_job *job)
{
    return hl_job_state_ended(job->state);
}

/* Lists the jobs whose ids begin with the text. */
static hl_status several_jobs(struct cli *cli, const struct hl_api_job_list *jobs, const char *text,
                              size_t count)
{
    struct hl_buf names = HL_BUF(1 << 12);
    size_t named = 0;
    for (size_t i = 0; i < jobs->count && named < JOBS_NAMED; i++)
        if (strncmp(jobs->items[i].id, text, strlen(text)) == 0)
            (void)!hl_buf_printf(&names, "%s%s", named++ > 0 ? ", " : "", jobs->items[i].id);
    cli->usage_failed = true;
    hl_status st = hl_fail(HL_EINVAL, "%zu job ids begin with %s: %s%s", count, text,
                           names.data != NULL ? names.data : "", count > named ? ", ..." : "");
    hl_buf_fini(&names);
    return st;
}

/* NAME-NUMBER is a complete id and never a prefix: train-1 may be forgotten already, and train-12
 * is another job. */
static bool looks_like_job_id(const char *text)
{
    const char *dash = strrchr(text, '-');
    return dash != NULL && dash[1] != '\0' && dash[1 + strspn(dash + 1, "0123456789")] == '\0';
}

hl_status cli_job_id(struct cli *cli, const char *text, char out[CLI_JOB_ID_MAX])
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_jobs_results r;
    size_t count = 0;
    const char *found = NULL;
    bool is_whole = looks_like_job_id(text);
    if (text[0] == '\0' || strlen(text) >= CLI_JOB_ID_MAX || mbstowcs(NULL, text, 0) == (size_t)-1)
        return cli_usage(cli, "invalid job id '%.64s'", text);
    HL_TRY(CLI_CALL(cli, list_jobs, &(struct hl_api_controller_list_jobs_params){0}, &arena, &r));
    snprintf(out, CLI_JOB_ID_MAX, "%s", text);
    for (size_t i = 0; i < r.jobs.count; i++) {
        const struct hl_api_job *job = &r.jobs.items[i];
        if (strcmp(job->id, text) == 0 || strcmp(job->name, text) == 0)
            return HL_OK;
        if (!is_whole && strncmp(job->id, text, strlen(text)) == 0) {
            found = job->id;
            count++;
        }
    }
    if (count == 1)
        snprintf(out, CLI_JOB_ID_MAX, "%s", found);
    return count > 1 ? several_jobs(cli, &r.jobs, text, count) : HL_OK;
}
