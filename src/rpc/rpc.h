/* rpc/rpc.h - Cap'n Proto RPC for C: the thin facade over libcapnp.
 *
 * The wire is Cap'n Proto RPC with the types of api/v1/helios.capnp, so any Cap'n Proto client can
 * talk to a Helios daemon. On the C side parameters and results are the structs of api/types.h;
 * rpc/INTERFACE_calls.h has a function for every method. Text that arrives is made valid UTF-8
 * without NUL (U+FFFD in place of bad bytes); a float that is not a finite number and an enumerant
 * that is not in the schema are errors.
 *
 * Owns:    one background thread with the KJ event loop; servers and peers live on it.
 * Threads: every function may be called from any thread, but not from the KJ thread itself.
 *          Handlers and completions run on the hl_loop given with them, which must outlive what
 *          was started on it. One peer may be used by many threads.
 * Errors:  HL_EINVAL (a text that is not UTF-8, a missing field: the text has its path),
 *          HL_EUNAVAIL (nobody listens, connection lost), HL_ETIMEDOUT (deadline), HL_EUNSUPPORTED
 *          (method unknown there), HL_EPROTO (an answer that can't be used), HL_ECANCELED (peer
 *          closed), and whatever status the remote handler rejected with. Every failure of a call
 *          names the method and the address.
 * Units:   milliseconds.
 * Limits:  an answer has at most 512 MiB and 16 Mi values, a request 64 MiB and as many values as
 *          $maxValues of its method in helios.capnp says, else 65536; both nest at most 64 deep.
 *          A server has half as many connections as the process may have files, at most 16384. It
 *          closes a connection without a call after 10 s. When all are taken it closes one without
 *          a call, else one that has been idle for a minute, else it refuses the new one, whose
 *          calls fail with HL_EBUSY. A process that forks must not use the child's copy of a
 *          runtime.
 */
#ifndef HL_RPC_RPC_H
#define HL_RPC_RPC_H

#include "api/api.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct hl_loop;
struct hl_rpc;        /* the runtime: one KJ thread */
struct hl_rpc_server; /* a listening socket with one bootstrap capability */
struct hl_rpc_peer;   /* a connection to somebody's bootstrap capability; reconnects by itself */
struct hl_rpc_call;   /* one incoming call that waits for its answer */

hl_status hl_rpc_create(struct hl_rpc **out) HL_CHECK;
/* Every server and peer of the runtime must be closed before. NULL is fine. */
void hl_rpc_destroy(struct hl_rpc *rpc);

/* Calls the handler of the method with this ordinal, on the loop; false: there is none. With `call`
 * NULL it only says whether there is one. `params` lives as long as the call. The handler answers
 * exactly once, now or later, by hl_rpc_reply or hl_rpc_reject. */
typedef bool (*hl_rpc_dispatch)(const void *handlers, void *arg, struct hl_rpc_call *call,
                                unsigned ordinal, const void *params);

struct hl_rpc_serve_opts {
    const char *address; /* "127.0.0.1:0", "[::1]:7400", "unix:/path/to.sock" */
    struct hl_loop *loop;
    void *arg;                /* given to every handler */
    unsigned max_connections; /* 0 = by the limit of files */
    /* Set by hl_serve_INTERFACE of rpc/INTERFACE_calls.h. */
    const struct hl_api_interface *api;
    const void *handlers;
    hl_rpc_dispatch dispatch;
};

/* HL_EBUSY when the port is in use. */
hl_status hl_rpc_serve(struct hl_rpc *rpc, const struct hl_rpc_serve_opts *opts,
                       struct hl_rpc_server **out) HL_CHECK;
/* Address with the real port. Borrowed for the server's life. */
const char *hl_rpc_server_address(const struct hl_rpc_server *server);
/* Stop listening and drop the connections; calls still unanswered are rejected, their hl_rpc_call
 * stays valid until it is answered. Call it on the handler's loop. */
void hl_rpc_server_close(struct hl_rpc_server *server);

/* Memory that lives as long as the call: an answer may be built in it. */
struct hl_arena *hl_rpc_call_arena(struct hl_rpc_call *call);
const struct hl_api_method *hl_rpc_call_method(const struct hl_rpc_call *call);
/* Answer with a struct, of which nothing is kept. By hl_reply_METHOD of rpc/INTERFACE_calls.h. The
 * call fails with HL_ENOMEM when its arena has. */
void hl_rpc_reply(struct hl_rpc_call *call, const struct hl_api_method *method,
                  const void *results);

/* Answer with a failure; `text` NULL takes hl_error_text(). */
void hl_rpc_reject(struct hl_rpc_call *call, hl_status st, const char *text);

/* A peer connects on its first call and again on the first call after a lost connection: open
 * never blocks and never fails for an absent server. A call that meets nobody fails at once with
 * HL_EUNAVAIL. A call whose connection breaks fails too and is not sent again, since it may have
 * been executed: whether to repeat it is for the caller to know. */
hl_status hl_rpc_open(struct hl_rpc *rpc, const char *address, const char *interface,
                      struct hl_rpc_peer **out) HL_CHECK;
/* Calls under way end with HL_ECANCELED; their completions still run. NULL is fine. */
void hl_rpc_peer_close(struct hl_rpc_peer *peer);
const char *hl_rpc_peer_address(const struct hl_rpc_peer *peer);
const char *hl_rpc_peer_interface(const struct hl_rpc_peer *peer);

/* Call and wait at most timeout_ms, by hl_call_METHOD of rpc/INTERFACE_calls.h. `results` may be
 * NULL; else it points into the arena on HL_OK, and both are untouched otherwise. */
hl_status hl_rpc_call(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                      const void *params, int timeout_ms, struct hl_arena *arena,
                      void *results) HL_CHECK;
typedef void (*hl_rpc_callback)(void);
/* Gives `done` its own type back and calls it; `results` is NULL unless st is HL_OK. */
typedef void (*hl_rpc_finish)(hl_rpc_callback done, void *arg, hl_status st, const char *text,
                              const void *results);
/* Call and go on, by hl_call_METHOD_async: done runs on the loop exactly once, never inside this
 * function. What it is given lives until it returns. */
void hl_rpc_call_async(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                       const void *params, int timeout_ms, struct hl_loop *loop,
                       hl_rpc_finish finish, hl_rpc_callback done, void *arg);

#ifdef __cplusplus
}
#endif

#endif
