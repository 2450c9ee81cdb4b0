/* The settings of a local cluster. What is given now comes before what was given earlier, and flags
 * come before the environment, which comes before the file. Flags, environment and the file's path
 * are remembered in cluster.json; the file is read again at each start. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/lists.h"
#include "base/host_port.h"
#include "base/utf8.h"
#include "cli/local/local_private.h"

#define CONFIG_ENV "HELIOS_CONFIG"

/* Flags of `up` that are options of a daemon. */
static const struct {
    const char *flag; /* flag of `up`, without dashes */
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
    {"executor", HL_AGENT, "--executor", "agent.executor", "HELIOS_AGENT_EXECUTOR"},
    {"kubeconfig", HL_CONTROLLER, "--kubeconfig", "kube.config", "HELIOS_KUBE_CONFIG"},
    {"master", HL_CONTROLLER, "--master", "kube.master", "HELIOS_KUBE_MASTER"},
    {"kube-namespace", HL_CONTROLLER, "--kube-namespace", "kube.namespace",
     "HELIOS_KUBE_NAMESPACE"},
    {"kube-device", HL_CONTROLLER, "--kube-device", "kube.device", "HELIOS_KUBE_DEVICE"},
    {"kube-slot-devices", HL_CONTROLLER, "--kube-slot-devices", "kube.slot_devices",
     "HELIOS_KUBE_SLOT_DEVICES"},
};

/* The value of a flag for its daemon. `--executor` goes to the Controller and to the Agents, with
 * different words: for "process" the Controller takes "agents", and for "kubernetes" Agents take
 * "process", because they run nothing then. */
static const char *flag_text(size_t i, const struct hl_api_key_value_list *flags)
{
    const char *text = hl_api_pair_find(flags, mapped[i].flag, NULL);
    if (text == NULL || strcmp(mapped[i].flag, "executor") != 0)
        return text;
    if (mapped[i].program == HL_AGENT)
        return strcmp(text, "kubernetes") == 0 ? "process" : text;
    return strcmp(text, "process") == 0 ? "agents" : text;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* If a variable of the environment differs from the remembered one, it counts as given now, so it
 * replaces an earlier flag. */
static void forget_flag(struct hl_api_key_value_list *flags,
                        const struct hl_api_key_value_list *given, const char *env)
{
    if (strcmp(env, CONFIG_ENV) == 0 && hl_api_pair_find(given, "config", NULL) == NULL)
        hl_api_pair_remove(flags, "config");
    for (size_t i = 0; i < HL_ARRAY_LEN(mapped); i++)
        if (strcmp(mapped[i].env, env) == 0 &&
            hl_api_pair_find(given, mapped[i].flag, NULL) == NULL)
            hl_api_pair_remove(flags, mapped[i].flag);
}

static hl_status merge_variable(struct local_settings *s, const struct hl_api_key_value_list *given,
                                const char *env)
{
    const char *now = getenv(env), *then = hl_api_pair_find(&s->environment, env, NULL);
    if (now != NULL) {
        if (then == NULL || strcmp(now, then) != 0)
            forget_flag(&s->flags, given, env);
        if (!hl_utf8_valid(now)) /* it is stored as JSON */
            return hl_fail(HL_EINVAL, "environment variable %s: not valid UTF-8", env);
        hl_api_pair_set(&s->arena, &s->environment, env, now);
    } else if (then != NULL && setenv(env, then, 1) != 0) {
        return hl_fail(HL_ENOMEM, "out of memory setting %s", env);
    }
    return HL_OK;
}

/* Daemons are told which file to read, so that all of them read the same one. A local cluster
 * belongs to its user, so /etc/helios/helios.yaml is not used: that configures the machine's
 * daemons. */
static hl_status choose_file(struct local_settings *s)
{
    char path[PATH_MAX], real[PATH_MAX];
    const char *file = hl_api_pair_find(&s->flags, "config", getenv(CONFIG_ENV));
    if (file == NULL)
        file = hl_conf_user_file(path, sizeof(path)) && access(path, F_OK) == 0 ? path : "";
    if (file[0] != '\0') {
        if (realpath(file, real) == NULL)
            return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EIO,
                           "configuration file %s: %m; --config names another one", file);
        file = real;
        if (hl_api_pair_find(&s->flags, "config", NULL) == NULL &&
            hl_api_pair_find(&s->environment, CONFIG_ENV, NULL) != NULL)
            hl_api_pair_set(&s->arena, &s->environment, CONFIG_ENV, real);
    }
    if (setenv(CONFIG_ENV, file, 1) != 0)
        return hl_fail(HL_ENOMEM, "out of memory setting %s", CONFIG_ENV);
    return HL_OK;
}

static hl_status merge_settings(const struct hl_api_key_value_list *given,
                                const struct hl_api_local_cluster *before,
                                struct local_settings *out)
{
    if (before != NULL) {
        hl_api_pairs_merge(&out->arena, &out->flags, &before->flags);
        hl_api_pairs_merge(&out->arena, &out->environment, &before->environment);
    }
    struct hl_api_text_list names = hl_conf_variables(&program_schema, &out->arena);
    HL_TRY(merge_variable(out, given, CONFIG_ENV));
    for (size_t i = 0; i < names.count; i++)
        HL_TRY(merge_variable(out, given, names.items[i]));
    hl_api_pairs_merge(&out->arena, &out->flags, given);
    HL_TRY(choose_file(out));
    return hl_arena_failed(&out->arena)
               ? hl_fail(HL_ENOMEM, "out of memory merging flags and environment")
               : HL_OK;
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

/* Refuses options that make sense for a single node only. */
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
                   "%s (%s) is for a single node, but --nodes is %d; leave the option out", one,
                   hl_conf_origin(&s->agent.conf, one), s->nodes);
}

static hl_status check_counts(const struct local_settings *s)
{
    int least = s->kubernetes ? 0 : 1;
    if (s->nodes < least || s->nodes > LOCAL_NODES_MAX)
        return hl_fail(HL_EINVAL, "--nodes %d: one machine can have %d to %d", s->nodes, least,
                       LOCAL_NODES_MAX);
    return check_one_node(s);
}

/* A flag with a count; it is checked because cluster.json may have been edited. */
static hl_status count_of(const struct local_settings *s, const char *flag, const char *absent,
                          int *out)
{
    uint64_t count;
    const char *text = hl_api_pair_find(&s->flags, flag, absent);
    if (!hl_parse_number(text, INT_MAX, &count))
        return hl_fail(HL_EINVAL, "--%s '%s': not a number; give --%s again", flag, text, flag);
    *out = (int)count;
    return HL_OK;
}

hl_status local_settings_load(const struct hl_api_key_value_list *given,
                              const struct hl_api_local_cluster *before, struct local_settings *out)
{
    HL_TRY(merge_settings(given, before, out));
    HL_TRY(load_program_conf(out, HL_L3D, &out->l3));
    HL_TRY(load_program_conf(out, HL_CONTROLLER, &out->controller));
    HL_TRY(load_program_conf(out, HL_AGENT, &out->agent));
    out->kubernetes = strcmp(out->controller.controller.executor, "kubernetes") == 0;
    HL_TRY(count_of(out, "nodes", "1", &out->nodes));
    HL_TRY(count_of(out, "slots", "0", &out->slots));
    out->supervise = strcmp(hl_api_pair_find(&out->flags, "no-supervise", "false"), "true") != 0;
    out->address_given = hl_api_pair_find(&out->flags, "address", NULL) != NULL;
    out->address = hl_api_pair_find(&out->flags, "address", "127.0.0.1");
    return check_counts(out);
}

void local_settings_fini(struct local_settings *s)
{
    program_conf_fini(&s->l3);
    program_conf_fini(&s->controller);
    program_conf_fini(&s->agent);
    hl_arena_fini(&s->arena);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* L3's "flag --size" is --l3-size to the user. */
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

/* "l3.size": "1073741824" */
static hl_status values_of(const struct hl_conf *conf, struct hl_arena *arena,
                           struct hl_api_key_value_list *out)
{
    struct hl_api_option_info_list rows;
    HL_TRY(hl_conf_dump(conf, arena, &rows));
    struct hl_api_key_value_list values = {
        .items = hl_arena_array(arena, rows.count, sizeof(*values.items))};
    if (values.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing the options");
    for (size_t i = 0; i < rows.count; i++)
        if (strcmp(rows.items[i].name, "ready_file") != 0)
            values.items[values.count++] =
                (struct hl_api_key_value){rows.items[i].name, rows.items[i].value};
    *out = values;
    return HL_OK;
}

/* Agents refuse an L2 of another size, as L3 does with its pool. */
static bool keeps_size(const char *name, const char *old, const char *now)
{
    return strcmp(name, "l3.size") == 0 ||
           (strcmp(name, "agent.l2_size") == 0 && strcmp(old, "0") != 0 && strcmp(now, "0") != 0);
}

static hl_status fail_other(const struct hl_conf *conf, const char *name, const char *old,
                            const char *now)
{
    char flag[64] = "";
    HL_AUTO(hl_freep) char *has = hl_conf_text(&program_schema, name, old);
    HL_AUTO(hl_freep) char *asked = hl_conf_text(&program_schema, name, now);
    return hl_fail(HL_EINVAL, "%s is '%s' in the running cluster, but '%s' was requested (%s); %s",
                   name, has != NULL ? has : old, asked != NULL ? asked : now,
                   origin_of(conf, name, flag, sizeof(flag)),
                   keeps_size(name, old, now)
                       ? "a pool keeps its size: `helios down` removes it with its models, then "
                         "`helios up` makes another"
                       : "`helios down --keep` and `helios up` again apply it");
}

static hl_status compare_program(const struct hl_conf *conf,
                                 const struct hl_api_key_value_list *running)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_key_value_list values;
    HL_TRY(values_of(conf, &arena, &values));
    for (size_t i = 0; i < values.count; i++) {
        const char *name = values.items[i].key, *now = values.items[i].value;
        const char *old = hl_api_pair_find(running, name, now);
        if (strcmp(old, now) != 0)
            return fail_other(conf, name, old, now);
    }
    return HL_OK;
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

hl_status local_settings_compare(const struct local_settings *s,
                                 const struct hl_api_local_cluster *before)
{
    if (before->settings.l3.count == 0) /* an `up` that was killed had only begun */
        return HL_OK;
    HL_TRY(compare_number("nodes", before->nodes, s->nodes));
    HL_TRY(compare_number("slots", before->slots, s->slots));
    const char *address = before->serving != NULL ? before->serving : s->address;
    if (s->address_given && strcmp(address, s->address) != 0)
        return hl_fail(HL_EINVAL,
                       "--address %s: the running cluster serves on %s; `helios down --keep` and "
                       "`helios up --address %s` change it",
                       s->address, address[0] != '\0' ? address : "Unix sockets", s->address);
    HL_TRY(compare_program(&s->l3.conf, &before->settings.l3));
    HL_TRY(compare_program(&s->controller.conf, &before->settings.controller));
    return compare_program(&s->agent.conf, &before->settings.agent);
}

static const char *serving_of(const struct local_settings *s)
{
    return s->address_given || s->kubernetes ? s->address : "";
}

static bool planes_differ(const struct program_conf *now, const struct hl_api_key_value_list *old)
{
    const char *const planes[][2] = {
        {"plane.backbone", now->planes.backbone},
        {"plane.migration", now->planes.migration},
        {"plane.management", now->planes.management},
    };
    bool differ = false;
    for (size_t i = 0; i < HL_ARRAY_LEN(planes); i++)
        differ |= strcmp(hl_api_pair_find(old, planes[i][0], planes[i][1]), planes[i][1]) != 0;
    return differ;
}

bool local_settings_moved(const struct local_settings *s, const struct hl_api_local_cluster *before)
{
    return (before->serving != NULL && strcmp(before->serving, serving_of(s)) != 0) ||
           planes_differ(&s->l3, &before->settings.l3) ||
           planes_differ(&s->controller, &before->settings.controller) ||
           planes_differ(&s->agent, &before->settings.agent);
}

hl_status local_settings_fit_pool(struct local_settings *s,
                                  const struct hl_api_local_cluster *before, const char *pool)
{
    const char *old = hl_api_pair_find(&before->settings.l3, "l3.size", "0");
    uint64_t has, want = s->l3.l3d.size;
    char flag[64] = "";
    if (!hl_parse_number(old, UINT64_MAX, &has) || has == 0 || has == want ||
        access(pool, F_OK) != 0)
        return HL_OK;
    if (!hl_conf_is_set(&s->l3.conf, "l3.size")) { /* no size was given, so it stays as before */
        hl_api_pair_set(&s->arena, &s->flags, "l3-size", old);
        program_conf_fini(&s->l3);
        return load_program_conf(s, HL_L3D, &s->l3);
    }
    char now[32];
    snprintf(now, sizeof(now), "%llu", (unsigned long long)want);
    HL_AUTO(hl_freep) char *has_text = hl_conf_text(&program_schema, "l3.size", old);
    HL_AUTO(hl_freep) char *want_text = hl_conf_text(&program_schema, "l3.size", now);
    return hl_fail(HL_EINVAL,
                   "the kept pool has %s, but %s was requested (%s); leave that option out, or "
                   "remove the pool with its models: helios down --purge",
                   has_text, want_text, origin_of(&s->l3.conf, "l3.size", flag, sizeof(flag)));
}

size_t local_settings_flags(const struct local_settings *s, enum hl_program program,
                            struct local_flag *out)
{
    size_t n = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(mapped); i++) {
        const char *text = flag_text(i, &s->flags);
        if (mapped[i].program == program && text != NULL)
            out[n++] = (struct local_flag){mapped[i].pass, text};
    }
    return n;
}

hl_status local_settings_store(const struct local_settings *s, struct local_cluster *c)
{
    struct hl_api_local_cluster *doc = &c->doc;
    int ever = local_nodes_ever(doc);
    doc->flags = doc->environment = (struct hl_api_key_value_list){0};
    hl_api_pairs_merge(&c->arena, &doc->flags, &s->flags);
    hl_api_pairs_merge(&c->arena, &doc->environment, &s->environment);
    doc->nodes_ever = ever > s->nodes ? ever : s->nodes;
    doc->nodes = s->nodes;
    doc->slots = s->slots;
    doc->serving = hl_arena_strdup(&c->arena, serving_of(s));
    doc->executor = hl_arena_strdup(&c->arena, s->controller.controller.executor);
    HL_TRY(values_of(&s->l3.conf, &c->arena, &doc->settings.l3));
    HL_TRY(values_of(&s->controller.conf, &c->arena, &doc->settings.controller));
    return values_of(&s->agent.conf, &c->arena, &doc->settings.agent);
}
