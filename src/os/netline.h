/* os/netline.h - how busy the link of one network interface is, counting the bytes of all
 * processes.
 *
 * RDMA traffic bypasses the interface's own counters. For an Ethernet board its bytes are added; an
 * InfiniBand port's counters include those of the interface, so only they are used.
 *
 * Owns:    the counters of the previous reading.
 * Threads: one at a time.
 * Errors:  none: anything that the machine does not tell is unknown.
 * Units:   bits per second, percent, ns of a monotonic clock.
 * Limits:  one board and port behind an interface.
 */
#ifndef HL_OS_NETLINE_H
#define HL_OS_NETLINE_H

#include <net/if.h>
#include <stdbool.h>
#include <stdint.h>

struct hl_netline {
    const char *sys; /* "/sys"; borrowed */
    char interface[IF_NAMESIZE];
    uint64_t bits_per_second; /* 0 = unknown, and so is how busy it is */
    uint64_t bytes[2], read_ns;
    double busy_pct;
    bool known; /* busy_pct is known */
};

/* interface "": the loopback. */
void hl_netline_init(struct hl_netline *l, const char *sys, const char *interface,
                     uint64_t bits_per_second);
/* The busier direction over the last seconds, 0 to 100, the newest with the most weight; -1: not
 * known (yet). Readings of the counters are at least half a second apart; in between the last
 * result is returned. */
double hl_netline_busy_pct(struct hl_netline *l, uint64_t now_ns);

#endif
