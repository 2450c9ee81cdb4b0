#include "os/netif.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "os/file.h"

/* An address as bytes, so that matching a network compares leading bits. */
struct bits {
    int family; /* 0 = none */
    unsigned char byte[16];
    unsigned prefix; /* a network's prefix length; all bits for an address */
};

static unsigned family_bits(int family)
{
    return family == AF_INET ? 32 : 128;
}

static bool parse_bits(const char *text, struct bits *out)
{
    char address[64];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : strlen(text);
    if (n >= sizeof(address))
        return false;
    memcpy(address, text, n);
    address[n] = '\0';
    struct bits b = {0};
    if (inet_pton(AF_INET, address, b.byte) == 1)
        b.family = AF_INET;
    else if (inet_pton(AF_INET6, address, b.byte) == 1)
        b.family = AF_INET6;
    else
        return false;
    b.prefix = family_bits(b.family);
    if (slash) {
        char *end;
        unsigned long prefix = strtoul(slash + 1, &end, 10);
        if (end == slash + 1 || *end || slash[1] == '-' || slash[1] == '+' || prefix > b.prefix)
            return false;
        b.prefix = (unsigned)prefix;
    }
    *out = b;
    return true;
}

static struct bits bits_of(const struct sockaddr *sa)
{
    struct bits b = {0};
    if (sa && sa->sa_family == AF_INET)
        memcpy(b.byte, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    else if (sa && sa->sa_family == AF_INET6)
        memcpy(b.byte, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
    else
        return b;
    b.family = sa->sa_family;
    b.prefix = family_bits(b.family);
    return b;
}

static bool bits_within(const struct bits *address, const struct bits *network)
{
    if (address->family != network->family)
        return false;
    for (unsigned i = 0; i < network->prefix; i++)
        if ((address->byte[i / 8] ^ network->byte[i / 8]) >> (7 - i % 8) & 1)
            return false;
    return true;
}

static unsigned prefix_of(const struct ifaddrs *i)
{
    struct bits mask = bits_of(i->ifa_netmask);
    unsigned n = 0;
    while (n < mask.prefix && mask.byte[n / 8] >> (7 - n % 8) & 1)
        n++;
    return n;
}

static bool is_usable(const struct ifaddrs *i)
{
    struct bits b = bits_of(i->ifa_addr);
    return (i->ifa_flags & IFF_UP) && b.family &&
           !(b.family == AF_INET6 &&
             IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)i->ifa_addr)->sin6_addr));
}

static void fill_netif(const char *name, const struct bits *address, struct hl_netif *out)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->name, name, strnlen(name, sizeof(out->name) - 1));
    out->v6 = address->family == AF_INET6;
    inet_ntop(address->family, address->byte, out->address, sizeof(out->address));
}

/* "lo 127.0.0.1/8, eth0 10.0.0.7/24" */
static void list_usable(const struct ifaddrs *all, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct hl_netif n;
        if (!is_usable(i))
            continue;
        struct bits b = bits_of(i->ifa_addr);
        fill_netif(i->ifa_name, &b, &n);
        int len = snprintf(out + at, cap - at, "%s%s %s/%u", at ? ", " : "", n.name, n.address,
                           prefix_of(i));
        if (len < 0 || (size_t)len >= cap - at)
            break;
        at += (size_t)len;
    }
}

/* Finds the first interface that matches; loopback has every address of its network. */
static bool find_netif(const struct ifaddrs *all, const char *want, const struct bits *bits,
                       bool is_net, int family, struct hl_netif *out)
{
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        struct bits have = bits_of(i->ifa_addr);
        if (!is_usable(i) || have.family != family)
            continue;
        struct bits net = have;
        net.prefix = i->ifa_flags & IFF_LOOPBACK ? prefix_of(i) : have.prefix;
        bool fits = !bits->family ? strcmp(i->ifa_name, want) == 0
                    : is_net      ? bits_within(&have, bits)
                                  : bits_within(bits, &net);
        if (fits) {
            fill_netif(i->ifa_name, bits->family && !is_net ? bits : &have, out);
            return true;
        }
    }
    return false;
}

hl_status hl_netif_find(const char *want, struct hl_netif *out)
{
    struct bits bits = {0};
    struct ifaddrs *all;
    bool is_net = strchr(want, '/') != NULL;
    if (!parse_bits(want, &bits) && (is_net || !*want || strlen(want) >= IF_NAMESIZE))
        return hl_fail(HL_EINVAL,
                       "'%.64s' is neither an address (10.0.0.7), a network (10.0.0.0/24) nor the "
                       "name of an interface",
                       want);
    if (getifaddrs(&all) != 0)
        return hl_fail(HL_EIO, "list the network interfaces: %m");
    bool found = find_netif(all, want, &bits, is_net, AF_INET, out) ||
                 find_netif(all, want, &bits, is_net, AF_INET6, out);
    hl_status st = HL_OK;
    if (!found) {
        char there[640];
        list_usable(all, there, sizeof(there));
        st = hl_fail(HL_ENOENT, "%s %s; this host has %s",
                     is_net        ? "no interface that is up has an address in"
                     : bits.family ? "no interface that is up has the address"
                                   : "no interface that is up and has an address is called",
                     want, there[0] ? there : "none at all");
    }
    freeifaddrs(all);
    return st;
}

uint64_t hl_netif_rate(const char *sys, const char *name)
{
    char path[512];
    int64_t mbit = 0;
    snprintf(path, sizeof(path), "%s/class/net/%s/speed", sys, name);
    return hl_file_read_number(path, &mbit) && mbit > 0 && mbit < 100000000
               ? (uint64_t)mbit * 1000000u
               : 0;
}
