/* Reads leave copies in the node's store (L2), which its Agent keeps: the Agent fetches a shard
 * once for all processes of the node that ask for it, and they read it there.
 *
 *     the store misses it --storeKeep, SLICE_MS at a time--> look there again
 *                              | the Agent refuses, is away, or half of the time is over
 *                              '--> the caller fetches it by itself, as if there were no store
 *
 * An Agent that was away or late is not asked again for a while, so that not every read loses that
 * time. The process reads the copies without a call. With the next tick of the maintenance thread
 * it reports those reads to the Agent, because the rule for what stays counts reads.
 *
 * Any thread may be in here, between attach_enter and attach_leave, which keep the store and its
 * peer. `agent_rests_ns` is a hint without order: threads that ask at the same time as one that
 * fails lose the same time once. */
#include "base/log.h"
#include "client/client_private.h"

#define SLICE_MS     500   /* between two checks of the Agent's heartbeat */
#define AWAY_REST_MS 1000  /* before an Agent that was away is asked again */
#define LATE_REST_MS 10000 /* the same for one that did not answer in time */
#define TELL_MS      500

static void agent_rest(struct shm *store, hl_status st)
{
    uint64_t ms = st == HL_ETIMEDOUT ? LATE_REST_MS : st == HL_EUNAVAIL ? AWAY_REST_MS : 0;
    if (ms != 0)
        atomic_store_explicit(&store->agent_rests_ns, hl_now_ns() + ms * HL_NS_PER_MS,
                              memory_order_relaxed);
}

/* The Agent answers when the shard is there; a repeated call joins the previous one. */
static hl_status ask_agent(struct operation *op, const struct shm *store,
                           const struct hl_api_copy_request *request)
{
    const struct hl_api_agent_store_keep_params p = {.request = *request};
    uint64_t until_ns = hl_now_ns() + (uint64_t)operation_left_ms(op) * HL_NS_PER_MS / 2;
    for (;;) {
        uint64_t now = hl_now_ns();
        int left = now < until_ns ? (int)((until_ns - now) / HL_NS_PER_MS) : 0;
        hl_status st = hl_call_agent_store_keep(store->agent, &p,
                                                left < 1          ? 1
                                                : left < SLICE_MS ? left
                                                                  : SLICE_MS,
                                                NULL, NULL);
        if (st != HL_ETIMEDOUT || left <= SLICE_MS || hl_pool_view_alive(store->view) != HL_OK)
            return st;
    }
}

bool keep_load(struct operation *op, struct shm *store, struct hl_id id, enum hl_api_tier tier)
{
    helios_client *c = op->client;
    char data[300];
    const struct hl_id_text text = hl_id_format(id);
    if (store->agent == NULL || c->l3_address == NULL ||
        hl_now_ns() < atomic_load_explicit(&store->agent_rests_ns, memory_order_relaxed))
        return false;
    net_address(c->attach.net, data, sizeof(data));
    if (data[0] == '\0')
        return false;
    struct hl_api_copy_request request = {.id = text.s,
                                          .tier = tier,
                                          .numa_id = -1,
                                          .source_tier = HL_API_TIER_L3,
                                          .source_address = c->l3_address,
                                          .source_data_address = data,
                                          .operation = HL_API_OPERATION_READ,
                                          .timeout_ms = (uint32_t)operation_left_ms(op)};
    (void)names_expected(c, id, &request.size_bytes, &request.crc32);
    hl_status st = ask_agent(op, store, &request);
    if (st == HL_OK)
        return true;
    hl_debug("the node's store did not load a shard for this process: %s", hl_error_text());
    agent_rest(store, st);
    return false;
}

void keep_suspect(helios_client *client, const struct hl_pool_ref *ref)
{
    if (ref->kept)
        access_kept(client->access, ref->id, true);
    else
        copies_suspect(client->copies, ref->id, HL_API_TIER_L2);
}

void keep_report(helios_client *client)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_agent_store_reads_params p = {.reads =
                                                          access_take_kept(client->access, &arena)};
    if (p.reads.count == 0)
        return;
    (void)attach_enter(client);
    struct shm *store = attach_node_store(client, hl_now_ns());
    if (store != NULL && store->agent != NULL &&
        hl_call_agent_store_reads(store->agent, &p, TELL_MS, NULL, NULL) != HL_OK)
        hl_debug("reads were not reported to the node's store: %s", hl_error_text());
    attach_leave(client);
}
