#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/catalog/manifest.h"
#include "core/safetensors/safetensors.h"
#include "unit/core/catalog/shard_list.h"

/* ---- a catalogue with an import and a save --------------------------------------------------- */

struct batch {
    json_t *records; /* key to value; null = deleted */
    int fail;
};

static hl_status commit(void *arg, const struct hl_records *records)
{
    struct batch *b = arg;
    if (b->fail)
        return hl_fail(HL_EIO, "disk");
    for (size_t i = 0; i < records->count; i++) {
        const struct hl_record *r = &records->list[i];
        if (r->value == NULL)
            json_object_del(b->records, r->key);
        else
            json_object_set(b->records, r->key, r->value);
    }
    return HL_OK;
}

static json_t *shard(int n, int pp, const char *part)
{
    char id[33];
    snprintf(id, sizeof(id), "%032x", n);
    return json_pack("{s:s s:i s:i s:s s:i s:I s:i s:s}", "id", id, "pp", pp, "tp", 0, "part", part,
                     "sizeBytes", 1000 + n, "crc32", (json_int_t)4000000000 + n, "tensors", 1,
                     "layout", "w\tF32\t4,2\n");
}

static void fill(struct hl_catalog *c, struct batch *b)
{
    struct hl_version_rec *v;
    json_t *shards = json_pack("[o,o]", shard(1, 0, "embedding"), shard(2, 1, "head"));
    struct hl_import_done done = {.name = "tiny",
                                  .source = "/data/\"q\"/\xc3\xa9",
                                  .tp = 1,
                                  .pp = 2,
                                  .virtual_stages = 1,
                                  .config = "{\"dtype\":\"F32\"}",
                                  .seconds = 1.25,
                                  .now_ms = 1000,
                                  .shards = shard_list(shards)};
    assert_int_equal(hl_catalog_import(c, &done, commit, b, &v), HL_OK);
    json_decref(shards);
    struct hl_version_begin begin = {.model = "tiny",
                                     .job = "j-1",
                                     .attempt = 3,
                                     .step = 77,
                                     .world = 2,
                                     .now_ms = 2000,
                                     .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    for (int rank = 0; rank < 2; rank++) {
        begin.rank = rank;
        assert_int_equal(hl_catalog_begin(c, &begin, commit, b, &v), HL_OK);
        shards = json_pack("[o]", shard(11 + rank, rank, rank == 0 ? "embedding" : "head"));
        struct hl_version_commit part = {.version = v,
                                         .rank = rank,
                                         .shards = shard_list(shards),
                                         .meta = "{\"it\":77}",
                                         .now_ms = 3000 + rank};
        assert_int_equal(hl_catalog_commit_part(c, &part, commit, b), HL_OK);
        json_decref(shards);
    }
}

static const struct hl_version_rec *version(const struct hl_catalog *c, int64_t number)
{
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    assert_int_equal(hl_catalog_model(c, "tiny", &m), HL_OK);
    assert_int_equal(hl_catalog_version(m, number, &v), HL_OK);
    return v;
}

static const struct hl_id cluster = {7, 9};

static char *encode(const struct hl_catalog *c, int64_t number)
{
    char *text;
    assert_int_equal(hl_manifest_encode(version(c, number), cluster, &text), HL_OK);
    return text;
}

static void manifest_of(const struct hl_catalog *c, int64_t number, struct hl_manifest *out)
{
    char *text = encode(c, number);
    assert_int_equal(hl_manifest_decode(text, strlen(text), out), HL_OK);
    free(text);
}

struct world {
    struct hl_catalog c;
    struct batch b;
};

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    w->b.records = json_object();
    fill(&w->c, &w->b);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    hl_catalog_fini(&w->c);
    json_decref(w->b.records);
    free(w);
    return 0;
}

/* ---- tests ----------------------------------------------------------------------------------- */

TEST_IN(set_up, tear_down, what_is_restored_is_record_for_record_what_was_lost)
{
    struct world *w = *state;
    struct hl_catalog fresh = {0};
    struct batch b = {json_object(), 0};
    struct hl_manifest m[2];
    manifest_of(&w->c, 2, &m[0]); /* in any order */
    manifest_of(&w->c, 1, &m[1]);
    assert_string_equal(m[0].model, "tiny");
    assert_int_equal(m[0].step, 77);
    assert_true(hl_id_equal(m[0].cluster, cluster));
    assert_int_equal(m[0].bytes, 1011 + 1012);
    const struct hl_manifest *list[] = {&m[0], &m[1]};
    assert_int_equal(hl_catalog_restore(&fresh, list, 2, commit, &b), HL_OK);
    assert_true(json_equal(b.records, w->b.records));
    assert_int_equal(HASH_COUNT(fresh.shards), 4);
    assert_string_equal(version(&fresh, -1)->meta, "{\"it\":77}");
    assert_int_equal(version(&fresh, -1)->number, 2);
    assert_int_equal(version(&fresh, -1)->model->next_version, 3);
    assert_true(hl_id_equal(hl_manifest_id(version(&fresh, 2)), m[0].id));
    assert_int_equal(hl_catalog_restore(&fresh, list, 1, commit, &b), HL_EEXIST);
    for (int i = 0; i < 2; i++)
        hl_manifest_fini(&m[i]);
    hl_catalog_fini(&fresh);
    json_decref(b.records);
}

TEST_IN(set_up, tear_down, a_refused_batch_changes_nothing)
{
    struct world *w = *state;
    struct hl_catalog fresh = {0};
    struct batch b = {json_object(), 1};
    struct hl_manifest m;
    manifest_of(&w->c, 2, &m);
    const struct hl_manifest *list[] = {&m};
    assert_int_equal(hl_catalog_restore(&fresh, list, 1, commit, &b), HL_EIO);
    assert_int_equal(HASH_COUNT(fresh.models) + HASH_COUNT(fresh.shards), 0);
    b.fail = 0;
    assert_int_equal(hl_catalog_restore(&fresh, list, 1, commit, &b), HL_OK);
    assert_int_equal(HASH_COUNT(fresh.shards), 2);
    hl_manifest_fini(&m);
    hl_catalog_fini(&fresh);
    json_decref(b.records);
}

/* A copy of the catalogue from the middle of a save has the version open, with only one rank's
 * part. */
TEST_IN(set_up, tear_down, an_open_version_is_replaced_by_what_it_became)
{
    struct world *w = *state;
    struct hl_catalog old = {0};
    struct batch b = {json_object(), 0};
    struct hl_manifest m[2];
    struct hl_version_rec *v;
    manifest_of(&w->c, 1, &m[0]);
    manifest_of(&w->c, 2, &m[1]);
    m[0].doc.model.next_version = 2; /* as it was then */
    const struct hl_manifest *first[] = {&m[0]}, *second[] = {&m[1]};
    assert_int_equal(hl_catalog_restore(&old, first, 1, commit, &b), HL_OK);
    struct hl_version_begin begin = {.model = "tiny",
                                     .job = "j-1",
                                     .attempt = 3,
                                     .step = 77,
                                     .world = 2,
                                     .now_ms = 2000,
                                     .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    assert_int_equal(hl_catalog_begin(&old, &begin, commit, &b, &v), HL_OK);
    json_t *shards = json_pack("[o]", shard(11, 0, "embedding"));
    struct hl_version_commit part = {
        .version = v, .rank = 0, .shards = shard_list(shards), .meta = "", .now_ms = 1};
    assert_int_equal(hl_catalog_commit_part(&old, &part, commit, &b), HL_OK);
    json_decref(shards);
    assert_int_equal(hl_catalog_restore(&old, second, 1, commit, &b), HL_OK);
    assert_true(json_equal(b.records, w->b.records));
    assert_int_equal(version(&old, 2)->state, HL_API_VERSION_STATE_VISIBLE);
    assert_int_equal(HASH_COUNT(old.shards), 4);
    for (int i = 0; i < 2; i++)
        hl_manifest_fini(&m[i]);
    hl_catalog_fini(&old);
    json_decref(b.records);
}

TEST_IN(set_up, tear_down, a_shard_in_two_versions_is_refused)
{
    struct world *w = *state;
    struct hl_catalog fresh = {0};
    struct hl_manifest a, b;
    struct batch batch = {json_object(), 0};
    manifest_of(&w->c, 2, &a);
    char *text = encode(&w->c, 2);
    json_t *doc = json_loads(text, 0, NULL);
    free(text);
    /* the shards of version 5, with a valid id */
    json_object_set_new(json_object_get(doc, "version"), "version", json_integer(5));
    struct hl_version_rec fake = *version(&w->c, 2);
    fake.number = 5;
    json_object_set_new(doc, "id", json_string(hl_id_format(hl_manifest_id(&fake)).s));
    text = json_dumps(doc, 0);
    assert_int_equal(hl_manifest_decode(text, strlen(text), &b), HL_OK);
    const struct hl_manifest *list[] = {&a, &b};
    assert_int_equal(hl_catalog_restore(&fresh, list, 2, commit, &batch), HL_EEXIST);
    assert_int_equal(hl_catalog_restore(&fresh, list, 1, commit, &batch), HL_OK);
    assert_int_equal(hl_catalog_restore(&fresh, list + 1, 1, commit, &batch), HL_EEXIST);
    assert_int_equal(HASH_COUNT(fresh.shards), 2);
    free(text);
    json_decref(doc);
    hl_manifest_fini(&a);
    hl_manifest_fini(&b);
    hl_catalog_fini(&fresh);
    json_decref(batch.records);
}

TEST_IN(set_up, tear_down, ids_differ_by_model_version_and_shards_only)
{
    struct world *w = *state;
    struct hl_version_rec v = *version(&w->c, 2);
    struct hl_shard_rec *swapped[] = {v.shards[1], v.shards[0]};
    struct hl_id id = hl_manifest_id(&v);
    assert_true(hl_manifest_is(id));
    char meta[] = "{}";
    v.meta = meta;
    v.shards = swapped;
    assert_true(hl_id_equal(hl_manifest_id(&v), id));
    v.number++;
    assert_false(hl_id_equal(hl_manifest_id(&v), id));
    v.number--;
    v.shard_count = 1;
    assert_false(hl_id_equal(hl_manifest_id(&v), id));
    assert_false(hl_manifest_is(v.shards[0]->id));
}

TEST_IN(set_up, tear_down, only_visible_versions_have_one)
{
    struct world *w = *state;
    struct hl_version_rec v = *version(&w->c, 2);
    char *text;
    v.state = HL_API_VERSION_STATE_OPEN;
    assert_int_equal(hl_manifest_encode(&v, cluster, &text), HL_EINVAL);
}

/* Sets one member; path "version.world". */
static json_t *changed(const char *text, const char *object, const char *member, json_t *value)
{
    json_t *doc = json_loads(text, 0, NULL);
    json_t *at = object[0] == '\0'              ? doc
                 : strcmp(object, "shard") == 0 ? json_array_get(json_object_get(doc, "shards"), 0)
                                                : json_object_get(doc, object);
    if (value == NULL)
        json_object_del(at, member);
    else
        json_object_set_new(at, member, value);
    return doc;
}

TEST_IN(set_up, tear_down, every_damaged_member_is_refused)
{
    struct world *w = *state;
    char *text = encode(&w->c, 2);
    struct hl_manifest m;

    struct {
        const char *object, *member;
        json_t *value;
    } table[] = {
        {"", "manifest", NULL},
        {"", "manifest", json_string("1")},
        {"", "id", json_string("6d616e69666573740000000000000000")},
        {"", "id", json_string("x")},
        {"", "cluster", json_integer(1)},
        {"", "model", json_array()},
        {"", "version", json_null()},
        {"", "shards", json_array()},
        {"", "shards", json_object()},
        {"model", "name", json_string("../tiny")},
        {"model", "name", json_string("other")}, /* not the name that the id was computed from */
        {"model", "tp", json_integer(0)},
        {"model", "pp", json_integer((json_int_t)1 << 40)},
        {"model", "config", json_object()},
        {"model", "nextVersion", json_integer(-1)},
        {"version", "version", json_integer(3)},
        {"version", "version", json_integer(INT64_MAX)},
        {"version", "state", json_string("open")},
        {"version", "world", json_integer((json_int_t)1 << 31)},
        {"version", "world", json_integer(-1)},
        {"version", "committed", json_pack("[s]", "0")},
        {"version", "meta", json_true()},
        {"version", "visibleMs", json_integer(-1)},
        {"shard", "id", json_string("0000000000000000000000000000ffff")},
        {"shard", "id", json_string("6d616e69666573740000000000000001")},
        {"shard", "pp", json_integer(-1)},
        {"shard", "tp", json_real(0.5)},
        {"shard", "crc32", json_integer((json_int_t)1 << 32)},
        {"shard", "sizeBytes", json_integer(0)},
        {"shard", "sizeBytes", json_integer(INT64_MAX)},
        {"shard", "tensors", json_integer(-1)},
        {"shard", "part", json_string("")},
        {"shard", "layout", json_string("nonsense")},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        json_t *doc = changed(text, table[i].object, table[i].member, table[i].value);
        char *bad = json_dumps(doc, 0);
        if (hl_manifest_decode(bad, strlen(bad), &m) != HL_ECORRUPT)
            fail_msg("accepted: %s.%s, row %zu", table[i].object, table[i].member, i);
        free(bad);
        json_decref(doc);
    }
    json_t *later = changed(text, "", "manifest", json_integer(2));
    char *bad = json_dumps(later, 0);
    assert_int_equal(hl_manifest_decode(bad, strlen(bad), &m), HL_EUNSUPPORTED);
    free(bad);
    json_decref(later);
    for (size_t len = 0; len < strlen(text); len += 7)
        assert_int_equal(hl_manifest_decode(text, len, &m), HL_ECORRUPT);
    free(text);
}

TEST_IN(set_up, tear_down, every_flipped_byte_of_a_file_is_noticed)
{
    struct world *w = *state;
    char *text = encode(&w->c, 2);
    void *file;
    size_t size, len;
    const char *got;
    assert_int_equal(hl_manifest_wrap(text, strlen(text), &file, &size), HL_OK);
    assert_int_equal(hl_manifest_unwrap(file, size, &got, &len), HL_OK);
    assert_int_equal(len, strlen(text));
    assert_memory_equal(got, text, len);
    size_t data = size - len;
    for (size_t i = data; i < size; i++) {
        ((char *)file)[i] ^= 0x10;
        assert_int_equal(hl_manifest_unwrap(file, size, &got, &len), HL_ECORRUPT);
        ((char *)file)[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < size; cut += 13)
        assert_int_equal(hl_manifest_unwrap(file, cut, &got, &len), HL_ECORRUPT);
    /* a shard is not taken for a manifest */
    struct hl_tensor t = {.name = "manifest", .dtype = HL_DTYPE_U8, .rank = 1, .shape = {4}};
    struct hl_safetensors_layout layout = {.tensors = &t, .count = 1, .crc_fields = true};
    struct hl_safetensors_image image;
    assert_int_equal(hl_safetensors_write(&layout, &image), HL_OK);
    char *other = calloc(1, image.size + 4);
    memcpy(other, image.bytes, image.size);
    assert_int_equal(hl_manifest_unwrap(other, image.size + 4, &got, &len), HL_ECORRUPT);
    hl_safetensors_image_fini(&image);
    free(other);
    free(file);
    free(text);
}
