/* rpc/rpc.h - Cap'n Proto RPC for C: the thin facade over libcapnp.
 *
 * The wire is Cap'n Proto RPC with the types of api/v1/helios.capnp, so any Cap'n Proto client can
 * talk to a Helios daemon. On the C side parameters and results are the structs of api/types.h;
 * rpc/INTERFACE_calls.h has a function for every method. Received text is converted to valid UTF-8
 * without NUL (bad bytes become U+FFFD). Non-finite floats and unknown enumerants are errors.
 *
 * Owns:    one background thread with the KJ event loop, on which servers and peers live.
 * Threads: every function may be called from any thread, but not from the KJ thread itself.
 *          Handlers and completions run on the hl_loop given with them, which must outlive
 *          everything started on it. Many threads may use one peer.
 * Errors:  HL_EINVAL (a text that is not UTF-8, a missing field: the text has its path),
 *          HL_EUNAVAIL (no process listens, connection lost), HL_ETIMEDOUT (deadline),
 *          HL_EUNSUPPORTED (method unknown to the server), HL_EPROTO (unusable answer),
 *          HL_ECANCELED (peer closed), and any status that the remote handler rejected with. Every
 *          failure of a call names the method and the address.
 * Units:   milliseconds.
 * Limits:  an answer has at most 512 MiB and 16 Mi values, a request 64 MiB and as many values as
 *          $maxValues of its method in helios.capnp says, else 65536; both nest at most 64 deep.
 *          A server has at most half as many connections as the process may have files, and at most
 *          16384. It closes a connection without a call after 10 s. When all are in use it closes
 *          one without a call, else one that has been idle for a minute; otherwise it refuses the
 *          new one, whose calls fail with HL_EBUSY. A forked child must not use its copy of a
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
struct hl_rpc_peer;   /* a connection to a server's bootstrap capability; reconnects by itself */
struct hl_rpc_call;   /* an incoming call that waits for its answer */

hl_status hl_rpc_create(struct hl_rpc **out) HL_CHECK;
/* Close every server and peer of the runtime first. NULL is fine. */
void hl_rpc_destroy(struct hl_rpc *rpc);

/* Calls the handler of the method with this ordinal, on the loop; false: there is none. With `call`
 * NULL it only reports whether there is one. `params` lives as long as the call. The handler
 * answers exactly once, now or later, with hl_rpc_reply or hl_rpc_reject. */
typedef bool (*hl_rpc_dispatch)(const void *handlers, void *arg, struct hl_rpc_call *call,
                                unsigned ordinal, const void *params);

struct hl_rpc_serve_opts {
    const char *address; /* "127.0.0.1:0", "[::1]:7400", "unix:/path/to.sock" */
    struct hl_loop *loop;
    void *arg;                /* given to every handler */
    unsigned max_connections; /* 0 = derived from the limit of open files */
    /* Set by hl_serve_INTERFACE of rpc/INTERFACE_calls.h. */
    const struct hl_api_interface *api;
    const void *handlers;
    hl_rpc_dispatch dispatch;
};

/* HL_EBUSY when the port is in use. */
hl_status hl_rpc_serve(struct hl_rpc *rpc, const struct hl_rpc_serve_opts *opts,
                       struct hl_rpc_server **out) HL_CHECK;
/* The address that the server listens on, with the real port if port 0 was asked for. Borrowed for
 * the server's life. */
const char *hl_rpc_server_address(const struct hl_rpc_server *server);
/* Stops listening and drops the connections. Unanswered calls are rejected, but their hl_rpc_call
 * stays valid until it is answered. Call it on the handler's loop. */
void hl_rpc_server_close(struct hl_rpc_server *server);

/* Memory that lives as long as the call: an answer may be built in it. */
struct hl_arena *hl_rpc_call_arena(struct hl_rpc_call *call);
const struct hl_api_method *hl_rpc_call_method(const struct hl_rpc_call *call);
/* Answers with a struct, which is not kept. Use it through hl_reply_METHOD of
 * rpc/INTERFACE_calls.h. The call fails with HL_ENOMEM if its arena has run out of memory. */
void hl_rpc_reply(struct hl_rpc_call *call, const struct hl_api_method *method,
                  const void *results);

/* Answers with a failure; `text` NULL means hl_error_text(). */
void hl_rpc_reject(struct hl_rpc_call *call, hl_status st, const char *text);

/* A peer connects on its first call, and again on the first call after a lost connection. So open
 * never blocks, and never fails because of an absent server. A call fails at once with HL_EUNAVAIL
 * when no server is there. A call whose connection breaks also fails and is not sent again, because
 * it may have been executed; the caller has to decide whether to repeat it. */
hl_status hl_rpc_open(struct hl_rpc *rpc, const char *address, const char *interface,
                      struct hl_rpc_peer **out) HL_CHECK;
/* Calls in progress end with HL_ECANCELED; their completions still run. NULL is fine. */
void hl_rpc_peer_close(struct hl_rpc_peer *peer);
const char *hl_rpc_peer_address(const struct hl_rpc_peer *peer);
const char *hl_rpc_peer_interface(const struct hl_rpc_peer *peer);

/* Calls and waits at most timeout_ms; use it through hl_call_METHOD of rpc/INTERFACE_calls.h.
 * `results` may be NULL. On HL_OK it points into the arena; on failure both are untouched. */
hl_status hl_rpc_call(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                      const void *params, int timeout_ms, struct hl_arena *arena,
                      void *results) HL_CHECK;
typedef void (*hl_rpc_callback)(void);
/* Casts `done` back to its own type and calls it; `results` is NULL unless st is HL_OK. */
typedef void (*hl_rpc_finish)(hl_rpc_callback done, void *arg, hl_status st, const char *text,
                              const void *results);
/* Calls asynchronously; use it through hl_call_METHOD_async. done runs on the loop exactly once,
 * never inside this function. Its arguments live until it returns. */
void hl_rpc_call_async(struct hl_rpc_peer *peer, const struct hl_api_method *method,
                       const void *params, int timeout_ms, struct hl_loop *loop,
                       hl_rpc_finish finish, hl_rpc_callback done, void *arg);

#ifdef __cplusplus
}
#endif

#endif
