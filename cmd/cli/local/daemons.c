/* The command line of each daemon of a local cluster. Options from the environment or the file are
 * left to the daemon to read; what only `up` can know is passed as a flag. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host_port.h"
#include "cli/local/local_private.h"

void local_daemon_name(int index, char *out, size_t cap)
{
    if (index < 2)
        snprintf(out, cap, "%s", index == 0 ? "l3d" : "controllerd");
    else
        snprintf(out, cap, "node-%d", index - 2);
}

static void add_flag(struct local_daemon *d, const char *flag, const char *fmt, ...)
    HL_PRINTF(3, 4);

static void add_flag(struct local_daemon *d, const char *flag, const char *fmt, ...)
{
    char *value = NULL, *name = strdup(flag);
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&value, fmt, ap) < 0)
        value = NULL;
    va_end(ap);
    if (name == NULL || value == NULL || d->argc + 3 > LOCAL_ARGS_MAX) {
        d->failed = true;
        free(name);
        free(value);
        return;
    }
    d->argv[d->argc++] = name;
    d->argv[d->argc++] = value;
}

static void add_given(struct local_daemon *d, const struct local *l, enum hl_program program)
{
    struct local_flag flags[LOCAL_FLAGS_MAX];
    size_t n = local_settings_flags(&l->settings, program, flags);
    for (size_t i = 0; i < n; i++)
        add_flag(d, flags[i].name, "%s", flags[i].value);
    add_flag(d, "--log-file", "%s/log/%s.log", l->opts->state, d->name);
}

/* On one machine no ports are needed: daemons, ranks and the command line connect through Unix
 * sockets in a directory that only their user can enter, and copies go through memory that both
 * have mapped. Only pods need ports. */
static bool wants_ports(const struct local *l, const struct program_conf *conf)
{
    return l->settings.address_given || l->settings.kubernetes ||
           conf->planes.management[0] != '\0';
}

/* "" for NULL, because a field may be missing in cluster.json. */
static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* Uses the address where the daemon served before, because its peers remember it; otherwise that of
 * the options; otherwise any port of the cluster's address. */
static void add_listen(struct local_daemon *d, const struct local *l,
                       const struct program_conf *conf, const char *option)
{
    const struct local_settings *s = &l->settings;
    const char *old = local_daemon_address(local_daemon_find(&l->cluster.doc, d->name));
    bool chosen = hl_conf_is_set(&conf->conf, option);
    bool bare = s->address[0] != '[' && strchr(s->address, ':') != NULL; /* IPv6 */
    if (old[0] != '\0' && (l->warm || !chosen))
        add_flag(d, "--listen", "%s", old);
    else if (!chosen && !wants_ports(l, conf))
        add_flag(d, "--listen", "unix:%s/" LOCAL_RUN "/%s.sock", l->opts->state, d->name);
    else if (!chosen && !s->address_given && conf->planes.management[0] != '\0')
        add_flag(d, "--listen", ":0");
    else if (!chosen)
        add_flag(d, "--listen", bare ? "[%s]:0" : "%s:0", s->address);
}

/* The same for data addresses, whose default is any port of their network, or none. `old`: where
 * the daemon served before, "" = nowhere. */
static void add_port(struct local_daemon *d, const struct local *l, const struct program_conf *conf,
                     const char *option, const char *flag, const char *old, const char *network)
{
    if (old[0] != '\0' && (l->warm || !hl_conf_is_set(&conf->conf, option)))
        add_flag(d, flag, "%s", old);
    else if (!hl_conf_is_set(&conf->conf, option) && !wants_ports(l, conf) && network[0] == '\0')
        add_flag(d, flag, "%s", "");
}

/* L3 gets the port of metrics.listen, the Controller the next one, and the nodes those after it. */
static void add_metrics(struct local_daemon *d, const struct program_conf *conf, int index)
{
    struct hl_host_port x;
    char text[HL_HOST_PORT_MAX];
    if (hl_host_port_split(conf->daemon.metrics_listen, &x) != HL_OK)
        return;
    hl_host_port_format(x.host, x.port > 0 ? x.port + (unsigned)index : 0, text);
    add_flag(d, "--metrics-listen", "%s", text);
}

/* Pods can't read a file of this machine: their secret comes from the options, or they have
 * none. */
bool local_wants_secret(const struct local *l)
{
    return wants_ports(l, &l->settings.controller) && !l->settings.kubernetes &&
           l->settings.controller.auth.secret_file[0] == '\0';
}

static void add_secret(struct local_daemon *d, const struct local *l)
{
    const char *file = l->cluster.doc.secret_file;
    if (file != NULL && file[0] != '\0')
        add_flag(d, "--auth-secret-file", "%s", file);
}

static void describe_l3(const struct local *l, struct local_daemon *d)
{
    const struct program_conf *conf = &l->settings.l3;
    d->program = "helios-l3d";
    snprintf(d->name, sizeof(d->name), "l3d");
    snprintf(d->fills, sizeof(d->fills), "%s", l->pool);
    add_given(d, l, HL_L3D);
    add_flag(d, "--pool", "%s", l->pool);
    if (!hl_conf_is_set(&conf->conf, "l3.socket"))
        add_flag(d, "--socket", "%s/" LOCAL_RUN "/l3.sock", l->opts->state);
    add_listen(d, l, conf, "l3.listen");
    const struct hl_api_local_daemon *before = local_daemon_find(&l->cluster.doc, d->name);
    add_port(d, l, conf, "l3.data_listen", "--data-listen",
             before != NULL ? or_empty(before->data_address) : "", conf->planes.backbone);
}

static void describe_controller(const struct local *l, struct local_daemon *d)
{
    const struct program_conf *conf = &l->settings.controller;
    d->program = "helios-controller";
    snprintf(d->name, sizeof(d->name), "controllerd");
    add_given(d, l, HL_CONTROLLER);
    add_flag(d, "--state", "%s/controller", l->opts->state);
    add_flag(d, "--l3", "%s", or_empty(l->cluster.doc.l3));
    add_listen(d, l, conf, "controller.listen");
}

static void describe_agent(const struct local *l, int node, struct local_daemon *d)
{
    const struct local_settings *s = &l->settings;
    const struct program_conf *conf = &s->agent;
    d->program = "helios-agent";
    snprintf(d->name, sizeof(d->name), "node-%d", node);
    local_name_l2(l->pool, d->name, d->fills, sizeof(d->fills));
    add_given(d, l, HL_AGENT);
    if (!hl_conf_is_set(&conf->conf, "agent.name"))
        add_flag(d, "--name", "%s", d->name);
    add_flag(d, "--state", "%s/agents/%s", l->opts->state, d->name);
    add_flag(d, "--controller", "%s", or_empty(l->cluster.doc.controller));
    if (!hl_conf_is_set(&conf->conf, "agent.rank_address"))
        add_flag(d, "--rank-address", "127.0.0.1");
    if (conf->agent.topology[0] == '\0' && !hl_conf_is_set(&conf->conf, "agent.share")) {
        if (s->slots > 0)
            add_flag(d, "--share", "%d/%dx%d", node, s->nodes, s->slots);
        else
            add_flag(d, "--share", "%d/%d", node, s->nodes);
    }
    if (!hl_conf_is_set(&conf->conf, "agent.l2_pool"))
        add_flag(d, "--l2-pool", "%s", d->fills);
    else
        snprintf(d->fills, sizeof(d->fills), "%s", conf->agent.store.l2_pool);
    add_listen(d, l, conf, "agent.listen");
    const struct hl_api_local_daemon *before = local_daemon_find(&l->cluster.doc, d->name);
    add_port(d, l, conf, "agent.data_listen", "--data-listen",
             before != NULL ? or_empty(before->data_address) : "", conf->planes.backbone);
    add_port(d, l, conf, "agent.migrate_listen", "--migrate-listen",
             before != NULL ? or_empty(before->migrate_address) : "", conf->planes.migration);
}

hl_status local_daemon_describe(const struct local *l, int index, struct local_daemon *out)
{
    struct local_daemon d = {.argc = 1}; /* argv[0] is the program */
    const struct program_conf *conf = index == 0   ? &l->settings.l3
                                      : index == 1 ? &l->settings.controller
                                                   : &l->settings.agent;
    if (index == 0)
        describe_l3(l, &d);
    else if (index == 1)
        describe_controller(l, &d);
    else
        describe_agent(l, index - 2, &d);
    add_metrics(&d, conf, index);
    add_secret(&d, l);
    add_flag(&d, "--ready-file", "%s/%s.json", l->opts->state, d.name);
    d.argv[0] = strdup(d.program);
    if (d.failed || d.argv[0] == NULL) {
        local_daemon_fini(&d);
        return hl_fail(HL_ENOMEM, "out of memory for the arguments of %s", d.name);
    }
    *out = d;
    return HL_OK;
}

void local_daemon_fini(struct local_daemon *d)
{
    for (size_t i = 0; i < d->argc; i++)
        free(d->argv[i]);
    d->argc = 0;
}
