/* How a container is started by its engine, with a program that stands in for docker's client: it
 * records its calls and answers in Docker's own words, some of which depend on the host. This
 * program is its own shim. */
#include "support/test.h"

#include "hw/engine/image_pulls.h"
#include "unit/hw/executor_world.h"

/* $D is the test's directory: `calls` has a line for each call, and files hold the engine's
 * state. */
static const char client[] =
    "#!/bin/sh\n"
    "D=${0%/*}\n"
    "echo \"$*\" >>$D/calls\n"
    "no() { echo \"Error response from daemon: $1\" >&2; exit 1; }\n"
    "case $1 in\n"
    "image) [ -e $D/image ] && cat $D/image && exit 0\n"
    "    echo; no \"no such image: $4: No such image: $4\" ;;\n"
    "pull) until [ ! -e $D/slow ]; do echo 'a: Pulling fs layer'; /bin/sleep 0.02; done\n"
    "    [ ! -e $D/none ] || no \"manifest for $2 not found: manifest unknown: manifest unknown\"\n"
    "    echo \"sha256:aa [\\\"${2%:*}@sha256:bb\\\"]\" >$D/image ;;\n"
    "create) case \"$*\" in *--ulimit=memlock*) echo m >$D/memlock ;; *) rm -f $D/memlock ;; esac\n"
    "    echo c0ffee ;;\n"
    "start) [ ! -e $D/user ] || no 'crun: the requested cgroup controller `cpuset` is not "
    "available'\n"
    "    if [ -e $D/memlock ] && [ -e $D/refuse ]; then\n"
    "        no \"failed to create shim task: OCI runtime create failed: runc create failed: "
    "unable "
    "to start container process: error during container init: error setting rlimits for ready "
    "process: error setting rlimit type 8: operation not permitted: unknown\"\n"
    "    fi; echo x >$D/started ;;\n"
    "inspect) [ ! -e $D/broken ] || no 'the store is damaged'\n"
    "    [ -e $D/runs ] && cat $D/runs && exit 0\n"
    "    [ -e $D/started ] && echo 'c0ffee exited 0 false 0 ' ;;\n"
    "logs) if [ -e $D/late ]; then cat $D/output; else head -n 1 $D/output; : >$D/late; fi ;;\n"
    "ps) [ ! -e $D/started ] || echo 'c0ffee 0' ;;\n"
    "rm) rm -f $D/started ;;\n"
    "esac\n"
    "exit 0\n";

static void put(struct world *w, const char *name, const char *text)
{
    assert_int_equal(hl_file_write_atomic(hl_path_in(w->dir, name).s, text, strlen(text)), HL_OK);
}

static void drop(struct world *w, const char *name)
{
    assert_int_equal(unlink(hl_path_in(w->dir, name).s), 0);
}

static int set_up_engine(void **state)
{
    char path[128];
    setenv("HELIOS_TEST_ENGINE", "docker", 1);
    setenv("HELIOS_TEST_IMAGE", "reg/train:1", 1);
    struct world *w = calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-engine-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    put(w, "docker", client);
    put(w, "output", "");
    assert_int_equal(chmod(hl_path_in(w->dir, "docker").s, 0755), 0);
    snprintf(path, sizeof(path), "%s:/usr/bin:/bin", w->dir);
    setenv("PATH", path, 1);
    open_executor(w, false, 0);
    *state = w;
    return 0;
}

static char *calls_of(struct world *w)
{
    struct hl_buf text = HL_BUF(1 << 20);
    assert_int_equal(hl_file_read(hl_path_in(w->dir, "calls").s, &text), HL_OK);
    return hl_buf_take(&text);
}

static size_t count_of(const char *text, const char *word)
{
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += strlen(word))
        n++;
    return n;
}

TEST_IN(set_up_engine, teardown, a_limit_that_the_host_refuses_is_left_out_and_warned_of)
{
    struct world *w = *state;
    put(w, "image", "sha256:aa []\n");
    put(w, "refuse", "");
    json_t *c = run(w, "locked", spec_of("locked", "true", 1));
    assert_string_equal(hl_json_str(c, "message", "?"), "");
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_non_null(strstr(hl_json_str(c, "warning", ""),
                           "the host does not grant docker unlimited locked memory (memlock)"));
    json_decref(c);
    char *calls = calls_of(w);
    assert_int_equal(count_of(calls, "create "), 2);
    assert_int_equal(count_of(calls, "--ulimit=memlock=-1:-1"), 1);
    assert_true(strstr(calls, "rm --force c0ffee") <
                strstr(strstr(calls, "create ") + 1, "create "));
    free(calls);
}

TEST_IN(set_up_engine, teardown, a_limit_that_the_host_grants_is_no_warning)
{
    struct world *w = *state;
    put(w, "image", "sha256:aa []\n");
    json_t *c = run(w, "granted", spec_of("granted", "true", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_string_equal(hl_json_str(c, "warning", "?"), "");
    json_decref(c);
    char *calls = calls_of(w);
    assert_int_equal(count_of(calls, "create "), 1);
    assert_int_equal(count_of(calls, "--ulimit=memlock=-1:-1"), 1);
    free(calls);
}

/* Docker 20.10 may end `logs --follow` before the last lines of a container that ends. */
TEST_IN(set_up_engine, teardown, a_log_has_the_lines_that_its_first_follower_missed)
{
    struct world *w = *state;
    put(w, "image", "sha256:aa []\n");
    put(w, "output", "a line\nthe last words");
    json_t *c = run(w, "late", spec_of("late", "true", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, "late", 0);
    assert_string_equal(log, "a line\nthe last words");
    free(log);
}

TEST_IN(set_up_engine, teardown, a_control_group_that_is_not_delegated_comes_with_advice)
{
    struct world *w = *state;
    put(w, "image", "sha256:aa []\n");
    put(w, "user", "");
    json_t *c = run(w, "own", spec_of("own", "true", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0: docker start: crun: the requested cgroup controller `cpuset` is "
                        "not available; systemd has to delegate it to the Agent's user "
                        "(docs/executors.md), or root to run the Agent");
    json_decref(c);
}

/* Its name tells what it is, but not where it is from. */
TEST_IN(set_up_engine, teardown, an_image_by_id_that_is_not_here_is_not_looked_for_in_a_registry)
{
    struct world *w = *state;
    json_t *spec = spec_of("id", "true", 1);
    json_object_set_new(spec, "image", json_string("sha256:1234"));
    json_t *c = run(w, "id", spec);
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_non_null(strstr(hl_json_str(c, "message", ""),
                           "image sha256:1234 is not available: it has no registry and is not "
                           "on this node; load it on every node (docker load)"));
    json_decref(c);
    char *calls = calls_of(w);
    assert_int_equal(count_of(calls, "pull "), 0);
    assert_int_equal(count_of(calls, "create "), 0);
    free(calls);
}

/* ---- an engine that fails while containers run ---- */

static void await_warning(struct world *w, const char *id, const char *words)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (;;) {
        json_t *c = status_of(w, id);
        const char *warning = hl_json_str(c, "warning", "");
        assert_false(is_ended(c));
        bool came = words[0] != '\0' ? strstr(warning, words) != NULL : warning[0] == '\0';
        if (!came && hl_now_ns() >= deadline)
            fail_msg("its warning is '%s', not '%s'", warning, words);
        json_decref(c);
        if (came)
            return;
        poll(NULL, 0, 5);
    }
}

static void assert_ends_well(struct world *w, const char *id)
{
    drop(w, "runs");
    json_t *c = await_end(w, id);
    assert_string_equal(hl_json_str(c, "message", "?"), "");
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
}

/* The engine says that it runs, until told otherwise. */
static void start_running(struct world *w, const char *id)
{
    put(w, "image", "sha256:aa []\n");
    put(w, "runs", "c0ffee running 0 false 0 \n");
    start(w, spec_of(id, "true", 1));
    json_decref(await_running(w, id));
}

TEST_IN(set_up_engine, teardown, a_client_that_is_away_for_a_while_ends_no_container)
{
    struct world *w = *state;
    struct hl_path client_path = hl_path_in(w->dir, "docker");
    start_running(w, "on");
    assert_int_equal(rename(client_path.s, hl_path_in(w->dir, "away").s), 0);
    await_warning(w, "on", "; its ranks may run on"); /* after the output of exec, or of its sh */
    assert_int_equal(rename(hl_path_in(w->dir, "away").s, client_path.s), 0);
    await_warning(w, "on", "");
    assert_ends_well(w, "on");
}

TEST_IN(set_up_engine, teardown, an_engine_that_fails_for_a_while_is_a_warning)
{
    struct world *w = *state;
    start_running(w, "ill");
    put(w, "broken", "");
    await_warning(w, "ill", "docker inspect: the store is damaged; its ranks may run on");
    drop(w, "broken");
    await_warning(w, "ill", "");
    assert_ends_well(w, "ill");
}

/* Its successor knows only what the engine tells. */
TEST_IN(set_up_engine, teardown, a_shim_that_follows_a_killed_one_waits_for_an_engine_that_fails)
{
    struct world *w = *state;
    start_running(w, "next");
    put(w, "broken", "");
    kill(shim_of(w, "next"), SIGKILL);
    await_warning(w, "next", "docker inspect: the store is damaged; its ranks may run on");
    drop(w, "broken");
    await_warning(w, "next", "");
    assert_ends_well(w, "next");
}

/* ---- images ahead of containers ---- */

struct answer {
    struct hl_arena arena;
    struct hl_api_agent_prepare_image_results r;
};

static struct answer ask(struct hl_image_pulls *p)
{
    struct answer a = {0};
    assert_int_equal(hl_image_pulls_prepare(p, "reg/train:1", &a.arena, &a.r), HL_OK);
    return a;
}

static void await_answer(struct hl_image_pulls *p, enum hl_api_image_state state,
                         const char *pinned, const char *text)
{
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    for (;;) {
        struct answer a = ask(p);
        bool came =
            a.r.state == state && strcmp(a.r.pinned, pinned) == 0 && strstr(a.r.text, text) != NULL;
        if (!came && hl_now_ns() >= deadline)
            fail_msg("state %d, pinned '%s', text '%s'", a.r.state, a.r.pinned, a.r.text);
        hl_arena_fini(&a.arena);
        if (came)
            return;
        poll(NULL, 0, 5);
    }
}

TEST_IN(set_up_engine, teardown, an_image_is_pulled_once_and_tells_how_far_it_is)
{
    struct world *w = *state;
    struct hl_image_pulls *p;
    assert_int_equal(hl_image_pulls_open("docker", &p), HL_OK);
    put(w, "slow", "");
    await_answer(p, HL_API_IMAGE_STATE_PULLING, "", "pulling reg/train:1: 0 of ");
    drop(w, "slow");
    await_answer(p, HL_API_IMAGE_STATE_HERE, "reg/train@sha256:bb", "");
    hl_image_pulls_close(p);
    char *calls = calls_of(w);
    assert_int_equal(count_of(calls, "pull "), 1);
    free(calls);
}

TEST_IN(set_up_engine, teardown, an_image_that_is_nowhere_is_told_and_looked_for_again)
{
    struct world *w = *state;
    struct hl_image_pulls *p;
    assert_int_equal(hl_image_pulls_open("docker", &p), HL_OK);
    put(w, "none", "");
    await_answer(p, HL_API_IMAGE_STATE_ABSENT, "", "manifest for reg/train:1 not found");
    drop(w, "none");
    await_answer(p, HL_API_IMAGE_STATE_HERE, "reg/train@sha256:bb", "");
    hl_image_pulls_close(p);
}

TEST_IN(set_up_engine, teardown, a_pull_ends_with_who_asked_for_it)
{
    struct world *w = *state;
    struct hl_image_pulls *p;
    assert_int_equal(hl_image_pulls_open("docker", &p), HL_OK);
    put(w, "slow", "");
    await_answer(p, HL_API_IMAGE_STATE_PULLING, "", "pulling reg/train:1: 0 of ");
    hl_image_pulls_close(p); /* otherwise it would wait for ever */
    assert_int_equal(hl_image_pulls_open("process", &p), HL_OK);
    struct hl_arena arena = {0};
    struct hl_api_agent_prepare_image_results r;
    assert_int_equal(hl_image_pulls_prepare(p, "x", &arena, &r), HL_EUNSUPPORTED);
    hl_image_pulls_close(p);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_ERROR);
    return tests_run(argc, argv);
}
