/* Finds which nodes hold the data that the ranks of a pod will read: copies in the host or device
 * memory of an Agent that has the name of its Kubernetes node. */
#include <stdlib.h>
#include <string.h>

#include "controller/copies/copies.h"
#include "controller/kube/gangs_private.h"
#include "controller/nodes/nodes.h"

#define PLACES_MAX 64

/* The nodes that hold the shards of one position. */
struct position {
    struct {
        int pp, tp;
    } at;
    struct hl_volcano_nodes nodes;
    UT_hash_handle hh;
};

static void positions_free(struct position *all)
{
    struct position *p, *next;
    HASH_ITER (hh, all, p, next) {
        HASH_DEL(all, p);
        free(p);
    }
}

static struct position *position_find(struct position *all, int pp, int tp)
{
    struct position *p, key = {.at = {pp, tp}};
    HASH_FIND(hh, all, &key.at, sizeof(key.at), p);
    return p;
}

static hl_status position_add(struct position **all, const struct hl_shard_rec *s, const char *node)
{
    struct position *p = position_find(*all, s->pp, s->tp);
    if (p == NULL) {
        p = calloc(1, sizeof(*p));
        if (p == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the nodes that a gang prefers");
        p->at.pp = s->pp;
        p->at.tp = s->tp;
        HASH_ADD(hh, *all, at, sizeof(p->at), p);
    }
    hl_volcano_nodes_add(&p->nodes, node);
    return HL_OK;
}

/* For the version that the attempt loads. */
static hl_status positions_fill(const struct job *j, struct position **all)
{
    struct hl_controller *c = j->controller;
    if (j->load_version < 0)
        return HL_OK;
    for (struct hl_shard_rec *s = c->catalog.shards; s != NULL; s = s->hh.next) {
        struct place places[PLACES_MAX];
        if (s->version->number != j->load_version ||
            strcmp(s->version->model->name, j->spec.model) != 0)
            continue;
        size_t n = copies_places(c, s->id, HL_API_TIER_L1, places, PLACES_MAX);
        for (size_t i = 0; i < n && i < PLACES_MAX; i++)
            if (places[i].node != NULL)
                HL_TRY(position_add(all, s, places[i].node->name));
    }
    return HL_OK;
}

struct hl_volcano_nodes *gangs_preferred_nodes(const struct job *j)
{
    const struct hl_plan *plan = j->run.plan;
    struct position *all = NULL;
    hl_status st = positions_fill(j, &all);
    struct hl_volcano_nodes *near =
        st == HL_OK ? calloc((size_t)plan->container_count + 1, sizeof(*near)) : NULL;
    for (int i = 0; near != NULL && i < plan->container_count; i++) {
        const struct hl_plan_container *c = &plan->containers[i];
        for (int r = 0; r < c->rank_count; r++) {
            const struct position *p = position_find(all, c->ranks[r].at.pp, c->ranks[r].at.tp);
            for (int k = 0; p != NULL && k < p->nodes.count; k++)
                hl_volcano_nodes_add(&near[i], p->nodes.names[k]);
        }
    }
    positions_free(all);
    return near;
}
