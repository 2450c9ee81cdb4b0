/* Versions saved under another pipeline split than that of the model's import. */
#include "support/test.h"

#include "core/catalog/catalog_cut.h"
#include "core/model/model_config.h"
#include "unit/core/model/two_layers.h"

static const struct hl_api_split two = {.tp = 1, .pp = 2};

/* With a tied head. */
static void model_init(struct saving *t)
{
    two_layers_init(t, TWO_LAYERS("true"), NORM);
}

TEST(a_job_of_two_stages_saves_what_one_stage_imported)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, two, &v), HL_OK);
    assert_int_equal(begin_split(&t, 1, two, &v), HL_OK);
    /* Layers count from 0 in each stage, and the last stage has a head of its own. */
    assert_int_equal(commit(&t, v, 0, first_stage(11)), HL_OK);
    assert_int_equal(commit(&t, v, 1, second_stage(13, LAYER, HEAD)), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    struct hl_api_split split = hl_version_split(v);
    assert_true(hl_split_equal(&split, &two));
    split = hl_version_split(t.base);
    assert_int_equal(split.pp, 1);
    saving_fini(&t);
}

TEST(the_split_of_a_version_is_kept)
{
    struct saving t;
    struct hl_version_rec *v;
    struct hl_catalog d = {0};
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, two, &v), HL_OK);
    assert_int_equal(load_all(&d, t.s.records, "model/"), 0);
    assert_int_equal(load_all(&d, t.s.records, "version/"), 0);
    assert_int_equal(d.models->shape.layers, 2);
    assert_int_equal(hl_version_split(d.models->versions).pp, 2);
    assert_int_equal(hl_version_split(d.models->versions->next).pp, 1);
    hl_catalog_fini(&d);
    saving_fini(&t);
}

TEST(a_record_with_a_split_that_is_none_is_corrupt)
{
    struct saving t;
    struct hl_version_rec *v;
    struct hl_catalog d = {0};
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, two, &v), HL_OK);
    json_t *record = json_object_get(t.s.records, "version/tiny/0000000002");
    assert_non_null(record);
    json_object_set_new(record, "split", json_pack("{s:s}", "tp", "two"));
    assert_int_equal(load_all(&d, t.s.records, "model/"), 0);
    assert_int_equal(hl_catalog_load(&d, "version/tiny/0000000002", record), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "tp"));
    hl_catalog_fini(&d);
    saving_fini(&t);
}

TEST(names_and_parts_are_those_of_the_own_split)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, two, &v), HL_OK);
    assert_int_equal(begin_split(&t, 1, two, &v), HL_OK);
    /* The layer's number in a model of one stage. */
    assert_int_equal(commit(&t, v, 1, second_stage(13, LAYER1, HEAD)), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "decoder.layers."));
    /* Without the head's rows. */
    assert_int_equal(commit(&t, v, 1, second_stage(13, LAYER, NORM)), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "output_layer.weight"));
    /* A layer of the other stage. */
    assert_int_equal(commit(&t, v, 1, json_pack("[o]", laid_out(13, 1, 0, "layer-0000", LAYER))),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "layer-0000"));
    /* A part is missing. */
    assert_int_equal(commit(&t, v, 1, json_pack("[o]", laid_out(13, 1, 0, "layer-0001", LAYER))),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "head"));
    assert_int_equal(v->committed_count, 0);
    saving_fini(&t);
}

TEST(ranks_of_one_save_agree_on_the_split)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, two, &v), HL_OK);
    assert_int_equal(begin_split(&t, 1, (struct hl_api_split){.tp = 1, .pp = 1}, &v), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "TP1 x PP2"));
    saving_fini(&t);
}

TEST(another_tensor_size_needs_to_know_the_tensors)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, (struct hl_api_split){.tp = 2, .pp = 1}, &v), HL_OK);
    assert_int_equal(commit(&t, v, 0, json_pack("[o]", laid_out(11, 0, 0, "embedding", WORD))),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "Hugging Face config"));
    saving_fini(&t);
}

TEST(uneven_stages_are_read_from_the_config)
{
    struct hl_model_shape s;
    char text[HL_SPLIT_TEXT_MAX];
    assert_int_equal(
        hl_model_shape_read("{\"tp\": 2, \"pp\": 3, \"virtualStages\": 1, \"layers\": 8, "
                            "\"stages\": [[{\"first\": 0, \"count\": 1}], "
                            "[{\"first\": 1, \"count\": 4}], [{\"first\": 5, \"count\": 3}]]}",
                            &s),
        HL_OK);
    assert_int_equal(s.split.first_stage_layers, 1);
    assert_int_equal(s.split.last_stage_layers, 3);
    assert_false(s.tied);
    assert_int_equal(hl_split_check(&s.split, s.layers), HL_OK);
    assert_int_equal(hl_split_check(&s.split, 3), HL_EINVAL);
    assert_string_equal(hl_split_text(&s.split, text), "TP2 x PP3, 1 first and 3 last layers");
    assert_int_equal(hl_model_shape_read("{\"architecture\": \"llama\"}", &s), HL_EUNSUPPORTED);
}

/* ---- positions ------------------------------------------------------------------------------- */

static hl_status position_of(const struct hl_version_rec *v, struct hl_api_split split, int pp,
                             int tp, struct hl_arena *arena, struct hl_position *out)
{
    return hl_version_position(v, &split, pp, tp, 0, arena, out);
}

TEST(one_stage_is_read_as_two)
{
    struct saving t;
    struct hl_position p;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    model_init(&t);
    assert_int_equal(position_of(t.base, two, 1, 0, &arena, &p), HL_OK);
    assert_int_equal(p.count, 3); /* the head's rows, layer 1, the norm */
    assert_string_equal(p.parts[0].shard->part, "embedding");
    assert_true(p.parts[0].renamed);
    assert_string_equal(p.parts[0].names[0].shown, "output_layer.weight");
    assert_string_equal(p.parts[1].shard->part, "head");
    assert_false(p.parts[1].renamed);
    assert_string_equal(p.parts[2].names[0].stored, "decoder.layers.1.mlp.linear_fc1.weight");
    assert_string_equal(p.parts[2].names[0].shown, "decoder.layers.0.mlp.linear_fc1.weight");
    assert_int_equal(position_of(t.base, (struct hl_api_split){0}, 0, 0, &arena, &p), HL_OK);
    assert_int_equal(p.count, 4);
    assert_int_equal(p.split.pp, 1);
    saving_fini(&t);
}

TEST(what_a_version_has_not_got_is_refused_with_the_numbers)
{
    struct saving t;
    struct hl_position p;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    model_init(&t);
    assert_int_equal(position_of(t.base, two, 2, 0, &arena, &p), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "TP1 x PP2"));
    assert_int_equal(position_of(t.base, (struct hl_api_split){0}, 1, 0, &arena, &p), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "TP1 x PP1"));
    assert_int_equal(position_of(t.base, (struct hl_api_split){.tp = 1, .pp = 3}, 0, 0, &arena, &p),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "2 layers over 3 stages"));
    const struct hl_api_split tp2 = {.tp = 2, .pp = 1};
    assert_int_equal(position_of(t.base, tp2, 0, 0, &arena, &p), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "not cut"));
    assert_int_equal(hl_version_check_cut(t.base, &tp2), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "Hugging Face config"));
    saving_fini(&t);
}

TEST(a_lost_shard_costs_the_positions_that_show_it)
{
    struct saving t;
    struct hl_position p;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    model_init(&t);
    hl_catalog_shard(&t.c, (struct hl_id){.lo = 1})->lost = 1; /* the embedding */
    assert_int_equal(position_of(t.base, two, 0, 0, &arena, &p), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "embedding"));
    assert_int_equal(position_of(t.base, two, 1, 0, &arena, &p), HL_ENOENT); /* the tied head */
    hl_catalog_shard(&t.c, (struct hl_id){.lo = 1})->lost = 0;
    hl_catalog_shard(&t.c, (struct hl_id){.lo = 3})->lost = 1; /* layer 1 */
    assert_int_equal(position_of(t.base, two, 0, 0, &arena, &p), HL_OK);
    assert_int_equal(position_of(t.base, two, 1, 0, &arena, &p), HL_ENOENT);
    saving_fini(&t);
}

/* As many stages as the import, with no numbers for the first and the last. */
TEST(the_numbers_of_an_uneven_split_mean_that_split)
{
    const struct hl_api_split own = {.tp = 2, .pp = 3, .first_stage_layers = 1},
                              numbers = {.tp = 2, .pp = 3, .virtual_stages = 1},
                              others = {.tp = 2, .pp = 2},
                              explicit_ones = {.tp = 2, .pp = 3, .first_stage_layers = 2};
    struct hl_api_split r = hl_split_resolve(&numbers, &own);
    assert_true(hl_split_equal(&r, &own));
    r = hl_split_resolve(&(struct hl_api_split){0}, &own);
    assert_true(hl_split_equal(&r, &own));
    r = hl_split_resolve(&others, &own);
    assert_true(hl_split_equal(&r, &others));
    r = hl_split_resolve(&explicit_ones, &own);
    assert_true(hl_split_equal(&r, &explicit_ones));
}

TEST(a_version_that_is_split_like_its_model_records_nothing)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t);
    assert_int_equal(begin_split(&t, 0, (struct hl_api_split){.tp = 1, .pp = 1}, &v), HL_OK);
    assert_false(hl_split_said(&v->split));
    assert_null(json_object_get(json_object_get(t.s.records, "version/tiny/0000000002"), "split"));
    assert_int_equal(begin_split(&t, 1, (struct hl_api_split){0}, &v), HL_OK);
    saving_fini(&t);
}
