/* Whose a pool or an archive may become. */
#include "support/test.h"

#include <stdio.h>

#include "core/claim.h"

#define NOBODY                                                                                     \
    {                                                                                              \
        0, 0                                                                                       \
    }
#define US                                                                                         \
    {                                                                                              \
        1, 1                                                                                       \
    }
#define THEM                                                                                       \
    {                                                                                              \
        2, 2                                                                                       \
    }

TEST(every_place_and_every_mode)
{
    enum { POOL, ARCHIVE };

    static const struct {
        const char *what;
        struct hl_claimed found;
        int place;
        enum hl_api_claim_result own, adopt;
    } rows[] = {
        {"new pool",
         {NOBODY, 0, 0, false},
         POOL,
         HL_API_CLAIM_RESULT_CLAIMED,
         HL_API_CLAIM_RESULT_CLAIMED},
        {"shards of nobody",
         {NOBODY, 0, 3, false},
         POOL,
         HL_API_CLAIM_RESULT_UNCLAIMED,
         HL_API_CLAIM_RESULT_CLAIMED},
        {"ours", {US, 7, 3, false}, POOL, HL_API_CLAIM_RESULT_CLAIMED, HL_API_CLAIM_RESULT_CLAIMED},
        {"ours, newer than we know",
         {US, 8, 3, false},
         POOL,
         HL_API_CLAIM_RESULT_NEWER,
         HL_API_CLAIM_RESULT_NEWER},
        {"theirs", {THEM, 1, 3, false}, POOL, HL_API_CLAIM_RESULT_OTHER, HL_API_CLAIM_RESULT_OTHER},
        {"their empty pool",
         {THEM, 1, 0, false},
         POOL,
         HL_API_CLAIM_RESULT_OTHER,
         HL_API_CLAIM_RESULT_OTHER},
        {"their empty archive",
         {THEM, 1, 0, false},
         ARCHIVE,
         HL_API_CLAIM_RESULT_CLAIMED,
         HL_API_CLAIM_RESULT_CLAIMED},
        {"their archive",
         {THEM, 1, 1, false},
         ARCHIVE,
         HL_API_CLAIM_RESULT_OTHER,
         HL_API_CLAIM_RESULT_OTHER},
        {"an owner that can't be read",
         {NOBODY, 0, 3, true},
         ARCHIVE,
         HL_API_CLAIM_RESULT_OTHER,
         HL_API_CLAIM_RESULT_OTHER},
        {"nothing of an owner that can't be read",
         {NOBODY, 0, 0, true},
         ARCHIVE,
         HL_API_CLAIM_RESULT_CLAIMED,
         HL_API_CLAIM_RESULT_CLAIMED},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_claimant who = {.cluster = US, .seen = 7};
        bool empty_is_free = rows[i].place == ARCHIVE;
        if (hl_claim_judge(&rows[i].found, &who, empty_is_free) != rows[i].own)
            fail_msg("%s: own", rows[i].what);
        who.mode = HL_API_CLAIM_MODE_ADOPT;
        if (hl_claim_judge(&rows[i].found, &who, empty_is_free) != rows[i].adopt)
            fail_msg("%s: adopt", rows[i].what);
        who.mode = HL_API_CLAIM_MODE_TAKE;
        if (hl_claim_judge(&rows[i].found, &who, empty_is_free) != HL_API_CLAIM_RESULT_CLAIMED)
            fail_msg("%s: take", rows[i].what);
    }
}

TEST(the_worst_answer_is_the_smallest)
{
    assert_true(HL_API_CLAIM_RESULT_OTHER < HL_API_CLAIM_RESULT_NEWER);
    assert_true(HL_API_CLAIM_RESULT_NEWER < HL_API_CLAIM_RESULT_UNCLAIMED);
    assert_true(HL_API_CLAIM_RESULT_UNCLAIMED < HL_API_CLAIM_RESULT_CLAIMED);
}
