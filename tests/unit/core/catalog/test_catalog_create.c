/* Models created by a save: they appear with their first version and disappear with their last. */
#include "support/test.h"

#include "unit/core/catalog/catalog_rig.h"

static struct hl_version_begin begin_of(const char *job, int rank, int world)
{
    return (struct hl_version_begin){.model = "mine",
                                     .job = job,
                                     .rank = rank,
                                     .world = world,
                                     .now_ms = 5,
                                     .create = {.tp = 2, .pp = 1}};
}

static bool has_model(const struct hl_catalog *c)
{
    struct hl_model_rec *m;
    return hl_catalog_model(c, "mine", &m) == HL_OK;
}

TEST(a_failed_store_makes_no_model)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 1};
    struct hl_version_rec *v;
    struct hl_version_begin b = begin_of("j", 0, 1);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_EIO);
    assert_false(has_model(&c));
    assert_int_equal(json_object_size(s.records), 0);
    s.fail = 0;
    b.create = (struct hl_api_split){0};
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_ENOENT);
    b.create = (struct hl_api_split){.tp = 5000, .pp = 1};
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_EINVAL);
    b.model = "../x";
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_EINVAL);
    assert_int_equal(json_object_size(s.records), 0);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(a_save_that_is_given_up_takes_its_model_along)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v, *w;
    struct hl_id *ids;
    size_t n;
    struct hl_version_begin b = begin_of("j", 0, 2);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    assert_int_equal(v->number, 1);
    b.rank = 1;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &w), HL_OK);
    assert_ptr_equal(v, w);
    for (int rank = 0; rank < 2; rank++) {
        struct hl_version_abandon a = {.version = v, .rank = rank, .reason = "no"};
        assert_true(has_model(&c));
        assert_int_equal(hl_catalog_abandon(&c, &a, fake_commit, &s, &ids, &n), HL_OK);
        free(ids);
    }
    assert_false(has_model(&c));
    assert_int_equal(json_object_size(s.records), 0);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(others_join_a_model_that_is_being_made_only_with_its_sizes)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v, *w;
    struct hl_version_begin b = begin_of("j", 0, 1);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    b = begin_of("k", 0, 1);
    b.create.tp = 4;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &w), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "being created as TP2 x PP1"));
    b.create.tp = 2;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &w), HL_OK);
    assert_ptr_equal(v->model, w->model);
    assert_int_equal(w->number, 2);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(a_model_without_a_config_has_one_split)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v, *w;
    struct hl_version_begin b = begin_of("j", 0, 1);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    json_t *both =
        json_pack("[o,o]", shard(11, 0, 0, "layer-0000", 100), shard(12, 0, 1, "layer-0000", 100));
    struct hl_version_commit p = {.version = v, .shards = shard_list(both), .now_ms = 6};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    struct hl_api_split other = {.tp = 1, .pp = 1};
    assert_int_equal(hl_version_check_sizes(v, &other), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "only be read as it was saved, TP2 x PP1"));
    b.split = other;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &w), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "can't be saved as TP1 x PP1"));
    json_decref(both);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

/* Also if nothing is compared: it would be read as a model without tensors. */
TEST(a_version_of_nothing_at_all_never_becomes_visible)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v;
    struct hl_version_begin b = begin_of("j", 0, 2);
    json_t *one = json_pack("[o]", shard(11, 0, 0, "layer-0000", 100));
    b.check = HL_API_LAYOUT_CHECK_UNCHECKED;
    for (b.rank = 0; b.rank < 2; b.rank++)
        assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    struct hl_version_commit p = {.version = v, .rank = 1, .now_ms = 6};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    p.rank = 0;
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "none of its 2 ranks has saved a tensor"));
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    p.shards = shard_list(one); /* one rank's part is enough */
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    json_decref(one);
    hl_catalog_fini(&c);
    json_decref(s.records);
}
