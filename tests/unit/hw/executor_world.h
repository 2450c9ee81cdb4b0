/* Shared by the tests of the executors: an executor in a directory of its own, and its teardown. It
 * is `process`, or what HELIOS_TEST_ENGINE says; its containers then run in HELIOS_TEST_IMAGE. */
#ifndef HL_TESTS_EXECUTOR_WORLD_H
#define HL_TESTS_EXECUTOR_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "core/json.h"
#include "hw/process/process_executor.h"
#include "hw/process/process_executor_private.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/process.h"
#include "support/process_state.h"

/* How many times longer everything takes here: HELIOS_TEST_PATIENCE. */
static inline uint64_t patience(void)
{
    const char *times = getenv("HELIOS_TEST_PATIENCE");
    uint64_t n = 1;
    if (times != NULL && !hl_parse_number(times, 1000, &n))
        fail_msg("HELIOS_TEST_PATIENCE=%s is not a number up to 1000", times);
    return n;
}

/* Milliseconds for what must happen. */
static inline uint64_t deadline_ms(void)
{
    return 60000 * patience();
}

/* The pause between two looks, which on a slow machine delay what they wait for. */
static inline void rest(void)
{
    poll(NULL, 0, 3 * (int)patience());
}

struct world {
    char dir[64];
    struct hl_executor *ex;
};

static inline const char *test_engine(void)
{
    const char *name = getenv("HELIOS_TEST_ENGINE");
    return name != NULL ? name : "process";
}

static inline bool test_has_image(void)
{
    return strcmp(test_engine(), "process") != 0;
}

static inline void open_executor(struct world *w, bool foreign, uint64_t log_max)
{
    struct hl_executor_opts opts = {.name = test_engine(),
                                    .state_dir = w->dir,
                                    .foreign_topology = foreign,
                                    .log_max_bytes = log_max};
    hl_status st = hl_executor_open(&opts, &w->ex);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
}

static inline void reopen(struct world *w, bool foreign, uint64_t log_max)
{
    hl_executor_close(w->ex);
    open_executor(w, foreign, log_max);
}

static inline int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    snprintf(w->dir, sizeof(w->dir), "/tmp/helios-test-executor-XXXXXX");
    assert_non_null(mkdtemp(w->dir));
    open_executor(w, false, 0);
    *state = w;
    return 0;
}

/* List(ContainerStatus), new reference. */
static inline json_t *list_containers(struct world *w)
{
    struct hl_arena arena = {0};
    struct hl_api_agent_list_containers_results all;
    assert_int_equal(hl_executor_list(w->ex, &arena, &all.containers), HL_OK);
    json_t *json = hl_api_to_json(&hl_api_agent_list_containers_results_type, &all);
    hl_arena_fini(&arena);
    json_t *list = hl_json_take(json, "containers");
    json_decref(json);
    return list;
}

/* New reference to the status of a container. */
static inline json_t *status_of(struct world *w, const char *id)
{
    json_t *list = list_containers(w), *found = NULL;
    size_t i;
    json_t *c;
    json_array_foreach (list, i, c) {
        if (strcmp(hl_json_str(c, "id", ""), id) == 0)
            found = json_incref(c);
    }
    json_decref(list);
    return found;
}

static inline bool is_ended(const json_t *c)
{
    const char *state = hl_json_str(c, "state", "");
    return strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 ||
           strcmp(state, "stopped") == 0;
}

static inline json_t *await_end(struct world *w, const char *id)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (;;) {
        json_t *c = status_of(w, id);
        assert_non_null(c);
        if (is_ended(c))
            return c;
        json_decref(c);
        assert_true(hl_now_ns() < deadline);
        rest();
    }
}

/* Its shim may still be running: it removes the engine's record of it. */
static inline void forget(struct world *w, const char *id)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    hl_status st;
    while ((st = hl_executor_forget(w->ex, id)) == HL_EBUSY)
        assert_true(hl_now_ns() < deadline);
    assert_int_equal(st, HL_OK);
}

static inline int teardown(void **state)
{
    struct world *w = *state;
    json_t *list, *c;
    size_t i;
    if (w->ex != NULL) {
        list = list_containers(w);
        json_array_foreach (list, i, c) {
            assert_int_equal(hl_executor_stop(w->ex, hl_json_str(c, "id", ""), 0), HL_OK);
        }
        json_array_foreach (list, i, c) {
            json_decref(await_end(w, hl_json_str(c, "id", "")));
            forget(w, hl_json_str(c, "id", ""));
        }
        json_decref(list);
    }
    hl_executor_close(w->ex);
    assert_int_equal(hl_dir_remove(w->dir), HL_OK);
    free(w);
    return 0;
}

/* A container that runs `script` with sh in every rank; $NAP is how long it can sleep in a loop. */
static inline json_t *spec_of(const char *id, const char *script, int ranks)
{
    json_t *list = json_array();
    for (int i = 0; i < ranks; i++)
        json_array_append_new(list,
                              json_pack("{si s[{ss so}{ss so}]}", "rank", i, "env", "key", "RANK",
                                        "value", json_sprintf("%d", i), "key", "NAP", "value",
                                        json_sprintf("%.2f", 0.02 * (double)patience())));
    json_t *spec = json_pack("{ss s[sss] so si}", "id", id, "command", "/bin/sh", "-c", script,
                             "ranks", list, "stopGraceMs", 2000);
    if (test_has_image())
        json_object_set_new(spec, "image", json_string(getenv("HELIOS_TEST_IMAGE")));
    return spec;
}

/* Takes the JSON; the state's text goes to `state`. */
static inline hl_status start_json(struct world *w, json_t *json, char *state, size_t size)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_spec given;
    struct hl_container_spec spec;
    struct hl_container_status status;
    hl_status st = hl_api_from_json(&hl_api_container_spec_type, json, &arena, &given);
    json_decref(json);
    HL_TRY(st);
    HL_TRY(hl_container_spec_from_api(&given, &spec));
    st = hl_executor_start(w->ex, &spec, &status);
    hl_container_spec_fini(&spec);
    HL_TRY(st);
    if (state != NULL)
        snprintf(state, size, "%s", hl_run_state_text(status.state));
    hl_container_status_fini(&status);
    return HL_OK;
}

static inline void start(struct world *w, json_t *json)
{
    hl_status st = start_json(w, json, NULL, 0);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
}

static inline json_t *run(struct world *w, const char *id, json_t *json)
{
    start(w, json);
    return await_end(w, id);
}

static inline const json_t *rank_of(const json_t *c, size_t i)
{
    return json_array_get(hl_json_list(c, "ranks"), i);
}

/* The whole output of rank 0, to be freed. */
static inline char *log_of(struct world *w, const char *id, int rank)
{
    struct hl_log_slice s;
    assert_int_equal(hl_executor_read_log(w->ex, id, rank, 0, 0, &s), HL_OK);
    char *text = hl_buf_take(&s.data);
    return text != NULL ? text : strdup("");
}

/* Wait until rank 0 has written a line; returns the output. */
static inline char *await_line(struct world *w, const char *id, int rank)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (;;) {
        char *text = log_of(w, id, rank);
        if (strchr(text, '\n') != NULL)
            return text;
        free(text);
        assert_true(hl_now_ns() < deadline);
        rest();
    }
}

/* An engine's rank prints before its container's record says that it runs. Release the record with
 * json_decref. */
static inline json_t *await_running(struct world *w, const char *id)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (;;) {
        json_t *c = status_of(w, id);
        if (strcmp(hl_json_str(c, "state", ""), "running") == 0)
            return c;
        json_decref(c);
        assert_true(hl_now_ns() < deadline);
        rest();
    }
}

static inline bool process_lives(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    char state = process_state(path);
    return state != '\0' && state != 'Z' && state != 'X';
}

static inline void await_death(pid_t pid)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    while (process_lives(pid)) {
        assert_true(hl_now_ns() < deadline);
        rest();
    }
}

static inline pid_t shim_of(struct world *w, const char *id)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/containers/%s/shim.pid", w->dir, id);
    struct hl_buf text = HL_BUF(256);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    pid_t pid = (pid_t)atoi(text.data);
    hl_buf_fini(&text);
    return pid;
}

#endif
