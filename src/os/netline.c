#include "os/netline.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "os/file.h"

#define IB_WORD   4 /* port_rcv_data and port_xmit_data count words of 32 bits */
#define APART_NS  (HL_NS_PER_S / 2)
#define MEMORY_NS (5.0 * HL_NS_PER_S) /* shorter bursts should change no decision */

void hl_netline_init(struct hl_netline *l, const char *sys, const char *interface,
                     uint64_t bits_per_second)
{
    *l = (struct hl_netline){.sys = sys, .bits_per_second = bits_per_second};
    snprintf(l->interface, sizeof(l->interface), "%s", interface[0] != '\0' ? interface : "lo");
}

static bool counters_read(const char *dir, const char *const names[2], uint64_t scale,
                          uint64_t out[2])
{
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX + 64];
        int64_t value;
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        if (!hl_file_read_number(path, &value) || value < 0)
            return false;
        out[i] = (uint64_t)value * scale;
    }
    return true;
}

/* Finds the directory of the RDMA port behind the interface. */
static bool rdma_port(const struct hl_netline *l, char out[PATH_MAX])
{
    char path[PATH_MAX];
    int64_t port = 0; /* number on the board, from 0 */
    snprintf(path, sizeof(path), "%s/class/net/%s/dev_port", l->sys, l->interface);
    (void)hl_file_read_number(path, &port);
    snprintf(path, sizeof(path), "%s/class/net/%s/device/infiniband", l->sys, l->interface);
    DIR *d = opendir(path);
    const struct dirent *e;
    bool found = false;
    while (d != NULL && !found && (e = readdir(d)) != NULL) {
        found = e->d_name[0] != '.';
        if (found)
            snprintf(out, PATH_MAX, "%s/class/infiniband/%s/ports/%d", l->sys, e->d_name,
                     (int)port + 1);
    }
    if (d != NULL)
        closedir(d);
    return found;
}

static bool port_is_infiniband(const char *dir)
{
    char path[PATH_MAX + 64];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    snprintf(path, sizeof(path), "%s/link_layer", dir);
    return hl_file_read(path, &text) == HL_OK && text.len >= 10 &&
           strncmp(text.data, "InfiniBand", 10) == 0;
}

static bool line_bytes(const struct hl_netline *l, uint64_t out[2])
{
    static const char *const own[] = {"statistics/rx_bytes", "statistics/tx_bytes"};
    static const char *const rdma[] = {"counters/port_rcv_data", "counters/port_xmit_data"};
    char dir[PATH_MAX];
    uint64_t port[2];
    bool has_rdma = rdma_port(l, dir) && counters_read(dir, rdma, IB_WORD, port);
    if (has_rdma && port_is_infiniband(dir)) {
        memcpy(out, port, sizeof(port));
        return true;
    }
    snprintf(dir, sizeof(dir), "%s/class/net/%s", l->sys, l->interface);
    if (!counters_read(dir, own, 1, out))
        return false;
    for (int i = 0; i < 2 && has_rdma; i++)
        out[i] += port[i];
    return true;
}

/* Computes the line's utilisation since the last reading. A counter that decreased was reset, so
 * that period is unknown. */
static void line_take(struct hl_netline *l, const uint64_t now[2], uint64_t ns)
{
    if (now[0] < l->bytes[0] || now[1] < l->bytes[1])
        return;
    uint64_t in = now[0] - l->bytes[0], out = now[1] - l->bytes[1];
    double bits = 8.0 * (double)(in > out ? in : out);
    double pct = 100 * bits * HL_NS_PER_S / (double)ns / (double)l->bits_per_second;
    pct = fmin(pct, 100);
    double weight = l->known ? (double)ns / ((double)ns + MEMORY_NS) : 1;
    l->busy_pct += weight * (pct - l->busy_pct);
    l->known = true;
}

double hl_netline_busy_pct(struct hl_netline *l, uint64_t now_ns)
{
    uint64_t now[2];
    if (l->bits_per_second == 0)
        return -1;
    if (l->read_ns == 0 || now_ns - l->read_ns >= APART_NS) {
        if (!line_bytes(l, now)) {
            l->known = false;
            l->read_ns = 0;
            l->busy_pct = 0;
            return -1;
        }
        if (l->read_ns != 0)
            line_take(l, now, now_ns - l->read_ns);
        memcpy(l->bytes, now, sizeof(now));
        l->read_ns = now_ns;
    }
    return l->known ? l->busy_pct : -1;
}
