/* What holders report about the copies of a shard. Every node that may have a copy is asked; one
 * that does not answer is not believed.
 *
 *     L1   the Agent reads it through           Agent.storeVerify
 *     L2   size and CRC of its index            Agent.storeLocate
 *     L3   the same of the pool's               L3.look
 *     L4   L3 reads it through                  L3.verify */
#include <stdlib.h>
#include <string.h>

#include "controller/copies/copies_private.h"

#define PLACES_MAX 64

struct confirmation {
    struct hl_controller *c;
    struct hl_id id;
    uint64_t size;
    uint32_t crc32;

    struct asked {
        struct confirmation *of;
        struct place place;
    } asked[PLACES_MAX];

    size_t asked_count, open;
    struct confirmed_copy copies[PLACES_MAX];
    size_t count;
    hl_status st; /* of the first one that did not answer */
    char text[HL_ERROR_TEXT_MAX];
    copies_confirmed done;
    void *arg;
};

static void confirmation_end(struct confirmation *x)
{
    x->done(x->arg, x->st, x->text, x->copies, x->count);
    free(x);
}

/* has: the copy exists, with that size and CRC. */
static void asked_answered(struct asked *a, hl_status st, const char *text, bool has, uint64_t size,
                           uint32_t crc32)
{
    struct confirmation *x = a->of;
    st = controller_stopped(x->c) ? HL_ECANCELED : holder_status(st);
    if (st == HL_OK && has)
        x->copies[x->count++] = (struct confirmed_copy){a->place, size, crc32};
    if (st != HL_OK && st != HL_ENOENT && x->st != HL_ECANCELED) {
        x->st = st;
        snprintf(x->text, sizeof(x->text), "%s", text != NULL ? text : "");
    }
    if (--x->open == 0)
        confirmation_end(x);
}

static void on_verified(void *arg, hl_status st, const char *text,
                        const struct hl_api_agent_store_verify_results *r)
{
    struct asked *a = arg;
    asked_answered(a, st, text, r != NULL && r->ok, a->of->size, a->of->crc32);
}

static void on_located(void *arg, hl_status st, const char *text,
                       const struct hl_api_agent_store_locate_results *r)
{
    bool has = r != NULL && r->extents.count > 0;
    asked_answered(arg, st, text, has, has ? r->extents.items[0].size_bytes : 0,
                   has ? r->extents.items[0].crc32 : 0);
}

static void on_looked(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_look_results *r)
{
    const struct hl_api_found_shard *found =
        r != NULL && r->shards.count > 0 ? &r->shards.items[0] : NULL;
    bool has = found != NULL && found->tier == HL_API_TIER_L3;
    asked_answered(arg, st, text, has, has ? found->size_bytes : 0, has ? found->crc32 : 0);
}

static void on_archive_verified(void *arg, hl_status st, const char *text,
                                const struct hl_api_l3_verify_results *r)
{
    struct asked *a = arg;
    asked_answered(a, st, text, r != NULL && r->ok, a->of->size,
                   r != NULL && r->crc32_known ? r->crc32 : a->of->crc32);
}

static void ask_node(struct asked *a, const char *id)
{
    struct hl_controller *c = a->of->c;
    const char *items[] = {id};
    if (a->place.tier == HL_API_TIER_L1)
        hl_call_agent_store_verify_async(a->place.node->agent,
                                         &(struct hl_api_agent_store_verify_params){
                                             id, HL_API_TIER_L1, a->place.device, c->claim.epoch},
                                         c->opts.copy_timeout_ms, c->opts.loop, on_verified, a);
    else
        hl_call_agent_store_locate_async(
            a->place.node->agent,
            &(struct hl_api_agent_store_locate_params){{items, 1}, c->claim.epoch},
            c->opts.rpc_timeout_ms, c->opts.loop, on_located, a);
}

static void ask_l3(struct asked *a, const char *id)
{
    struct hl_controller *c = a->of->c;
    const char *items[] = {id};
    if (a->place.tier == HL_API_TIER_L4)
        hl_call_l3_verify_async(c->l3, &(struct hl_api_l3_verify_params){id, HL_API_TIER_L4},
                                c->opts.copy_timeout_ms, c->opts.loop, on_archive_verified, a);
    else
        hl_call_l3_look_async(c->l3, &(struct hl_api_l3_look_params){{items, 1}},
                              c->opts.rpc_timeout_ms, c->opts.loop, on_looked, a);
}

static void confirmation_add(struct confirmation *x, const struct place *p)
{
    for (size_t i = 0; i < x->asked_count; i++)
        if (x->asked[i].place.tier == p->tier && x->asked[i].place.node == p->node)
            return;
    if (x->asked_count < PLACES_MAX)
        x->asked[x->asked_count++] = (struct asked){x, *p};
}

hl_status copies_confirm(struct hl_controller *c, struct hl_id id, const struct place *also,
                         size_t also_count, copies_confirmed done, void *arg)
{
    struct place places[PLACES_MAX];
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    const struct hl_id_text text = hl_id_format(id);
    if (s == NULL)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version", text.s);
    for (size_t i = 0; i < also_count; i++)
        if (also[i].node != NULL && !node_ready(also[i].node))
            return hl_fail(HL_EUNAVAIL, "node %s is unreachable", also[i].node->name);
    struct confirmation *x = calloc(1, sizeof(*x));
    if (x == NULL)
        return hl_fail(HL_ENOMEM, "out of memory asking for copies");
    *x = (struct confirmation){
        .c = c, .id = id, .size = s->size_bytes, .crc32 = s->crc32, .done = done, .arg = arg};
    for (size_t i = 0; i < also_count; i++)
        confirmation_add(x, &also[i]);
    size_t n = copies_places(c, id, HL_API_TIER_L2, places, PLACES_MAX);
    for (size_t i = 0; i < n && i < PLACES_MAX; i++)
        if (places[i].tier != HL_API_TIER_L4) /* L4 is read through, so only on request */
            confirmation_add(x, &places[i]);
    if (x->asked_count == 0) {
        free(x);
        return hl_fail(HL_EUNAVAIL, "no holder of shard %s is known", text.s);
    }
    x->open = x->asked_count;
    for (size_t i = 0; i < x->asked_count; i++)
        controller_hold(c);
    for (size_t i = 0, all = x->asked_count; i < all; i++)
        if (x->asked[i].place.node != NULL)
            ask_node(&x->asked[i], text.s);
        else
            ask_l3(&x->asked[i], text.s);
    return HL_OK;
}
