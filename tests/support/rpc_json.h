/* support/rpc_json.h - calls and answers as JSON, so that tests can write messages as text.
 *
 * Owns:    nothing; a result is the caller's.
 * Threads: as rpc/rpc.h. rpc_json_serve: one thread at a time.
 * Errors:  as rpc/rpc.h, and HL_EINVAL for what the schema does not have.
 * Units:   milliseconds.
 * Limits:  64 handlers in the life of a process.
 */
#ifndef HL_TESTS_RPC_JSON_H
#define HL_TESTS_RPC_JSON_H

#include <jansson.h>

#include "rpc/rpc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `params` NULL = defaults. `result` may be NULL; else a new reference on HL_OK. */
hl_status rpc_json_call(struct hl_rpc_peer *peer, const char *method, const json_t *params,
                        int timeout_ms, json_t **result) HL_CHECK;

/* `result` is borrowed, NULL unless st is HL_OK. */
typedef void (*rpc_json_done)(void *arg, hl_status st, const char *text, json_t *result);
void rpc_json_call_async(struct hl_rpc_peer *peer, const char *method, const json_t *params,
                         int timeout_ms, struct hl_loop *loop, rpc_json_done done, void *arg);

/* `params` is borrowed until the handler returns. */
typedef void (*rpc_json_handler)(void *arg, struct hl_rpc_call *call, const char *method,
                                 const json_t *params);
/* Passes every method of the interface ("Controller", "Agent", "L3") to the handler. */
hl_status rpc_json_serve(struct hl_rpc *rpc, const char *interface,
                         const struct hl_rpc_serve_opts *opts, rpc_json_handler handler,
                         struct hl_rpc_server **out) HL_CHECK;
/* Takes the reference to `result`; NULL = all defaults. */
void rpc_json_reply(struct hl_rpc_call *call, json_t *result);

#ifdef __cplusplus
}
#endif

#endif
