/* Nodes as core/placement counts them: by an index, which this file assigns to their names. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "controller/placement/placement_private.h"

/* The machine may have booted just now, while what we know of shards is older (uses.c). */
#define BEFORE_BOOT_MS HL_HISTORY_BACK_MS

int64_t placement_now_ms(void)
{
    return (int64_t)(hl_now_ns() / HL_NS_PER_MS) + BEFORE_BOOT_MS;
}

int64_t placement_wall_ms(int64_t ms)
{
    return hl_wall_ms() - (placement_now_ms() - ms);
}

struct placed_node *placed_node_at(const struct hl_controller *c, uint16_t index)
{
    const struct placement *p = c->placement;
    return index < p->index_room ? p->by_index[index] : NULL;
}

const char *placed_node_name(const struct hl_controller *c, uint16_t index)
{
    const struct placed_node *n = placed_node_at(c, index);
    return n != NULL ? n->name : "";
}

struct placed_node *placed_node_find(const struct hl_controller *c, const char *name)
{
    struct placed_node *n;
    HASH_FIND_STR(c->placement->nodes, name, n);
    return n;
}

static hl_status placed_node_add(struct placement *p, const char *name, struct placed_node **out)
{
    uint16_t index;
    struct placed_node *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a node");
    hl_status st = hl_placement_node_add(&p->core, 0, placement_now_ms(), &index);
    if (st == HL_OK && index >= p->index_room) {
        uint32_t room = p->core.node_room;
        struct placed_node **more = realloc(p->by_index, room * sizeof(struct placed_node *));
        if (more == NULL) {
            st = hl_fail(HL_ENOMEM, "out of memory allocating %u nodes", room);
        } else {
            memset(more + p->index_room, 0, (room - p->index_room) * sizeof(struct placed_node *));
            p->by_index = more;
            p->index_room = room;
        }
    }
    if (st != HL_OK) {
        free(n);
        return st;
    }
    snprintf(n->name, sizeof(n->name), "%s", name);
    n->index = index;
    p->by_index[index] = n;
    HASH_ADD_STR(p->nodes, name, n);
    *out = n;
    return HL_OK;
}

struct placed_node *placed_node_need(struct hl_controller *c, const char *name)
{
    struct placed_node *n = placed_node_find(c, name);
    if (n == NULL && placed_node_add(c->placement, name, &n) != HL_OK) {
        hl_warn("node is not placed: it gets no shards and its reads don't count node=%s "
                "error=\"%s\"",
                name, hl_error_text());
        return NULL;
    }
    return n;
}

/* Once, until it has stayed for policy.flap. */
static void tell_flapping(struct hl_controller *c, struct placed_node *x)
{
    char time[32];
    bool flaps = !hl_placement_node_is_steady(&c->placement->core, x->index);
    if (flaps && !x->flaps_told)
        hl_warn(
            "node has left twice, the policy moves no shard to it for now node=%s "
            "policy_flap=%s",
            x->name,
            hl_format_duration_ms((uint64_t)c->placement->core.params.flap_ms, time, sizeof(time)));
    x->flaps_told = flaps;
}

void placement_node_registered(struct hl_controller *c, struct node *n)
{
    struct placed_node *x = placed_node_need(c, n->name);
    if (x == NULL)
        return;
    /* its Agent restarted before the node was given up: it still counts as having left */
    if (x->node != NULL && hl_placement_node_fence(&c->placement->core, x->index) != HL_OK)
        hl_debug("node was not fenced: %s", hl_error_text());
    x->node = n;
    requests_forget(x);
    if (hl_placement_node_start(&c->placement->core, x->index, 0) != HL_OK)
        hl_warn("node stays fenced node=%s error=\"%s\"", n->name, hl_error_text());
    tell_flapping(c, x);
    hl_migration_node_back(&c->placement->moves, x->index, placement_now_ms());
    c->placement->behind = true;
}

/* Reports of its processes are not believed until the node has registered again. */
void placement_node_silent(struct hl_controller *c, struct node *n)
{
    struct placed_node *x = placed_node_find(c, n->name);
    if (x != NULL)
        requests_forget(x);
    if (x != NULL && hl_placement_node_fence(&c->placement->core, x->index) != HL_OK)
        hl_debug("node was not fenced: %s", hl_error_text());
    if (x != NULL &&
        hl_migration_node_gone(&c->placement->moves, x->index, placement_now_ms()) != HL_OK)
        hl_debug("moves of a silent node: %s", hl_error_text());
    c->placement->behind = true;
}

void placement_node_forgotten(struct hl_controller *c, struct node *n)
{
    struct placement *p = c->placement;
    struct placed_node *x = placed_node_find(c, n->name);
    if (x == NULL)
        return;
    if (hl_placement_node_remove(&p->core, x->index, placement_now_ms()) != HL_OK)
        hl_debug("node was not removed: %s", hl_error_text());
    HASH_DEL(p->nodes, x);
    p->by_index[x->index] = NULL;
    free(x);
    p->behind = true;
}

bool placed_node_takes(const struct hl_controller *c, const struct placed_node *n)
{
    return n->node != NULL && node_takes(n->node) == HL_OK &&
           hl_placement_node_is_steady(&c->placement->core, n->index);
}

struct hl_place placed_place(struct hl_controller *c, const struct place *from)
{
    struct hl_place at = {.node = HL_READER_NONE, .tier = (uint8_t)from->tier};
    bool known = from->node != NULL && !from->node->gone; /* answers of a forgotten one may come */
    const struct placed_node *n = known ? placed_node_need(c, from->node->name) : NULL;
    if (n != NULL)
        at.node = n->index;
    return at;
}

double backbone_busy_pct(const struct hl_controller *c)
{
    struct hl_backbone b = {0};
    for (const struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        if (node_ready(n))
            hl_backbone_add_node(&b, &n->report.telemetry.backbone);
    if (pool_info(c) != NULL)
        hl_backbone_add_l3(&b, &pool_info(c)->backbone);
    return hl_backbone_busy_pct(&b);
}
