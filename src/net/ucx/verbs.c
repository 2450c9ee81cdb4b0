/* net/ucx/verbs.c - whether this process can use the RDMA adapters here, and which ones.
 *
 * If UCX may not lock memory, or the adapter is in another network than the address, it retries for
 * ever. So both are checked before UCX is used. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "net/ucx/ucx_private.h"

#define SYS    "/sys"
#define SYS_IB SYS "/class/infiniband"
/* UCX registers about 30 MiB before the first message; with a limit of 8 MiB it hangs. */
#define LOCKED_BY_UCX (64ull << 20)

static void read_word(const char *path, char *out, size_t cap)
{
    FILE *f = fopen(path, "r");
    out[0] = '\0';
    if (f == NULL)
        return;
    if (fgets(out, (int)cap, f) != NULL)
        out[strcspn(out, "\n")] = '\0';
    fclose(f);
}

/* Returns the entries of a directory one by one; NULL at the end. */
static const char *next_name(DIR *dir)
{
    const struct dirent *e = dir != NULL ? readdir(dir) : NULL;
    while (e != NULL && e->d_name[0] == '.')
        e = readdir(dir);
    return e != NULL ? e->d_name : NULL;
}

bool hl_ucx_verbs_present(void)
{
    DIR *dir = opendir(SYS_IB);
    bool found = next_name(dir) != NULL;
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* Ethernet: every GID of a port names its network device, including VLANs and bonds. */
static bool port_serves(const char *sys, const char *rdma, const char *port, const char *device)
{
    char path[PATH_MAX], name[64];
    bool found = false;
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%s/gid_attrs/ndevs", sys, rdma,
             port);
    DIR *dir = opendir(path);
    for (const char *gid = next_name(dir); gid != NULL && !found; gid = next_name(dir)) {
        snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports/%s/gid_attrs/ndevs/%s", sys,
                 rdma, port, gid);
        read_word(path, name, sizeof(name));
        found = strcmp(name, device) == 0;
    }
    if (dir != NULL)
        closedir(dir);
    if (found)
        return true;
    /* IP over InfiniBand: the network device is below the adapter in sysfs. */
    snprintf(path, sizeof(path), "%s/class/net/%s/device/infiniband/%s", sys, device, rdma);
    bool below = access(path, F_OK) == 0;
    snprintf(path, sizeof(path), "%s/class/net/%s/dev_port", sys, device);
    read_word(path, name, sizeof(name));
    uint64_t index = 0, number = 0; /* without the file it is the first port */
    return below && hl_parse_number(port, UINT16_MAX, &number) &&
           (name[0] == '\0' || hl_parse_number(name, UINT16_MAX, &index)) && index + 1 == number;
}

static void add_ports(const char *sys, const char *rdma, const char *device, char *names,
                      size_t cap)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/class/infiniband/%s/ports", sys, rdma);
    DIR *dir = opendir(path);
    for (const char *port = next_name(dir); port != NULL; port = next_name(dir)) {
        size_t used = strlen(names);
        if (port_serves(sys, rdma, port, device))
            snprintf(names + used, cap - used, ",%s:%s", rdma, port);
    }
    if (dir != NULL)
        closedir(dir);
}

bool hl_ucx_verbs_devices(const char *sys, const char *device, char *devices, size_t cap)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/class/infiniband", sys);
    snprintf(devices, cap, "%s", device);
    DIR *dir = opendir(path);
    for (const char *rdma = next_name(dir); rdma != NULL; rdma = next_name(dir))
        add_ports(sys, rdma, device, devices, cap);
    if (dir != NULL)
        closedir(dir);
    return strcmp(devices, device) != 0;
}

bool hl_ucx_verbs_soft(const char *sys)
{
    char path[PATH_MAX];
    bool found = false;
    snprintf(path, sizeof(path), "%s/class/infiniband", sys);
    DIR *dir = opendir(path);
    for (const char *rdma = next_name(dir); rdma != NULL && !found; rdma = next_name(dir)) {
        snprintf(path, sizeof(path), "%s/class/infiniband/%s/parent", sys, rdma);
        found = access(path, F_OK) == 0;
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* Asks the kernel, which knows limits and privileges; no page is touched. */
static bool may_lock(size_t len)
{
    void *p = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return false;
    bool yes = mlock2(p, len, MLOCK_ONFAULT) == 0;
    munmap(p, len);
    return yes;
}

static bool operator_forbids(void)
{
    const char *tls = getenv("HELIOS_UCX_TLS");
    return tls != NULL && strstr(tls, "rc") == NULL && strstr(tls, "ib") == NULL &&
           strstr(tls, "all") == NULL;
}

static void warn_once(size_t pinned)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    char size[32];
    if (!atomic_flag_test_and_set(&warned))
        hl_warn("net: there is an RDMA adapter, but this process may not lock %s of memory for it; "
                "TCP is used. Raise the limit (ulimit -l, LimitMEMLOCK=)",
                hl_format_bytes(pinned, size, sizeof(size)));
}

bool hl_ucx_verbs_usable(const char *device, size_t pinned, char *devices, size_t cap)
{
    devices[0] = '\0';
    if (!hl_ucx_verbs_present() || operator_forbids())
        return false;
    if (device[0] != '\0' && !hl_ucx_verbs_devices(SYS, device, devices, cap)) {
        hl_debug("net: no RDMA adapter belongs to %s: TCP is used there", device);
        return false;
    }
    if (may_lock(pinned + LOCKED_BY_UCX))
        return true;
    warn_once(pinned + LOCKED_BY_UCX);
    return false;
}

/* rc_mlx5 is the faster of the two, but UCX warns if it is named and doesn't exist. */
const char *hl_ucx_verbs_transports(void)
{
    char path[768], target[512];
    bool mlx5 = false;
    DIR *dir = opendir(SYS_IB);
    for (const char *rdma = next_name(dir); rdma != NULL; rdma = next_name(dir)) {
        snprintf(path, sizeof(path), SYS_IB "/%s/device/driver", rdma);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        mlx5 |= strstr(target, "mlx5_core") != NULL;
    }
    if (dir != NULL)
        closedir(dir);
    /* The connection manager makes connections, so ud, which UCX would otherwise add, is not
     * needed. */
    return mlx5 ? "rc_mlx5,rc_verbs" : "rc_verbs";
}
