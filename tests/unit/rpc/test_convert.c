/* What arrives and what returns: everything passes through a real server. */
#include "support/test.h"

#include "unit/rpc/rig.h"

static const struct rig_answer answers[] = {
    {"readLog", "{\"data\": \"AAECAwT/\", \"offset\": -1, \"size\": 9223372036854775807, "
                "\"finished\": true}"},
    {"info", "{\"telemetry\": {\"load1\": 0.25, \"cpuBusyPercent\": 50}, \"node\": {\"name\": "
             "\"n\", \"agentAddress\": \"a\", \"incarnation\": \"1\", \"executor\": \"process\", "
             "\"slots\": "
             "[{\"numaId\": -3, \"gpus\": [{\"kind\": \"gpu\", \"memoryBytes\": 5}]}]}}"},
    {"listContainers", "{\"containers\": [{\"id\": \"a.1.0\", \"exitCode\": -2147483648, "
                       "\"ranks\": [{\"rank\": 2147483647}]}]}"},
    {"stopContainer", NULL},
    {NULL, NULL}};

static int setup(void **state)
{
    struct rig *r = malloc(sizeof(*r));
    rig_start(r, "127.0.0.1:0", "Agent", answers);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    rig_stop(*state);
    free(*state);
    return 0;
}

TEST(absent_members_arrive_as_defaults)
{
    struct rig *r = *state;
    assert_int_equal(rig_call(r, "startContainer", NULL, NULL), HL_OK);
    assert_json(r->seen,
                "{\"spec\": {\"id\": \"\", \"job\": \"\", \"attempt\": 0, \"index\": 0, "
                "\"numaId\": 0, \"cpus\": \"\", \"memoryBytes\": 0, \"image\": \"\", \"command\": "
                "[], \"workdir\": \"\", \"env\": [], \"ranks\": [], \"gpus\": [], \"stopGraceMs\": "
                "0, \"mounts\": [], \"rankTable\": \"\", \"venv\": \"\", \"conda\": \"\", "
                "\"python\": \"\", \"nics\": [], \"epoch\": 0}}");
    assert_int_equal(rig_call(r, "startContainer", "{\"spec\": {\"id\": null}}", NULL), HL_OK);
    assert_string_equal(json_string_value(json_object_get(json_object_get(r->seen, "spec"), "id")),
                        "");
}

TEST(nested_lists_and_structs_arrive_whole)
{
    struct rig *r = *state;
    assert_int_equal(
        rig_call(r, "startContainer",
                 "{\"spec\": {\"id\": \"j.1.0\", \"job\": \"j\", \"attempt\": 1, \"index\": 2, "
                 "\"numaId\": 1, \"cpus\": \"0-3\", \"memoryBytes\": 1099511627776, \"image\": "
                 "\"\xC3\xA4\", \"command\": [\"a\", \"\", \"b c\"], \"workdir\": \"/\", \"env\": "
                 "[{\"key\": \"K\", \"value\": \"V\"}], \"ranks\": [{\"rank\": 3, \"pp\": 1, "
                 "\"tp\": 1, \"dp\": 0, \"localRank\": 1, \"cp\": 0, \"env\": [{\"key\": \"R\", "
                 "\"value\": "
                 "\"3\"}]}], \"gpus\": [\"0000:01:00.0\"], \"stopGraceMs\": 5000, \"mounts\": [], "
                 "\"rankTable\": \"t\"}}",
                 NULL),
        HL_OK);
    assert_json(
        r->seen,
        "{\"spec\": {\"id\": \"j.1.0\", \"job\": \"j\", \"attempt\": 1, \"index\": 2, "
        "\"numaId\": 1, \"cpus\": \"0-3\", \"memoryBytes\": 1099511627776, \"image\": "
        "\"\xC3\xA4\", \"command\": [\"a\", \"\", \"b c\"], \"workdir\": \"/\", \"env\": "
        "[{\"key\": \"K\", \"value\": \"V\"}], \"ranks\": [{\"rank\": 3, \"pp\": 1, "
        "\"tp\": 1, \"dp\": 0, \"localRank\": 1, \"cp\": 0, \"env\": [{\"key\": \"R\", \"value\": "
        "\"3\"}]}], \"gpus\": [\"0000:01:00.0\"], \"stopGraceMs\": 5000, \"mounts\": [], "
        "\"rankTable\": \"t\", \"venv\": \"\", \"conda\": \"\", \"python\": \"\", "
        "\"nics\": [], \"epoch\": 0}}");
}

TEST(data_is_base64_and_results_carry_every_field)
{
    json_t *result = NULL;
    assert_int_equal(rig_call(*state, "readLog",
                              "{\"id\": \"a.1.0\", \"offset\": -5, \"maxBytes\": 4294967295}",
                              &result),
                     HL_OK);
    assert_json(result, "{\"data\": \"AAECAwT/\", \"offset\": -1, \"size\": 9223372036854775807, "
                        "\"finished\": true}");
    json_decref(result);
    assert_int_equal(rig_call(*state, "listContainers", "{}", &result), HL_OK);
    assert_json(
        result,
        "{\"containers\": [{\"id\": \"a.1.0\", \"state\": \"wanted\", \"exitCode\": -2147483648, "
        "\"signal\": 0, \"message\": \"\", \"binding\": \"\", \"startedMs\": 0, "
        "\"finishedMs\": 0, \"ranks\": [{\"rank\": 2147483647, \"pid\": 0, \"state\": "
        "\"wanted\", \"exitCode\": 0, \"signal\": 0, \"finishedMs\": 0, \"replaced\": 0, "
        "\"lostMs\": 0, "
        "\"lostCode\": 0, \"lostSignal\": 0}], \"warning\": \"\", \"stepsFile\": \"\", "
        "\"lost\": false}]}");
    json_decref(result);
    assert_int_equal(rig_call(*state, "stopContainer", "{\"id\": \"x\", \"graceMs\": 1}", &result),
                     HL_OK);
    assert_json(result, "{}");
    json_decref(result);
}

TEST(floats_take_integers_too)
{
    json_t *result = NULL;
    assert_int_equal(rig_call(*state, "info", NULL, &result), HL_OK);
    json_t *telemetry = json_object_get(result, "telemetry");
    assert_true(json_real_value(json_object_get(telemetry, "load1")) == 0.25);
    assert_true(json_real_value(json_object_get(telemetry, "cpuBusyPercent")) == 50.0);
    json_t *slot = json_array_get(json_object_get(json_object_get(result, "node"), "slots"), 0);
    assert_int_equal(json_integer_value(json_object_get(slot, "numaId")), -3);
    json_decref(result);
}

TEST(lists_of_100000_integers_pass_unchanged)
{
    struct rig r;
    rig_start(&r, "127.0.0.1:0", "L3", NULL);
    json_t *ids = json_array();
    char id[16];
    for (int i = 0; i < 100000; i++) {
        snprintf(id, sizeof(id), "%d", i);
        json_array_append_new(ids, json_string(id));
    }
    json_t *params = json_pack("{s: o, s: s}", "ids", ids, "cluster", "");
    assert_int_equal(rpc_json_call(r.peer, "free", params, RIG_PATIENCE_MS, NULL), HL_OK);
    assert_true(json_equal(ids, json_object_get(r.seen, "ids")));
    json_decref(params);
    json_t *crcs = json_array();
    for (json_int_t i = 0; i < 100000; i++)
        json_array_append_new(crcs, json_integer((i * 2654435761u) & 0xFFFFFFFF));
    json_t *answer = json_pack("{s: [{s: O}]}", "extents", "chunkCrcs", crcs);
    char *text = json_dumps(answer, 0);
    struct rig_answer big[] = {{"locate", text}, {NULL, NULL}};
    r.answers = big;
    json_t *result = NULL;
    assert_int_equal(rig_call(&r, "locate", NULL, &result), HL_OK);
    json_t *extent = json_array_get(json_object_get(result, "extents"), 0);
    assert_true(json_equal(json_object_get(extent, "chunkCrcs"), crcs));
    json_decref(result);
    json_decref(answer);
    json_decref(crcs);
    free(text);
    rig_stop(&r);
}

TESTS_IN(setup, teardown)
