/* conf/planes.h - the three networks as configured: the address of this process on each.
 *
 * A listen address without a host (":7402") gets the address on the network that the option belongs
 * to. A network that is not configured is the loopback, 127.0.0.1.
 *
 * Owns:    nothing.
 * Threads: one at a time, before the daemon serves.
 * Errors:  HL_ENOENT, HL_EINVAL with the option's name and what this host has instead.
 * Units:   bits per second.
 * Limits:  one address per network and process.
 */
#ifndef HL_CONF_PLANES_H
#define HL_CONF_PLANES_H

#include "base/plane.h"
#include "conf/conf.h"
#include "os/netif.h"

#define HL_PLANE_LISTEN 300

/* plane.* */
struct hl_plane_conf {
    const char *backbone; /* address, CIDR or interface; "" = loopback */
    uint64_t backbone_rate;
    const char *migration;
    uint64_t migration_rate;
    const char *management;
    uint64_t management_rate;
};

extern const struct hl_option_rows hl_plane_rows;

struct hl_plane_place {
    struct hl_netif at; /* name "" = not configured; the address is then 127.0.0.1 */
    uint64_t rate;      /* from the option, otherwise from the driver; 0 = unknown */
};

/* Only for a plane that is a network. */
hl_status hl_plane_find(const struct hl_plane_conf *conf, enum hl_plane plane,
                        struct hl_plane_place *out) HL_CHECK;
/* Writes a listen option as "host:port" to out[HL_PLANE_LISTEN]; "" and "unix:/path" are copied. */
hl_status hl_plane_resolve(const struct hl_plane_conf *conf, enum hl_plane plane,
                           const char *listen, char *out) HL_CHECK;
/* Called once by a daemon, after hl_conf_load: completes every HL_OPT_LISTEN of its program in
 * place, and gives the counters the address and line rate of each network. */
hl_status hl_planes_apply(struct hl_conf *conf, const struct hl_plane_conf *planes) HL_CHECK;

#endif
