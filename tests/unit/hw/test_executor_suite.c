/* What every executor must do, with real containers: CTest runs this for `process`, and
 * tests/e2e/test_engines.py for engines that it starts (HELIOS_TEST_ENGINE). This program is its
 * own shim. */
#include "support/test.h"

#include <arpa/inet.h>
#include <glob.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/crc32.h"
#include "unit/hw/executor_world.h"

#define MIB (1 << 20)

static void assert_state(const json_t *c, const char *state)
{
    if (strcmp(hl_json_str(c, "state", ""), state) != 0)
        print_error("message: %s; warning: %s\n", hl_json_str(c, "message", ""),
                    hl_json_str(c, "warning", ""));
    assert_string_equal(hl_json_str(c, "state", ""), state);
}

static void assert_log(struct world *w, const char *id, int rank, const char *want)
{
    char *log = log_of(w, id, rank);
    assert_string_equal(log, want);
    free(log);
}

static void touch(const char *path)
{
    close(open(path, O_CREAT | O_WRONLY, 0644));
}

/* A directory that ranks see at the same path under any executor. */
static json_t *with_share(struct world *w, json_t *spec)
{
    char mount[160];
    snprintf(mount, sizeof(mount), "%s:%s", w->dir, w->dir);
    if (test_has_image())
        json_object_set_new(spec, "mounts", json_pack("[s]", mount));
    return spec;
}

TEST_IN(setup, teardown, a_rank_that_ends_well_leaves_its_output)
{
    struct world *w = *state;
    json_t *c = run(w, "ok.1.0", spec_of("ok.1.0", "echo hello; echo err >&2; printf end", 1));
    assert_state(c, "succeeded");
    assert_string_equal(hl_json_str(c, "message", "?"), "");
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 0);
    assert_true(hl_json_int(c, "startedMs", 0) > 0);
    assert_true(hl_json_int(c, "finishedMs", 0) >= hl_json_int(c, "startedMs", 0));
    json_decref(c);
    char *log = log_of(w, "ok.1.0", 0);
    if (test_has_image()) { /* an engine keeps the order within each of the two outputs */
        assert_int_equal(strlen(log), strlen("hello\nerr\nend"));
        assert_true(strstr(log, "hello\n") != NULL && strstr(log, "err\n") != NULL);
        assert_true(strstr(log, "end") > strstr(log, "hello\n"));
    } else {
        assert_string_equal(log, "hello\nerr\nend");
    }
    free(log);
}

TEST_IN(setup, teardown, an_exit_code_is_the_ranks)
{
    struct world *w = *state;
    json_t *c = run(w, "code", spec_of("code", "exit 7", 1));
    assert_state(c, "failed");
    assert_int_equal(hl_json_int(c, "exitCode", -1), 7);
    assert_int_equal(hl_json_int(c, "signal", -1), 0);
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 7);
    assert_string_equal(hl_json_str(c, "message", ""), "rank 0 exited with code 7");
    json_decref(c);
}

TEST_IN(setup, teardown, a_signal_is_named)
{
    struct world *w = *state;
    json_t *c = run(w, "segv", spec_of("segv", "kill -SEGV $$", 1));
    assert_state(c, "failed");
    assert_int_equal(hl_json_int(c, "signal", -1), 11);
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0 killed by signal 11 (Segmentation fault)");
    json_decref(c);
}

TEST_IN(setup, teardown, want_of_memory_is_told_by_the_kernels_count)
{
    struct world *w = *state;
    if (geteuid() != 0)
        TEST_SKIP("a limit of memory wants root");
    json_t *spec = spec_of("oom", "dd if=/dev/zero of=/dev/null bs=300M count=1; exit 3", 1);
    json_object_set_new(spec, "memoryBytes", json_integer(64 * MIB));
    json_t *c = run(w, "oom", spec);
    assert_state(c, "failed");
    assert_string_equal(
        hl_json_str(c, "message", ""),
        "rank 0 exited with code 3 (out of memory: the container's limit is 64 MiB)");
    json_decref(c);
}

TEST_IN(setup, teardown, the_limit_of_memory_holds_for_what_fits)
{
    struct world *w = *state;
    json_t *spec = spec_of("fits", "dd if=/dev/zero of=/dev/null bs=8M count=1 2>/dev/null", 1);
    json_object_set_new(spec, "memoryBytes", json_integer(64 * MIB));
    json_t *c = run(w, "fits", spec);
    assert_state(c, "succeeded");
    json_decref(c);
}

TEST_IN(setup, teardown, one_rank_that_fails_ends_the_others)
{
    struct world *w = *state;
    json_t *c =
        run(w, "gang", spec_of("gang", "[ $RANK = 1 ] && exit 5; echo $RANK; exec sleep 1000", 3));
    assert_state(c, "failed");
    assert_string_equal(hl_json_str(c, "message", ""), "rank 1 exited with code 5");
    assert_int_equal(hl_json_int(c, "exitCode", 0), 5);
    assert_string_equal(hl_json_str(rank_of(c, 1), "state", ""), "failed");
    assert_string_equal(hl_json_str(rank_of(c, 0), "state", ""), "stopped");
    assert_string_equal(hl_json_str(rank_of(c, 2), "state", ""), "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 2), "signal", 0), SIGTERM);
    json_decref(c);
}

TEST_IN(setup, teardown, a_stop_lets_a_rank_say_goodbye)
{
    struct world *w = *state;
    start(w,
          spec_of("bye", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep $NAP; done", 1));
    free(await_line(w, "bye", 0));
    assert_int_equal(hl_executor_stop(w->ex, "bye", 10000), HL_OK);
    json_t *c = await_end(w, "bye");
    assert_state(c, "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 0), "exitCode", -1), 0);
    json_decref(c);
    char *log = log_of(w, "bye", 0);
    assert_non_null(strstr(log, "bye\n"));
    free(log);
}

static int bind_port(int port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int rc = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1) == 0 ? 0 : errno;
    close(fd);
    return rc;
}

/* A free port. */
static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t size = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    close(fd);
    return ntohs(a.sin_port);
}

TEST_IN(setup, teardown, what_ignores_a_stop_is_killed_and_its_port_is_free)
{
    struct world *w = *state;
    char script[256];
    int port = free_port();
    if (access("/bin/busybox", X_OK) != 0)
        TEST_SKIP("busybox, which listens at the port, is not installed");
    snprintf(script, sizeof(script),
             "trap '' TERM; setsid /bin/busybox nc -l -p %d & echo up; "
             "while :; do sleep $NAP; done",
             port);
    json_t *spec = spec_of("deaf", script, 1);
    json_object_set_new(spec, "stopGraceMs", json_integer(200));
    start(w, spec);
    free(await_line(w, "deaf", 0));
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    while (bind_port(port) == 0 && hl_now_ns() < deadline)
        rest();
    assert_int_equal(bind_port(port), EADDRINUSE);
    uint64_t asked = hl_now_ns();
    assert_int_equal(hl_executor_stop(w->ex, "deaf", 600000), HL_OK);
    json_t *c = await_end(w, "deaf");
    assert_true(hl_now_ns() - asked >= 200 * HL_NS_PER_MS); /* the spec's */
    assert_state(c, "stopped");
    assert_int_equal(hl_json_int(rank_of(c, 0), "signal", 0), SIGKILL);
    json_decref(c);
    assert_int_equal(bind_port(port), 0);
}

TEST_IN(setup, teardown, logs_are_kept_by_attempt)
{
    struct world *w = *state;
    json_decref(run(w, "j.1.0", spec_of("j.1.0", "echo first; exit 1", 1)));
    json_decref(run(w, "j.2.0", spec_of("j.2.0", "echo second", 1)));
    reopen(w, false, 0);
    assert_log(w, "j.1.0", 0, "first\n");
    assert_log(w, "j.2.0", 0, "second\n");
    forget(w, "j.1.0");
    struct hl_log_slice s;
    assert_int_equal(hl_executor_read_log(w->ex, "j.1.0", 0, 0, 0, &s), HL_ENOENT);
    assert_log(w, "j.2.0", 0, "second\n");
}

TEST_IN(setup, teardown, a_container_is_started_once)
{
    struct world *w = *state;
    char text[32];
    start(w, spec_of("once", "echo run; exec sleep 1000", 1));
    free(await_line(w, "once", 0));
    json_t *before = await_running(w, "once");
    assert_int_equal(start_json(w, spec_of("once", "echo twice", 1), text, sizeof(text)), HL_OK);
    assert_string_equal(text, "running");
    json_t *after = status_of(w, "once");
    assert_true(json_equal(rank_of(before, 0), rank_of(after, 0)));
    json_decref(before);
    json_decref(after);
    assert_log(w, "once", 0, "run\n");
}

TEST_IN(setup, teardown, a_restarted_agent_finds_what_runs)
{
    struct world *w = *state;
    start(w, spec_of("live", "echo up; exec sleep 1000", 1));
    free(await_line(w, "live", 0));
    json_t *before = await_running(w, "live");
    reopen(w, false, 0);
    json_t *c = status_of(w, "live");
    assert_state(c, "running");
    assert_true(hl_json_int(rank_of(c, 0), "pid", 0) > 0);
    assert_int_equal(hl_json_int(rank_of(c, 0), "pid", 0),
                     hl_json_int(rank_of(before, 0), "pid", 0));
    pid_t pid = (pid_t)hl_json_int(rank_of(c, 0), "pid", 0);
    assert_true(process_lives(pid));
    json_decref(c);
    json_decref(before);
    assert_int_equal(hl_executor_stop(w->ex, "live", -1), HL_OK);
    c = await_end(w, "live");
    assert_state(c, "stopped");
    assert_false(process_lives(pid));
    json_decref(c);
}

TEST_IN(setup, teardown, a_result_waits_for_the_agent)
{
    struct world *w = *state;
    char gate[96], script[256];
    snprintf(gate, sizeof(gate), "%s/gate", w->dir);
    snprintf(script, sizeof(script), "echo up; until [ -e %s ]; do sleep $NAP; done; exit 9", gate);
    start(w, with_share(w, spec_of("away", script, 1)));
    free(await_line(w, "away", 0));
    pid_t shim = shim_of(w, "away");
    hl_executor_close(w->ex);
    touch(gate);
    await_death(shim);
    open_executor(w, false, 0);
    json_t *c = status_of(w, "away");
    assert_state(c, "failed");
    assert_int_equal(hl_json_int(c, "exitCode", 0), 9);
    json_decref(c);
}

/* A process ends with its shim; a container of an engine goes on, and its log stays complete. */
TEST_IN(setup, teardown, a_killed_shim_does_not_lose_the_container)
{
    struct world *w = *state;
    char gate[96], script[256];
    snprintf(gate, sizeof(gate), "%s/gate", w->dir);
    snprintf(script, sizeof(script),
             "echo one; until [ -e %s ]; do sleep $NAP; done; echo two; exit 4", gate);
    start(w, with_share(w, spec_of("shim", script, 1)));
    free(await_line(w, "shim", 0));
    pid_t shim = shim_of(w, "shim"); /* soon the file names its successor */
    kill(shim, SIGKILL);
    await_death(shim);
    touch(gate);
    json_t *c = await_end(w, "shim");
    assert_state(c, "failed");
    if (test_has_image()) {
        assert_string_equal(hl_json_str(c, "message", ""), "rank 0 exited with code 4");
        assert_log(w, "shim", 0, "one\ntwo\n");
    } else {
        assert_non_null(strstr(hl_json_str(c, "message", ""), "ended without a result"));
    }
    json_decref(c);
}

static size_t strangers(struct hl_executor *ex, const char *container, bool *own)
{
    struct hl_arena arena = {0};
    struct hl_stranger_list list;
    size_t n = 0;
    hl_status st = hl_executor_strangers(ex, &arena, &list);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.items[i].container, container) == 0) {
            *own = list.items[i].own;
            n++;
        }
    hl_arena_fini(&arena);
    return n;
}

TEST_IN(setup, teardown, another_agents_container_is_listed_and_left_alone)
{
    struct world *w = *state, other = {0};
    bool own = true;
    snprintf(other.dir, sizeof(other.dir), "/tmp/helios-test-executor-XXXXXX");
    assert_non_null(mkdtemp(other.dir));
    start(w, spec_of("stranger.7.0", "echo up; exec sleep 1000", 1));
    free(await_line(w, "stranger.7.0", 0));
    assert_int_equal(strangers(w->ex, "stranger.7.0", &own), 0);
    open_executor(&other, false, 0);
    assert_int_equal(strangers(other.ex, "stranger.7.0", &own), 1);
    assert_false(own);
    hl_executor_close(other.ex);
    assert_int_equal(hl_dir_remove(other.dir), HL_OK);
    json_t *c = status_of(w, "stranger.7.0");
    assert_state(c, "running");
    json_decref(c);
}

/* How often the list contains that container. */
static size_t strays(struct world *w, const char *state_directory, const char *container)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    size_t n = 0;
    assert_int_equal(hl_executor_list_strays(w->ex, state_directory, &arena, &ids), HL_OK);
    for (size_t i = 0; i < ids.count; i++)
        n += strcmp(ids.items[i], container) == 0;
    return n;
}

/* The Agent that started it is silent; its gang goes on without it. */
TEST_IN(setup, teardown, another_agents_container_is_ended_by_its_id_and_state_directory)
{
    struct world *w = *state, other = {0};
    char whose[64], mine[64];
    bool ended = true;
    snprintf(other.dir, sizeof(other.dir), "/tmp/helios-test-executor-XXXXXX");
    assert_non_null(mkdtemp(other.dir));
    start(w, spec_of("stray.7.0", "echo up; exec sleep 1000", 1));
    free(await_line(w, "stray.7.0", 0));
    json_t *c = status_of(w, "stray.7.0");
    pid_t pid = (pid_t)hl_json_int(rank_of(c, 0), "pid", 0);
    json_decref(c);
    open_executor(&other, false, 0);
    hl_dir_identity(w->dir, whose, sizeof(whose));
    hl_dir_identity(other.dir, mine, sizeof(mine));
    assert_int_equal(strays(w, whose, "stray.7.0"), 0); /* it has a record there */
    assert_int_equal(strays(&other, mine, "stray.7.0"), 0);
    assert_int_equal(strays(&other, whose, "stray.7.0"), 1);
    assert_int_equal(hl_executor_end_stray(other.ex, mine, "stray.7.0", &ended), HL_OK);
    assert_false(ended); /* a third Agent's container may have the same id */
    ended = true;
    assert_int_equal(hl_executor_end_stray(other.ex, whose, "stray.7.1", &ended), HL_OK);
    assert_false(ended);
    assert_true(process_lives(pid));
    hl_executor_close(w->ex); /* otherwise it starts another shim for an engine's container */
    assert_int_equal(hl_executor_end_stray(other.ex, whose, "stray.7.0", &ended), HL_OK);
    assert_true(ended);
    await_death(pid);
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    while (strays(&other, whose, "stray.7.0") > 0) { /* the shim ends after its ranks */
        assert_true(hl_now_ns() < deadline);
        rest();
    }
    assert_int_equal(hl_executor_end_stray(other.ex, whose, "stray.7.0", &ended), HL_OK);
    assert_false(ended);
    hl_executor_close(other.ex);
    assert_int_equal(hl_dir_remove(other.dir), HL_OK);
    open_executor(w, false, 0);
    c = await_end(w, "stray.7.0");
    assert_state(c, "failed");
    json_decref(c);
}

/* Its Agent and its shim were killed; a plain process would have died with its shim. */
TEST_IN(setup, teardown, another_agents_container_is_ended_without_its_shim_too)
{
    struct world *w = *state, other = {0};
    char whose[64];
    bool ended = false;
    snprintf(other.dir, sizeof(other.dir), "/tmp/helios-test-executor-XXXXXX");
    assert_non_null(mkdtemp(other.dir));
    start(w, spec_of("alone.7.0", "echo up; exec sleep 1000", 1));
    free(await_line(w, "alone.7.0", 0));
    json_t *c = status_of(w, "alone.7.0");
    pid_t pid = (pid_t)hl_json_int(rank_of(c, 0), "pid", 0), shim = shim_of(w, "alone.7.0");
    json_decref(c);
    open_executor(&other, false, 0);
    hl_dir_identity(w->dir, whose, sizeof(whose));
    assert_int_equal(strays(&other, whose, "alone.7.0"), 1);
    hl_executor_close(w->ex); /* it would start another shim */
    kill(shim, SIGKILL);
    await_death(shim);
    assert_int_equal(strays(&other, whose, "alone.7.0"), test_has_image());
    assert_int_equal(hl_executor_end_stray(other.ex, whose, "alone.7.0", &ended), HL_OK);
    assert_int_equal(ended, test_has_image());
    await_death(pid);
    assert_int_equal(strays(&other, whose, "alone.7.0"), 0);
    hl_executor_close(other.ex);
    assert_int_equal(hl_dir_remove(other.dir), HL_OK);
    open_executor(w, false, 0);
    c = await_end(w, "alone.7.0");
    assert_state(c, "failed");
    json_decref(c);
}

/* Control groups of that container on this machine. */
static size_t groups_of(struct world *w, const char *id)
{
    char end[HL_CONTAINER_ID_MAX + 64], dir[160];
    glob_t found = {0};
    snprintf(dir, sizeof(dir), "%s/containers/%s", w->dir, id);
    snprintf(end, sizeof(end), "/sys/fs/cgroup/*/helios-%08x-%s", hl_crc32(0, dir, strlen(dir)),
             id);
    (void)!glob(end, 0, NULL, &found);
    size_t n = found.gl_pathc;
    globfree(&found);
    return n;
}

/* lose: what happens to its directory while there is no Agent. */
static void ends_without_a_record(struct world *w, void (*lose)(const char *dir))
{
    bool own;
    start(w, spec_of("lost.1.0", "setsid sleep 1000 & echo $!; exec sleep 1000", 1));
    char *child = await_line(w, "lost.1.0", 0); /* in an engine it has a number of its own */
    bool grouped = groups_of(w, "lost.1.0") > 0;
    json_t *c = status_of(w, "lost.1.0");
    pid_t pid = (pid_t)hl_json_int(rank_of(c, 0), "pid", 0);
    json_decref(c);
    pid_t shim = shim_of(w, "lost.1.0");
    hl_executor_close(w->ex);
    if (test_has_image()) /* the engine still has it; its shim would go on writing */
        kill(shim, SIGKILL);
    char dir[160];
    snprintf(dir, sizeof(dir), "%s/containers/lost.1.0", w->dir);
    lose(dir);
    assert_true(process_lives(pid));
    open_executor(w, false, 0);
    await_death(pid);
    if (grouped) { /* the engine's own groups have other names */
        await_death((pid_t)atoi(child));
        assert_int_equal(groups_of(w, "lost.1.0"), 0);
    }
    free(child);
    assert_int_equal(strangers(w->ex, "lost.1.0", &own), 0);
    assert_null(status_of(w, "lost.1.0"));
}

static void lose_directory(const char *dir)
{
    assert_int_equal(hl_dir_remove(dir), HL_OK);
}

static void spoil_record(const char *dir)
{
    char path[192];
    snprintf(path, sizeof(path), "%s/spec.json", dir);
    assert_int_equal(hl_file_write_atomic(path, "{", 1), HL_OK);
}

TEST_IN(setup, teardown, a_container_whose_record_is_lost_is_ended)
{
    ends_without_a_record(*state, lose_directory);
}

TEST_IN(setup, teardown, a_container_whose_record_can_not_be_read_is_ended)
{
    ends_without_a_record(*state, spoil_record);
}

TEST_IN(setup, teardown, a_rank_has_the_cpus_of_its_slot)
{
    struct world *w = *state;
    struct hl_cpuset mine, one = {0};
    char cpu[16], want[64];
    unsigned n = 0;
    assert_int_equal(hl_process_allowed(getpid(), &mine, NULL), HL_OK);
    while (!hl_cpuset_has(&mine, n))
        n++;
    hl_cpuset_add(&one, n);
    hl_cpuset_format(&one, cpu, sizeof(cpu));
    json_t *spec = spec_of("bound", "grep Cpus_allowed_list /proc/self/status; exec sleep 1000", 1);
    json_object_set_new(spec, "cpus", json_string(cpu));
    start(w, spec);
    free(await_line(w, "bound", 0));
    json_t *c = await_running(w, "bound");
    const char *binding = hl_json_str(c, "binding", "");
    assert_true(strcmp(binding, "cpuset-cgroup") == 0 ||
                (!test_has_image() && strcmp(binding, "affinity") == 0));
    json_decref(c);
    snprintf(want, sizeof(want), "Cpus_allowed_list:\t%s\n", cpu);
    assert_log(w, "bound", 0, want);
}

TEST_IN(setup, teardown, cpus_that_are_not_there_are_refused)
{
    struct world *w = *state;
    struct hl_cpuset allowed;
    char have[256], want[512];
    assert_int_equal(hl_process_allowed(getpid(), &allowed, NULL), HL_OK);
    hl_cpuset_format(&allowed, have, sizeof(have));
    json_t *spec = spec_of("far", "true", 1);
    json_object_set_new(spec, "cpus", json_string("4000-4001"));
    assert_int_equal(start_json(w, spec, NULL, 0), HL_EINVAL);
    snprintf(
        want, sizeof(want),
        "container far asks for CPUs 4000-4001, but this machine has %s: give CPUs of this machine",
        have);
    assert_string_equal(hl_error_text(), want);
    assert_null(status_of(w, "far"));
}

/* No shell interprets words or variables on the way. */
TEST_IN(setup, teardown, words_and_variables_arrive_as_they_are)
{
    struct world *w = *state;
    json_t *spec =
        spec_of("words", "printf '%s|' \"$A\" \"$PATH\" \"$DOCKER_HOST\" \"$0\" \"$1\"", 1);
    json_array_append_new(json_object_get(spec, "command"), json_string("a b; $HOME `id`"));
    json_array_append_new(json_object_get(spec, "command"), json_string("\"--rm\""));
    json_object_set_new(spec, "env",
                        json_pack("[{ssss}{ssss}{ssss}]", "key", "A", "value",
                                  "x=1,\"y\" '$z'\nnext", "key", "PATH", "value",
                                  "/bin:/usr/bin:/it s", "key", "DOCKER_HOST", "value", "none"));
    json_t *c = run(w, "words", spec);
    assert_state(c, "succeeded");
    json_decref(c);
    assert_log(w, "words", 0,
               "x=1,\"y\" '$z'\nnext|/bin:/usr/bin:/it s|none|a b; $HOME `id`|\"--rm\"|");
}

static void assert_table(const char *dir, const char *want)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    struct stat sb;
    char path[256];
    snprintf(path, sizeof(path), "%s/ranktable/hccl.json", dir);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    assert_string_equal(text.data, want);
    assert_int_equal(stat(path, &sb), 0);
    assert_int_equal(sb.st_mode & 07777, 0644);
}

TEST_IN(setup, teardown, a_rank_table_changes_while_ranks_run)
{
    struct world *w = *state;
    char dir[160];
    mode_t mask = umask(0077);
    json_t *spec = spec_of("table",
                           "cat $RANK_TABLE_FILE; until grep -q new $RANK_TABLE_FILE; do "
                           "sleep $NAP; done",
                           1);
    json_object_set_new(spec, "rankTable", json_string("first\n"));
    start(w, spec);
    snprintf(dir, sizeof(dir), "%s/containers/table", w->dir);
    assert_table(dir, "first\n");
    char *log = await_line(w, "table", 0);
    assert_string_equal(log, "first\n");
    free(log);
    assert_int_equal(hl_executor_put_rank_table(w->ex, "table", "a new one"), HL_OK);
    assert_table(dir, "a new one");
    umask(mask);
    json_t *c = await_end(w, "table");
    assert_state(c, "succeeded");
    json_decref(c);
    assert_int_equal(hl_executor_put_rank_table(w->ex, "nobody", "x"), HL_ENOENT);
    forget(w, "table");
    assert_int_equal(access(dir, F_OK), -1);
}

TEST_IN(setup, teardown, mounts_take_effect_or_are_refused)
{
    struct world *w = *state;
    char host[96], mount[160];
    snprintf(host, sizeof(host), "%s/a,b", w->dir);
    snprintf(mount, sizeof(mount), "%s:/in:ro", host);
    assert_int_equal(hl_dir_make(host, 0755), HL_OK);
    touch(hl_path_in(host, "seen").s);
    json_t *spec = spec_of("mount", "ls /in; touch /in/new 2>/dev/null || echo read-only", 1);
    json_object_set_new(spec, "mounts", json_pack("[s]", mount));
    if (!test_has_image()) {
        assert_int_equal(start_json(w, spec, NULL, 0), HL_EINVAL);
        assert_string_equal(
            hl_error_text(),
            "container mount: the executor process of this node can't honour mounts");
        return;
    }
    json_decref(run(w, "mount", spec));
    assert_log(w, "mount", 0, "seen\nread-only\n");
    spec = spec_of("none", "true", 1);
    json_object_set_new(spec, "mounts", json_pack("[s]", "/no/such:/in"));
    json_t *c = run(w, "none", spec);
    assert_state(c, "failed");
    assert_non_null(
        strstr(hl_json_str(c, "message", ""), "mounts[0]: /no/such is not on this node"));
    json_decref(c);
}

TEST_IN(setup, teardown, what_an_executor_cannot_honour_is_named)
{
    struct world *w = *state;
    json_t *spec = spec_of("keys", "true", 1);
    json_object_set_new(spec, test_has_image() ? "conda" : "image", json_string("x"));
    assert_int_equal(start_json(w, spec, NULL, 0), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), test_engine()));
    assert_non_null(strstr(hl_error_text(), test_has_image() ? "conda" : "dockerImage"));
    if (!test_has_image())
        return;
    spec = spec_of("keys", "true", 1);
    json_object_del(spec, "image");
    assert_int_equal(start_json(w, spec, NULL, 0), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "needs dockerImage"));
}

TEST_IN(setup, teardown, an_image_that_cannot_be_had_is_the_reason)
{
    struct world *w = *state;
    if (!test_has_image())
        TEST_SKIP("the executor process has no images");
    json_t *spec = spec_of("image", "true", 1);
    json_object_set_new(spec, "image", json_string("localhost:1/no/such:1"));
    json_t *c = run(w, "image", spec);
    assert_state(c, "failed");
    assert_non_null(
        strstr(hl_json_str(c, "message", ""), "image localhost:1/no/such:1 is not available: "));
    json_decref(c);
}

TEST_IN(setup, teardown, an_engine_that_is_down_is_the_reason)
{
    struct world *w = *state;
    const char *host = getenv("DOCKER_HOST");
    if (strcmp(test_engine(), "docker") != 0)
        TEST_SKIP("this executor has no daemon");
    char *before = strdup(host != NULL ? host : "");
    setenv("DOCKER_HOST", "unix:///no/such.sock", 1);
    json_t *c = run(w, "down", spec_of("down", "true", 1));
    if (host != NULL)
        setenv("DOCKER_HOST", before, 1);
    else
        unsetenv("DOCKER_HOST");
    free(before);
    assert_state(c, "failed");
    assert_non_null(strstr(hl_json_str(c, "message", ""), "does not answer"));
    assert_non_null(strstr(hl_json_str(c, "message", ""), "start its daemon"));
    json_decref(c);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    return tests_run(argc, argv);
}
