#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog.h"

/* A store that keeps what was committed, and can be told to fail. */
struct fake_store {
    json_t *records;
    int fail;
};

static hl_status fake_commit(void *arg, const struct hl_records *records)
{
    struct fake_store *s = arg;
    if (s->fail)
        return hl_fail(HL_EIO, "disk full");
    for (size_t i = 0; i < records->count; i++) {
        if (records->list[i].value != NULL)
            json_object_set(s->records, records->list[i].key, records->list[i].value);
        else
            json_object_del(s->records, records->list[i].key);
    }
    return HL_OK;
}

static json_t *shard(unsigned id, int pp, int tp, const char *part, int size)
{
    char text[33];
    snprintf(text, sizeof(text), "%032x", id);
    return json_pack("{s:s s:i s:i s:s s:i s:i s:i}", "id", text, "pp", pp, "tp", tp, "part", part,
                     "sizeBytes", size, "crc32", 7, "tensors", 2);
}

static struct hl_version_rec *import_two_shards(struct hl_catalog *c, struct fake_store *s,
                                                const char *name, unsigned id)
{
    json_t *shards = json_pack("[o,o]", shard(id, 0, 1, "layer-0000", 300),
                               shard(id + 1, 0, 0, "embedding", 200));
    struct hl_import_done done = {.name = name,
                                  .source = "/data/m",
                                  .tp = 2,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = "{\"architecture\":\"llama\"}",
                                  .seconds = 0.5,
                                  .now_ms = 1000,
                                  .shards = shards};
    struct hl_version_rec *v = NULL;
    hl_status st = hl_catalog_import(c, &done, fake_commit, s, &v);
    json_decref(shards);
    return st == HL_OK ? v : NULL;
}

static int load_all(struct hl_catalog *c, json_t *records, const char *prefix)
{
    const char *key;
    json_t *value;
    /* the store gives keys in order */
    char *text = json_dumps(records, JSON_SORT_KEYS);
    json_t *sorted = json_loads(text, 0, NULL);
    free(text);
    json_object_foreach (sorted, key, value) {
        if (strncmp(key, prefix, strlen(prefix)) == 0 && hl_catalog_load(c, key, value) != HL_OK)
            return -1;
    }
    json_decref(sorted);
    return 0;
}

static void an_import_is_version_one_and_visible(void **state)
{
    (void)state;
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v = import_two_shards(&c, &s, "tiny", 1);
    assert_non_null(v);
    assert_int_equal(v->number, 1);
    assert_int_equal(v->state, HL_VERSION_VISIBLE);
    assert_string_equal(v->shards[0]->part, "embedding"); /* tp 0 before tp 1 */
    char key[HL_CATALOG_KEY_MAX];
    assert_string_equal(hl_shard_key(v->shards[1], key, sizeof(key)), "tiny@1/pp0/tp1/layer-0000");
    assert_null(import_two_shards(&c, &s, "tiny", 5)); /* the name is taken */
    hl_catalog_fini(&c);
    json_decref(s.records);
}

static void a_version_is_served_only_when_every_rank_has_committed(void **state)
{
    (void)state;
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v1 = import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {
        .model = "tiny", .job = "j", .attempt = 1, .step = 10, .world = 2, .now_ms = 2000};
    struct hl_version_rec *v, *again, *latest;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    assert_int_equal(v->number, 2);
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &again), HL_OK);
    assert_ptr_equal(v, again); /* every rank begins the same version */

    json_t *one = json_pack("[o]", shard(11, 0, 0, "embedding", 100));
    json_t *two = json_pack("[o]", shard(12, 0, 1, "embedding", 100));
    struct hl_version_commit p = {
        .version = v, .rank = 0, .shards = one, .meta = "{\"step\":10}", .now_ms = 3000};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s),
                     HL_OK); /* repeated: nothing changes */
    assert_int_equal(v->committed_count, 1);
    assert_int_equal(hl_catalog_version(v->model, -1, &latest), HL_OK);
    assert_ptr_equal(latest, v1);

    p.rank = 1;
    p.shards = two;
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

static void a_failed_store_changes_nothing(void **state)
{
    (void)state;
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v, *v1 = import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {
        .model = "tiny", .job = "j", .attempt = 1, .step = 10, .world = 1, .now_ms = 1};
    s.fail = 1;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_EIO);
    assert_int_equal(v1->model->next_version, 2);
    s.fail = 0;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    json_t *one = json_pack("[o]", shard(11, 0, 0, "embedding", 100));
    struct hl_version_commit p = {
        .version = v, .rank = 0, .shards = one, .meta = "{\"a\":1}", .now_ms = 3};
    s.fail = 1;
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_EIO);
    assert_int_equal(v->state, HL_VERSION_OPEN);
    assert_int_equal(v->committed_count, 0);
    assert_string_equal(v->meta, "{}");
    assert_int_equal(HASH_COUNT(c.shards), 2);
    s.fail = 0;
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);
    assert_int_equal(v->state, HL_VERSION_VISIBLE);
    json_decref(one);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

static void what_was_committed_loads_back_the_same(void **state)
{
    (void)state;
    struct hl_catalog c = {0}, d = {0};
    struct fake_store s = {json_object(), 0};
    import_two_shards(&c, &s, "tiny", 1);
    struct hl_version_begin b = {
        .model = "tiny", .job = "j", .attempt = 2, .step = 7, .world = 3, .now_ms = 9};
    struct hl_version_rec *v, *w;
    assert_int_equal(hl_catalog_begin(&c, &b, fake_commit, &s, &v), HL_OK);
    json_t *one = json_pack("[o]", shard(11, 1, 0, "head", 100));
    struct hl_version_commit p = {.version = v, .rank = 1, .shards = one, .meta = "", .now_ms = 3};
    assert_int_equal(hl_catalog_commit_part(&c, &p, fake_commit, &s), HL_OK);

    assert_int_equal(load_all(&d, s.records, "model/"), 0);
    assert_int_equal(load_all(&d, s.records, "version/"), 0);
    assert_int_equal(load_all(&d, s.records, "shard/"), 0);
    struct hl_model_rec *m;
    assert_int_equal(hl_catalog_model(&d, "tiny", &m), HL_OK);
    assert_int_equal(hl_catalog_version(m, 2, &w), HL_OK);
    assert_int_equal(w->state, HL_VERSION_OPEN);
    assert_int_equal(w->committed_count, 1);
    assert_int_equal(w->committed[1], 1);
    assert_int_equal(w->shards[0]->rank, 1);
    json_t *before = hl_model_rec_to_json(v->model), *after = hl_model_rec_to_json(m);
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    json_decref(one);
    hl_catalog_fini(&c);
    hl_catalog_fini(&d);
    json_decref(s.records);
}

static void removing_gives_the_ids_and_forgets_an_empty_model(void **state)
{
    (void)state;
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

static void a_list_with_a_shard_twice_is_refused_whole(void **state)
{
    (void)state;
    struct hl_catalog c = {0};
    struct fake_store s = {json_object(), 0};
    struct hl_version_rec *v;
    json_t *shards =
        json_pack("[o,o]", shard(1, 0, 0, "embedding", 10), shard(1, 0, 0, "head", 10));
    struct hl_import_done done = {.name = "m", .tp = 1, .pp = 1, .config = "{}", .shards = shards};
    assert_int_equal(hl_catalog_import(&c, &done, fake_commit, &s, &v), HL_EEXIST);
    assert_int_equal(HASH_COUNT(c.shards), 0);
    assert_int_equal(json_object_size(s.records), 0);
    json_decref(shards);
    hl_catalog_fini(&c);
    json_decref(s.records);
}

static void names_that_could_escape_a_path_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "../x", "a/b", ".hidden", "a b", "-x", "\xff"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_model_name_check(bad[i]), HL_EINVAL);
    assert_int_equal(hl_model_name_check("Llama-3.1_8B"), HL_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_import_is_version_one_and_visible),
        cmocka_unit_test(a_version_is_served_only_when_every_rank_has_committed),
        cmocka_unit_test(a_failed_store_changes_nothing),
        cmocka_unit_test(what_was_committed_loads_back_the_same),
        cmocka_unit_test(removing_gives_the_ids_and_forgets_an_empty_model),
        cmocka_unit_test(a_list_with_a_shard_twice_is_refused_whole),
        cmocka_unit_test(names_that_could_escape_a_path_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
