/* The placement of two nodes and a model of two shards, without a loop. */
#ifndef TESTS_UNIT_CONTROLLER_PLACEMENT_PLACEMENT_RIG_H
#define TESTS_UNIT_CONTROLLER_PLACEMENT_PLACEMENT_RIG_H

#include <stdlib.h>
#include <string.h>

#include "controller/placement/placement_private.h"
#include "unit/controller/nodes_rig.h"

static bool gang_is_starting;

static inline bool gang_starts(const struct hl_controller *c)
{
    (void)c;
    return gang_is_starting;
}

/* Handles everything that waits; returns the number of turns of the loop. */
static inline unsigned follow(struct world *w)
{
    unsigned turns = 1;
    follow_begin(&w->c);
    while (!follow_turn(&w->c))
        turns++;
    return turns;
}

static inline int world_start(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    world_init(w);
    assert_int_equal(placement_create(&w->c, gang_starts), HL_OK);
    placement_node_registered(&w->c, &w->a);
    placement_node_registered(&w->c, &w->b);
    w->c.claim.revision = 1;
    follow(w);
    *state = w;
    return 0;
}

static inline int world_end(void **state)
{
    struct world *w = *state;
    placement_fini(&w->c);
    world_fini(w);
    free(w);
    return 0;
}

/* A node has a right copy of the shard. */
static inline void learn(struct world *w, struct node *n, enum hl_api_tier tier, const char *device)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    copies_learn(&w->c, n,
                 &(struct hl_api_copy){.id = id.s,
                                       .tier = tier,
                                       .device = device,
                                       .transport = "",
                                       .size_bytes = w->shard->size_bytes,
                                       .crc32 = w->shard->crc32});
}

static inline const struct hl_placed_shard *placed(struct world *w)
{
    return hl_placement_shard_find(&w->c.placement->core, w->shard->id);
}

/* A process reports that it read shard 1. */
static inline bool report(struct world *w, const char *node, uint64_t process, uint64_t sequence,
                          uint64_t count)
{
    const struct hl_id_text id = hl_id_format(w->shard->id);
    struct hl_api_access_report access = {.id = id.s, .count = count, .path = "shm"};
    return placement_report(
        &w->c, &(struct hl_api_controller_report_access_params){.node = node,
                                                                .job = "",
                                                                .reports = {&access, 1},
                                                                .incarnation = process,
                                                                .sequence = sequence});
}

static inline uint32_t accesses(struct world *w)
{
    const struct hl_placement *p = &w->c.placement->core;
    return hl_attributes_count(&placed(w)->use, &p->params, placement_now_ms());
}

static inline void model_remove(struct world *w, const char *name)
{
    struct hl_model_rec *m;
    struct hl_id *ids;
    size_t count;
    uint64_t bytes;
    assert_int_equal(hl_catalog_model(&w->c.catalog, name, &m), HL_OK);
    assert_int_equal(
        hl_catalog_remove(&w->c.catalog, m, -1, keep_nothing, NULL, &ids, &count, &bytes), HL_OK);
    free(ids);
}

#endif
