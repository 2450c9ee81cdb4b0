/* An import as the Controller follows it: the meaning of L3's answers, and how an adapter is
 * split. */
#include "support/test.h"

#include <string.h>

#include "core/catalog/importing.h"

#define SECOND UINT64_C(1000000000)

TEST(an_answer_of_l3_ends_an_import_or_lets_it_go_on)
{
    static const struct {
        struct hl_import_answer answer;
        enum hl_import_turn turn;
    } rows[] = {
        {{HL_OK, HL_API_IMPORT_STATE_RUNNING, 0}, HL_IMPORT_GOES_ON},
        {{HL_OK, HL_API_IMPORT_STATE_RUNNING, 60 * SECOND}, HL_IMPORT_GOES_ON},
        {{HL_OK, HL_API_IMPORT_STATE_DONE, 0}, HL_IMPORT_MADE},
        {{HL_OK, HL_API_IMPORT_STATE_FAILED, 0}, HL_IMPORT_FAILED},
        {{HL_ENOENT, HL_API_IMPORT_STATE_DONE, 0}, HL_IMPORT_FORGOTTEN},
        {{HL_EUNAVAIL, HL_API_IMPORT_STATE_DONE, 0}, HL_IMPORT_UNHEARD},
        {{HL_ETIMEDOUT, HL_API_IMPORT_STATE_FAILED, 10 * SECOND}, HL_IMPORT_UNHEARD},
        {{HL_EUNAVAIL, HL_API_IMPORT_STATE_RUNNING, 10 * SECOND + 1}, HL_IMPORT_SILENT},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        assert_int_equal(hl_import_judge(&rows[i].answer), rows[i].turn);
}

TEST(an_import_goes_for_a_new_one_when_it_has_ended_and_there_are_too_many)
{
    assert_false(hl_import_is_evicted(999, false));
    assert_true(hl_import_is_evicted(1000, false));
    assert_false(hl_import_is_evicted(1000, true));
    assert_true(hl_import_is_evicted(1001, false));
}

TEST(one_place_is_kept_for_a_cut_whatever_is_imported)
{
    static const struct {
        int imports, cuts;
        bool import, cut; /* may begin */
    } rows[] = {{0, 0, true, true},   {3, 0, true, true}, {4, 0, false, true},
                {4, 1, false, false}, {3, 1, true, true}, {0, 4, true, true},
                {0, 5, false, false}, {2, 2, true, true}, {2, 3, false, false}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        assert_int_equal(hl_import_has_place(rows[i].imports, rows[i].cuts, false), rows[i].import);
        assert_int_equal(hl_import_has_place(rows[i].imports, rows[i].cuts, true), rows[i].cut);
    }
}

TEST(an_import_without_a_place_waits_as_long_as_it_may)
{
    assert_false(hl_import_may_wait(0, 0));
    assert_true(hl_import_may_wait(0, 1));
    assert_true(hl_import_may_wait(2 * SECOND - 1, 2000));
    assert_false(hl_import_may_wait(2 * SECOND, 2000));
    assert_true(hl_import_may_wait(UINT64_MAX, UINT64_MAX));
}

static const struct hl_api_split base = {.tp = 4,
                                         .pp = 2,
                                         .ep = 8,
                                         .etp = 2,
                                         .virtual_stages = 3,
                                         .first_stage_layers = 5,
                                         .last_stage_layers = 6};

TEST(an_adapter_gets_the_split_of_its_base)
{
    struct hl_api_import_request r = {.base = "tiny", .tp = 1, .pp = 1};
    assert_int_equal(hl_import_as_base(&base, &r), HL_OK);
    const int got[] = {
        r.tp, r.pp, r.ep, r.etp, r.virtual_stages, r.first_stage_layers, r.last_stage_layers};
    const int want[] = {4, 2, 8, 2, 3, 5, 6};
    assert_memory_equal(got, want, sizeof(want));
    assert_int_equal(hl_import_as_base(&base, &r), HL_OK); /* each as in the base */
}

TEST(an_adapter_that_states_another_size_than_its_base_is_refused)
{
    const struct hl_api_import_request rows[] = {{.tp = 2},
                                                 {.pp = 4},
                                                 {.ep = 4},
                                                 {.etp = 1},
                                                 {.etp = 4},
                                                 {.virtual_stages = 2},
                                                 {.first_stage_layers = 4},
                                                 {.last_stage_layers = 5}};
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_api_import_request r = rows[i];
        r.base = "tiny";
        assert_int_equal(hl_import_as_base(&base, &r), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "'tiny'"));
        r.base = rows[i].base;
        assert_memory_equal(&r, &rows[i], sizeof(r)); /* untouched */
    }
}

TEST(an_adapter_of_a_base_without_expert_sizes_may_state_what_they_are_then)
{
    const struct hl_api_split plain = {.tp = 2, .pp = 1};
    struct hl_api_import_request r = {.base = "tiny", .ep = 1, .etp = 2, .virtual_stages = 1};
    assert_int_equal(hl_import_as_base(&plain, &r), HL_OK);
    r = (struct hl_api_import_request){.base = "tiny", .ep = 2};
    assert_int_equal(hl_import_as_base(&plain, &r), HL_EINVAL);
}
