/* net/addr.h - "host:port" to a socket address, with a deadline on the name service.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL for text that is not an address, HL_EUNAVAIL for an unknown name,
 *          HL_ETIMEDOUT when the name service does not answer.
 * Units:   milliseconds.
 * Limits:  a host name has at most 255 bytes. The first IPv4 address of a name is taken;
 *          an IPv6 address only when it is written as such.
 */
#ifndef HL_NET_ADDR_H
#define HL_NET_ADDR_H

#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/status.h"

#define HL_ADDR_TEXT_MAX 288

struct hl_addr {
    struct sockaddr_storage sa;
    socklen_t len;
    char host[256]; /* as written by the caller, without brackets */
};

hl_status hl_addr_resolve(const char *text, int timeout_ms, struct hl_addr *out) HL_CHECK;
unsigned hl_addr_port(const struct hl_addr *a);
/* "host:port" with the host as written; `out` holds HL_ADDR_TEXT_MAX bytes. */
void hl_addr_format(const struct hl_addr *a, unsigned port, char *out);
/* Name of the network device that owns this address; "" for a wildcard and for an address that no
 * device has. */
void hl_addr_device(const struct sockaddr *sa, char out[IF_NAMESIZE]);
/* Name of the device the kernel would use to reach the address; "" when unknown. */
void hl_addr_route_device(const struct hl_addr *a, char out[IF_NAMESIZE]);
/* Fails with a sentence for the errno that bind or listen failed with. */
hl_status hl_addr_listen_failed(const char *listen, int error);
/* Why a plain TCP connection to the address fails right now: an errno, 0 when it works. */
int hl_addr_probe(const struct hl_addr *a, int timeout_ms);

#endif
