/* The schema's structs as JSON: every kind of field in both directions, and what is refused by
 * name. */
#include "support/test.h"

#include <string.h>

#include "api/types.h"

static hl_status read_json(const struct hl_api_type *type, const char *text, struct hl_arena *arena,
                           void *to)
{
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    hl_status st = hl_api_from_json(type, json, arena, to);
    json_decref(json);
    return st;
}

TEST(everything_there_and_back)
{
    static const char text[] =
        "{\"name\": \"node-0\", \"agentAddress\": \"127.0.0.1:7\", \"hostId\": \"\", "
        "\"incarnation\": \"\", \"executor\": \"\", \"version\": \"\", \"slots\": [{\"numaId\": "
        "-3, "
        "\"cpus\": \"0-3\", \"memoryBytes\": 9223372036854775807, \"gpus\": [{\"kind\": \"gpu\", "
        "\"id\": \"a\", \"name\": \"\\u4e2d\", \"memoryBytes\": 5, \"numaId\": 2147483647, "
        "\"nicClass\": \"\"}], \"nics\": []}], \"rankAddress\": \"\", \"dataAddress\": \"\", "
        "\"migrateAddress\": \"\", "
        "\"storeSocket\": \"\", \"tiers\": [], \"storeEpoch\": 7, \"hostAddress\": \"\", "
        "\"stateDirectory\": \"\", \"leaf\": \"\", \"spine\": \"\", \"health\": {\"timeMs\": 0, "
        "\"state\": \"untested\", \"tookMs\": 0, \"rows\": [], \"reason\": \"\"}, "
        "\"deviceAddresses\": \"\"}";
    struct hl_arena arena = {0}, second = {0};
    struct hl_api_node_info node, copy;
    assert_int_equal(read_json(&hl_api_node_info_type, text, &arena, &node), HL_OK);
    assert_string_equal(node.name, "node-0");
    assert_int_equal(node.slots.count, 1);
    assert_int_equal(node.slots.items[0].numa_id, -3);
    assert_int_equal(node.slots.items[0].gpus.items[0].numa_id, INT32_MAX);
    assert_string_equal(node.slots.items[0].gpus.items[0].name, "\xE4\xB8\xAD");
    assert_int_equal(hl_api_copy(&hl_api_node_info_type, &node, &second, &copy), HL_OK);
    hl_arena_fini(&arena); /* the copy shares nothing with it */
    json_t *json = hl_api_to_json(&hl_api_node_info_type, &copy),
           *wanted = json_loads(text, 0, NULL);
    assert_true(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
    hl_arena_fini(&second);
}

TEST(no_bytes_there_and_back)
{
    struct hl_arena arena = {0};
    struct hl_api_controller_read_log_results none = {0}, r, copy;
    json_t *json = hl_api_to_json(&hl_api_controller_read_log_results_type, &none);
    assert_string_equal(json_string_value(json_object_get(json, "data")), "");
    assert_int_equal(hl_api_from_json(&hl_api_controller_read_log_results_type, json, &arena, &r),
                     HL_OK);
    assert_int_equal(r.data.size, 0);
    assert_int_equal(hl_api_copy(&hl_api_controller_read_log_results_type, &none, &arena, &copy),
                     HL_OK);
    assert_int_equal(copy.data.size, 0);
    json_decref(json);
    hl_arena_fini(&arena);
}

TEST(data_numbers_and_presets)
{
    struct hl_arena arena = {0};
    struct hl_api_controller_read_log_results r;
    assert_int_equal(read_json(&hl_api_controller_read_log_results_type,
                               "{\"data\": \"AAECAwT/\", \"offset\": -1, \"finished\": true}",
                               &arena, &r),
                     HL_OK);
    assert_int_equal(r.data.size, 6);
    assert_memory_equal(r.data.bytes, "\0\1\2\3\4\xFF", 6);
    assert_int_equal(r.offset, -1);
    assert_true(r.finished);
    assert_int_equal(r.failed_rank, -1); /* the schema's default */
    assert_string_equal(r.job, "");
    json_t *json = hl_api_to_json(&hl_api_controller_read_log_results_type, &r);
    assert_string_equal(json_string_value(json_object_get(json, "data")), "AAECAwT/");
    json_decref(json);
    hl_arena_fini(&arena);
}

TEST(what_is_wrong_is_named)
{
    static const struct {
        const char *text, *path;
    } rows[] = {
        {"{\"spec\": {\"id\": 1}}", "field spec.id:"},
        {"{\"spec\": {\"ranks\": [{}, {\"rank\": 2147483648}]}}", "field spec.ranks[1].rank:"},
        {"{\"spec\": {\"ranks\": [{\"env\": {}}]}}", "field spec.ranks[0].env:"},
        {"{\"spec\": {\"command\": [null]}}", "field spec.command[0]:"},
        {"{\"spec\": {\"memoryBytes\": -1}}", "field spec.memoryBytes:"},
        {"{\"spec\": {\"memoryBytes\": 1.5}}", "field spec.memoryBytes:"},
        {"{\"spec\": {\"colour\": 1}}", "field spec.colour: unknown"},
        {"{\"spec\": []}", "field spec:"},
        {"[]", "expected an object"},
    };
    struct hl_arena arena = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_api_agent_start_container_params p, untouched;
        memset(&p, 0x5A, sizeof(p));
        memset(&untouched, 0x5A, sizeof(untouched));
        assert_int_equal(
            read_json(&hl_api_agent_start_container_params_type, rows[i].text, &arena, &p),
            HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), rows[i].path));
        assert_memory_equal(&p, &untouched, sizeof(p));
    }
    hl_arena_fini(&arena);
}

TEST(texts_that_are_none_and_bytes_that_are_no_text)
{
    struct hl_api_key_value pair = {.value = "a\xFFz"};
    json_t *json = hl_api_to_json(&hl_api_key_value_type, &pair);
    assert_string_equal(json_string_value(json_object_get(json, "key")), "");
    assert_string_equal(json_string_value(json_object_get(json, "value")), "a\xEF\xBF\xBDz");
    json_decref(json);
}

static const char cluster_text[] =
    "{\"state\": \"/s\", \"pool\": \"/p\", \"nodes\": 1, \"nodesEver\": 2, \"slots\": 0, "
    "\"executor\": \"agents\", \"serving\": \"\", \"flags\": {\"nodes\": \"1\"}, "
    "\"environment\": {}, \"kept\": {\"models\": 0}, "
    "\"l3d\": {\"pid\": 7, \"start\": 8, \"ready\": true, \"fills\": \"\", \"name\": \"\"}, "
    "\"node-0\": {\"pid\": 9, \"start\": 10, \"ready\": false, \"fills\": \"/f\", "
    "\"restarts\": 2, \"end\": {\"how\": \"ended\", \"at\": 5}}}";

TEST(maps_and_optional_fields_there_and_back)
{
    struct hl_arena arena = {0}, second = {0};
    struct hl_api_local_cluster c, copy;
    assert_int_equal(read_json(&hl_api_local_cluster_type, cluster_text, &arena, &c), HL_OK);
    assert_int_equal(c.flags.count, 1);
    assert_string_equal(c.flags.items[0].key, "nodes");
    assert_string_equal(c.flags.items[0].value, "1");
    assert_string_equal(c.serving, "");
    assert_null(c.l3); /* absent */
    assert_int_equal(c.kept.models, 0);
    assert_int_equal(c.kept.versions, -1);
    assert_int_equal(c.daemons.count, 2);
    assert_string_equal(c.daemons.items[1].key, "node-0");
    assert_string_equal(c.daemons.items[0].name, "");
    assert_null(c.daemons.items[1].name);
    assert_int_equal(c.daemons.items[1].end.at, 5);
    assert_int_equal(hl_api_copy(&hl_api_local_cluster_type, &c, &second, &copy), HL_OK);
    hl_arena_fini(&arena);
    json_t *json = hl_api_to_json(&hl_api_local_cluster_type, &copy),
           *wanted = json_loads(cluster_text, 0, NULL);
    assert_true(json_equal(json, wanted));
    json_decref(json);
    json_decref(wanted);
    hl_arena_fini(&second);
}

TEST(what_is_wrong_in_a_map_is_named)
{
    static const struct {
        const char *text, *path;
    } rows[] = {
        {"{\"flags\": {\"nodes\": 2}}", "field flags.nodes: expected text"},
        {"{\"flags\": [\"nodes\"]}", "field flags: expected an object"},
        {"{\"flags\": {\"nodes\": null}}", "field flags.nodes:"},
        {"{\"node-0\": {\"pid\": \"7\"}}", "field node-0.pid: expected an integer"},
        {"{\"node-0\": {\"key\": \"node-1\"}}", "field node-0.key: unknown"},
        {"{\"colour\": 1}", "field colour: expected an object"},
        {"{\"daemons\": []}", "field daemons: expected an object"},
    };
    struct hl_arena arena = {0};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_api_local_cluster c;
        assert_int_equal(read_json(&hl_api_local_cluster_type, rows[i].text, &arena, &c),
                         HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), rows[i].path));
    }
    hl_arena_fini(&arena);
}

/* Frees the document. */
static void assert_json(json_t *json, const char *wanted)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_PRESERVE_ORDER);
    assert_non_null(text);
    assert_string_equal(text, wanted);
    free(text);
    json_decref(json);
}

TEST(a_checksum_is_hexadecimal_for_people_only)
{
    uint32_t crcs[] = {0, 0xFFFFFFFF};
    const struct hl_api_extent extent = {.id = "a", .crc32 = 0xAB, .chunk_crcs = {crcs, 2}};
    assert_json(hl_api_show(&hl_api_extent_type, &extent),
                "{\"id\":\"a\",\"offset\":0,\"sizeBytes\":0,\"crc32\":\"000000ab\","
                "\"generation\":0,\"chunkCrcs\":[\"00000000\",\"ffffffff\"]}");
    assert_json(hl_api_to_json(&hl_api_extent_type, &extent),
                "{\"id\":\"a\",\"offset\":0,\"sizeBytes\":0,\"crc32\":171,"
                "\"generation\":0,\"chunkCrcs\":[0,4294967295]}");
}

TEST(json_in_a_text_is_unfolded_for_people_only)
{
    static const struct {
        const char *meta, *shown;
    } rows[] = {
        {"{\"a\": [1]}", "{\"a\":[1]}"},
        {"7", "7"},
        {"{\"a\"", "\"{\\\"a\\\"\""}, /* is none */
        {"", NULL},
        {NULL, NULL},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_api_model_version v = {.meta = rows[i].meta};
        json_t *shown = hl_api_show(&hl_api_model_version_type, &v);
        json_t *plain = hl_api_to_json(&hl_api_model_version_type, &v);
        char *meta = json_dumps(json_object_get(shown, "meta"), JSON_COMPACT | JSON_ENCODE_ANY);
        assert_string_equal(json_string_value(json_object_get(plain, "meta")),
                            rows[i].meta != NULL ? rows[i].meta : "");
        if (rows[i].shown != NULL)
            assert_string_equal(meta, rows[i].shown);
        else
            assert_null(json_object_get(shown, "meta"));
        free(meta);
        json_decref(shown);
        json_decref(plain);
    }
}

TEST(bytes_are_text_for_people_only)
{
    static const struct {
        struct hl_api_data bytes;
        const char *shown;
    } rows[] = {
        {{"a\0\n", 3}, "\"a\\u0000\\n\""},
        {{"\xC3\xA9", 2}, "\"\xC3\xA9\""},
        {{"\xC3\xA9 \xFF\0z", 6}, "\"?? ?\\u0000z\""}, /* not entirely UTF-8 */
        {{NULL, 0}, "\"\""},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct hl_api_log_piece piece = {.text = rows[i].bytes};
        json_t *json = hl_api_show(&hl_api_log_piece_type, &piece);
        char *text = json_dumps(json_object_get(json, "text"), JSON_ENCODE_ANY);
        assert_non_null(text);
        assert_string_equal(text, rows[i].shown);
        free(text);
        json_decref(json);
    }
    const struct hl_api_log_piece piece = {.text = rows[0].bytes};
    json_t *json = hl_api_to_json(&hl_api_log_piece_type, &piece);
    assert_string_equal(json_string_value(json_object_get(json, "text")), "YQAK");
    json_decref(json);
}

TEST(a_flat_struct_stands_in_its_own_object_or_not_at_all)
{
    struct hl_api_bench_ratio ratio = {.name = "r", .value = 0.5};
    assert_json(hl_api_to_json(&hl_api_bench_ratio_type, &ratio), "{\"name\":\"r\",\"value\":0.5}");
    ratio.bound = (struct hl_api_bench_bound){.bar = 2, .bound = HL_API_BENCH_SIDE_AT_LEAST};
    assert_json(hl_api_to_json(&hl_api_bench_ratio_type, &ratio),
                "{\"name\":\"r\",\"value\":0.5,\"bar\":2.0,\"bound\":\"at least\",\"met\":false}");
}

TEST(a_flat_struct_is_not_read_back)
{
    struct hl_arena arena = {0};
    struct hl_api_planned_job job;
    assert_int_equal(read_json(&hl_api_planned_job_type, "{}", &arena, &job), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "field plan:"));
    hl_arena_fini(&arena);
}

TEST(a_number_that_was_not_said_is_null)
{
    struct hl_arena arena = {0};
    struct hl_api_torch_export t = {.iteration = -1, .args = true, .megatron = "m"}, back;
    json_t *json = hl_api_to_json(&hl_api_torch_export_type, &t);
    assert_int_equal(hl_api_from_json(&hl_api_torch_export_type, json, &arena, &back), HL_OK);
    assert_int_equal(back.iteration, -1);
    assert_json(json, "{\"iteration\":null,\"args\":true,\"megatron\":\"m\"}");
    t.iteration = 0;
    assert_json(hl_api_to_json(&hl_api_torch_export_type, &t),
                "{\"iteration\":0,\"args\":true,\"megatron\":\"m\"}");
    hl_arena_fini(&arena);
}

TEST(a_field_has_its_word_in_json)
{
    struct hl_arena arena = {0};
    struct hl_api_memory_replay r = {.mode = "copy", .policy = "opt", .peak_over_avail = 3}, back;
    json_t *json = hl_api_to_json(&hl_api_memory_replay_type, &r);
    assert_int_equal(hl_api_from_json(&hl_api_memory_replay_type, json, &arena, &back), HL_OK);
    assert_int_equal(back.peak_over_avail, 3);
    assert_json(json, "{\"mode\":\"copy\",\"policy\":\"opt\",\"per_iter\":[],"
                      "\"peak_over_avail\":3}");
    hl_arena_fini(&arena);
}
