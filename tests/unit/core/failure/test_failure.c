/* Which rank failed first, and which of its lines are kept. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/failure/failure.h"

static struct hl_api_rank_status failed(int rank, int code, int signal, int64_t at)
{
    return (struct hl_api_rank_status){.rank = rank,
                                       .state = HL_API_CONTAINER_STATE_FAILED,
                                       .exit_code = code,
                                       .signal = signal,
                                       .finished_ms = at};
}

static struct hl_api_container_status container(const char *id, const char *message,
                                                struct hl_api_rank_status *ranks, size_t count)
{
    return (struct hl_api_container_status){.id = id,
                                            .state = HL_API_CONTAINER_STATE_FAILED,
                                            .message = message,
                                            .finished_ms = 9000,
                                            .ranks = {ranks, count}};
}

TEST(the_earliest_end_counts_by_one_clock_for_all_nodes)
{
    struct hl_api_job_failure first = {.attempt = 2, .rank = -1};
    struct hl_api_rank_status a[] = {failed(0, 1, 0, 5000), failed(1, 1, 0, 4900)};
    struct hl_api_rank_status b[] = {failed(2, 139, 11, 605000)}; /* ten minutes ahead: 5000 */
    struct hl_api_rank_status c[] = {failed(3, 7, 0, 1000)};      /* four seconds behind: 5000 */
    struct hl_api_container_status x = container("j.2.0", "rank 1 exited with code 1", a, 2);
    struct hl_api_container_status y = container("j.2.1", "rank 2 killed by signal 11", b, 1);
    struct hl_api_container_status z = container("j.2.2", "rank 3 exited with code 7", c, 1);
    hl_failure_consider(&first, &x, "node-0", 0);
    hl_failure_consider(&first, &y, "node-1", 600200);
    hl_failure_consider(&first, &z, "node-2", -4000);
    assert_int_equal(first.rank, 2);
    assert_string_equal(first.node, "node-1");
    assert_int_equal(first.time_ms, 4800);
    assert_int_equal(first.kind, HL_API_FAILURE_KIND_SIGNAL);
    assert_int_equal(first.signal, 11);
    assert_int_equal(first.attempt, 2);
    assert_int_equal(first.later_ranks, 3);
}

TEST(ranks_that_were_stopped_or_succeeded_did_not_fail)
{
    struct hl_api_job_failure first = {.rank = -1};
    struct hl_api_rank_status ranks[] = {
        {.rank = 0, .state = HL_API_CONTAINER_STATE_STOPPED, .exit_code = 143, .finished_ms = 100},
        {.rank = 1, .state = HL_API_CONTAINER_STATE_SUCCEEDED, .finished_ms = 50}};
    struct hl_api_container_status x = container("j.1.0", "", ranks, 2);
    x.state = HL_API_CONTAINER_STATE_STOPPED;
    hl_failure_consider(&first, &x, "node-0", 0);
    assert_int_equal(first.time_ms, 0);
}

static enum hl_api_failure_kind kind_said(const char *message, int state)
{
    struct hl_api_job_failure first = {.rank = -1};
    struct hl_api_container_status x = container("j.1.0", message, NULL, 0);
    x.state = state;
    x.signal = 9;
    hl_failure_consider(&first, &x, "node-0", 0);
    return first.kind;
}

TEST(the_kind_is_what_the_container_says)
{
    assert_int_equal(kind_said("rank 4 killed by signal 9 (out of memory: the container's limit is "
                               "64 MiB)",
                               HL_API_CONTAINER_STATE_FAILED),
                     HL_API_FAILURE_KIND_MEMORY);
    assert_int_equal(
        kind_said("rank 4 killed by signal 9 (out of memory?)", HL_API_CONTAINER_STATE_FAILED),
        HL_API_FAILURE_KIND_SIGNAL);
    assert_int_equal(kind_said("python3 was not found", HL_API_CONTAINER_STATE_FAILED),
                     HL_API_FAILURE_KIND_LAUNCH);
    assert_int_equal(kind_said("", HL_API_CONTAINER_STATE_LOST), HL_API_FAILURE_KIND_LOST);
}

TEST(a_sentence_names_rank_node_and_how)
{
    char text[160];
    struct hl_api_job_failure f = {.rank = 3,
                                   .node = "node-1",
                                   .container = "j.1.0",
                                   .kind = HL_API_FAILURE_KIND_MEMORY,
                                   .signal = 9,
                                   .message = ""};
    hl_failure_sentence(&f, text, sizeof(text));
    assert_string_equal(text, "rank 3 on node-1 was killed for want of memory (signal 9)");
    f.kind = HL_API_FAILURE_KIND_LOST;
    f.rank = -1;
    hl_failure_sentence(&f, text, sizeof(text));
    assert_string_equal(text, "container j.1.0 was lost with node node-1");
}

TEST(a_container_that_nobody_watched_to_its_end_is_lost_whatever_its_signal_says)
{
    char text[160];
    struct hl_api_job_failure first = {.rank = -1};
    struct hl_api_rank_status ranks[] = {failed(3, 137, 9, 9000)};
    struct hl_api_container_status x = container("j.1.0", "its shim ended", ranks, 1);
    x.lost = true;
    hl_failure_consider(&first, &x, "node-1", 0);
    assert_int_equal(first.kind, HL_API_FAILURE_KIND_LOST);
    hl_failure_sentence(&first, text, sizeof(text));
    assert_string_equal(text, "rank 3 on node-1 was lost: its shim ended");
}

TEST(the_last_200_lines_are_kept_and_no_half_one)
{
    char *text = malloc(1 << 20);
    size_t len = 0;
    for (int i = 0; i < 300; i++)
        len += (size_t)snprintf(text + len, 32, "line %d\n", i);
    size_t at = hl_failure_tail(text, len);
    assert_memory_equal(text + at, "line 100\n", 9);
    at = hl_failure_tail(text, len - 1); /* the last line lacks its newline: it counts as one */
    assert_memory_equal(text + at, "line 100\n", 9);
    assert_int_equal(hl_failure_tail("one\ntwo\n", 8), 0);
    assert_int_equal(hl_failure_tail("", 0), 0);
    memset(text, 'x', 1 << 20); /* lines that are too long to keep all */
    text[(1 << 20) - 1000] = '\n';
    at = hl_failure_tail(text, 1 << 20);
    assert_int_equal(at, (1 << 20) - 999);
    free(text);
}

TEST(a_failed_container_has_the_kind_of_the_rank_that_failed_first)
{
    struct hl_api_rank_status ranks[] = {failed(4, 2, 0, 5000), failed(5, 1, 0, 4000)};
    struct hl_api_container_status c = container("j.1.0", "rank 5 exited with code 1", ranks, 2);
    int rank;
    assert_int_equal(hl_failure_kind(&c, &rank), HL_API_FAILURE_KIND_EXIT);
    assert_int_equal(rank, 5);
    ranks[1].progress.activity = HL_API_RANK_ACTIVITY_SAVING;
    assert_int_equal(hl_failure_kind(&c, &rank), HL_API_FAILURE_KIND_SAVE);
    ranks[0].finished_ms = 3000;
    assert_int_equal(hl_failure_kind(&c, &rank), HL_API_FAILURE_KIND_MISTAKE);
    assert_int_equal(rank, 4);
    c = container("j.1.0", "its directory can't be made", NULL, 0);
    assert_int_equal(hl_failure_kind(&c, &rank), HL_API_FAILURE_KIND_LAUNCH);
    assert_int_equal(rank, -1);
}
