/* What a view of a shard must outlive: its shard is removed, and all that is free is written to. */
#ifndef TESTS_INTEGRATION_VIEW_WORLD_H
#define TESTS_INTEGRATION_VIEW_WORLD_H

#include "client_world.h"

#include "rpc/rpc.h"
#include "support/rpc_json.h"

/* Longer than the quarantine of a world's pool. */
#define FILL_S 0.5

static inline void world_free_shard(const struct world *w, const helios_shard *s)
{
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    char id[33];
    snprintf(id, sizeof(id), "%016llx%016llx", (unsigned long long)s->id.hi,
             (unsigned long long)s->id.lo);
    assert_int_equal(hl_rpc_create(&rpc), HL_OK);
    assert_int_equal(hl_rpc_open(rpc, w->address, "L3", &peer), HL_OK);
    json_t *params = json_pack("{s:[s]}", "ids", id);
    assert_int_equal(rpc_json_call(peer, "free", params, 5000, NULL), HL_OK);
    json_decref(params);
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
}

/* Zeros into all that is free, again and again, by a client that does not wait long for room. */
static inline void world_fill(const struct world *w, size_t bytes)
{
    const int64_t shape[] = {(int64_t)bytes};
    char *zeros = calloc(1, bytes);
    const helios_tensor t = {.name = "z", .dtype = "U8", .shape = shape, .rank = 1, .data = zeros};
    helios_client *c = world_client(w, "shm", 1000, 0);
    size_t count = 0;
    double start = now_s();
    while (now_s() < start + FILL_S || (count <= 3 && now_s() < start + 20)) {
        helios_shard filler;
        count += helios_version_put(c, "filler", 1, 0, 0, "head", &t, 1, &filler) == HELIOS_OK;
    }
    assert_true(count > 3);
    free(zeros);
    helios_close(c);
}

#endif
