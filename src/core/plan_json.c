/* A plan as struct Plan of helios.capnp, and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/plan.h"

static json_t *lines_to_json(char *const *lines)
{
    json_t *list = json_array();
    for (size_t i = 0; lines != NULL && lines[i] != NULL; i++)
        json_array_append_new(list, json_string(lines[i]));
    return list;
}

static json_t *container_to_json(const struct hl_plan_container *c)
{
    json_t *ranks = json_array();
    for (int i = 0; i < c->rank_count; i++) {
        const struct hl_plan_rank *r = &c->ranks[i];
        json_array_append_new(ranks, json_pack("{s:i, s:i, s:i, s:i, s:i, s:s}", "rank", r->rank,
                                               "pp", r->at.pp, "tp", r->at.tp, "dp", r->at.dp,
                                               "localRank", r->local_rank, "gpu", r->gpu));
    }
    return json_pack("{s:i, s:s, s:i, s:s, s:o}", "index", c->index, "node", c->node, "numaId",
                     c->numa_id, "cpus", c->cpus, "ranks", ranks);
}

json_t *hl_plan_to_json(const struct hl_plan *plan)
{
    json_t *containers = json_array();
    for (int i = 0; plan->containers != NULL && i < plan->container_count; i++)
        json_array_append_new(containers, container_to_json(&plan->containers[i]));
    return json_pack("{s:o, s:i, s:i, s:o, s:o, s:b, s:s, s:s, s:b}", "containers", containers,
                     "worldSize", plan->world_size, "ranksPerContainer", plan->ranks_per_container,
                     "arithmetic", lines_to_json(plan->arithmetic), "warnings",
                     lines_to_json(plan->warnings), "feasible", plan->feasible, "reason",
                     plan->reason, "masterNode", plan->master_node, "never", plan->never);
}

static hl_status short_of_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
}

static hl_status read_text(const json_t *doc, const char *key, char **out)
{
    *out = strdup(hl_json_str(doc, key, ""));
    return *out != NULL ? HL_OK : short_of_memory();
}

static hl_status read_lines(const json_t *doc, const char *key, char ***out)
{
    const json_t *list = hl_json_list(doc, key), *line;
    size_t i;
    *out = calloc(json_array_size(list) + 1, sizeof(char *));
    if (*out == NULL)
        return short_of_memory();
    json_array_foreach (list, i, line) {
        const char *text = json_string_value(line);
        (*out)[i] = strdup(text != NULL ? text : "");
        if ((*out)[i] == NULL)
            return short_of_memory();
    }
    return HL_OK;
}

static hl_status read_container(const json_t *doc, struct hl_plan_container *c)
{
    const json_t *list = hl_json_list(doc, "ranks"), *v;
    size_t i;
    const char *node = hl_json_str(doc, "node", "");
    if (strlen(node) > HL_NODE_NAME_MAX)
        return hl_fail(HL_EINVAL, "node name '%.80s' is too long", node);
    snprintf(c->node, sizeof(c->node), "%s", node);
    c->index = (int)hl_json_int(doc, "index", 0);
    c->numa_id = (int)hl_json_int(doc, "numaId", 0);
    HL_TRY(read_text(doc, "cpus", &c->cpus));
    c->ranks = calloc(json_array_size(list) + 1, sizeof(*c->ranks));
    if (c->ranks == NULL)
        return short_of_memory();
    json_array_foreach (list, i, v) {
        struct hl_plan_rank *r = &c->ranks[i];
        r->rank = (int)hl_json_int(v, "rank", 0);
        r->at.pp = (int)hl_json_int(v, "pp", 0);
        r->at.tp = (int)hl_json_int(v, "tp", 0);
        r->at.dp = (int)hl_json_int(v, "dp", 0);
        r->local_rank = (int)hl_json_int(v, "localRank", 0);
        HL_TRY(read_text(v, "gpu", &r->gpu));
        c->rank_count++;
    }
    return HL_OK;
}

hl_status hl_plan_from_json(const json_t *doc, struct hl_plan **out)
{
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = calloc(1, sizeof(*plan));
    const json_t *list = hl_json_list(doc, "containers"), *v;
    size_t i;
    if (plan == NULL)
        return short_of_memory();
    if (!json_is_object(doc))
        return hl_fail(HL_EINVAL, "a plan must be an object");
    plan->feasible = hl_json_bool(doc, "feasible", 0);
    plan->never = hl_json_bool(doc, "never", 0);
    plan->world_size = (int)hl_json_int(doc, "worldSize", 0);
    plan->ranks_per_container = (int)hl_json_int(doc, "ranksPerContainer", 0);
    plan->containers = calloc(json_array_size(list) + 1, sizeof(*plan->containers));
    if (plan->containers == NULL)
        return short_of_memory();
    plan->container_count = (int)json_array_size(list);
    json_array_foreach (list, i, v)
        HL_TRY(read_container(v, &plan->containers[i]));
    HL_TRY(read_lines(doc, "arithmetic", &plan->arithmetic));
    HL_TRY(read_lines(doc, "warnings", &plan->warnings));
    HL_TRY(read_text(doc, "reason", &plan->reason));
    HL_TRY(read_text(doc, "masterNode", &plan->master_node));
    HL_TRY(read_text(doc, "masterAddress", &plan->master_address));
    *out = hl_steal(&plan);
    return HL_OK;
}
