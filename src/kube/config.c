#include "kube/config.h"

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base64.h"
#include "conf/yaml.h"
#include "core/json.h"
#include "kube/plugin.h"
#include "os/file.h"

#define POD_DIR  "/var/run/secrets/kubernetes.io/serviceaccount"
#define FILE_MAX ((size_t)1 << 20)
#define TOKEN_S  60   /* for a pod's token, which is replaced now and then */
#define PLUGIN_S 3600 /* for a token from a program that does not say how long it is valid */
#define EARLY_S  30

/* A kubeconfig that is being read. */
struct reading {
    const char *path;
    char dir[PATH_MAX]; /* base of relative paths */
    const json_t *root;
    struct hl_kube_config *out;
};

static hl_status copy_text(const char *from, char **to)
{
    free(*to);
    *to = strdup(from);
    return *to != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a kubeconfig");
}

static hl_status read_file(const char *path, char **out)
{
    struct hl_buf text = HL_BUF(FILE_MAX);
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK)
        st = hl_buf_append(&text, "", 1);
    if (st == HL_OK)
        st = copy_text(text.data, out);
    hl_buf_fini(&text);
    return st;
}

static void full_path(const struct reading *r, const char *path, char *out, size_t cap)
{
    if (path[0] == '/')
        snprintf(out, cap, "%s", path);
    else
        snprintf(out, cap, "%s/%s", r->dir, path);
}

/* Reads "NAME-data" in base64, otherwise the file "NAME"; nothing if neither is set. */
static hl_status read_pem(const struct reading *r, const json_t *obj, const char *name, char **out)
{
    char key[64], path[2 * PATH_MAX];
    snprintf(key, sizeof(key), "%s-data", name);
    const char *data = hl_json_str(obj, key, ""), *file = hl_json_str(obj, name, "");
    if (data[0] != '\0') {
        struct hl_buf pem = HL_BUF(FILE_MAX);
        hl_status st = hl_base64_decode(data, &pem);
        if (st == HL_OK)
            st = hl_buf_append(&pem, "", 1);
        if (st == HL_OK)
            st = copy_text(pem.data, out);
        hl_buf_fini(&pem);
        return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: %s: ", r->path, key);
    }
    if (file[0] == '\0')
        return HL_OK;
    full_path(r, file, path, sizeof(path));
    hl_status st = read_file(path, out);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: %s: ", r->path, name);
}

/* Finds the member `kind` of the entry called `name` in the list `lists`. */
static hl_status find_named(const struct reading *r, const char *lists, const char *kind,
                            const char *name, const json_t **out)
{
    const json_t *entry;
    size_t i;
    json_array_foreach (hl_json_list(r->root, lists), i, entry)
        if (strcmp(hl_json_str(entry, "name", ""), name) == 0) {
            *out = json_object_get(entry, kind);
            if (json_is_object(*out))
                return HL_OK;
        }
    return hl_fail(HL_EINVAL, "%s: there is no %s '%.128s' among its %s", r->path, kind, name,
                   lists);
}

static hl_status set_server(struct hl_kube_config *c, const char *url, const char *where)
{
    if (strncmp(url, "https://", 8) != 0 && strncmp(url, "http://", 7) != 0)
        return hl_fail(HL_EINVAL, "%s: the server '%.200s' is not an http:// or https:// address",
                       where, url);
    HL_TRY(copy_text(url, &c->server));
    for (size_t n = strlen(c->server); n > 0 && c->server[n - 1] == '/'; n--)
        c->server[n - 1] = '\0';
    return HL_OK;
}

static hl_status read_cluster(const struct reading *r, const json_t *cluster)
{
    struct hl_kube_config *c = r->out;
    const char *name = hl_json_str(cluster, "tls-server-name", "");
    const char *proxy = hl_json_str(cluster, "proxy-url", "");
    HL_TRY(set_server(c, hl_json_str(cluster, "server", ""), r->path));
    HL_TRY(read_pem(r, cluster, "certificate-authority", &c->ca));
    c->insecure = hl_json_bool(cluster, "insecure-skip-tls-verify", false);
    if (proxy[0] != '\0')
        HL_TRY(copy_text(proxy, &c->proxy));
    return name[0] != '\0' ? copy_text(name, &c->tls_server_name) : HL_OK;
}

static hl_status read_plugin(const struct reading *r, const json_t *exec, const json_t *cluster)
{
    hl_status st = hl_kube_plugin_create(exec, r->dir, cluster, &r->out->plugin);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", r->path);
}

static hl_status read_user(const struct reading *r, const json_t *user, const json_t *cluster)
{
    struct hl_kube_config *c = r->out;
    const char *token = hl_json_str(user, "token", ""), *file = hl_json_str(user, "tokenFile", "");
    char path[2 * PATH_MAX];
    if (json_object_get(user, "auth-provider") != NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: its user has an auth-provider, which Kubernetes removed in 1.26; use "
                       "exec, a token, a tokenFile or a client certificate",
                       r->path);
    if (json_object_get(user, "as") != NULL || json_object_get(user, "username") != NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: its user acts as another (as) or has a password (username), which is "
                       "not supported; use a token, a tokenFile or a client certificate",
                       r->path);
    HL_TRY(read_pem(r, user, "client-certificate", &c->cert));
    HL_TRY(read_pem(r, user, "client-key", &c->key));
    if ((c->cert == NULL) != (c->key == NULL))
        return hl_fail(HL_EINVAL, "%s: client-certificate and client-key go together", r->path);
    if (json_object_get(user, "exec") != NULL)
        return read_plugin(r, json_object_get(user, "exec"), cluster);
    if (file[0] != '\0') {
        full_path(r, file, path, sizeof(path));
        return copy_text(path, &c->token_file);
    }
    return token[0] != '\0' ? copy_text(token, &c->token) : HL_OK;
}

static hl_status read_context(const struct reading *r, const char *wanted)
{
    const json_t *context, *cluster, *user;
    const char *name = wanted[0] != '\0' ? wanted : hl_json_str(r->root, "current-context", "");
    if (name[0] == '\0')
        return hl_fail(HL_EINVAL, "%s: it has no current-context; name one", r->path);
    HL_TRY(find_named(r, "contexts", "context", name, &context));
    HL_TRY(find_named(r, "clusters", "cluster", hl_json_str(context, "cluster", ""), &cluster));
    HL_TRY(find_named(r, "users", "user", hl_json_str(context, "user", ""), &user));
    HL_TRY(read_cluster(r, cluster));
    HL_TRY(read_user(r, user, cluster));
    return copy_text(hl_json_str(context, "namespace", "default"), &r->out->ns);
}

static hl_status load_file(const char *path, const char *context, struct hl_kube_config *out)
{
    struct reading r = {.path = path, .out = out};
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    char copy[PATH_MAX];
    HL_TRY(hl_yaml_load(path, &doc));
    snprintf(copy, sizeof(copy), "%s", path);
    snprintf(r.dir, sizeof(r.dir), "%s", dirname(copy));
    r.root = hl_yaml_root(doc);
    return read_context(&r, context);
}

/* ---- in a pod -------------------------------------------------------------------------------- */

static hl_status load_pod(const char *dir, struct hl_kube_config *out)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    char path[PATH_MAX], server[512];
    if (host == NULL || port == NULL)
        return hl_fail(HL_ENOENT, "there is no kubeconfig, and this is not a pod "
                                  "(KUBERNETES_SERVICE_HOST is not set); give --kubeconfig");
    snprintf(server, sizeof(server),
             strchr(host, ':') != NULL ? "https://[%s]:%s" : "https://%s:%s", host, port);
    HL_TRY(set_server(out, server, "KUBERNETES_SERVICE_HOST"));
    snprintf(path, sizeof(path), "%s/ca.crt", dir);
    HL_TRY(read_file(path, &out->ca));
    snprintf(path, sizeof(path), "%s/token", dir);
    HL_TRY(copy_text(path, &out->token_file));
    snprintf(path, sizeof(path), "%s/namespace", dir);
    if (read_file(path, &out->ns) != HL_OK)
        return copy_text("default", &out->ns);
    out->ns[strcspn(out->ns, " \r\n")] = '\0';
    return HL_OK;
}

/* ---- which ----------------------------------------------------------------------------------- */

/* The first path in $KUBECONFIG, or ~/.kube/config if it exists; "" = neither. */
static void default_path(char *out, size_t cap)
{
    const char *env = getenv("KUBECONFIG"), *home = getenv("HOME");
    out[0] = '\0';
    if (env != NULL && env[0] != '\0') {
        snprintf(out, cap, "%.*s", (int)strcspn(env, ":"), env);
        return;
    }
    if (home == NULL)
        return;
    snprintf(out, cap, "%s/.kube/config", home);
    if (access(out, R_OK) != 0)
        out[0] = '\0';
}

static hl_status load_config(const struct hl_kube_source *from, struct hl_kube_config *c)
{
    char path[PATH_MAX];
    if (from->path[0] != '\0')
        snprintf(path, sizeof(path), "%s", from->path);
    else
        default_path(path, sizeof(path));
    if (path[0] != '\0')
        HL_TRY(load_file(path, from->context, c));
    else if (from->master[0] == '\0' || getenv("KUBERNETES_SERVICE_HOST") != NULL)
        HL_TRY(load_pod(from->pod_dir != NULL ? from->pod_dir : POD_DIR, c));
    if (from->master[0] != '\0')
        HL_TRY(set_server(c, from->master, "--master"));
    return c->ns != NULL ? HL_OK : copy_text("default", &c->ns);
}

hl_status hl_kube_config_load(const struct hl_kube_source *from, struct hl_kube_config **out)
{
    struct hl_kube_config *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a kubeconfig");
    hl_status st = load_config(from, c);
    if (st != HL_OK) {
        hl_kube_config_free(c);
        return st;
    }
    *out = c;
    return HL_OK;
}

bool hl_kube_config_token_changes(const struct hl_kube_config *c)
{
    return c->token_file != NULL || c->plugin != NULL;
}

/* A program's token is renewed shortly before it expires. */
static hl_status plugin_token(const struct hl_kube_config *c, const atomic_bool *cancel, char *out,
                              size_t cap, int64_t *again_s)
{
    int64_t lasts_s;
    HL_TRY(hl_kube_plugin_token(c->plugin, cancel, out, cap, &lasts_s));
    if (lasts_s == 0)
        *again_s = PLUGIN_S;
    else
        *again_s = lasts_s > 2 * EARLY_S ? lasts_s - EARLY_S : lasts_s / 2;
    return HL_OK;
}

hl_status hl_kube_config_token(const struct hl_kube_config *c, const atomic_bool *cancel, char *out,
                               size_t cap, int64_t *again_s)
{
    char *text = NULL;
    out[0] = '\0';
    *again_s = TOKEN_S;
    if (c->plugin != NULL)
        return plugin_token(c, cancel, out, cap, again_s);
    if (c->token_file == NULL) {
        if (c->token != NULL)
            snprintf(out, cap, "%s", c->token);
        return HL_OK;
    }
    HL_TRY(read_file(c->token_file, &text));
    snprintf(out, cap, "%s", text);
    free(text);
    out[strcspn(out, " \t\r\n")] = '\0';
    return HL_OK;
}

void hl_kube_config_free(struct hl_kube_config *c)
{
    if (c == NULL)
        return;
    char **all[] = {&c->server, &c->ns,  &c->token,           &c->token_file, &c->ca,
                    &c->cert,   &c->key, &c->tls_server_name, &c->proxy};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++) {
        if (*all[i] != NULL)
            explicit_bzero(*all[i], strlen(*all[i]));
        free(*all[i]);
    }
    hl_kube_plugin_free(c->plugin);
    free(c);
}
