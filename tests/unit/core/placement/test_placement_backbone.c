#include "support/test.h"

#include <math.h>

#include "core/placement/backbone.h"

static struct hl_api_line_load line(double busy)
{
    return (struct hl_api_line_load){
        .interface = "eth0", .bits_per_second = 1000, .busy_percent = busy};
}

static void add(struct hl_backbone *b, double busy)
{
    const struct hl_api_line_load l = line(busy);
    hl_backbone_add_node(b, &l);
}

TEST(it_is_the_mean_of_the_nodes_or_the_line_of_l3_whichever_is_busier)
{
    struct hl_backbone b = {0};
    assert_float_equal(hl_backbone_busy_pct(&b), -1, 0);
    add(&b, 10);
    add(&b, 40);
    assert_float_equal(hl_backbone_busy_pct(&b), 25, 1e-9);
    struct hl_api_line_load l3 = line(20);
    hl_backbone_add_l3(&b, &l3);
    assert_float_equal(hl_backbone_busy_pct(&b), 25, 1e-9);
    l3 = line(80);
    hl_backbone_add_l3(&b, &l3);
    assert_float_equal(hl_backbone_busy_pct(&b), 80, 1e-9);
    struct hl_backbone alone = {0};
    hl_backbone_add_l3(&alone, &l3);
    assert_float_equal(hl_backbone_busy_pct(&alone), 80, 1e-9);
}

TEST(lines_that_are_not_known_or_can_not_be_are_left_out_or_clamped)
{
    struct hl_backbone b = {0};
    const struct hl_api_line_load older = {.interface = ""}; /* a daemon that reports nothing */
    const struct hl_api_line_load nan = line(NAN);
    hl_backbone_add_node(&b, &older);
    hl_backbone_add_l3(&b, &older);
    add(&b, NAN);
    add(&b, -5);
    hl_backbone_add_l3(&b, &nan);
    assert_float_equal(hl_backbone_busy_pct(&b), -1, 0);
    add(&b, HUGE_VAL);
    add(&b, 0);
    assert_float_equal(hl_backbone_busy_pct(&b), 50, 1e-9);
}
