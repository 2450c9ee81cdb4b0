/* A plan as shown to clients and as the stored record. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "core/planner/plan_private.h"

static struct hl_api_text_list lines_info(char **lines)
{
    struct hl_api_text_list list = {.items = (const char **)lines};
    while (lines != NULL && lines[list.count] != NULL)
        list.count++;
    return list;
}

static struct hl_api_plan_rank_list ranks_info(const struct hl_plan_rank *ranks, int count,
                                               struct hl_arena *arena)
{
    struct hl_api_plan_rank_list list = {
        .items = hl_arena_array(arena, (size_t)count, sizeof(*list.items))};
    for (int i = 0; i < count && list.items != NULL; i++) {
        const struct hl_plan_rank *r = &ranks[i];
        list.items[list.count++] =
            (struct hl_api_plan_rank){.rank = r->rank,
                                      .pp = r->at.pp,
                                      .tp = r->at.tp,
                                      .dp = r->at.dp,
                                      .cp = r->at.cp,
                                      .local_rank = r->local_rank,
                                      .gpu = r->gpu,
                                      .known_as = r->known_as != r->rank ? r->known_as : -1};
    }
    return list;
}

static struct hl_api_plan_container container_info(const struct hl_plan_container *c,
                                                   struct hl_arena *arena)
{
    return (struct hl_api_plan_container){.index = c->index,
                                          .node = c->node,
                                          .numa_id = c->numa_id,
                                          .cpus = c->cpus,
                                          .ranks = ranks_info(c->ranks, c->rank_count, arena),
                                          .address = c->address,
                                          .gpus = {(const char **)c->gpus, (size_t)c->gpu_count},
                                          .joining = ranks_info(c->ranks, c->joining, arena),
                                          .leaves = c->leaves};
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
    const struct hl_api_plan_record record = {
        .containers = info.containers,
        .world_size = info.world_size,
        .ranks_per_container = info.ranks_per_container,
        .arithmetic = info.arithmetic,
        .warnings = info.warnings,
        .feasible = info.feasible,
        .reason = info.reason,
        .master_node = info.master_node,
        .never = info.never,
        .master_address = plan->master_address,
        .next_index = plan->next_index != plan->container_count ? plan->next_index : 0};
    return hl_arena_failed(&arena) ? NULL : hl_api_to_json(&hl_api_plan_record_type, &record);
}

HL_CHECK static hl_status read_text(const char *text, char **out)
{
    *out = strdup(text);
    return *out != NULL ? HL_OK : hl_plan_no_memory();
}

HL_CHECK static hl_status read_lines(const struct hl_api_text_list *list, char ***out)
{
    *out = calloc(list->count + 1, sizeof(char *));
    if (*out == NULL)
        return hl_plan_no_memory();
    for (size_t i = 0; i < list->count; i++)
        HL_TRY(read_text(list->items[i], &(*out)[i]));
    return HL_OK;
}

HL_CHECK static hl_status read_ranks(const struct hl_api_plan_rank_list *from,
                                     struct hl_plan_container *c, int *count)
{
    c->ranks = calloc(from->count + 1, sizeof(*c->ranks));
    if (c->ranks == NULL)
        return hl_plan_no_memory();
    for (size_t i = 0; i < from->count; i++) {
        const struct hl_api_plan_rank *r = &from->items[i];
        c->ranks[i] =
            (struct hl_plan_rank){.rank = r->rank,
                                  .at = {.pp = r->pp, .tp = r->tp, .dp = r->dp, .cp = r->cp},
                                  .local_rank = r->local_rank,
                                  .known_as = r->known_as >= 0 ? r->known_as : r->rank};
        HL_TRY(read_text(r->gpu, &c->ranks[i].gpu));
        (*count)++;
    }
    return HL_OK;
}

HL_CHECK static hl_status read_container(const struct hl_api_plan_container *from,
                                         struct hl_plan_container *c)
{
    if (strlen(from->node) > HL_NODE_NAME_MAX)
        return hl_fail(HL_EINVAL, "node name '%.80s' is too long", from->node);
    snprintf(c->node, sizeof(c->node), "%s", from->node);
    c->index = from->index;
    c->numa_id = from->numa_id;
    HL_TRY(read_text(from->cpus, &c->cpus));
    c->leaves = from->leaves;
    if (from->address != NULL && from->address[0] != '\0') {
        HL_TRY(read_text(from->address, &c->address));
        HL_TRY(read_lines(&from->gpus, &c->gpus));
        c->gpu_count = (int)from->gpus.count;
    }
    bool joins = from->joining.count > 0;
    return read_ranks(joins ? &from->joining : &from->ranks, c,
                      joins ? &c->joining : &c->rank_count);
}

HL_CHECK static hl_status read_plan(const struct hl_api_plan_record *from, struct hl_plan *plan)
{
    plan->feasible = from->feasible;
    plan->never = from->never;
    plan->world_size = from->world_size;
    plan->ranks_per_container = from->ranks_per_container;
    plan->containers = calloc(from->containers.count + 1, sizeof(*plan->containers));
    if (plan->containers == NULL)
        return hl_plan_no_memory();
    plan->container_count = (int)from->containers.count;
    plan->next_index = from->next_index > 0 ? from->next_index : plan->container_count;
    for (size_t i = 0; i < from->containers.count; i++)
        HL_TRY(read_container(&from->containers.items[i], &plan->containers[i]));
    HL_TRY(read_lines(&from->arithmetic, &plan->arithmetic));
    HL_TRY(read_lines(&from->warnings, &plan->warnings));
    HL_TRY(read_text(from->reason, &plan->reason));
    HL_TRY(read_text(from->master_node, &plan->master_node));
    return read_text(from->master_address, &plan->master_address);
}

hl_status hl_plan_from_json(const json_t *doc, struct hl_plan **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_plan_freep) struct hl_plan *plan = calloc(1, sizeof(*plan));
    struct hl_api_plan_record record;
    if (plan == NULL)
        return hl_plan_no_memory();
    HL_TRY(hl_api_record_from_json(&hl_api_plan_record_type, doc, &arena, &record));
    HL_TRY(read_plan(&record, plan));
    *out = hl_steal(&plan);
    return HL_OK;
}
