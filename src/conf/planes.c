#include "conf/planes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

hl_status hl_plane_find(const struct hl_conf *conf, enum hl_plane plane, struct hl_plane_place *out)
{
    const char *want = plane == HL_PLANE_BACKBONE    ? conf->plane_backbone
                       : plane == HL_PLANE_MIGRATION ? conf->plane_migration
                                                     : conf->plane_management;
    struct hl_plane_place p = {.rate = plane == HL_PLANE_BACKBONE    ? conf->plane_backbone_rate
                                       : plane == HL_PLANE_MIGRATION ? conf->plane_migration_rate
                                                                     : conf->plane_management_rate};
    if (want[0] == '\0') {
        memcpy(p.at.address, "127.0.0.1", sizeof("127.0.0.1"));
    } else {
        hl_status st = hl_netif_find(want, &p.at);
        if (st != HL_OK)
            return hl_fail_prefix(st, "plane.%s: ", hl_plane_name(plane));
        if (p.rate == 0)
            p.rate = hl_netif_rate("/sys", p.at.name);
    }
    *out = p;
    return HL_OK;
}

hl_status hl_plane_resolve(const struct hl_conf *conf, enum hl_plane plane, const char *listen,
                           char *out)
{
    struct hl_plane_place p;
    int n;
    if (listen[0] == ':') {
        HL_TRY(hl_plane_find(conf, plane, &p));
        n = snprintf(out, HL_PLANE_LISTEN, p.at.v6 ? "[%s]%s" : "%s%s", p.at.address, listen);
    } else {
        n = snprintf(out, HL_PLANE_LISTEN, "%s", listen);
    }
    if (n < 0 || n >= HL_PLANE_LISTEN)
        return hl_fail(HL_EINVAL, "address \"%.64s...\" is longer than %d bytes", listen,
                       HL_PLANE_LISTEN - 1);
    return HL_OK;
}

static hl_status complete_listen(struct hl_conf *conf, enum hl_plane plane, const char *option,
                                 char **listen)
{
    char real[HL_PLANE_LISTEN];
    hl_status st = hl_plane_resolve(conf, plane, *listen, real);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", option);
    char *copy = strdup(real);
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "%s", option);
    free(*listen);
    *listen = copy;
    return HL_OK;
}

static hl_status announce_plane(const struct hl_conf *conf, enum hl_plane plane)
{
    struct hl_plane_place p;
    HL_TRY(hl_plane_find(conf, plane, &p));
    hl_plane_set_rate(plane, p.rate);
    hl_plane_set_place(plane, p.at.address, p.at.name);
    if (p.at.name[0] != '\0')
        hl_info("plane %s address=%s interface=%s bits_per_second=%llu", hl_plane_name(plane),
                p.at.address, p.at.name, (unsigned long long)p.rate);
    return HL_OK;
}

hl_status hl_planes_apply(struct hl_conf *conf)
{
    const struct {
        enum hl_program program;
        enum hl_plane plane;
        const char *option;
        char **listen;
    } rows[] = {
        {HL_CONTROLLER, HL_PLANE_MANAGEMENT, "controller.listen", &conf->controller_listen},
        {HL_L3D, HL_PLANE_MANAGEMENT, "l3.listen", &conf->l3_listen},
        {HL_L3D, HL_PLANE_BACKBONE, "l3.data_listen", &conf->l3_data_listen},
        {HL_AGENT, HL_PLANE_MANAGEMENT, "agent.listen", &conf->agent_listen},
        {HL_AGENT, HL_PLANE_BACKBONE, "agent.data_listen", &conf->agent_data_listen},
        {HL_AGENT, HL_PLANE_MIGRATION, "agent.migrate_listen", &conf->agent_migrate_listen},
        {HL_DAEMONS, HL_PLANE_MANAGEMENT, "metrics.listen", &conf->metrics_listen},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        if (rows[i].program & conf->program)
            HL_TRY(complete_listen(conf, rows[i].plane, rows[i].option, rows[i].listen));
    for (int p = HL_PLANE_BACKBONE; p < HL_PLANE_COUNT; p++)
        HL_TRY(announce_plane(conf, p));
    return HL_OK;
}
