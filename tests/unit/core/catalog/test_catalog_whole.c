/* Records that can't be read, or differ from what was stored: what is lost with them, and what is
 * not. */
#include "support/test.h"

#include "unit/core/catalog/catalog_rig.h"

/* The catalogue after a start from these records, one of which is damaged. */
static void restart_without(struct saving *t, const char *key)
{
    static const char *const kinds[] = {"model/", "version/", "shard/"};
    hl_catalog_fini(&t->c);
    t->c = (struct hl_catalog){0};
    for (size_t i = 0; i < 3; i++) {
        json_t *kept = json_copy(t->s.records);
        json_object_del(kept, key);
        if (strncmp(key, kinds[i], strlen(kinds[i])) == 0)
            assert_int_equal(hl_catalog_damaged(&t->c, key), HL_OK);
        assert_int_equal(load_all(&t->c, kept, kinds[i]), 0);
        json_decref(kept);
    }
    hl_catalog_loaded(&t->c);
}

static hl_status read_position(const struct hl_version_rec *v, int pp, int tp)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_position position;
    return hl_version_position(v, &(struct hl_api_split){0}, pp, tp, 0, &arena, &position);
}

TEST(a_damaged_model_record_is_never_overwritten)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
    json_t *before = json_deep_copy(json_object_get(t.s.records, "model/tiny"));
    restart_without(&t, "model/tiny");
    assert_true(t.c.models->damaged);
    assert_int_equal(hl_catalog_version(t.c.models, 2, &v), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    assert_int_equal(read_position(v, 0, 0), HL_ECORRUPT);
    assert_int_equal(commit(&t, v, 1, one(21, 1)), HL_OK);
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    assert_true(json_equal(before, json_object_get(t.s.records, "model/tiny")));
    json_decref(before);
    saving_fini(&t);
}

TEST(an_open_version_with_damaged_records_never_becomes_visible)
{
    struct saving t;
    saving_init(&t);
    struct hl_version_rec *v = begin(&t, 0, 1);
    assert_int_equal(commit(&t, v, 0, one(20, 0)), HL_OK);
    restart_without(&t, "shard/tiny/0000000002/00000000000000000000000000000014");
    assert_int_equal(hl_catalog_version(t.c.models, 2, &v), HL_OK);
    assert_int_equal(commit(&t, v, 1, one(21, 1)), HL_ECORRUPT);
    assert_int_equal(v->state, HL_API_VERSION_STATE_OPEN);
    saving_fini(&t);
}

/* Each member of a shard's record that readers rely on. */
TEST(a_changed_shard_record_costs_its_version)
{
    static const char *const members[] = {"pp", "tp", "sizeBytes", "crc32", "tensors"};
    for (size_t i = 0; i <= sizeof(members) / sizeof(members[0]); i++) {
        struct hl_catalog c = {0};
        struct fake_store s = {json_object(), 0};
        assert_non_null(import_two_shards(&c, &s, "tiny", 1));
        json_t *rec =
            json_object_get(s.records, "shard/tiny/0000000001/00000000000000000000000000000001");
        assert_non_null(rec);
        bool changed = i < sizeof(members) / sizeof(members[0]);
        if (changed)
            json_object_set_new(
                rec, members[i],
                json_integer(json_integer_value(json_object_get(rec, members[i])) + 1));
        hl_catalog_fini(&c);
        c = (struct hl_catalog){0};
        assert_int_equal(load_all(&c, s.records, "model/"), 0);
        assert_int_equal(load_all(&c, s.records, "version/"), 0);
        assert_int_equal(load_all(&c, s.records, "shard/"), 0);
        hl_catalog_loaded(&c);
        assert_int_equal(hl_version_whole(c.models->versions), !changed);
        assert_int_equal(read_position(c.models->versions, 0, 0), changed ? HL_ECORRUPT : HL_OK);
        hl_catalog_fini(&c);
        json_decref(s.records);
    }
}

/* `from`'s record stands under the key `to`. */
TEST(a_record_under_another_key_is_damage)
{

    static const struct {
        const char *from, *to;
    } moved[] = {
        {"model/tiny", "model/huge"},
        {"version/tiny/0000000001", "version/tiny/0000000002"},
        {"shard/tiny/0000000001/00000000000000000000000000000001",
         "shard/tiny/0000000001/00000000000000000000000000000009"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(moved); i++) {
        struct hl_catalog c = {0}, loaded = {0};
        struct fake_store s = {json_object(), 0};
        assert_non_null(import_two_shards(&c, &s, "tiny", 1));
        for (size_t k = 0; k < i; k++) {
            const json_t *value = json_object_get(s.records, moved[k].from);
            assert_int_equal(hl_catalog_load(&loaded, moved[k].from, value), HL_OK);
        }
        const json_t *value = json_object_get(s.records, moved[i].from);
        assert_int_equal(hl_catalog_load(&loaded, moved[i].to, value), HL_ECORRUPT);
        assert_non_null(strstr(hl_error_text(), "it is the record of "));
        assert_int_equal(hl_catalog_load(&loaded, moved[i].from, value), HL_OK);
        hl_catalog_fini(&c);
        hl_catalog_fini(&loaded);
        json_decref(s.records);
    }
}
