#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "hw/executor.h"

static const char full_spec[] =
    "{\"id\":\"j1.0.2\",\"job\":\"j1\",\"attempt\":1,\"index\":2,\"numaId\":8,\"cpus\":\"0-3,8\","
    "\"memoryBytes\":1073741824,\"image\":\"img\",\"command\":[\"python3\",\"t.py\"],"
    "\"workdir\":\"/w\",\"env\":[{\"key\":\"A\",\"value\":\"1\"}],"
    "\"ranks\":[{\"rank\":4,\"pp\":1,\"tp\":2,\"dp\":3,\"localRank\":0,\"cp\":5,"
    "\"env\":[{\"key\":\"RANK\",\"value\":\"4\"}]}],"
    "\"gpus\":[\"0004:04:00.0\"],\"stopGraceMs\":5000,\"mounts\":[\"/a:/b:ro\"],"
    "\"rankTable\":\"{}\",\"venv\":\"/v\",\"conda\":\"\",\"python\":\"\",\"nics\":[\"mlx5_0\"],"
    "\"replace\":{\"max\":3,\"stableMs\":1000,\"spares\":1,"
    "\"backoffMs\":500,\"backoffMaxMs\":9000,\"onFailure\":\"7=fail\"},\"epoch\":9}";

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    assert_non_null(v);
    return v;
}

/* As a record in a file is read. */
static hl_status spec_decode(const json_t *json, struct hl_container_spec *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_spec spec;
    HL_TRY(hl_api_from_json(&hl_api_container_spec_type, json, &arena, &spec));
    return hl_container_spec_from_api(&spec, out);
}

TEST(a_spec_survives_the_way_there_and_back)
{
    struct hl_container_spec spec;
    json_t *json = parse(full_spec);
    assert_int_equal(spec_decode(json, &spec), HL_OK);
    assert_string_equal(spec.id, "j1.0.2");
    assert_int_equal(spec.numa_id, 8);
    assert_string_equal(spec.command[1], "t.py");
    assert_null(spec.command[2]);
    assert_int_equal(spec.ranks[0].dp, 3);
    assert_string_equal(hl_env_get(&spec.ranks[0].env, "RANK"), "4");
    assert_null(hl_env_get(&spec.env, "RANK"));
    struct hl_arena arena = {0};
    struct hl_api_container_spec record = hl_container_spec_to_api(&spec, &arena);
    json_t *back = hl_api_to_json(&hl_api_container_spec_type, &record);
    hl_arena_fini(&arena);
    assert_true(json_equal(json, back));
    json_decref(back);
    json_decref(json);
    hl_container_spec_fini(&spec);
}

TEST(a_status_survives_the_way_there_and_back)
{
    struct hl_arena arena = {0};
    struct hl_api_container_status given;
    struct hl_container_status s, copy;
    json_t *json = parse("{\"id\":\"c\",\"state\":\"failed\",\"exitCode\":137,\"signal\":9,"
                         "\"message\":\"why\",\"warning\":\"full\",\"stepsFile\":\"\","
                         "\"binding\":\"affinity\",\"lost\":true,\"startedMs\":5,"
                         "\"finishedMs\":6,\"ranks\":[{\"rank\":1,\"pid\":7,\"state\":\"stopped\","
                         "\"exitCode\":1,\"signal\":0,\"finishedMs\":4,\"replaced\":2,"
                         "\"lostMs\":3,\"lostCode\":137,\"lostSignal\":9}]}");
    assert_int_equal(hl_api_from_json(&hl_api_container_status_type, json, &arena, &given), HL_OK);
    assert_int_equal(hl_container_status_from_api(&given, &s), HL_OK);
    assert_int_equal(hl_container_status_copy(&s, &copy), HL_OK);
    given = hl_container_status_to_api(&copy, &arena);
    json_t *back = hl_api_to_json(&hl_api_container_status_type, &given);
    hl_arena_fini(&arena);
    assert_true(json_equal(json, back));
    json_decref(back);
    json_decref(json);
    hl_container_status_fini(&s);
    hl_container_status_fini(&copy);
}

static void expect_refusal(const char *patch, const char *why)
{
    struct hl_container_spec spec;
    json_t *json = parse(full_spec);
    json_t *change = parse(patch);
    json_object_update(json, change);
    assert_int_equal(spec_decode(json, &spec), HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
    json_decref(json);
    json_decref(change);
}

TEST(texts_of_a_status_are_utf8_whatever_a_program_said)
{
    struct hl_arena arena = {0};
    char message[] = "exit: \xE5\xBE", binding[] = "", warning[] = "\xFF";
    struct hl_container_status status = {
        .message = message, .binding = binding, .warning = warning};
    struct hl_api_container_status record = hl_container_status_to_api(&status, &arena);
    assert_string_equal(record.message, "exit: \xEF\xBF\xBD\xEF\xBF\xBD");
    assert_string_equal(record.binding, "");
    assert_string_equal(record.warning, "\xEF\xBF\xBD");
    hl_arena_fini(&arena);
}

TEST(a_bad_spec_is_refused_with_its_field)
{
    expect_refusal("{\"id\":\"\"}", "id ''");
    expect_refusal("{\"id\":\"../x\"}", "id '../x'");
    expect_refusal("{\"id\":\"a/b\"}", "id 'a/b'");
    expect_refusal("{\"id\":5}", "field id");
    expect_refusal("{\"command\":[],\"image\":\"\"}", "j1.0.2 has no command");
    expect_refusal("{\"command\":[\"\"]}", "j1.0.2 has no command");
    expect_refusal("{\"command\":[1]}", "command[0]");
    expect_refusal("{\"command\":\"x\"}", "field command");
    expect_refusal("{\"cpus\":\"0-\"}", "field cpus");
    expect_refusal("{\"ranks\":[],\"replace\":{\"max\":3}}", "no ranks, and parks no processes");
    expect_refusal("{\"ranks\":[{\"rank\":1},{\"rank\":1}]}", "rank 1 twice");
    expect_refusal("{\"ranks\":[{\"rank\":-1}]}", "field rank");
    expect_refusal("{\"env\":[{\"value\":\"1\"}]}", "env[0]");
    expect_refusal("{\"env\":[{\"key\":\"A=B\",\"value\":\"1\"}]}", "A=B");
    expect_refusal("{\"env\":[7]}", "env[0]");
    expect_refusal("{\"workdir\":\"rel\"}", "workdir 'rel'");
    expect_refusal("{\"stopGraceMs\":-1}", "stopGraceMs");
    expect_refusal("{\"stopGraceMs\":99999999999}", "stopGraceMs");
    expect_refusal("{\"memoryBytes\":-1}", "memoryBytes");
    struct hl_container_spec spec;
    json_t *list = json_array();
    assert_int_equal(spec_decode(list, &spec), HL_EINVAL);
    assert_int_equal(spec_decode(NULL, &spec), HL_EINVAL);
    json_decref(list);
}

TEST(an_image_may_bring_the_command)
{
    struct hl_container_spec spec;
    json_t *json = parse(full_spec);
    json_object_set_new(json, "command", json_array());
    assert_int_equal(spec_decode(json, &spec), HL_OK);
    assert_int_equal(spec.command_count, 0);
    json_decref(json);
    hl_container_spec_fini(&spec);
}

TEST(what_is_absent_has_the_schemas_default)
{
    struct hl_container_spec spec;
    json_t *json = parse("{\"id\":\"c\",\"command\":[\"x\"],\"ranks\":[{}]}");
    assert_int_equal(spec_decode(json, &spec), HL_OK);
    assert_string_equal(spec.cpus, "");
    assert_int_equal(spec.rank_count, 1);
    assert_int_equal(spec.ranks[0].rank, 0);
    json_decref(json);
    hl_container_spec_fini(&spec);
}

TEST(a_later_variable_wins)
{
    struct hl_container_spec spec;
    json_t *json = parse("{\"id\":\"c\",\"command\":[\"x\"],\"ranks\":[{}],\"env\":["
                         "{\"key\":\"A\",\"value\":\"1\"},{\"key\":\"A\",\"value\":\"2\"}]}");
    assert_int_equal(spec_decode(json, &spec), HL_OK);
    assert_int_equal(spec.env.count, 1);
    assert_string_equal(hl_env_get(&spec.env, "A"), "2");
    json_decref(json);
    hl_container_spec_fini(&spec);
}
