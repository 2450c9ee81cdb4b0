/* What the process executor does beyond what all executors do (test_executor_suite.c), with real
 * processes. This program is its own shim. */
#include "support/test.h"

#include "unit/hw/executor_world.h"

TEST_IN(setup, teardown, a_job_keeps_the_rank_table_it_brings)
{
    struct world *w = *state;
    json_t *json = spec_of("own", "echo $RANK_TABLE_FILE", 1);
    json_object_set_new(json, "rankTable", json_string("ours"));
    json_object_set_new(json, "env",
                        json_pack("[{ss ss}]", "key", "RANK_TABLE_FILE", "value", "/its/own"));
    json_decref(run(w, "own", json));
    char *log = log_of(w, "own", 0);
    assert_string_equal(log, "/its/own\n");
    free(log);
}

TEST_IN(setup, teardown, a_killed_rank_raises_the_question_of_memory)
{
    struct world *w = *state;
    json_t *c = run(w, "kill", spec_of("kill", "kill -9 $$", 1));
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0 killed by signal 9 (out of memory?)");
    json_decref(c);
}

TEST_IN(setup, teardown, a_program_that_does_not_exist_is_a_failed_container)
{
    struct world *w = *state;
    char text[32];
    json_t *json = json_pack("{ss s[s] s[{si}{si}]}", "id", "none", "command", "/no/such", "ranks",
                             "rank", 4, "rank", 5);
    assert_int_equal(start_json(w, json, text, sizeof(text)), HL_OK);
    assert_string_equal(text, "failed");
    json_t *c = status_of(w, "none");
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 4: exec /no/such: No such file or directory");
    assert_int_equal(hl_json_int(c, "exitCode", 0), 127);
    assert_string_equal(hl_json_str(rank_of(c, 1), "state", ""), "stopped");
    json_decref(c);
}

TEST_IN(setup, teardown, a_name_is_searched_in_the_path_of_the_rank)
{
    struct world *w = *state;
    json_t *json = json_pack("{ss s[s] s[{ss ss}] s[{si}]}", "id", "path", "command", "sleep",
                             "env", "key", "PATH", "value", "/nowhere:/tmp", "ranks", "rank", 0);
    json_t *c = run(w, "path", json);
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0: exec sleep: there is no such program in PATH (/nowhere:/tmp)");
    json_decref(c);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

TEST_IN(setup, teardown, the_environment_is_exactly_what_was_given)
{
    struct world *w = *state;
    setenv("SECRET_OF_THE_AGENT", "1", 1);
    setenv("PATH", "/usr/bin:/bin", 1);
    setenv("HOME", "/h", 1);
    setenv("LANG", "C", 1);
    unsetenv("TZ");
    unsetenv("LD_LIBRARY_PATH");
    json_t *json = json_pack("{ss s[s] s[{ss ss}{ss ss}{ss ss}] s[{si s[{ss ss}{ss ss}]}]}", "id",
                             "env", "command", "env", "env", "key", "A", "value", "x y", "key", "B",
                             "value", "container", "key", "HOME", "value", "/mine", "ranks", "rank",
                             0, "env", "key", "B", "value", "rank", "key", "C", "value", "");
    json_decref(run(w, "env", json));
    char *log = log_of(w, "env", 0);
    char *lines[32];
    size_t n = 0;
    char *save;
    for (char *p = strtok_r(log, "\n", &save); p != NULL && n < 32; p = strtok_r(NULL, "\n", &save))
        lines[n++] = p;
    qsort(lines, n, sizeof(*lines), by_text);
    static const char *const expected[] = {
        "A=x y", "B=rank", "C=", "HOME=/mine", "LANG=C", "PATH=/usr/bin:/bin"};
    assert_int_equal(n, HL_ARRAY_LEN(expected));
    for (size_t i = 0; i < n; i++)
        assert_string_equal(lines[i], expected[i]);
    free(log);
}

TEST_IN(setup, teardown, cpus_of_another_machine_are_said_to_be_unbound)
{
    struct world *w = *state;
    reopen(w, true, 0);
    json_t *json = spec_of("foreign", "true", 1);
    json_object_set_new(json, "cpus", json_string("4000-4001"));
    json_t *c = run(w, "foreign", json);
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_string_equal(hl_json_str(c, "binding", ""), "none");
    assert_non_null(strstr(hl_json_str(c, "message", ""), "CPUs 4000-4001 are not all on this"));
    json_decref(c);
}

TEST_IN(setup, teardown, stopping_ends_grandchildren_in_sessions_of_their_own)
{
    struct world *w = *state;
    start(w, spec_of("gang", "setsid sleep 1000 & echo $!; exec sleep 1000", 1));
    char *log = await_line(w, "gang", 0);
    pid_t grandchild = (pid_t)atoi(log);
    free(log);
    assert_true(process_lives(grandchild));
    assert_int_equal(hl_executor_stop(w->ex, "gang", -1), HL_OK);
    json_t *c = await_end(w, "gang");
    assert_string_equal(hl_json_str(c, "state", ""), "stopped");
    assert_string_equal(hl_json_str(rank_of(c, 0), "state", ""), "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 0), "signal", 0), SIGTERM);
    assert_false(process_lives(grandchild));
    json_decref(c);
}

TEST_IN(setup, teardown, orphans_end_with_the_last_rank)
{
    struct world *w = *state;
    json_t *c = run(w, "orphan", spec_of("orphan", "setsid sleep 1000 & echo $!", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, "orphan", 0);
    assert_false(process_lives((pid_t)atoi(log)));
    free(log);
}

TEST_IN(setup, teardown, logs_are_read_by_offset_and_from_the_end)
{
    struct world *w = *state;
    struct hl_log_slice s;
    json_decref(run(w, "log", spec_of("log", "printf 0123456789", 1)));
    assert_int_equal(hl_executor_read_log(w->ex, "log", 0, 4, 3, &s), HL_OK);
    assert_memory_equal(s.data.data, "456", 3);
    assert_int_equal(s.data.len, 3);
    assert_int_equal(s.offset, 4);
    assert_int_equal(s.size, 10);
    assert_false(s.finished);
    hl_buf_fini(&s.data);
    assert_int_equal(hl_executor_read_log(w->ex, "log", 0, -2, 100, &s), HL_OK);
    assert_int_equal(s.offset, 8);
    assert_memory_equal(s.data.data, "89", 2);
    assert_true(s.finished);
    hl_buf_fini(&s.data);
    assert_int_equal(hl_executor_read_log(w->ex, "log", 0, 999, 100, &s), HL_OK);
    assert_int_equal(s.data.len, 0);
    assert_int_equal(s.offset, 10);
    assert_true(s.finished);
    hl_buf_fini(&s.data);
    assert_int_equal(hl_executor_read_log(w->ex, "log", 1, 0, 100, &s), HL_ENOENT);
    assert_string_equal(hl_error_text(), "container log has no rank 1");
    assert_int_equal(hl_executor_read_log(w->ex, "nope", 0, 0, 100, &s), HL_ENOENT);
}

TEST_IN(setup, teardown, a_log_that_a_rank_replaced_by_a_fifo_blocks_nobody)
{
    struct world *w = *state;
    struct hl_log_slice s;
    char path[256];
    json_decref(run(w, "fifo", spec_of("fifo", "echo 1", 1)));
    snprintf(path, sizeof(path), "%s/containers/fifo/rank-0.log", w->dir);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(60); /* ends a test that waits for a writer */
    assert_int_equal(hl_executor_read_log(w->ex, "fifo", 0, 0, 100, &s), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "rank-0.log: not a regular file"));
    alarm(0);
}

TEST_IN(setup, teardown, old_output_is_dropped_and_offsets_stay)
{
    struct world *w = *state;
    struct hl_log_slice s;
    struct stat sb;
    char path[256];
    reopen(w, false, 128 << 10);
    json_decref(
        run(w, "big",
            spec_of("big", "dd if=/dev/zero bs=1M count=1 2>/dev/null | tr '\\0' x; echo end", 1)));
    snprintf(path, sizeof(path), "%s/containers/big/rank-0.log", w->dir);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_size, (1 << 20) + 4);
    if ((uint64_t)sb.st_blocks * 512 >= (uint64_t)sb.st_size)
        TEST_SKIP("this file system can't punch holes");
    assert_true(sb.st_blocks * 512 <= 256 << 10);
    assert_int_equal(hl_executor_read_log(w->ex, "big", 0, 0, 16, &s), HL_OK);
    assert_true(s.offset >= (1 << 20) - (192 << 10));
    assert_memory_equal(s.data.data, "xxxx", 4);
    hl_buf_fini(&s.data);
    assert_int_equal(hl_executor_read_log(w->ex, "big", 0, -4, 16, &s), HL_OK);
    assert_memory_equal(s.data.data, "end\n", 4);
    hl_buf_fini(&s.data);
}

TEST_IN(setup, teardown, forgetting_drops_the_record_of_an_ended_container_only)
{
    struct world *w = *state;
    char path[256];
    start(w, spec_of("keep", "exec sleep 1000", 1));
    assert_int_equal(hl_executor_forget(w->ex, "keep"), HL_EBUSY);
    assert_string_equal(hl_error_text(), "container keep is running: stop it first");
    assert_int_equal(hl_executor_stop(w->ex, "keep", 0), HL_OK);
    json_decref(await_end(w, "keep"));
    assert_int_equal(hl_executor_forget(w->ex, "keep"), HL_OK);
    assert_null(status_of(w, "keep"));
    snprintf(path, sizeof(path), "%s/containers/keep", w->dir);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(hl_executor_forget(w->ex, "keep"), HL_OK);
    assert_int_equal(hl_executor_stop(w->ex, "keep", 0), HL_OK);
}

TEST_IN(setup, teardown, no_control_group_is_left_behind)
{
    struct world *w = *state;
    char path[256];
    start(w, spec_of("group", "exec sleep 1000", 1));
    snprintf(path, sizeof(path), "%s/containers/group/cgroup", w->dir);
    struct hl_buf text = HL_BUF(8192);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    assert_int_equal(hl_executor_stop(w->ex, "group", 0), HL_OK);
    json_decref(await_end(w, "group"));
    struct hl_cgroup cg;
    hl_cgroup_recall(text.len > 0 ? text.data : "", &cg);
    for (size_t i = 0; i < cg.count; i++)
        assert_int_equal(access(cg.dirs[i].path, F_OK), -1);
    hl_buf_fini(&text);
}

TEST_IN(setup, teardown, a_memory_limit_that_is_passed_is_named)
{
    struct world *w = *state;
    json_t *json = spec_of("oom", "exec tail /dev/zero", 1);
    json_object_set_new(json, "memoryBytes", json_integer(32 << 20));
    struct hl_cgroup cg;
    hl_cgroup_create(&(struct hl_cgroup_spec){.name = "helios-test-oom", .memory_bytes = 32 << 20},
                     &cg);
    unsigned means = hl_cgroup_means(&cg);
    assert_int_equal(hl_cgroup_remove(&cg, 1000), HL_OK);
    if ((means & HL_CGROUP_MEMORY) == 0) {
        json_decref(json);
        TEST_SKIP("no memory controller can be written here");
    }
    json_t *c = run(w, "oom", json);
    assert_string_equal(
        hl_json_str(c, "message", ""),
        "rank 0 killed by signal 9 (out of memory: the container's limit is 32 MiB)");
    json_decref(c);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    return tests_run(argc, argv);
}
