/* Orders for copies of scratch shards, with the row's deadline. */
#include "cli/validate/validate.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

hl_status order_copy(struct validation *v, const struct scratch_shard *s, const struct vnode *node,
                     enum hl_api_tier tier, enum hl_api_operation op, struct hl_api_copy *out)
{
    struct hl_api_controller_copy_shard_results r;
    const struct hl_api_controller_copy_shard_params p = {
        .id = s->id, .node = node != NULL ? node->name : "", .tier = tier, .operation = op};
    HL_TRY(validate_check(v));
    HL_TRY(CLI_CALL_FOR(v->cli, copy_shard, &p, validate_left_ms(v), &v->arena, &r));
    *out = r.copy;
    return HL_OK;
}

hl_status order_drop(struct validation *v, const struct scratch_shard *s, const struct vnode *node,
                     enum hl_api_tier tier)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_drop_copy_results r;
    const struct hl_api_controller_drop_copy_params p = {
        .id = s->id, .node = node != NULL ? node->name : "", .tier = tier};
    return CLI_CALL_FOR(v->cli, drop_copy, &p, validate_left_ms(v), &arena, &r);
}

hl_status order_verify(struct validation *v, const struct scratch_shard *s,
                       const struct vnode *node, enum hl_api_tier tier, bool *good)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    if (node == NULL) {
        struct hl_api_l3_verify_results r;
        const struct hl_api_l3_verify_params p = {.id = s->id, .tier = tier};
        HL_TRY(CLI_CALL_L3(v->cli, verify, &p, &arena, &r));
        *good = r.ok;
        return HL_OK;
    }
    struct hl_api_agent_store_verify_results r;
    const struct hl_api_agent_store_verify_params p = {.id = s->id, .tier = tier};
    HL_TRY(CLI_CALL_AGENT(v->cli, node->agent, store_verify, &p, &arena, &r));
    *good = r.ok;
    return HL_OK;
}

hl_status order_agent_copy(struct validation *v, const struct vnode *at,
                           const struct hl_api_copy_request *request, struct hl_api_copy *out)
{
    struct hl_api_agent_store_copy_results r;
    const struct hl_api_agent_store_copy_params p = {*request};
    struct hl_rpc_peer *agent;
    int ms;
    HL_TRY(validate_check(v));
    HL_TRY(cli_agent(v->cli, at->agent, &agent, &ms));
    hl_status st = hl_call_agent_store_copy(agent, &p, validate_left_ms(v), &v->arena, &r);
    hl_rpc_peer_close(agent);
    HL_TRY(st);
    *out = r.copy;
    return HL_OK;
}

hl_status order_agent_send(struct validation *v, const struct vnode *at,
                           const struct hl_api_copy_request *request, struct hl_api_copy *out)
{
    struct hl_api_agent_store_send_results r;
    const struct hl_api_agent_store_send_params p = {*request};
    struct hl_rpc_peer *agent;
    int ms;
    HL_TRY(validate_check(v));
    HL_TRY(cli_agent(v->cli, at->agent, &agent, &ms));
    hl_status st = hl_call_agent_store_send(agent, &p, validate_left_ms(v), &v->arena, &r);
    hl_rpc_peer_close(agent);
    HL_TRY(st);
    *out = r.copy;
    return HL_OK;
}

hl_status order_agent_drop(struct validation *v, const struct vnode *at,
                           const struct scratch_shard *s, enum hl_api_tier tier)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_agent_store_drop_results r;
    const struct hl_api_agent_store_drop_params p = {.id = s->id, .tier = tier};
    return CLI_CALL_AGENT(v->cli, at->agent, store_drop, &p, &arena, &r);
}
