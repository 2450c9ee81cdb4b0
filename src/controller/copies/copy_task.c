/* What an order does next follows from where the copy is and where it is to be: the steps of
 * core/route.h, carried out by whoever owns the memory. */
#include "controller/copies/copy_task.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "controller/controller_private.h"

#define SLACK_MS  2000 /* an Agent's own deadline comes first */
#define STEPS_MAX 6

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
    json_t *copy; /* Copy of the last step */
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* ---- places ---------------------------------------------------------------------------------- */

const char *place_name(const struct place *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s%s%s%s%s", hl_tier_name(p->tier), p->node != NULL ? " of " : "",
             p->node != NULL ? p->node->name : "", p->device[0] != '\0' ? " (" : "", p->device,
             p->device[0] != '\0' ? ")" : "");
    return buf;
}

int place_same(const struct place *a, const struct place *b)
{
    return a->tier == b->tier && a->node == b->node &&
           (a->device[0] == '\0' || b->device[0] == '\0' || strcmp(a->device, b->device) == 0);
}

static const char *host_of(const struct hl_controller *c, const struct place *p)
{
    return hl_json_str(p->node != NULL ? p->node->info : c->pool, "hostId", "");
}

static int same_host(const struct hl_controller *c, const struct place *a, const struct place *b)
{
    const char *host = host_of(c, a);
    return host[0] != '\0' && strcmp(host, host_of(c, b)) == 0;
}

/* Small is near. A copy that is to be sent needs an L2 to be sent from. */
static int distance(const struct order *o, const struct place *p)
{
    const struct place *goal = &o->spec.goal;
    int far = p->tier == HL_TIER_L4 ? 8 : p->tier == HL_TIER_L3 ? 1 : p->tier == HL_TIER_L1 ? 2 : 0;
    if (o->spec.op != HL_ROUTE_READ && p->tier == HL_TIER_L3)
        far += 4;
    if (goal->tier >= HL_TIER_L3) /* the pool is asked first, then the archive */
        return p->tier == HL_TIER_L3 ? 0 : p->tier == HL_TIER_L4 ? 1 : 2 + far;
    if (p->node != NULL && p->node == goal->node)
        return far;
    return far + (same_host(o->c, p, goal) ? 10 : 20);
}

static void sort_sources(struct order *o)
{
    for (size_t i = 1; i < o->source_count; i++)
        for (size_t k = i; k > 0 && distance(o, &o->sources[k]) < distance(o, &o->sources[k - 1]);
             k--) {
            struct place p = o->sources[k];
            o->sources[k] = o->sources[k - 1];
            o->sources[k - 1] = p;
        }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void order_free(struct order *o)
{
    json_decref(o->copy);
    free(o);
}

static void order_end(struct order *o, hl_status st, const char *text)
{
    o->spec.done(o->spec.arg, st, text, o->copy);
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

json_t *order_source_json(struct hl_controller *c, struct hl_id id, const struct place *from)
{
    const json_t *info = from->node != NULL ? from->node->info : c->pool;
    const char *rpc =
        from->node != NULL ? hl_json_str(info, "agentAddress", "") : c->opts.l3_address;
    return json_pack("{s:s s:s s:s s:s s:s s:s s:s s:s}", "id", hl_id_format(id).s, "sourceTier",
                     hl_tier_name(from->tier), "sourceNode",
                     from->node != NULL ? from->node->name : "", "sourceHostId",
                     hl_json_str(info, "hostId", ""), "sourceAddress", rpc, "sourceDataAddress",
                     hl_json_str(info, "dataAddress", ""), "sourceSocket",
                     hl_json_str(info, from->node != NULL ? "storeSocket" : "socketPath", ""),
                     "sourceDevice", from->device);
}

/* From o->at to o->next. */
static json_t *request_json(const struct order *o)
{
    struct hl_controller *c = o->c;
    const struct place *to = &o->next;
    const json_t *info = to->node != NULL ? to->node->info : c->pool;
    const char *data = hl_json_str(info, "dataAddress", "");
    json_t *r = order_source_json(c, o->spec.id, &o->at);
    json_t *more = json_pack(
        "{s:I s:I s:s s:s s:i s:s s:i s:s s:s s:s s:s s:s}", "sizeBytes", (json_int_t)o->size,
        "crc32", (json_int_t)o->crc32, "tier", hl_tier_name(to->tier), "device", to->device,
        "numaId", -1, "operation", hl_route_op_name(o->spec.op), "timeoutMs", left_ms(o),
        "targetHostId", hl_json_str(info, "hostId", ""), "targetSocket",
        hl_json_str(info, to->node != NULL ? "storeSocket" : "socketPath", ""), "targetAddress",
        to->node != NULL ? hl_json_str(info, "migrateAddress", "") : data, "targetDataAddress",
        data, "migrationId", hl_id_format(o->migration).s);
    json_object_update(r, more);
    json_decref(more);
    return r;
}

static void note_pool(struct order *o)
{
    struct hl_shard_rec *s = hl_catalog_shard(&o->c->catalog, o->spec.id);
    if (s != NULL && o->next.tier == HL_TIER_L4)
        s->archived = 1;
    if (s != NULL && o->next.tier == HL_TIER_L3) {
        o->c->slots_changed |= s->lost; /* a job may wait for its version */
        s->missed = s->lost = 0;
    }
}

static void on_step(void *arg, hl_status st, const char *text, json_t *result)
{
    struct order *o = arg;
    if (controller_landed(o->c)) {
        order_end(o, HL_ECANCELED, "the Controller is ending");
        return;
    }
    if (st != HL_OK) {
        order_source_failed(o, st == HL_ECANCELED ? HL_EUNAVAIL : st, text);
        return;
    }
    json_t *copy = json_object_get(result, "copy");
    if (o->next.node != NULL && copy != NULL) {
        copies_learn(o->c, o->next.node, copy);
        if (o->next.device[0] == '\0')
            snprintf(o->next.device, sizeof(o->next.device), "%s", hl_json_str(copy, "device", ""));
    } else {
        note_pool(o);
    }
    json_decref(o->copy);
    o->copy = copy != NULL
                  ? json_deep_copy(copy)
                  : json_pack("{s:s s:s s:s s:i s:I s:I}", "id", hl_id_format(o->spec.id).s, "tier",
                              hl_tier_name(o->next.tier), "node", "", "numaId", -1, "sizeBytes",
                              (json_int_t)o->size, "crc32", (json_int_t)o->crc32);
    if (o->copy != NULL && o->next.node != NULL)
        json_object_set_new(o->copy, "node", json_string(o->next.node->name));
    o->at = o->next;
    order_go(o);
}

static void call_agent(struct order *o, struct node *n, const char *method)
{
    json_t *params = json_pack("{s:o}", "request", request_json(o));
    if (!node_ready(n))
        order_source_failed(o, HL_EUNAVAIL, "the node is away");
    else
        controller_call_for(o->c, n->agent, method, params, left_ms(o) + SLACK_MS, on_step, o);
    json_decref(params);
}

static void call_l3(struct order *o, const char *method)
{
    json_t *params = json_pack("{s:[s]}", "ids", hl_id_format(o->spec.id).s);
    controller_call_for(o->c, o->c->l3, method, params, left_ms(o) + SLACK_MS, on_step, o);
    json_decref(params);
}

static struct place at_node(struct node *n, enum hl_tier tier)
{
    return (struct place){.tier = tier, .node = n};
}

/* Out of a node: from its L2, where a copy in device memory goes first. */
static void step_out(struct order *o, struct place to)
{
    if (o->at.tier == HL_TIER_L1) {
        o->next = at_node(o->at.node, HL_TIER_L2);
        call_agent(o, o->at.node, "storeCopy");
        return;
    }
    o->next = to;
    call_agent(o, o->at.node, "storeSend");
}

/* Into a node: it reads, or it is sent to. */
static void step_in(struct order *o)
{
    const struct place *goal = &o->spec.goal;
    int beside = o->at.node == goal->node;
    if (o->at.tier == HL_TIER_L1 && !beside) {
        step_out(o, at_node(goal->node, HL_TIER_L2));
        return;
    }
    if (beside || o->at.tier == HL_TIER_L3 || o->spec.op == HL_ROUTE_READ ||
        same_host(o->c, &o->at, goal)) {
        o->next = *goal;
        call_agent(o, goal->node, "storeCopy");
        return;
    }
    step_out(o, at_node(goal->node, HL_TIER_L2));
}

/* The next step, or the end. */
static void order_go(struct order *o)
{
    const struct place *goal = &o->spec.goal;
    if (place_same(&o->at, goal) && o->copy != NULL) {
        order_end(o, HL_OK, "");
        return;
    }
    if (left_ms(o) == 0 || o->steps++ >= STEPS_MAX) {
        order_end(o, HL_ETIMEDOUT, "the deadline of the copy passed");
        return;
    }
    o->next = (struct place){.tier = HL_TIER_L3};
    if (o->at.tier == HL_TIER_L4 && goal->tier != HL_TIER_L4) {
        call_l3(o, "locate"); /* loads it */
    } else if (goal->node != NULL) {
        step_in(o);
    } else if (o->at.node != NULL) {
        step_out(o, o->next);
    } else {
        o->next = *goal;
        call_l3(o, goal->tier == HL_TIER_L4 ? "archive" : "locate");
    }
}

/* ---- sources --------------------------------------------------------------------------------- */

static void order_begin(struct order *o)
{
    o->at = o->sources[o->source];
    o->steps = 0;
    order_go(o);
}

static int other_may_do(hl_status st)
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
            call_agent(o, o->next.node, "storeCopy");
        else
            call_l3(o, "locate");
        return;
    }
    if (st == HL_ECORRUPT)
        hl_fault_count("bad-source", hl_tier_name(from->tier));
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
    o->source_count = copies_places(o->c, o->spec.id, HL_TIER_L1, o->sources, ORDER_SOURCES_MAX);
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
