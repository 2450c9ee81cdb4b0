/* The path of ranks' output into their logs. This program is its own shim. */
#include "support/test.h"

#include <sys/resource.h>

#include "unit/hw/executor_world.h"

static void limit_files(pid_t pid, rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, NULL, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

static void touch(const struct world *w, const char *id, const char *name)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/containers/%s/work/%s", w->dir, id, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    close(fd);
}

/* Wait until the log has `after` somewhere after `text`. */
static void await_text(struct world *w, const char *id, const char *text, const char *after)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (bool found = false; !found;) {
        char *log = log_of(w, id, 0);
        const char *at = strstr(log, text);
        found = at != NULL && strstr(at, after) != NULL;
        free(log);
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

/* A container's warning once it contains `part`; to be freed. */
static char *await_warning(struct world *w, const char *id, const char *part)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    for (;;) {
        json_t *c = status_of(w, id);
        char *text = strdup(hl_json_str(c, "warning", ""));
        json_decref(c);
        if (strstr(text, part) != NULL)
            return text;
        free(text);
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

TEST_IN(setup, teardown, a_log_that_cannot_grow_has_a_marked_gap_and_the_rank_goes_on)
{
    struct world *w = *state;
    start(w, spec_of("full",
                     "until [ -e loud ]; do sleep 0.01; done; seq 100000 199999\n"
                     "until [ -e quiet ]; do echo tick; sleep 0.05; done; echo end",
                     1));
    limit_files(shim_of(w, "full"), 65536);
    touch(w, "full", "loud");
    char *warning = await_warning(w, "full", "output is dropped");
    assert_non_null(strstr(warning, "log of rank 0: File too large"));
    free(warning);
    limit_files(shim_of(w, "full"), RLIM_INFINITY);
    free(await_warning(w, "full", "KiB dropped")); /* it goes on */
    await_text(w, "full", "KiB dropped", "\ntick\n");
    touch(w, "full", "quiet");
    json_t *c = await_end(w, "full");
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, "full", 0);
    assert_memory_equal(log, "100000\n100001\n", 14);
    char *gap = strstr(log, "KiB dropped: File too large]\n");
    assert_non_null(gap);
    assert_true(gap - log > 65536 && gap - log < 65536 + 64); /* after everything that fitted */
    assert_memory_equal(strchr(gap, '\n') + 1, "tick\n", 5);
    assert_string_equal(log + strlen(log) - 9, "tick\nend\n");
    free(log);
}

TEST_IN(setup, teardown, output_of_what_a_rank_leaves_behind_does_not_hold_its_end_up)
{
    struct world *w = *state;
    json_t *c = run(w, "left", spec_of("left", "while :; do echo noise; done & sleep 0.1", 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    char *log = log_of(w, "left", 0);
    assert_memory_equal(log, "noise\n", 6);
    free(log);
}

TEST_IN(setup, teardown, a_rank_may_close_its_output)
{
    struct world *w = *state;
    json_t *c = run(w, "shut", spec_of("shut", "echo said; exec >&- 2>&-; sleep 0.2; exit 4", 1));
    assert_int_equal(hl_json_int(c, "exitCode", 0), 4);
    json_decref(c);
    char *log = log_of(w, "shut", 0);
    assert_string_equal(log, "said\n");
    free(log);
}

TEST_IN(setup, teardown, a_log_is_whole_as_soon_as_its_rank_has_ended)
{
    struct world *w = *state;
    for (int i = 0; i < 20; i++) {
        char id[24];
        struct hl_log_slice s;
        snprintf(id, sizeof(id), "whole-%d", i);
        json_decref(run(w, id, spec_of(id, "head -c 700000 /dev/zero | tr '\\0' x", 1)));
        assert_int_equal(hl_executor_read_log(w->ex, id, 0, -1, 1, &s), HL_OK);
        assert_int_equal(s.size, 700000);
        assert_true(s.finished);
        hl_buf_fini(&s.data);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    return tests_run(argc, argv);
}
