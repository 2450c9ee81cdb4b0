/* The pool, a put handler that records, and connections, for the tests of both back ends. */
#ifndef HL_TEST_NET_RIG_H
#define HL_TEST_NET_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "net/net.h"
#include "net/ucx/ucx_private.h"

#define MIB      ((size_t)1 << 20)
#define POOL_LEN (72 * MIB + 4096)
#define CHUNKS   (POOL_LEN / MIB + 1)

static uint8_t *pool;
static const struct hl_net_ops *back_end; /* used by serve and join */

/* What a put handler saw, and settings to make it fail. */
struct vault {
    uint8_t *bytes;
    uint64_t size;
    int begun, committed, aborted;
    uint32_t chunk_crcs[32];
    size_t chunk_count;
    bool refuse_begin, refuse_commit;
    struct hl_id wanted; /* the name in the last begin */
};

/* Handlers run on the server's thread: passing this gate orders their accesses and the test's. */
static void gate(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

__attribute__((unused)) static hl_status put(struct hl_net_client *client, const void *data,
                                             uint64_t size, uint32_t crc, int timeout_ms,
                                             struct hl_id *id)
{
    gate();
    hl_status st = hl_net_put(client, data, size, crc, timeout_ms, id);
    gate();
    return st;
}

static hl_status vault_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct vault *v = arg;
    gate();
    bool refuse = v->refuse_begin;
    v->wanted = id;
    gate();
    if (refuse)
        return hl_fail(HL_ENOSPC, "the pool has 7 bytes left");
    v->begun++;
    v->size = size;
    v->bytes = malloc(size);
    *token = v;
    *ptr = v->bytes;
    gate();
    return HL_OK;
}

static hl_status vault_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                              size_t chunk_count, struct hl_id *id)
{
    struct vault *v = arg;
    assert_ptr_equal(token, v);
    gate();
    bool refuse = v->refuse_commit;
    gate();
    if (refuse)
        return hl_fail(HL_ECONFLICT, "sealing failed");
    v->committed++;
    v->chunk_count = chunk_count;
    for (size_t i = 0; i < chunk_count && i < HL_ARRAY_LEN(v->chunk_crcs); i++)
        v->chunk_crcs[i] = chunk_crcs[i];
    *id = hl_id_is_none(v->wanted) ? (struct hl_id){0x1122334455667788, crc} : v->wanted;
    gate();
    return HL_OK;
}

static void vault_abort(void *arg, void *token)
{
    struct vault *v = arg;
    assert_ptr_equal(token, v);
    gate();
    v->aborted++;
    free(v->bytes);
    v->bytes = NULL;
    gate();
}

__attribute__((unused)) static struct hl_net_server *serve(struct vault *v, enum hl_net_mode mode)
{
    struct hl_net_server *server = NULL;
    struct hl_net_server_opts opts = {
        .listen = "127.0.0.1:0", .pool = pool, .pool_len = POOL_LEN, .mode = mode, .ops = back_end};
    if (v != NULL)
        opts.put = (struct hl_net_put_handler){vault_begin, vault_commit, vault_abort, v};
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    return server;
}

__attribute__((unused)) static struct hl_net_client *join(const struct hl_net_server *server,
                                                          enum hl_net_mode mode)
{
    struct hl_net_client *client = NULL;
    struct hl_net_connect_opts opts = {.address = hl_net_server_address(server),
                                       .timeout_ms = 5000,
                                       .mode = mode,
                                       .ops = back_end};
    if (hl_net_connect_with(&opts, &client) != HL_OK)
        fail_msg("%s", hl_error_text());
    return client;
}

__attribute__((unused)) static struct hl_net_server_stats
stats_of(const struct hl_net_server *server)
{
    struct hl_net_server_stats stats;
    hl_net_server_stats(server, &stats);
    return stats;
}

/* hl_net_connect over the back end under test. */
__attribute__((unused)) static hl_status reach(const char *address, int timeout_ms,
                                               struct hl_net_client **out)
{
    struct hl_net_connect_opts opts = {
        .address = address, .timeout_ms = timeout_ms, .ops = back_end};
    return hl_net_connect_with(&opts, out);
}

__attribute__((unused)) static void check_fetch(struct hl_net_client *client, uint64_t offset,
                                                size_t len)
{
    uint8_t *dst = malloc(len + 2);
    memset(dst, 0x5a, len + 2);
    if (hl_net_fetch(client, offset, dst + 1, len, 5000) != HL_OK)
        fail_msg("%zu bytes at %llu: %s", len, (unsigned long long)offset, hl_error_text());
    assert_memory_equal(dst + 1, pool + offset, len);
    assert_int_equal(dst[0], 0x5a);
    assert_int_equal(dst[len + 1], 0x5a);
    free(dst);
}

static uint32_t next_random(uint32_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    *seed ^= *seed << 5;
    return *seed;
}

static void set_up_bytes(void)
{
    uint32_t seed = 0x9e3779b9;
    pool = mmap(NULL, POOL_LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < POOL_LEN / 4; i++)
        ((uint32_t *)pool)[i] = next_random(&seed);
}

/* Group set-ups: the tests run over UCX, or over TCP. Only tests listen by UCX over TCP, and a
 * reused port can have old connections that linger: UCX 1.13 reads this setting of its connection
 * manager only from the environment. */
__attribute__((unused)) static int over_ucx(void **state)
{
    (void)state;
    setenv("UCX_TCP_CM_REUSEADDR", "y", 0);
    back_end = hl_net_ucx();
    set_up_bytes();
    return 0;
}

__attribute__((unused)) static int over_tcp(void **state)
{
    (void)state;
    back_end = hl_net_tcp();
    set_up_bytes();
    return 0;
}

#endif
