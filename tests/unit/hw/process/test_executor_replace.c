/* A lost rank is replaced while the others of its container go on. This program is its own shim. */
#include "support/test.h"

#include "unit/hw/executor_world.h"

/* Each rank runs `script`; a lost one is replaced `max` times. */
static json_t *replaced_spec(const char *id, const char *script, int ranks, int max, int spares)
{
    json_t *spec = spec_of(id, script, ranks);
    json_object_set_new(
        spec, "replace",
        json_pack("{si sI si}", "max", max, "stableMs", (json_int_t)600000, "spares", spares));
    return spec;
}

TEST_IN(setup, teardown, a_killed_rank_is_started_again_and_the_other_stays)
{
    struct world *w = *state;
    json_t *c =
        run(w, "kill",
            replaced_spec("kill",
                          "if [ $RANK = 1 ] && [ ! -e lost ]; then : >lost; kill -KILL $$; fi; "
                          "if [ $RANK = 0 ]; then echo once; fi; "
                          "while [ ! -e lost ]; do sleep 0.01; done; exit 0",
                          2, 3, 0));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_int_equal(hl_json_int(rank_of(c, 0), "replaced", -1), 0);
    assert_int_equal(hl_json_int(rank_of(c, 1), "replaced", -1), 1);
    assert_int_equal(hl_json_int(rank_of(c, 1), "lostSignal", -1), SIGKILL);
    assert_true(hl_json_int(rank_of(c, 1), "lostMs", 0) > 0);
    json_decref(c);
    char *text = log_of(w, "kill", 0);
    assert_string_equal(text, "once\n");
    free(text);
}

TEST_IN(setup, teardown, a_mistake_is_not_made_again)
{
    struct world *w = *state;
    json_t *c = run(w, "usage", replaced_spec("usage", "echo begun; exit 2", 1, 3, 0));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_int_equal(hl_json_int(c, "exitCode", -1), 2);
    json_decref(c);
    char *text = log_of(w, "usage", 0);
    assert_string_equal(text, "begun\n");
    free(text);
}

TEST_IN(setup, teardown, what_follows_from_an_end_is_the_jobs_to_say)
{
    struct world *w = *state;
    json_t *spec =
        replaced_spec("told", "echo begun; [ -e again ] && exit 7; : >again; exit 2", 1, 3, 0);
    json_object_set_new(json_object_get(spec, "replace"), "onFailure",
                        json_string("mistake=count 7=fail"));
    json_t *c = run(w, "told", spec);
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_int_equal(hl_json_int(c, "exitCode", -1), 7);
    assert_int_equal(hl_json_int(rank_of(c, 0), "replaced", -1), 1);
    json_decref(c);
    char *text = log_of(w, "told", 0);
    assert_string_equal(text, "begun\nbegun\n");
    free(text);
}

TEST_IN(setup, teardown, the_container_fails_when_the_replacements_are_used_up)
{
    struct world *w = *state;
    json_t *c = run(w, "used", replaced_spec("used", "echo begun; exit 1", 1, 1, 0));
    assert_string_equal(hl_json_str(c, "state", ""), "failed");
    assert_string_equal(hl_json_str(c, "message", ""),
                        "rank 0 exited with code 1, after 1 replacements in this container");
    json_decref(c);
    char *text = log_of(w, "used", 0);
    assert_string_equal(text, "begun\nbegun\n"); /* one log */
    free(text);
}

/* A parked shell: it reads its variables as helios.elastic does. */
#define PARKED                                                                                     \
    "if [ -n \"$HELIOS_SPARE\" ]; then : >parked; R=$(tr '\\000' '\\n' <&3 | sed -n "              \
    "'s/^RANK=//p');"                                                                              \
    " [ -n \"$R\" ] || exit 0; echo \"spare is $R, was '$RANK'\"; exit 0; fi; "

/* Waits until a process of the container has created it. */
static void await_file(const struct world *w, const char *id, const char *name)
{
    uint64_t deadline = hl_now_ns() + deadline_ms() * HL_NS_PER_MS;
    char path[256];
    snprintf(path, sizeof(path), "%s/containers/%s/work/%s", w->dir, id, name);
    while (access(path, F_OK) != 0) {
        assert_true(hl_now_ns() < deadline);
        poll(NULL, 0, 3);
    }
}

TEST_IN(setup, teardown, a_spare_takes_the_place_of_the_lost_rank)
{
    struct world *w = *state;
    json_t *c = run(w, "spare",
                    replaced_spec("spare",
                                  PARKED "while [ ! -e parked ]; do sleep 0.01; done; "
                                         "if [ $RANK = 1 ]; then kill -KILL $$; fi; exit 0",
                                  2, 3, 1));
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    assert_int_equal(hl_json_int(rank_of(c, 1), "replaced", -1), 1);
    json_decref(c);
    char *text = log_of(w, "spare", 1);
    assert_string_equal(text, "spare is 1, was ''\n");
    free(text);
}

TEST_IN(setup, teardown, a_container_without_ranks_parks_and_takes_those_that_it_is_given)
{
    struct world *w = *state;
    json_t *spec = replaced_spec("given", PARKED "exit 9", 2, 3, 2);
    json_t *parked = json_deep_copy(spec);
    json_object_set_new(parked, "ranks", json_array());
    start(w, parked);
    await_file(w, "given", "parked");
    json_t *c = status_of(w, "given");
    assert_string_equal(hl_json_str(c, "state", ""), "running");
    assert_int_equal(json_array_size(json_object_get(c, "ranks")), 0);
    json_decref(c);
    start(w, spec);
    c = await_end(w, "given");
    assert_string_equal(hl_json_str(c, "state", ""), "succeeded");
    json_decref(c);
    for (int rank = 0; rank < 2; rank++) {
        char want[64], *text = log_of(w, "given", rank);
        snprintf(want, sizeof(want), "spare is %d, was ''\n", rank);
        assert_string_equal(text, want);
        free(text);
    }
}

TEST_IN(setup, teardown, a_container_without_ranks_stops_when_it_is_asked_to)
{
    struct world *w = *state;
    json_t *parked = replaced_spec("idle", PARKED "exit 9", 1, 3, 1);
    json_object_set_new(parked, "ranks", json_array());
    start(w, parked);
    await_file(w, "idle", "parked");
    assert_int_equal(hl_executor_stop(w->ex, "idle", 1000), HL_OK);
    json_t *c = await_end(w, "idle");
    assert_string_equal(hl_json_str(c, "state", ""), "stopped");
    json_decref(c);
}

TEST_IN(setup, teardown, spares_end_with_the_container)
{
    struct world *w = *state;
    start(w, replaced_spec("end",
                           "if [ -n \"$HELIOS_SPARE\" ]; then echo $$ >spare; exec sleep 100; fi; "
                           "while [ ! -s spare ]; do sleep 0.01; done; echo; exec sleep 100",
                           1, 3, 1));
    free(await_line(w, "end", 0));
    char path[256];
    struct hl_buf text = HL_BUF(64);
    snprintf(path, sizeof(path), "%s/containers/end/work/spare", w->dir);
    assert_int_equal(hl_file_read(path, &text), HL_OK);
    pid_t spare = (pid_t)atoi(text.data);
    hl_buf_fini(&text);
    assert_true(process_lives(spare));
    assert_int_equal(hl_executor_stop(w->ex, "end", 1000), HL_OK);
    json_decref(await_end(w, "end"));
    await_death(spare);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "shim") == 0)
        return hl_shim_main(argv[2]);
    hl_log_set_level(HL_LOG_WARN);
    return tests_run(argc, argv);
}
