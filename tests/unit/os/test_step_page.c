/* What a rank reports about its steps, and what a reader sees of it. */
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "os/map_guard.h"
#include "os/step_page.h"

#define MS UINT64_C(1000000)

static struct hl_step_state read_page(const struct hl_step_page *p)
{
    struct hl_step_state s = {0};
    assert_true(hl_step_read(p, &s));
    return s;
}

TEST(a_page_that_nobody_wrote_says_nothing)
{
    struct hl_step_page p = {0};
    struct hl_step_state s;
    assert_false(hl_step_read(&p, &s));
}

TEST(a_step_is_read_as_it_was_reported)
{
    struct hl_step_page p = {0};
    hl_step_begin(&p, 77, 5 * MS);
    assert_int_equal(read_page(&p).step, -1);
    hl_step_set_activity(&p, HL_STEP_TRAINING, 10 * MS);
    hl_step_report(&p, 0, 2.5, 100, 30 * MS);
    hl_step_report(&p, 1, 2.25, 50, 60 * MS);
    struct hl_step_state s = read_page(&p);
    assert_int_equal(s.pid, 77);
    assert_int_equal(s.activity, HL_STEP_TRAINING);
    assert_int_equal(s.step, 1);
    assert_int_equal(s.steps, 2);
    assert_true(s.loss == 2.25);
    assert_int_equal(s.tokens, 150);
    assert_int_equal(s.began_ns, 5 * MS);
    assert_int_equal(s.loaded_ns, 10 * MS);
    assert_int_equal(s.stepped_ns, 30 * MS);
    assert_int_equal(s.last_ns, 60 * MS);
    assert_int_equal(s.median_ns, 20 * MS); /* of 20 and 30 the lower one */
}

TEST(what_was_waited_for_others_is_not_the_ranks_own_time)
{
    struct hl_step_page p = {0};
    hl_step_begin(&p, 1, 0);
    hl_step_set_activity(&p, HL_STEP_TRAINING, 0);
    assert_int_equal(read_page(&p).own_ns, 0);
    for (uint64_t step = 0; step < 40; step++) {
        hl_step_waited(&p, 50 * MS);
        hl_step_waited(&p, 30 * MS);
        hl_step_report(&p, (int64_t)step, 0, 0, (step + 1) * 100 * MS);
    }
    assert_int_equal(read_page(&p).own_ns, 20 * MS);
    assert_int_equal(read_page(&p).median_ns, 100 * MS);
    for (uint64_t step = 40; step < 40 + HL_STEP_OWN; step++) /* waits count for one step only */
        hl_step_report(&p, (int64_t)step, 0, 0, (step + 1) * 100 * MS);
    assert_int_equal(read_page(&p).own_ns, 100 * MS);
    hl_step_waited(&p, 900 * MS); /* before the gang met: belongs to no step */
    hl_step_join(&p, 2, 6000 * MS);
    hl_step_set_activity(&p, HL_STEP_TRAINING, 6000 * MS);
    hl_step_report(&p, 41, 0, 0, 6010 * MS);
    assert_int_equal(read_page(&p).own_ns, 10 * MS);
    hl_step_waited(&p, 900 * MS); /* more than the step took: waits of other threads */
    hl_step_report(&p, 42, 0, 0, 6020 * MS);
    assert_int_equal(read_page(&p).own_ns, 0); /* of 0 and 10 the lower one */
}

TEST(time_for_saving_is_in_no_step)
{
    struct hl_step_page p = {0};
    hl_step_begin(&p, 1, 0);
    hl_step_report(&p, 0, 0, 0, 10 * MS); /* the start is not known: not timed */
    assert_int_equal(read_page(&p).median_ns, 0);
    hl_step_set_activity(&p, HL_STEP_SAVING, 11 * MS);
    assert_int_equal(read_page(&p).activity, HL_STEP_SAVING);
    hl_step_set_activity(&p, HL_STEP_TRAINING, 500 * MS);
    hl_step_report(&p, 1, 0, 0, 507 * MS);
    assert_int_equal(read_page(&p).median_ns, 7 * MS);
}

TEST(the_median_is_of_the_last_steps)
{
    struct hl_step_page p = {0};
    uint64_t now = MS;
    hl_step_begin(&p, 1, 0);
    hl_step_set_activity(&p, HL_STEP_TRAINING, now);
    for (int i = 0; i < 3 * HL_STEP_WINDOW; i++)
        hl_step_report(&p, i, 0, 0, now += i < 2 * HL_STEP_WINDOW ? 9 * MS : 4 * MS);
    assert_int_equal(read_page(&p).median_ns, 4 * MS);
}

TEST(a_generation_outlives_the_process_and_begins_without_steps)
{
    struct hl_step_page p = {0};
    hl_step_begin(&p, 1, 0);
    hl_step_join(&p, 3, 2 * MS);
    hl_step_report(&p, 8, 0, 10, 5 * MS);
    hl_step_begin(&p, 2, 6 * MS);
    struct hl_step_state s = read_page(&p);
    assert_int_equal(s.generation, 3);
    assert_int_equal(s.pid, 2);
    assert_int_equal(s.steps, 0);
    assert_int_equal(s.tokens, 0);
    assert_int_equal(s.step, 8); /* how far its place was */
    assert_int_equal(s.joined_ns, 0);
    hl_step_join(&p, 4, 9 * MS);
    s = read_page(&p);
    assert_int_equal(s.joined_ns, 9 * MS);
    assert_int_equal(s.activity, HL_STEP_LOADING);
    assert_int_equal(s.stepped_ns, 0);
    assert_int_equal(s.done_before, 9);
    hl_step_report(&p, 5, 0, 10, 12 * MS); /* 5 to 8 are made again */
    assert_int_equal(read_page(&p).done_before, 9);
    hl_step_join(&p, 5, 15 * MS);
    assert_int_equal(read_page(&p).done_before, 9);
}

TEST(the_last_losses_can_be_read_with_their_generation)
{
    static struct hl_step_page p;
    struct hl_step_point points[HL_STEP_WINDOW];
    size_t count = 9;
    uint64_t next = 9;
    assert_false(hl_step_curve(&p, 0, points, &count, &next));
    hl_step_begin(&p, 1, 0);
    hl_step_join(&p, 1, 1);
    for (int i = 0; i < 5; i++)
        hl_step_report(&p, i, 10 - i, 0, (uint64_t)i);
    hl_step_begin(&p, 2, 6);
    hl_step_join(&p, 2, 7);
    hl_step_report(&p, 3, 7, 0, 8);
    assert_true(hl_step_curve(&p, 4, points, &count, &next));
    assert_int_equal(count, 2);
    assert_int_equal(next, 6);
    assert_int_equal(points[0].generation, 1);
    assert_int_equal(points[0].step, 4);
    assert_true(points[0].loss == 6);
    assert_int_equal(points[1].generation, 2);
    assert_int_equal(points[1].step, 3);
    assert_true(points[1].loss == 7);
    for (int i = 0; i < HL_STEP_WINDOW; i++)
        hl_step_report(&p, 4 + i, i, 0, 9);
    assert_true(hl_step_curve(&p, 6, points, &count, &next));
    assert_int_equal(count, HL_STEP_WINDOW);
    assert_int_equal(points[HL_STEP_WINDOW - 1].step, 3 + HL_STEP_WINDOW);
    assert_true(hl_step_curve(&p, 0, points, &count, &next)); /* six are overwritten */
    assert_int_equal(next - count, 6);
}

TEST(a_writer_that_died_in_the_middle_is_not_read_and_its_successor_is)
{
    struct hl_step_page p = {0};
    struct hl_step_state s;
    hl_step_begin(&p, 1, MS);
    atomic_fetch_add(&p.turn, 1);
    assert_false(hl_step_read(&p, &s));
    hl_step_begin(&p, 2, 2 * MS);
    assert_int_equal(read_page(&p).pid, 2);
}

/* In each step all numbers are equal. */
static void *write_steps(void *arg)
{
    struct hl_step_page *p = arg;
    for (int i = 1; i <= 200000; i++)
        hl_step_report(p, i, i, 1, (uint64_t)i);
    return NULL;
}

TEST(a_reader_never_sees_half_a_step)
{
    static struct hl_step_page p;
    pthread_t writer;
    hl_step_begin(&p, 1, 0);
    assert_int_equal(pthread_create(&writer, NULL, write_steps, &p), 0);
    struct hl_step_state s = {0};
    while (s.step < 200000) {
        if (!hl_step_read(&p, &s) || s.steps == 0)
            continue;
        assert_int_equal(s.step, (int64_t)s.steps);
        assert_int_equal(s.tokens, s.steps);
        assert_true(s.loss == (double)s.step);
        assert_int_equal(s.last_ns, (uint64_t)s.step);
    }
    pthread_join(writer, NULL);
}

TEST(a_trouble_that_is_too_long_ends_with_a_whole_character)
{
    struct hl_step_page p = {0};
    char text[HL_STEP_TEXT + 8];
    for (size_t first = 0; first < 3; first++) { /* where the characters of 3 bytes begin */
        memset(text, 'x', sizeof(text));
        for (size_t i = first; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xE5\xBE\x88", 3);
        text[sizeof(text) - 1] = '\0';
        hl_step_trouble(&p, text);
        struct hl_step_state s = read_page(&p);
        assert_in_range(strlen(s.trouble), HL_STEP_TEXT - 3, HL_STEP_TEXT - 1);
        assert_true(hl_utf8_valid(s.trouble));
        assert_memory_equal(s.trouble, text, strlen(s.trouble));
    }
    hl_step_trouble(&p, "short");
    assert_string_equal(read_page(&p).trouble, "short");
}

/* An Agent reads files that its ranks can write, and must survive their changes. */
TEST(a_file_that_is_cut_short_while_it_is_mapped_says_nothing)
{
    char dir[] = "/tmp/helios-steps-XXXXXX", path[64];
    struct hl_step_pages pages = {0};
    struct hl_step_state s;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/steps", dir);
    hl_map_guard_install(); /* cmocka takes the signal for each test */
    assert_int_equal(hl_step_pages_create(path, 2), HL_OK);
    assert_int_equal(hl_step_pages_open(path, &pages), HL_OK);
    hl_step_begin(hl_step_page_at(&pages, 1), 9, 1);
    assert_int_equal(read_page(hl_step_page_at(&pages, 1)).pid, 9);
    assert_int_equal(truncate(path, 0), 0);
    assert_false(hl_step_read(hl_step_page_at(&pages, 0), &s));
    assert_false(hl_step_read(hl_step_page_at(&pages, 1), &s));
    hl_step_pages_close(&pages);
    assert_int_equal(hl_step_pages_open(path, &pages), HL_EINVAL);
    unlink(path);
    rmdir(dir);
}

TEST(a_page_is_found_by_its_text)
{
    char dir[] = "/tmp/helios-steps-XXXXXX", path[64], text[80];
    struct hl_step_pages pages = {0};
    struct hl_step_page *p = NULL;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/steps:1", dir);
    assert_int_equal(hl_step_pages_create(path, 3), HL_OK);
    assert_int_equal(hl_step_pages_create(path, 3), HL_OK);
    snprintf(text, sizeof(text), "%s:2", path);
    assert_int_equal(hl_step_page_find(text, &pages, &p), HL_OK);
    hl_step_begin(p, 9, 1);
    struct hl_step_pages again = {0};
    assert_int_equal(hl_step_pages_open(path, &again), HL_OK);
    assert_int_equal(again.count, 3);
    assert_int_equal(read_page(hl_step_page_at(&again, 2)).pid, 9);
    assert_null(hl_step_page_at(&again, 3));
    hl_step_pages_close(&again);
    hl_step_pages_close(&pages);
    snprintf(text, sizeof(text), "%s:3", path);
    assert_int_equal(hl_step_page_find(text, &pages, &p), HL_EINVAL);
    assert_int_equal(hl_step_page_find("/no/such:0", &pages, &p), HL_ENOENT);
    assert_int_equal(hl_step_page_find("nothing", &pages, &p), HL_EINVAL);
    assert_int_equal(hl_step_page_find("x:1y", &pages, &p), HL_EINVAL);
    unlink(path);
    rmdir(dir);
}
