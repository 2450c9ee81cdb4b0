/* A plan as others see it, and as the record that is kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "core/json.h"
#include "core/plan.h"

static struct hl_api_text_list lines_info(char **lines)
{
    struct hl_api_text_list list = {.items = (const char **)lines};
    while (lines != NULL && lines[list.count] != NULL)
        list.count++;
    return list;
}

static struct hl_api_plan_container container_info(const struct hl_plan_container *c,
                                                   struct hl_arena *arena)
{
    struct hl_api_plan_container info = {
        .index = c->index, .node = c->node, .numa_id = c->numa_id, .cpus = c->cpus};
    info.ranks.items = hl_arena_array(arena, (size_t)c->rank_count, sizeof(*info.ranks.items));
    for (int i = 0; i < c->rank_count && info.ranks.items != NULL; i++) {
        const struct hl_plan_rank *r = &c->ranks[i];
        info.ranks.items[info.ranks.count++] =
            (struct hl_api_plan_rank){.rank = r->rank,
                                      .pp = r->at.pp,
                                      .tp = r->at.tp,
                                      .dp = r->at.dp,
                                      .local_rank = r->local_rank,
                                      .gpu = r->gpu};
    }
    return info;
}

struct hl_api_plan hl_plan_info(const struct hl_plan *plan, struct hl_arena *arena)
{
    size_t n = plan->containers != NULL ? (size_t)plan->container_count : 0;
    struct hl_api_plan info = {
        .world_size = plan->world_size,
        .ranks_per_container = plan->ranks_per_container,
        .arithmetic = lines_info(plan->arithmetic),
        .warnings = lines_info(plan->warnings),
        .feasible = plan->feasible,
        .reason = plan->reason,
        .master_node = plan->master_node,
        .never = plan->never,
        .containers.items = hl_arena_array(arena, n, sizeof(*info.containers.items)),
    };
    for (size_t i = 0; i < n && info.containers.items != NULL; i++)
        info.containers.items[info.containers.count++] =
            container_info(&plan->containers[i], arena);
    return info;
}

json_t *hl_plan_to_json(const struct hl_plan *plan)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_plan info = hl_plan_info(plan, &arena);
    return hl_arena_failed(&arena) ? NULL : hl_api_to_json(&hl_api_plan_type, &info);
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
