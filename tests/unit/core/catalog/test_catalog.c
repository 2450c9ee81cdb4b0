#include "support/test.h"

#include "unit/core/catalog/catalog_rig.h"

TEST(an_import_is_version_one_and_visible)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v = import_two_shards(&c, &s, "tiny", 1);
    assert_non_null(v);
    assert_int_equal(v->number, 1);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    assert_string_equal(v->shards[0]->part, "embedding"); /* tp 0 before tp 1 */
    char key[HL_CATALOG_KEY_MAX];
    assert_string_equal(hl_shard_key(v->shards[1], key, sizeof(key)), "tiny@1/pp0/tp1/layer-0000");
    assert_null(import_two_shards(&c, &s, "tiny", 5)); /* the name is taken */
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(a_version_is_served_only_when_every_rank_has_committed)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v1 = import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {.model = "tiny",
                                 .job = "j",
                                 .attempt = 1,
                                 .step = 10,
                                 .world = 2,
                                 .now_ms = 2000,
                                 .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    struct hl_version_rec *v, *again, *latest;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    assert_int_equal(v->number, 2);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &again), HL_OK);
    assert_ptr_equal(v, again); /* every rank gets the same version */

    json_t *one = json_pack("[o]", shard(11, 0, 0, "embedding", 100));
    json_t *two = json_pack("[o]", shard(12, 0, 1, "embedding", 100));
    struct hl_version_commit p = {.version = v,
                                  .rank = 0,
                                  .shards = shard_list(one),
                                  .meta = "{\"step\":10}",
                                  .now_ms = 3000};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s),
                     HL_OK); /* repeated: nothing changes */
    assert_int_equal(v->committed_count, 1);
    assert_int_equal(hl_catalog_version(v->model, -1, &latest), HL_OK);
    assert_ptr_equal(latest, v1);

    p.rank = 1;
    p.shards = shard_list(two);
    p.meta = "{\"other\":1}";
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(hl_catalog_version(v->model, -1, &latest), HL_OK);
    assert_ptr_equal(latest, v);
    assert_string_equal(v->meta, "{\"step\":10}");
    json_decref(one);
    json_decref(two);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(a_failed_store_changes_nothing)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v, *v1 = import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {.model = "tiny",
                                 .job = "j",
                                 .attempt = 1,
                                 .step = 10,
                                 .world = 1,
                                 .now_ms = 1,
                                 .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    s.fail = 1;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_EIO);
    assert_int_equal(v1->model->next_version, 2);
    s.fail = 0;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    json_t *one = json_pack("[o]", shard(11, 0, 0, "embedding", 100));
    struct hl_version_commit p = {
        .version = v, .rank = 0, .shards = shard_list(one), .meta = "{\"a\":1}", .now_ms = 3};
    s.fail = 1;
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_EIO);
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    assert_int_equal(v->committed_count, 0);
    assert_string_equal(v->meta, "{}");
    assert_int_equal(HASH_COUNT(c.shards), 2);
    s.fail = 0;
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    json_decref(one);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(what_was_committed_loads_back_the_same)
{
    struct hl_catalog c = {0}, d = {0};
    struct fake_store s = {json_object(), 0};
    import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {.model = "tiny",
                                 .job = "j",
                                 .attempt = 2,
                                 .step = 7,
                                 .world = 3,
                                 .now_ms = 9,
                                 .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    struct hl_version_rec *v, *w;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    json_t *one = json_pack("[o]", shard(11, 1, 0, "head", 100));
    struct hl_version_commit p = {
        .version = v, .rank = 1, .shards = shard_list(one), .meta = "", .now_ms = 3};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);

    assert_int_equal(load_all(&d, s.records, "model/"), 0);
    assert_int_equal(load_all(&d, s.records, "version/"), 0);
    assert_int_equal(load_all(&d, s.records, "shard/"), 0);
    struct hl_model_rec *m;
    assert_int_equal(hl_catalog_model(&d, "tiny", &m), HL_OK);
    assert_int_equal(hl_catalog_version(m, 2, &w), HL_OK);
    assert_int_equal(w->state, HL_API_VERSION_STATE_OPEN);
    assert_int_equal(w->committed_count, 1);
    assert_int_equal(w->committed[1], 1);
    assert_int_equal(w->shards[0]->rank, 1);
    struct hl_arena arena = {0};
    struct hl_api_model was = hl_model_rec_info(v->model, &arena);
    struct hl_api_model is = hl_model_rec_info(m, &arena);
    json_t *before = hl_api_to_json(&hl_api_model_type, &was);
    json_t *after = hl_api_to_json(&hl_api_model_type, &is);
    assert_true(json_equal(before, after));
    hl_arena_fini(&arena);
    json_decref(before);
    json_decref(after);
    json_decref(one);
    hl_catalog_fini(&c);
    hl_catalog_fini(&d);
    json_decref(s.records);
}

TEST(a_step_of_the_wall_clock_moves_what_is_open)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(v->touched_ms, 5);
    hl_catalog_shift(&t.c, 3600000);
    assert_int_equal(v->touched_ms, 3600005);
    assert_int_equal(t.base->touched_ms, 0); /* never touched: no time to shift */
    saving_fini(&t);
}

TEST(removing_gives_the_ids_and_forgets_an_empty_model)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v = import_two_shards(&c, &s, "tiny", 1);
    struct hl_id *ids;
    size_t n;
    uint64_t bytes;
    assert_int_equal(hl_catalog_remove(&c, v->model, 9, fake_commit, &s, &ids, &n, &bytes),
                     HL_ENOENT);
    assert_int_equal(hl_catalog_remove(&c, v->model, 1, fake_commit, &s, &ids, &n, &bytes), HL_OK);
    assert_int_equal(n, 2);
    assert_int_equal(bytes, 500);
    assert_int_equal(json_object_size(s.records), 0);
    struct hl_model_rec *m;
    assert_int_equal(hl_catalog_model(&c, "tiny", &m), HL_ENOENT);
    free(ids);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(the_step_of_a_megatron_import_is_its_iteration)
{
    struct hl_catalog c = {0}, again = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v;
    json_t *shards = json_pack("[o]", shard(1, 0, 0, "embedding", 10));
    struct hl_import_done done = {
        .name = "m",
        .tp = 1,
        .pp = 1,
        .config = "{\"megatron\":{\"format\":\"torch\",\"iteration\":5000,\"leftOut\":[]}}",
        .shards = shard_list(shards)};
    assert_int_equal(hl_catalog_import(&c, &done, fake_commit, &s, &v), HL_OK);
    assert_int_equal(v->step, 5000);
    const char *key;
    json_t *record;
    json_object_foreach (s.records, key, record)
        assert_int_equal(hl_catalog_load(&again, key, record), HL_OK);
    struct hl_model_rec *m;
    assert_int_equal(hl_catalog_model(&again, "m", &m), HL_OK);
    assert_int_equal(m->versions->step, 5000);
    json_decref(shards);
    hl_catalog_fini(&c);
    hl_catalog_fini(&again);
    json_decref(s.records);
}

TEST(a_list_with_a_shard_twice_is_refused_whole)
{
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v;
    json_t *shards =
        json_pack("[o,o]", shard(1, 0, 0, "embedding", 10), shard(1, 0, 0, "head", 10));
    struct hl_import_done done = {
        .name = "m", .tp = 1, .pp = 1, .config = "{}", .shards = shard_list(shards)};
    assert_int_equal(hl_catalog_import(&c, &done, fake_commit, &s, &v), HL_EEXIST);
    assert_int_equal(HASH_COUNT(c.shards), 0);
    assert_int_equal(json_object_size(s.records), 0);
    json_decref(shards);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

TEST(names_that_could_escape_a_path_are_refused)
{
    static const char *const bad[] = {"", "../x", "a/b", ".hidden", "a b", "-x", "\xff"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_model_name_check(bad[i]), HL_EINVAL);
    assert_int_equal(hl_model_name_check("Llama-3.1_8B"), HL_OK);
}

TEST(a_second_save_at_a_step_is_another_version)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v[3];
    for (unsigned save = 0; save < 3; save++) { /* both ranks save three times */
        assert_non_null(v[save] = begin(&t, 0, 100 + save));
        assert_int_equal(commit(&t, v[save], 0, one(20 + 2 * save, 0)), HL_OK);
    }
    assert_int_equal(v[0]->number, 2);
    assert_int_equal(v[1]->number, 3);
    assert_int_equal(v[2]->number, 4);
    for (unsigned save = 0; save < 3; save++) { /* the other rank is three saves behind */
        assert_ptr_equal(begin(&t, 1, 200 + save), v[save]);
        assert_int_equal(commit(&t, v[save], 1, one(21 + 2 * save, 1)), HL_OK);
        assert_int_equal(v[save]->state, HL_API_VERSION_STATE_VISIBLE);
        assert_int_equal(v[save]->shard_count, 2);
    }
    saving_fini(&t);
}

TEST(a_repeated_begin_joins_and_another_writer_never_does)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *a = begin(&t, 0, 7), *b = begin(&t, 0, 8);
    assert_int_equal(a->number, 2);
    assert_int_equal(b->number, 3);
    assert_ptr_equal(begin(&t, 0, 7), a);
    assert_ptr_equal(begin(&t, 0, 8), b);
    assert_int_equal(a->model->next_version, 4);
    saving_fini(&t);
}

TEST(a_repeated_commit_may_not_bring_other_shards)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    for (size_t ranks = 1; ranks <= 2; ranks++) { /* while it is open, and when it is visible */
        assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
        assert_int_equal(commit(&t, v, 0, json_array()), HL_OK);
        assert_int_equal(commit(&t, v, 0, one(21, 0)), HL_ECONFLICT);
        assert_non_null(strstr(hl_error_text(), "rank 0"));
        assert_int_equal(v->shard_count, ranks);
        assert_int_equal(commit(&t, v, 1, one(22, 1)), HL_OK);
    }
    saving_fini(&t);
}

TEST(a_part_of_a_position_is_committed_once)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
    assert_int_equal(commit(&t, v, 1, one(21, 0)), HL_ECONFLICT);
    assert_non_null(strstr(hl_error_text(), "embedding"));
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    saving_fini(&t);
}

static void abandon(struct saving *t, struct hl_version_rec *v, int rank, hl_status want,
                    size_t freed)
{
    struct hl_version_abandon a = {.version = v, .rank = rank, .reason = "NoSpace: pool is full"};
    struct hl_id *ids = NULL;
    size_t n = 0;
    assert_int_equal(hl_catalog_abandon(&t->c, &a, fake_commit, &t->s, &ids, &n), want);
    assert_int_equal(n, freed);
    free(ids);
}

TEST(a_failed_save_tells_each_other_rank_once_and_leaves_nothing)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1), *again;
    assert_int_equal(HASH_COUNT(t.c.shards), 2);
    abandon(&t, v, 0, HL_OK, 0);
    assert_int_equal(v->state, HL_API_VERSION_STATE_FAILED);

    struct hl_catalog d = {0}; /* also after a restart */
    assert_int_equal(load_all(&d, t.s.records, "model/"), 0);
    assert_int_equal(load_all(&d, t.s.records, "version/"), 0);
    assert_int_equal(d.models->versions->state, HL_API_VERSION_STATE_FAILED);
    assert_string_equal(d.models->versions->error, "rank 0: NoSpace: pool is full");
    hl_catalog_fini(&d);

    assert_ptr_not_equal(again = begin(&t, 0, 3), v); /* the rank that abandoned it saves again */
    assert_null(begin(&t, 1, 2));
    assert_non_null(strstr(hl_error_text(), "rank 0: NoSpace: pool is full"));
    assert_int_equal(hl_catalog_version(t.base->model, 2, &v), HL_ENOENT); /* all have been told */
    assert_ptr_equal(begin(&t, 1, 4), again);
    saving_fini(&t);
}

TEST(a_gang_that_has_come_together_again_hears_of_no_save_before)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin_again(&t, 1, 0, 1), *open, *again;
    abandon(&t, v, 0, HL_OK, 0); /* rank 1 was lost before it began */
    assert_ptr_not_equal(open = begin_again(&t, 1, 0, 2), v);

    struct hl_catalog d = {0}; /* also after a restart */
    assert_int_equal(load_all(&d, t.s.records, "model/"), 0);
    assert_int_equal(load_all(&d, t.s.records, "version/"), 0);
    assert_int_equal(d.models->versions->generation, 1);
    hl_catalog_fini(&d);

    assert_non_null(again = begin_again(&t, 2, 1, 3));
    assert_ptr_not_equal(again, open);
    assert_ptr_equal(begin_again(&t, 2, 0, 4), again);
    assert_int_equal(commit(&t, again, 0, one(20, 0)), HL_OK);
    assert_int_equal(commit(&t, again, 1, one(21, 1)), HL_OK);
    assert_int_equal(again->state, HL_API_VERSION_STATE_VISIBLE);
    saving_fini(&t);
}

TEST(a_failed_save_frees_what_other_ranks_had_committed)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_ptr_equal(begin(&t, 1, 2), v);
    assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
    t.s.fail = 1;
    abandon(&t, v, 1, HL_EIO, 0);
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    t.s.fail = 0;
    abandon(&t, v, 1, HL_OK, 1);
    assert_int_equal(hl_catalog_version(t.base->model, 2, &v), HL_ENOENT);
    assert_int_equal(HASH_COUNT(t.c.shards), 2);
    assert_int_equal(json_object_size(t.s.records), 4); /* model, version 1, two shards */
    saving_fini(&t);
}

TEST(a_commit_to_a_failed_version_says_who_gave_it_up)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_ptr_equal(begin(&t, 1, 2), v);
    abandon(&t, v, 0, HL_OK, 0);
    assert_int_equal(commit(&t, v, 1, one(20, 1)), HL_ECANCELED);
    assert_non_null(strstr(hl_error_text(), "rank 0"));
    assert_int_equal(HASH_COUNT(t.c.shards), 2);
    saving_fini(&t);
}

TEST(a_visible_version_cannot_be_given_up)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
    assert_int_equal(commit(&t, v, 1, one(21, 1)), HL_OK);
    abandon(&t, v, 1, HL_ECONFLICT, 0);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    saving_fini(&t);
}

/* ---- layouts ----------------------------------------------------------------------------------
 */

#define EMBEDDING "e.weight\tBF16\t8,4\n"
#define HEAD      "norm\tBF16\t4\nout.weight\tBF16\t8,4\n"

/* TP 2: each position has an embedding and a head. */
static void layout_init(struct saving *t)
{
    *t = (struct saving){.s = {json_object(), 0}};
    json_t *shards = json_pack(
        "[o,o,o,o]", laid_out(1, 0, 0, "embedding", EMBEDDING), laid_out(2, 0, 0, "head", HEAD),
        laid_out(3, 0, 1, "embedding", EMBEDDING), laid_out(4, 0, 1, "head", HEAD));
    struct hl_import_done done = {
        .name = "tiny", .tp = 2, .pp = 1, .config = "{}", .shards = shard_list(shards)};
    assert_int_equal(hl_catalog_import(&t->c, &done, fake_commit, &t->s, &t->base), HL_OK);
    json_decref(shards);
}

static struct hl_version_rec *begin_checked(struct saving *t, int world,
                                            enum hl_api_layout_check check)
{
    struct hl_version_begin b = {
        .model = "tiny", .job = "j", .step = 1, .world = world, .check = check};
    struct hl_version_rec *v = NULL;
    return hl_catalog_begin(&t->c, &b, fake_commit, &t->s, &v) == HL_OK ? v : NULL;
}

static void refuse(struct saving *t, json_t *shards, const char *name)
{
    struct hl_version_rec *v = begin_checked(t, 2, HL_API_LAYOUT_CHECK_EXACT);
    assert_non_null(v);
    assert_int_equal(commit(t, v, 0, shards), HL_EINVAL);
    if (strstr(hl_error_text(), name) == NULL || strstr(hl_error_text(), "strict=False") == NULL)
        fail_msg("'%s' or strict=False is not in: %s", name, hl_error_text());
    assert_int_equal(v->committed_count, 0);
    assert_int_equal(HASH_COUNT(t->c.shards), 4);
    abandon(t, v, 0, HL_OK, 0);
    abandon(t, v, 1, HL_OK, 0);
}

TEST(tensors_that_do_not_fit_the_model_are_refused_by_name)
{
    struct saving t;
    layout_init(&t);
    json_t *embedding = laid_out(10, 0, 0, "embedding", EMBEDDING);
    refuse(&t, json_pack("[o]", laid_out(11, 0, 0, "head", "lm_head\tF32\t3\n")), "'lm_head'");
    refuse(&t, json_pack("[O,o]", embedding, laid_out(11, 0, 0, "head", "norm\tBF16\t4\n")),
           "'out.weight'");
    refuse(&t, json_pack("[O,o]", embedding, laid_out(11, 0, 0, "layer-0000", "x\tF32\t1\n")),
           "layer-0000");
    refuse(&t, json_pack("[O]", embedding), "norm"); /* the whole head is missing */
    refuse(&t,
           json_pack("[O,o,o]", embedding, laid_out(11, 0, 0, "head", HEAD),
                     laid_out(12, 0, 0, "optim-head", "exp_avg.norn\tF32\t4\n")),
           "'exp_avg.norn'");
    refuse(&t,
           json_pack("[O,o]", embedding,
                     laid_out(11, 0, 0, "head", "norm\tF32\t4\nout.weight\tF32\t8,4\n")),
           "'norm'");
    json_decref(embedding);
    saving_fini(&t);
}

static json_t *position(unsigned id, int tp)
{
    return json_pack("[o,o,o,o,o]", laid_out(id, 0, tp, "embedding", EMBEDDING),
                     laid_out(id + 1, 0, tp, "head", HEAD),
                     laid_out(id + 2, 0, tp, "optim-head", "exp_avg.norm\tF32\t4\n"),
                     laid_out(id + 3, 0, tp, "optim-dp1of2-head", "exp_avg.out.weight\tF32\t9\n"),
                     laid_out(id + 4, 0, tp, "extra-head", "anything\tU8\t9\n"));
}

TEST(a_version_is_visible_only_with_every_position_of_the_model)
{
    struct saving t;
    layout_init(&t);
    struct hl_version_rec *v = begin_checked(&t, 2, HL_API_LAYOUT_CHECK_EXACT);
    assert_int_equal(commit(&t, v, 0, position(10, 0)), HL_OK);
    assert_int_equal(commit(&t, v, 1, json_array()), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "tp 1"));
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    assert_int_equal(commit(&t, v, 1, position(20, 1)), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);

    struct hl_catalog d = {0}; /* layouts are kept */
    assert_int_equal(load_all(&d, t.s.records, "model/"), 0);
    assert_int_equal(load_all(&d, t.s.records, "version/"), 0);
    assert_int_equal(load_all(&d, t.s.records, "shard/"), 0);
    assert_string_equal(d.models->versions->shards[0]->layout, EMBEDDING);
    hl_catalog_fini(&d);
    saving_fini(&t);
}

TEST(who_means_another_layout_may_save_it_with_all_ranks_agreed)
{
    struct saving t;
    layout_init(&t);
    struct hl_version_rec *v = begin_checked(&t, 1, HL_API_LAYOUT_CHECK_UNCHECKED);
    assert_null(begin_checked(&t, 1, HL_API_LAYOUT_CHECK_EXACT));
    assert_non_null(strstr(hl_error_text(), "strict"));
    json_t *odd = json_pack("[o]", laid_out(11, 0, 0, "head", "lm_head\tF32\t3\n"));
    assert_int_equal(commit(&t, v, 0, odd), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    /* The model's layout is still that of its oldest version. */
    v = begin_checked(&t, 1, HL_API_LAYOUT_CHECK_EXACT);
    assert_int_equal(commit(&t, v, 0, position(20, 0)), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "tiny@1"));
    saving_fini(&t);
}

TEST(what_an_earlier_release_imported_is_compared_by_numbers_of_tensors)
{
    struct saving t;
    saving_init(&t); /* an embedding at tp 0 and a layer at tp 1, two tensors each, no layouts */
    struct hl_version_rec *v = begin_checked(&t, 2, HL_API_LAYOUT_CHECK_EXACT);
    assert_int_equal(commit(&t, v, 0, json_pack("[o]", laid_out(11, 0, 0, "embedding", EMBEDDING))),
                     HL_EINVAL);
    assert_int_equal(commit(&t, v, 0, json_pack("[o]", laid_out(11, 0, 0, "embedding", HEAD))),
                     HL_OK);
    saving_fini(&t);
}

TEST(a_shard_with_a_layout_that_is_none_is_refused)
{
    struct saving t;
    layout_init(&t);
    struct hl_version_rec *v = begin_checked(&t, 1, HL_API_LAYOUT_CHECK_UNCHECKED);
    assert_int_equal(commit(&t, v, 0, json_pack("[o]", laid_out(11, 0, 0, "head", "no layout\n"))),
                     HL_EINVAL);
    assert_int_equal(HASH_COUNT(t.c.shards), 4);
    saving_fini(&t);
}

TEST(a_record_that_is_there_already_is_corrupt)
{
    struct hl_catalog c = {0}, loaded = {0};
    struct fake_store s = {json_object(), 0};
    const char *key;
    json_t *value;
    assert_non_null(import_two_shards(&c, &s, "tiny", 1));
    assert_int_equal(load_all(&loaded, s.records, "model/"), 0);
    assert_int_equal(load_all(&loaded, s.records, "version/"), 0);
    assert_int_equal(load_all(&loaded, s.records, "shard/"), 0);
    json_object_foreach (s.records, key, value) {
        assert_int_equal(hl_catalog_load(&loaded, key, value), HL_ECORRUPT);
        assert_non_null(strstr(hl_error_text(), key));
    }
    assert_int_equal(HASH_COUNT(loaded.models), 1);
    assert_int_equal(HASH_COUNT(loaded.shards), 2);
    assert_null(loaded.models->versions->next);
    hl_catalog_fini(&c);
    hl_catalog_fini(&loaded);
    json_decref(s.records);
}

TEST(a_version_with_an_unknown_state_or_check_is_corrupt)
{
    struct hl_catalog c = {0}, loaded = {0};
    struct fake_store s = {json_object(), 0};
    assert_non_null(import_two_shards(&c, &s, "tiny", 1));
    assert_int_equal(load_all(&loaded, s.records, "model/"), 0);
    const char *key;
    json_t *value;
    json_object_foreach (s.records, key, value) {
        if (strncmp(key, "version/", 8) != 0)
            continue;
        json_object_set_new(value, "state", json_string("asleep"));
        assert_int_equal(hl_catalog_load(&loaded, key, value), HL_ECORRUPT);
        assert_non_null(strstr(hl_error_text(), "version state 'asleep'"));
        json_object_set_new(value, "state", json_string("visible"));
        json_object_set_new(value, "check", json_string("strict"));
        assert_int_equal(hl_catalog_load(&loaded, key, value), HL_ECORRUPT);
        assert_non_null(strstr(hl_error_text(), "layout check 'strict'"));
        json_object_del(value, "check"); /* as before checks were introduced */
        assert_int_equal(hl_catalog_load(&loaded, key, value), HL_OK);
        assert_int_equal(loaded.models->versions->check, HL_API_LAYOUT_CHECK_UNCHECKED);
    }
    hl_catalog_fini(&c);
    hl_catalog_fini(&loaded);
    json_decref(s.records);
}
