/* A peer on the same host whose pool file is truncated after an Agent has mapped it: the copy
 * fails, the Agent goes on. The peer is this test, which answers as before. */
#include "support/test.h"

#include "integration/store_world.h"
#include "mem/socket/socket.h"
#include "os/loop.h"

#include <pthread.h>

#define SIZE (3 * MIB)

struct peer {
    struct hl_pool *pool;
    struct hl_loop *loop;
    struct hl_l3_server *server;
    pthread_t thread;
    char path[64], socket[80];
};

static void *run_loop(void *arg)
{
    struct peer *p = arg;
    return hl_loop_run(p->loop) == HL_OK ? NULL : arg;
}

/* Without a heartbeat: the peer does not notice what happens to its file. */
static void peer_begin(struct peer *p)
{
    snprintf(p->path, sizeof(p->path), "/dev/shm/helios-test-peer-%d", (int)getpid());
    snprintf(p->socket, sizeof(p->socket), "%s.sock", p->path);
    assert_int_equal(hl_pool_open(&(struct hl_pool_options){.path = p->path, .capacity = 16 * MIB},
                                  NULL, &p->pool),
                     HL_OK);
    assert_int_equal(hl_loop_create(&p->loop), HL_OK);
    assert_int_equal(
        hl_l3_server_start(
            &(struct hl_l3_server_opts){.loop = p->loop, .pool = p->pool, .socket_path = p->socket},
            &p->server),
        HL_OK);
    assert_int_equal(pthread_create(&p->thread, NULL, run_loop, p), 0);
}

static void peer_end(struct peer *p)
{
    hl_loop_stop(p->loop);
    pthread_join(p->thread, NULL);
    hl_l3_server_stop(p->server);
    hl_loop_destroy(p->loop);
    hl_pool_remove(p->pool);
}

static struct hl_pool_ref put(struct hl_pool *pool, uint64_t seed)
{
    struct hl_pool_extent x;
    struct hl_pool_ref ref;
    uint32_t crcs[SIZE / MIB];
    uint8_t *bytes = noise(SIZE, seed);
    assert_int_equal(hl_pool_alloc(pool, SIZE, &x), HL_OK);
    memcpy(x.ptr, bytes, SIZE);
    for (size_t i = 0; i < HL_ARRAY_LEN(crcs); i++)
        crcs[i] = plain_crc(bytes + i * MIB, MIB);
    assert_int_equal(hl_pool_seal(pool, &x, plain_crc(bytes, SIZE), crcs, HL_ARRAY_LEN(crcs), &ref),
                     HL_OK);
    free(bytes);
    return ref;
}

static hl_status order(struct world *w, const struct peer *p, const struct hl_pool_ref *ref)
{
    json_t *result = NULL;
    json_t *request = json_pack(
        "{s:s s:I s:I s:s s:s s:s s:s s:i s:i}", "id", hl_id_format(ref->id).s, "sizeBytes",
        (json_int_t)ref->size, "crc32", (json_int_t)ref->crc32, "tier", "L2", "sourceTier", "L3",
        "sourceHostId", "machine-0", "sourceSocket", p->socket, "numaId", -1, "timeoutMs", MS);
    hl_status st = call(w, NODE0, "storeCopy", json_pack("{s:o}", "request", request), &result);
    json_decref(result);
    return st;
}

TEST(a_peer_that_cuts_its_file_after_hello_fails_the_copy_and_not_the_agent)
{
    struct world w;
    struct peer p;
    world_begin(&w, &(struct world_opts){.apart = 1});
    peer_begin(&p);
    struct hl_pool_ref near = put(p.pool, 1), far = put(p.pool, 2);
    if (near.offset > far.offset) {
        struct hl_pool_ref swap = near;
        near = far;
        far = swap;
    }
    hl_status st = order(&w, &p, &near); /* from here on the Agent has it mapped */
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(truncate(p.path, (off_t)(far.offset + MIB)), 0);
    assert_int_not_equal(order(&w, &p, &far), HL_OK);
    print_message("%s\n", hl_error_text());
    /* met while reading, or when a slow Agent has to map the pool again */
    assert_true(strstr(hl_error_text(), "truncated") != NULL ||
                strstr(hl_error_text(), "was made with") != NULL);
    assert_int_equal(waitpid(w.pid[NODE0], NULL, WNOHANG), 0);
    assert_int_equal(tier_number(&w, NODE0, "L2", "writingBytes"), 0);
    peer_end(&p);
    world_end(&w);
}
