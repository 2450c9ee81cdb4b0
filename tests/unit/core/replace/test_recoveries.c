/* Each replacement of a rank counts once, as a recovery of its own or merged into the next. */
#include "support/test.h"

#include <stdlib.h>

#include "core/replace/recoveries.h"

static void look(struct hl_recovery_seen *seen, uint32_t replaced, bool stepped, uint32_t lost,
                 uint32_t merged, bool recovered)
{
    struct hl_recovery_news news = hl_recovery_look(seen, replaced, stepped);
    assert_int_equal(news.lost, lost);
    assert_int_equal(news.merged, merged);
    assert_int_equal(news.recovered, recovered);
}

TEST(a_recovery_is_told_once_and_a_loss_too)
{
    struct hl_recovery_seen seen = {0};
    look(&seen, 0, false, 0, 0, false);
    look(&seen, 1, false, 1, 0, false);
    look(&seen, 1, false, 0, 0, false);
    look(&seen, 1, true, 0, 0, true);
    look(&seen, 1, true, 0, 0, false);
    look(&seen, 2, true, 1, 0, true); /* both between two looks */
}

TEST(a_recovery_that_another_loss_follows_at_once_is_merged)
{
    struct hl_recovery_seen seen = {0};
    look(&seen, 0, false, 0, 0, false);
    look(&seen, 1, false, 1, 0, false);
    look(&seen, 2, false, 1, 1, false); /* the first one has made no reported step */
    look(&seen, 2, true, 0, 0, true);
    look(&seen, 5, true, 3, 2, true); /* three losses between two looks */
}

TEST(what_was_before_the_first_look_is_no_news_but_what_goes_on_then)
{
    struct hl_recovery_seen seen = {0};
    look(&seen, 4, true, 0, 0, false);
    seen = (struct hl_recovery_seen){0};
    look(&seen, 4, false, 0, 0, false);
    look(&seen, 4, true, 0, 0, true);
    look(&seen, 0, false, 0, 0, false); /* another container */
    look(&seen, 1, true, 1, 0, true);
}

TEST(whatever_comes_each_replacement_is_counted_once)
{
    for (unsigned seed = 0; seed < 200; seed++) {
        struct hl_recovery_seen seen = {0};
        uint32_t replaced = 0, lost = 0, settled = 0;
        bool stepped = false;
        srand(seed);
        (void)hl_recovery_look(&seen, 0, false);
        for (int i = 0; i < 300; i++) {
            if (rand() % 3 == 0) {
                replaced += 1 + (uint32_t)(rand() % 3);
                stepped = false;
            }
            stepped |= rand() % 4 == 0;
            struct hl_recovery_news news = hl_recovery_look(&seen, replaced, stepped);
            lost += news.lost;
            settled += news.merged + news.recovered;
            assert_int_equal(lost, replaced);
            assert_true(settled <= replaced && settled + 1 >= replaced);
        }
    }
}
