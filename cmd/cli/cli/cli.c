/* Context of a command: arguments, the local cluster, connections to the daemons. */
#include "cli/cli/cli.h"
#include "auth/secret.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli/help.h"
#include "cli/local/local.h"
#include "core/jobstate.h"
#include "os/file.h"

#define CLUSTER_FILE_MAX (1 << 20)
#define JOBS_NAMED       4 /* when a prefix fits several */

void cli_fini(struct cli *cli)
{
    hl_rpc_peer_close(cli->l3_peer);
    hl_rpc_peer_close(cli->controller_peer);
    hl_rpc_destroy(cli->rpc);
    json_decref(cli->cluster);
    if (cli->conf != NULL)
        hl_conf_fini(cli->conf);
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
    cli->usage_failed = 1;
    return hl_fail(HL_EINVAL, "%s; usage: helios %s%s%s", text, cli->command->name,
                   cli->command->args[0] != '\0' ? " " : "", cli->command->args);
}

/* Other programs have --json; some commands here have one that means a file or a format. */
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

hl_status cli_args_given(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                         char **argv, void *target, int min, int max, json_t **given)
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
    hl_status st = hl_args_parse_given(rows, count, usage, argc, argv, target, &rest, given);
    if (st == HL_EINVAL)
        cli->usage_failed = 1;
    if (st == HL_ECANCELED) /* help was printed: no failure to explain */
        hl_error_clear();
    HL_TRY(st);
    if (rest >= min && rest <= max)
        return HL_OK;
    hl_args_fini(rows, count, target);
    json_decref(*given);
    *given = NULL;
    if (rest > max)
        return cli_usage(cli, "'%s' is one argument too many", argv[max]);
    struct help_argument missing;
    return cli_usage(cli, "%s is missing",
                     help_argument(cli->command, rest, &missing) ? missing.name : "an argument");
}

hl_status cli_args(struct cli *cli, const struct hl_option *rows, size_t count, int argc,
                   char **argv, void *target, int min, int max)
{
    json_t *given = NULL;
    hl_status st = cli_args_given(cli, rows, count, argc, argv, target, min, max, &given);
    json_decref(given);
    return st;
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
        if (at[1] == '\0' || *end != '\0' || errno != 0 || number < 1)
            return cli_usage(cli, "model '%s': what follows '@' must be a version number from 1",
                             text);
    }
    if (len == 0 || len >= cap)
        return cli_usage(cli, "model '%s': a name has 1 to %zu bytes", text, cap - 1);
    memcpy(name, text, len);
    name[len] = '\0';
    *version = number;
    return HL_OK;
}

hl_status cli_absolute(const char *path, char out[PATH_MAX])
{
    char cwd[PATH_MAX];
    int n;
    if (path[0] == '/') {
        n = snprintf(out, PATH_MAX, "%s", path);
    } else {
        if (getcwd(cwd, sizeof(cwd)) == NULL)
            return hl_fail(HL_EIO, "reading the working directory: %s", strerror(errno));
        n = snprintf(out, PATH_MAX, "%s/%s", cwd, path);
    }
    if (n < 0 || n >= PATH_MAX)
        return hl_fail(HL_EINVAL, "path '%.64s…' is too long", path);
    return HL_OK;
}

hl_status cli_cluster(struct cli *cli, const json_t **out)
{
    if (cli->cluster == NULL) {
        char path[PATH_MAX];
        struct hl_buf text = HL_BUF(CLUSTER_FILE_MAX);
        json_error_t err;
        snprintf(path, sizeof(path), "%s/cluster.json", cli->state);
        hl_status st = hl_file_read(path, &text);
        if (st == HL_OK) {
            cli->cluster = json_loadb(text.data, text.len, 0, &err);
            if (!json_is_object(cli->cluster)) {
                json_decref(cli->cluster);
                cli->cluster = NULL;
                st = hl_fail(HL_EINVAL, "%s:%d:%d: %s; run `helios down` and `helios up`", path,
                             err.line, err.column, err.text);
            }
        }
        hl_buf_fini(&text);
        HL_TRY(st);
    }
    *out = cli->cluster;
    return HL_OK;
}

hl_status cli_conf(struct cli *cli, const struct hl_conf **out)
{
    if (cli->conf == NULL) {
        char name[] = "helios", *own[] = {name, NULL};
        struct hl_conf *conf = calloc(1, sizeof(*conf));
        if (conf == NULL)
            return hl_fail(HL_ENOMEM, "out of memory reading the options");
        hl_status st = hl_conf_load(HL_CLI, 1, own, conf, NULL);
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

static hl_status local_controller(struct cli *cli, const json_t *cluster, const char **out)
{
    const char *address = hl_json_str(cluster, "controller", "");
    if (address[0] == '\0')
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
    const struct hl_conf *conf;
    HL_TRY(cli_conf(cli, &conf));
    int own = conf->controller_address[0] != '\0';
    cli->controller_from =
        own || hl_conf_is_set(conf, "agent.controller") ? CLI_CONFIG : CLI_DEFAULT;
    *out = own ? conf->controller_address : conf->agent_controller;
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
    const json_t *cluster;
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

/* Nobody answered at the address: say what that means for whoever did not name it. */
static hl_status explain_absence(struct cli *cli)
{
    if (cli->controller_from == CLI_DEFAULT)
        return no_cluster(cli);
    if (cli->controller_from != CLI_LOCAL ||
        local_daemon_runs(json_object_get(cli->cluster, "controllerd")))
        return HL_EUNAVAIL;
    if (local_runs(cli->cluster))
        return hl_fail(HL_EUNAVAIL,
                       "the Controller of the cluster of %s is not running; `helios up` starts it "
                       "again",
                       cli->state);
    return hl_fail(HL_EUNAVAIL, "the cluster of %s is down; `helios up` starts it", cli->state);
}

/* Of the cluster of this machine what cluster.json says, else what the options name. */
hl_status cli_secret(struct cli *cli)
{
    const struct hl_conf *conf = NULL;
    const json_t *cluster;
    if (cli->controller_from == CLI_LOCAL && cli_cluster(cli, &cluster) == HL_OK)
        return hl_auth_use_file(hl_json_str(cluster, "secretFile", ""));
    HL_TRY(cli_conf(cli, &conf));
    if (conf->auth_secret_file[0] != '\0')
        return hl_auth_use_file(conf->auth_secret_file);
    if (cli_cluster(cli, &cluster) == HL_OK)
        return hl_auth_use_file(hl_json_str(cluster, "secretFile", ""));
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
    json_decref(cli->cluster);
    cli->cluster = NULL;
}

static const char *skip_scheme(const char *address)
{
    const char *at = strstr(address, "://");
    return at != NULL ? at + 3 : address;
}

hl_status cli_l3(struct cli *cli, struct hl_rpc_peer **out)
{
    if (cli->l3_peer == NULL) {
        struct hl_rpc *rpc;
        json_t *result;
        HL_TRY(cli_runtime(cli, &rpc));
        HL_TRY(cli_call(cli, "clusterInfo", NULL, &result));
        const char *address = hl_json_str(json_object_get(result, "info"), "l3Address", "");
        hl_status st =
            address[0] == '\0'
                ? hl_fail(HL_EUNAVAIL, "the Controller names no L3 daemon; is helios-l3d running?")
                : hl_rpc_open(rpc, skip_scheme(address), "L3", &cli->l3_peer);
        json_decref(result);
        HL_TRY(st);
    }
    *out = cli->l3_peer;
    return HL_OK;
}

hl_status cli_timeout(struct cli *cli, int *out)
{
    if (cli->timeout_ms == 0) {
        const struct hl_conf *conf = NULL;
        HL_TRY(cli_conf(cli, &conf));
        cli->timeout_ms = (int)conf->rpc_timeout_ms;
    }
    *out = cli->timeout_ms;
    return HL_OK;
}

int cli_job_ended(const json_t *job)
{
    enum hl_job_state state;
    return hl_job_state_parse(hl_json_str(job, "state", ""), &state) == HL_OK &&
           hl_job_state_ended(state);
}

static hl_status call(struct hl_rpc_peer *peer, const char *method, json_t *params, int timeout_ms,
                      json_t **result)
{
    json_t *ignored = NULL;
    hl_status st = hl_rpc_call(peer, method, params, timeout_ms, &ignored);
    json_decref(params);
    if (st == HL_OK && result != NULL)
        *result = ignored;
    else
        json_decref(ignored);
    return st;
}

hl_status cli_call_for(struct cli *cli, const char *method, json_t *params, int timeout_ms,
                       json_t **result)
{
    struct hl_rpc_peer *peer;
    hl_status st = cli_controller(cli, &peer);
    if (st != HL_OK) {
        json_decref(params);
        return st;
    }
    st = call(peer, method, params, timeout_ms, result);
    return st == HL_EUNAVAIL ? explain_absence(cli) : st;
}

hl_status cli_call(struct cli *cli, const char *method, json_t *params, json_t **result)
{
    int timeout_ms;
    hl_status st = cli_timeout(cli, &timeout_ms);
    if (st != HL_OK) {
        json_decref(params);
        return st;
    }
    return cli_call_for(cli, method, params, timeout_ms, result);
}

hl_status cli_call_l3(struct cli *cli, const char *method, json_t *params, json_t **result)
{
    struct hl_rpc_peer *peer;
    int timeout_ms;
    hl_status st = cli_timeout(cli, &timeout_ms);
    if (st == HL_OK)
        st = cli_l3(cli, &peer);
    if (st != HL_OK) {
        json_decref(params);
        return st;
    }
    return call(peer, method, params, timeout_ms, result);
}

/* Names those jobs whose ids begin with the text. */
static hl_status several_jobs(struct cli *cli, const json_t *jobs, const char *text, size_t count)
{
    struct hl_buf names = HL_BUF(1 << 12);
    size_t i, named = 0;
    const json_t *job;
    json_array_foreach (jobs, i, job) {
        const char *id = hl_json_str(job, "id", "");
        if (strncmp(id, text, strlen(text)) == 0 && named < JOBS_NAMED)
            (void)!hl_buf_printf(&names, "%s%s", named++ > 0 ? ", " : "", id);
    }
    cli->usage_failed = 1;
    hl_status st = hl_fail(HL_EINVAL, "%zu job ids begin with %s: %s%s", count, text,
                           names.data != NULL ? names.data : "", count > named ? ", ..." : "");
    hl_buf_fini(&names);
    return st;
}

/* NAME-NUMBER: never the beginning of another id. train-1 may be forgotten, train-12 is another. */
static bool looks_like_job_id(const char *text)
{
    const char *dash = strrchr(text, '-');
    return dash != NULL && dash[1] != '\0' && dash[1 + strspn(dash + 1, "0123456789")] == '\0';
}

hl_status cli_job_id(struct cli *cli, const char *text, char out[CLI_JOB_ID_MAX])
{
    json_t *result;
    size_t i, count = 0;
    const json_t *job, *found = NULL, *jobs;
    bool is_whole = looks_like_job_id(text);
    if (text[0] == '\0' || strlen(text) >= CLI_JOB_ID_MAX || mbstowcs(NULL, text, 0) == (size_t)-1)
        return cli_usage(cli, "invalid job id '%.64s'", text);
    HL_TRY(cli_call(cli, "listJobs", NULL, &result));
    jobs = hl_json_list(result, "jobs");
    snprintf(out, CLI_JOB_ID_MAX, "%s", text);
    json_array_foreach (jobs, i, job) {
        if (strcmp(hl_json_str(job, "id", ""), text) == 0 ||
            strcmp(hl_json_str(job, "name", ""), text) == 0) {
            json_decref(result);
            return HL_OK;
        }
        if (!is_whole && strncmp(hl_json_str(job, "id", ""), text, strlen(text)) == 0) {
            found = job;
            count++;
        }
    }
    if (count == 1)
        snprintf(out, CLI_JOB_ID_MAX, "%s", hl_json_str(found, "id", ""));
    hl_status st = count > 1 ? several_jobs(cli, jobs, text, count) : HL_OK;
    json_decref(result);
    return st;
}
