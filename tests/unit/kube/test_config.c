/* Kubeconfigs as found in practice, and what a pod is given. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kube/config.h"
#include "os/file.h"

static char dir[64];

static void write_file(const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(hl_file_write_atomic(path, text, strlen(text)), HL_OK);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/helios-test-kube-XXXXXX");
    if (mkdtemp(dir) == NULL)
        return 1;
    unsetenv("KUBECONFIG");
    unsetenv("KUBERNETES_SERVICE_HOST");
    unsetenv("KUBERNETES_SERVICE_PORT");
    setenv("HOME", dir, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return hl_dir_remove(dir) != HL_OK;
}

static const char base[] =
    "apiVersion: v1\nkind: Config\ncurrent-context: one\n"
    "contexts:\n"
    "- name: one\n  context: {cluster: c1, user: u1, namespace: train}\n"
    "- name: two\n  context: {cluster: c2, user: u2}\n"
    "- name: three\n  context: {cluster: c2, user: u3}\n"
    "- name: four\n  context: {cluster: c2, user: u4}\n"
    "- name: five\n  context: {cluster: missing, user: u4}\n"
    "- name: six\n  context: {cluster: c2, user: u6}\n"
    "- name: seven\n  context: {cluster: c2, user: u7}\n"
    "clusters:\n"
    "- name: c1\n  cluster: {server: 'https://10.0.0.1:6443/', certificate-authority-data: "
    "UEVN, tls-server-name: api, proxy-url: 'http://proxy:3128'}\n"
    "- name: c2\n  cluster: {server: 'https://b', certificate-authority: ca.pem}\n"
    "users:\n"
    "- name: u1\n  user: {token: secret}\n"
    "- name: u2\n  user: {client-certificate: cert.pem, client-key-data: S0VZ}\n"
    "- name: u3\n  user: {auth-provider: {name: gcp}}\n"
    "- name: u4\n  user: {client-certificate: cert.pem}\n"
    "- name: u6\n  user: {token: t, as: 'system:serviceaccount:a:b'}\n"
    "- name: u7\n  user: {username: me, password: secret}\n";

static hl_status load(const char *context, struct hl_kube_config **out)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/config", dir);
    return hl_kube_config_load(
        &(struct hl_kube_source){.path = path, .context = context, .master = ""}, out);
}

TEST_IN(setup, teardown, the_current_context)
{
    struct hl_kube_config *c;
    char token[64];
    int64_t again_s;
    write_file("config", base);
    assert_int_equal(load("", &c), HL_OK);
    assert_string_equal(c->server, "https://10.0.0.1:6443");
    assert_string_equal(c->ns, "train");
    assert_string_equal(c->ca, "PEM");
    assert_string_equal(c->tls_server_name, "api");
    assert_string_equal(c->proxy, "http://proxy:3128");
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_OK);
    assert_string_equal(token, "secret");
    hl_kube_config_free(c);
}

/* Relative to the file, whatever the working directory. */
TEST_IN(setup, teardown, certificates_by_relative_paths)
{
    struct hl_kube_config *c;
    write_file("config", base);
    write_file("ca.pem", "authority");
    write_file("cert.pem", "certificate");
    assert_int_equal(load("two", &c), HL_OK);
    assert_string_equal(c->ca, "authority");
    assert_string_equal(c->cert, "certificate");
    assert_string_equal(c->key, "KEY");
    assert_string_equal(c->ns, "default");
    assert_null(c->tls_server_name);
    assert_null(c->proxy);
    hl_kube_config_free(c);
}

TEST_IN(setup, teardown, what_is_refused)
{
    struct hl_kube_config *c;
    write_file("config", base);
    write_file("ca.pem", "authority");
    write_file("cert.pem", "certificate");
    assert_int_equal(load("three", &c), HL_EUNSUPPORTED);
    assert_int_equal(load("six", &c), HL_EUNSUPPORTED);
    assert_int_equal(load("seven", &c), HL_EUNSUPPORTED);
    assert_int_equal(load("four", &c), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "client-key"));
    assert_int_equal(load("five", &c), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "missing"));
    assert_int_equal(load("none", &c), HL_EINVAL);
    write_file("config", "current-context: x\ncontexts: 7\n");
    assert_int_equal(load("", &c), HL_EINVAL);
    write_file("config", "[");
    assert_int_equal(load("", &c), HL_EINVAL);
    write_file("config", "");
    assert_int_equal(load("", &c), HL_EINVAL);
}

TEST_IN(setup, teardown, in_a_pod_the_token_changes)
{
    struct hl_kube_config *c;
    char token[64];
    int64_t again_s;
    struct hl_kube_source from = {.path = "", .context = "", .master = "", .pod_dir = dir};
    assert_int_equal(hl_kube_config_load(&from, &c), HL_ENOENT);
    setenv("KUBERNETES_SERVICE_HOST", "fd00::1", 1);
    setenv("KUBERNETES_SERVICE_PORT", "443", 1);
    write_file("ca.crt", "authority");
    write_file("token", "first\n");
    write_file("namespace", "kube-system\n");
    assert_int_equal(hl_kube_config_load(&from, &c), HL_OK);
    assert_string_equal(c->server, "https://[fd00::1]:443");
    assert_string_equal(c->ns, "kube-system");
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_OK);
    assert_string_equal(token, "first");
    write_file("token", "second");
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_OK);
    assert_string_equal(token, "second");
    hl_kube_config_free(c);
}

TEST_IN(setup, teardown, another_master)
{
    struct hl_kube_config *c;
    struct hl_kube_source from = {.path = "", .context = "", .master = "http://127.0.0.1:1/"};
    assert_int_equal(hl_kube_config_load(&from, &c), HL_OK);
    assert_string_equal(c->server, "http://127.0.0.1:1");
    hl_kube_config_free(c);
    from.master = "ftp://x";
    assert_int_equal(hl_kube_config_load(&from, &c), HL_EINVAL);
}
