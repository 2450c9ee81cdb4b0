#include "base/host_port.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

hl_status hl_host_port_split(const char *text, struct hl_host_port *out)
{
    const char *colon = strrchr(text, ':');
    const char *begin = text, *end = colon;
    if (colon == NULL || colon[1] == '\0')
        return hl_fail(HL_EINVAL, "address \"%.300s\" has no port; write \"host:port\"", text);
    if (*begin == '[') {
        if (end == begin + 1 || end[-1] != ']')
            return hl_fail(HL_EINVAL, "address \"%.300s\": \"[\" without \"]:\"", text);
        begin++;
        end--;
    } else if (memchr(begin, ':', (size_t)(end - begin)) != NULL) {
        return hl_fail(HL_EINVAL, "address \"%.300s\": write an IPv6 address as \"[::1]:port\"",
                       text);
    }
    size_t len = (size_t)(end - begin);
    if (len == 0 || len >= sizeof(out->host))
        return hl_fail(HL_EINVAL, "address \"%.300s\" has no host or a too long one", text);
    size_t digits = strspn(colon + 1, "0123456789");
    unsigned long port = digits <= 5 ? strtoul(colon + 1, NULL, 10) : 65536;
    if (digits == 0 || colon[1 + digits] != '\0' || port > 65535)
        return hl_fail(HL_EINVAL, "address \"%.300s\": the port is not a number 0..65535", text);
    memcpy(out->host, begin, len);
    out->host[len] = '\0';
    out->port = (unsigned)port;
    return HL_OK;
}

void hl_host_port_format(const char *host, unsigned port, char out[HL_HOST_PORT_MAX])
{
    const char *form = strchr(host, ':') != NULL ? "[%.255s]:%u" : "%.255s:%u";
    snprintf(out, HL_HOST_PORT_MAX, form, host, port);
}

void hl_host_port_reach(const char *served, const char *host, char out[HL_HOST_PORT_MAX])
{
    static const char *const wildcards[] = {"0.0.0.0:", "[::]:", "*:"};
    snprintf(out, HL_HOST_PORT_MAX, "%s", served);
    for (size_t i = 0; i < sizeof(wildcards) / sizeof(wildcards[0]); i++) {
        struct hl_host_port at;
        if (strncmp(served, wildcards[i], strlen(wildcards[i])) == 0 &&
            hl_host_port_split(served, &at) == HL_OK)
            hl_host_port_format(host, at.port, out);
    }
}
