/* Makes the table from the plan and the cluster, and checks the devices' addresses: either every
 * node lists its own, or all devices of a node have the node's. */
#include "ranktable/plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/planner/spares.h"

static bool all_have_gpus(const struct hl_plan *plan)
{
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++)
            if (plan->containers[i].ranks[k].gpu[0] == '\0')
                return false;
    return true;
}

/* The number that the driver gives the GPU: how many GPUs of the node come before it on the bus.
 * PCI addresses have a fixed width, so their texts can be compared. */
static int gpu_number(const struct hl_cluster_node *n, const char *gpu)
{
    int number = 0;
    for (int s = 0; s < n->slot_count; s++)
        for (int g = 0; g < n->slots[s].gpu_count; g++)
            number += strcmp(n->slots[s].gpus[g], gpu) < 0;
    return number;
}

static int slot_place(const struct hl_cluster_node *n, int numa_id)
{
    int place = 0;
    while (place < n->slot_count && n->slots[place].numa_id < numa_id)
        place++;
    return place;
}

/* The node's address; "" if it is a name that could not be resolved. */
static const char *address_of(const struct hl_cluster_node *n)
{
    unsigned char raw[sizeof(struct in6_addr)];
    const char *a = n->host_address;
    return inet_pton(AF_INET, a, raw) == 1 || inet_pton(AF_INET6, a, raw) == 1 ? a : "";
}

/* The address of the device with that number, from the list that its Agent was given; without a
 * list, the node's address. */
static hl_status device_address(const struct hl_cluster_node *n, int number, char *out, size_t cap)
{
    const char *at = n->device_addresses;
    if (at[0] == '\0') {
        snprintf(out, cap, "%s", address_of(n));
        return HL_OK;
    }
    for (int i = 0; i < number && at != NULL; i++) {
        at = strchr(at, ',');
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL)
        return hl_fail(HL_EINVAL,
                       "rank table: node %s has no address for its device %d; give one more to "
                       "--device-addresses of its Agent",
                       n->name, number);
    snprintf(out, cap, "%.*s", (int)strcspn(at, ","), at);
    return HL_OK;
}

static hl_status make_instance(const struct hl_plan *plan, const struct hl_plan_container *c,
                               const struct hl_cluster_node *n, bool by_gpu,
                               struct hl_ranktable_instance *x)
{
    const char *address = address_of(n);
    snprintf(x->server_id, sizeof(x->server_id), "%s", n->name);
    snprintf(x->host_ip, sizeof(x->host_ip), "%s", address);
    x->rank_index = plan->ranks_per_container > 0 && c->rank_count > 0
                        ? c->ranks[0].rank / plan->ranks_per_container
                        : c->index;
    x->place = (uint32_t)x->rank_index;
    x->devices = calloc((size_t)c->rank_count + 1, sizeof(*x->devices));
    if (x->devices == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
    for (int k = 0; k < c->rank_count; k++) {
        const struct hl_plan_rank *r = &c->ranks[k];
        struct hl_ranktable_device *d = &x->devices[x->device_count++];
        int by_slot = slot_place(n, c->numa_id) * plan->ranks_per_container + r->local_rank;
        int number = by_gpu ? gpu_number(n, r->gpu) : by_slot;
        snprintf(d->id, sizeof(d->id), "%d", number);
        HL_TRY(device_address(n, number, d->ip, sizeof(d->ip)));
        snprintf(d->super_id, sizeof(d->super_id), "%d", r->rank);
    }
    return HL_OK;
}

static hl_status add_container(const struct hl_plan *plan, const struct hl_plan_container *c,
                               const struct hl_cluster *cluster, const char *prefix, bool by_gpu,
                               struct hl_ranktable *t)
{
    struct hl_ranktable_instance x = {0};
    const struct hl_cluster_node *n = hl_cluster_find(cluster, c->node);
    if (n == NULL)
        return hl_fail(HL_ENOENT, "rank table: node '%s' of container %d is unknown", c->node,
                       c->index);
    snprintf(x.name, sizeof(x.name), "%.200s.%d", prefix, c->index);
    hl_status st = make_instance(plan, c, n, by_gpu, &x);
    if (st != HL_OK) {
        hl_ranktable_instance_fini(&x);
        return st;
    }
    return hl_ranktable_add(t, &x);
}

hl_status hl_ranktable_of_plan(const struct hl_plan *plan, const struct hl_cluster *cluster,
                               const char *prefix, struct hl_ranktable *out)
{
    bool by_gpu = all_have_gpus(plan);
    HL_TRY(hl_ranktable_add_group(out, "", (uint32_t)hl_plan_gang_count(plan)));
    for (int i = 0; i < plan->container_count; i++)
        if (plan->containers[i].rank_count > 0)
            HL_TRY(add_container(plan, &plan->containers[i], cluster, prefix, by_gpu, out));
    return hl_ranktable_number(out);
}

/* Whether every node of the plan has a list of its devices' addresses. */
static bool addresses_are_own(const struct hl_plan *plan, const struct hl_cluster *cluster)
{
    for (int i = 0; i < plan->container_count; i++) {
        const struct hl_cluster_node *n = hl_cluster_find(cluster, plan->containers[i].node);
        if (plan->containers[i].rank_count > 0 && (n == NULL || n->device_addresses[0] == '\0'))
            return false;
    }
    return true;
}

/* HCCL refuses an address that occurs twice. */
static hl_status check_addresses(const struct hl_ranktable *t)
{
    hl_status st = HL_OK;
    json_t *seen = json_object();
    for (size_t i = 0; st == HL_OK && i < t->count; i++)
        for (size_t d = 0; st == HL_OK && d < t->instances[i].device_count; d++) {
            const struct hl_ranktable_instance *x = &t->instances[i];
            const char *ip = x->devices[d].ip, *other;
            other = json_string_value(json_object_get(seen, ip));
            if (other != NULL)
                st = hl_fail(HL_EINVAL,
                             "rank table: devices of the nodes %s and %s have the address %s; "
                             "--device-addresses of one of their Agents is wrong",
                             other, x->server_id, ip);
            json_object_set_new(seen, ip, json_string(x->server_id));
        }
    json_decref(seen);
    return st;
}

/* Without lists, all devices of a node have the node's address. True: this address occurs twice,
 * and HCCL accepts a table without addresses. */
static bool may_lack_addresses(const struct hl_ranktable *t, enum hl_ranktable_format format)
{
    size_t devices = 0;
    json_t *servers = json_object();
    for (size_t i = 0; i < t->count; i++) {
        devices += t->instances[i].device_count;
        json_object_set_new(servers, t->instances[i].server_id, json_true());
    }
    size_t count = json_object_size(servers);
    json_decref(servers);
    return devices > count && (count == 1 || format == HL_RANKTABLE_1_2);
}

static void drop_addresses(struct hl_ranktable *t)
{
    for (size_t i = 0; i < t->count; i++)
        for (size_t d = 0; d < t->instances[i].device_count; d++)
            t->instances[i].devices[d].ip[0] = '\0';
}

hl_status hl_ranktable_plan_text(const struct hl_plan *plan, const struct hl_cluster *cluster,
                                 const char *prefix, enum hl_ranktable_format format, char **out)
{
    struct hl_ranktable t = {0};
    struct hl_buf text = HL_BUF(HL_RANKTABLE_TEXT_MAX);
    hl_status st = hl_ranktable_of_plan(plan, cluster, prefix, &t);
    if (st == HL_OK && addresses_are_own(plan, cluster))
        st = check_addresses(&t);
    else if (st == HL_OK && may_lack_addresses(&t, format))
        drop_addresses(&t);
    if (st == HL_OK)
        st = hl_ranktable_document(&t, format, &text);
    if (st == HL_OK)
        *out = hl_buf_take(&text);
    hl_buf_fini(&text);
    hl_ranktable_fini(&t);
    return st;
}
