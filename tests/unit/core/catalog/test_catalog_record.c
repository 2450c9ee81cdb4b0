/* Records of models, versions and shards, and the text of a manifest, as stored today: they are
 * read, and written back as the same JSON; a fault is an error that names the record and the
 * member. */
#include "support/test.h"

#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/catalog/manifest.h"

#define MODEL_KEY   "model/tiny"
#define VERSION_KEY "version/tiny/0000000002"
#define SHARD_KEY   "shard/tiny/0000000002/000000000000000000000000000000ab"

static const char model[] = "{\"name\": \"tiny\", \"tp\": 2, \"pp\": 1, \"virtualStages\": 1,"
                            " \"config\": \"{}\", \"source\": \"/hf/tiny\","
                            " \"createdMs\": 1700000000000, \"nextVersion\": 3}";
static const char version[] =
    "{\"version\": 2, \"state\": \"visible\", \"step\": 40, \"job\": \"tiny-1\", \"attempt\": 1,"
    " \"world\": 2, \"check\": \"any-dtype\", \"createdMs\": 1700000000001,"
    " \"visibleMs\": 1700000000002, \"importSeconds\": 0.5, \"meta\": \"{\\\"a\\\":1}\","
    " \"error\": \"\", \"shards\": 1, \"shardsSum\": 77, \"committed\": [1],"
    " \"split\": {\"tp\": 2, \"pp\": 1, \"virtualStages\": 1, \"firstStageLayers\": 0,"
    " \"lastStageLayers\": 0}}";
static const char shard[] =
    "{\"id\": \"000000000000000000000000000000ab\", \"model\": \"tiny\", \"version\": 2,"
    " \"pp\": 0, \"tp\": 1, \"part\": \"layer-0001\", \"sizeBytes\": 4096,"
    " \"crc32\": 4294967295, \"tensors\": 1, \"state\": \"sealed\", \"location\": \"L3\","
    " \"accesses\": 0, \"lastAccessMs\": 0, \"rank\": 1, \"layout\": \"a\\tF32\\t2\\n\"}";

static json_t *parse(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    return value;
}

static hl_status load(struct hl_catalog *c, const char *key, const char *text)
{
    json_t *value = parse(text);
    hl_status st = hl_catalog_load(c, key, value);
    json_decref(value);
    return st;
}

static void load_all(struct hl_catalog *c)
{
    assert_int_equal(load(c, MODEL_KEY, model), HL_OK);
    assert_int_equal(load(c, VERSION_KEY, version), HL_OK);
    assert_int_equal(load(c, SHARD_KEY, shard), HL_OK);
}

static void is_json(const char *text, json_t *value)
{
    json_t *wanted = parse(text);
    assert_true(json_equal(wanted, value));
    json_decref(wanted);
    json_decref(value);
}

TEST(records_are_written_as_they_were_stored)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_catalog c = {0};
    load_all(&c);
    const struct hl_version_rec *v = c.models->versions;
    struct hl_api_model_record m = hl_model_rec_store(c.models);
    struct hl_api_version_record r =
        hl_version_rec_store(v, (struct hl_shards_stated){1, v->stated_sum}, &arena);
    is_json(model, hl_api_to_json(&hl_api_model_record_type, &m));
    is_json(version, hl_api_to_json(&hl_api_version_record_type, &r));
    is_json(shard, hl_shard_rec_to_json(v->shards[0]));
    hl_catalog_fini(&c);
}

/* Records of the first release. */
TEST(what_a_record_of_an_older_release_lacks_has_the_value_of_then)
{
    struct hl_catalog c = {0};
    assert_int_equal(load(&c, MODEL_KEY, model), HL_OK);
    assert_int_equal(load(&c, VERSION_KEY,
                          "{\"version\": 2, \"state\": \"visible\", \"step\": 0, \"job\": \"\","
                          " \"attempt\": 0, \"world\": 0, \"createdMs\": 1, \"visibleMs\": 1,"
                          " \"importSeconds\": 1, \"meta\": \"{}\", \"committed\": []}"),
                     HL_OK);
    assert_int_equal(load(&c, SHARD_KEY,
                          "{\"id\": \"000000000000000000000000000000ab\", \"model\": \"tiny\","
                          " \"version\": 2, \"pp\": 0, \"tp\": 1, \"part\": \"layer-0001\","
                          " \"sizeBytes\": 1, \"crc32\": 0, \"tensors\": 1}"),
                     HL_OK);
    const struct hl_version_rec *v = c.models->versions;
    assert_int_equal(v->check, HL_API_LAYOUT_CHECK_UNCHECKED);
    assert_int_equal(v->stated_shards, -1);
    assert_int_equal(v->stated_sum, -1);
    assert_null(v->error);
    assert_int_equal(v->shards[0]->rank, -1);
    assert_null(v->shards[0]->layout);
    hl_catalog_fini(&c);
}

/* Is refused if this member is replaced, or with NULL removed. */
static void is_refused(const char *key, const char *text, const char *member, json_t *value)
{
    struct hl_catalog c = {0};
    json_t *record = parse(text);
    if (value != NULL)
        json_object_set_new(record, member, value);
    else
        json_object_del(record, member);
    if (strcmp(key, MODEL_KEY) != 0)
        assert_int_equal(load(&c, MODEL_KEY, model), HL_OK);
    if (strcmp(key, SHARD_KEY) == 0)
        assert_int_equal(load(&c, VERSION_KEY, version), HL_OK);
    assert_int_equal(hl_catalog_load(&c, key, record), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), key));
    if (strstr(hl_error_text(), member) == NULL)
        fail_msg("%s is not named: %s", member, hl_error_text());
    json_decref(record);
    hl_catalog_fini(&c);
}

TEST(what_is_wrong_with_a_record_is_named)
{
    is_refused(MODEL_KEY, model, "tp", json_string("2"));
    is_refused(MODEL_KEY, model, "nextVersion", NULL);
    is_refused(MODEL_KEY, model, "config", json_object());
    is_refused(MODEL_KEY, model, "config", json_string("{\"virtualStages\": \"2\"}"));
    assert_non_null(strstr(hl_error_text(), "field virtualStages"));
    is_refused(VERSION_KEY, version, "state", NULL);
    is_refused(VERSION_KEY, version, "state", json_string("ready"));
    is_refused(VERSION_KEY, version, "check", json_string("some"));
    is_refused(VERSION_KEY, version, "meta", json_object());
    is_refused(VERSION_KEY, version, "step", json_real(1.5));
    is_refused(VERSION_KEY, version, "committed", json_pack("[s]", "1"));
    is_refused(VERSION_KEY, version, "committed", json_pack("[i]", 2)); /* in a world of 2 */
    is_refused(SHARD_KEY, shard, "crc32", json_integer((json_int_t)1 << 32));
    is_refused(SHARD_KEY, shard, "sizeBytes", NULL);
    is_refused(SHARD_KEY, shard, "rank", json_string("1"));
    is_refused(SHARD_KEY, shard, "layout", json_integer(1));
}

TEST(a_manifest_is_written_as_it_was_stored)
{
    struct hl_catalog c = {0};
    struct hl_manifest m;
    char *text = NULL;
    load_all(&c);
    const struct hl_version_rec *v = c.models->versions;
    json_t *version_json = parse(version);
    json_object_set_new(version_json, "shardsSum",
                        json_integer(hl_version_stated(v).sum)); /* computed at each write */
    json_t *wanted = json_pack(
        "{s:i s:s s:s s:o s:o s:[o]}", "manifest", 1, "id", hl_id_format(hl_manifest_id(v)).s,
        "cluster", "000000000000000000000000000000cd", "model", parse(model), "version",
        version_json, "shards",
        parse("{\"id\": \"000000000000000000000000000000ab\", \"pp\": 0, \"tp\": 1, \"rank\": 1,"
              " \"part\": \"layer-0001\", \"sizeBytes\": 4096, \"crc32\": 4294967295,"
              " \"tensors\": 1, \"layout\": \"a\\tF32\\t2\\n\"}"));
    assert_int_equal(hl_manifest_encode(v, (struct hl_id){0, 0xcd}, &text), HL_OK);
    json_t *made = parse(text);
    assert_true(json_equal(wanted, made));
    json_object_set_new(wanted, "of a newer release", json_true());
    char *stored = json_dumps(wanted, 0);
    assert_int_equal(hl_manifest_decode(stored, strlen(stored), &m), HL_OK);
    assert_int_equal(m.cluster.lo, 0xcd);
    assert_int_equal(m.doc.shards.count, 1);
    hl_manifest_fini(&m);
    json_object_set_new(json_object_get(wanted, "version"), "world", json_string("2"));
    free(stored);
    stored = json_dumps(wanted, 0);
    assert_int_equal(hl_manifest_decode(stored, strlen(stored), &m), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "manifest: field version.world"));
    free(stored);
    free(text);
    json_decref(made);
    json_decref(wanted);
    hl_catalog_fini(&c);
}
