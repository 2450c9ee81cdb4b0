/* What copies of moves say about the rates of their paths. */
#include "unit/controller/placement_rig.h"

TEST_IN(world_start, world_end, a_copy_that_keeps_to_its_pace_says_nothing_about_its_path)
{
    struct world *w = *state;
    struct placement *p = w->c.placement;
    const struct hl_api_copy slow = {.size_bytes = 4 << 20, .seconds = 4},
                             fast = {.size_bytes = 4 << 20, .seconds = 1.0 / 256};
    const double gib = 1 << 30, mib = 1 << 20;
    budget_measure(p, HL_MOVE_BACKBONE, 1 << 20, &slow); /* as fast as it was allowed to be */
    assert_true(p->rates[HL_MOVE_BACKBONE] == 0);
    budget_measure(p, HL_MOVE_BACKBONE, 0, &fast);
    assert_true(p->rates[HL_MOVE_BACKBONE] == gib);
    budget_measure(p, HL_MOVE_BACKBONE, 1 << 20, &slow);
    assert_true(p->rates[HL_MOVE_BACKBONE] == gib);
    budget_measure(p, HL_MOVE_BACKBONE, 4 << 20, &slow); /* the path held it up */
    assert_float_equal(p->rates[HL_MOVE_BACKBONE], 0.8 * gib + 0.2 * mib, 1);
}
