/* Records of containers that can't be read when an Agent starts, for reasons that have nothing to
 * do with them: out of memory or files, an error of the disk. The Agent does not start, because
 * without them their slots would be used twice; the next Agent finds them. This program is its own
 * shim. */
#include "support/test.h"

#include <errno.h>

#include "hw/process/process_executor_private.h"
#include "os/file.h"

static int reading_fails; /* errno; 0 = it does not */

/* What this program's process_executor_watch.c calls instead of hl_spec_file_read
 * (cmake/helios.cmake). */
hl_status spec_read_or_fail(const char *dir, struct hl_container_spec *out) HL_CHECK;

hl_status spec_read_or_fail(const char *dir, struct hl_container_spec *out)
{
    if (reading_fails == 0)
        return hl_spec_file_read(dir, out);
    return hl_fail(hl_status_of_errno(reading_fails), "read %s/spec.json: %s", dir,
                   strerror(reading_fails));
}

#include "unit/hw/executor_world.h"

/* The rank goes on until it may end, and reports its own end. */
static void is_found_by_the_next(struct world *w, const char *id, int error)
{
    char script[256], go[128];
    snprintf(go, sizeof(go), "%s/go-%s", w->dir, id);
    snprintf(script, sizeof(script), "echo up; while [ ! -e %s ]; do sleep $NAP; done; echo done",
             go);
    start(w, spec_of(id, script, 1));
    free(await_line(w, id, 0));
    pid_t shim = shim_of(w, id);
    hl_executor_close(w->ex);
    reading_fails = error;
    struct hl_executor_opts opts = {.name = test_engine(), .state_dir = w->dir};
    assert_int_equal(hl_executor_open(&opts, &w->ex), hl_status_of_errno(error));
    assert_non_null(strstr(hl_error_text(), id));
    assert_true(process_lives(shim));
    reading_fails = 0;
    open_executor(w, false, 0);
    assert_int_equal(shim_of(w, id), shim);
    assert_int_equal(hl_file_write_atomic(go, "", 0), HL_OK);
    json_t *c = await_end(w, id);
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, id, 0);
    assert_string_equal(log, "up\ndone\n");
    free(log);
}

TEST_IN(setup, teardown, a_record_that_no_memory_is_there_for_is_read_by_the_next_agent)
{
    is_found_by_the_next(*state, "memory.1.0", ENOMEM);
}

TEST_IN(setup, teardown, a_record_that_the_disk_does_not_give_is_read_by_the_next_agent)
{
    is_found_by_the_next(*state, "disk.1.0", EIO);
}

TEST_IN(setup, teardown, a_record_that_no_file_is_left_for_is_read_by_the_next_agent)
{
    is_found_by_the_next(*state, "files.1.0", EMFILE);
}

/* The same stand-in, with an error that stays. */
TEST_IN(setup, teardown, a_record_that_is_no_container_of_ours_ends_what_runs_of_it)
{
    struct world *w = *state;
    start(w, spec_of("wrong.1.0", "echo up; exec sleep 1000", 1));
    free(await_line(w, "wrong.1.0", 0));
    pid_t shim = shim_of(w, "wrong.1.0");
    hl_executor_close(w->ex);
    reading_fails = EINVAL;
    open_executor(w, false, 0);
    reading_fails = 0;
    await_death(shim);
    assert_null(status_of(w, "wrong.1.0"));
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_ERROR);
    return tests_run(argc, argv);
}
