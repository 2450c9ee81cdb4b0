/* A node with a copy of one shard: its Agent's RPC, and the data port of its store. */
#ifndef TESTS_INTEGRATION_FAKE_NODE_H
#define TESTS_INTEGRATION_FAKE_NODE_H

#include <pthread.h>

#include "mem/pool/pool.h"
#include "net/net.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"
#include "unit/mem/archive/archive_rig.h"

struct node {
    struct hl_loop *loop;
    struct hl_rpc_server *server;
    struct hl_net_server *net;
    struct hl_pool *pool;
    struct hl_pool_ref ref;
    char path[96];
    pthread_t thread;
};

static void node_call(void *arg, struct hl_rpc_call *call_, const char *method,
                      const json_t *params)
{
    struct node *n = arg;
    uint32_t crcs[64];
    json_t *list = json_array();
    (void)params;
    assert_string_equal(method, "storeLocate");
    assert_int_equal(hl_pool_chunk_crcs(n->pool, &n->ref, crcs), HL_OK);
    for (uint64_t i = 0; i < hl_chunk_count(n->ref.size); i++)
        json_array_append_new(list, json_integer((json_int_t)crcs[i]));
    rpc_json_reply(call_, json_pack("{s:[{s:s s:I s:I s:I s:I s:o}]}", "extents", "id",
                                    hl_id_format(n->ref.id).s, "offset", (json_int_t)n->ref.offset,
                                    "sizeBytes", (json_int_t)n->ref.size, "crc32",
                                    (json_int_t)n->ref.crc32, "generation", (json_int_t)n->ref.gen,
                                    "chunkCrcs", list));
}

static void *node_main(void *arg)
{
    struct node *n = arg;
    assert_int_equal(hl_loop_run(n->loop), HL_OK);
    return NULL;
}

static inline void node_start(struct node *n, struct hl_rpc *rpc, const struct shard *s)
{
    struct hl_pool_extent x;
    uint32_t crcs[64];
    size_t len;
    *n = (struct node){0};
    snprintf(n->path, sizeof(n->path), "/dev/shm/helios-test-node-%d", (int)getpid());
    unlink(n->path);
    assert_int_equal(hl_pool_open(&(struct hl_pool_options){.path = n->path, .capacity = 32 * MIB},
                                  NULL, &n->pool),
                     HL_OK);
    assert_int_equal(hl_pool_alloc_at(n->pool, s->id, s->size, -1, &x), HL_OK);
    memcpy(x.ptr, s->bytes, s->size);
    for (uint64_t i = 0; i < hl_chunk_count(s->size); i++)
        crcs[i] =
            hl_crc32(0, s->bytes + i * MIB, s->size - i * MIB < MIB ? s->size - i * MIB : MIB);
    assert_int_equal(
        hl_pool_seal(n->pool, &x, s->crc, crcs, (size_t)hl_chunk_count(s->size), &n->ref), HL_OK);
    void *base = hl_pool_base(n->pool, &len);
    assert_int_equal(
        hl_net_server_start(
            &(struct hl_net_server_opts){.listen = "127.0.0.1:0", .pool = base, .pool_len = len},
            &n->net),
        HL_OK);
    assert_int_equal(hl_loop_create(&n->loop), HL_OK);
    assert_int_equal(rpc_json_serve(rpc, "Agent",
                                    &(struct hl_rpc_serve_opts){
                                        .address = "127.0.0.1:0", .loop = n->loop, .arg = n},
                                    node_call, &n->server),
                     HL_OK);
    assert_int_equal(pthread_create(&n->thread, NULL, node_main, n), 0);
}

static inline void node_stop(struct node *n)
{
    hl_loop_stop(n->loop);
    pthread_join(n->thread, NULL);
    hl_rpc_server_close(n->server);
    hl_loop_destroy(n->loop);
    hl_net_server_stop(n->net);
    hl_pool_remove(n->pool);
}

#endif
