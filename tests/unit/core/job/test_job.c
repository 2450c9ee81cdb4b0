#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/job.h"

/* Encodes the request as a position: the pointer's length as column, line 10 for keys, 20 for
 * values. */
static void where(const void *ctx, const char *pointer, bool of_key, int *line, int *column)
{
    (void)ctx;
    *line = of_key ? 10 : 20;
    *column = (int)strlen(pointer);
}

static const struct hl_job_source source = {.name = "job.yaml", .where = where};

static hl_status parse(const char *text, struct hl_job *job)
{
    json_error_t err;
    json_t *doc = json_loads(text, JSON_DECODE_ANY, &err);
    if (doc == NULL)
        fail_msg("%s in %s", err.text, text);
    hl_status st = hl_job_parse(doc, &source, job);
    json_decref(doc);
    return st;
}

static void is_bad(const char *text, const char *with)
{
    struct hl_job job = {0};
    assert_int_equal(parse(text, &job), HL_EINVAL);
    if (strstr(hl_error_text(), with) == NULL)
        fail_msg("'%s' should hold '%s'", hl_error_text(), with);
    assert_null(job.name);
}

static const char spec_job[] =
    "{\"jobName\": \"gpt3-175b-training\", \"model\": {\"name\": \"gpt3\", \"size\": \"175B\"},"
    " \"dataset\": {\"path\": \"/path/to/my/dataset\"}, \"parallelism\": {"
    "\"pipeline_parallel_size\": 8, \"tensor_parallel_size\": 8, \"data_parallel_size\": 16},"
    " \"dockerImage\": \"registry.my-company.com/megatron-lm:latest\"}";

TEST(the_specs_job_is_accepted_unchanged)
{
    struct hl_job job;
    assert_int_equal(parse(spec_job, &job), HL_OK);
    assert_string_equal(job.name, "gpt3-175b-training");
    assert_string_equal(job.model, "gpt3");
    assert_string_equal(job.model_size, "175B");
    assert_int_equal(job.model_version, -1);
    assert_string_equal(job.dataset, "/path/to/my/dataset");
    assert_int_equal(job.grid.pp, 8);
    assert_int_equal(job.grid.tp, 8);
    assert_int_equal(job.grid.dp, 16);
    assert_int_equal(hl_rank_world(&job.grid), 1024);
    assert_string_equal(job.image, "registry.my-company.com/megatron-lm:latest");
    assert_int_equal(job.command_count, 0);
    assert_int_equal(job.start_timeout_ms, -1);
    hl_job_fini(&job);
}

TEST(no_spares_are_the_default_and_may_be_said)
{
    struct hl_job job;
    assert_int_equal(
        parse("{\"jobName\": \"x\", \"command\": \"y\", \"spares\": 0, \"spareSlots\": 0}", &job),
        HL_OK);
    assert_int_equal(job.spares, 0);
    assert_int_equal(job.spare_slots, 0);
    hl_job_fini(&job);
    is_bad("{\"spares\": -1}", "spares: is -1, must be from 0 to 16");
}

static const char full_job[] =
    "{\"jobName\": \"a.b-1\", \"model\": {\"name\": \"Llama-3\", \"version\": 4},"
    " \"parallelism\": {\"pipeline_parallel_size\": 2, \"tensor_parallel_size\": 2,"
    "   \"order\": \"tp-pp-dp\", \"virtual_pipeline_parallel_size\": 2},"
    " \"command\": [\"python3\", \"train.py\", 8, true, \"\"], \"workdir\": \"/srv/x\","
    " \"env\": {\"LR\": \"1e-3\", \"STEPS\": 20, \"FAST\": true},"
    " \"mounts\": [\"/data:/data:ro\", \"/out:/out\"],"
    " \"resources\": {\"ranks_per_slot\": 2, \"gpus_per_rank\": 0, \"cpus_per_rank\": 3,"
    "   \"memory\": \"4GiB\"},"
    " \"restarts\": 2, \"timeouts\": {\"start\": \"90s\", \"run\": \"2h\"}, \"stopGrace\": \"3s\","
    " \"nodeLostAfter\": \"20s\", \"onNodeLost\": \"fail\", \"spares\": 2, \"spareSlots\": 3,"
    " \"recovery\": {\"mode\": \"replace\", \"replacements\": 25, \"stableAfter\": \"5m\","
    "   \"backoff\": \"2s\", \"backoffMax\": \"90s\","
    "   \"onHang\": \"name\", \"onSlow\": \"end\"},"
    " \"checkpoint\": {\"every\": 50}, \"rankTable\": \"1.2\", \"queue\": \"dev\","
    " \"onFailure\": {\"memory\": \"fail\", \"42\": \"ignore\"}, \"priority\": -7}";

TEST(every_key_lands_in_its_field)
{
    struct hl_job job;
    assert_int_equal(parse(full_job, &job), HL_OK);
    assert_int_equal(job.model_version, 4);
    assert_int_equal(job.grid.order, HL_ORDER_TP_PP_DP);
    assert_int_equal(job.grid.dp, 1);
    assert_int_equal(job.virtual_stages, 2);
    assert_int_equal(job.command_count, 5);
    assert_string_equal(job.command[2], "8");
    assert_string_equal(job.command[3], "true");
    assert_string_equal(job.command[4], "");
    assert_string_equal(job.workdir, "/srv/x");
    assert_int_equal(job.env_count, 3);
    assert_string_equal(job.env[1].name, "STEPS");
    assert_string_equal(job.env[1].value, "20");
    assert_int_equal(job.mount_count, 2);
    assert_int_equal(job.ranks_per_slot, 2);
    assert_int_equal(job.gpus_per_rank, 0);
    assert_int_equal(job.cpus_per_rank, 3);
    assert_int_equal(job.memory_bytes, 4ull << 30);
    assert_int_equal(job.restarts, 2);
    assert_int_equal(job.backoff_ms, 2000);
    assert_int_equal(job.backoff_max_ms, 90000);
    assert_int_equal(job.on_failure.kind[HL_API_FAILURE_KIND_MEMORY], HL_FAILURE_FAIL);
    assert_int_equal(job.on_failure.code[42], HL_FAILURE_IGNORE);
    assert_int_equal(job.start_timeout_ms, 90000);
    assert_int_equal(job.run_timeout_ms, 7200000);
    assert_int_equal(job.stop_grace_ms, 3000);
    assert_int_equal(job.checkpoint_every, 50);
    assert_string_equal(job.rank_table, "1.2");
    assert_string_equal(job.queue, "dev");
    assert_int_equal(job.priority, -7);
    assert_int_equal(job.node_lost_ms, 20000);
    assert_false(hl_job_restarts_lost(&job)); /* in spite of its restarts */
    assert_true(hl_job_replaces(&job));
    assert_int_equal(job.replacements, 25);
    assert_int_equal(job.stable_ms, 300000);
    assert_int_equal(job.spares, 2);
    assert_int_equal(job.spare_slots, 3);
    assert_false(hl_job_ends_hung(&job));
    assert_true(hl_job_ends_slow(&job));
    hl_job_fini(&job);
}

TEST(a_job_that_replaces_ranks_and_may_be_restarted_waits_less_for_a_silent_node)
{
    static const struct {
        const char *keys;
        int64_t ms; /* -1 = the Controller's */
    } cases[] = {
        {"\"restarts\": 1", -1},
        {"\"recovery\": {\"mode\": \"replace\"}", -1}, /* the loss would be its end */
        {"\"restarts\": 1, \"recovery\": {\"mode\": \"replace\"}", HL_JOB_REPLACE_LOST_MS},
        {"\"restarts\": 1, \"onNodeLost\": \"fail\", \"recovery\": {\"mode\": \"replace\"}", -1},
        {"\"restarts\": 1, \"nodeLostAfter\": \"3m\", \"recovery\": {\"mode\": \"replace\"}",
         180000},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct hl_job job;
        char text[256];
        snprintf(text, sizeof(text), "{\"jobName\": \"x\", \"command\": \"true\", %s}",
                 cases[i].keys);
        assert_int_equal(parse(text, &job), HL_OK);
        assert_int_equal(job.node_lost_ms, cases[i].ms);
        hl_job_fini(&job);
    }
}

TEST(a_hung_rank_is_ended_where_it_is_replaced_and_a_slow_one_is_named)
{
    static const struct {
        const char *recovery;
        bool hung, slow;
    } cases[] = {
        {"{}", false, false},
        {"{\"mode\": \"replace\"}", true, false},
        {"{\"mode\": \"replace\", \"onHang\": \"name\"}", false, false},
        {"{\"mode\": \"restart\", \"onHang\": \"end\"}", true, false},
        {"{\"onSlow\": \"end\"}", false, true},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
        struct hl_job job;
        char text[256];
        snprintf(text, sizeof(text),
                 "{\"jobName\": \"x\", \"command\": \"true\", \"recovery\": %s}",
                 cases[i].recovery);
        assert_int_equal(parse(text, &job), HL_OK);
        assert_int_equal(hl_job_ends_hung(&job), cases[i].hung);
        assert_int_equal(hl_job_ends_slow(&job), cases[i].slow);
        hl_job_fini(&job);
    }
}

TEST(a_lost_node_restarts_a_job_that_may_be_restarted)
{

    static const struct {
        const char *text;
        bool restarts;
    } rows[] = {
        {"{\"jobName\": \"x\", \"command\": \"y\"}", false},
        {"{\"jobName\": \"x\", \"command\": \"y\", \"restarts\": 1}", true},
        {"{\"jobName\": \"x\", \"command\": \"y\", \"onNodeLost\": \"restart\"}", true},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_job job;
        assert_int_equal(parse(rows[i].text, &job), HL_OK);
        assert_int_equal(hl_job_restarts_lost(&job), rows[i].restarts);
        assert_int_equal(job.node_lost_ms, -1);
        hl_job_fini(&job);
    }
}

TEST(an_exported_variable_wins_over_the_file_when_it_is_named)
{
    struct hl_job job;
    assert_int_equal(parse(full_job, &job), HL_OK); /* LR, STEPS, FAST */
    assert_int_equal(hl_job_export(&job, "LR", "of ALL", HL_JOB_VAR_ALL), HL_OK);
    assert_string_equal(job.env[0].value, "1e-3");
    assert_false(job.env[0].exported);
    assert_int_equal(hl_job_export(&job, "LR", "named", HL_JOB_VAR_EXPORT), HL_OK);
    assert_string_equal(job.env[0].value, "named");
    assert_true(job.env[0].exported);
    assert_int_equal(hl_job_export(&job, "NEW", "", HL_JOB_VAR_ALL), HL_OK);
    assert_int_equal(job.env_count, 4);
    assert_string_equal(job.env[3].name, "NEW");
    assert_true(job.env[3].exported);

    static const struct {
        const char *name;
        enum hl_job_var_origin refused_from;
    } rows[] = {
        {"1X", HL_JOB_VAR_ANY},
        {"", HL_JOB_VAR_ANY},
        {"BASH_FUNC_x%%", HL_JOB_VAR_ANY},
        {"WORLD_SIZE", HL_JOB_VAR_FILE},
        {"MASTER_PORT", HL_JOB_VAR_FILE},
        {"HELIOS_JOB", HL_JOB_VAR_FILE},
        {"HELIOS_X", HL_JOB_VAR_EXPORT},
        {"RANK_TABLE_FILE", HL_JOB_VAR_EXPORT},
        {"PWD", HL_JOB_VAR_ALL},
        {"CUDA_VISIBLE_DEVICES", HL_JOB_VAR_ALL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int from = HL_JOB_VAR_ANY; from <= HL_JOB_VAR_ALL; from++) {
            int refused = hl_job_var_problem(rows[i].name, (enum hl_job_var_origin)from) != NULL;
            assert_int_equal(refused, from >= (int)rows[i].refused_from);
        }
    assert_int_equal(hl_job_export(&job, "HELIOS_X", "1", HL_JOB_VAR_EXPORT), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "HELIOS_X"));
    hl_job_fini(&job);
}

TEST(relative_paths_are_meant_from_where_the_job_is_submitted)
{
    struct hl_job job;
    assert_int_equal(parse("{\"jobName\": \"x\", \"command\": \"y\", \"venv\": \"v/w\"}", &job),
                     HL_OK);
    assert_int_equal(hl_job_resolve(&job, ""), HL_OK); /* the directory is not known */
    assert_string_equal(job.venv, "v/w");
    assert_int_equal(hl_job_resolve(&job, "/home/me"), HL_OK);
    assert_string_equal(job.venv, "/home/me/v/w");
    assert_string_equal(job.workdir, "/home/me");
    assert_string_equal(job.python, "");
    hl_job_fini(&job);
    assert_int_equal(parse("{\"jobName\": \"x\", \"command\": \"y\", \"conda\": \"train\","
                           " \"workdir\": \"/w\"}",
                           &job),
                     HL_OK);
    assert_int_equal(hl_job_resolve(&job, "/home/me"), HL_OK);
    assert_string_equal(job.conda, "train"); /* a name */
    free(job.venv);
    job.venv = strdup("v");
    assert_int_equal(hl_job_resolve(&job, "/home/a:b"), HL_EINVAL); /* it could not be in PATH */
    assert_string_equal(job.workdir, "/w");
    hl_job_fini(&job);
}

TEST(a_job_written_out_reads_back_the_same)
{
    const char *const texts[] = {spec_job, full_job, "{\"jobName\": \"x\", \"command\": \"true\"}"};
    for (size_t i = 0; i < 3; i++) {
        struct hl_job a, b;
        assert_int_equal(parse(texts[i], &a), HL_OK);
        json_t *one = hl_job_to_json(&a);
        assert_non_null(one);
        assert_int_equal(hl_job_parse(one, NULL, &b), HL_OK);
        json_t *two = hl_job_to_json(&b);
        assert_true(json_equal(one, two));
        assert_int_equal(a.env_count, b.env_count);
        assert_int_equal(a.start_timeout_ms, b.start_timeout_ms);
        assert_int_equal(a.memory_bytes, b.memory_bytes);
        assert_int_equal(a.checkpoint_every, b.checkpoint_every);
        assert_string_equal(a.rank_table, b.rank_table);
        assert_int_equal(a.node_lost_ms, b.node_lost_ms);
        assert_string_equal(a.on_node_lost, b.on_node_lost);
        assert_string_equal(a.recovery, b.recovery);
        assert_int_equal(a.replacements, b.replacements);
        assert_int_equal(a.stable_ms, b.stable_ms);
        assert_string_equal(a.on_hang, b.on_hang);
        assert_string_equal(a.on_slow, b.on_slow);
        assert_int_equal(a.spares, b.spares);
        assert_int_equal(a.spare_slots, b.spare_slots);
        json_decref(one);
        json_decref(two);
        hl_job_fini(&a);
        hl_job_fini(&b);
    }
}

/* As stored by the first releases. */
static const char stored_spec[] =
    "{\"jobName\": \"a.b-1\", \"model\": {\"name\": \"Llama-3\", \"size\": \"8B\", \"version\": 4},"
    " \"dataset\": {\"path\": \"/data\"}, \"parallelism\": {\"pipeline_parallel_size\": 2,"
    "   \"tensor_parallel_size\": 2, \"data_parallel_size\": 1, \"order\": \"tp-pp-dp\","
    "   \"virtual_pipeline_parallel_size\": 2},"
    " \"dockerImage\": \"img\", \"command\": [\"python3\", \"\"], \"workdir\": \"/srv/x\","
    " \"venv\": \"/venv\", \"env\": {\"LR\": \"1e-3\", \"EMPTY\": \"\"},"
    " \"mounts\": [\"/data:/data:ro\"], \"resources\": {\"ranks_per_slot\": 2,"
    "   \"gpus_per_rank\": 0, \"cpus_per_rank\": 3, \"memory\": 4294967296},"
    " \"restarts\": 2, \"nodeLostAfter\": \"20000ms\", \"onNodeLost\": \"fail\","
    " \"timeouts\": {\"start\": \"90000ms\", \"run\": \"7200000ms\"}, \"stopGrace\": \"0ms\","
    " \"checkpoint\": {\"every\": 50}, \"rankTable\": \"1.2\"}";
static const char stored_queued[] =
    "{\"jobName\": \"x\", \"parallelism\": {\"pipeline_parallel_size\": 1,"
    "   \"tensor_parallel_size\": 1, \"data_parallel_size\": 1, \"order\": \"tp-dp-pp\"},"
    " \"command\": [\"true\"], \"queue\": \"dev\", \"priority\": -7}";
static const char stored_least[] =
    "{\"jobName\": \"x\", \"parallelism\": {\"pipeline_parallel_size\": 1,"
    "   \"tensor_parallel_size\": 1, \"data_parallel_size\": 1, \"order\": \"tp-dp-pp\"},"
    " \"command\": [\"true\"]}";

TEST(a_stored_job_is_read_and_written_as_it_was)
{
    const char *const texts[] = {stored_spec, stored_queued, stored_least};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        struct hl_job job;
        json_t *record = json_loads(texts[i], 0, NULL);
        assert_int_equal(hl_job_parse(record, NULL, &job), HL_OK);
        json_t *back = hl_job_to_json(&job);
        if (!json_equal(record, back))
            fail_msg("%s", json_dumps(back, 0));
        json_decref(record);
        json_decref(back);
        hl_job_fini(&job);
    }
}

/* JSON types that a key of a job file can have. */
enum takes { TEXT = 1, WHOLE = 2, LIST = 4, OBJECT = 8 };

static const struct {
    const char *section, *key;
    int takes;
} keys[] = {
    {"", "jobName", TEXT},
    {"model", "name", TEXT},
    {"model", "size", TEXT},
    {"model", "version", WHOLE},
    {"dataset", "path", TEXT},
    {"parallelism", "pipeline_parallel_size", WHOLE},
    {"parallelism", "tensor_parallel_size", WHOLE},
    {"parallelism", "data_parallel_size", WHOLE},
    {"parallelism", "order", TEXT},
    {"parallelism", "virtual_pipeline_parallel_size", WHOLE},
    {"", "dockerImage", TEXT},
    {"", "command", TEXT | LIST},
    {"", "workdir", TEXT},
    {"", "venv", TEXT},
    {"", "conda", TEXT},
    {"", "python", TEXT},
    {"", "env", OBJECT},
    {"", "mounts", LIST},
    {"resources", "ranks_per_slot", WHOLE},
    {"resources", "gpus_per_rank", WHOLE},
    {"resources", "cpus_per_rank", WHOLE},
    {"resources", "memory", TEXT | WHOLE},
    {"", "restarts", WHOLE},
    {"", "nodeLostAfter", TEXT},
    {"", "onNodeLost", TEXT},
    {"timeouts", "start", TEXT},
    {"timeouts", "run", TEXT},
    {"", "stopGrace", TEXT},
    {"checkpoint", "every", WHOLE},
    {"", "rankTable", TEXT},
    {"", "queue", TEXT},
    {"", "priority", WHOLE},
    {"recovery", "mode", TEXT},
    {"recovery", "replacements", WHOLE},
    {"recovery", "stableAfter", TEXT},
    {"recovery", "backoff", TEXT},
    {"recovery", "backoffMax", TEXT},
    {"", "onFailure", OBJECT},
    {"recovery", "onHang", TEXT},
    {"recovery", "onSlow", TEXT},
    {"", "spares", WHOLE},
    {"", "recovery", OBJECT},
    {"", "model", OBJECT},
    {"", "dataset", OBJECT},
    {"", "parallelism", OBJECT},
    {"", "resources", OBJECT},
    {"", "timeouts", OBJECT},
    {"", "checkpoint", OBJECT},
};

TEST(a_value_of_another_type_is_an_error_with_its_key)
{

    static const struct {
        const char *text;
        int is;
    } values[] = {{"\"x\"", TEXT},
                  {"1", WHOLE},
                  {"1.5", 0},
                  {"true", 0},
                  {"null", 0},
                  {"[1.5]", LIST},
                  {"{\"A\": null}", OBJECT}};

    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        for (size_t k = 0; k < HL_ARRAY_LEN(values); k++) {
            char text[256], name[128];
            const char *section = keys[i].section;
            if ((keys[i].takes & values[k].is) != 0)
                continue;
            snprintf(text, sizeof(text),
                     *section != '\0' ? "{\"%s\": {\"%s\": %s}}" : "{%s\"%s\": %s}", section,
                     keys[i].key, values[k].text);
            snprintf(name, sizeof(name), "%s%s%s: ", section, *section != '\0' ? "." : "",
                     keys[i].key);
            is_bad(text, name);
        }
}

TEST(a_command_in_one_text_is_run_by_the_shell)
{
    struct hl_job job;
    assert_int_equal(parse("{\"jobName\": \"x\", \"command\": \"echo $RANK\"}", &job), HL_OK);
    assert_int_equal(job.command_count, 3);
    assert_string_equal(job.command[0], "/bin/sh");
    assert_string_equal(job.command[1], "-c");
    assert_string_equal(job.command[2], "echo $RANK");
    assert_string_equal(job.model, "");
    hl_job_fini(&job);
}

TEST(unknown_keys_are_told_with_place_and_guess)
{
    is_bad("{\"jobname\": \"x\"}",
           "job.yaml:10:8: 'jobname' is not a key of a job; did you mean 'jobName'?");
    is_bad("{\"paralelism\": {}}", "did you mean 'parallelism'?");
    is_bad("{\"parallelism\": {\"tensor_paralel_size\": 2}}",
           "job.yaml:10:32: 'tensor_paralel_size' is not a key of parallelism; did you mean "
           "'tensor_parallel_size'?");
    is_bad("{\"parallelism\": {\"tensorParallelSize\": 2}}",
           "did you mean 'tensor_parallel_size'?");
    is_bad("{\"resources\": {\"bananas\": 2}}", "these are: ranks_per_slot, gpus_per_rank, ");
    is_bad("{\"model.name\": \"x\"}", "'model.name' is not a key of a job");
    is_bad("{\"a/b\": 1}", "job.yaml:10:5: 'a/b' is not a key");
    is_bad("{\"\": 1}", "'' is not a key");
}

TEST(wrong_values_are_told_with_field_and_what_is_allowed)
{
    is_bad("[]", "job.yaml:20:0: a job is written as KEY: VALUE lines");
    is_bad("{\"command\": \"x\"}", "jobName is missing");
    is_bad("{\"jobName\": \"x\"}", "give command or dockerImage");
    is_bad("{\"jobName\": 7}", "job.yaml:20:8: jobName: must be a text; put it in quotes");
    is_bad("{\"jobName\": null}", "jobName: has no value");
    is_bad("{\"jobName\": \"Big\"}", "jobName: 'Big' must begin with a lower-case letter");
    is_bad("{\"jobName\": \"-x\"}", "must begin with");
    is_bad("{\"jobName\": \"a b\"}", "must begin with");
    is_bad("{\"jobName\": "
           "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}",
           "has 64 characters, at most 63");
    is_bad("{\"model\": \"gpt3\"}", "model: must be KEY: VALUE lines");
    is_bad("{\"model\": {\"name\": \"a/b\"}}", "model.name: ");
    is_bad("{\"model\": {\"name\": \"a@3\"}}", "the version is model.version");
    is_bad("{\"model\": {\"version\": -1}}", "model.version: is -1, must be at least 0");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"model\": {\"version\": 1}}",
           "model.name is missing");
    is_bad("{\"parallelism\": {\"tensor_parallel_size\": 0}}",
           "parallelism.tensor_parallel_size: is 0, must be from 1 to 1000000");
    is_bad("{\"parallelism\": {\"tensor_parallel_size\": \"2\"}}", "must be a whole number");
    is_bad("{\"parallelism\": {\"tensor_parallel_size\": 2.5}}", "must be a whole number");
    is_bad("{\"parallelism\": {\"order\": \"pp-first\"}}", "'pp-first' is neither");
    is_bad("{\"dockerImage\": \"a b\"}", "must not hold blanks");
    is_bad("{\"dockerImage\": \"--privileged\"}", "must not begin with -");
    is_bad("{\"command\": []}", "command: must not be empty");
    is_bad("{\"command\": [\"\"]}", "command[0]: names no program");
    is_bad("{\"command\": [\"a\", 1.5]}", "job.yaml:20:10: command[1]: put the number in quotes");
    is_bad("{\"command\": [\"a\", [1]]}", "command[1]: must be a text");
    is_bad("{\"command\": {}}", "must be a list of arguments");
    is_bad("{\"workdir\": \"\"}", "workdir: must not be empty");
    is_bad("{\"env\": [\"A=1\"]}", "env: must be NAME: VALUE lines");
    is_bad("{\"env\": {\"RANK\": 1}}", "job.yaml:10:9: env.RANK: is set by Helios");
    is_bad("{\"env\": {\"A-B\": 1}}", "is not a name of a variable");
    is_bad("{\"env\": {\"1A\": 1}}", "is not a name of a variable");
    is_bad("{\"env\": {\"A\": null}}", "env.A: must be a text");
    is_bad("{\"mounts\": [\"data:/data\"]}", "mounts[0]: 'data:/data' must be /HOST/PATH");
    is_bad("{\"mounts\": [\"/a:b\"]}", "mounts[0]: ");
    is_bad("{\"mounts\": [\"/a:/b:rx\"]}", "mounts[0]: ");
    is_bad("{\"mounts\": \"/a:/b\"}", "mounts: must be a list");
    is_bad("{\"resources\": {\"memory\": \"lots\"}}", "resources.memory: must be a size");
    is_bad("{\"resources\": {\"memory\": 12}}", "must be at least 1MiB");
    is_bad("{\"resources\": {\"memory\": -12}}", "must be a size");
    is_bad("{\"stopGrace\": 10}", "stopGrace: must be a duration with its unit");
    is_bad("{\"stopGrace\": \"10\"}", "must be a duration with its unit");
    is_bad("{\"stopGrace\": \"40h\"}", "must be from 0ms to 24h");
    is_bad("{\"recovery\": \"replace\"}", "recovery: must be KEY: VALUE lines");
    is_bad("{\"recovery\": {\"mode\": 1}}", "recovery.mode: must be a text");
    is_bad("{\"recovery\": {\"stableAfter\": 60}}", "must be a duration with its unit");
    is_bad("{\"spares\": \"2\"}", "spares: must be a whole number");
    is_bad("{\"recovery\": {\"mode\": \"again\"}}", "'again' is neither restart nor replace");
    is_bad("{\"recovery\": {\"onHang\": \"kill\"}}", "'kill' is neither end nor name");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"spares\": 1}",
           "spares: has an effect with recovery: {mode: replace} only");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"spareSlots\": 1}",
           "spareSlots: has an effect with recovery: {mode: replace} only");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"recovery\": {\"replacements\": 3}}",
           "recovery.replacements: has an effect with recovery: {mode: replace} only");
    is_bad("{\"restarts\": 5000}", "restarts: is 5000, must be from 0 to 1000");
    is_bad("{\"priority\": -1001}", "priority: is -1001, must be from -1000 to 1000");
    is_bad("{\"queue\": \"Dev\"}", "queue: 'Dev' must begin with a lower-case letter");
}

#define MEMORY_WITHOUT_GPUS                                                                        \
    "{\"jobName\": \"x\", \"command\": \"x\", \"resources\":"                                      \
    " {\"gpu_memory\": \"32GiB\", \"gpus_per_rank\": 0}}"

TEST(memory_of_gpus_needs_ranks_that_have_gpus)
{
    is_bad(MEMORY_WITHOUT_GPUS, "resources.gpu_memory: only has an effect where ranks have GPUs");
}

TEST(a_stored_job_with_memory_of_no_gpus_stays_readable)
{
    struct hl_job job;
    json_t *doc = json_loads(MEMORY_WITHOUT_GPUS, 0, NULL);
    assert_int_equal(hl_job_parse(doc, NULL, &job), HL_OK);
    assert_int_equal(job.gpus_per_rank, 0);
    assert_int_equal(job.gpu_memory_bytes, (uint64_t)32 << 30);
    hl_job_fini(&job);
    json_decref(doc);
}

TEST(what_is_said_of_failures_has_to_have_an_effect)
{
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"recovery\": {\"stableAfter\": \"5m\"}}",
           "recovery: has an effect with restarts, or with recovery: {mode: replace}");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"restarts\": 1,"
           " \"recovery\": {\"backoff\": \"2m\"}}",
           "recovery.backoff: is more than recovery.backoffMax, by default 60s");
    is_bad("{\"onFailure\": \"fail\"}", "onFailure: must be lines of KIND or EXIT CODE");
    is_bad("{\"onFailure\": {}}", "onFailure: must be lines of KIND or EXIT CODE");
    is_bad("{\"onFailure\": {\"crash\": \"fail\"}}", "onFailure: 'crash' is neither");
    is_bad("{\"onFailure\": {\"exit\": \"retry\"}}", "'retry' is not one of fail, count, ignore");
    is_bad("{\"onFailure\": {\"lost\": \"fail\"}}", "onNodeLost decides about lost nodes");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"onFailure\": {\"exit\": \"fail\"}}",
           "onFailure: has an effect where something is tried again");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"restarts\": 1,"
           " \"onFailure\": {\"stall\": \"fail\"}}",
           "onFailure.stall: only has an effect with recovery: {onHang: end}");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"recovery\": {\"mode\": \"replace\"},"
           " \"onFailure\": {\"stall\": \"fail\"}}",
           "onFailure.stall: a rank that hangs is replaced");
}

TEST(a_world_too_large_is_refused_without_overflow)
{
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"parallelism\": {\"pipeline_parallel_size\": "
           "1000000, \"tensor_parallel_size\": 1000000, \"data_parallel_size\": 1000000}}",
           "1000000 × 1000000 × 1000000 ranks are more than 1000000");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"rankTable\": \"v3\"}",
           "rankTable: 'v3' is not one of v1, v2, \"1.2\"");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"rankTable\": 1.2}", "put it in quotes");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"parallelism\": {"
           "\"tensor_parallel_size\": 1000, \"data_parallel_size\": 1001}}",
           "1 × 1000 × 1001 ranks are more than");
    is_bad("{\"jobName\": \"x\", \"command\": \"x\", \"parallelism\": {"
           "\"virtual_pipeline_parallel_size\": 2}}",
           "needs pipeline_parallel_size of at least 2");
}

#define EXPERTS(sizes) "{\"jobName\": \"x\", \"command\": \"x\", \"parallelism\": {" sizes "}}"

TEST(experts_are_shared_out_among_the_ranks_of_a_stage)
{
    struct hl_job job;
    assert_int_equal(parse(EXPERTS("\"tensor_parallel_size\": 2, \"data_parallel_size\": 4,"
                                   "\"expert_model_parallel_size\": 4,"
                                   "\"expert_tensor_parallel_size\": 1"),
                           &job),
                     HL_OK);
    assert_int_equal(job.ep, 4);
    assert_int_equal(job.etp, 1);
    hl_job_fini(&job);
    assert_int_equal(parse(EXPERTS("\"tensor_parallel_size\": 2"), &job), HL_OK);
    assert_int_equal(job.ep, 1);
    assert_int_equal(job.etp, 2);
    hl_job_fini(&job);
    is_bad(EXPERTS("\"tensor_parallel_size\": 4, \"expert_tensor_parallel_size\": 3"),
           "3 is not a divisor of tensor_parallel_size 4");
    is_bad(EXPERTS("\"tensor_parallel_size\": 2, \"data_parallel_size\": 2,"
                   "\"expert_model_parallel_size\": 4"),
           "4 times expert_tensor_parallel_size 2 does not divide the 4 ranks of a stage");
    is_bad(EXPERTS("\"tensor_parallel_size\": 2, \"pipeline_parallel_size\": 2,"
                   "\"data_parallel_size\": 2, \"order\": \"tp-pp-dp\","
                   "\"expert_model_parallel_size\": 2"),
           "or use the order tp-dp-pp");
}

TEST(rules_of_placement_are_a_level_and_a_word)
{
    struct hl_job job;
    assert_int_equal(parse("{\"jobName\": \"x\", \"command\": [\"x\"], \"placement\":"
                           " {\"tensor\": \"server required\", \"gang\": \"leaf preferred\"},"
                           " \"resources\": {\"gpu_memory\": \"32GiB\","
                           " \"nic_class\": \"ConnectX-5\"}}",
                           &job),
                     HL_OK);
    assert_int_equal(job.placement.tensor.level, HL_LEVEL_SERVER);
    assert_true(job.placement.tensor.required);
    assert_int_equal(job.placement.gang.level, HL_LEVEL_LEAF);
    assert_false(job.placement.gang.required);
    assert_int_equal(job.placement.data.level, HL_LEVEL_ANY);
    assert_int_equal(job.gpu_memory_bytes, (uint64_t)32 << 30);
    assert_int_equal(job.nic_class, HL_NIC_CX5);
    hl_job_fini(&job);
    is_bad("{\"placement\": {\"gang\": \"leaf\"}}", "placement.gang: 'leaf' must be a level");
    is_bad("{\"placement\": {\"gang\": \"rack required\"}}", "'rack required' must be a level");
    is_bad("{\"placement\": {\"gang\": \"leaf required x\"}}", "must be a level");
    is_bad("{\"resources\": {\"nic_class\": \"cx5\"}}", "not one of ConnectX-3 to");
}

/* Megatron's RankGenerator for experts: etp varies fastest, then ep, within a stage. */
TEST(a_rank_has_the_experts_that_megatron_gives_it)
{
    const struct hl_grid g = {.pp = 2, .tp = 2, .dp = 4, .order = HL_ORDER_TP_DP_PP};
    /* TP 2, DP 4, EP 4: ranks 0..7 of a stage; at ETP 2 in pairs, at ETP 1 one by one. */
    static const int pairs[8] = {0, 0, 1, 1, 2, 2, 3, 3}, single[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    for (int i = 0; i < 16; i++) {
        struct hl_rank r = hl_rank_of(&g, i);
        assert_int_equal(hl_rank_expert(&g, r, 4, 2), pairs[i % 8]);
        assert_int_equal(hl_rank_expert(&g, r, 4, 1), single[i % 8]);
        assert_int_equal(hl_rank_expert(&g, r, 1, 2), 0);
    }
}

TEST(ranks_count_in_the_chosen_order)
{
    /* TP 2, PP 2, DP 3; written out by hand for (pp 1, tp 0, dp 2). */
    struct hl_grid g = {.pp = 2, .tp = 2, .dp = 3, .order = HL_ORDER_TP_DP_PP};
    assert_int_equal(hl_rank_number(&g, (struct hl_rank){.pp = 1, .tp = 0, .dp = 2}), 10);
    g.order = HL_ORDER_TP_PP_DP;
    assert_int_equal(hl_rank_number(&g, (struct hl_rank){.pp = 1, .tp = 0, .dp = 2}), 10);
    assert_int_equal(hl_rank_number(&g, (struct hl_rank){.pp = 0, .tp = 1, .dp = 2}), 9);
    for (int o = 0; o < 2; o++) {
        g.order = o ? HL_ORDER_TP_PP_DP : HL_ORDER_TP_DP_PP;
        for (int i = 0; i < 12; i++)
            assert_int_equal(hl_rank_number(&g, hl_rank_of(&g, i)), i);
    }
}

TEST(the_section_of_kubernetes_is_kept_and_its_faults_have_a_place)
{
    static const struct hl_podspec_rules rules = {.device = "d", .host_paths = "/data"};
    static const struct hl_job_source kube = {
        .name = "job.yaml", .where = where, .executor = HL_JOB_EXECUTOR_KUBERNETES, .pods = &rules};
    static const struct hl_job_source agents = {.executor = HL_JOB_EXECUTOR_PROCESS};
    json_t *doc = json_pack("{s:s s:s s:{s:s}}", "jobName", "j", "dockerImage", "i", "kubernetes",
                            "queue", "q");
    struct hl_job job, again;
    assert_int_equal(hl_job_parse(doc, &kube, &job), HL_OK);
    json_t *stored = hl_job_to_json(&job);
    assert_int_equal(hl_job_parse(stored, NULL, &again), HL_OK);
    assert_true(json_equal(again.kubernetes, json_object_get(doc, "kubernetes")));
    hl_job_fini(&again);
    hl_job_fini(&job);
    json_decref(stored);

    json_object_del(doc, "dockerImage");
    json_object_set_new(doc, "command", json_string("x"));
    assert_int_equal(hl_job_parse(doc, &agents, &job), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "only Kubernetes has pods"));

    json_object_set_new(doc, "kubernetes", json_pack("{s:s}", "que", "q"));
    assert_int_equal(hl_job_parse(doc, &kube, &job), HL_EINVAL);
    assert_non_null(
        strstr(hl_error_text(), "job.yaml:10:15: kubernetes.que: 'que' is not accepted"));

    json_object_del(doc, "kubernetes");
    json_object_set_new(doc, "dockerImage", json_string("i"));
    json_object_set_new(doc, "mounts", json_pack("[ss]", "/data/a:/a", "/etc:/b:ro"));
    assert_int_equal(hl_job_parse(doc, &kube, &job), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "mounts[1]: '/etc' is in no directory that pods may "));
    json_decref(doc);
}
