/* If the pool can't give a shard, another copy can: the pool's copy is replaced from the archive or
 * from a node's store, or the shard is read directly from a node's store. Nothing here runs while
 * reads succeed.
 *
 *     suspects[]   readers --copies_suspect--> | id, tier, told | --copies_report--> Controller
 *                                  ^                 (the maintenance thread)   |
 *                                  '---- told + 1, until TELLINGS --- no answer ---'
 *
 *     stores       node --> store; replaced ones stay in the list, hidden
 *
 * copies->lock guards both, and is never held during a call: a report first copies the suspects and
 * empties the list. A reader that meets a bad copy meanwhile adds it again, which costs a second
 * report. A store that was added is not freed before the client is closed, so a reader may use it
 * after the unlock; `replaced` only keeps later readers from finding it. The list is bounded by the
 * moves of Agents to other addresses. Two readers may learn of the stores at the same time: the
 * lock makes the second one find what the first has added. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/plane.h"
#include "client/client_private.h"

#define ASK_MS      2000  /* for an answer of the Controller */
#define HEAL_MS     10000 /* for loading a shard from the archive */
#define SUSPECT_MAX 64
#define TELLINGS    120 /* one per tick of the maintenance thread: half a minute */

/* A node's store. It stays until the client is closed, because a thread may be reading from it. */
struct store {
    char node[128];
    char address[256]; /* of its Agent */
    struct hl_rpc_peer *agent;
    struct net *net;
    bool replaced; /* the Agent has moved: another entry replaces this one */
    struct store *next;
};

struct suspect {
    struct hl_id id;
    enum hl_api_tier tier;
    unsigned told; /* number of unanswered reports */
};

struct copies {
    pthread_mutex_t lock;
    struct store *stores;
    struct suspect suspects[SUSPECT_MAX]; /* to be reported; any that don't fit are dropped */
    size_t suspect_count;
    const char *node; /* this node, "" = unknown */
};

hl_status client_copies_create(struct copies **out)
{
    struct copies *k = calloc(1, sizeof(*k));
    const char *node = getenv("HELIOS_NODE");
    if (k == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a client");
    pthread_mutex_init(&k->lock, NULL);
    k->node = node != NULL ? node : "";
    *out = k;
    return HL_OK;
}

void copies_destroy(struct copies *copies)
{
    if (copies == NULL)
        return;
    while (copies->stores != NULL) {
        struct store *s = copies->stores;
        copies->stores = s->next;
        net_destroy(s->net);
        hl_rpc_peer_close(s->agent);
        free(s);
    }
    pthread_mutex_destroy(&copies->lock);
    free(copies);
}

/* Waits for the Controller's answer for a limited time. */
static hl_status controller_wait(const struct operation *op, int limit_ms, int *ms)
{
    int left = operation_left_ms(op);
    if (op->client->controller == NULL)
        return hl_fail(HL_EUNAVAIL, "no Controller is set that could name other copies");
    *ms = left < limit_ms ? left : limit_ms;
    return HL_OK;
}

/* ---- the pool's copy is bad ---- */

/* A copy that is in the list already is not added again: all ranks of a node meet the same bad one.
 */
static void suspect_again(struct copies *copies, struct hl_id id, enum hl_api_tier tier,
                          unsigned told)
{
    pthread_mutex_lock(&copies->lock);
    size_t i = 0;
    while (i < copies->suspect_count &&
           (!hl_id_equal(copies->suspects[i].id, id) || copies->suspects[i].tier != tier))
        i++;
    if (i == copies->suspect_count && i < SUSPECT_MAX) {
        copies->suspects[i] = (struct suspect){.id = id, .tier = tier, .told = told};
        copies->suspect_count++;
    }
    pthread_mutex_unlock(&copies->lock);
}

void copies_suspect(struct copies *copies, struct hl_id id, enum hl_api_tier tier)
{
    suspect_again(copies, id, tier, 0);
}

static hl_status report_bad(const struct operation *op, struct hl_id id, enum hl_api_tier tier,
                            enum hl_api_heal_state *state)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_id_text text = hl_id_format(id);
    const struct hl_api_controller_report_bad_copy_params p = {
        .id = text.s, .node = tier == HL_API_TIER_L3 ? "" : op->client->copies->node, .tier = tier};
    struct hl_api_controller_report_bad_copy_results r;
    int ms = 0;
    HL_TRY(controller_wait(op, HEAL_MS, &ms));
    HL_TRY(hl_call_controller_report_bad_copy(op->client->controller, &p, ms, &arena, &r));
    *state = r.state;
    return HL_OK;
}

void copies_report(helios_client *client)
{
    struct copies *k = client->copies;
    struct suspect taken[SUSPECT_MAX];
    struct operation op;
    enum hl_api_heal_state state;
    pthread_mutex_lock(&k->lock);
    size_t n = k->suspect_count;
    memcpy(taken, k->suspects, n * sizeof(taken[0]));
    k->suspect_count = 0;
    pthread_mutex_unlock(&k->lock);
    for (size_t i = 0; i < n; i++) {
        operation_begin(&op, client);
        if (report_bad(&op, taken[i].id, taken[i].tier, &state) == HL_OK)
            continue;
        hl_debug("a bad copy was not replaced: %s", hl_error_text());
        if (taken[i].told + 1 < TELLINGS)
            suspect_again(k, taken[i].id, taken[i].tier, taken[i].told + 1);
    }
}

hl_status copies_heal(struct operation *op, struct hl_id id)
{
    enum hl_api_heal_state state;
    HL_TRY(report_bad(op, id, HL_API_TIER_L3, &state));
    if (state != HL_API_HEAL_STATE_LOST)
        return HL_OK;
    return hl_fail(HL_ECORRUPT, "shard %s: the pool's copy is bad and no other copy replaces it",
                   hl_id_format(id).s);
}

/* ---- other nodes' stores ---- */

/* Caller holds copies->lock. */
static struct store *known_store(struct copies *k, const char *node)
{
    for (struct store *s = k->stores; s != NULL; s = s->next)
        if (!s->replaced && strcmp(s->node, node) == 0)
            return s;
    return NULL;
}

/* Caller holds copies->lock. Opening makes no call: the first read connects. */
static hl_status add_store(helios_client *c, const char *node, const char *address,
                           const char *data)
{
    struct store *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the store of node %s", node);
    snprintf(s->node, sizeof(s->node), "%s", node);
    snprintf(s->address, sizeof(s->address), "%s", address);
    hl_status st = net_create(HL_EXTENT_OF_AGENT, &s->net);
    if (st == HL_OK)
        st = hl_rpc_open(c->rpc, address, "Agent", &s->agent);
    if (st != HL_OK) {
        net_destroy(s->net);
        free(s);
        return st;
    }
    net_own(s->net, s->agent);
    net_retarget(s->net, data);
    s->next = c->copies->stores;
    c->copies->stores = s;
    return HL_OK;
}

static bool is_l2(const struct hl_api_copy *copy)
{
    return copy->tier == HL_API_TIER_L2;
}

/* Its name in the list, NULL = none. */
static const char *find_in_l2(const struct hl_api_copy_list *copies, const char *node)
{
    for (size_t i = 0; i < copies->count; i++)
        if (is_l2(&copies->items[i]) && strcmp(copies->items[i].node, node) == 0)
            return copies->items[i].node;
    return NULL;
}

/* Learns where the nodes' stores are now. *closed: a node that has one of the copies and serves no
 * other node; NULL: there is none. Our own node is not one: its store has been asked. */
static hl_status learn_stores(const struct operation *op, const struct hl_api_copy_list *copies,
                              const char **closed)
{
    helios_client *c = op->client;
    struct copies *k = c->copies;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    hl_status st = HL_OK;
    int ms = 0;
    HL_TRY(controller_wait(op, ASK_MS, &ms));
    HL_TRY(hl_call_controller_list_nodes(c->controller, NULL, ms, &arena, &r));
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < r.nodes.count; i++) {
        const struct hl_api_node_info *node = &r.nodes.items[i].node;
        struct store *s = known_store(k, node->name);
        if (r.nodes.items[i].state != HL_API_NODE_LIFE_READY)
            continue;
        if (node->data_address[0] == '\0') {
            const char *has =
                strcmp(node->name, k->node) != 0 ? find_in_l2(copies, node->name) : NULL;
            *closed = has != NULL ? has : *closed;
            continue;
        }
        if (s != NULL && strcmp(s->address, node->agent_address) == 0) {
            net_retarget(s->net, node->data_address);
            continue;
        }
        if (s != NULL)
            s->replaced = true;
        if (st == HL_OK)
            st = add_store(c, node->name, node->agent_address, node->data_address);
    }
    pthread_mutex_unlock(&k->lock);
    return st;
}

static struct store *find_store(struct operation *op, const char *node)
{
    struct copies *k = op->client->copies;
    pthread_mutex_lock(&k->lock);
    struct store *s = known_store(k, node);
    pthread_mutex_unlock(&k->lock);
    return s;
}

static hl_status ask_copies(const struct operation *op, struct hl_id id, struct hl_arena *arena,
                            struct hl_api_shard *out)
{
    const struct hl_id_text text = hl_id_format(id);
    struct hl_api_controller_get_shard_results r;
    int ms = 0;
    HL_TRY(controller_wait(op, ASK_MS, &ms));
    HL_TRY(hl_call_controller_get_shard(op->client->controller,
                                        &(struct hl_api_controller_get_shard_params){.id = text.s},
                                        ms, arena, &r));
    *out = r.shard;
    return HL_OK;
}

/* What to do with a store that has the shard. */
typedef hl_status (*visit_fn)(struct operation *op, struct store *s, void *arg);

static bool any_in_l2(const struct hl_api_copy_list *copies)
{
    for (size_t i = 0; i < copies->count; i++)
        if (is_l2(&copies->items[i]))
            return true;
    return false;
}

/* The shard may have moved since the Controller answered. A Controller that has just started, or
 * that can't reach the only holder, may learn of the copy in a moment. */
static hl_status copy_not_found(struct hl_id id)
{
    return hl_fail(
        HL_ESTALE,
        "shard %s is not where the Controller reports it, or the Controller does not know it yet",
        hl_id_format(id).s);
}

/* No source of the shard is left. */
static hl_status copy_gone(struct hl_id id)
{
    return hl_fail(HL_ENOENT,
                   "shard %s is lost: none of the pools, archives and nodes that the Controller "
                   "knows has it; read an older version, or import the model again",
                   hl_id_format(id).s);
}

/* The copies are good, but not for a process that is not on their node. They may be about to move.
 */
static hl_status copy_closed(struct hl_id id, const char *node)
{
    return hl_fail(
        HL_ESTALE,
        "shard %s is only in the L2 of node %s, whose Agent has no data port that serves "
        "others; `helios shard copy %s --to l3` brings it into the pool",
        hl_id_format(id).s, node, hl_id_format(id).s);
}

static int failure_weight(hl_status st)
{
    if (st == HL_EUNAVAIL || st == HL_ETIMEDOUT)
        return 2;
    return st == HL_ENOENT ? 0 : 1;
}

void copies_note_failure(struct copies_failure *io, hl_status st)
{
    if (failure_weight(st) < failure_weight(io->st))
        return;
    io->st = st;
    snprintf(io->text, sizeof(io->text), "%s", hl_error_text());
}

static hl_status each_store(struct operation *op, struct hl_id id, visit_fn visit, void *arg)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard shard;
    struct copies_failure failure = {.st = HL_ENOENT};
    const char *closed = NULL;
    bool visited = false;
    HL_TRY(ask_copies(op, id, &arena, &shard));
    const struct hl_api_copy_list copies = shard.copies;
    if (shard.gone)
        return copy_gone(id);
    if (!any_in_l2(&copies)) /* the usual end of a search; it spares the call for the stores */
        return copy_not_found(id);
    HL_TRY(learn_stores(op, &copies, &closed));
    for (size_t i = 0; i < copies.count; i++) {
        const char *node = copies.items[i].node;
        struct store *s = is_l2(&copies.items[i]) ? find_store(op, node) : NULL;
        if (s == NULL)
            continue;
        visited = true;
        hl_status st = visit(op, s, arg);
        if (st == HL_OK)
            return HL_OK;
        copies_note_failure(&failure, st);
        hl_debug("the copy at node %s did not help: %s", node, hl_error_text());
    }
    if (!visited && closed != NULL)
        return copy_closed(id, closed);
    return failure.st == HL_ENOENT ? copy_not_found(id) : hl_fail(failure.st, "%s", failure.text);
}

/* A shard that the pool does not have and another place has is not lost: both failures count. */
hl_status copies_failed(const struct operation *op, hl_status here, const char *text,
                        hl_status elsewhere)
{
    char other[HL_ERROR_TEXT_MAX];
    snprintf(other, sizeof(other), "%s", hl_error_text());
    if (here != HL_ENOENT || elsewhere == HL_ENOENT || op->client->controller == NULL)
        return hl_fail(here, "%s", text);
    if (elsewhere == HL_ESTALE)
        return hl_fail(here, "%s", other); /* says where it should be */
    return hl_fail(here, "%s, or its copies can't be read: %s", text, other);
}

struct read_args {
    struct hl_id id;
    uint64_t off, len;
    void *buf;
    bool whole;
    const char *path;
};

static hl_status read_from(struct operation *op, struct store *s, void *arg)
{
    struct read_args *r = arg;
    HL_TRY(net_read(op, s->net, r->id, r->off, r->buf, r->len, r->whole));
    r->path = net_path(s->net);
    return HL_OK;
}

hl_status copies_read(struct operation *op, struct hl_id id, uint64_t off, void *buf, uint64_t len,
                      bool whole, const char **path)
{
    struct read_args r = {.id = id, .off = off, .len = len, .buf = buf, .whole = whole};
    HL_TRY(each_store(op, id, read_from, &r));
    hl_fault_count("read-elsewhere", r.path);
    *path = r.path;
    return HL_OK;
}

struct find_args {
    struct hl_id id;
    uint64_t size;
    uint32_t crc32;
};

static hl_status find_at(struct operation *op, struct store *s, void *arg)
{
    struct find_args *f = arg;
    return net_find(op, s->net, f->id, &f->size, &f->crc32);
}

hl_status copies_find(struct operation *op, struct hl_id id, uint64_t *size, uint32_t *crc32)
{
    struct find_args f = {.id = id};
    HL_TRY(each_store(op, id, find_at, &f));
    *size = f.size;
    *crc32 = f.crc32;
    return HL_OK;
}
