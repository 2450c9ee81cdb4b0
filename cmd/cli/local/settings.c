/* What a local cluster is asked for. What is said now comes before what was said earlier, and flags
 * before the environment before the file. Flags and environment are remembered in cluster.json; the
 * file's path is, too, and the file is read again at each start. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/host_port.h"
#include "cli/local/local_private.h"
#include "core/json.h"

#define CONFIG_ENV "HELIOS_CONFIG"

/* Flags of `up` that are options of a daemon. */
static const struct {
    const char *flag; /* of `up`, without dashes */
    enum hl_program program;
    const char *pass; /* flag of the program */
    const char *option;
    const char *env;
} mapped[] = {
    {"l3-size", HL_L3D, "--size", "l3.size", "HELIOS_L3_SIZE"},
    {"l2-size", HL_AGENT, "--l2-size", "agent.l2_size", "HELIOS_AGENT_L2_SIZE"},
    {"devices", HL_AGENT, "--devices", "agent.devices", "HELIOS_AGENT_DEVICES"},
    {"topology", HL_AGENT, "--topology", "agent.topology", "HELIOS_AGENT_TOPOLOGY"},
    {"executor", HL_CONTROLLER, "--executor", "controller.executor", "HELIOS_CONTROLLER_EXECUTOR"},
    {"kubeconfig", HL_CONTROLLER, "--kubeconfig", "kube.config", "HELIOS_KUBE_CONFIG"},
    {"master", HL_CONTROLLER, "--master", "kube.master", "HELIOS_KUBE_MASTER"},
    {"kube-namespace", HL_CONTROLLER, "--kube-namespace", "kube.namespace",
     "HELIOS_KUBE_NAMESPACE"},
    {"kube-device", HL_CONTROLLER, "--kube-device", "kube.device", "HELIOS_KUBE_DEVICE"},
    {"kube-slot-devices", HL_CONTROLLER, "--kube-slot-devices", "kube.slot_devices",
     "HELIOS_KUBE_SLOT_DEVICES"},
};

static const char *flag_text(const char *flag, const json_t *flags)
{
    const char *text = hl_json_str(flags, flag, NULL);
    if (text != NULL && strcmp(flag, "executor") == 0 && strcmp(text, "process") == 0)
        return "agents";
    return text;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* A variable of the environment that differs from the one remembered is said now: it comes before a
 * flag of earlier. */
static void forget_flag(json_t *flags, const json_t *given, const char *env)
{
    if (strcmp(env, CONFIG_ENV) == 0 && json_object_get(given, "config") == NULL)
        json_object_del(flags, "config");
    for (size_t i = 0; i < HL_ARRAY_LEN(mapped); i++)
        if (strcmp(mapped[i].env, env) == 0 && json_object_get(given, mapped[i].flag) == NULL)
            json_object_del(flags, mapped[i].flag);
}

static hl_status merge_variable(struct local_settings *s, const json_t *given, const char *env)
{
    const char *now = getenv(env), *then = hl_json_str(s->environment, env, NULL);
    if (now != NULL) {
        if (then == NULL || strcmp(now, then) != 0)
            forget_flag(s->flags, given, env);
        if (json_object_set_new(s->environment, env, json_string(now)) != 0)
            return hl_fail(HL_EINVAL, "environment variable %s: not valid UTF-8", env);
    } else if (then != NULL && setenv(env, then, 1) != 0) {
        return hl_fail(HL_ENOMEM, "out of memory setting %s", env);
    }
    return HL_OK;
}

/* Daemons are told which file to read, so that all of them read the same one. A local cluster is
 * its user's: /etc/helios/helios.yaml configures the daemons of the machine. */
static hl_status choose_file(const struct local_settings *s)
{
    char path[PATH_MAX], real[PATH_MAX];
    const char *file = hl_json_str(s->flags, "config", getenv(CONFIG_ENV));
    if (file == NULL)
        file = hl_conf_user_file(path, sizeof(path)) && access(path, F_OK) == 0 ? path : "";
    if (file[0] != '\0') {
        if (realpath(file, real) == NULL)
            return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO,
                           "configuration file %s: %m; --config names another one", file);
        file = real;
        if (json_object_get(s->flags, "config") == NULL &&
            json_object_get(s->environment, CONFIG_ENV) != NULL)
            json_object_set_new(s->environment, CONFIG_ENV, json_string(real));
    }
    if (setenv(CONFIG_ENV, file, 1) != 0)
        return hl_fail(HL_ENOMEM, "out of memory setting %s", CONFIG_ENV);
    return HL_OK;
}

static hl_status merge_settings(const json_t *given, const json_t *before,
                                struct local_settings *out)
{
    const json_t *flags = json_object_get(before, "flags");
    const json_t *environment = json_object_get(before, "environment");
    out->flags = flags != NULL ? json_deep_copy(flags) : json_object();
    out->environment = environment != NULL ? json_deep_copy(environment) : json_object();
    json_t *names = hl_conf_variables(&program_schema), *name;
    size_t i;
    hl_status st = merge_variable(out, given, CONFIG_ENV);
    json_array_foreach (names, i, name) {
        if (st == HL_OK)
            st = merge_variable(out, given, json_string_value(name));
    }
    json_decref(names);
    HL_TRY(st);
    json_object_update(out->flags, (json_t *)given);
    return choose_file(out);
}

/* ---- loading --------------------------------------------------------------------------------- */

static_assert(HL_ARRAY_LEN(mapped) <= LOCAL_FLAGS_MAX, "flags of `up` that a daemon is given");

static hl_status load_program_conf(const struct local_settings *s, enum hl_program program,
                                   struct program_conf *out)
{
    struct local_flag flags[LOCAL_FLAGS_MAX];
    const char *argv[2 * LOCAL_FLAGS_MAX + 2] = {"helios"};
    int argc = 1;
    size_t n = local_settings_flags(s, program, flags);
    for (size_t i = 0; i < n; i++) {
        argv[argc++] = flags[i].name;
        argv[argc++] = flags[i].value;
    }
    return program_conf_load(program, argc, (char **)argv, out, NULL);
}

/* An option that only one node can have. */
static hl_status check_one_node(const struct local_settings *s)
{
    static const char *const names[] = {"agent.name", "agent.share", "agent.l2_pool"};
    const char *const ports[][2] = {{"agent.listen", s->agent.agent.listen},
                                    {"agent.data_listen", s->agent.agent.store.data_listen},
                                    {"agent.migrate_listen", s->agent.agent.store.migrate_listen}};
    const char *one = NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (hl_conf_is_set(&s->agent.conf, names[i]))
            one = names[i];
    for (size_t i = 0; i < HL_ARRAY_LEN(ports); i++) {
        struct hl_host_port x;
        if (hl_host_port_split(ports[i][1], &x) == HL_OK && x.port > 0)
            one = ports[i][0];
    }
    if (s->nodes <= 1 || one == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "%s (%s) is meant for one node, but --nodes is %d; leave the option out", one,
                   hl_conf_origin(&s->agent.conf, one), s->nodes);
}

static hl_status check_counts(const struct local_settings *s)
{
    int least = s->kubernetes ? 0 : 1;
    if (s->nodes < least || s->nodes > LOCAL_NODES_MAX)
        return hl_fail(HL_EINVAL, "--nodes %d: %d to %d are possible on one machine", s->nodes,
                       least, LOCAL_NODES_MAX);
    return check_one_node(s);
}

hl_status local_settings_load(const json_t *given, const json_t *before, struct local_settings *out)
{
    HL_TRY(merge_settings(given, before, out));
    HL_TRY(load_program_conf(out, HL_L3D, &out->l3));
    HL_TRY(load_program_conf(out, HL_CONTROLLER, &out->controller));
    HL_TRY(load_program_conf(out, HL_AGENT, &out->agent));
    out->kubernetes = strcmp(out->controller.controller.executor, "kubernetes") == 0;
    out->nodes = atoi(hl_json_str(out->flags, "nodes", "1"));
    out->slots = atoi(hl_json_str(out->flags, "slots", "0"));
    out->supervise = strcmp(hl_json_str(out->flags, "no-supervise", "false"), "true") != 0;
    out->address_given = json_object_get(out->flags, "address") != NULL;
    out->address = hl_json_str(out->flags, "address", "127.0.0.1");
    return check_counts(out);
}

void local_settings_fini(struct local_settings *s)
{
    program_conf_fini(&s->l3);
    program_conf_fini(&s->controller);
    program_conf_fini(&s->agent);
    json_decref(s->flags);
    json_decref(s->environment);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* "flag --size" of L3 is --l3-size to whoever typed it. */
static const char *origin_of(const struct hl_conf *conf, const char *option, char *buf, size_t cap)
{
    const char *origin = hl_conf_origin(conf, option);
    if (origin == NULL || strncmp(origin, "flag ", 5) != 0)
        return origin != NULL ? origin : "default";
    for (size_t i = 0; i < HL_ARRAY_LEN(mapped); i++)
        if (strcmp(mapped[i].option, option) == 0)
            snprintf(buf, cap, "--%s", mapped[i].flag);
    return buf;
}

/* {"l3.size": "1073741824"} */
static json_t *values_of(const struct hl_conf *conf)
{
    json_t *values = json_object(), *rows = hl_conf_dump(conf), *row;
    size_t i;
    json_array_foreach (rows, i, row) {
        if (strcmp(hl_json_str(row, "name", ""), "ready_file") != 0)
            json_object_set(values, hl_json_str(row, "name", ""), json_object_get(row, "value"));
    }
    json_decref(rows);
    return values;
}

static hl_status compare_program(const struct hl_conf *conf, const json_t *running)
{
    json_t *values = values_of(conf), *value;
    const char *name;
    hl_status st = HL_OK;
    json_object_foreach (values, name, value) {
        const char *old = hl_json_str(running, name, NULL), *now = json_string_value(value);
        char flag[64] = "";
        if (st != HL_OK || old == NULL || strcmp(old, now) == 0)
            continue;
        HL_AUTO(hl_freep) char *has = hl_conf_text(&program_schema, name, old);
        HL_AUTO(hl_freep) char *asked = hl_conf_text(&program_schema, name, now);
        st = hl_fail(HL_EINVAL, "%s is '%s' in the running cluster and '%s' is asked for (%s); %s",
                     name, has != NULL ? has : old, asked != NULL ? asked : now,
                     origin_of(conf, name, flag, sizeof(flag)),
                     strcmp(name, "l3.size") == 0
                         ? "a pool keeps its size: `helios down` removes it with its models, then "
                           "`helios up` makes another"
                         : "`helios down --keep` and `helios up` again apply it");
    }
    json_decref(values);
    return st;
}

static hl_status compare_number(const char *flag, int running, int asked)
{
    if (running == asked)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "--%s %d: the running cluster has %d; `helios down --keep` and `helios up --%s "
                   "%d` change it",
                   flag, asked, running, flag, asked);
}

hl_status local_settings_compare(const struct local_settings *s, const json_t *before)
{
    const json_t *settings = json_object_get(before, "settings");
    if (settings == NULL) /* an `up` that was killed had only begun */
        return HL_OK;
    HL_TRY(compare_number("nodes", (int)hl_json_int(before, "nodes", 0), s->nodes));
    HL_TRY(compare_number("slots", (int)hl_json_int(before, "slots", 0), s->slots));
    const char *address = hl_json_str(before, "serving", s->address);
    if (s->address_given && strcmp(address, s->address) != 0)
        return hl_fail(HL_EINVAL,
                       "--address %s: the running cluster serves on %s; `helios down --keep` and "
                       "`helios up --address %s` change it",
                       s->address, address[0] != '\0' ? address : "Unix sockets", s->address);
    HL_TRY(compare_program(&s->l3.conf, json_object_get(settings, "l3")));
    HL_TRY(compare_program(&s->controller.conf, json_object_get(settings, "controller")));
    return compare_program(&s->agent.conf, json_object_get(settings, "agent"));
}

hl_status local_settings_fit_pool(struct local_settings *s, const json_t *before, const char *pool)
{
    const json_t *l3 = json_object_get(json_object_get(before, "settings"), "l3");
    const char *old = hl_json_str(l3, "l3.size", "");
    uint64_t has = strtoull(old, NULL, 10), want = s->l3.l3d.size;
    char flag[64] = "";
    if (has == 0 || has == want || access(pool, F_OK) != 0)
        return HL_OK;
    if (!hl_conf_is_set(&s->l3.conf, "l3.size")) { /* nobody asks for a size: as before */
        json_object_set_new(s->flags, "l3-size", json_string(old));
        program_conf_fini(&s->l3);
        return load_program_conf(s, HL_L3D, &s->l3);
    }
    char now[32];
    snprintf(now, sizeof(now), "%llu", (unsigned long long)want);
    HL_AUTO(hl_freep) char *has_text = hl_conf_text(&program_schema, "l3.size", old);
    HL_AUTO(hl_freep) char *want_text = hl_conf_text(&program_schema, "l3.size", now);
    return hl_fail(HL_EINVAL,
                   "the pool that was kept has %s, and %s is asked for (%s); leave that out, or "
                   "remove the pool with its models: helios down --purge",
                   has_text, want_text, origin_of(&s->l3.conf, "l3.size", flag, sizeof(flag)));
}

size_t local_settings_flags(const struct local_settings *s, enum hl_program program,
                            struct local_flag *out)
{
    size_t n = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(mapped); i++) {
        const char *text = flag_text(mapped[i].flag, s->flags);
        if (mapped[i].program == program && text != NULL)
            out[n++] = (struct local_flag){mapped[i].pass, text};
    }
    return n;
}

void local_settings_store(const struct local_settings *s, json_t *doc)
{
    json_int_t ever = hl_json_int(doc, "nodesEver", hl_json_int(doc, "nodes", 0));
    json_object_set(doc, "flags", s->flags);
    json_object_set(doc, "environment", s->environment);
    json_object_set_new(doc, "nodesEver", json_integer(ever > s->nodes ? ever : s->nodes));
    json_object_set_new(doc, "nodes", json_integer(s->nodes));
    json_object_set_new(doc, "slots", json_integer(s->slots));
    json_object_set_new(doc, "serving",
                        json_string(s->address_given || s->kubernetes ? s->address : ""));
    json_object_set_new(doc, "executor", json_string(s->controller.controller.executor));
    json_object_set_new(doc, "settings",
                        json_pack("{s:o s:o s:o}", "l3", values_of(&s->l3.conf), "controller",
                                  values_of(&s->controller.conf), "agent",
                                  values_of(&s->agent.conf)));
}
