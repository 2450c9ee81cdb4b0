#include "support/test.h"

#include "core/model/part.h"

TEST(names_say_what_a_part_holds_and_whose_it_is)
{

    static const struct {
        const char *name;
        struct hl_part want;
    } table[] = {
        {"embedding", {HL_PART_MODEL, 0, 1, "embedding"}},
        {"layer-0003", {HL_PART_MODEL, 0, 1, "layer-0003"}},
        {"optimal", {HL_PART_MODEL, 0, 1, "optimal"}},
        {"extra-layer-0003", {HL_PART_EXTRA, 0, 1, "layer-0003"}},
        {"optim-head", {HL_PART_OPTIM, 0, 1, "head"}},
        {"optim-dp1of2-head", {HL_PART_OPTIM, 1, 2, "head"}},
        {"optim-dp12of16-layer-0003", {HL_PART_OPTIM, 12, 16, "layer-0003"}},
        {"optim-dp1of2", {HL_PART_OPTIM, 0, 1, "dp1of2"}}, /* of a part named "dp1of2" */
        {"optim-dp2of2-head", {HL_PART_OPTIM, 0, 1, "dp2of2-head"}},
        {"", {HL_PART_MODEL, 0, 1, ""}},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct hl_part got = hl_part_of(table[i].name);
        assert_int_equal(got.kind, table[i].want.kind);
        assert_int_equal(got.dp, table[i].want.dp);
        assert_int_equal(got.dp_size, table[i].want.dp_size);
        assert_string_equal(got.of, table[i].want.of);
    }
}

TEST(experts_are_placed_by_their_rank_and_other_parts_are_not)
{
    char text[HL_PART_PLACE_MAX];
    assert_string_equal(hl_part_place(0, 1, 2, "experts-0003", text), "pp0/tp1/ep2/experts-0003");
    assert_string_equal(hl_part_place(0, 1, 0, "layer-0003", text), "pp0/tp1/layer-0003");
    assert_true(hl_part_has_experts("optim-dp1of2-experts-0003"));
    assert_true(hl_part_has_experts("extra-experts-0003"));
    assert_false(hl_part_has_experts("expert"));
    assert_false(hl_part_has_experts("mtp-0000"));
}
