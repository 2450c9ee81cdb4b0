/* Recorded accesses of shards, as clients of the Controller fetch them over real RPC. */
#include "support/test.h"

#include "integration/controller_world.h"
#include "rpc/controller_calls.h"

#define REPORT 5000    /* entries of one report */
#define PIECE  4096    /* of one answer */
#define ROOM   65536ul /* that the Controller keeps */

/* Reports reads of the shards 1 to REPORT, each `count` times. */
static void report(uint64_t sequence, uint64_t count)
{
    static char ids[REPORT][33];
    static struct hl_api_access_report reads[REPORT];
    for (unsigned i = 0; i < REPORT; i++) {
        snprintf(ids[i], sizeof(ids[i]), "%032x", i + 1);
        reads[i] = (struct hl_api_access_report){.id = ids[i], .count = count, .path = "shm"};
    }
    const struct hl_api_controller_report_access_params p = {
        .node = "a", .job = "", .reports = {reads, REPORT}, .incarnation = 7, .sequence = sequence};
    assert_int_equal(hl_call_controller_report_access(w.peer, &p, CALL_MS, NULL, NULL), HL_OK);
}

struct taker {
    uint64_t recording, cursor, lost;
    uint64_t entries, accesses;
};

/* Takes one answer; returns its number of entries. */
static size_t take(struct taker *t)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_record_accesses_results r;
    const struct hl_api_controller_record_accesses_params p = {
        .recording = t->recording, .cursor = t->cursor, .limit = UINT32_MAX};
    assert_int_equal(hl_call_controller_record_accesses(w.peer, &p, CALL_MS, &arena, &r), HL_OK);
    t->recording = r.recording;
    t->cursor = r.next;
    t->lost += r.lost;
    t->entries += r.accesses.count;
    for (size_t i = 0; i < r.accesses.count; i++) {
        assert_string_equal(r.accesses.items[i].node, "a");
        assert_in_range(r.now_ms - r.accesses.items[i].at_ms, 0, WAIT_MS);
        t->accesses += r.accesses.items[i].count;
    }
    return r.accesses.count;
}

static void take_all(struct taker *t)
{
    while (take(t) > 0)
        ;
}

TEST_IN(setup, teardown, each_caller_gets_what_comes_after_its_beginning_in_pieces)
{
    struct taker first = {0}, second = {0};
    report(1, 1); /* nothing is recording */
    assert_int_equal(take(&first), 0);
    report(2, 3);
    assert_int_equal(take(&second), 0);
    assert_int_equal(first.recording, second.recording);
    report(3, 2);
    assert_int_equal(take(&first), PIECE);
    take_all(&first);
    take_all(&second);
    assert_int_equal(first.accesses, 5 * REPORT);
    assert_int_equal(second.accesses, 2 * REPORT);
    assert_int_equal(first.lost + second.lost, 0);
}

TEST_IN(setup, teardown, a_caller_that_is_too_slow_is_told_how_many_it_lacks)
{
    struct taker t = {0};
    take_all(&t);
    for (unsigned i = 1; i <= 14; i++)
        report(i, 1);
    take_all(&t);
    assert_int_equal(t.entries, ROOM);
    assert_int_equal(t.lost, 14 * REPORT - ROOM);
}

TEST_IN(setup, teardown, a_recording_of_another_life_of_the_controller_is_refused)
{
    struct taker old = {0}, again = {0};
    take_all(&old);
    restart_controller();
    take_all(&again); /* a second recorder */
    const struct hl_api_controller_record_accesses_params p = {
        .recording = old.recording, .cursor = old.cursor, .limit = 1};
    assert_int_equal(hl_call_controller_record_accesses(w.peer, &p, CALL_MS, NULL, NULL),
                     HL_ENOENT);
}

TEST_IN(setup, teardown, what_a_rank_commits_is_recorded_as_written)
{
    const char *id = "000000000000000000000000000000b1";
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_record_accesses_results r;
    struct hl_api_controller_record_accesses_params p = {.limit = 8};
    w.import_state = "done";
    import_until("m", "done");
    assert_int_equal(hl_call_controller_record_accesses(w.peer, &p, CALL_MS, &arena, &r), HL_OK);
    p.recording = r.recording;
    p.cursor = r.next;
    json_t *begun = ask("beginVersion", json_pack("{s:s s:s s:s s:s s:i s:i s:i}", "token", "1",
                                                  "check", "unchecked", "model", "m", "job", "",
                                                  "attempt", 0, "step", 1, "world", 1));
    assert_true(commit_part(hl_json_int(begun, "version", -1), 0, id));
    json_decref(begun);
    assert_int_equal(hl_call_controller_record_accesses(w.peer, &p, CALL_MS, &arena, &r), HL_OK);
    assert_int_equal(r.accesses.count, 1);
    assert_true(r.accesses.items[0].write);
    assert_string_equal(r.accesses.items[0].id, id);
    assert_int_equal(r.accesses.items[0].size_bytes, 50);
}
