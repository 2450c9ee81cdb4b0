/* Paths of copies that the Controller orders: its decision, what the daemons did, and what the
 * specification requires must agree, and the bytes must be right. */
#include <string.h>

#include "base/buf.h"
#include "cli/validate/validate.h"
#include "rpc/controller_calls.h"

#define DEVICE_NODES_MAX 8

/* The copies of a row. */
struct trials {
    struct hl_tally tally;
    uint32_t by_path[HL_API_ROUTE_PATH_COUNT];
    const char *first_bad; /* NULL: there was none */
};

static void tell_trials(struct validation *v, const struct trials *t, struct found *f,
                        const char *what)
{
    struct hl_buf text = HL_BUF(512);
    hl_status st = HL_OK;
    for (int p = 0; p < HL_API_ROUTE_PATH_COUNT && st == HL_OK; p++)
        if (t->by_path[p] > 0)
            st = hl_buf_printf(&text, "%s%s %u", text.len > 0 ? ", " : "",
                               hl_api_route_path_name((enum hl_api_route_path)p), t->by_path[p]);
    found_text(v, f, "%u of %u %s: %s%s%s", t->tally.good, t->tally.all, what,
               st == HL_OK && text.data != NULL ? text.data : "",
               t->first_bad != NULL ? "; the first exception: " : "",
               t->first_bad != NULL ? t->first_bad : "");
    hl_buf_fini(&text);
    found_judge(f, hl_tally_pct(t->tally));
}

static void add_trial(struct validation *v, struct trials *t, const struct hl_api_copy *copy,
                      bool asked_for, bool intact, const char *what)
{
    t->by_path[copy->path]++;
    hl_tally_add(&t->tally, asked_for && intact);
    if (t->first_bad == NULL && !(asked_for && intact))
        t->first_bad = validate_text(
            v, "%s by %s (%s, %s)%s", what, hl_api_route_path_name(copy->path), copy->transport,
            hl_api_route_reason_name(copy->reason), intact ? "" : ", and its bytes are damaged");
}

/* ---- into devices ---------------------------------------------------------------------------- */

/* The path by which the Controller would let the node read the shard from L3. */
static hl_status decided_path(struct validation *v, const struct scratch_shard *s,
                              const struct vnode *n, enum hl_api_tier tier,
                              enum hl_api_route_path *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_get_shard_results r;
    HL_TRY(CLI_CALL(v->cli, get_shard, &(struct hl_api_controller_get_shard_params){.id = s->id},
                    &arena, &r));
    for (size_t i = 0; i < r.routes.count; i++) {
        const struct hl_api_route *route = &r.routes.items[i];
        if (strcmp(route->node, n->name) == 0 && route->target == tier &&
            strcmp(route->source, hl_api_tier_name(HL_API_TIER_L3)) == 0) {
            *out = route->path;
            return HL_OK;
        }
    }
    return hl_fail(HL_ENOENT, "the Controller reports no route from L3 to %s of %s",
                   hl_api_tier_name(tier), n->name);
}

static hl_status try_read(struct validation *v, struct trials *t, const struct vnode *n,
                          enum hl_api_tier tier)
{
    const struct scratch_shard *s = &v->shards[SCRATCH_LARGE];
    enum hl_api_route_path decided = HL_API_ROUTE_PATH_UNSAID;
    struct hl_api_copy copy;
    bool intact = false;
    HL_TRY(decided_path(v, s, n, tier, &decided));
    HL_TRY(order_copy(v, s, n, tier, HL_API_OPERATION_READ, &copy));
    HL_TRY(order_verify(v, s, n, tier, &intact));
    const struct hl_seen_transfer seen = {.op = HL_API_OPERATION_READ,
                                          .source = HL_API_TIER_L3,
                                          .target = tier,
                                          .same_host = facts_is_pools(v, n),
                                          .rdma = strcmp(copy.transport, "rdma") == 0,
                                          .device_direct = n->nic_direct,
                                          .nic = n->nic};
    add_trial(v, t, &copy, copy.path == decided && hl_path_is_asked_for(&seen, copy.path), intact,
              validate_text(v, "to %s of %s, decided %s,", hl_api_tier_name(tier), n->name,
                            hl_api_route_path_name(decided)));
    return order_drop(v, s, n, tier);
}

hl_status row_paths_device(struct validation *v, struct found *f)
{
    struct trials t = {0};
    unsigned nodes = 0, full = 0;
    uint64_t size = v->shards[SCRATCH_LARGE].size;
    for (size_t i = 0; i < v->facts.count && nodes < DEVICE_NODES_MAX; i++) {
        const struct vnode *n = &v->facts.nodes[i];
        if (n->devices == 0)
            continue;
        nodes++;
        if (n->l1_free < size || n->l2_free < size) {
            full++;
            continue;
        }
        /* L1 first, because a copy in L2 would be nearer than L3 */
        HL_TRY(try_read(v, &t, n, HL_API_TIER_L1));
        HL_TRY(try_read(v, &t, n, HL_API_TIER_L2));
    }
    if (nodes == 0)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "a node with an L1 (agent.devices, agent.l2_size)");
    if (t.tally.all == 0)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM,
                             "L1 or L2 of each of %u nodes has no room for a shard", full);
    tell_trials(v, &t, f, "copies took the decided and the requested path");
    return HL_OK;
}

/* ---- by operation and size ------------------------------------------------------------------- */

/* A node that reads the pool over a network, and one on another host than that. */
static bool find_pair(const struct validation *v, const struct vnode **reader,
                      const struct vnode **other)
{
    for (size_t i = 0; i < v->facts.count; i++)
        for (size_t k = 0; k < v->facts.count; k++) {
            const struct vnode *a = &v->facts.nodes[i], *b = &v->facts.nodes[k];
            if (!facts_is_pools(v, a) && !facts_same_host(a, b)) {
                *reader = a;
                *other = b;
                return true;
            }
        }
    return false;
}

/* Makes a copy to L2 of `to`, or to L3 if that is NULL. */
static hl_status try_operation(struct validation *v, struct trials *t,
                               const struct scratch_shard *s, const struct vnode *to,
                               enum hl_api_operation op)
{
    enum hl_api_tier tier = to != NULL ? HL_API_TIER_L2 : HL_API_TIER_L3;
    struct hl_api_copy copy;
    bool intact = false;
    HL_TRY(order_copy(v, s, to, tier, op, &copy));
    HL_TRY(order_verify(v, s, to, tier, &intact));
    bool read = op == HL_API_OPERATION_READ;
    const struct hl_seen_transfer seen = {.op = op,
                                          .source = read ? HL_API_TIER_L3 : HL_API_TIER_L2,
                                          .target = tier,
                                          .rdma = strcmp(copy.transport, "rdma") == 0,
                                          .migration_net = to != NULL && to->migrate[0] != '\0'};
    add_trial(v, t, &copy, hl_path_is_asked_for(&seen, copy.path), intact,
              validate_text(v, "%s of %llu bytes to %s%s%s", hl_api_operation_name(op),
                            (unsigned long long)s->size, hl_api_tier_name(tier),
                            to != NULL ? " of " : "", to != NULL ? to->name : ""));
    return HL_OK;
}

static hl_status try_operations(struct validation *v, struct trials *t,
                                const struct scratch_shard *s, const struct vnode *reader,
                                const struct vnode *other)
{
    static const enum hl_api_operation to_node[] = {HL_API_OPERATION_MIGRATE,
                                                    HL_API_OPERATION_WRITE};

    HL_TRY(try_operation(v, t, s, reader, HL_API_OPERATION_READ));
    for (size_t i = 0; i < HL_ARRAY_LEN(to_node); i++) {
        HL_TRY(try_operation(v, t, s, other, to_node[i]));
        HL_TRY(order_drop(v, s, other, HL_API_TIER_L2));
    }
    HL_TRY(order_drop(v, s, NULL, HL_API_TIER_L3)); /* the target of a write must not exist */
    HL_TRY(try_operation(v, t, s, NULL, HL_API_OPERATION_WRITE));
    return order_drop(v, s, reader, HL_API_TIER_L2);
}

hl_status row_paths_operations(struct validation *v, struct found *f)
{
    const struct vnode *reader, *other;
    struct trials t = {0};
    uint64_t size = v->shards[SCRATCH_LARGE].size;
    if (!find_pair(v, &reader, &other))
        return found_missing(v, f, HL_API_VALIDATION_RESULT_ABSENT,
                             "two nodes with an L2 on two hosts, one of them not the pool's");
    if (reader->l2_free < size || other->l2_free < size)
        return found_missing(v, f, HL_API_VALIDATION_RESULT_NO_ROOM,
                             "L2 of %s or %s has no room for a shard", reader->name, other->name);
    HL_TRY(try_operations(v, &t, &v->shards[SCRATCH_SMALL], reader, other));
    HL_TRY(try_operations(v, &t, &v->shards[SCRATCH_LARGE], reader, other));
    tell_trials(v, &t, f, "reads, writes and migrations of two sizes took the requested path");
    return HL_OK;
}
