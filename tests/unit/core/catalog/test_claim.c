/* Who may claim a pool or an archive. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/catalog/claim.h"

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

static const struct hl_id us = US, them = THEM;

static struct hl_claimant claimant(enum hl_api_claim_mode mode)
{
    return (struct hl_claimant){.cluster = us, .mode = mode};
}

TEST(a_claim_that_says_nothing_new_is_not_written)
{
    const struct hl_claimant own = claimant(HL_API_CLAIM_MODE_OWN);
    const struct hl_claimant take = claimant(HL_API_CLAIM_MODE_TAKE);
    struct hl_claimed found = {.cluster = us, .revision = 7};
    assert_true(hl_claim_stands(&found, &own, 7));
    assert_true(hl_claim_stands(&found, &own, 8)); /* completed before the next shard */
    assert_true(hl_claim_stands(&found, &take, 7));
    assert_false(hl_claim_stands(&found, &take, 8));
    found.damaged = true;
    assert_false(hl_claim_stands(&found, &own, 7));
    found = (struct hl_claimed){.cluster = them, .revision = 7};
    assert_false(hl_claim_stands(&found, &own, 7));
}

TEST(a_pool_s_revision_falls_only_when_it_is_taken)
{
    const struct hl_claimant own = claimant(HL_API_CLAIM_MODE_OWN);
    const struct hl_claimant take = claimant(HL_API_CLAIM_MODE_TAKE);
    const struct hl_claimed ours = {.cluster = us, .revision = 7};
    const struct hl_claimed theirs = {.cluster = them, .revision = 7};
    assert_int_equal(hl_claim_revision(&ours, &own, 5), 7);
    assert_int_equal(hl_claim_revision(&ours, &own, 9), 9);
    assert_int_equal(hl_claim_revision(&ours, &take, 5), 5);
    assert_int_equal(hl_claim_revision(&theirs, &own, 5), 5); /* another catalogue's number */
}

TEST(a_call_that_changes_a_pool_names_its_cluster)
{
    const struct hl_id nobody = NOBODY;
    assert_int_equal(hl_claim_permit("pool", nobody, ""), HL_OK);
    assert_int_equal(hl_claim_permit("pool", nobody, hl_id_format(them).s), HL_OK);
    assert_int_equal(hl_claim_permit("pool", us, hl_id_format(us).s), HL_OK);
    assert_int_equal(hl_claim_permit("pool", us, ""), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), hl_id_format(us).s));
    assert_int_equal(hl_claim_permit("archive", us, hl_id_format(them).s), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "archive"));
    assert_non_null(strstr(hl_error_text(), "helios recover"));
    assert_int_equal(hl_claim_permit("pool", us, "nonsense"), HL_EPERM);
}

TEST(an_archive_says_whose_it_is_before_a_shard_is_stored)
{
    const struct hl_claimed pool = {.cluster = us, .revision = 7},
                            unclaimed = {NOBODY, 0, 0, false};

    const struct {
        struct hl_claimed archive;
        enum hl_claim_sign want;
    } rows[] = {
        {{US, 7, 3, false}, HL_CLAIM_SIGNED},      {{US, 8, 3, false}, HL_CLAIM_SIGNED},
        {{US, 6, 3, false}, HL_CLAIM_SIGN},        {{US, 7, 3, true}, HL_CLAIM_FOREIGN},
        {{US, 7, 0, true}, HL_CLAIM_SIGN},         {{NOBODY, 0, 0, false}, HL_CLAIM_SIGN},
        {{NOBODY, 0, 1, false}, HL_CLAIM_FOREIGN}, {{THEM, 9, 1, false}, HL_CLAIM_FOREIGN},
        {{THEM, 9, 0, false}, HL_CLAIM_SIGN},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        assert_int_equal(hl_claim_sign(&pool, &rows[i].archive), rows[i].want);
        assert_int_equal(hl_claim_sign(&unclaimed, &rows[i].archive), HL_CLAIM_SIGNED);
    }
}

TEST(shards_of_nobody_are_strange_when_the_catalogue_knows_none)
{
    assert_true(hl_claim_is_strange(&(struct hl_claimed){NOBODY, 0, 3, false}, 0));
    assert_false(hl_claim_is_strange(&(struct hl_claimed){NOBODY, 0, 3, false}, 1));
    assert_false(hl_claim_is_strange(&(struct hl_claimed){NOBODY, 0, 0, false}, 0));
    assert_false(hl_claim_is_strange(&(struct hl_claimed){US, 7, 3, false}, 0));
}

TEST(a_claim_whose_answer_is_lost_counts_as_told)
{
    assert_true(hl_claim_is_told(HL_OK, true));
    assert_false(hl_claim_is_told(HL_OK, false));
    assert_true(hl_claim_is_told(HL_ETIMEDOUT, false));
    assert_true(hl_claim_is_told(HL_EUNAVAIL, false));
    assert_false(hl_claim_is_told(HL_EBUSY, true)); /* as before this call */
    assert_false(hl_claim_is_told(HL_EUNSUPPORTED, true));
}

TEST(a_recovery_continues_the_cluster_that_pool_or_archive_knows)
{
    const struct hl_id nobody = NOBODY, third = {3, 3};
    assert_true(hl_id_equal(hl_claim_heir(them, third, us), them));
    assert_true(hl_id_equal(hl_claim_heir(nobody, third, us), third));
    assert_true(hl_id_equal(hl_claim_heir(nobody, nobody, us), us));
}

TEST(a_recovery_that_claims_is_newer_than_all_and_one_that_does_not_stays_refused)
{
    /* the commit adds one */
    assert_int_equal(hl_claim_recovered(3, 8, 5, true), 8);
    assert_int_equal(hl_claim_recovered(3, 5, 9, true), 9);
    assert_int_equal(hl_claim_recovered(12, 8, 5, true), 12);
    assert_int_equal(hl_claim_recovered(3, 8, 5, false), 2);
}

TEST(an_archive_is_of_the_cluster_that_it_names_legibly)
{
    assert_true(hl_claim_is_of(&(struct hl_claimed){.cluster = US}, us));
    assert_false(hl_claim_is_of(&(struct hl_claimed){.cluster = THEM}, us));
    assert_false(hl_claim_is_of(&(struct hl_claimed){.cluster = US, .damaged = true}, us));
}
