/* unit/rpc/rig.h - a server whose handler runs on its own loop thread, and a peer that calls it.
 *
 * Owns:    runtime, loop, server, peer; calls held back until rig_take().
 * Threads: the test thread uses everything here; the handler runs on the loop's thread.
 * Errors:  cmocka assertions.
 * Units:   milliseconds.
 * Limits:  64 calls held back.
 */
#ifndef HL_TESTS_RPC_RIG_H
#define HL_TESTS_RPC_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "base/status.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"

#define RIG_PATIENCE_MS 20000
#define RIG_ANSWERS_MAX 8

struct rig_answer {
    const char *method;
    const char *json;
};

struct rig {
    struct hl_rpc *rpc;
    struct hl_loop *loop;
    pthread_t thread;
    struct hl_rpc_server *server;
    struct hl_rpc_peer *peer;
    char address[256];
    const struct rig_answer *answers; /* ends with a NULL method */
    pthread_mutex_t lock;             /* guards what follows */
    pthread_cond_t changed;
    json_t *seen; /* a copy of the last parameters */
    struct hl_rpc_call *held[64];
    int held_count;
    int calls;
    unsigned max_connections; /* set before rig_serve; 0 = the server's own */
};

/* How the handler answers:
 *   a text parameter "name" or "id" = "hold"   keeps the call for rig_take()
 *   ... = "ENOENT" and other status names      rejects with it and the text "as asked"
 *   otherwise the JSON of `answers` for the method, or {}. */
static inline void rig_handle(void *arg, struct hl_rpc_call *call, const char *method,
                              const json_t *params)
{
    struct rig *r = arg;
    const char *name = json_string_value(json_object_get(params, "name"));
    if (name == NULL)
        name = json_string_value(json_object_get(params, "id"));
    pthread_mutex_lock(&r->lock);
    json_decref(r->seen);
    r->seen = json_deep_copy(params);
    r->calls++;
    int hold = name != NULL && strcmp(name, "hold") == 0;
    if (hold)
        r->held[r->held_count++] = call;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (hold)
        return;
    if (name != NULL && name[0] == 'E') {
        hl_rpc_reject(call, hl_status_by_name(name), "as asked");
        return;
    }
    json_t *result = NULL;
    for (const struct rig_answer *a = r->answers; a != NULL && a->method != NULL; a++)
        if (strcmp(a->method, method) == 0)
            result = json_loads(a->json, 0, NULL);
    rpc_json_reply(call, result);
}

static inline int rig_calls(struct rig *r)
{
    pthread_mutex_lock(&r->lock);
    int calls = r->calls;
    pthread_mutex_unlock(&r->lock);
    return calls;
}

static inline void *rig_loop_thread(void *arg)
{
    struct rig *r = arg;
    hl_status st = hl_loop_run(r->loop);
    return st == HL_OK ? NULL : r;
}

struct rig_task {
    struct rig *rig;
    hl_loop_fn fn;
    int done;
};

static inline void rig_run_task(void *arg)
{
    struct rig_task *t = arg;
    t->fn(t->rig);
    pthread_mutex_lock(&t->rig->lock);
    t->done = 1;
    pthread_cond_broadcast(&t->rig->changed);
    pthread_mutex_unlock(&t->rig->lock);
}

/* Run fn(rig) on the loop's thread and wait for it. */
static inline void rig_on_loop(struct rig *r, hl_loop_fn fn)
{
    struct rig_task t = {r, fn, 0};
    hl_loop_post(r->loop, rig_run_task, &t);
    pthread_mutex_lock(&r->lock);
    while (!t.done)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

static inline void rig_serve(struct rig *r, const char *address, const char *interface)
{
    assert_int_equal(
        rpc_json_serve(r->rpc, interface,
                       &(struct hl_rpc_serve_opts){.address = address,
                                                   .loop = r->loop,
                                                   .arg = r,
                                                   .max_connections = r->max_connections},
                       rig_handle, &r->server),
        HL_OK);
    snprintf(r->address, sizeof(r->address), "%s", hl_rpc_server_address(r->server));
}

static inline void rig_close_server_here(void *arg)
{
    struct rig *r = arg;
    hl_rpc_server_close(r->server);
    r->server = NULL;
}

static inline void rig_close_server(struct rig *r)
{
    rig_on_loop(r, rig_close_server_here);
}

static inline void rig_start(struct rig *r, const char *address, const char *interface,
                             const struct rig_answer *answers)
{
    *r = (struct rig){.answers = answers};
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    assert_int_equal(hl_loop_create(&r->loop), HL_OK);
    assert_int_equal(hl_rpc_create(&r->rpc), HL_OK);
    assert_int_equal(pthread_create(&r->thread, NULL, rig_loop_thread, r), 0);
    rig_serve(r, address, interface);
    assert_int_equal(hl_rpc_open(r->rpc, r->address, interface, &r->peer), HL_OK);
}

static inline void rig_stop(struct rig *r)
{
    if (r->server != NULL)
        rig_close_server(r);
    hl_rpc_peer_close(r->peer);
    hl_rpc_destroy(r->rpc);
    hl_loop_stop(r->loop);
    void *failed = NULL;
    pthread_join(r->thread, &failed);
    assert_null(failed);
    hl_loop_destroy(r->loop);
    json_decref(r->seen);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

/* The next call that was held back; waits for it. */
static inline struct hl_rpc_call *rig_take(struct rig *r)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RIG_PATIENCE_MS / 1000;
    pthread_mutex_lock(&r->lock);
    while (r->held_count == 0)
        assert_int_equal(pthread_cond_timedwait(&r->changed, &r->lock, &until), 0);
    struct hl_rpc_call *call = r->held[--r->held_count];
    pthread_mutex_unlock(&r->lock);
    return call;
}

/* Call with parameters as JSON text; the result must be freed. */
static inline hl_status rig_call(struct rig *r, const char *method, const char *params,
                                 json_t **result)
{
    json_t *p = params != NULL ? json_loads(params, 0, NULL) : NULL;
    if (params != NULL)
        assert_non_null(p);
    hl_status st = rpc_json_call(r->peer, method, p, RIG_PATIENCE_MS, result);
    json_decref(p);
    return st;
}

static inline void assert_json(json_t *actual, const char *expected)
{
    json_t *want = json_loads(expected, 0, NULL);
    assert_non_null(want);
    if (!json_equal(actual, want)) {
        char *text = json_dumps(actual, JSON_SORT_KEYS);
        fail_msg("expected %s, found %s", expected, text);
    }
    json_decref(want);
}

#define assert_error_has(part)                                                                     \
    do {                                                                                           \
        if (strstr(hl_error_text(), (part)) == NULL)                                               \
            fail_msg("\"%s\" is not in \"%s\"", (part), hl_error_text());                          \
    } while (0)

#endif
