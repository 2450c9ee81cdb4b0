#include "kube/plugin.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/json.h"
#include "os/command.h"
#include "os/process.h"

#define TOLD_MAX 200 /* of its standard error */

extern char **environ;

struct hl_kube_plugin {
    char *command, *hint, *info; /* info: the value of KUBERNETES_EXEC_INFO */
    json_t *args, *env;
};

/* ---- from the kubeconfig --------------------------------------------------------------------- */

static hl_status plugin_info(struct hl_kube_plugin *p, const json_t *exec, const json_t *cluster)
{
    json_t *spec = json_pack("{s:b}", "interactive", 0);
    if (hl_json_bool(exec, "provideClusterInfo", false) && cluster != NULL)
        json_object_set(spec, "cluster", (json_t *)cluster);
    json_t *doc = json_pack("{s:s s:s s:o}", "kind", "ExecCredential", "apiVersion",
                            hl_json_str(exec, "apiVersion", ""), "spec", spec);
    p->info = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    return p->info != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for a credential plugin");
}

static hl_status plugin_load(struct hl_kube_plugin *p, const json_t *exec, const char *dir,
                             const json_t *cluster)
{
    const char *command = hl_json_str(exec, "command", "");
    const char *version = hl_json_str(exec, "apiVersion", "");
    char path[PATH_MAX];
    if (command[0] == '\0')
        return hl_fail(HL_EINVAL, "its user's exec has no command");
    if (strncmp(version, "client.authentication.k8s.io/", 29) != 0)
        return hl_fail(HL_EINVAL,
                       "its user's exec has the apiVersion '%.64s'; it is "
                       "client.authentication.k8s.io/v1 or v1beta1",
                       version);
    if (strcmp(hl_json_str(exec, "interactiveMode", ""), "Always") == 0)
        return hl_fail(HL_EUNSUPPORTED, "its user's exec must ask questions (interactiveMode: "
                                        "Always), which a daemon cannot answer");
    bool relative = command[0] != '/' && strchr(command, '/') != NULL;
    snprintf(path, sizeof(path), "%s%s%s", relative ? dir : "", relative ? "/" : "", command);
    p->command = strdup(path);
    p->hint = strdup(hl_json_str(exec, "installHint", ""));
    p->args = json_incref(json_object_get(exec, "args"));
    p->env = json_incref(json_object_get(exec, "env"));
    if (p->command == NULL || p->hint == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a credential plugin");
    return plugin_info(p, exec, cluster);
}

hl_status hl_kube_plugin_create(const json_t *exec, const char *dir, const json_t *cluster,
                                struct hl_kube_plugin **out)
{
    struct hl_kube_plugin *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a credential plugin");
    hl_status st = plugin_load(p, exec, dir, cluster);
    if (st != HL_OK) {
        hl_kube_plugin_free(p);
        return st;
    }
    *out = p;
    return HL_OK;
}

void hl_kube_plugin_free(struct hl_kube_plugin *p)
{
    if (p == NULL)
        return;
    free(p->command);
    free(p->hint);
    free(p->info);
    json_decref(p->args);
    json_decref(p->env);
    free(p);
}

/* ---- the credential -------------------------------------------------------------------------- */

/* Reads a time of RFC 3339, as Kubernetes writes it; fractions of a second are ignored. */
static bool time_read(const char *text, int64_t *out)
{
    struct tm tm = {0};
    const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (end == NULL)
        return false;
    end += *end == '.' ? 1 + strspn(end + 1, "0123456789") : 0;
    *out = (int64_t)timegm(&tm);
    int hours, minutes, used = 0;
    if (*end == 'Z')
        return true;
    if (sscanf(end + 1, "%2d:%2d%n", &hours, &minutes, &used) != 2 || (*end != '+' && *end != '-'))
        return false;
    *out -= (*end == '+' ? 1 : -1) * (hours * 3600 + minutes * 60);
    return true;
}

static hl_status credential_read(const json_t *doc, int64_t now_s, char *out, size_t cap,
                                 int64_t *lasts_s)
{
    const json_t *status = json_object_get(doc, "status");
    const char *token = hl_json_str(status, "token", "");
    const char *until = hl_json_str(status, "expirationTimestamp", "");
    int64_t until_s = 0;
    if (strcmp(hl_json_str(doc, "kind", ""), "ExecCredential") != 0)
        return hl_fail(HL_EINVAL, "it did not print an ExecCredential");
    if (token[0] == '\0' && json_object_get(status, "clientCertificateData") != NULL)
        return hl_fail(HL_EUNSUPPORTED, "it gives a client certificate, which is not supported; "
                                        "have it give a token");
    if (token[0] == '\0')
        return hl_fail(HL_EINVAL, "its ExecCredential has no token");
    for (const char *t = token; *t != '\0'; t++)
        if (*t <= ' ' || *t >= 0x7f) /* it goes into a header line */
            return hl_fail(HL_EINVAL, "its token has a character that is not allowed in tokens");
    if (strlen(token) >= cap)
        return hl_fail(HL_EINVAL, "its token has more than %zu bytes", cap - 1);
    if (until[0] != '\0' && !time_read(until, &until_s))
        return hl_fail(HL_EINVAL, "its expirationTimestamp '%.40s' is not a time", until);
    if (until_s != 0 && until_s <= now_s)
        return hl_fail(HL_EINVAL, "its token expired at %.40s", until);
    *lasts_s = until_s != 0 ? until_s - now_s : 0;
    snprintf(out, cap, "%s", token);
    return HL_OK;
}

hl_status hl_kube_plugin_read(const char *text, int64_t now_s, char *out, size_t cap,
                              int64_t *lasts_s)
{
    json_t *doc = json_loads(text, 0, NULL);
    hl_status st = credential_read(doc, now_s, out, cap, lasts_s);
    json_decref(doc);
    return st;
}

/* ---- running it ------------------------------------------------------------------------------ */

/* The last non-empty line, at most its last TOLD_MAX bytes. */
static const char *last_line(struct hl_buf *told)
{
    if (told->data == NULL)
        return "";
    size_t n = strlen(told->data);
    while (n > 0 && (told->data[n - 1] == '\n' || told->data[n - 1] == ' '))
        told->data[--n] = '\0';
    const char *line = strrchr(told->data, '\n');
    line = line != NULL ? line + 1 : told->data;
    size_t len = strlen(line);
    return len > TOLD_MAX ? line + len - TOLD_MAX : line;
}

/* NULL-terminated copies of texts, freed with texts_freep. */
static char **texts_make(size_t cap)
{
    return calloc(cap + 1, sizeof(char *));
}

static void texts_freep(char ***texts)
{
    for (char **t = *texts; t != NULL && *t != NULL; t++)
        free(*t);
    free(*texts);
}

static char **plugin_argv(const struct hl_kube_plugin *p)
{
    char **argv = texts_make(1 + json_array_size(p->args));
    const json_t *arg;
    size_t i;
    if (argv == NULL)
        return NULL;
    argv[0] = strdup(p->command);
    json_array_foreach (p->args, i, arg)
        argv[i + 1] = strdup(json_is_string(arg) ? json_string_value(arg) : "");
    return argv;
}

/* The kubeconfig's variables come before our own: of two with the same name the first counts. */
static char **plugin_env(const struct hl_kube_plugin *p)
{
    size_t own = 0, n = 0, i;
    const json_t *var;
    while (environ[own] != NULL)
        own++;
    char **env = texts_make(own + json_array_size(p->env) + 1);
    if (env == NULL || asprintf(&env[n++], "KUBERNETES_EXEC_INFO=%s", p->info) < 0)
        return env;
    json_array_foreach (p->env, i, var)
        if (asprintf(&env[n], "%s=%s", hl_json_str(var, "name", ""),
                     hl_json_str(var, "value", "")) > 0)
            n++;
    for (i = 0; i < own; i++)
        env[n++] = strdup(environ[i]);
    return env;
}

static bool plugin_goes_on(void *arg, const struct hl_buf *out, const struct hl_buf *err)
{
    const atomic_bool *cancel = *(const atomic_bool **)arg;
    (void)out;
    (void)err;
    return cancel == NULL || !atomic_load(cancel);
}

static hl_status fail_missing(const struct hl_kube_plugin *p)
{
    return hl_fail(HL_ENOENT, "there is no program %s%s%s", p->command,
                   p->hint[0] != '\0' ? ": " : "", p->hint);
}

static hl_status plugin_run(const struct hl_kube_plugin *p, const atomic_bool *cancel,
                            struct hl_command_result *r)
{
    HL_AUTO(texts_freep) char **argv = plugin_argv(p);
    HL_AUTO(texts_freep) char **env = plugin_env(p);
    char program[PATH_MAX];
    if (argv == NULL || env == NULL)
        return hl_fail(HL_ENOMEM, "out of memory to run a credential plugin");
    if (hl_process_find(p->command, getenv("PATH"), program, sizeof(program)) != HL_OK)
        return fail_missing(p);
    const struct hl_command command = {.program = program,
                                       .argv = argv,
                                       .env = env,
                                       .timeout_ms = HL_KUBE_PLUGIN_MS,
                                       .go_on = plugin_goes_on,
                                       .arg = &cancel};
    hl_status st = hl_command_run(&command, r);
    if (st == HL_ENOENT)
        return fail_missing(p);
    if (st != HL_OK || r->exit_code == 0)
        return st;
    return hl_fail(HL_EPERM, "%s failed (%s %d): %s", p->command,
                   r->signal == 0 ? "exit code" : "signal",
                   r->signal == 0 ? r->exit_code : r->signal, last_line(&r->err));
}

hl_status hl_kube_plugin_token(const struct hl_kube_plugin *p, const atomic_bool *cancel, char *out,
                               size_t cap, int64_t *lasts_s)
{
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    hl_status st = plugin_run(p, cancel, &r);
    if (st == HL_OK) {
        st = hl_kube_plugin_read(hl_command_text(&r.out), (int64_t)time(NULL), out, cap, lasts_s);
        if (st != HL_OK)
            st = hl_fail_prefix(st, "%s: ", p->command);
    }
    if (r.out.data != NULL)
        explicit_bzero(r.out.data, r.out.len);
    return st;
}
