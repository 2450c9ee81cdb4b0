/* What a version's shards say of their tensors, for its proof. */
#include "core/catalog_private.h"

/* Of the version's own split; of the first version of a model, as it settles it. */
HL_CHECK static hl_status copy_config(const struct hl_version_rec *v,
                                      struct hl_shard_rec *const *list, size_t n,
                                      struct hl_arena *arena, const char **out)
{
    HL_AUTO(hl_freep) char *text = NULL;
    const struct hl_model_rec *m = v->model;
    const struct hl_api_split split = hl_version_split(v);
    HL_TRY(hl_model_settle(v, list, n, &text));
    if (text == NULL && hl_split_said(&v->split) && m->shape.layers > 0)
        HL_TRY(hl_split_config(m->config, &split, m->shape.layers, &text));
    *out = hl_arena_strdup(arena, text != NULL ? text : m->config);
    return HL_OK;
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

/* NULL: there is something to prove it from. */
static const char *why_not(const struct hl_version_rec *v)
{
    if (v->check == HL_API_LAYOUT_CHECK_UNCHECKED)
        return "it was saved without a check of its layout (strict=False)";
    if (v->model->shape.unsliced)
        return "the model is stored unsliced: its tensors are what it is made of";
    return NULL;
}

HL_CHECK static hl_status make_input(const struct hl_version_rec *v,
                                     struct hl_shard_rec *const *list, size_t n,
                                     struct hl_arena *arena, struct hl_proof_input *out)
{
    struct hl_proof_input in = {0};
    struct hl_proof_shard *shards = hl_arena_array(arena, v->shard_count + n, sizeof(*shards));
    HL_TRY(hl_version_check(v, list, n, true));
    HL_TRY(copy_config(v, list, n, arena, &in.config));
    if (why_not(v) != NULL) {
        *out = (struct hl_proof_input){.skip = why_not(v)};
        return HL_OK;
    }
    if (shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the proof of a version");
    for (size_t i = 0; i < v->shard_count; i++)
        HL_TRY(add_shard(v->shards[i], arena, &shards[in.count++]));
    for (size_t i = 0; i < n; i++)
        HL_TRY(add_shard(list[i], arena, &shards[in.count++]));
    in.shards = shards;
    *out = in;
    return HL_OK;
}

hl_status hl_version_proof_input(const struct hl_catalog *c, struct hl_version_rec *v, int rank,
                                 const struct hl_api_shard_list *named, struct hl_arena *arena,
                                 struct hl_proof_input *out)
{
    struct hl_shard_rec **list;
    HL_TRY(hl_shards_parse(c, v, named, rank, &list));
    hl_status st = make_input(v, list, named->count, arena, out);
    hl_shard_recs_free(list, named->count);
    return st;
}
