/* The life cycle: the specification's transitions, and no others. */
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/placement/lifecycle.h"

/* Written from 3.2, 3.3, 3.5 and 3.6 of the specification, independently of the table. */
static const char *const expected[] = {
    "created: LOAD preheat",
    "preheat: LOADED active, UNDONE before",
    "active: COOL cooling, PRESSURE demoted to L2, REMOTE demoted to L2, SPREAD demoted to L3, "
    "RECALL demoted to L3, PREFETCH preheat",
    "cooling: WARM active, LEAVE migrating, PRESSURE demoted to L2, REMOTE demoted to L2, "
    "SPREAD demoted to L3, RECALL demoted to L3",
    "migrating: WARM active, REMOTE demoted to L2, SPREAD demoted to L3, "
    "SWITCHED archived in L3, UNDONE before",
    "demoted to L2: SWITCHED migrated, UNDONE before",
    "demoted to L3: SWITCHED migrated, UNDONE before",
    "migrated: CLEANED_L2 stable warm in L2, CLEANED_L3 stable warm in L3",
    "archived in L3: PREFETCH preheat, ACCESS preheat, IDLE expired to L4",
    "expired to L4: ACCESS preheat",
    "stable warm in L2: WARM active, COOL cooling, REMOTE demoted to L2, SPREAD demoted to L3, "
    "RECALL demoted to L3, PREFETCH preheat",
    "stable warm in L3: COOL archived in L3, PREFETCH preheat, ACCESS preheat",
};

static const char *const names[] = {
#define X(name, text, numbers) [HL_LIFE_ON_##name] = #name,
    HL_LIFE_EVENT_MAP(X)
#undef X
};

TEST(the_table_has_the_transitions_of_the_specification_and_no_others)
{
    assert_int_equal(sizeof(expected) / sizeof(expected[0]), HL_LIFE_STATES);
    for (int s = 0; s < HL_LIFE_STATES; s++) {
        const char *line = strchr(expected[s], ':');
        char text[64];
        assert_memory_equal(expected[s], hl_life_state_text(s), (size_t)(line - expected[s]));
        unsigned rows = 1, found = 0;
        for (const char *c = line; *c != '\0'; c++)
            rows += *c == ',';
        for (int e = 0; e < HL_LIFE_EVENTS; e++) {
            /* NONE stands for "where it was before" */
            enum hl_life_state to = hl_life_next(s, e, HL_LIFE_NONE);
            bool undone = e == HL_LIFE_ON_UNDONE && hl_life_section(s, e)[0] != '\0';
            assert_int_equal(to != HL_LIFE_NONE || undone, hl_life_section(s, e)[0] != '\0');
            if (to == HL_LIFE_NONE && !undone)
                continue;
            snprintf(text, sizeof(text), " %s %s", names[e],
                     undone ? "before" : hl_life_state_text(to));
            const char *at = strstr(line, text);
            if (at == NULL || (at[strlen(text)] != ',' && at[strlen(text)] != '\0'))
                fail_msg("%s: '%s' is not expected", hl_life_state_text(s), text);
            found++;
        }
        assert_int_equal(found, rows);
    }
}

TEST(every_state_is_reached_and_none_is_a_dead_end)
{
    for (int start = 0; start < HL_LIFE_STATES; start++) {
        bool reached[HL_LIFE_STATES] = {[0] = false};
        reached[start] = true;
        for (int turn = 0; turn < HL_LIFE_STATES; turn++)
            for (int s = 0; s < HL_LIFE_STATES; s++)
                for (int e = 0; reached[s] && e < HL_LIFE_EVENTS; e++)
                    if (hl_life_next(s, e, HL_LIFE_NONE) != HL_LIFE_NONE)
                        reached[hl_life_next(s, e, HL_LIFE_NONE)] = true;
        for (int s = HL_LIFE_PREHEAT; s < HL_LIFE_STATES; s++)
            assert_true(reached[s]);
    }
}

TEST(a_move_that_is_undone_goes_back)
{
    assert_int_equal(hl_life_next(HL_LIFE_PREHEAT, HL_LIFE_ON_UNDONE, HL_LIFE_EXPIRED_L4),
                     HL_LIFE_EXPIRED_L4);
    assert_int_equal(hl_life_next(HL_LIFE_DEMOTED_L2, HL_LIFE_ON_UNDONE, HL_LIFE_WARM_L2),
                     HL_LIFE_WARM_L2);
    /* nor does anything lead back after the switch */
    assert_int_equal(hl_life_next(HL_LIFE_MIGRATED, HL_LIFE_ON_UNDONE, HL_LIFE_ACTIVE),
                     HL_LIFE_NONE);
}

TEST(each_name_has_a_text)
{
    for (int e = 0; e < HL_LIFE_EVENTS; e++) {
        assert_true(hl_life_event_text(e)[0] != '\0');
        assert_non_null(strchr(hl_life_event_numbers(e), ','));
    }
}
