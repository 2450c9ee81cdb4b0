/* Credentials from another program. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kube/config.h"
#include "kube/plugin.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/helios-plugin-XXXXXX");
    return mkdtemp(dir) != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    return system(command);
}

static void write_file(const char *name, const char *text)
{
    char path[160];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fchmod(fileno(f), 0755), 0);
    assert_int_equal(fclose(f), 0);
}

/* A kubeconfig whose user has this exec. */
static hl_status load(const char *exec, struct hl_kube_config **out)
{
    char text[1024], path[160];
    snprintf(text, sizeof(text),
             "current-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n"
             "clusters: [{name: k, cluster: {server: 'https://api:6443'}}]\n"
             "users: [{name: u, user: {exec: {%s}}}]\n",
             exec);
    write_file("config", text);
    snprintf(path, sizeof(path), "%s/config", dir);
    return hl_kube_config_load(&(struct hl_kube_source){.path = path, .context = "", .master = ""},
                               out);
}

#define V1 "apiVersion: client.authentication.k8s.io/v1, "

TEST(a_credential_is_read_with_its_end)
{
    const int64_t now = 1800000000; /* 2027-01-15T08:00:00Z */

    static const struct {
        const char *text;
        hl_status st;
        int64_t lasts_s;
        const char *says;
    } rows[] = {
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}", HL_OK, 0, ""},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\",\"expirationTimestamp\":"
         "\"2027-01-15T08:15:00Z\"}}",
         HL_OK, 900, ""},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\",\"expirationTimestamp\":"
         "\"2027-01-15T09:00:07.25+01:00\"}}",
         HL_OK, 7, ""},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\",\"expirationTimestamp\":"
         "\"2027-01-15T08:00:00Z\"}}",
         HL_EINVAL, 0, "expired at"},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\",\"expirationTimestamp\":"
         "\"tomorrow\"}}",
         HL_EINVAL, 0, "not a time"},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"clientCertificateData\":\"c\"}}",
         HL_EUNSUPPORTED, 0, "client certificate"},
        {"{\"kind\":\"ExecCredential\",\"status\":{}}", HL_EINVAL, 0, "no token"},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"a-token-of-more-than-15-bytes\"}}",
         HL_EINVAL, 0, "more than 15"},
        {"{\"kind\":\"ExecCredential\",\"status\":{\"token\":\"a\\nX: y\"}}", HL_EINVAL, 0,
         "a character"},
        {"{\"kind\":\"Status\"}", HL_EINVAL, 0, "ExecCredential"},
        {"Please log in", HL_EINVAL, 0, "ExecCredential"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char token[16];
        int64_t lasts_s = 0;
        assert_int_equal(hl_kube_plugin_read(rows[i].text, now, token, sizeof(token), &lasts_s),
                         rows[i].st);
        assert_int_equal(lasts_s, rows[i].lasts_s);
        if (rows[i].st == HL_OK)
            assert_string_equal(token, "t");
        else
            assert_non_null(strstr(hl_error_text(), rows[i].says));
    }
}

TEST_IN(setup, teardown, a_program_is_asked_with_what_the_kubeconfig_gives_it)
{
    struct hl_kube_config *c;
    char token[1024];
    int64_t again_s;
    write_file("login", "#!/bin/sh\n"
                        "case $KUBERNETES_EXEC_INFO in *https://api:6443*) ;; *) exit 3;; esac\n"
                        "printf '{\"kind\":\"ExecCredential\",\"status\":{\"token\":"
                        "\"%s.%s.%s\",\"expirationTimestamp\":\"2999-01-01T00:00:00Z\"}}' "
                        "\"$1\" \"$REGION\" \"$(wc -c)\"\n");
    assert_int_equal(load(V1 "command: ./login, args: [eks], provideClusterInfo: true, "
                             "env: [{name: REGION, value: eu}]",
                          &c),
                     HL_OK);
    assert_true(hl_kube_config_token_changes(c));
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_OK);
    assert_string_equal(token, "eks.eu.0"); /* its questions get no answer */
    assert_true(again_s > 1000000);
    hl_kube_config_free(c);
}

TEST_IN(setup, teardown, a_program_that_fails_says_why)
{
    struct hl_kube_config *c;
    char token[1024];
    int64_t again_s;
    write_file("login", "#!/bin/sh\necho one >&2; echo 'session has ended; log in' >&2; exit 7\n");
    assert_int_equal(load(V1 "command: ./login", &c), HL_OK);
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "exit code 7): session has ended; log in"));
    hl_kube_config_free(c);
    assert_int_equal(load(V1 "command: no-such-login, installHint: get it from x", &c), HL_OK);
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "no-such-login: get it from x"));
    hl_kube_config_free(c);
    assert_int_equal(load(V1 "command: /no/such/login, installHint: get it from x", &c), HL_OK);
    assert_int_equal(hl_kube_config_token(c, NULL, token, sizeof(token), &again_s), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "/no/such/login: get it from x"));
    hl_kube_config_free(c);
}

/* The program would be waited for half a minute. */
TEST_IN(setup, teardown, a_program_that_hangs_ends_with_us)
{
    struct hl_kube_config *c;
    char token[1024];
    int64_t again_s;
    atomic_bool cancel = true;
    write_file("login", "#!/bin/sh\nsleep 600 & wait\n");
    assert_int_equal(load(V1 "command: ./login", &c), HL_OK);
    assert_int_equal(hl_kube_config_token(c, &cancel, token, sizeof(token), &again_s),
                     HL_ECANCELED);
    hl_kube_config_free(c);
}

TEST_IN(setup, teardown, what_a_daemon_can_not_run_is_refused)
{
    struct hl_kube_config *c;
    assert_int_equal(load(V1 "args: []", &c), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "command"));
    assert_int_equal(load("command: x", &c), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "apiVersion"));
    assert_int_equal(load(V1 "command: x, interactiveMode: Always", &c), HL_EUNSUPPORTED);
}
