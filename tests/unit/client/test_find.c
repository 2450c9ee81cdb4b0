/* Which Controller a process calls if none was named, and the split that a caller gives. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client_private.h"

static char state_dir[64], conf_file[96], cluster_file[96];

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(state_dir, sizeof(state_dir), "/tmp/helios-test-find-%d-XXXXXX", (int)getpid());
    if (mkdtemp(state_dir) == NULL)
        return -1;
    snprintf(conf_file, sizeof(conf_file), "%s/helios.yaml", state_dir);
    snprintf(cluster_file, sizeof(cluster_file), "%s/cluster.json", state_dir);
    write_file(conf_file, "");
    setenv("HELIOS_STATE", state_dir, 1);
    setenv("HELIOS_CONFIG", conf_file, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(conf_file);
    unlink(cluster_file);
    unsetenv("HELIOS_STATE");
    unsetenv("HELIOS_CONFIG");
    return rmdir(state_dir);
}

/* HL_OK: this address was found, in this way. */
static void finds(const char *want, enum found way)
{
    char *address = NULL;
    enum found how = FOUND_GIVEN;
    assert_int_equal(find_controller(&address, &how), HL_OK);
    assert_string_equal(address, want);
    assert_int_equal(how, way);
    free(address);
}

TEST_IN(setup, teardown, the_cluster_of_the_state_directory_comes_first)
{
    write_file(cluster_file, "{\"controller\": \"unix:/tmp/c.sock\", \"secretFile\": \"\"}");
    write_file(conf_file, "controller:\n  address: host:7400\n");
    finds("unix:/tmp/c.sock", FOUND_LOCAL);
}

TEST_IN(setup, teardown, an_up_that_did_not_finish_is_said)
{
    char *address = NULL;
    enum found how;
    static const char *const texts[] = {"{}", "{\"secretFile\": \"\"}"};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        write_file(cluster_file, texts[i]);
        assert_int_equal(find_controller(&address, &how), HL_EUNAVAIL);
        assert_non_null(strstr(hl_error_text(), state_dir));
        assert_non_null(strstr(hl_error_text(), "helios down"));
    }
    assert_null(address);
}

static void is_refused(const char *text, const char *named)
{
    char *address = NULL;
    enum found how;
    write_file(cluster_file, text);
    assert_int_equal(find_controller(&address, &how), HL_ECORRUPT);
    assert_null(address);
    assert_non_null(strstr(hl_error_text(), named));
}

TEST_IN(setup, teardown, what_is_wrong_with_the_file_is_named)
{
    is_refused("{\"controller\": 7400}", "cluster.json: field controller");
    is_refused("{\"controller\": \"a:1\", \"secretFile\": true}", "field secretFile");
    is_refused("[]", "cluster.json");
    is_refused("", "cluster.json");
    is_refused("{\"controller\"", "cluster.json: line 1");
}

TEST_IN(setup, teardown, members_of_a_newer_release_are_passed_over)
{
    write_file(cluster_file, "{\"state\": \"/s\", \"nodes\": 2, \"controller\": \"127.0.0.1:7400\","
                             " \"node-0\": {\"pid\": 7}, \"of a newer release\": 1}");
    finds("127.0.0.1:7400", FOUND_LOCAL);
}

TEST_IN(setup, teardown, a_secret_that_is_not_there_is_a_failure)
{
    char *address = NULL;
    enum found how;
    write_file(cluster_file,
               "{\"controller\": \"unix:/tmp/c.sock\", \"secretFile\": \"/no/secret\"}");
    assert_int_not_equal(find_controller(&address, &how), HL_OK);
    assert_non_null(strstr(hl_error_text(), "/no/secret"));
    assert_null(address);
}

TEST_IN(setup, teardown, a_state_directory_that_was_named_is_not_passed_over)
{
    char *address = NULL;
    enum found how;
    write_file(conf_file, "controller:\n  address: host:7400\n");
    assert_int_equal(find_controller(&address, &how), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), state_dir));
    assert_non_null(strstr(hl_error_text(), "helios up"));
    assert_null(address);
}

TEST_IN(setup, teardown, without_a_cluster_the_configuration_says)
{
    setenv("HELIOS_STATE", "", 1);
    setenv("HOME", state_dir, 1);
    write_file(conf_file, "controller:\n  address: host:7400\n");
    finds("host:7400", FOUND_CONFIGURED);
    write_file(conf_file, "agent:\n  controller: other:7400\n");
    finds("other:7400", FOUND_CONFIGURED);
}

TEST_IN(setup, teardown, a_default_is_told_from_what_was_configured)
{
    char *address = NULL;
    enum found how = FOUND_GIVEN;
    setenv("HELIOS_STATE", "", 1);
    setenv("HOME", state_dir, 1);
    assert_int_equal(find_controller(&address, &how), HL_OK);
    assert_int_equal(how, FOUND_DEFAULT);
    free(address);
}

TEST_IN(setup, teardown, nobody_answers_where_the_default_points)
{
    assert_int_equal(find_explain(FOUND_GIVEN, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_int_equal(hl_fail(HL_EUNAVAIL, "refused"), HL_EUNAVAIL);
    assert_int_equal(find_explain(FOUND_CONFIGURED, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_string_equal(hl_error_text(), "refused"); /* the caller named it, so the text need not */
    assert_int_equal(find_explain(FOUND_LOCAL, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "refused"));
    assert_non_null(strstr(hl_error_text(), "helios up"));
    assert_int_equal(find_explain(FOUND_DEFAULT, HL_EUNAVAIL), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "HELIOS_CONTROLLER"));
}

TEST(a_split_that_is_not_given_says_nothing)
{
    struct hl_api_split out = {.tp = 9};
    assert_int_equal(split_read(NULL, &out), HL_OK);
    assert_int_equal(out.tp, 0);
    assert_int_equal(out.pp, 0);
}

TEST(a_split_is_read_field_by_field)
{
    const helios_split given = {
        HELIOS_SPLIT_INIT,     .tp = 1, .pp = 2, .virtual_stages = 3, .first_stage_layers = 4,
        .last_stage_layers = 5};
    struct hl_api_split out;
    assert_int_equal(split_read(&given, &out), HL_OK);
    assert_int_equal(out.tp, 1);
    assert_int_equal(out.pp, 2);
    assert_int_equal(out.virtual_stages, 3);
    assert_int_equal(out.first_stage_layers, 4);
    assert_int_equal(out.last_stage_layers, 5);
}

TEST(a_split_of_negative_numbers_is_refused_and_leaves_the_output)
{
    const helios_split bad[] = {{HELIOS_SPLIT_INIT, .tp = -1},
                                {HELIOS_SPLIT_INIT, .pp = -1},
                                {HELIOS_SPLIT_INIT, .virtual_stages = -1},
                                {HELIOS_SPLIT_INIT, .first_stage_layers = -1},
                                {HELIOS_SPLIT_INIT, .last_stage_layers = -1}};
    struct hl_api_split out = {.tp = 9};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(split_read(&bad[i], &out), HL_EINVAL);
    assert_int_equal(out.tp, 9);
    assert_int_equal(split_read(&(helios_split){.size = 0}, &out), HL_EINVAL);
}
