/* Whether this Controller may change the pool: what it asks of L3, and how it handles the
 * answers. */
#include "unit/controller/catalog_rig.h"
#include "unit/controller/l3_stub.h"

#define THEM "00000000000000000000000000000bad"

/* Asks, and gets this answer. */
static void ask(struct l3_stub *s, const struct hl_api_l3_claim_results *answer)
{
    s->claim = *answer;
    if (s->claim.cluster == NULL)
        s->claim.cluster = "";
    if (s->claim.archive_cluster == NULL)
        s->claim.archive_cluster = "";
    claim_ask(&s->c);
    l3_stub_run(s);
}

TEST(nothing_is_changed_before_l3_has_answered)
{
    struct l3_stub s;
    char why[200];
    l3_stub_start(&s);
    assert_false(claim_ok(&s.c, why, sizeof(why)));
    assert_true(why[0] != '\0');
    assert_int_equal(claim_check(&s.c), HL_OK); /* nothing can reach it in any case */
    l3_stub_end(&s);
}

TEST(every_answer_of_l3_lets_change_the_pool_or_says_why_not)
{
    static const struct {
        struct hl_api_l3_claim_results answer;
        enum claim_state state;
        const char *named; /* in the reason */
    } rows[] = {
        {{.state = HL_API_CLAIM_RESULT_CLAIMED}, CLAIM_OK, ""},
        {{.state = HL_API_CLAIM_RESULT_UNCLAIMED, .shards = 73}, CLAIM_REFUSED, "73"},
        {{.state = HL_API_CLAIM_RESULT_OTHER, .cluster = THEM, .archive_cluster = THEM},
         CLAIM_REFUSED,
         "the pool belongs to cluster " THEM},
        {{.state = HL_API_CLAIM_RESULT_OTHER, .archive_cluster = THEM},
         CLAIM_REFUSED,
         "the archive belongs to cluster " THEM},
        {{.state = HL_API_CLAIM_RESULT_OTHER, .archive_damaged = true},
         CLAIM_REFUSED,
         "helios-cluster.json"},
        {{.state = HL_API_CLAIM_RESULT_NEWER, .revision = 74}, CLAIM_REFUSED, "revision 74"},
        {{.state = HL_API_CLAIM_RESULT_NEWER, .archive_revision = 75},
         CLAIM_REFUSED,
         "revision 75"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct l3_stub s;
        char why[400];
        l3_stub_start(&s);
        ask(&s, &rows[i].answer);
        assert_int_equal(s.c.claim.state, rows[i].state);
        assert_int_equal(claim_ok(&s.c, why, sizeof(why)), rows[i].state == CLAIM_OK);
        assert_non_null(strstr(why, rows[i].named));
        assert_int_equal(claim_check(&s.c), rows[i].state == CLAIM_OK ? HL_OK : HL_EPERM);
        l3_stub_end(&s);
    }
}

TEST(shards_of_nobody_are_adopted_when_the_catalogue_knows_one)
{
    struct l3_stub s;
    l3_stub_start(&s);
    import_model(&s.c.catalog, "tiny", 1, "{}");
    ask(&s, &(struct hl_api_l3_claim_results){.state = HL_API_CLAIM_RESULT_UNCLAIMED, .shards = 2});
    assert_true(s.c.claim.comparing);
    assert_false(claim_ok(&s.c, NULL, 0));
    s.c.claim.known_pooled = 1;
    claim_compared(&s.c);
    l3_stub_said(&s, "claim own 1 seen 1\nclaim adopt 1 seen 1\n");
    assert_true(claim_ok(&s.c, NULL, 0));
    l3_stub_end(&s);
}

TEST(shards_of_nobody_that_the_catalogue_does_not_know_are_left_alone)
{
    struct l3_stub s;
    char why[400];
    l3_stub_start(&s);
    import_model(&s.c.catalog, "tiny", 1, "{}");
    ask(&s, &(struct hl_api_l3_claim_results){
                .state = HL_API_CLAIM_RESULT_UNCLAIMED, .shards = 2, .archived = 9});
    s.c.claim.known_pooled = 2; /* the pool's changes are ours, the archive's are not */
    claim_compared(&s.c);
    l3_stub_said(&s, "claim own 1 seen 1\n");
    assert_false(claim_ok(&s.c, why, sizeof(why)));
    assert_non_null(strstr(why, "archive holds 9"));
    l3_stub_end(&s);
}

TEST(changes_during_a_question_are_told_by_one_more)
{
    struct l3_stub s;
    l3_stub_start(&s);
    ask(&s, &(struct hl_api_l3_claim_results){.state = HL_API_CLAIM_RESULT_CLAIMED});
    claim_changed(&s.c); /* asks */
    claim_changed(&s.c);
    claim_changed(&s.c);
    l3_stub_said(&s, "claim own 1 seen 1\nclaim own 2 seen 1\nclaim own 4 seen 2\n");
    assert_int_equal(s.c.claim.seen, 4);
    l3_stub_end(&s);
}

TEST(a_revision_counts_as_told_unless_l3_can_not_have_taken_it)
{
    static const struct {
        hl_status refuses;
        uint64_t seen;
    } rows[] = {{HL_EBUSY, 1}, {HL_EUNSUPPORTED, 1}, {HL_EIO, 2}, {HL_EUNAVAIL, 2}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct l3_stub s;
        l3_stub_start(&s);
        ask(&s, &(struct hl_api_l3_claim_results){.state = HL_API_CLAIM_RESULT_CLAIMED});
        s.refuses = rows[i].refuses;
        claim_changed(&s.c);
        l3_stub_run(&s);
        assert_int_equal(s.c.claim.seen, rows[i].seen);
        assert_int_equal(claim_ok(&s.c, NULL, 0), rows[i].refuses != HL_EUNSUPPORTED);
        l3_stub_end(&s);
    }
}

TEST(a_refused_controller_tells_l3_nothing_of_its_changes)
{
    struct l3_stub s;
    l3_stub_start(&s);
    ask(&s, &(struct hl_api_l3_claim_results){.state = HL_API_CLAIM_RESULT_NEWER, .revision = 9});
    claim_changed(&s.c);
    l3_stub_said(&s, "claim own 1 seen 1\n");
    assert_int_equal(s.c.claim.revision, 2);
    claim_forget(&s.c); /* L3 was restarted: it is asked as for the first time */
    assert_int_equal(claim_check(&s.c), HL_OK);
    assert_int_equal(claim_found(&s.c)->revision, 0);
    l3_stub_end(&s);
}
