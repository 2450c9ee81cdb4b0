/* Which Python a container's ranks get: venv, conda, python of its spec. */
#include "support/test.h"

#include "unit/hw/executor_world.h"

static void make_program(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", text);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, 0755), 0);
}

/* DIR/NAME/bin/python, which prints its own name; and an empty directory `beside` it. */
static void make_tree(struct world *w, const char *name, const char *beside, char *dir, size_t size)
{
    char path[512];
    snprintf(dir, size, "%s/%s", w->dir, name);
    snprintf(path, sizeof(path), "%s/bin", dir);
    assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    if (beside != NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, beside);
        assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    }
    snprintf(path, sizeof(path), "%s/bin/python", dir);
    make_program(path, "echo this is $0 \"$@\"");
}

static void HL_PRINTF(4, 5)
    expect_log(struct world *w, const char *id, json_t *spec, const char *fmt, ...)
{
    char want[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(want, sizeof(want), fmt, ap);
    va_end(ap);
    json_t *c = run(w, id, spec);
    assert_string_equal(hl_json_str(c, "message", ""), "");
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, id, 0);
    assert_string_equal(log, want);
    free(log);
}

static json_t *with(json_t *spec, const char *key, const char *value)
{
    json_object_set_new(spec, key, json_string(value));
    return spec;
}

static json_t *with_env(json_t *spec, const char *key, const char *value)
{
    if (json_object_get(spec, "env") == NULL)
        json_object_set_new(spec, "env", json_array());
    json_array_append_new(json_object_get(spec, "env"),
                          json_pack("{ss ss}", "key", key, "value", value));
    return spec;
}

static void expect_failure(struct world *w, const char *id, json_t *spec, const char *key,
                           const char *path)
{
    json_t *c = run(w, id, spec);
    const char *message = hl_json_str(c, "message", "");
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    if (strstr(message, key) == NULL || strstr(message, path) == NULL)
        fail_msg("'%s' should name %s and %s", message, key, path);
    json_decref(c);
}

TEST_IN(setup, teardown, a_virtual_environment_is_active)
{
    struct world *w = *state;
    char dir[256];
    make_tree(w, "ve nv", NULL, dir, sizeof(dir));
    json_t *spec =
        spec_of("v", "python x; echo $VIRTUAL_ENV; echo $PATH; echo \"[$PYTHONHOME]\"", 1);
    spec = with_env(with_env(with(spec, "venv", dir), "PATH", "/usr/bin:/bin"), "PYTHONHOME", "/y");
    expect_log(w, "v", spec, "this is %s/bin/python x\n%s\n%s/bin:/usr/bin:/bin\n[]\n", dir, dir,
               dir);
}

TEST_IN(setup, teardown, a_conda_environment_is_found_by_directory_and_by_name)
{
    struct world *w = *state;
    static const char script[] = "python; echo $CONDA_PREFIX $CONDA_DEFAULT_ENV";
    char dir[256], root[256], home[256];
    make_tree(w, "miniconda3/envs/train", "conda-meta", dir, sizeof(dir));
    make_tree(w, "miniconda3", "conda-meta", root, sizeof(root));
    snprintf(home, sizeof(home), "%s", w->dir);
    expect_log(w, "c1", with(spec_of("c1", script, 1), "conda", dir),
               "this is %s/bin/python\n%s %s\n", dir, dir, dir);
    expect_log(w, "c2", with_env(with(spec_of("c2", script, 1), "conda", "train"), "HOME", home),
               "this is %s/bin/python\n%s train\n", dir, dir);
    expect_log(w, "c3", with_env(with(spec_of("c3", script, 1), "conda", "base"), "HOME", home),
               "this is %s/bin/python\n%s base\n", root, root);
    snprintf(home, sizeof(home), "/nowhere:%s/miniconda3/envs", w->dir);
    expect_log(w, "c4",
               with_env(with_env(with(spec_of("c4", script, 1), "conda", "train"), "HOME", "/none"),
                        "CONDA_ENVS_PATH", home),
               "this is %s/bin/python\n%s train\n", dir, dir);
}

TEST_IN(setup, teardown, an_interpreter_is_what_python_means)
{
    struct world *w = *state;
    char dir[256], python[300], want[400];
    make_tree(w, "it's", NULL, dir, sizeof(dir));
    snprintf(python, sizeof(python), "%s/bin/python", dir);
    json_t *spec =
        with(spec_of("p", "python3 'a b'; python; echo $HELIOS_PYTHON", 2), "python", python);
    snprintf(want, sizeof(want), "this is %s a b\n", python);
    expect_log(w, "p", spec, "%sthis is %s\n%s\n", want, python, python);
    spec = json_pack("{ss s[ss] s[{si}] ss}", "id", "direct", "command", "python3", "x", "ranks",
                     "rank", 0, "python", python);
    expect_log(w, "direct", spec, "this is %s x\n", python);
}

TEST_IN(setup, teardown, what_is_not_there_fails_the_container_and_is_named)
{
    struct world *w = *state;
    char dir[256];
    make_tree(w, "plain", NULL, dir, sizeof(dir));
    expect_failure(w, "f1", with(spec_of("f1", "true", 1), "venv", "/no/venv"), "venv", "/no/venv");
    expect_failure(w, "f2", with(spec_of("f2", "true", 1), "conda", dir), "conda", dir);
    expect_failure(w, "f3", with(spec_of("f3", "true", 1), "conda", "nobodys"), "conda", "nobodys");
    expect_failure(w, "f4", with(spec_of("f4", "true", 1), "python", dir), "python", dir);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    return tests_run(argc, argv);
}
