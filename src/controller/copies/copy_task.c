/* What an order does next follows from where the copy is and where it is to be: the steps of
 * core/copyplan.h, carried out by whoever owns the memory. */
#include "controller/copies/copy_task_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "controller/copies/copies_private.h"
#include "core/copyplan.h"

#define SLACK_MS 2000 /* an Agent's own deadline comes first */

struct order {
    struct hl_controller *c;
    struct order_spec spec;
    struct hl_id migration;
    uint64_t size;
    uint32_t crc32;
    uint64_t deadline_ns;
    struct place sources[ORDER_SOURCES_MAX];
    size_t source_count, source;
    struct place at;   /* where the bytes are now */
    struct place next; /* where the step under way brings them */
    int steps;
    bool copied;
    struct hl_api_copy copy; /* of the last step, in `arena` */
    struct hl_arena arena;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* ---- places ---------------------------------------------------------------------------------- */

const char *place_name(const struct place *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s%s%s%s%s", hl_api_tier_name(p->tier), p->node != NULL ? " of " : "",
             p->node != NULL ? p->node->name : "", p->device[0] != '\0' ? " (" : "", p->device,
             p->device[0] != '\0' ? ")" : "");
    return buf;
}

/* How the holder of a place is reached; "" where it is not. */
struct endpoint {
    const char *host_id, *rpc, *data, *migrate, *socket;
};

static struct endpoint endpoint_of(const struct hl_controller *c, const struct place *p)
{
    if (p->node != NULL) {
        const struct hl_api_node_info *n = &p->node->info;
        return (struct endpoint){n->host_id, n->agent_address, n->data_address, n->migrate_address,
                                 n->store_socket};
    }
    if (c->copies->pool == NULL)
        return (struct endpoint){"", c->opts.l3_address, "", "", ""};
    return (struct endpoint){c->copies->pool->host_id, c->opts.l3_address,
                             c->copies->pool->data_address, c->copies->pool->data_address,
                             c->copies->pool->socket_path};
}

/* As the plan sees it; it borrows from the place. */
static struct hl_copy_place plan_place(const struct hl_controller *c, const struct place *p)
{
    return (struct hl_copy_place){
        .tier = p->tier, .node = p->node, .host = endpoint_of(c, p).host_id, .device = p->device};
}

bool place_same(const struct place *a, const struct place *b)
{
    struct hl_copy_place x = {a->tier, a->node, "", a->device},
                         y = {b->tier, b->node, "", b->device};
    return hl_copy_same_place(&x, &y);
}

static int place_distance(const struct order *o, const struct place *p)
{
    struct hl_copy_place from = plan_place(o->c, p), goal = plan_place(o->c, &o->spec.goal);
    return hl_copy_distance(&from, &goal, o->spec.op);
}

static void sort_sources(struct order *o)
{
    for (size_t i = 1; i < o->source_count; i++)
        for (size_t k = i;
             k > 0 && place_distance(o, &o->sources[k]) < place_distance(o, &o->sources[k - 1]);
             k--) {
            struct place p = o->sources[k];
            o->sources[k] = o->sources[k - 1];
            o->sources[k - 1] = p;
        }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void order_free(struct order *o)
{
    hl_arena_fini(&o->arena);
    free(o);
}

static void order_end(struct order *o, hl_status st, const char *text)
{
    o->spec.done(o->spec.arg, st, text, st == HL_OK ? &o->copy : NULL);
    order_free(o);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void order_go(struct order *o);
static void order_source_failed(struct order *o, hl_status st, const char *text);

static int left_ms(const struct order *o)
{
    uint64_t now = hl_now_ns();
    return now >= o->deadline_ns ? 0 : (int)((o->deadline_ns - now) / HL_NS_PER_MS) + 1;
}

struct hl_api_copy_request order_source(struct hl_controller *c, const char *id,
                                        const struct place *from)
{
    struct endpoint e = endpoint_of(c, from);
    return (struct hl_api_copy_request){
        .id = id,
        .numa_id = -1,
        .source_tier = from->tier,
        .source_node = from->node != NULL ? from->node->name : "",
        .source_host_id = e.host_id,
        .source_address = e.rpc,
        .source_data_address = e.data,
        .source_socket = e.socket,
        .source_device = from->device,
    };
}

/* From o->at to o->next; `id` and `migration` are borrowed. */
static struct hl_api_copy_request order_request(const struct order *o, const char *id,
                                                const char *migration)
{
    struct endpoint to = endpoint_of(o->c, &o->next);
    struct hl_api_copy_request r = order_source(o->c, id, &o->at);
    r.size_bytes = o->size;
    r.crc32 = o->crc32;
    r.tier = o->next.tier;
    r.device = o->next.device;
    r.operation = o->spec.op;
    r.timeout_ms = (uint32_t)left_ms(o);
    r.target_host_id = to.host_id;
    r.target_socket = to.socket;
    r.target_address = to.migrate;
    r.target_data_address = to.data;
    r.migration_id = migration;
    return r;
}

static void note_pool(struct order *o)
{
    struct hl_shard_rec *s = hl_catalog_shard(&o->c->catalog, o->spec.id);
    if (s != NULL && o->next.tier == HL_API_TIER_L4)
        s->archived = true;
    if (s != NULL && o->next.tier == HL_API_TIER_L3) {
        o->c->slots_changed |= s->lost; /* a job may wait for its version */
        s->missed = 0;
        s->lost = false;
    }
}

/* What the step has made: as its holder says, else as the catalogue does. */
static hl_status note_copy(struct order *o, const struct hl_api_copy *copy)
{
    struct hl_api_copy made = {
        .tier = o->next.tier, .numa_id = -1, .size_bytes = o->size, .crc32 = o->crc32};
    struct hl_id_text id = hl_id_format(o->spec.id);
    if (copy != NULL)
        made = *copy;
    else
        made.id = id.s;
    if (o->next.node != NULL)
        made.node = o->next.node->name;
    o->copied = false;
    hl_arena_fini(&o->arena);
    HL_TRY(hl_api_copy(&hl_api_copy_type, &made, &o->arena, &o->copy));
    o->copied = true;
    return HL_OK;
}

/* copy: NULL where the answer has none. */
static void step_done(struct order *o, hl_status st, const char *text,
                      const struct hl_api_copy *copy)
{
    if (controller_stopped(o->c)) {
        order_end(o, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st != HL_OK) {
        order_source_failed(o, st == HL_ECANCELED ? HL_EUNAVAIL : st, text);
        return;
    }
    if (copy != NULL && copy->id[0] == '\0')
        copy = NULL;
    if (o->next.node != NULL && copy != NULL) {
        copies_learn(o->c, o->next.node, copy);
        if (o->next.device[0] == '\0')
            snprintf(o->next.device, sizeof(o->next.device), "%s", copy->device);
    } else {
        note_pool(o);
    }
    st = note_copy(o, copy);
    if (st != HL_OK) {
        order_end(o, st, hl_error_text());
        return;
    }
    o->at = o->next;
    order_go(o);
}

static void on_store_copied(void *arg, hl_status st, const char *text,
                            const struct hl_api_agent_store_copy_results *r)
{
    step_done(arg, st, text, r != NULL ? &r->copy : NULL);
}

static void on_store_sent(void *arg, hl_status st, const char *text,
                          const struct hl_api_agent_store_send_results *r)
{
    step_done(arg, st, text, r != NULL ? &r->copy : NULL);
}

static void on_located(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_locate_results *r)
{
    (void)r;
    step_done(arg, st, text, NULL);
}

static void on_archived(void *arg, hl_status st, const char *text,
                        const struct hl_api_l3_archive_results *r)
{
    (void)r;
    step_done(arg, st, text, NULL);
}

/* The node reads (HL_API_OPERATION_READ) or sends. */
static void call_agent(struct order *o, struct node *n, enum hl_api_operation op)
{
    struct hl_id_text id = hl_id_format(o->spec.id), migration = hl_id_format(o->migration);
    struct hl_api_copy_request r = order_request(o, id.s, migration.s);
    int timeout_ms = left_ms(o) + SLACK_MS;
    if (!node_ready(n)) {
        order_source_failed(o, HL_EUNAVAIL, "the node is away");
        return;
    }
    controller_hold(o->c);
    if (op == HL_API_OPERATION_READ)
        hl_call_agent_store_copy_async(n->agent, &(struct hl_api_agent_store_copy_params){r},
                                       timeout_ms, o->c->opts.loop, on_store_copied, o);
    else
        hl_call_agent_store_send_async(n->agent, &(struct hl_api_agent_store_send_params){r},
                                       timeout_ms, o->c->opts.loop, on_store_sent, o);
}

/* L3 brings the shard into the tier: a shard that it locates it has loaded. */
static void call_l3(struct order *o, enum hl_api_tier tier)
{
    struct hl_id_text id = hl_id_format(o->spec.id);
    const char *ids[] = {id.s};
    struct hl_api_text_list list = {ids, 1};
    int timeout_ms = left_ms(o) + SLACK_MS;
    controller_hold(o->c);
    if (tier == HL_API_TIER_L4)
        hl_call_l3_archive_async(o->c->l3, &(struct hl_api_l3_archive_params){list}, timeout_ms,
                                 o->c->opts.loop, on_archived, o);
    else
        hl_call_l3_locate_async(o->c->l3, &(struct hl_api_l3_locate_params){list}, timeout_ms,
                                o->c->opts.loop, on_located, o);
}

/* Where a step lands: at the node of the goal or of the copy, or at the L3 host. */
static struct place place_landing(const struct order *o, const struct hl_copy_place *lands)
{
    struct place p = {.tier = lands->tier};
    if (lands->node != NULL)
        p.node = lands->node == o->spec.goal.node ? o->spec.goal.node : o->at.node;
    snprintf(p.device, sizeof(p.device), "%s", lands->device);
    return p;
}

/* The next step, or the end. */
static void order_go(struct order *o)
{
    struct hl_copy_place at = plan_place(o->c, &o->at), goal = plan_place(o->c, &o->spec.goal);
    struct hl_copy_move m = hl_copy_next(&at, &goal, o->spec.op, o->copied);
    if (m.step == HL_COPY_DONE) {
        order_end(o, HL_OK, "");
        return;
    }
    if (left_ms(o) == 0 || o->steps++ >= HL_COPY_STEPS_MAX) {
        order_end(o, HL_ETIMEDOUT, "the deadline of the copy passed");
        return;
    }
    o->next = place_landing(o, &m.lands);
    switch (m.step) {
    case HL_COPY_READ:
        call_agent(o, o->next.node, HL_API_OPERATION_READ);
        break;
    case HL_COPY_SEND:
        call_agent(o, o->at.node, HL_API_OPERATION_WRITE);
        break;
    case HL_COPY_LOAD:
    case HL_COPY_ARCHIVE:
        call_l3(o, o->next.tier);
        break;
    case HL_COPY_DONE:
        break;
    }
}

/* ---- sources --------------------------------------------------------------------------------- */

static void order_begin(struct order *o)
{
    o->at = o->sources[o->source];
    o->steps = 0;
    order_go(o);
}

static bool other_may_do(hl_status st)
{
    return st == HL_ECORRUPT || st == HL_EUNAVAIL || st == HL_ENOENT || st == HL_ESTALE ||
           st == HL_ETIMEDOUT || st == HL_EIO || st == HL_EPROTO;
}

static void order_source_failed(struct order *o, hl_status st, const char *text)
{
    char name[256];
    const struct place *from = &o->sources[o->source];
    if (st == HL_EEXIST) { /* what was sent is there, or about to be: its holder knows */
        if (o->next.node != NULL)
            call_agent(o, o->next.node, HL_API_OPERATION_READ);
        else
            call_l3(o, HL_API_TIER_L3);
        return;
    }
    if (st == HL_ECORRUPT)
        hl_fault_count("bad-source", hl_api_tier_name(from->tier));
    snprintf(o->text, sizeof(o->text), "%s", text);
    o->st = st;
    if (!other_may_do(st) || ++o->source >= o->source_count || left_ms(o) == 0) {
        order_end(o, o->st, o->text);
        return;
    }
    hl_warn("copy goes on from another source id=%s failed=\"%s\" error=\"%s\"",
            hl_id_format(o->spec.id).s, place_name(from, name, sizeof(name)), text);
    order_begin(o);
}

static hl_status find_sources(struct order *o)
{
    const struct place *goal = &o->spec.goal;
    const struct hl_shard_rec *s = hl_catalog_shard(&o->c->catalog, o->spec.id);
    char name[256];
    if (s == NULL)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version; `helios shard ls` lists shards",
                       hl_id_format(o->spec.id).s);
    o->size = s->size_bytes;
    o->crc32 = s->crc32;
    if (goal->node != NULL && !node_ready(goal->node))
        return hl_fail(HL_EUNAVAIL, "node %s is away", goal->node->name);
    o->source_count =
        copies_places(o->c, o->spec.id, HL_API_TIER_L1, o->sources, ORDER_SOURCES_MAX);
    if (o->source_count > ORDER_SOURCES_MAX)
        o->source_count = ORDER_SOURCES_MAX;
    if (o->source_count == 0)
        return hl_fail(HL_ENOENT, "shard %s can't be copied to %s: nobody has a readable copy",
                       hl_id_format(o->spec.id).s, place_name(goal, name, sizeof(name)));
    sort_sources(o);
    return HL_OK;
}

hl_status order_start(struct hl_controller *c, const struct order_spec *spec)
{
    struct order *o = calloc(1, sizeof(*o));
    if (o == NULL)
        return hl_fail(HL_ENOMEM, "order of a copy");
    o->c = c;
    o->spec = *spec;
    o->migration = hl_id_random();
    o->deadline_ns = hl_now_ns() + (uint64_t)c->opts.copy_timeout_ms * HL_NS_PER_MS;
    hl_status st = find_sources(o);
    if (st != HL_OK) {
        order_free(o);
        return st;
    }
    order_begin(o);
    return HL_OK;
}
