/* What copies of moves say about the rates of their paths. */
#include "unit/controller/placement/placement_rig.h"

TEST_IN(world_start, world_end, a_copy_that_keeps_to_its_pace_says_nothing_about_its_path)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    const struct hl_api_copy slow = {.size_bytes = 4 << 20, .seconds = 4};
    const double assumed = budget_rate(p, HL_MOVE_BACKBONE);
    budget_measure(p, HL_MOVE_BACKBONE, 1 << 20, &slow); /* as fast as it was allowed to be */
    assert_true(budget_rate(p, HL_MOVE_BACKBONE) == assumed);
    budget_measure(p, HL_MOVE_BACKBONE, 4 << 20, &slow); /* the path held it up */
    assert_true(budget_rate(p, HL_MOVE_BACKBONE) < assumed);
}

TEST_IN(world_start, world_end, one_copy_that_was_held_up_does_not_rule_a_path_out)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    const double assumed = budget_rate(p, HL_MOVE_INSIDE);
    const struct hl_api_copy late = {.size_bytes = 4 << 20, .seconds = (4 << 20) / assumed * 100};
    budget_measure(p, HL_MOVE_INSIDE, 0, &late);
    assert_float_equal(budget_rate(p, HL_MOVE_INSIDE), assumed / 10, 1);
    /* A path that is as slow as that is known within a few copies. */
    for (int i = 0; i < 8; i++)
        budget_measure(p, HL_MOVE_INSIDE, 0, &late);
    assert_true(budget_rate(p, HL_MOVE_INSIDE) < assumed / 50);
}
