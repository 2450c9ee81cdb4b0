/* os/netif.h - the network interfaces of this host: finds the one that is meant, and its line rate.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL (neither address, network nor name), HL_ENOENT (nothing here matches; the text
 *          lists what exists).
 * Units:   bits per second.
 * Limits:  only interfaces that are up; IPv4 is preferred to IPv6 if a name or a network allows
 *          both.
 */
#ifndef HL_OS_NETIF_H
#define HL_OS_NETIF_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define HL_NETIF_ADDRESS 46 /* INET6_ADDRSTRLEN */

struct hl_netif {
    char name[IF_NAMESIZE];
    char address[HL_NETIF_ADDRESS];
    bool v6;
};

/* `want`: an address of this host, a network in CIDR form (the first interface that has an address
 * in it), or the name of an interface. */
hl_status hl_netif_find(const char *want, struct hl_netif *out) HL_CHECK;
/* The line rate according to the driver; 0 = unknown. `sys` is "/sys" outside of tests. */
uint64_t hl_netif_rate(const char *sys, const char *name);

#endif
