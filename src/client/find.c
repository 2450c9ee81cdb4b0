/* Finds the Controller of this machine's cluster for a process that was given no address: the one
 * that the `helios` command would call. */
#include <stdlib.h>
#include <string.h>

#include "api/types.h"
#include "auth/conf.h"
#include "auth/secret.h"
#include "base/arena.h"
#include "base/buf.h"
#include "client/client_private.h"
#include "conf/conf.h"
#include "os/file.h"
#include "rpc/conf.h"

#define CLUSTER_FILE_MAX (1u << 20)
#define PATH_BYTES       4096

/* HELIOS_STATE, or else the directory that `helios up` uses by default. */
static bool find_state(char *out, size_t cap)
{
    const char *state = getenv("HELIOS_STATE"), *home = getenv("HOME");
    bool given = state != NULL && state[0] != '\0';
    if (given)
        snprintf(out, cap, "%s", state);
    else
        snprintf(out, cap, "%s/.local/state/helios", home != NULL ? home : "");
    return given;
}

static hl_status fail_nowhere(const char *state)
{
    return hl_fail(HL_EUNAVAIL,
                   "not in a Helios job, and no cluster is running here (%s/cluster.json does not "
                   "exist): start one with `helios up`, or name a Controller with "
                   "helios.init(controller=\"HOST:7400\"), helios_options.controller or "
                   "HELIOS_CONTROLLER",
                   state);
}

/* The file may have been written by a newer `helios`, with members that this release does not know.
 */
static hl_status read_address(const char *path, struct hl_arena *arena,
                              struct hl_api_local_address *out, bool *there)
{
    struct hl_buf text = HL_BUF(CLUSTER_FILE_MAX);
    json_error_t err;
    hl_status st = hl_file_read(path, &text);
    *there = st != HL_ENOENT;
    json_t *cluster = st == HL_OK ? json_loadb(text.data, text.len, 0, &err) : NULL;
    hl_buf_fini(&text);
    HL_TRY(st);
    if (cluster == NULL)
        return hl_fail(HL_ECORRUPT, "%s: line %d: %s", path, err.line, err.text);
    st = hl_api_record_from_json(&hl_api_local_address_type, cluster, arena, out);
    json_decref(cluster);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st == HL_ENOMEM ? st : HL_ECORRUPT, "%s: ", path);
}

/* *there: a cluster was started there, whether or not this succeeds. */
static hl_status read_cluster(const char *state, char **out, bool *there)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_local_address cluster;
    char path[PATH_BYTES + 16];
    snprintf(path, sizeof(path), "%s/cluster.json", state);
    HL_TRY(read_address(path, &arena, &cluster, there));
    HL_TRY(hl_auth_use_file(cluster.secret_file));
    if (cluster.controller[0] == '\0')
        return hl_fail(HL_EUNAVAIL,
                       "the last `helios up` in %s did not finish; repeat it, or remove what it "
                       "left with `helios down`",
                       state);
    if ((*out = strdup(cluster.controller)) == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for an address");
    return HL_OK;
}

/* The options that libhelios reads from the configuration files. */
struct find_conf {
    struct hl_rpc_conf calls;
    struct hl_auth_conf auth;
};

static const struct hl_conf_slice find_slices[] = {
    {&hl_rpc_controller_rows, offsetof(struct find_conf, calls), HL_CLI},
    {&hl_rpc_agent_rows, offsetof(struct find_conf, calls), HL_AGENT},
    {&hl_auth_rows, offsetof(struct find_conf, auth), HL_CLI},
};

static const struct hl_conf_schema find_schema = {
    .slices = find_slices, .count = HL_ARRAY_LEN(find_slices), .partial = true};

/* controller.address from the configuration files and the environment, or else agent.controller. */
static hl_status read_configured(char **out, enum found *how)
{
    char name[] = "libhelios", *argv[] = {name, NULL};
    struct hl_conf conf = {0};
    struct find_conf values = {0};
    HL_TRY(hl_conf_load(&find_schema, HL_CLI, 1, argv, &values, &conf, NULL));
    hl_status st = HL_OK;
    bool own = values.calls.controller[0] != '\0';
    if ((*out = strdup(own ? values.calls.controller : values.calls.agent_controller)) == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for an address");
    if (st == HL_OK)
        st = hl_auth_use_file(values.auth.secret_file);
    if (st == HL_OK)
        *how = own || hl_conf_is_set(&conf, "agent.controller") ? FOUND_CONFIGURED : FOUND_DEFAULT;
    hl_conf_fini(&conf);
    return st;
}

hl_status find_controller(char **address, enum found *how)
{
    char state[PATH_BYTES];
    bool there, given = find_state(state, sizeof(state));
    hl_status st = read_cluster(state, address, &there);
    *how = FOUND_LOCAL;
    if (there)
        return st;
    return given ? fail_nowhere(state) : read_configured(address, how);
}

hl_status find_explain(enum found how, hl_status st)
{
    char state[PATH_BYTES], text[HL_ERROR_TEXT_MAX];
    if (how != FOUND_LOCAL && how != FOUND_DEFAULT)
        return st;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    find_state(state, sizeof(state));
    if (how == FOUND_DEFAULT)
        return fail_nowhere(state);
    return hl_fail(st, "the cluster of %s is down; `helios up` starts it (%s)", state, text);
}
