/* What only the node knows about itself: the address at which others reach it, and where Python
 * finds Helios. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "base/host_port.h"
#include "base/log.h"
#include "os/file.h"
#include "rpc/l3_calls.h"

#define L3_ASK_MS 1000
#define GPUS_MAX  256
#define PORTS_MAX 8 /* per RDMA device */

/* Connecting a datagram socket sends nothing, but selects the outgoing interface. */
static bool local_address(const char *peer, struct sockaddr_storage *out, socklen_t *len)
{
    struct hl_host_port x;
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    bool found = false;
    if (strncmp(peer, "unix:", 5) == 0 || hl_host_port_split(peer, &x) != HL_OK)
        return false;
    snprintf(port, sizeof(port), "%u", x.port);
    if (getaddrinfo(x.host, port, &hints, &list) != 0)
        return false;
    for (struct addrinfo *ai = list; ai != NULL && !found; ai = ai->ai_next) {
        int fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        *len = sizeof(*out);
        found = fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) == 0 &&
                getsockname(fd, (struct sockaddr *)out, len) == 0;
        if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(list);
    return found;
}

static socklen_t size_of_family(int family)
{
    return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void find_interface(const char *address, char *out, size_t size)
{
    struct ifaddrs *list = NULL;
    out[0] = '\0';
    if (getifaddrs(&list) != 0)
        return;
    for (struct ifaddrs *i = list; i != NULL && out[0] == '\0'; i = i->ifa_next) {
        char text[NI_MAXHOST];
        if (i->ifa_addr == NULL ||
            (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6))
            continue;
        if (getnameinfo(i->ifa_addr, size_of_family(i->ifa_addr->sa_family), text, sizeof(text),
                        NULL, 0, NI_NUMERICHOST) == 0 &&
            strcmp(text, address) == 0)
            snprintf(out, size, "%s", i->ifa_name);
    }
    freeifaddrs(list);
}

/* "" when the name has no address. */
static void address_numeric(const char *host, char *out, size_t size)
{
    struct addrinfo *list = NULL;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    out[0] = '\0';
    if (getaddrinfo(host, NULL, &hints, &list) == 0 && list != NULL)
        getnameinfo(list->ai_addr, list->ai_addrlen, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST);
    if (list != NULL)
        freeaddrinfo(list);
}

void env_find_addresses(struct hl_agent *a, const char *controller, const char *wanted)
{
    struct sockaddr_storage local;
    socklen_t len;
    char *address = a->rank_address;
    size_t size = sizeof(a->rank_address);
    if (wanted[0] != '\0') {
        snprintf(address, size, "%s", wanted);
    } else if (!local_address(controller, &local, &len) ||
               getnameinfo((struct sockaddr *)&local, len, address, (socklen_t)size, NULL, 0,
                           NI_NUMERICHOST) != 0) {
        if (gethostname(address, size) != 0)
            snprintf(address, size, "127.0.0.1");
        address[size - 1] = '\0';
    }
    address_numeric(address, a->host_address, sizeof(a->host_address));
    find_interface(a->host_address, a->interface, sizeof(a->interface));
}

hl_status env_check_addresses(const char *list)
{
    while (*list != '\0') {
        char one[INET6_ADDRSTRLEN] = "";
        unsigned char raw[sizeof(struct in6_addr)];
        size_t n = strcspn(list, ",");
        if (n < sizeof(one))
            memcpy(one, list, n);
        if (inet_pton(AF_INET, one, raw) != 1 && inet_pton(AF_INET6, one, raw) != 1)
            return hl_fail(HL_EINVAL, "--device-addresses: '%.*s' is not an IP address",
                           (int)(n < 64 ? n : 64), list);
        list += n;
        if (*list == ',' && *++list == '\0')
            return hl_fail(HL_EINVAL, "--device-addresses ends with a comma");
    }
    return HL_OK;
}

static hl_status set_if_absent(struct hl_env *env, const char *key, const char *value)
{
    if (value[0] == '\0' || hl_env_get(env, key) != NULL)
        return HL_OK;
    return hl_env_set(env, key, value);
}

static hl_status set_rows(struct hl_env *env, const struct hl_option_rows *options,
                          const void *values)
{
    for (size_t i = 0; i < options->count; i++) {
        char name[80];
        HL_AUTO(hl_freep) char *text = hl_option_show(&options->rows[i], values);
        if (text == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating an environment variable");
        HL_TRY(set_if_absent(env, hl_option_env(&options->rows[i], name, sizeof(name)), text));
    }
    return HL_OK;
}

/* The options that libhelios reads. */
static hl_status set_options(const struct hl_agent *a, struct hl_env *env)
{
    HL_TRY(set_rows(env, &hl_auth_rows, a->auth));
    HL_TRY(set_rows(env, &hl_net_connect_rows, a->data));
    HL_TRY(set_rows(env, &hl_net_client_rows, a->data));
    HL_TRY(set_rows(env, &hl_read_retry_rows, a->read));
    return set_rows(env, &hl_read_timeout_rows, a->read);
}

/* Where ranks of this host put chunks that do not fit into their memory: the L3's socket, if its
 * host is this one. If L3 does not answer they use the node's store. */
static hl_status set_l3_socket(const struct hl_agent *a, struct hl_env *env)
{
    const char *l3 = hl_env_get(env, "CONTROLLER_L3_CACHE_ADDRESS");
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_l3_pool_info_results r;
    struct hl_rpc_peer *peer;
    if (l3 == NULL || l3[0] == '\0' || hl_env_get(env, "HELIOS_L3_SOCKET") != NULL)
        return HL_OK;
    if (strncmp(l3, "tcp://", 6) == 0)
        l3 += 6;
    if (hl_rpc_open(a->rpc, l3, "L3", &peer) != HL_OK)
        return HL_OK;
    hl_status st = HL_OK;
    if (hl_call_l3_pool_info(peer, NULL, L3_ASK_MS, &arena, &r) == HL_OK) {
        if (strcmp(r.pool.host_id, a->host_id) == 0)
            st = set_if_absent(env, "HELIOS_L3_SOCKET", r.pool.socket_path);
    } else {
        hl_debug("ranks don't get the path of L3's socket: %s", hl_error_text());
    }
    hl_rpc_peer_close(peer);
    return st;
}

/* ---- collective libraries on CUDA devices ---- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A full PCI address has a fixed width, so sorting the texts gives the order of the bus. */
hl_status env_find_gpus(struct hl_agent *a, const struct hl_api_slot_list *slots)
{
    const char **ids = hl_arena_array(&a->arena, GPUS_MAX, sizeof(*ids));
    size_t n = 0;
    for (size_t i = 0; ids != NULL && i < slots->count; i++)
        for (size_t k = 0; k < slots->items[i].gpus.count; k++) {
            if (n == GPUS_MAX)
                return hl_fail(HL_EINVAL, "this machine has more than %d GPUs", GPUS_MAX);
            ids[n++] = hl_arena_strdup(&a->arena, slots->items[i].gpus.items[k].id);
        }
    if (hl_arena_failed(&a->arena))
        return hl_fail(HL_ENOMEM, "out of memory numbering the GPUs");
    qsort(ids, n, sizeof(*ids), by_text);
    a->gpus = ids;
    a->gpu_count = n;
    return HL_OK;
}

/* -1: it is not a GPU of this machine. */
static int gpu_number(const struct hl_agent *a, const char *id)
{
    for (size_t i = 0; i < a->gpu_count; i++)
        if (strcmp(a->gpus[i], id) == 0)
            return (int)i;
    return -1;
}

/* The device's number in the table of chunks, which has those of all slots in order; -1: it has
 * none. */
static int table_number(const struct hl_agent *a, const char *id)
{
    int n = 0;
    for (size_t i = 0; i < a->node.slots.count; i++)
        for (size_t k = 0; k < a->node.slots.items[i].gpus.count; k++, n++)
            if (strcmp(a->node.slots.items[i].gpus.items[k].id, id) == 0)
                return n < CHUNKS_TIERS_MAX - 1 ? n : -1;
    return -1;
}

/* Writes "2,3": a number for each of the container's GPUs. False: one of them has none. */
static bool list_gpus(const struct hl_agent *a, const struct hl_container_spec *spec,
                      int (*number_of)(const struct hl_agent *, const char *), char *out,
                      size_t cap)
{
    size_t at = 0;
    out[0] = '\0';
    for (size_t i = 0; i < spec->gpu_count; i++) {
        int number = number_of(a, spec->gpus[i]);
        if (number < 0 || at + 8 > cap)
            return false;
        at += (size_t)snprintf(out + at, cap - at, "%s%d", i > 0 ? "," : "", number);
    }
    return true;
}

/* LOCAL_RANK is then an index into the container's devices, and HYBRIDPS_DEVICES says where the
 * table of chunks counts them. In an image there are no other devices. */
static hl_status set_visible(const struct hl_agent *a, struct hl_container_spec *spec)
{
    char visible[GPUS_MAX * 5], counted[GPUS_MAX * 5];
    if (a->executor->ops->image)
        return set_if_absent(&spec->env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    if (!list_gpus(a, spec, gpu_number, visible, sizeof(visible)))
        return HL_OK; /* not one of ours: the program sees whatever the driver shows */
    if (hl_env_get(&spec->env, "CUDA_VISIBLE_DEVICES") == NULL && /* else the job chooses */
        list_gpus(a, spec, table_number, counted, sizeof(counted)))
        HL_TRY(set_if_absent(&spec->env, "HYBRIDPS_DEVICES", counted));
    HL_TRY(set_if_absent(&spec->env, "CUDA_DEVICE_ORDER", "PCI_BUS_ID"));
    return set_if_absent(&spec->env, "CUDA_VISIBLE_DEVICES", visible);
}

/* A NIC is named by its verbs device if it has one, which udev may have renamed. In a foreign
 * topology only the driver's names are known. */
static bool is_rdma_device(const struct hl_agent *a, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%.64s", a->verbs_dir, name);
    return strncmp(name, "mlx", 3) == 0 || (name[0] != '\0' && access(path, F_OK) == 0);
}

/* numa -1: the NICs of all slots. */
static hl_status add_nics(const struct hl_agent *a, int numa, struct hl_container_spec *spec)
{
    for (size_t i = 0; i < a->node.slots.count; i++) {
        const struct hl_api_slot *slot = &a->node.slots.items[i];
        for (size_t k = 0; k < slot->nics.count; k++)
            if ((numa == -1 || slot->numa_id == numa) &&
                is_rdma_device(a, slot->nics.items[k].name))
                HL_TRY(hl_texts_add(&spec->nics, &spec->nic_count, slot->nics.items[k].name));
    }
    return HL_OK;
}

/* The RDMA devices of the container's slot, *own. A slot without any may use all of the node, and
 * the libraries know best which one is near. */
static hl_status set_nics(const struct hl_agent *a, struct hl_container_spec *spec, bool *own)
{
    HL_TRY(add_nics(a, spec->numa_id, spec));
    *own = spec->nic_count > 0;
    return *own ? HL_OK : add_nics(a, -1, spec);
}

static bool port_is_active(const struct hl_agent *a, const char *nic, int port)
{
    char path[PATH_MAX];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(256);
    snprintf(path, sizeof(path), "%s/%.64s/ports/%d/state", a->verbs_dir, nic, port);
    return hl_file_read(path, &text) == HL_OK && text.len > 0 && text.data[0] == '4';
}

/* UCX is given ports, and warns about each one without a link. If this node has none, UCX searches
 * by itself. */
static hl_status set_ucx_devices(const struct hl_agent *a, struct hl_container_spec *spec)
{
    char text[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < spec->nic_count; i++)
        for (int port = 1; port <= PORTS_MAX; port++)
            if (at + strlen(spec->nics[i]) + 8 < sizeof(text) &&
                port_is_active(a, spec->nics[i], port))
                at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s:%d", at > 0 ? "," : "",
                                       spec->nics[i], port);
    return set_if_absent(&spec->env, "UCX_NET_DEVICES", text);
}

/* "=": exactly these devices. */
static hl_status set_hcas(struct hl_container_spec *spec)
{
    char text[512] = "";
    size_t at = 0;
    for (size_t i = 0; i < spec->nic_count; i++)
        if (at + strlen(spec->nics[i]) + 2 < sizeof(text))
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", at > 0 ? "," : "=",
                                   spec->nics[i]);
    return set_if_absent(&spec->env, "NCCL_IB_HCA", text);
}

static hl_status set_cuda(const struct hl_agent *a, struct hl_container_spec *spec)
{
    if (spec->gpu_count == 0)
        return HL_OK;
    HL_TRY(set_visible(a, spec));
    return set_if_absent(&spec->env, "NCCL_SOCKET_IFNAME", a->interface);
}

/* Keeps the slot's traffic from crossing to another NUMA node. */
static hl_status set_adapters(const struct hl_agent *a, struct hl_container_spec *spec)
{
    bool own;
    HL_TRY(set_nics(a, spec, &own));
    if (own)
        HL_TRY(set_ucx_devices(a, spec));
    return own && spec->gpu_count > 0 ? set_hcas(spec) : HL_OK;
}

hl_status env_complete(const struct hl_agent *a, struct hl_container_spec *spec)
{
    HL_TRY(set_if_absent(&spec->env, "HELIOS_NODE", a->name));
    HL_TRY(set_if_absent(&spec->env, "GLOO_SOCKET_IFNAME", a->interface));
    if (!a->executor->ops->image) /* an image has its own Python */
        HL_TRY(set_if_absent(&spec->env, "HELIOS_LIBRARY", a->library));
    HL_TRY(set_if_absent(&spec->env, "HELIOS_STORE_SOCKET", store_socket(a->store)));
    HL_TRY(set_if_absent(&spec->env, "HYBRIDPS_MANAGER", chunks_name(a->chunks)));
    HL_TRY(set_adapters(a, spec));
    HL_TRY(set_cuda(a, spec));
    HL_TRY(set_l3_socket(a, &spec->env));
    HL_TRY(set_options(a, &spec->env));
    HL_TRY(set_if_absent(&spec->env, "PYTHONUNBUFFERED", "1")); /* logs are read while they grow */
    if (a->python_dir[0] == '\0' || a->executor->ops->image)
        return HL_OK;
    const char *given = hl_env_get(&spec->env, "PYTHONPATH");
    HL_AUTO(hl_freep) char *path = NULL;
    HL_TRY(hl_text_set(&path, "%s%s%s", a->python_dir, given != NULL && given[0] != '\0' ? ":" : "",
                       given != NULL ? given : ""));
    return hl_env_set(&spec->env, "PYTHONPATH", path);
}
