/* Ids that users can tell apart, versions of a model, and which file of a checkpoint has which
 * tensor. */
#include "support/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/hf_files.h"
#include "cli/models/model.h"
#include "cli/models/shard_id.h"
#include "cli/models/verify.h"
#include "os/file.h"

#define GIB ((uint64_t)1 << 30)

TEST(ids_are_cut_where_they_differ)
{
    struct hl_api_shard shards[] = {{.id = "00000000000000000000000000000000"},
                                    {.id = "ffffffffffffffffffffffffffffffff"},
                                    {.id = "00000000000010000000000000000000"}};
    const struct hl_api_shard_list none = {0}, one = {shards, 1}, two = {shards, 2},
                                   three = {shards, 3};
    assert_int_equal(shard_unique_digits(&none), SHARD_DIGITS_MIN);
    assert_int_equal(shard_unique_digits(&one), SHARD_DIGITS_MIN);
    assert_int_equal(shard_unique_digits(&two), SHARD_DIGITS_MIN);
    assert_int_equal(shard_unique_digits(&three), 13); /* the first twelve are the same */
}

TEST(a_version_is_found_or_named_in_the_failure)
{
    struct hl_api_model_version versions[] = {{.version = 1}, {.version = 4}, {.version = 5}};
    struct hl_api_model m = {.name = "gpt", .latest = 4, .versions = {versions, 3}};
    const struct hl_api_model_version *v = NULL;
    assert_int_equal(model_find_version(&m, -1, &v), HL_OK);
    assert_ptr_equal(v, &versions[1]); /* 5 is not visible */
    assert_int_equal(model_find_version(&m, 5, &v), HL_OK);
    assert_ptr_equal(v, &versions[2]);
    assert_int_equal(model_find_version(&m, 2, &v), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "'gpt'"));
    assert_non_null(strstr(hl_error_text(), "2"));
    m.latest = -1;
    assert_int_equal(model_find_version(&m, -1, &v), HL_ENOENT);
    assert_null(strstr(hl_error_text(), "-1"));
}

TEST(a_file_has_as_many_tensors_as_fit)
{
    struct hl_tensor tensors[] = {{.size = 3 * GIB}, {.size = 2 * GIB}, {.size = 1},
                                  {.size = 9 * GIB}, {.size = 1},       {.size = 1}};
    const struct hl_partition_plan p = {.tensors = tensors, .tensor_count = 6};
    static const size_t ends[] = {2, 3, 4,
                                  6}; /* 5 GiB make a full file; the large tensor is alone */
    size_t at = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(ends); i++) {
        struct hf_file file = hf_file_next(&p, at);
        assert_int_equal(file.first, at);
        assert_int_equal(file.end, ends[i]);
        at = file.end;
    }
    assert_int_equal(hf_file_count(&p), 4);
    const struct hl_partition_plan nothing = {0};
    assert_int_equal(hf_file_count(&nothing), 0);
}

TEST(files_are_numbered_when_there_are_several)
{
    char name[64];
    hf_file_name("model", 1, 1, name, sizeof(name));
    assert_string_equal(name, "model.safetensors");
    hf_file_name("model", 2, 12, name, sizeof(name));
    assert_string_equal(name, "model-00002-of-00012.safetensors");
}

TEST(an_index_says_which_file_has_which_tensor)
{
    static const char *const files[] = {"model-00001-of-00002.safetensors",
                                        "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    struct hl_tensor tensors[] = {
        {.name = "a", .size = 3 * GIB}, {.name = "b", .size = 2 * GIB}, {.name = "c", .size = 7}};
    const struct hl_partition_plan p = {.tensors = tensors, .tensor_count = 3};
    char dir[] = "/tmp/helios-index-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    assert_int_equal(hf_write_index(dir, &p), HL_OK);
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    json_t *index = json_load_file(path, 0, NULL);
    const json_t *map = json_object_get(index, "weight_map");
    assert_int_equal(json_object_size(map), 3);
    for (size_t i = 0; i < HL_ARRAY_LEN(files); i++)
        assert_string_equal(json_string_value(json_object_get(map, tensors[i].name)), files[i]);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        5 * GIB + 7);
    json_decref(index);
    assert_int_equal(hl_dir_remove(dir), HL_OK);
}

/* The verdict of a copy in the pool and one of a node, in these states. */
static const char *verdict_text(enum hl_api_copy_verdict pool, enum hl_api_copy_verdict node)
{
    struct hl_api_verified_copy copies[] = {
        {.tier = HL_API_TIER_L3, .node = "", .device = "", .state = pool, .error = "no answer"},
        {.tier = HL_API_TIER_L2, .node = "n1", .device = "", .state = node, .error = "no answer"}};
    const struct verified v = {true, {.copies = {copies, 2}}};
    assert_int_equal(verify_verdict("ab", &v), HL_ECORRUPT);
    return hl_error_text();
}

TEST(a_bad_copy_is_to_be_dropped_only_where_no_read_replaces_it)
{
    const enum hl_api_copy_verdict ok = HL_API_COPY_VERDICT_OK, bad = HL_API_COPY_VERDICT_BAD,
                                   unknown = HL_API_COPY_VERDICT_UNKNOWN;
    assert_null(strstr(verdict_text(bad, ok), "shard drop"));
    assert_non_null(strstr(hl_error_text(), "another copy is good"));
    assert_non_null(strstr(verdict_text(ok, bad), "shard drop"));
    assert_non_null(strstr(verdict_text(bad, bad), "import the model again"));
    assert_null(strstr(verdict_text(bad, unknown), "import the model again"));
}
