#include "conf/planes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "conf/options_private.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_plane_conf, field)
static const struct hl_option plane_options[] = {
    {"plane.backbone", "--plane-backbone", "",
     "This host on the data backbone (reads and writes of shards): an address, a network in "
     "CIDR form or an interface; empty for the loopback.",
     HL_OPT_STRING, 0, 0, NULL, AT(backbone)},
    {"plane.backbone_rate", "--plane-backbone-rate", "0",
     "Line rate of its interface, such as 100Gbit; 0 to ask the driver.",
     HL_OPT_RATE, 0, 0, NULL, AT(backbone_rate)},
    {"plane.migration", "--plane-migration", "",
     "This host on the migration network (L2 to L2, ZeroMQ): an address, a network in CIDR form or "
     "an interface; empty for the loopback.",
     HL_OPT_STRING, 0, 0, NULL, AT(migration)},
    {"plane.migration_rate", "--plane-migration-rate", "0",
     "Line rate of its interface, such as 200Gbit; 0 to ask the driver.",
     HL_OPT_RATE, 0, 0, NULL, AT(migration_rate)},
    {"plane.management", "--plane-management", "",
     "This host on the management network (RPC, heartbeats, metrics): an address, a network in "
     "CIDR form or an interface; empty for the loopback.",
     HL_OPT_STRING, 0, 0, NULL, AT(management)},
    {"plane.management_rate", "--plane-management-rate", "0",
     "Line rate of its interface, such as 2.5Gbit; 0 to ask the driver.",
     HL_OPT_RATE, 0, 0, NULL, AT(management_rate)},
};
/* clang-format on */

const struct hl_option_rows hl_plane_rows = HL_OPTION_ROWS(plane_options);

hl_status hl_plane_find(const struct hl_plane_conf *conf, enum hl_plane plane,
                        struct hl_plane_place *out)
{
    const char *want = plane == HL_PLANE_BACKBONE    ? conf->backbone
                       : plane == HL_PLANE_MIGRATION ? conf->migration
                                                     : conf->management;
    struct hl_plane_place p = {.rate = plane == HL_PLANE_BACKBONE    ? conf->backbone_rate
                                       : plane == HL_PLANE_MIGRATION ? conf->migration_rate
                                                                     : conf->management_rate};
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

hl_status hl_plane_resolve(const struct hl_plane_conf *conf, enum hl_plane plane,
                           const char *listen, char *out)
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

/* "no host" in a listen option is replaced by the network's own address. */
static hl_status complete_listen(const struct hl_plane_conf *planes, const struct hl_option *row,
                                 void *values)
{
    char real[HL_PLANE_LISTEN];
    HL_AUTO(hl_freep) char *listen = hl_option_show(row, values);
    if (listen == NULL)
        return hl_fail(HL_ENOMEM, "out of memory completing %s", row->name);
    hl_status st = hl_plane_resolve(planes, (enum hl_plane)row->min, listen, real);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", row->name);
    return hl_option_set(row, values, real);
}

static hl_status announce_plane(const struct hl_plane_conf *conf, enum hl_plane plane)
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

hl_status hl_planes_apply(struct hl_conf *conf, const struct hl_plane_conf *planes)
{
    for (size_t i = 0; i < conf->row_count; i++)
        if (conf->rows[i].kind == HL_OPT_LISTEN && (conf->rows[i].programs & conf->program))
            HL_TRY(complete_listen(planes, &conf->rows[i], conf->values));
    for (int p = HL_PLANE_BACKBONE; p < HL_PLANE_COUNT; p++)
        HL_TRY(announce_plane(planes, p));
    return HL_OK;
}
