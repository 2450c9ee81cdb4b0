/* The process executor with real processes. This program is its own shim. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/json.h"
#include "hw/process_executor.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/process.h"

#define DEADLINE_MS 15000

struct world {
    char dir[64];
    struct hl_executor *ex;
};

static void open_executor(struct world *w, int foreign, uint64_t log_max)
{
    struct hl_executor_opts opts = {.name = "process",
                                    .state_dir = w->dir,
                                    .foreign_topology = foreign,
                                    .log_max_bytes = log_max};
    hl_status st = hl_executor_open(&opts, &w->ex);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
}

static void reopen(struct world *w, int foreign, uint64_t log_max)
{
    hl_executor_close(w->ex);
    open_executor(w, foreign, log_max);
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-executor-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    open_executor(w, 0, 0);
    *state = w;
    return 0;
}

/* New reference to the status of a container. */
static json_t *status_of(struct world *w, const char *id)
{
    json_t *list, *found = NULL;
    assert_int_equal(hl_executor_list(w->ex, &list), HL_OK);
    size_t i;
    json_t *c;
    json_array_foreach (list, i, c) {
        if (strcmp(hl_json_str(c, "id", ""), id) == 0)
            found = json_incref(c);
    }
    json_decref(list);
    return found;
}

static int is_ended(const json_t *c)
{
    enum hl_run_state s;
    return hl_run_state_parse(hl_json_str(c, "state", ""), &s) == HL_OK && hl_run_state_ended(s);
}

static json_t *await_end(struct world *w, const char *id)
{
    uint64_t deadline = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;
    for (;;) {
        json_t *c = status_of(w, id);
        assert_non_null(c);
        if (is_ended(c))
            return c;
        json_decref(c);
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

static int teardown(void **state)
{
    struct world *w = *state;
    json_t *list, *c;
    size_t i;
    if (w->ex != NULL && hl_executor_list(w->ex, &list) == HL_OK) {
        json_array_foreach (list, i, c) {
            assert_int_equal(hl_executor_stop(w->ex, hl_json_str(c, "id", ""), 0), HL_OK);
        }
        json_array_foreach (list, i, c) {
            json_decref(await_end(w, hl_json_str(c, "id", "")));
            assert_int_equal(hl_executor_forget(w->ex, hl_json_str(c, "id", "")), HL_OK);
        }
        json_decref(list);
    }
    hl_executor_close(w->ex);
    assert_int_equal(hl_dir_remove(w->dir), HL_OK);
    free(w);
    return 0;
}

/* A container that runs `script` by sh in every rank. */
static json_t *spec_of(const char *id, const char *script, int ranks)
{
    json_t *list = json_array();
    for (int i = 0; i < ranks; i++)
        json_array_append_new(list, json_pack("{si s[{ss so}]}", "rank", i, "env", "key", "RANK",
                                              "value", json_sprintf("%d", i)));
    return json_pack("{ss s[sss] so si}", "id", id, "command", "/bin/sh", "-c", script, "ranks",
                     list, "stopGraceMs", 2000);
}

/* Takes the JSON; the state's text goes to `state`. */
static hl_status start_json(struct world *w, json_t *json, char *state, size_t size)
{
    struct hl_container_spec spec;
    struct hl_container_status status;
    hl_status st = hl_container_spec_decode(json, &spec);
    json_decref(json);
    HL_TRY(st);
    st = hl_executor_start(w->ex, &spec, &status);
    hl_container_spec_fini(&spec);
    HL_TRY(st);
    if (state != NULL)
        snprintf(state, size, "%s", hl_run_state_text(status.state));
    hl_container_status_fini(&status);
    return HL_OK;
}

static void start(struct world *w, json_t *json)
{
    hl_status st = start_json(w, json, NULL, 0);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
}

static json_t *run(struct world *w, const char *id, json_t *json)
{
    start(w, json);
    return await_end(w, id);
}

static const json_t *rank_of(const json_t *c, size_t i)
{
    return json_array_get(hl_json_list(c, "ranks"), i);
}

/* The whole output of rank 0, to be freed. */
static char *log_of(struct world *w, const char *id, int rank)
{
    struct hl_log_slice s;
    assert_int_equal(hl_executor_read_log(w->ex, id, rank, 0, 0, &s), HL_OK);
    char *text = hl_buf_take(&s.data);
    return text != NULL ? text : strdup("");
}

/* Wait until rank 0 has written a line; returns the output. */
static char *await_line(struct world *w, const char *id, int rank)
{
    uint64_t deadline = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;
    for (;;) {
        char *text = log_of(w, id, rank);
        if (strchr(text, '\n') != NULL)
            return text;
        free(text);
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

static int process_lives(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    struct hl_buf text = HL_BUF(4096);
    int lives = hl_file_read(path, &text) == HL_OK && text.len > 0 &&
                strstr(text.data, ") Z ") == NULL && strstr(text.data, ") X ") == NULL;
    hl_buf_fini(&text);
    return lives;
}

static void await_death(pid_t pid)
{
    uint64_t deadline = hl_now_ns() + DEADLINE_MS * HL_NS_PER_MS;
    while (process_lives(pid)) {
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

static pid_t shim_of(struct world *w, const char *id)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/containers/%s/shim.pid", w->dir, id);
    struct hl_buf text = HL_BUF(256);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    pid_t pid = (pid_t)atoi(text.data);
    hl_buf_fini(&text);
    return pid;
}

static void a_rank_that_ends_well_makes_the_container_succeed(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "ok", spec_of("ok", "echo hello; echo err >&2", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_string_equal(hl_json_str(c, "message", "?"), "");
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 0);
    assert_true(hl_json_int(c, "startedMs", 0) > 0);
    assert_true(hl_json_int(c, "finishedMs", 0) >= hl_json_int(c, "startedMs", 0));
    json_decref(c);
    char *log = log_of(w, "ok", 0);
    assert_string_equal(log, "hello\nerr\n");
    free(log);
}

static void an_exit_code_is_reported_with_its_rank(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "code", spec_of("code", "exit 7", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_int_equal(hl_json_int(c, "exitCode", -1), 7);
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 7);
    assert_string_equal(hl_json_str(c, "message", ""), "rank 0 exited with code 7");
    json_decref(c);
}

static void a_signal_is_reported_with_its_name(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "segv", spec_of("segv", "kill -SEGV $$", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_int_equal(hl_json_int(c, "signal", -1), 11);
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0 killed by signal 11 (Segmentation fault)");
    json_decref(c);
}

static void a_killed_rank_raises_the_question_of_memory(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "kill", spec_of("kill", "kill -9 $$", 1));
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0 killed by signal 9 (out of memory?)");
    json_decref(c);
}

static void a_program_that_does_not_exist_is_a_failed_container(void **state)
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

static void a_name_is_searched_in_the_path_of_the_rank(void **state)
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

static void the_environment_is_exactly_what_was_given(void **state)
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

static void a_rank_is_bound_to_its_cpus_and_the_kernel_says_so(void **state)
{
    struct world *w = *state;
    struct hl_cpuset allowed, one = {{0}}, got;
    char cpus[16];
    assert_int_equal(hl_process_allowed(getpid(), &allowed, NULL), HL_OK);
    unsigned last = 0;
    for (unsigned i = 0; i < HL_CPUSET_MAX; i++)
        if (hl_cpuset_has(&allowed, i))
            last = i;
    hl_cpuset_add(&one, last);
    snprintf(cpus, sizeof(cpus), "%u", last);
    json_t *json = spec_of("bound", "sed -n 's/Cpus_allowed_list://p' /proc/self/status", 1);
    json_object_set_new(json, "cpus", json_string(cpus));
    json_t *c = run(w, "bound", json);
    const char *binding = hl_json_str(c, "binding", "");
    assert_true(strcmp(binding, "cpuset-cgroup") == 0 || strcmp(binding, "affinity") == 0);
    char *log = log_of(w, "bound", 0);
    assert_int_equal(hl_cpuset_parse(log, &got), HL_OK);
    assert_true(hl_cpuset_equal(&got, &one));
    free(log);
    json_decref(c);
}

static void cpus_that_do_not_exist_are_refused_with_the_valid_range(void **state)
{
    struct world *w = *state;
    struct hl_cpuset allowed;
    char have[256], want[512];
    assert_int_equal(hl_process_allowed(getpid(), &allowed, NULL), HL_OK);
    hl_cpuset_format(&allowed, have, sizeof(have));
    json_t *json = spec_of("far", "true", 1);
    json_object_set_new(json, "cpus", json_string("4000-4001"));
    assert_int_equal(start_json(w, json, NULL, 0), HL_EINVAL);
    snprintf(want, sizeof(want),
             "container far wants CPUs 4000-4001, this machine has %s: give CPUs of this machine",
             have);
    assert_string_equal(hl_error_text(), want);
    assert_null(status_of(w, "far"));
}

static void cpus_of_another_machine_are_said_to_be_unbound(void **state)
{
    struct world *w = *state;
    reopen(w, 1, 0);
    json_t *json = spec_of("foreign", "true", 1);
    json_object_set_new(json, "cpus", json_string("4000-4001"));
    json_t *c = run(w, "foreign", json);
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_string_equal(hl_json_str(c, "binding", ""), "none");
    assert_non_null(strstr(hl_json_str(c, "message", ""), "CPUs 4000-4001 are not all on this"));
    json_decref(c);
}

static void stopping_ends_grandchildren_in_sessions_of_their_own(void **state)
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

static void orphans_end_with_the_last_rank(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "orphan", spec_of("orphan", "setsid sleep 1000 & echo $!", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, "orphan", 0);
    assert_false(process_lives((pid_t)atoi(log)));
    free(log);
}

static void a_failed_rank_stops_its_siblings(void **state)
{
    struct world *w = *state;
    json_t *c = run(w, "two", spec_of("two", "[ $RANK = 1 ] && exit 3; exec sleep 1000", 2));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_string_equal(hl_json_str(c, "message", ""), "rank 1 exited with code 3");
    assert_int_equal(hl_json_int(c, "exitCode", 0), 3);
    assert_string_equal(hl_json_str(rank_of(c, 0), "state", ""), "stopped");
    assert_string_equal(hl_json_str(rank_of(c, 1), "state", ""), "failed");
    json_decref(c);
}

static void a_rank_may_use_the_grace_to_end_well(void **state)
{
    struct world *w = *state;
    start(w, spec_of("polite",
                     "trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.01; done", 1));
    free(await_line(w, "polite", 0));
    assert_int_equal(hl_executor_stop(w->ex, "polite", 10000), HL_OK);
    json_t *c = await_end(w, "polite");
    assert_string_equal(hl_json_str(c, "state", ""), "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 0);
    json_decref(c);
    char *log = log_of(w, "polite", 0);
    assert_non_null(strstr(log, "saved\n"));
    free(log);
}

static void a_rank_that_ignores_sigterm_is_killed_after_the_grace(void **state)
{
    struct world *w = *state;
    start(w, spec_of("deaf", "trap '' TERM; echo up; while :; do sleep 0.01; done", 1));
    free(await_line(w, "deaf", 0));
    uint64_t t0 = hl_now_ns();
    assert_int_equal(hl_executor_stop(w->ex, "deaf", 100), HL_OK);
    json_t *c = await_end(w, "deaf");
    assert_true(hl_now_ns() - t0 >= 100 * HL_NS_PER_MS);
    assert_string_equal(hl_json_str(c, "state", ""), "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 0), "signal", 0), SIGKILL);
    json_decref(c);
}

static void starting_again_finds_the_same_container(void **state)
{
    struct world *w = *state;
    start(w, spec_of("once", "echo run; exec sleep 1000", 1));
    json_t *a = status_of(w, "once");
    start(w, spec_of("once", "echo run; exec sleep 1000", 1));
    json_t *b = status_of(w, "once");
    assert_true(json_equal(rank_of(a, 0), rank_of(b, 0)));
    json_decref(a);
    json_decref(b);
    char *log = await_line(w, "once", 0);
    assert_string_equal(log, "run\n");
    free(log);
}

static void a_running_container_is_found_again(void **state)
{
    struct world *w = *state;
    start(w, spec_of("live", "echo $$; exec sleep 1000", 1));
    char *log = await_line(w, "live", 0);
    pid_t pid = (pid_t)atoi(log);
    free(log);
    reopen(w, 0, 0);
    json_t *c = status_of(w, "live");
    assert_string_equal(hl_json_str(c, "state", ""), "running");
    assert_int_equal(hl_json_int(rank_of(c, 0), "pid", 0), pid);
    assert_true(process_lives(pid));
    json_decref(c);
    assert_int_equal(hl_executor_stop(w->ex, "live", -1), HL_OK);
    json_decref(await_end(w, "live"));
    assert_false(process_lives(pid));
}

static void an_exit_code_is_not_lost_while_nobody_watches(void **state)
{
    struct world *w = *state;
    char gate[128], script[256];
    snprintf(gate, sizeof(gate), "%s/gate", w->dir);
    snprintf(script, sizeof(script), "echo $$; while [ ! -e %s ]; do sleep 0.01; done; exit 9",
             gate);
    start(w, spec_of("away", script, 1));
    char *log = await_line(w, "away", 0);
    pid_t pid = (pid_t)atoi(log);
    free(log);
    pid_t shim = shim_of(w, "away");
    hl_executor_close(w->ex);
    close(open(gate, O_CREAT | O_WRONLY, 0600));
    await_death(pid);
    await_death(shim);
    open_executor(w, 0, 0);
    json_t *c = status_of(w, "away");
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_int_equal(hl_json_int(c, "exitCode", 0), 9);
    json_decref(c);
}

static void a_killed_shim_takes_its_ranks_with_it(void **state)
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
    json_decref(c);
    await_death(rank);
    if (geteuid() == 0)
        await_death(grandchild);
    else
        kill(grandchild, SIGKILL);
}

static void a_shim_killed_while_nobody_watches_is_a_failure_too(void **state)
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
    open_executor(w, 0, 0);
    json_t *c = status_of(w, "lost");
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    json_decref(c);
}

static void logs_are_read_by_offset_and_from_the_end(void **state)
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

static void old_output_is_dropped_and_offsets_stay(void **state)
{
    struct world *w = *state;
    struct hl_log_slice s;
    struct stat sb;
    char path[256];
    reopen(w, 0, 128 << 10);
    json_decref(
        run(w, "big",
            spec_of("big", "dd if=/dev/zero bs=1M count=1 2>/dev/null | tr '\\0' x; echo end", 1)));
    snprintf(path, sizeof(path), "%s/containers/big/rank-0.log", w->dir);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_size, (1 << 20) + 4);
    if ((uint64_t)sb.st_blocks * 512 >= (uint64_t)sb.st_size)
        skip(); /* this file system can't punch holes */
    assert_true(sb.st_blocks * 512 <= 256 << 10);
    assert_int_equal(hl_executor_read_log(w->ex, "big", 0, 0, 16, &s), HL_OK);
    assert_true(s.offset >= (1 << 20) - (192 << 10));
    assert_memory_equal(s.data.data, "xxxx", 4);
    hl_buf_fini(&s.data);
    assert_int_equal(hl_executor_read_log(w->ex, "big", 0, -4, 16, &s), HL_OK);
    assert_memory_equal(s.data.data, "end\n", 4);
    hl_buf_fini(&s.data);
}

static void forgetting_drops_the_record_of_an_ended_container_only(void **state)
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

static void no_control_group_is_left_behind(void **state)
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

static void a_memory_limit_that_is_passed_is_named(void **state)
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
        skip(); /* no memory controller here */
    }
    json_t *c = run(w, "oom", json);
    assert_string_equal(
        hl_json_str(c, "message", ""),
        "rank 0 killed by signal 9 (out of memory: the container's limit is 32 MiB)");
    json_decref(c);
}

static void a_state_directory_has_one_executor(void **state)
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

static void a_half_made_directory_does_not_hinder(void **state)
{
    struct world *w = *state;
    char path[256];
    hl_executor_close(w->ex);
    snprintf(path, sizeof(path), "%s/containers/empty", w->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    open_executor(w, 0, 0);
    assert_int_equal(access(path, F_OK), -1);
    json_t *c = run(w, "empty", spec_of("empty", "true", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    const struct CMUnitTest tests[] = {
        TEST(a_rank_that_ends_well_makes_the_container_succeed),
        TEST(an_exit_code_is_reported_with_its_rank),
        TEST(a_signal_is_reported_with_its_name),
        TEST(a_killed_rank_raises_the_question_of_memory),
        TEST(a_program_that_does_not_exist_is_a_failed_container),
        TEST(a_name_is_searched_in_the_path_of_the_rank),
        TEST(the_environment_is_exactly_what_was_given),
        TEST(a_rank_is_bound_to_its_cpus_and_the_kernel_says_so),
        TEST(cpus_that_do_not_exist_are_refused_with_the_valid_range),
        TEST(cpus_of_another_machine_are_said_to_be_unbound),
        TEST(stopping_ends_grandchildren_in_sessions_of_their_own),
        TEST(orphans_end_with_the_last_rank),
        TEST(a_failed_rank_stops_its_siblings),
        TEST(a_rank_may_use_the_grace_to_end_well),
        TEST(a_rank_that_ignores_sigterm_is_killed_after_the_grace),
        TEST(starting_again_finds_the_same_container),
        TEST(a_running_container_is_found_again),
        TEST(an_exit_code_is_not_lost_while_nobody_watches),
        TEST(a_killed_shim_takes_its_ranks_with_it),
        TEST(a_shim_killed_while_nobody_watches_is_a_failure_too),
        TEST(logs_are_read_by_offset_and_from_the_end),
        TEST(old_output_is_dropped_and_offsets_stay),
        TEST(forgetting_drops_the_record_of_an_ended_container_only),
        TEST(no_control_group_is_left_behind),
        TEST(a_memory_limit_that_is_passed_is_named),
        TEST(a_state_directory_has_one_executor),
        TEST(a_half_made_directory_does_not_hinder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
