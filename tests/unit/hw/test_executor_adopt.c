/* The process executor with shims that die and directories that are incomplete; what holds for all
 * executors is in test_executor_suite.c. This program is its own shim. */
#include "support/test.h"

#include "unit/hw/executor_world.h"

TEST_IN(setup, teardown, a_killed_shim_takes_its_ranks_with_it)
{
    struct world *w = *state;
    start(w, spec_of("shim", "setsid sleep 1000 & echo $$ $!; exec sleep 1000", 1));
    char *log = await_line(w, "shim", 0);
    int rank = 0, grandchild = 0;
    assert_int_equal(sscanf(log, "%d %d", &rank, &grandchild), 2);
    free(log);
    pid_t shim = shim_of(w, "shim");
    kill(shim, SIGKILL);
    json_t *c = await_end(w, "shim");
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_string_equal(hl_json_str(rank_of(c, 0), "state", ""), "failed");
    assert_non_null(strstr(hl_json_str(c, "message", ""), "ended without a result"));
    assert_true(json_is_true(json_object_get(c, "lost")));
    json_decref(c);
    await_death(rank);
    if (geteuid() == 0)
        await_death(grandchild);
    else
        kill(grandchild, SIGKILL);
}

TEST_IN(setup, teardown, a_shim_killed_while_nobody_watches_is_a_failure_too)
{
    struct world *w = *state;
    start(w, spec_of("lost", "echo $$; exec sleep 1000", 1));
    char *log = await_line(w, "lost", 0);
    pid_t shim = shim_of(w, "lost");
    hl_executor_close(w->ex);
    kill(shim, SIGKILL);
    await_death(shim);
    await_death((pid_t)atoi(log));
    free(log);
    open_executor(w, false, 0);
    json_t *c = status_of(w, "lost");
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    json_decref(c);
}

TEST_IN(setup, teardown, a_state_directory_has_one_executor)
{
    struct world *w = *state;
    struct hl_executor *second;
    struct hl_executor_opts opts = {.name = "process", .state_dir = w->dir};
    assert_int_equal(hl_executor_open(&opts, &second), HL_EBUSY);
    assert_non_null(strstr(hl_error_text(), "is used by another agent"));
    opts.state_dir = "/proc/nope";
    assert_int_equal(hl_executor_open(&opts, &second), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "/proc/nope"));
    opts.name = "dcoker";
    assert_int_equal(hl_executor_open(&opts, &second), HL_EUNSUPPORTED);
}

TEST_IN(setup, teardown, a_half_made_directory_does_not_hinder)
{
    struct world *w = *state;
    char path[256];
    hl_executor_close(w->ex);
    snprintf(path, sizeof(path), "%s/containers/empty", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    open_executor(w, false, 0);
    assert_int_equal(access(path, F_OK), -1);
    json_t *c = run(w, "empty", spec_of("empty", "true", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    return tests_run(argc, argv);
}
