#include "ranktable/plan.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool all_have_gpus(const struct hl_plan *plan)
{
    for (int i = 0; i < plan->container_count; i++)
        for (int k = 0; k < plan->containers[i].rank_count; k++)
            if (plan->containers[i].ranks[k].gpu[0] == '\0')
                return false;
    return true;
}

/* How many GPUs of the node stand before it on the bus: the number its driver gives it. A PCI
 * address has a fixed width, so that texts compare as addresses do. */
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

/* A name that nobody could resolve is not an address. */
static const char *address_of(const struct hl_cluster_node *n)
{
    unsigned char raw[sizeof(struct in6_addr)];
    const char *a = n->host_address;
    return inet_pton(AF_INET, a, raw) == 1 || inet_pton(AF_INET6, a, raw) == 1 ? a : "";
}

static hl_status make_instance(const struct hl_plan *plan, const struct hl_plan_container *c,
                               const struct hl_cluster_node *n, bool by_gpu,
                               struct hl_ranktable_instance *x)
{
    const char *address = address_of(n);
    snprintf(x->server_id, sizeof(x->server_id), "%s", n->name);
    snprintf(x->host_ip, sizeof(x->host_ip), "%s", address);
    x->place = (uint32_t)c->index;
    x->rank_index = c->index;
    x->devices = calloc((size_t)c->rank_count + 1, sizeof(*x->devices));
    if (x->devices == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
    for (int k = 0; k < c->rank_count; k++) {
        const struct hl_plan_rank *r = &c->ranks[k];
        struct hl_ranktable_device *d = &x->devices[x->device_count++];
        int by_slot = slot_place(n, c->numa_id) * plan->ranks_per_container + r->local_rank;
        snprintf(d->id, sizeof(d->id), "%d", by_gpu ? gpu_number(n, r->gpu) : by_slot);
        snprintf(d->ip, sizeof(d->ip), "%s", address);
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
        return hl_fail(HL_ENOENT, "rank table: node '%s' of container %d is not known", c->node,
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
    HL_TRY(hl_ranktable_add_group(out, "", (uint32_t)plan->container_count));
    for (int i = 0; i < plan->container_count; i++)
        HL_TRY(add_container(plan, &plan->containers[i], cluster, prefix, by_gpu, out));
    return hl_ranktable_number(out);
}

/* The node's address stands for those of its devices, but HCCL refuses one that stands twice: it is
 * left out where a table may do without. */
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
    if (st == HL_OK && may_lack_addresses(&t, format))
        drop_addresses(&t);
    if (st == HL_OK)
        st = hl_ranktable_document(&t, format, &text);
    if (st == HL_OK)
        *out = hl_buf_take(&text);
    hl_buf_fini(&text);
    hl_ranktable_fini(&t);
    return st;
}
