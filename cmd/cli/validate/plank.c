/* The plank: it is always used with an old NIC, and not with a new one. Also tests what happens
 * when the first path of a copy fails. */
#include <string.h>

#include "base/host_port.h"
#include "cli/validate/validate.h"

#define DEAD_PORT    1 /* no process listens there */
#define DEAD_SOCKET  "/nonexistent/helios-validate.sock"
#define FAULT_COPIES 2

/* The nodes that a row is about, and the expected path. */
struct wish {
    enum hl_api_route_path path;
    bool old;  /* NICs that must not write into a device, or those that can */
    bool rdma; /* RDMA must be available */
    const char *class;
};

static bool wish_fits(const struct wish *w, enum hl_nic_class nic)
{
    return hl_nic_plank_forced(nic) == w->old && nic != HL_NIC_OTHER;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static hl_status copy_into_device(struct validation *v, const struct vnode *n, const struct wish *w,
                                  struct hl_tally *tally, bool *is_rdma)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_SMALL];
    *is_rdma = true;
    for (int64_t i = 0; i < v->args->copies && (*is_rdma || !w->rdma); i++) {
        struct hl_api_copy copy;
        bool intact = false;
        HL_TRY(order_copy(v, s, n, HL_API_TIER_L1, HL_API_OPERATION_READ, &copy));
        HL_TRY(order_verify(v, s, n, HL_API_TIER_L1, &intact));
        HL_TRY(order_drop(v, s, n, HL_API_TIER_L1));
        *is_rdma = strcmp(copy.transport, "rdma") == 0;
        if (*is_rdma || !w->rdma)
            hl_tally_add(tally, copy.path == w->path && intact);
    }
    return HL_OK;
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* What would be decided with the NICs of the file. */
static hl_status decide_for_file(struct validation *v, struct found *f, const struct wish *w)
{
    const struct hl_topo *topo = &v->topology;
    struct hl_tally all = {0};
    const char *path = v->args->topology, *class = "";
    for (size_t i = 0; i < topo->slot_count; i++)
        for (size_t k = 0; k < topo->slots[i].nic_count; k++) {
            enum hl_nic_class nic = topo->slots[i].nics[k].nic_class;
            if (!wish_fits(w, nic))
                continue;
            struct hl_tally t = hl_decided_into_device(nic, HL_DIRECT_GOOD, w->path);
            all.good += t.good;
            all.all += t.all;
            class = hl_nic_class_name(nic);
        }
    if (all.all == 0)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT, "a %s, here and in %s",
                             w->class, path);
    f->row.decided_only = true;
    found_text(v, f, "decided for the %s of %s, no byte was sent: %s %u of %u times", class, path,
               hl_api_route_path_name(w->path), all.good, all.all);
    found_judge(f, hl_tally_pct(all));
    return HL_OK;
}

void found_paths(struct validation *v, struct found *f, const struct vnode *n,
                 enum hl_api_route_path path, struct hl_tally tally)
{
    found_text(v, f, "%u of %u copies from the pool into L1 took the path %s; %s has a %s%s%s",
               tally.good, tally.all, hl_api_route_path_name(path), n->name,
               hl_nic_class_name(n->nic), n->nic_from[0] != '\0' ? " by the " : "", n->nic_from);
    found_judge(f, hl_tally_pct(tally));
}

static hl_status judge_paths(struct validation *v, struct found *f, const struct wish *w)
{
    struct hl_tally tally = {0};
    const struct vnode *seen = NULL, *without = NULL;
    for (size_t i = 0; i < v->facts.count; i++) {
        const struct vnode *n = &v->facts.nodes[i];
        bool is_rdma = false;
        if (n->devices == 0 || facts_is_pools(v, n) || !wish_fits(w, n->nic))
            continue;
        if (n->l1_free < v->shards[SCRATCH_SMALL].size)
            continue;
        HL_TRY(copy_into_device(v, n, w, &tally, &is_rdma));
        if (w->rdma && !is_rdma)
            without = n;
        else
            seen = n;
    }
    if (seen != NULL) {
        found_paths(v, f, seen, w->path, tally);
        return HL_OK;
    }
    if (v->args->topology[0] != '\0')
        return decide_for_file(v, f, w);
    if (without != NULL)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "RDMA between the pool's host and %s", without->name);
    return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                         "a node with an L1 beside a %s, on another host than the pool's",
                         w->class);
}

hl_status row_plank_cx4(struct validation *v, struct found *f)
{
    return judge_paths(v, f,
                       &(struct wish){.path = HL_API_ROUTE_PATH_PLANK,
                                      .old = true,
                                      .class = "ConnectX-4 or older"});
}

hl_status row_plank_cx6(struct validation *v, struct found *f)
{
    return judge_paths(v, f,
                       &(struct wish){.path = HL_API_ROUTE_PATH_DIRECT,
                                      .rdma = true,
                                      .class = "ConnectX-5 or newer"});
}

/* ---- faults ---------------------------------------------------------------------------------- */

static bool is_network(enum hl_api_route_path path)
{
    return path == HL_API_ROUTE_PATH_TCP || path == HL_API_ROUTE_PATH_DIRECT;
}

/* Tells the node that the pool's memory is mapped at a socket that does not exist. */
static hl_status lose_memory(struct validation *v, const struct vnode *n, struct hl_tally *tally)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_SMALL];
    const struct hl_api_copy_request request = {.id = s->id,
                                                .size_bytes = s->size,
                                                .crc32 = s->crc32,
                                                .tier = HL_API_TIER_L2,
                                                .numa_id = -1,
                                                .source_tier = HL_API_TIER_L3,
                                                .source_host_id = n->host,
                                                .source_address = v->facts.l3_address,
                                                .source_data_address = v->facts.l3_data,
                                                .source_socket = DEAD_SOCKET,
                                                .operation = HL_API_OPERATION_READ,
                                                .timeout_ms = (uint32_t)validate_left_ms(v)};
    struct hl_api_copy copy;
    bool intact = false;
    HL_TRY(order_agent_copy(v, n, &request, &copy));
    HL_TRY(order_verify(v, s, n, HL_API_TIER_L2, &intact));
    hl_tally_add(tally, intact && is_network(copy.path));
    return order_agent_drop(v, n, s, HL_API_TIER_L2);
}

/* The same address, with a port where no process listens. */
static const char *dead_address(struct validation *v, const char *address)
{
    struct hl_host_port x;
    char dead[HL_HOST_PORT_MAX];
    if (hl_host_port_split(address, &x) != HL_OK)
        return "";
    hl_host_port_format(x.host, DEAD_PORT, dead);
    return validate_text(v, "%s", dead);
}

/* Tells the node to migrate the shard to where no migration network responds. */
static hl_status lose_network(struct validation *v, const struct vnode *from,
                              const struct vnode *to, struct hl_tally *tally)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_SMALL];
    const struct hl_api_copy_request request = {.id = s->id,
                                                .size_bytes = s->size,
                                                .crc32 = s->crc32,
                                                .tier = HL_API_TIER_L2,
                                                .numa_id = -1,
                                                .source_tier = HL_API_TIER_L2,
                                                .target_address = dead_address(v, to->migrate),
                                                .target_data_address = to->data,
                                                .operation = HL_API_OPERATION_MIGRATE,
                                                .timeout_ms = (uint32_t)validate_left_ms(v)};
    struct hl_api_copy copy;
    bool intact = false;
    HL_TRY(order_copy(v, s, from, HL_API_TIER_L2, HL_API_OPERATION_READ, &copy));
    HL_TRY(order_agent_send(v, from, &request, &copy));
    HL_TRY(order_verify(v, s, to, HL_API_TIER_L2, &intact));
    hl_tally_add(tally, intact && copy.path == HL_API_ROUTE_PATH_UCX_TAGGED);
    HL_TRY(order_agent_drop(v, to, s, HL_API_TIER_L2));
    return order_drop(v, s, from, HL_API_TIER_L2);
}

hl_status row_plank_fallback(struct validation *v, struct found *f)
{
    const struct vnode *a = NULL, *b = NULL;
    struct hl_tally memory = {0}, network = {0};
    for (size_t i = 0; i < v->facts.count && b == NULL; i++) {
        const struct vnode *n = &v->facts.nodes[i];
        if (n->data[0] == '\0' || n->l2_free < v->shards[SCRATCH_SMALL].size)
            continue;
        if (a == NULL)
            a = n;
        else if (n->migrate[0] != '\0')
            b = n;
    }
    if (a == NULL || v->facts.l3_data[0] == '\0')
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "data ports of the pool and of a node with room in L2 (`helios up "
                             "--address`)");
    for (int i = 0; i < FAULT_COPIES; i++) {
        HL_TRY(lose_memory(v, a, &memory));
        if (b != NULL)
            HL_TRY(lose_network(v, a, b, &network));
    }
    found_text(
        v, f,
        "%u of %u copies arrived by network after mapped memory became unavailable, %u of %u by "
        "the backbone after the migration network did not answer; a direct path was not broken",
        memory.good, memory.all, network.good, network.all);
    found_judge(
        f, hl_tally_pct((struct hl_tally){memory.good + network.good, memory.all + network.all}));
    return HL_OK;
}
