#include "hw/load/nic_load.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "os/file.h"

#define IB_WORD 4 /* port_rcv_data and port_xmit_data count words of 32 bits */

struct nic_scan {
    struct hl_arena *arena;
    struct hl_api_nic_load_list list;
    uint32_t left_out;
};

static uint64_t port_counter(const char *dir, const char *name)
{
    char path[PATH_MAX];
    int64_t value;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return hl_file_read_number(path, &value) && value > 0 ? (uint64_t)value : 0;
}

static bool file_begins(const char *dir, const char *name, const char *with)
{
    char path[PATH_MAX];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return hl_file_read(path, &text) == HL_OK && text.len > 0 &&
           strncmp(text.data, with, strlen(with)) == 0;
}

static struct hl_api_nic_load *scan_add(struct nic_scan *s, const char *name, const char *kind)
{
    if (s->list.count == HL_NICS_MAX) {
        s->left_out++;
        return NULL;
    }
    struct hl_api_nic_load *nic = &s->list.items[s->list.count];
    *nic = (struct hl_api_nic_load){.name = hl_arena_strdup(s->arena, name), .kind = kind};
    s->list.count++;
    return nic;
}

/* boards: scans interfaces that have a device; otherwise those without one (bridges, tunnels). */
static void scan_net(struct nic_scan *s, const char *sys, bool boards)
{
    char dir[PATH_MAX - 256];
    snprintf(dir, sizeof(dir), "%s/class/net", sys);
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char port[PATH_MAX - 64], path[PATH_MAX];
        if (e->d_name[0] == '.' || strcmp(e->d_name, "lo") == 0 || strlen(e->d_name) > 60)
            continue;
        snprintf(port, sizeof(port), "%s/%.60s", dir, e->d_name);
        snprintf(path, sizeof(path), "%s/device", port);
        if ((access(path, F_OK) == 0) != boards)
            continue;
        struct hl_api_nic_load *nic = scan_add(s, e->d_name, boards ? "ethernet" : "virtual");
        if (nic == NULL)
            continue;
        nic->up = file_begins(port, "operstate", "up");
        nic->rx_bytes = port_counter(port, "statistics/rx_bytes");
        nic->tx_bytes = port_counter(port, "statistics/tx_bytes");
        nic->errors =
            port_counter(port, "statistics/rx_errors") + port_counter(port, "statistics/tx_errors");
    }
    if (d != NULL)
        closedir(d);
}

static void scan_ports(struct nic_scan *s, const char *dir, const char *board)
{
    char ports[PATH_MAX - 256];
    snprintf(ports, sizeof(ports), "%.1500s/%.60s/ports", dir, board);
    DIR *d = opendir(ports);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char port[PATH_MAX - 64], name[64];
        if (e->d_name[0] == '.')
            continue;
        snprintf(port, sizeof(port), "%s/%.60s", ports, e->d_name);
        snprintf(name, sizeof(name), "%.50s:%.10s", board, e->d_name);
        struct hl_api_nic_load *nic = scan_add(s, name, "infiniband");
        if (nic == NULL)
            continue;
        nic->up = file_begins(port, "state", "4:"); /* "4: ACTIVE" */
        nic->rx_bytes = port_counter(port, "counters/port_rcv_data") * IB_WORD;
        nic->tx_bytes = port_counter(port, "counters/port_xmit_data") * IB_WORD;
        nic->errors = port_counter(port, "counters/port_rcv_errors") +
                      port_counter(port, "counters/symbol_error");
    }
    if (d != NULL)
        closedir(d);
}

static void scan_infiniband(struct nic_scan *s, const char *sys)
{
    char dir[PATH_MAX - 256];
    snprintf(dir, sizeof(dir), "%s/class/infiniband", sys);
    DIR *d = opendir(dir);
    const struct dirent *e;
    while (d != NULL && (e = readdir(d)) != NULL)
        if (e->d_name[0] != '.')
            scan_ports(s, dir, e->d_name);
    if (d != NULL)
        closedir(d);
}

/* A counter that went back was reset, so its rate is unknown. */
static double counter_rate(uint64_t before, uint64_t now, uint64_t ns)
{
    return now >= before && ns > 0 ? (double)(now - before) * 1e9 / (double)ns : 0;
}

static void probe_take(struct hl_nic_probe *p, uint64_t now_ns, struct hl_api_nic_load_list *list)
{
    uint64_t ns = p->read_ns != 0 ? now_ns - p->read_ns : 0;
    for (size_t i = 0; i < list->count; i++) {
        struct hl_api_nic_load *nic = &list->items[i];
        for (size_t k = 0; k < p->count; k++) {
            if (strcmp(p->before[k].name, nic->name) != 0)
                continue;
            nic->rx_bytes_per_second = counter_rate(p->before[k].rx, nic->rx_bytes, ns);
            nic->tx_bytes_per_second = counter_rate(p->before[k].tx, nic->tx_bytes, ns);
        }
    }
    p->count = list->count;
    p->read_ns = now_ns;
    for (size_t i = 0; i < list->count; i++) {
        snprintf(p->before[i].name, sizeof(p->before[i].name), "%s", list->items[i].name);
        p->before[i].rx = list->items[i].rx_bytes;
        p->before[i].tx = list->items[i].tx_bytes;
    }
}

hl_status hl_nics_read(struct hl_nic_probe *p, const char *sys, uint64_t now_ns,
                       struct hl_arena *arena, struct hl_api_nic_load_list *out, uint32_t *left_out)
{
    struct nic_scan s = {.arena = arena};
    s.list.items = hl_arena_array(arena, HL_NICS_MAX, sizeof(*s.list.items));
    if (s.list.items != NULL) {
        scan_infiniband(&s, sys);
        scan_net(&s, sys, true);
        scan_net(&s, sys, false);
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing network ports");
    probe_take(p, now_ns, &s.list);
    *out = s.list;
    *left_out += s.left_out;
    return HL_OK;
}
