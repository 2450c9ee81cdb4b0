/* Reports of reads: which ones count, and what is recorded from them. */
#include "base/log.h"
#include "unit/controller/placement/placement_rig.h"

TEST_IN(world_start, world_end, a_report_that_is_repeated_counts_once)
{
    struct world *w = *state;
    assert_true(report(w, "a", 7, 1, 10));
    assert_false(report(w, "a", 7, 1, 10));
    assert_int_equal(accesses(w), 10);
    assert_true(report(w, "a", 7, 3, 4)); /* 2 is late, and arrives */
    assert_true(report(w, "a", 7, 2, 5));
    assert_false(report(w, "a", 7, 2, 5));
    assert_int_equal(accesses(w), 19);
}

TEST_IN(world_start, world_end, processes_of_one_node_number_their_reports_for_themselves)
{
    struct world *w = *state;
    struct hl_reader_count readers[HL_READERS];
    assert_true(report(w, "a", 7, 1, 10));
    assert_true(report(w, "a", 8, 1, 20));
    assert_true(report(w, "b", 9, 1, 40));
    assert_int_equal(accesses(w), 70);
    unsigned n = hl_attributes_readers(&placed(w)->use, &w->c.placement->core.params,
                                       placement_now_ms(), readers);
    assert_int_equal(n, 2);
    assert_string_equal(placed_node_name(&w->c, readers[0].node), "b");
    assert_int_equal((int)readers[0].count, 40);
    assert_int_equal((int)readers[1].count, 30); /* of both processes */
}

TEST_IN(world_start, world_end, a_silent_or_unknown_nodes_reports_move_nothing_and_count_once)
{
    struct world *w = *state;
    placement_node_silent(&w->c, &w->a);
    assert_true(report(w, "a", 7, 1, 10)); /* its metrics count */
    assert_false(report(w, "a", 7, 1, 10));
    assert_true(report(w, "nowhere", 8, 1, 10));
    assert_int_equal(accesses(w), 0);
    placement_node_registered(&w->c, &w->a);
    assert_true(report(w, "a", 7, 2, 3));
    assert_int_equal(accesses(w), 3);
}

TEST_IN(world_start, world_end, reads_that_do_not_count_are_logged_once_for_each_process)
{
    struct world *w = *state;
    unsigned said = hl_log_count(HL_LOG_INFO);
    report(w, "nowhere", 8, 1, 10);
    report(w, "nowhere", 8, 2, 10);
    assert_int_equal(hl_log_count(HL_LOG_INFO), said + 1);
    report(w, "nowhere", 9, 1, 10);
    assert_int_equal(hl_log_count(HL_LOG_INFO), said + 2);
    report(w, "", 10, 1, 10); /* on no node, as a command is */
    assert_int_equal(hl_log_count(HL_LOG_INFO), said + 2);
    placement_node_silent(&w->c, &w->a);
    report(w, "a", 7, 1, 10);
    placement_node_registered(&w->c, &w->a);
    report(w, "a", 7, 2, 10);
    placement_node_silent(&w->c, &w->a);
    report(w, "a", 7, 3, 10);
    assert_int_equal(hl_log_count(HL_LOG_INFO), said + 4);
}

TEST_IN(world_start, world_end, reports_of_an_older_client_steer_nothing)
{
    struct world *w = *state;
    assert_true(report(w, "a", 0, 0, 10));
    assert_true(report(w, "a", 0, 0, 10));
    assert_int_equal(accesses(w), 0);
}

TEST_IN(world_start, world_end, reads_that_a_process_could_not_tell_apart_are_counted_once)
{
    struct world *w = *state;
    const struct hl_id_text id = hl_id_format(w->shard->id);
    struct hl_api_access_report rows[] = {{.id = id.s, .count = 3, .path = "shm"},
                                          {.id = "", .count = 40, .path = "shm"},
                                          {.id = "", .count = 2, .path = "net"}};
    const struct hl_api_controller_report_access_params p = {
        .node = "a", .job = "", .reports = {rows, 3}, .incarnation = 7, .sequence = 1};
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(65536);
    assert_true(placement_report(&w->c, &p));
    assert_false(placement_report(&w->c, &p));
    assert_int_equal(accesses(w), 3);
    placement_gauges(&w->c, &text);
    assert_non_null(strstr(text.data, "helios_accesses_unnamed_total 42\n"));
}

/* The next entry for that cursor. */
static const struct hl_recorded *recorded(struct world *w, uint64_t *cursor)
{
    uint64_t lost = 0;
    const struct hl_recorded *e = hl_recording_take(&w->c.placement->recording, cursor, &lost);
    assert_int_equal(lost, 0);
    return e;
}

TEST_IN(world_start, world_end, what_counts_is_recorded_once_while_somebody_records)
{
    struct world *w = *state;
    uint64_t cursor = 0;
    assert_true(report(w, "a", 7, 1, 10)); /* nobody does */
    assert_int_equal(hl_recording_start(&w->c.placement->recording), HL_OK);
    w->c.placement->recorded_ms = placement_now_ms();
    assert_true(report(w, "a", 7, 2, 3));
    assert_false(report(w, "a", 7, 2, 3));
    assert_true(report(w, "nowhere", 8, 1, 4)); /* it does not influence placement, and was read */
    const struct hl_recorded *e = recorded(w, &cursor);
    assert_non_null(e);
    assert_string_equal(e->node, "a");
    assert_true(hl_id_equal(e->shard, w->shard->id) && !e->is_write);
    assert_int_equal(e->count, 3);
    assert_int_equal(e->size_bytes, w->shard->size_bytes);
    assert_in_range(e->span_ms, 0, HL_RECORDED_SPAN_MS - 1); /* since its report 1 */
    e = recorded(w, &cursor);
    assert_non_null(e);
    assert_string_equal(e->node, "nowhere");
    assert_int_equal(e->count, 4);
    assert_int_equal(e->span_ms, HL_RECORDED_SPAN_MS);
    assert_null(recorded(w, &cursor));
    record_tick(&w->c);
    assert_true(hl_recording_is_on(&w->c.placement->recording));
    w->c.placement->recorded_ms -= 61000;
    record_tick(&w->c);
    assert_false(hl_recording_is_on(&w->c.placement->recording));
}

TEST_IN(world_start, world_end, what_ranks_commit_is_recorded_as_written)
{
    struct world *w = *state;
    uint64_t cursor = 0;
    const struct hl_id_text id = hl_id_format(w->shard->id);
    struct hl_api_shard shard = {.id = id.s, .size_bytes = 77};
    assert_int_equal(hl_recording_start(&w->c.placement->recording), HL_OK);
    placement_written(&w->c, "b", &(struct hl_api_shard_list){&shard, 1});
    const struct hl_recorded *e = recorded(w, &cursor);
    assert_non_null(e);
    assert_true(e->is_write && hl_id_equal(e->shard, w->shard->id));
    assert_string_equal(e->node, "b");
    assert_int_equal(e->size_bytes, 77);
    assert_null(recorded(w, &cursor));
}

TEST_IN(world_start, world_end, reads_of_a_shard_that_no_pass_has_placed_yet_count)
{
    struct world *w = *state;
    struct hl_shard_rec gone = {.id = {.hi = 1, .lo = 2}};
    struct hl_version_rec *v = import_model(&w->c.catalog, "other", 3, "{}");
    w->shard = v->shards[0];
    assert_null(placed(w));
    assert_true(report(w, "a", 8, 1, 5));
    assert_non_null(placed(w));
    assert_int_equal(accesses(w), 5);
    follow(w); /* its turn comes, and changes nothing */
    assert_int_equal(accesses(w), 5);
    uint32_t placed_shards = w->c.placement->core.shards.count;
    w->shard = &gone; /* belongs to no version */
    assert_true(report(w, "a", 8, 2, 5));
    assert_int_equal(w->c.placement->core.shards.count, placed_shards);
}
