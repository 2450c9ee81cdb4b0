/* mem/socket/l3_server_private.h - connections of the pool's socket, and the put that each of them
 * may run.
 *
 * Threads: the daemon's loop; a put's copy runs in libuv's pool.
 */
#ifndef HL_MEM_L3_SERVER_PRIVATE_H
#define HL_MEM_L3_SERVER_PRIVATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <uthash.h>
#include <uv.h>

#include "base/log_limit.h"
#include "mem/socket/l3_proto.h"
#include "mem/socket/l3_rests.h"
#include "mem/socket/socket.h"
#include "os/loop.h"

struct l3_pin {
    struct l3_pin_key {
        struct hl_id id;
        uint64_t offset;
    } key;

    struct hl_pool_ref ref;
    uint64_t count;
    uint32_t word; /* word of the one of these pins that may rest; 0 = none may */
    struct hl_pool_rest rest;
    UT_hash_handle hh;
};

/* A copy from a client's memfd into the pool, run on one of libuv's threads. */
struct l3_put {
    uv_work_t work;
    struct l3_conn *conn;
    const struct hl_l3_server_opts *opts;
    int memfd;
    struct hl_l3_request req;
    atomic_bool cancel; /* set when the connection is gone */
    hl_status st;
    struct hl_pool_ref ref;
    char text[256];
};

struct l3_mapped {
    uint32_t token;
    struct hl_l3_mapping mapping;
    UT_hash_handle hh;
};

struct l3_conn {
    struct hl_l3_server *server;
    uv_poll_t poll;
    int fd;
    int pid; /* of the client; 0 = not known */
    bool greeted;
    bool closing;
    struct l3_put *put;        /* in progress */
    struct hl_l3_request load; /* the pin request that waits for a load */
    bool loading;
    int load_tries;
    struct hl_id last_put;
    struct l3_pin *pins;
    struct l3_rests rests;
    struct l3_mapped *mapped;
    uint32_t last_token;
    struct l3_conn *prev, *next;
};

struct hl_l3_server {
    struct hl_l3_server_opts opts;
    char *path;
    int listener;
    int pool_fd; /* read-only, goes to every client */
    uv_poll_t poll;
    bool poll_open;
    bool stopping;
    struct hl_timer *pause; /* accept nothing until it fires: file descriptors had run out */
    struct l3_conn *conns;
    struct hl_log_limit refusals, shortages;
    unsigned open; /* connections and copies that have not ended */
    struct hl_l3_server_stats stats;
};

/* Runs in a worker thread: copies and seals, or fails with a text. */
void l3_put_run(struct l3_put *put);

#endif
