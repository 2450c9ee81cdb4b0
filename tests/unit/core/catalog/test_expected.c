/* The expected contents of a version whose split differs from its model's: planned ahead, on
 * copies.
 */
#include "support/test.h"

#include "core/catalog/expected.h"
#include "unit/core/model/two_layers.h"

#define CONFIG TWO_LAYERS("false")

static const struct hl_api_split two = {.tp = 1, .pp = 2, .virtual_stages = 1};

/* `v` is being saved by two ranks. */
static void model_init(struct saving *t, const char *config, struct hl_version_rec **v)
{
    two_layers_init(t, config, HEAD);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(begin_split(t, rank, two, v), HL_OK);
}

static struct hl_expected *planned(const struct saving *t, const struct hl_version_rec *v)
{
    const struct hl_api_split split = hl_version_split(v);
    struct hl_expected *e;
    assert_ptr_equal(hl_version_expects_of(v), t->base);
    assert_int_equal(hl_expected_new(t->base, &split, &e), HL_OK);
    hl_expected_plan(e);
    return e;
}

/* What rank `rank` gets as an answer. */
static hl_status commit_with(struct saving *t, struct hl_version_rec *v, int rank, json_t *shards,
                             const struct hl_expected *e)
{
    struct hl_version_commit p = {.version = v,
                                  .rank = rank,
                                  .shards = shard_list(shards),
                                  .meta = "{}",
                                  .now_ms = 6,
                                  .expected = e};
    hl_status st = hl_catalog_commit_part(&t->c, &p, fake_commit, &t->s);
    json_decref(shards);
    return st;
}

TEST(a_plan_made_ahead_says_what_one_made_on_the_spot_says)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t, CONFIG, &v);
    struct hl_expected *e = planned(&t, v);
    for (int given = 0; given < 2; given++) {
        const struct hl_expected *plan = given ? e : NULL;
        /* the head is missing; it has another shape; a layer of the other stage */
        assert_int_equal(
            commit_with(&t, v, 1, json_pack("[o]", laid_out(13, 1, 0, "layer-0001", LAYER)), plan),
            HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "part head at pp 1"));
        assert_int_equal(commit_with(&t, v, 1, second_stage(13, LAYER, WORD), plan), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "tiny@1"));
        assert_int_equal(
            commit_with(&t, v, 1, json_pack("[o]", laid_out(13, 1, 0, "layer-0000", LAYER)), plan),
            HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "no such part"));
    }
    assert_int_equal(commit_with(&t, v, 0, first_stage(11), e), HL_OK);
    assert_int_equal(commit_with(&t, v, 1, second_stage(13, LAYER, HEAD), e), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    hl_expected_free(e);
    saving_fini(&t);
}

TEST(the_plan_that_is_given_is_used_unless_it_is_of_another_base_or_split)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t, CONFIG, &v);
    struct hl_expected *e = planned(&t, v);
    for (size_t i = 0; i < e->count; i++)
        e->list[i].layout = "something.else\tF32\t4,2\n";
    assert_int_equal(commit_with(&t, v, 0, first_stage(11), e), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "is not in the model"));
    e->split.pp = 1;
    assert_false(hl_expected_serves(e, v, t.base));
    e->split.pp = 2;
    assert_true(hl_expected_serves(e, v, t.base));
    e->base++;
    assert_int_equal(commit_with(&t, v, 0, first_stage(11), e), HL_OK);
    hl_expected_free(e);
    saving_fini(&t);
}

TEST(a_plan_needs_nothing_of_the_catalogue)
{
    struct saving t;
    struct hl_version_rec *v;
    struct hl_expected *e;
    model_init(&t, CONFIG, &v);
    assert_int_equal(hl_expected_new(t.base, &two, &e), HL_OK);
    saving_fini(&t);
    hl_expected_plan(e);
    assert_int_equal(e->st, HL_OK);
    assert_int_equal(e->count, 4);
    const struct hl_expected_part *head = hl_expected_find(e, (struct hl_part_at){1, 0, 0, "head"});
    assert_non_null(head);
    assert_string_equal(head->layout, HEAD);
    const struct hl_expected_part *layer =
        hl_expected_find(e, (struct hl_part_at){1, 0, 0, "layer-0001"});
    assert_non_null(layer);
    assert_string_equal(layer->layout, LAYER); /* stages count their layers from 0 */
    assert_null(hl_expected_find(e, (struct hl_part_at){0, 0, 0, "head"}));
    hl_expected_free(e);
}

TEST(what_a_plan_met_is_told_to_every_commit)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t, "{\"tp\": 1, \"pp\": 1}", &v); /* the config does not give the layers */
    struct hl_expected *e = planned(&t, v);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(commit_with(&t, v, 0, first_stage(11), e), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "save with the model's split"));
    }
    assert_int_equal(v->committed_count, 0);
    hl_expected_free(e);
    saving_fini(&t);
}

TEST(nothing_is_planned_for_the_models_own_split_nor_without_a_check)
{
    struct saving t;
    struct hl_version_rec *v;
    model_init(&t, CONFIG, &v);
    assert_ptr_equal(hl_version_expects_of(v), t.base);
    v->check = HL_API_LAYOUT_CHECK_UNCHECKED;
    assert_null(hl_version_expects_of(v));
    v->check = HL_API_LAYOUT_CHECK_EXACT;
    v->split = (struct hl_api_split){.tp = 1, .pp = 1, .virtual_stages = 1};
    assert_null(hl_version_expects_of(v));
    saving_fini(&t);
}
