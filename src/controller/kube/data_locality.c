/* Which nodes hold what the ranks of a pod will read: copies in the host or device memory of an
 * Agent whose name is that of its Kubernetes node. */
#include <stdio.h>
#include <string.h>

#include "controller/copies/copies.h"
#include "controller/kube/gangs_private.h"
#include "controller/nodes/nodes.h"

#define PREFERRED_MAX 64 /* names in one pod's wish */
#define PLACES_MAX    64

static void key_of(int pp, int tp, char out[32])
{
    snprintf(out, 32, "%d.%d", pp, tp);
}

/* "pp.tp" -> {node: true} of the version that the attempt loads. */
static json_t *shard_holders(const struct job *j)
{
    struct hl_controller *c = j->controller;
    json_t *all = json_object();
    for (struct hl_shard_rec *s = c->catalog.shards; s != NULL; s = s->hh.next) {
        struct place places[PLACES_MAX];
        char key[32];
        if (s->version->number != j->load_version ||
            strcmp(s->version->model->name, j->spec.model) != 0)
            continue;
        key_of(s->pp, s->tp, key);
        size_t n = copies_places(c, s->id, HL_API_TIER_L1, places, PLACES_MAX);
        for (size_t i = 0; i < n && i < PLACES_MAX; i++) {
            if (places[i].node == NULL)
                continue;
            if (json_object_get(all, key) == NULL)
                json_object_set_new(all, key, json_object());
            json_object_set_new(json_object_get(all, key), places[i].node->name, json_true());
        }
    }
    return all;
}

json_t *gangs_preferred_nodes(const struct job *j)
{
    json_t *list = json_array(), *all = j->load_version >= 0 ? shard_holders(j) : json_object();
    for (int i = 0; i < j->run.plan->container_count; i++) {
        const struct hl_plan_container *c = &j->run.plan->containers[i];
        json_t *names = json_object(), *texts = json_array();
        const char *name;
        json_t *value;
        for (int r = 0; r < c->rank_count; r++) {
            char key[32];
            key_of(c->ranks[r].at.pp, c->ranks[r].at.tp, key);
            json_t *nodes = json_object_get(all, key);
            if (nodes != NULL)
                json_object_update(names, nodes);
        }
        json_object_foreach (names, name, value) {
            if (json_array_size(texts) < PREFERRED_MAX)
                json_array_append_new(texts, json_string(name));
        }
        json_decref(names);
        json_array_append_new(list, texts);
    }
    json_decref(all);
    return list;
}
