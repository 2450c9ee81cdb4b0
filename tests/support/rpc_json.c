#include "support/rpc_json.h"

#include <stdlib.h>
#include <string.h>

#include "api/types.h"
#include "os/loop.h"

static const struct hl_api_interface *find_interface(const char *name)
{
    static const struct hl_api_interface *const all[] = {&hl_api_controller, &hl_api_agent,
                                                         &hl_api_l3};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

static const struct hl_api_method *find_method(struct hl_rpc_peer *peer, const char *name)
{
    const struct hl_api_interface *api = find_interface(hl_rpc_peer_interface(peer));
    for (size_t i = 0; i < api->method_count; i++)
        if (strcmp(api->methods[i].name, name) == 0)
            return &api->methods[i];
    return NULL;
}

/* A struct of the type in the arena, from JSON or (NULL) with the defaults. */
static hl_status value_make(const struct hl_api_type *type, const json_t *json,
                            struct hl_arena *arena, void **out)
{
    *out = hl_arena_alloc(arena, type->size);
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory making a message");
    memset(*out, 0, type->size);
    return json == NULL ? HL_OK : hl_api_from_json(type, json, arena, *out);
}

hl_status rpc_json_call(struct hl_rpc_peer *peer, const char *name, const json_t *params,
                        int timeout_ms, json_t **result)
{
    const struct hl_api_method *method = find_method(peer, name);
    if (method == NULL)
        return hl_fail(HL_EINVAL, "the interface has no method %s", name);
    struct hl_arena arena = {0};
    void *sent = NULL, *got = NULL;
    hl_status st = value_make(method->params, params, &arena, &sent);
    if (st == HL_OK && result != NULL)
        st = value_make(method->results, NULL, &arena, &got);
    if (st == HL_OK) {
        struct hl_arena answer = {0};
        st = hl_rpc_call(peer, method, sent, timeout_ms, &answer, got);
        if (st == HL_OK && result != NULL)
            *result = hl_api_to_json(method->results, got);
        hl_arena_fini(&answer);
    }
    hl_arena_fini(&arena);
    return st;
}

struct async_call {
    const struct hl_api_method *method;
    rpc_json_done done;
    void *arg;
    hl_status st; /* of a call that could not be made */
    char text[512];
};

static void async_finish(hl_rpc_callback done, void *arg, hl_status st, const char *text,
                         const void *results)
{
    (void)done;
    struct async_call *c = arg;
    json_t *json = st == HL_OK ? hl_api_to_json(c->method->results, results) : NULL;
    c->done(c->arg, st, text, json);
    json_decref(json);
    free(c);
}

static void async_fail(void *arg)
{
    struct async_call *c = arg;
    c->done(c->arg, c->st, c->text, NULL);
    free(c);
}

void rpc_json_call_async(struct hl_rpc_peer *peer, const char *name, const json_t *params,
                         int timeout_ms, struct hl_loop *loop, rpc_json_done done, void *arg)
{
    struct async_call *c = calloc(1, sizeof(*c));
    struct hl_arena arena = {0};
    void *sent = NULL;
    *c = (struct async_call){.method = find_method(peer, name), .done = done, .arg = arg};
    c->st = c->method == NULL ? hl_fail(HL_EINVAL, "the interface has no method %s", name)
                              : value_make(c->method->params, params, &arena, &sent);
    if (c->st == HL_OK) {
        hl_rpc_call_async(peer, c->method, sent, timeout_ms, loop, async_finish, NULL, c);
    } else {
        snprintf(c->text, sizeof(c->text), "%s", hl_error_text());
        hl_loop_post(loop, async_fail, c);
    }
    hl_arena_fini(&arena);
}

struct served {
    const struct hl_api_interface *api;
    rpc_json_handler handler;
};

static bool json_dispatch(const void *handlers, void *arg, struct hl_rpc_call *call,
                          unsigned ordinal, const void *params)
{
    const struct served *served = handlers;
    if (call == NULL)
        return true;
    const struct hl_api_method *method = &served->api->methods[ordinal];
    json_t *json = hl_api_to_json(method->params, params);
    served->handler(arg, call, method->name, json);
    json_decref(json);
    return true;
}

hl_status rpc_json_serve(struct hl_rpc *rpc, const char *interface,
                         const struct hl_rpc_serve_opts *opts, rpc_json_handler handler,
                         struct hl_rpc_server **out)
{
    static struct served all[64]; /* a server's handlers must outlive it */
    const struct hl_api_interface *api = find_interface(interface);
    size_t i = 0;
    while (i < HL_ARRAY_LEN(all) && all[i].api != NULL &&
           (all[i].api != api || all[i].handler != handler))
        i++;
    if (i == HL_ARRAY_LEN(all))
        return hl_fail(HL_ENOSPC, "more than %zu handlers", HL_ARRAY_LEN(all));
    all[i] = (struct served){api, handler};
    struct hl_rpc_serve_opts with = *opts;
    with.api = api;
    with.handlers = &all[i];
    with.dispatch = json_dispatch;
    return hl_rpc_serve(rpc, &with, out);
}

void rpc_json_reply(struct hl_rpc_call *call, json_t *result)
{
    const struct hl_api_method *method = hl_rpc_call_method(call);
    void *value = NULL;
    hl_status st = value_make(method->results, result, hl_rpc_call_arena(call), &value);
    json_decref(result);
    if (st == HL_OK)
        return hl_rpc_reply(call, method, value);
    char text[512];
    snprintf(text, sizeof(text), "the answer of %s doesn't fit the schema: %s", method->name,
             hl_error_text());
    hl_rpc_reject(call, HL_EINTERNAL, text);
}
