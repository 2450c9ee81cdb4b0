#include "support/test.h"

#include "core/part.h"

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
