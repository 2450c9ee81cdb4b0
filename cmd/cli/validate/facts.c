/* The present state of the cluster: nodes that are ready, their tiers, the options in force. */
#include <stdlib.h>
#include <string.h>

#include "cli/validate/validate.h"
#include "conf/options.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

static uint64_t rest_of(uint64_t quota, uint64_t used, uint64_t quarantined)
{
    uint64_t taken = used + quarantined;
    return quota > taken ? quota - taken : 0;
}

static void add_device(struct vnode *n, const struct hl_api_tier_info *t)
{
    uint64_t rest = rest_of(t->quota_bytes, t->used_bytes, t->quarantined_bytes);
    if (n->devices++ == 0) { /* an order without a device goes to the first one with room */
        n->nic = hl_nic_class_named(t->nic_class);
        n->nic_direct = t->nic_direct;
    }
    n->emulated |= strncmp(t->name, "emu:", 4) == 0;
    n->l1_bytes += t->quota_bytes;
    n->l1_used += t->used_bytes;
    if (rest > n->l1_free)
        n->l1_free = rest;
}

/* HybridPS chunks are in the same memory, but outside the quota of shards. */
static void add_tier(struct vnode *n, const struct hl_api_tier_info *t)
{
    bool chunks = t->kind[0] != '\0';
    if (t->tier == HL_API_TIER_L1 && chunks)
        n->l1_used += t->used_bytes;
    else if (t->tier == HL_API_TIER_L1)
        add_device(n, t);
    else if (t->tier == HL_API_TIER_L2 && !chunks)
        n->l2_free = rest_of(t->quota_bytes, t->used_bytes, t->quarantined_bytes);
}

static const char *option_of(const struct hl_api_option_value_list *options, const char *name)
{
    for (size_t i = 0; i < options->count; i++)
        if (strcmp(options->items[i].name, name) == 0)
            return options->items[i].value;
    return "";
}

/* Where the class of the node's NIC comes from, if not from its hardware. */
static hl_status find_nic_source(struct validation *v, struct vnode *n)
{
    struct hl_api_agent_options_results r;
    n->nic_from = "";
    HL_TRY(CLI_CALL_AGENT(v->cli, n->agent, options, &(struct hl_api_agent_options_params){0},
                          &v->arena, &r));
    const char *class = option_of(&r.options, "agent.nic_class");
    const char *xml = option_of(&r.options, "agent.topology");
    if (class[0] != '\0' && strcmp(class, "auto") != 0)
        n->nic_from = validate_text(v, "option agent.nic_class of %s", n->name);
    else if (xml[0] != '\0')
        n->nic_from = validate_text(v, "topology file %s of %s", xml, n->name);
    return HL_OK;
}

static hl_status add_node(struct validation *v, const struct hl_api_node_info *info)
{
    struct hl_api_agent_store_info_results r;
    struct vnode n = {.name = info->name,
                      .host = info->host_id,
                      .agent = info->agent_address,
                      .data = info->data_address,
                      .migrate = info->migrate_address};
    if (info->store_socket[0] == '\0' && info->data_address[0] == '\0')
        return HL_OK; /* the node has no L2 */
    HL_TRY(CLI_CALL_AGENT(v->cli, n.agent, store_info, &(struct hl_api_agent_store_info_params){0},
                          &v->arena, &r));
    for (size_t i = 0; i < r.tiers.count; i++)
        add_tier(&n, &r.tiers.items[i]);
    HL_TRY(find_nic_source(v, &n));
    v->facts.nodes[v->facts.count++] = n;
    return HL_OK;
}

hl_status facts_l1_used(struct validation *v, const struct vnode *n, uint64_t *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_agent_store_info_results r;
    struct vnode now = {0};
    HL_TRY(CLI_CALL_AGENT(v->cli, n->agent, store_info, &(struct hl_api_agent_store_info_params){0},
                          &arena, &r));
    for (size_t i = 0; i < r.tiers.count; i++)
        add_tier(&now, &r.tiers.items[i]);
    *out = now.l1_used;
    return HL_OK;
}

static hl_status gather_nodes(struct validation *v)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(v->cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &v->arena,
                    &r));
    for (size_t i = 0; i < r.nodes.count && v->facts.count < VALIDATE_NODES_MAX; i++)
        if (r.nodes.items[i].state == HL_API_NODE_LIFE_READY)
            HL_TRY(add_node(v, &r.nodes.items[i].node));
    return HL_OK;
}

static hl_status gather_pool(struct validation *v)
{
    struct hl_api_controller_cluster_info_results c;
    struct hl_api_l3_pool_info_results r;
    HL_TRY(CLI_CALL(v->cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0},
                    &v->arena, &c));
    HL_TRY(CLI_CALL_L3(v->cli, pool_info, &(struct hl_api_l3_pool_info_params){0}, &v->arena, &r));
    struct facts *f = &v->facts;
    const char *address = strstr(c.info.l3_address, "://");
    f->l3_address = address != NULL ? address + 3 : c.info.l3_address;
    f->l3_host = r.pool.host_id;
    f->l3_data = r.pool.data_address;
    f->kubernetes = c.info.kubernetes_server[0] != '\0';
    f->pool_free = rest_of(r.pool.capacity_bytes, r.pool.used_bytes, r.pool.quarantined_bytes);
    if (r.pool.free_bytes < f->pool_free)
        f->pool_free = r.pool.free_bytes;
    return HL_OK;
}

struct wanted_options {
    double high_pct, low_pct, fluidity_high;
    uint64_t residence_ms, interval_ms, grace_ms;
};

#define AT(field) HL_OPTION_FIELD(struct wanted_options, field)

/* The values are read from the Controller; names and types are its own. */
static const struct hl_option wanted[] = {
    {"policy.high_pct", "", "", "", HL_OPT_PERCENT, 0, 0, NULL, AT(high_pct)},
    {"policy.low_pct", "", "", "", HL_OPT_PERCENT, 0, 0, NULL, AT(low_pct)},
    {"policy.fluidity_high", "", "", "", HL_OPT_NUMBER, 0, 0, NULL, AT(fluidity_high)},
    {"policy.residence", "", "", "", HL_OPT_DURATION, 0, 0, NULL, AT(residence_ms)},
    {"placement.interval", "", "", "", HL_OPT_DURATION, 0, 0, NULL, AT(interval_ms)},
    {"placement.grace", "", "", "", HL_OPT_DURATION, 0, 0, NULL, AT(grace_ms)},
};

#undef AT

static hl_status gather_options(struct validation *v)
{
    struct hl_api_controller_options_results r;
    struct wanted_options w = {0};
    HL_TRY(CLI_CALL(v->cli, options, &(struct hl_api_controller_options_params){0}, &v->arena, &r));
    for (size_t i = 0; i < HL_ARRAY_LEN(wanted); i++) {
        const char *text = option_of(&r.options, wanted[i].name);
        if (text[0] == '\0')
            return hl_fail(HL_EUNSUPPORTED,
                           "the Controller has no option %s: it is from another release",
                           wanted[i].name);
        HL_TRY(hl_option_set(&wanted[i], &w, text));
    }
    v->facts.policy = option_of(&r.options, "placement.policy");
    v->facts.high_pct = w.high_pct;
    v->facts.low_pct = w.low_pct;
    v->facts.fluidity_high = w.fluidity_high;
    v->facts.residence_ms = w.residence_ms;
    v->facts.interval_ms = w.interval_ms;
    v->facts.grace_ms = w.grace_ms;
    return HL_OK;
}

hl_status facts_gather(struct validation *v)
{
    HL_TRY(gather_nodes(v));
    HL_TRY(gather_pool(v));
    return gather_options(v);
}

bool facts_same_host(const struct vnode *a, const struct vnode *b)
{
    return strcmp(a->host, b->host) == 0;
}

bool facts_is_pools(const struct validation *v, const struct vnode *n)
{
    return strcmp(n->host, v->facts.l3_host) == 0;
}
