/* The tensors that a version's shards list, as input of its proof. */
#include "core/catalog/catalog_private.h"

/* Copies the model's config with the version's own split. */
HL_CHECK static hl_status copy_config(const struct hl_version_rec *v, struct hl_arena *arena,
                                      const char **out)
{
    HL_AUTO(hl_freep) char *text = NULL;
    const struct hl_model_rec *m = v->model;
    const struct hl_api_split split = hl_version_split(v);
    if (hl_split_said(&v->split) && m->shape.layers > 0)
        HL_TRY(hl_split_config(m->config, &split, m->shape.layers, &text));
    *out = hl_arena_strdup(arena, text != NULL ? text : m->config);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for the proof of a version");
}

HL_CHECK static hl_status add_shard(const struct hl_shard_rec *s, struct hl_arena *arena,
                                    struct hl_proof_shard *to)
{
    *to = (struct hl_proof_shard){.pp = s->pp,
                                  .tp = s->tp,
                                  .ep = s->ep,
                                  .rank = s->rank,
                                  .part = hl_arena_strdup(arena, s->part),
                                  .layout = hl_arena_strdup(arena, s->layout),
                                  .crcs = hl_arena_strdup(arena, s->tensor_crcs)};
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the proof of a version");
    return HL_OK;
}

/* NULL: the version can be proved. */
static const char *why_not(const struct hl_version_rec *v)
{
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return "it was saved without a check of its layout (strict=False)";
    return NULL;
}

HL_CHECK static hl_status make_input(const struct hl_version_commit *p,
                                     struct hl_shard_rec *const *list, struct hl_arena *arena,
                                     struct hl_version_proof *out)
{
    const struct hl_version_rec *v = p->version;
    size_t n = p->shards.count;
    struct hl_proof_shard *shards = hl_arena_array(arena, v->shard_count + n, sizeof(*shards));
    struct hl_proof_input in = {.skip = why_not(v), .shards = shards};
    HL_TRY(hl_version_check(p, list, true));
    HL_TRY(copy_config(v, arena, &in.config));
    if (shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the proof of a version");
    for (size_t i = 0; i < v->shard_count; i++)
        HL_TRY(add_shard(v->shards[i], arena, &shards[in.count++]));
    for (size_t i = 0; i < n; i++)
        HL_TRY(add_shard(list[i], arena, &shards[in.count++]));
    *out = (struct hl_version_proof){.input = in};
    if (v->model->shape.as_saved)
        out->settle = (struct hl_settle){.model = hl_arena_strdup(arena, v->model->name),
                                         .config = in.config,
                                         .split = hl_version_split(v),
                                         .shards = shards,
                                         .count = in.count};
    return HL_OK;
}

hl_status hl_version_proof_input(const struct hl_catalog *c, const struct hl_version_commit *p,
                                 struct hl_arena *arena, struct hl_version_proof *out)
{
    struct hl_shard_rec **list;
    HL_TRY(hl_shards_parse(c, p->version, &p->shards, p->rank, &list));
    hl_status st = make_input(p, list, arena, out);
    hl_shard_recs_free(list, p->shards.count);
    return st;
}

/* An empty text means "not set", except for a shard without tensors, whose text is empty. */
static const char *text_of(const struct hl_api_shard *s, const char *text)
{
    return s->tensors == 0 || text[0] != '\0' ? text : NULL;
}

hl_status hl_import_proof_input(const char *config, const struct hl_api_shard_list *shards,
                                struct hl_arena *arena, struct hl_version_proof *out)
{
    struct hl_proof_shard *list = hl_arena_array(arena, shards->count + 1, sizeof(*list));
    for (size_t i = 0; list != NULL && i < shards->count; i++) {
        const struct hl_api_shard *s = &shards->items[i];
        list[i] =
            (struct hl_proof_shard){.pp = s->pp,
                                    .tp = s->tp,
                                    .ep = s->ep,
                                    .rank = -1,
                                    .part = hl_arena_strdup(arena, s->part),
                                    .layout = hl_arena_strdup(arena, text_of(s, s->layout)),
                                    .crcs = hl_arena_strdup(arena, text_of(s, s->tensor_crcs))};
    }
    *out = (struct hl_version_proof){.input = {.config = hl_arena_strdup(arena, config),
                                               .shards = list,
                                               .count = shards->count,
                                               .imported = true}};
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the proof of an import");
    return HL_OK;
}

hl_status hl_version_settle(struct hl_version_proof *p, char **config)
{
    *config = NULL;
    if (p->settle.config == NULL)
        return HL_OK;
    HL_TRY(hl_settle(&p->settle, config));
    if (*config != NULL)
        p->input.config = *config;
    return HL_OK;
}
