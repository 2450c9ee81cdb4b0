/* Derived layouts of a version in the catalogue: stored as one record, dropped as a whole. */
#include "support/test.h"

#include "core/catalog/catalog_cut.h"
#include "core/catalog/catalog_private.h"
#include "unit/core/catalog/catalog_rig.h"

#define WORD            "embedding.word_embeddings.weight\tF32\t4,2\n"
#define HALF            "embedding.word_embeddings.weight\tF32\t2,2\n"
#define STATE           "exp_avg.embedding.word_embeddings.weight\tF32\t4,2\n"
#define PIECE           "exp_avg.embedding.word_embeddings.weight\tF32\t4\n"
#define RANGE(start, n) "exp_avg.embedding.word_embeddings.weight.at" start "of4x2\tF32\t" n "\n"
#define SPLIT           ((struct hl_api_split){.tp = 2, .pp = 1, .virtual_stages = 1})

/* With the shares of data-parallel ranks 0 and 1. */
static void model_init_shares(struct saving *t, const char *share0, const char *share1)
{
    json_t *shards = json_pack("[o,o]", laid_out(1, 0, 0, "embedding", WORD),
                               laid_out(3, 0, 0, "extra-embedding", WORD));
    if (share1 != NULL)
        json_array_append_new(shards, laid_out(2, 0, 0, "optim-dp1of2-embedding", share1));
    if (share0 != NULL)
        json_array_append_new(shards, laid_out(4, 0, 0, "optim-embedding", share0));
    struct hl_import_done done = {.name = "tiny",
                                  .source = "/data/m",
                                  .tp = 1,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = "{\"tp\": 1, \"pp\": 1, \"layers\": 1}",
                                  .now_ms = 1000,
                                  .shards = shard_list(shards)};
    *t = (struct saving){.s = {json_object(), 0}};
    assert_int_equal(hl_catalog_import(&t->c, &done, fake_commit, &t->s, &t->base), HL_OK);
    json_decref(shards);
}

static void model_init(struct saving *t)
{
    model_init_shares(t, NULL, PIECE);
}

static hl_status add_cut(struct saving *t, int first, size_t *replaced)
{
    struct hl_id *ids = NULL;
    json_t *shards = json_pack("[o,o]", laid_out(first, 0, 0, "embedding", HALF),
                               laid_out(first + 1, 0, 1, "embedding", HALF));
    struct hl_api_shard_list list = shard_list(shards);
    hl_status st =
        hl_catalog_add_cut(&t->c, t->base, &SPLIT, &list, fake_commit, &t->s, &ids, replaced);
    free(ids);
    json_decref(shards);
    return st;
}

static const json_t *stored_cut(const struct saving *t)
{
    return json_object_get(t->s.records, "cut/tiny/0000000001/tp2");
}

TEST(a_cut_serves_its_size_and_no_other)
{
    struct saving t;
    size_t replaced;
    model_init(&t);
    assert_true(hl_version_needs_cut(t.base, &SPLIT));
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    assert_int_equal(replaced, 0);
    assert_false(hl_version_needs_cut(t.base, &SPLIT));
    assert_true(hl_version_needs_cut(t.base, &(struct hl_api_split){.tp = 4, .pp = 1}));
    assert_false(hl_version_needs_cut(t.base, &(struct hl_api_split){.pp = 1}));
    assert_int_equal(t.base->shard_count, 3); /* they are not the version's own */
    saving_fini(&t);
}

TEST(what_is_left_out_is_said)
{
    struct saving t;
    size_t replaced;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    const char *left_out = hl_version_find_cut(t.base, &SPLIT)->left_out;
    assert_non_null(strstr(left_out, "optimizer state (1 shards)"));
    assert_non_null(strstr(left_out, "extra state of modules (1 shards, such as extra-embedding"));
    saving_fini(&t);
}

TEST(shares_of_whole_tensors_are_state_that_can_be_cut)
{
    static const struct {
        const char *share0, *share1;
        bool pieces;
    } cases[] = {
        {NULL, STATE, false},
        {"exp_avg_sq.embedding.word_embeddings.weight\tF32\t4,2\n", STATE, false},
        {STATE, STATE, true}, /* which of them? */
        {NULL, PIECE, true},
        {PIECE, STATE, true},
        {NULL, "exp_avg.embedding.position_embeddings.weight\tF32\t4,2\n", true},
        {RANGE("0", "3"), RANGE("3", "5"), false},
        {NULL, RANGE("0", "8"), false},
        {RANGE("0", "3"), RANGE("4", "4"), true},
        {RANGE("0", "4"), RANGE("3", "5"), true},
        {RANGE("0", "3"), STATE, true},
        {RANGE("0", "3"), NULL, true}, /* of a version that was not compared with anything */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct saving t;
        char text[256];
        model_init_shares(&t, cases[i].share0, cases[i].share1);
        assert_int_equal(hl_version_shares_state(t.base), cases[i].pieces);
        hl_version_left_out(t.base, text, sizeof(text));
        assert_int_equal(strstr(text, "optimizer state") != NULL, cases[i].pieces);
        saving_fini(&t);
    }
}

/* Joining the pieces of a large version takes as long as reading all of its layouts. */
TEST(whether_state_is_shared_is_worked_out_once_for_the_shards_of_a_version)
{
    struct saving t;
    model_init_shares(&t, RANGE("0", "3"), RANGE("3", "5"));
    struct hl_shard_rec *share = t.base->shards[t.base->shard_count - 1];
    char *layout = share->layout;
    assert_string_equal(share->part, "optim-embedding");
    assert_false(hl_version_shares_state(t.base));
    share->layout = NULL; /* so the pieces would not cover the state */
    assert_false(hl_version_shares_state(t.base));
    hl_version_link(&t.c, t.base, NULL, 0);
    assert_true(hl_version_shares_state(t.base));
    share->layout = layout;
    saving_fini(&t);
}

TEST(a_cut_comes_back_from_its_record)
{
    struct saving t;
    struct hl_catalog c = {0};
    const char *key;
    json_t *value;
    size_t replaced;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    for (int pass = 0; pass < 3; pass++)
        json_object_foreach (t.s.records, key, value) {
            const char *kinds[] = {"model/", "version/", "shard/"};
            if (strncmp(key, kinds[pass], strlen(kinds[pass])) == 0)
                assert_int_equal(hl_catalog_load(&c, key, value), HL_OK);
        }
    assert_int_equal(hl_catalog_load_cut(&c, "cut/tiny/0000000001/tp2", stored_cut(&t)), HL_OK);
    struct hl_model_rec *m;
    assert_int_equal(hl_catalog_model(&c, "tiny", &m), HL_OK);
    const struct hl_cut_rec *cut = hl_version_find_cut(m->versions, &SPLIT);
    assert_non_null(cut);
    assert_int_equal(cut->shard_count, 2);
    assert_string_equal(cut->shards[1]->layout, HALF);
    /* A second one with the same ids, and one under the key of another size. */
    assert_int_equal(hl_catalog_load_cut(&c, "cut/tiny/0000000001/tp2", stored_cut(&t)), HL_EEXIST);
    assert_int_equal(hl_catalog_load_cut(&c, "cut/tiny/0000000001/tp4", stored_cut(&t)),
                     HL_ECORRUPT);
    hl_catalog_fini(&c);
    saving_fini(&t);
}

TEST(a_record_that_lacks_a_member_makes_no_cut)
{
    struct saving t;
    size_t replaced;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    json_t *record = json_deep_copy(stored_cut(&t));
    json_object_del(json_array_get(json_object_get(record, "shards"), 1), "crc32");
    struct hl_catalog c = {0};
    assert_int_not_equal(hl_catalog_load_cut(&c, "cut/tiny/0000000001/tp2", record), HL_OK);
    assert_non_null(strstr(hl_error_text(), "crc32"));
    json_decref(record);
    hl_catalog_fini(&c);
    saving_fini(&t);
}

TEST(a_cut_replaces_the_one_before_it)
{
    struct saving t;
    size_t replaced;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    assert_int_equal(add_cut(&t, 20, &replaced), HL_OK);
    assert_int_equal(replaced, 2);
    assert_null(t.base->cuts->next);
    assert_int_equal(HASH_COUNT(t.c.shards), 5);
    saving_fini(&t);
}

TEST(a_cut_that_lost_a_shard_serves_nobody_and_is_dropped)
{
    struct saving t;
    struct hl_id *ids;
    size_t n;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &n), HL_OK);
    assert_false(hl_catalog_has_lost_cuts(&t.c));
    t.base->cuts->shards[1]->lost = true;
    assert_true(hl_catalog_has_lost_cuts(&t.c));
    assert_true(hl_version_needs_cut(t.base, &SPLIT));
    assert_true(hl_version_whole(t.base)); /* the version has lost nothing */
    assert_int_equal(hl_catalog_drop_lost_cuts(&t.c, fake_commit, &t.s, &ids, &n), HL_OK);
    assert_int_equal(n, 2);
    assert_null(t.base->cuts);
    assert_null(stored_cut(&t));
    free(ids);
    saving_fini(&t);
}

TEST(a_version_takes_its_cuts_with_it)
{
    struct saving t;
    struct hl_id *ids;
    size_t n;
    uint64_t bytes;
    model_init(&t);
    assert_int_equal(add_cut(&t, 10, &n), HL_OK);
    assert_int_equal(
        hl_catalog_remove(&t.c, t.base->model, -1, fake_commit, &t.s, &ids, &n, &bytes), HL_OK);
    assert_int_equal(n, 5);
    assert_int_equal(HASH_COUNT(t.c.shards), 0);
    assert_null(stored_cut(&t));
    free(ids);
    saving_fini(&t);
}

/* ---- events ---- */

struct heard {
    unsigned came, left;
    uint64_t came_ids, left_ids; /* sums of their ids */
};

static void hear_came(void *arg, const struct hl_shard_rec *s)
{
    struct heard *h = arg;
    assert_int_equal(s->version->state, HL_API_VERSION_STATE_VISIBLE);
    h->came++;
    h->came_ids += s->id.lo;
}

static void hear_leaves(void *arg, const struct hl_shard_rec *s)
{
    struct heard *h = arg;
    assert_non_null(s->version->model);
    h->left++;
    h->left_ids += s->id.lo;
}

static const struct hl_catalog_events hearing = {.came = hear_came, .leaves = hear_leaves};

static void assert_heard(struct heard *h, unsigned came, uint64_t came_ids, unsigned left,
                         uint64_t left_ids)
{
    assert_int_equal(h->came, came);
    assert_int_equal(h->came_ids, came_ids);
    assert_int_equal(h->left, left);
    assert_int_equal(h->left_ids, left_ids);
    *h = (struct heard){0};
}

static void remove_all(struct saving *t)
{
    struct hl_id *ids;
    size_t n;
    uint64_t bytes;
    assert_int_equal(
        hl_catalog_remove(&t->c, t->base->model, -1, fake_commit, &t->s, &ids, &n, &bytes), HL_OK);
    free(ids);
}

TEST(who_watches_hears_of_shards_when_their_version_is_visible_and_when_they_leave)
{
    struct saving t;
    struct heard h = {0};
    saving_init(&t);
    hl_catalog_watch(&t.c, &hearing, &h);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(commit(&t, v, 0, one(11, 0)), HL_OK);
    assert_heard(&h, 0, 0, 0, 0);
    assert_ptr_equal(begin(&t, 1, 2), v);
    assert_int_equal(commit(&t, v, 1, one(12, 1)), HL_OK);
    assert_heard(&h, 2, 23, 0, 0);
    v = begin(&t, 0, 3);
    assert_int_equal(commit(&t, v, 0, one(30, 0)), HL_OK);
    remove_all(&t); /* also those of the open version */
    assert_heard(&h, 0, 0, 5, 1 + 2 + 11 + 12 + 30);
    assert_non_null(import_two_shards(&t.c, &t.s, "tiny", 41));
    assert_heard(&h, 2, 41 + 42, 0, 0);
    hl_catalog_watch(&t.c, NULL, NULL);
    assert_non_null(import_two_shards(&t.c, &t.s, "huge", 51));
    assert_heard(&h, 0, 0, 0, 0);
    saving_fini(&t);
}

TEST(who_watches_hears_of_the_shards_of_cuts)
{
    struct saving t;
    struct heard h = {0};
    size_t replaced;
    model_init(&t);
    hl_catalog_watch(&t.c, &hearing, &h);
    assert_int_equal(add_cut(&t, 10, &replaced), HL_OK);
    assert_heard(&h, 2, 21, 0, 0);
    assert_int_equal(add_cut(&t, 20, &replaced), HL_OK);
    assert_heard(&h, 2, 41, 2, 21);
    remove_all(&t);
    assert_heard(&h, 0, 0, 5, 1 + 2 + 3 + 41);
    saving_fini(&t);
}
