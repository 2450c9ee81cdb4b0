/* A Controller without daemons: two nodes that are ready, and a model of the shards 1 and 2. */
#ifndef TESTS_UNIT_CONTROLLER_NODES_RIG_H
#define TESTS_UNIT_CONTROLLER_NODES_RIG_H

#include "controller/copies/copies_private.h"
#include "controller/nodes/nodes_private.h"
#include "unit/controller/catalog_rig.h"

struct world {
    struct hl_controller c;
    struct nodes nodes;
    struct node a, b;
    struct hl_shard_rec *shard; /* 1 */
};

static inline bool world_imports(const struct hl_controller *c)
{
    (void)c;
    return false;
}

static inline void node_put(struct world *w, struct node *n, const char *name)
{
    *n = (struct node){.controller = &w->c, .seen_ns = 1};
    snprintf(n->name, sizeof(n->name), "%s", name);
    snprintf(n->incarnation, sizeof(n->incarnation), "boot-1");
    HASH_ADD_STR(w->nodes.table, name, n);
}

static inline void world_init(struct world *w)
{
    *w = (struct world){.c.refs = 1};
    w->c.nodes = &w->nodes;
    assert_int_equal(copies_create(&w->c, world_imports), HL_OK);
    node_put(w, &w->a, "a");
    node_put(w, &w->b, "b");
    w->shard = import_model(&w->c.catalog, "tiny", 1, "{}")->shards[0];
}

static inline void world_fini(struct world *w)
{
    copies_fini(&w->c);
    HASH_CLEAR(hh, w->nodes.table);
    hl_catalog_fini(&w->c.catalog);
}

#endif
