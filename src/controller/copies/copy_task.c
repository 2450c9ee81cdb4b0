/* The next step of a copy follows from where it is and where it should be: the steps of
 * core/copies/copyplan.h, carried out by the daemon that owns the memory.
 *
 *     sources, nearest first:  [ L2 of n-1 ] [ L3 ] [ L4 ]
 *                                   ^ source
 *     source == at --READ | SEND | LOAD | ARCHIVE--> next == at --...--> goal: done
 *
 *     READ     the node of the target fetches the shard        Agent.storeCopy
 *     SEND     the node that has it sends it                   Agent.storeSend
 *     LOAD     L3 loads it from the archive into the pool      L3.locate
 *     ARCHIVE  L3 writes it into the archive                   L3.archive
 *
 * States, all changed on the loop's thread:
 *
 *     step in flight --answer HL_OK--> at = next; the next step, or done(HL_OK)
 *         |--HL_EEXIST--> the same goal by its holder: what was sent is there already
 *         |--an error of the source (hl_copy_blames_source)--> begin again from the next source
 *         |--any other error, no source left, deadline over, stopped--> done(st) with its text
 *         '--the Controller was stopped--> done(HL_ECANCELED): nothing of it may be touched
 *
 * Exactly one call is in flight from copy_task_start to `done`. It holds the Controller, and with
 * it the nodes that `at` and `next` point to, which are freed only when nothing is held
 * (nodes_reap). */
#include "controller/copies/copy_task_private.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "controller/copies/copies_private.h"
#include "core/copies/copyplan.h"

#define SLACK_MS 2000 /* so that an Agent's own deadline expires first */

struct copy_task {
    struct hl_controller *c;
    struct copy_task_spec spec;
    struct hl_id migration; /* one id for all steps: both ends of a step know the step by it */
    uint64_t size;          /* as in the catalogue, whatever a source claims */
    uint32_t crc32;
    uint64_t deadline_ns;                        /* for the whole copy, not for a step */
    struct place sources[COPY_TASK_SOURCES_MAX]; /* nearest first */
    size_t source_count, source;
    struct place at;    /* where the bytes are now */
    struct place next;  /* where the current step brings them */
    struct node *makes; /* the node whose Agent carries out the current step; NULL: L3 */
    int steps;
    bool copied, stopped;
    struct hl_api_copy copy; /* of the last step, in `arena` */
    struct hl_arena arena;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    struct copy_task *prev, *task_next; /* list of all running tasks */
};

/* ---- places ---------------------------------------------------------------------------------- */

const char *place_name(const struct place *p, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s%s%s%s%s%s", hl_api_tier_name(p->tier), p->node != NULL ? " of " : "",
             p->node != NULL ? p->node->name : "", p->device[0] != '\0' ? " (" : "", p->device,
             p->device[0] != '\0' ? ")" : "");
    return buf;
}

/* How to reach the holder of a place; "" where it can't be reached. */
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

/* The place as core/copies/copyplan.h describes it; borrows from the place. */
static struct hl_copy_place plan_place(const struct hl_controller *c, const struct place *p)
{
    return (struct hl_copy_place){
        .tier = p->tier, .node = p->node, .host = endpoint_of(c, p).host_id, .device = p->device};
}

static int place_distance(const struct copy_task *t, const struct place *p)
{
    struct hl_copy_place from = plan_place(t->c, p), goal = plan_place(t->c, &t->spec.goal);
    return hl_copy_distance(&from, &goal, t->spec.op);
}

/* An insertion sort: there are only a few sources, and equal ones keep their order. */
static void sort_sources(struct copy_task *t)
{
    for (size_t i = 1; i < t->source_count; i++)
        for (size_t k = i;
             k > 0 && place_distance(t, &t->sources[k]) < place_distance(t, &t->sources[k - 1]);
             k--) {
            struct place p = t->sources[k];
            t->sources[k] = t->sources[k - 1];
            t->sources[k - 1] = p;
        }
}

/* ---- the end --------------------------------------------------------------------------------- */

static void copy_task_free(struct copy_task *t)
{
    hl_arena_fini(&t->arena);
    free(t);
}

static void copy_task_end(struct copy_task *t, hl_status st, const char *text)
{
    if (st != HL_ECANCELED) /* otherwise the Controller may be gone */
        DL_DELETE2(t->c->copies->tasks, t, prev, task_next);
    t->spec.done(t->spec.arg, st, text, st == HL_OK ? &t->copy : NULL);
    copy_task_free(t);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static void copy_task_go(struct copy_task *t);
static void copy_task_source_failed(struct copy_task *t, hl_status st, const char *text);

static int left_ms(const struct copy_task *t)
{
    uint64_t now = hl_now_ns();
    return now >= t->deadline_ns ? 0 : (int)((t->deadline_ns - now) / HL_NS_PER_MS) + 1;
}

struct hl_api_copy_request copy_request_from(struct hl_controller *c, const char *id,
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

/* The request for the step from t->at to t->next; `id` and `migration` are borrowed. */
static struct hl_api_copy_request copy_task_request(const struct copy_task *t, const char *id,
                                                    const char *migration)
{
    struct endpoint to = endpoint_of(t->c, &t->next);
    struct hl_api_copy_request r = copy_request_from(t->c, id, &t->at);
    r.size_bytes = t->size;
    r.crc32 = t->crc32;
    r.tier = t->next.tier;
    r.device = t->next.device;
    r.operation = t->spec.op;
    r.timeout_ms = (uint32_t)left_ms(t);
    r.target_host_id = to.host_id;
    r.target_socket = to.socket;
    r.target_address = to.migrate;
    r.target_data_address = to.data;
    r.migration_id = migration;
    r.epoch = t->c->claim.epoch;
    r.bytes_per_s = t->spec.bytes_per_s;
    return r;
}

/* Notes that the L3 host has the shard now. The next sweep would find it, too, but a job may be
 * waiting. */
static void note_pool(struct copy_task *t)
{
    struct hl_shard_rec *s = hl_catalog_shard(&t->c->catalog, t->spec.id);
    if (s != NULL) {
        t->c->slots_changed |= s->lost; /* a job may be waiting for its version */
        hl_sweep_made(s, t->next.tier, t->c->copies->sweep_round);
    }
    copies_changed(t->c, t->spec.id);
}

/* The copy that the step has made: as its holder reports it, or else from the catalogue. */
static hl_status note_copy(struct copy_task *t, const struct hl_api_copy *copy)
{
    struct hl_api_copy made = {
        .tier = t->next.tier, .numa_id = -1, .size_bytes = t->size, .crc32 = t->crc32};
    struct hl_id_text id = hl_id_format(t->spec.id);
    if (copy != NULL)
        made = *copy;
    else
        made.id = id.s;
    if (t->next.node != NULL)
        made.node = t->next.node->name;
    t->copied = false;
    hl_arena_fini(&t->arena);
    HL_TRY(hl_api_copy(&hl_api_copy_type, &made, &t->arena, &t->copy));
    t->copied = true;
    return HL_OK;
}

/* Handles the answer of every step. copy: what the holder has made of it; NULL if the answer does
 * not include one, as with L3. */
static void step_done(struct copy_task *t, hl_status st, const char *text,
                      const struct hl_api_copy *copy)
{
    if (controller_stopped(t->c)) {
        copy_task_end(t, HL_ECANCELED, "the Controller is shutting down");
        return;
    }
    if (st != HL_OK) {
        copy_task_source_failed(t, holder_status(st), text);
        return;
    }
    if (copy != NULL && copy->id[0] == '\0')
        copy = NULL;
    if (t->next.node != NULL && copy != NULL) {
        copies_learn(t->c, t->next.node, copy);
        if (t->next.device[0] == '\0')
            snprintf(t->next.device, sizeof(t->next.device), "%s", copy->device);
    } else {
        note_pool(t);
    }
    st = note_copy(t, copy);
    if (st != HL_OK) {
        copy_task_end(t, st, hl_error_text());
        return;
    }
    t->at = t->next;
    copy_task_go(t);
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

/* Calls the node's Agent to read (HL_API_OPERATION_READ) or to send. */
static void call_agent(struct copy_task *t, struct node *n, enum hl_api_operation op)
{
    struct hl_id_text id = hl_id_format(t->spec.id), migration = hl_id_format(t->migration);
    struct hl_api_copy_request r = copy_task_request(t, id.s, migration.s);
    int timeout_ms = left_ms(t) + SLACK_MS;
    if (!node_ready(n)) {
        copy_task_source_failed(t, HL_EUNAVAIL, "the node is unreachable");
        return;
    }
    t->makes = n;
    controller_hold(t->c);
    if (op == HL_API_OPERATION_READ)
        hl_call_agent_store_copy_async(n->agent, &(struct hl_api_agent_store_copy_params){r},
                                       timeout_ms, t->c->opts.loop, on_store_copied, t);
    else
        hl_call_agent_store_send_async(n->agent, &(struct hl_api_agent_store_send_params){r},
                                       timeout_ms, t->c->opts.loop, on_store_sent, t);
}

/* L3 brings the shard into the tier: L3 loads a shard that it is asked to locate. */
static void call_l3(struct copy_task *t, enum hl_api_tier tier)
{
    struct hl_id_text id = hl_id_format(t->spec.id), migration = hl_id_format(t->migration);
    const char *ids[] = {id.s};
    struct hl_api_text_list list = {ids, 1};
    int timeout_ms = left_ms(t) + SLACK_MS;
    t->makes = NULL;
    controller_hold(t->c);
    if (tier == HL_API_TIER_L4)
        hl_call_l3_archive_async(t->c->l3, &(struct hl_api_l3_archive_params){list, migration.s},
                                 timeout_ms, t->c->opts.loop, on_archived, t);
    else
        hl_call_l3_locate_async(
            t->c->l3, &(struct hl_api_l3_locate_params){list, migration.s, t->spec.gives_way},
            timeout_ms, t->c->opts.loop, on_located, t);
}

/* Where a step lands: at the node of the goal or of the copy, or on the L3 host. */
static struct place place_landing(const struct copy_task *t, const struct hl_copy_place *lands)
{
    struct place p = {.tier = lands->tier};
    if (lands->node != NULL)
        p.node = lands->node == t->spec.goal.node ? t->spec.goal.node : t->at.node;
    snprintf(p.device, sizeof(p.device), "%s", lands->device);
    return p;
}

/* Takes the next step, or ends the task. */
static void copy_task_go(struct copy_task *t)
{
    struct hl_copy_place at = plan_place(t->c, &t->at), goal = plan_place(t->c, &t->spec.goal);
    struct hl_copy_move m = hl_copy_next(&at, &goal, t->spec.op, t->copied);
    if (m.step == HL_COPY_DONE) {
        copy_task_end(t, HL_OK, "");
        return;
    }
    if (t->stopped) {
        copy_task_end(t, HL_EUNAVAIL, "it was stopped");
        return;
    }
    if (left_ms(t) == 0 || t->steps++ >= HL_COPY_STEPS_MAX) {
        copy_task_end(t, HL_ETIMEDOUT, "the deadline of the copy passed");
        return;
    }
    t->next = place_landing(t, &m.lands);
    switch (m.step) {
    case HL_COPY_READ:
        call_agent(t, t->next.node, HL_API_OPERATION_READ);
        break;
    case HL_COPY_SEND:
        call_agent(t, t->at.node, HL_API_OPERATION_WRITE);
        break;
    case HL_COPY_LOAD:
    case HL_COPY_ARCHIVE:
        call_l3(t, t->next.tier);
        break;
    case HL_COPY_DONE:
        break;
    }
}

/* ---- sources --------------------------------------------------------------------------------- */

static void copy_task_begin(struct copy_task *t)
{
    t->at = t->sources[t->source];
    t->steps = 0;
    copy_task_go(t);
}

static void copy_task_source_failed(struct copy_task *t, hl_status st, const char *text)
{
    char name[256];
    const struct place *from = &t->sources[t->source];
    if (t->stopped) {
        copy_task_end(t, st, text);
        return;
    }
    if (st == HL_EEXIST) { /* what was sent is there already, or about to be: its holder knows */
        if (t->next.node != NULL)
            call_agent(t, t->next.node, HL_API_OPERATION_READ);
        else
            call_l3(t, HL_API_TIER_L3);
        return;
    }
    if (st == HL_ECORRUPT)
        hl_fault_count("bad-source", hl_api_tier_name(from->tier));
    snprintf(t->text, sizeof(t->text), "%s", text);
    t->st = st;
    if (!hl_copy_blames_source(st) || ++t->source >= t->source_count || left_ms(t) == 0) {
        copy_task_end(t, t->st, t->text);
        return;
    }
    hl_warn("copy continues from another source id=%s failed=\"%s\" error=\"%s\"",
            hl_id_format(t->spec.id).s, place_name(from, name, sizeof(name)), text);
    copy_task_begin(t);
}

/* Finds where the shard can be read from now. The list is not refreshed: a source that appears
 * later is left to the next copy, and one that disappears is skipped when it fails. */
static hl_status find_sources(struct copy_task *t)
{
    const struct place *goal = &t->spec.goal;
    const struct hl_shard_rec *s = hl_catalog_shard(&t->c->catalog, t->spec.id);
    char name[256];
    if (s == NULL && t->spec.size_bytes == 0)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version; `helios shard ls` lists shards",
                       hl_id_format(t->spec.id).s);
    t->size = s != NULL ? s->size_bytes : t->spec.size_bytes;
    t->crc32 = s != NULL ? s->crc32 : t->spec.crc32;
    if (goal->node != NULL)
        HL_TRY(node_takes(goal->node));
    t->source_count =
        copies_places(t->c, t->spec.id, HL_API_TIER_L1, t->sources, COPY_TASK_SOURCES_MAX);
    if (s == NULL && t->source_count < COPY_TASK_SOURCES_MAX)
        t->sources[t->source_count++] = (struct place){.tier = HL_API_TIER_L3};
    if (t->source_count > COPY_TASK_SOURCES_MAX)
        t->source_count = COPY_TASK_SOURCES_MAX;
    if (t->source_count == 0)
        return hl_fail(HL_ENOENT, "shard %s can't be copied to %s: there is no readable copy of it",
                       hl_id_format(t->spec.id).s, place_name(goal, name, sizeof(name)));
    sort_sources(t);
    return HL_OK;
}

hl_status copy_task_start(struct hl_controller *c, const struct copy_task_spec *spec)
{
    struct copy_task *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a copy of a shard");
    t->c = c;
    t->spec = *spec;
    t->migration = hl_id_is_none(spec->order) ? hl_id_random() : spec->order;
    t->deadline_ns = hl_now_ns() + (uint64_t)c->opts.copy_timeout_ms * HL_NS_PER_MS;
    hl_status st = find_sources(t);
    if (st != HL_OK) {
        copy_task_free(t);
        return st;
    }
    t->deadline_ns += (uint64_t)copy_paced_ms(t->size, spec->bytes_per_s) * HL_NS_PER_MS;
    DL_APPEND2(c->copies->tasks, t, prev, task_next);
    copy_task_begin(t);
    return HL_OK;
}

hl_status copies_bring(struct hl_controller *c, const struct copies_order *o, copies_brought done,
                       void *arg)
{
    return copy_task_start(c, &(struct copy_task_spec){.id = o->shard,
                                                       .goal = o->goal,
                                                       .op = o->op,
                                                       .done = done,
                                                       .arg = arg,
                                                       .order = o->id,
                                                       .bytes_per_s = o->bytes_per_s,
                                                       .gives_way = o->gives_way});
}

hl_status copies_bring_stated(struct hl_controller *c, const struct securable *shard,
                              const struct place *goal, copies_brought done, void *arg)
{
    return copy_task_start(c, &(struct copy_task_spec){.id = shard->id,
                                                       .goal = *goal,
                                                       .op = goal->tier == HL_API_TIER_L3
                                                                 ? HL_API_OPERATION_WRITE
                                                                 : HL_API_OPERATION_READ,
                                                       .done = done,
                                                       .arg = arg,
                                                       .size_bytes = shard->size_bytes,
                                                       .crc32 = shard->crc32});
}

bool copy_task_runs(const struct hl_controller *c, struct hl_id shard)
{
    const struct copy_task *t;
    DL_FOREACH2(c->copies->tasks, t, task_next)
    {
        if (hl_id_equal(t->spec.id, shard))
            return true;
    }
    return false;
}

/* ---- stopping -------------------------------------------------------------------------------- */

static void on_store_stopped(void *arg, hl_status st, const char *text,
                             const struct hl_api_agent_store_stop_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK) /* then the order's deadline ends the copy */
        hl_info("copy was not stopped error=\"%s\"", text);
}

static void on_l3_stopped(void *arg, hl_status st, const char *text,
                          const struct hl_api_l3_stop_results *r)
{
    (void)r;
    if (!controller_stopped(arg) && st != HL_OK)
        hl_info("load or store was not stopped error=\"%s\"", text);
}

static void stop_at_l3(struct hl_controller *c, struct hl_id order)
{
    const struct hl_id_text id = hl_id_format(order);
    controller_hold(c);
    hl_call_l3_stop_async(c->l3, &(struct hl_api_l3_stop_params){id.s}, c->opts.rpc_timeout_ms,
                          c->opts.loop, on_l3_stopped, c);
}

static void stop_at_node(struct hl_controller *c, struct hl_id order, const struct node *n)
{
    const struct hl_id_text id = hl_id_format(order);
    if (n == NULL)
        stop_at_l3(c, order);
    if (n == NULL || !node_ready(n))
        return;
    controller_hold(c);
    hl_call_agent_store_stop_async(n->agent,
                                   &(struct hl_api_agent_store_stop_params){id.s, c->claim.epoch},
                                   c->opts.rpc_timeout_ms, c->opts.loop, on_store_stopped, c);
}

void copies_stop(struct hl_controller *c, struct hl_id order, const struct place *also,
                 size_t also_count)
{
    struct copy_task *t;
    bool own = false;
    DL_FOREACH2(c->copies->tasks, t, task_next)
    {
        if (!hl_id_equal(t->spec.order, order))
            continue;
        own = t->stopped = true;
        stop_at_node(c, order, t->makes);
    }
    for (size_t i = 0; !own && i < also_count; i++)
        stop_at_node(c, order, also[i].node);
}
