/* base/host_port.h - splits "host:port" and "[::1]:port", as people write them.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL says what is missing or wrong.
 * Units:   none.
 * Limits:  a host name has at most 255 bytes. No name is looked up.
 */
#ifndef HL_BASE_HOST_PORT_H
#define HL_BASE_HOST_PORT_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HL_HOST_PORT_MAX 264 /* bytes of the longest text, including its NUL */

struct hl_host_port {
    char host[256]; /* without brackets */
    unsigned port;  /* 0..65535 */
};

hl_status hl_host_port_split(const char *text, struct hl_host_port *out) HL_CHECK;
/* An IPv6 address gets its brackets. */
void hl_host_port_format(const char *host, unsigned port, char out[HL_HOST_PORT_MAX]);
/* The address by which others reach a server that listens at `served`. If it listens on all
 * addresses: `host` with its port; else `served` itself, even if that is not a host:port. */
void hl_host_port_reach(const char *served, const char *host, char out[HL_HOST_PORT_MAX]);

#ifdef __cplusplus
}
#endif

#endif
