#include "support/test.h"

#include <string.h>

#include "core/planner/switches.h"

static const char file[] = "# two leaves of one spine\n"
                           "SwitchName=leaf-0 Nodes=node-[0-2],login LinkSpeed=100\n"
                           "switchname=leaf-1 \\\n"
                           "  nodes=node-[08-10]b,node-[5,7]   # as written\n"
                           "\n"
                           "SwitchName=spine-0 Switches=leaf-[0-1]\n"
                           "SwitchName=core Switches=spine-0\n"
                           "SwitchName=alone Nodes=far\n";

static void check_at(const struct hl_switches *s, const char *node, const char *leaf,
                     const char *spine)
{
    const char *got_leaf = NULL, *got_spine = NULL;
    assert_true(hl_switches_find(s, node, &got_leaf, &got_spine));
    assert_string_equal(got_leaf, leaf);
    assert_string_equal(got_spine, spine);
}

TEST(nodes_hang_on_leaves_and_these_on_spines)
{
    struct hl_switches s = {0};
    const char *leaf, *spine;
    assert_int_equal(hl_switches_parse(file, "topology.conf", &s), HL_OK);
    check_at(&s, "node-0", "leaf-0", "spine-0");
    check_at(&s, "node-2", "leaf-0", "spine-0");
    check_at(&s, "login", "leaf-0", "spine-0");
    check_at(&s, "node-08b", "leaf-1", "spine-0"); /* zeros stay */
    check_at(&s, "node-10b", "leaf-1", "spine-0");
    check_at(&s, "node-7", "leaf-1", "spine-0");
    check_at(&s, "far", "alone", "");
    assert_false(hl_switches_find(&s, "node-3", &leaf, &spine));
    assert_false(hl_switches_find(&s, "node-6", &leaf, &spine));
    hl_switches_fini(&s);
}

TEST(what_is_wrong_is_said_with_its_line)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"SwitchName=a Nodes=x\nSwitchName=b Nodes=x\n",
         "f:2: node 'x' is attached to two switches, a"},
        {"SwitchName=a\n", "f:1: a line is SwitchName=NAME and either"},
        {"Nodes=a\n", "f:1: a line is"},
        {"SwitchName=a Nodes=b Switches=c\n", "f:1: a line is"},
        {"\nSwitchName=a Node=b\n", "f:2: 'Node=b' is not one of"},
        {"SwitchName=a Nodes=b[1-\n", "has no closing bracket"},
        {"SwitchName=a Nodes=b[3-1]\n", "a range goes from"},
        {"SwitchName=a Nodes=b[x]\n", "brackets hold numbers"},
        {"SwitchName=a Nodes=b[1]c[2]\n", "more than one pair"},
        {"SwitchName=a Nodes=b,,c\n", "a name must have"},
        {"SwitchName=a Nodes=b Nodes=c\n", "appears twice"},
        {"SwitchName=a Switches=a\n", "is attached to itself"},
        {"SwitchName=a Nodes=b[0-999999]\n", "more than 65536"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct hl_switches s = {0};
        assert_int_equal(hl_switches_parse(rows[i].text, "f", &s), HL_EINVAL);
        if (strstr(hl_error_text(), rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].says);
        assert_null(s.nodes);
    }
}
