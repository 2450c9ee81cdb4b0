#include "kube/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "core/json.h"
#include "os/process.h"

#define OUTPUT_MAX ((size_t)1 << 20)
#define TOLD_MAX   200 /* of what it wrote on its standard error */

extern char **environ;

struct hl_kube_plugin {
    char *command, *hint, *info; /* info: KUBERNETES_EXEC_INFO */
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

/* ---- what it said ---------------------------------------------------------------------------- */

/* RFC 3339, as Kubernetes writes it; fractions of a second do not matter. */
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
        return hl_fail(HL_EINVAL, "it did not say an ExecCredential");
    if (token[0] == '\0' && json_object_get(status, "clientCertificateData") != NULL)
        return hl_fail(HL_EUNSUPPORTED, "it gives a client certificate, which is not supported; "
                                        "have it give a token");
    if (token[0] == '\0')
        return hl_fail(HL_EINVAL, "its ExecCredential has no token");
    if (strlen(token) >= cap)
        return hl_fail(HL_EINVAL, "its token has more than %zu bytes", cap - 1);
    if (until[0] != '\0' && !time_read(until, &until_s))
        return hl_fail(HL_EINVAL, "its expirationTimestamp '%.40s' is not a time", until);
    if (until_s != 0 && until_s <= now_s)
        return hl_fail(HL_EINVAL, "its token ended at %.40s already", until);
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

/* One under way. */
struct run {
    pid_t pid;
    int out, err; /* our ends of its pipes */
    struct hl_buf said;
    char told[TOLD_MAX + 1]; /* the last of its standard error */
    size_t told_len;
};

static void told_add(struct run *r, const char *text, size_t len)
{
    if (len >= TOLD_MAX) {
        text += len - TOLD_MAX;
        len = TOLD_MAX;
    }
    if (r->told_len + len > TOLD_MAX) {
        size_t gone = r->told_len + len - TOLD_MAX;
        memmove(r->told, r->told + gone, r->told_len - gone);
        r->told_len -= gone;
    }
    memcpy(r->told + r->told_len, text, len);
    r->told_len += len;
    r->told[r->told_len] = '\0';
}

/* False: the pipe has ended. */
static bool pipe_take(struct run *r, int fd)
{
    char text[4096];
    ssize_t n = read(fd, text, sizeof(text));
    if (n <= 0)
        return n < 0 && errno == EINTR;
    if (fd == r->err)
        told_add(r, text, (size_t)n);
    else if (hl_buf_append(&r->said, text, (size_t)n) != HL_OK)
        return false;
    return true;
}

/* Until both pipes have ended; false: in vain. */
static bool run_follow(struct run *r, uint64_t until_ns)
{
    struct pollfd fds[] = {{r->out, POLLIN, 0}, {r->err, POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        uint64_t now = hl_now_ns();
        if (now >= until_ns)
            return false;
        poll(fds, 2, (int)((until_ns - now) / HL_NS_PER_MS + 1));
        for (size_t i = 0; i < 2; i++)
            if (fds[i].fd >= 0 && fds[i].revents != 0 && !pipe_take(r, fds[i].fd))
                fds[i].fd = -1;
    }
    return true;
}

/* The last line that is not empty. */
static const char *last_line(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        text[--n] = '\0';
    const char *line = strrchr(text, '\n');
    return line != NULL ? line + 1 : text;
}

static hl_status run_end(struct run *r, const struct hl_kube_plugin *p, bool in_time)
{
    int how = 0;
    if (!in_time)
        kill(-r->pid, SIGKILL);
    while (waitpid(r->pid, &how, 0) < 0 && errno == EINTR)
        ;
    if (!in_time)
        return hl_fail(HL_ETIMEDOUT, "%s: no credential within %d s; it was ended", p->command,
                       HL_KUBE_PLUGIN_MS / 1000);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        return hl_fail(HL_EPERM, "%s failed (%s %d): %s", p->command,
                       WIFEXITED(how) ? "exit code" : "signal",
                       WIFEXITED(how) ? WEXITSTATUS(how) : WTERMSIG(how), last_line(r->told));
    return HL_OK;
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

/* The kubeconfig's before our own: of two of one name the first counts. */
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

static hl_status run_start(struct run *r, const struct hl_kube_plugin *p)
{
    HL_AUTO(texts_freep) char **argv = plugin_argv(p);
    HL_AUTO(texts_freep) char **env = plugin_env(p);
    char program[PATH_MAX];
    int out[2], err[2];
    if (argv == NULL || env == NULL)
        return hl_fail(HL_ENOMEM, "out of memory to run a credential plugin");
    if (hl_process_find(p->command, getenv("PATH"), program, sizeof(program)) != HL_OK)
        return hl_fail(HL_ENOENT, "there is no program %s%s%s", p->command,
                       p->hint[0] != '\0' ? ": " : "", p->hint);
    if (pipe2(out, O_CLOEXEC) != 0)
        return hl_fail(HL_EIO, "pipe of %s: %s", p->command, strerror(errno));
    if (pipe2(err, O_CLOEXEC) != 0) {
        int number = errno;
        close(out[0]);
        close(out[1]);
        return hl_fail(HL_EIO, "pipe of %s: %s", p->command, strerror(number));
    }
    hl_status st = hl_process_spawn(
        &(struct hl_spawn){
            .program = program, .argv = argv, .env = env, .std = {-1, out[1], err[1]}},
        &r->pid);
    close(out[1]);
    close(err[1]);
    r->out = out[0];
    r->err = err[0];
    return st;
}

hl_status hl_kube_plugin_token(const struct hl_kube_plugin *p, char *out, size_t cap,
                               int64_t *lasts_s)
{
    struct run r = {.out = -1, .err = -1, .said = HL_BUF(OUTPUT_MAX)};
    hl_status st = run_start(&r, p);
    if (st == HL_OK) {
        bool in_time = run_follow(&r, hl_now_ns() + HL_KUBE_PLUGIN_MS * HL_NS_PER_MS);
        st = run_end(&r, p, in_time);
    }
    if (r.out >= 0) {
        close(r.out);
        close(r.err);
    }
    if (st == HL_OK)
        st = hl_buf_append(&r.said, "", 1);
    if (st == HL_OK) {
        st = hl_kube_plugin_read(r.said.data, (int64_t)time(NULL), out, cap, lasts_s);
        if (st != HL_OK)
            st = hl_fail_prefix(st, "%s: ", p->command);
    }
    if (r.said.data != NULL)
        explicit_bzero(r.said.data, r.said.len);
    hl_buf_fini(&r.said);
    return st;
}
