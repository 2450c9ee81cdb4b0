/* A pool with its socket's server, on a loop in a thread of its own. */
#ifndef TESTS_INTEGRATION_L3_SOCKET_WORLD_H
#define TESTS_INTEGRATION_L3_SOCKET_WORLD_H

#include "support/test.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "mem/socket/l3_proto.h"
#include "mem/socket/socket.h"
#include "os/loop.h"
#include "os/socket.h"

#define MIB      ((uint64_t)1 << 20)
#define CAPACITY (64 * MIB)
#define MS       10000

struct world {
    struct hl_pool *pool;
    struct hl_loop *loop;
    struct hl_l3_server *server;
    pthread_t thread;
    int running;
    struct hl_l3_server_stats stats; /* after server_end */
    char pool_path[64], socket_path[64];
};

static inline void *run_loop(void *arg)
{
    struct world *w = arg;
    hl_status st = hl_loop_run(w->loop);
    return st == HL_OK ? NULL : arg;
}

static inline void world_start(struct world *w, unsigned max_clients)
{
    *w = (struct world){0};
    snprintf(w->pool_path, sizeof(w->pool_path), "/dev/shm/helios-test-l3-%d", (int)getpid());
    snprintf(w->socket_path, sizeof(w->socket_path), "/dev/shm/helios-test-l3-%d.sock",
             (int)getpid());
    assert_int_equal(hl_pool_open(&(struct hl_pool_options){.path = w->pool_path,
                                                            .capacity = CAPACITY,
                                                            .quarantine_ms = 1,
                                                            .beat_ms = 1},
                                  NULL, &w->pool),
                     HL_OK);
    assert_int_equal(hl_loop_create(&w->loop), HL_OK);
    assert_int_equal(hl_l3_server_start(&(struct hl_l3_server_opts){.loop = w->loop,
                                                                    .pool = w->pool,
                                                                    .socket_path = w->socket_path,
                                                                    .max_clients = max_clients},
                                        &w->server),
                     HL_OK);
    assert_int_equal(pthread_create(&w->thread, NULL, run_loop, w), 0);
    w->running = 1;
}

static inline void server_end(struct world *w)
{
    if (!w->running)
        return;
    hl_loop_stop(w->loop);
    pthread_join(w->thread, NULL);
    hl_l3_server_stats(w->server, &w->stats);
    hl_l3_server_stop(w->server);
    w->running = 0;
}

static inline void world_end(struct world *w)
{
    server_end(w);
    hl_loop_destroy(w->loop);
    hl_pool_remove(w->pool);
    assert_int_not_equal(access(w->socket_path, F_OK), 0);
}

static inline struct hl_l3_client *connect_to(const struct world *w)
{
    struct hl_l3_client *c = NULL;
    hl_status st = hl_l3_connect(w->socket_path, MS, &c);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    return c;
}

static inline hl_status put(struct hl_l3_client *c, uint64_t size, int byte,
                            struct hl_pool_ref *ref)
{
    struct hl_l3_staging s = {0};
    HL_TRY(hl_l3_staging_open(size, &s));
    memset(s.ptr, byte, size);
    hl_status st = hl_l3_put(c, &s, size, MS, ref);
    hl_l3_staging_close(&s);
    return st;
}

/* Wait until so many shards are left and nothing rests; then every byte is accounted for. */
static inline void wait_for_space(struct world *w, uint64_t shards, uint64_t used)
{
    struct hl_pool_info info;
    uint64_t deadline = hl_now_ns() + 10 * HL_NS_PER_S;
    do {
        poll(NULL, 0, 1);
        hl_pool_info(w->pool, &info);
    } while ((info.shards != shards || info.used != used || info.quarantined != 0) &&
             hl_now_ns() < deadline);
    assert_int_equal(info.shards, shards);
    assert_int_equal(info.used, used);
    assert_int_equal(info.quarantined, 0);
    assert_int_equal(info.free, info.capacity - used);
}

/* One raw request; the answer's status, or HL_EUNAVAIL when the server hung up. */
static inline hl_status raw(int fd, struct hl_l3_request req, int pass)
{
    struct hl_l3_answer a;
    int got = -1;
    req.magic = req.magic != 0 ? req.magic : HL_L3_MAGIC;
    req.version = req.version != 0 ? req.version : HL_L3_VERSION;
    HL_TRY(hl_socket_send(fd, &req, sizeof(req), pass, MS));
    HL_TRY(hl_socket_recv(fd, &a, sizeof(a), &got, MS));
    if (got >= 0)
        close(got);
    return (hl_status)a.status;
}

static inline int raw_connect(const struct world *w)
{
    int fd = -1;
    assert_int_equal(hl_socket_connect(w->socket_path, MS, &fd), HL_OK);
    return fd;
}

#endif
