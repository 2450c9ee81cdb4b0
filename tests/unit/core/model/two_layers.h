/* A model of two layers on one stage, and ranks that save it under another split. */
#ifndef TESTS_UNIT_CORE_TWO_LAYERS_H
#define TESTS_UNIT_CORE_TWO_LAYERS_H

#include "unit/core/catalog/catalog_rig.h"

#define TWO_LAYERS(tied)                                                                           \
    "{\"tp\": 1, \"pp\": 1, \"virtualStages\": 1, \"layers\": 2, \"tied\": " tied ", "             \
    "\"stages\": [[{\"first\": 0, \"count\": 2}]]}"
#define WORD   "embedding.word_embeddings.weight\tF32\t4,2\n"
#define NORM   "decoder.final_layernorm.weight\tF32\t2\n"
#define HEAD   NORM "output_layer.weight\tF32\t4,2\n"
#define LAYER  "decoder.layers.0.mlp.linear_fc1.weight\tF32\t4,2\n"
#define LAYER1 "decoder.layers.1.mlp.linear_fc1.weight\tF32\t4,2\n"

/* head: its part's layout. */
static inline void two_layers_init(struct saving *t, const char *config, const char *head)
{
    json_t *shards = json_pack(
        "[o,o,o,o]", laid_out(1, 0, 0, "embedding", WORD), laid_out(2, 0, 0, "layer-0000", LAYER),
        laid_out(3, 0, 0, "layer-0001", LAYER1), laid_out(4, 0, 0, "head", head));
    struct hl_import_done done = {.name = "tiny",
                                  .source = "/data/m",
                                  .tp = 1,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = config,
                                  .now_ms = 1000,
                                  .shards = shard_list(shards)};
    *t = (struct saving){.s = {json_object(), 0}};
    assert_int_equal(hl_catalog_import(&t->c, &done, fake_commit, &t->s, &t->base), HL_OK);
    json_decref(shards);
}

/* One of two ranks. */
static inline hl_status begin_split(struct saving *t, int rank, struct hl_api_split split,
                                    struct hl_version_rec **out)
{
    struct hl_version_begin b = {.model = "tiny",
                                 .job = "j",
                                 .step = 10,
                                 .rank = rank,
                                 .world = 2,
                                 .token = 7 + (uint64_t)rank,
                                 .now_ms = 5,
                                 .split = split};
    return hl_catalog_begin(&t->c, &b, fake_commit, &t->s, out);
}

/* The shards of the first of two stages. */
static inline json_t *first_stage(unsigned id)
{
    return json_pack("[o,o]", laid_out(id, 0, 0, "embedding", WORD),
                     laid_out(id + 1, 0, 0, "layer-0000", LAYER));
}

/* The shards of the second stage, with this layer and this head. */
static inline json_t *second_stage(unsigned id, const char *layer, const char *head)
{
    return json_pack("[o,o]", laid_out(id, 1, 0, "layer-0001", layer),
                     laid_out(id + 1, 1, 0, "head", head));
}

#endif
