"""Each law of tools/check_layers.py, broken in a tree of a few files."""
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support.tool_case import ToolCase  # noqa: E402

LAW = """# a comment
base:
os: base
box: base
box/lid: box
box/deep: box box/lid
cmd: box os
"""
TREE = {
    "layers.txt": LAW,
    "src/base/text.h": "int hl_text(void);\n",
    "src/base/text.c": '#include "base/text.h"\n\nint hl_text(void)\n{\n    return 1;\n}\n',
    "src/os/clock.h": '#include "base/text.h"\nint hl_clock(void);\n',
    "src/os/clock.c": '#include "os/clock.h"\n\nint hl_clock(void)\n{\n    return 1;\n}\n',
    "src/box/box.h": '#include "base/text.h"\nint hl_box(void);\n',
    "src/box/box_private.h": "struct hl_box;\n",
    "src/box/box.c": '#include "box/box_private.h"\n',
    "src/box/lid/lid.h": '#include "box/box.h"\nint hl_lid(void);\n',
    "src/box/deep/deep.h": '#include "box/box.h"\n#include "box/lid/lid.h"\n',
    "cmd/tool.c": '#include "box/deep/deep.h"\n#include "os/clock.h"\n',
}
TWO_FACES = {
    "src/box/lid/hinge.h": "int hl_hinge(void);\n",
    "src/box/deep/hinge.c": '#include "box/lid/hinge.h"\n',
}
PAIR = {
    "src/os/a.h": "int hl_a(void);\nint hl_b(void);\n",
    "src/os/a.c": '#include "os/a.h"\n\nint hl_a(void)\n{\n    return hl_b();\n}\n',
    "src/os/b.c": '#include "os/a.h"\n\nint hl_b(void)\n{\n    return hl_a();\n}\n',
}

RING = {
    "src/os/a.h": "int hl_a(void);\nint hl_b(void);\nint hl_c(void);\n",
    **{
        f"src/os/{name}.c": (
            f'#include "os/a.h"\n\nint hl_{name}(void)\n{{\n    return hl_{other}();\n}}\n'
        )
        for name, other in ("ab", "bc", "ca")
    },
}


class Layers(ToolCase):
    tool, tree = "check_layers.py", TREE

    def refused(self, *words):
        code, text = self.check()
        self.assertEqual(code, 1, text)
        self.assertEqual(len(text.splitlines()), 1, text)
        for word in words:
            self.assertIn(word, text)

    def test_a_tree_that_keeps_the_law_passes(self):
        code, text = self.check()
        self.assertEqual(
            (code, text),
            (
                0,
                (
                    "layers: 10 files ok, 0 circles left (circles.txt),"
                    " 0 wings of several headers (faces.txt)\n"
                ),
            ),
        )

    def test_a_module_may_not_include_one_that_it_does_not_name(self):
        self.write({"src/box/clock.c": '#include "os/clock.h"\n'})
        self.refused("src/box/clock.c:1: box may not use os")

    def test_a_file_may_not_call_a_function_of_a_module_that_it_does_not_name(self):
        self.write(
            {
                "include/helios/os.h": "int hl_clock(void);\n",
                "src/box/clock.c": (
                    '#include "helios/os.h"\n\nstatic int now(void)\n{\n    return hl_clock();\n}\n'
                ),
            }
        )
        self.refused("src/box/clock.c: box may not call hl_clock of os")

    def test_names_in_comments_texts_and_structs_are_no_calls(self):
        self.write(
            {
                "src/box/clock.c": (
                    '/* hl_clock() */\n'
                    'struct hl_clock *p = 0; // hl_clock\n'
                    'const char *t = "hl_clock", *u = p->hl_clock;\n'
                )
            }
        )
        self.assertEqual(self.check()[0], 0)

    def test_a_module_that_is_not_named_is_refused(self):
        self.write({"src/attic/attic.c": "int hl_attic;\n"})
        self.refused("src/attic/attic.c: module attic is not in layers.txt")

    def test_a_wing_may_not_use_a_wing_that_it_does_not_name(self):
        self.write({"src/box/lid/up.c": '#include "box/deep/deep.h"\n'})
        self.refused("src/box/lid/up.c:1: box/lid may not use box/deep")

    def test_the_root_of_a_module_may_not_use_its_wings(self):
        self.write({"src/box/down.c": '#include "box/lid/lid.h"\n'})
        self.refused("src/box/down.c:1: box may not use box/lid")

    def test_a_wing_has_what_its_module_is_granted(self):
        self.write({"src/box/deep/text.c": '#include "base/text.h"\n'})
        self.assertEqual(self.check()[0], 0)

    def test_a_wing_may_be_granted_a_module_that_its_own_is_not(self):
        self.write(
            {
                "layers.txt": LAW.replace("box/lid: box", "box/lid: box os"),
                "src/box/lid/clock.c": '#include "os/clock.h"\n',
            }
        )
        self.assertEqual(self.check()[0], 0)
        self.write({"src/box/deep/clock.c": '#include "os/clock.h"\n'})
        self.refused("src/box/deep/clock.c:1: box/deep may not use os")

    def test_a_folder_without_a_line_is_refused_where_a_module_has_wings(self):
        self.write({"src/box/shed/shed.c": "int hl_shed;\n"})
        self.refused("src/box/shed/shed.c: folder box/shed has no line")

    def test_a_private_header_of_a_module_is_not_for_its_wings(self):
        self.write({"src/box/lid/peek.c": '#include "box/box_private.h"\n'})
        self.refused("src/box/lid/peek.c:1: box/box_private.h is private to box")

    def test_a_private_header_of_a_wing_is_not_for_others(self):
        self.write(
            {
                "src/box/lid/lid_private.h": "struct hl_lid;\n",
                "src/box/lid/lid.c": '#include "box/lid/lid_private.h"\n',
            }
        )
        self.assertEqual(self.check()[0], 0)
        self.write({"src/box/deep/peek.c": '#include "box/lid/lid_private.h"\n'})
        self.refused("src/box/deep/peek.c:1: box/lid/lid_private.h is private to box/lid")

    def test_a_private_header_is_for_tests_of_its_module(self):
        text = '#include "box/box_private.h"\n'
        self.write({"tests/unit/box/deep/test_a.c": text, "tests/fuzz/fuzz_a.c": text})
        self.assertEqual(self.check()[0], 0)
        self.write({"tests/unit/os/test_a.c": text})
        self.refused("tests/unit/os/test_a.c", "box/box_private.h is private to box")

    def test_a_second_header_that_a_wing_shows_is_refused(self):
        self.write(TWO_FACES)
        self.refused("box/lid shows others 2 headers, hinge.h, lid.h")
        self.assertEqual(self.check("--shrink")[0], 1)  # which lists none
        self.refused("box/lid shows others 2 headers")

    def test_what_a_wing_has_for_itself_is_no_face(self):
        self.write(
            TWO_FACES
            | {"src/box/deep/hinge.c": "", "src/box/lid/lid.c": '#include "box/lid/hinge.h"\n'}
        )
        self.assertEqual(self.check()[0], 0)

    def test_the_root_of_a_module_may_show_several_headers(self):
        self.write(
            {"src/os/rest.h": "int hl_rest(void);\n", "cmd/rest.c": '#include "os/rest.h"\n'}
        )
        self.assertEqual(self.check()[0], 0)

    def test_a_listed_face_passes_until_it_is_gone(self):
        self.write(TWO_FACES | {"faces.txt": "# text\nbox/lid: hinge.h lid.h\n"})
        self.assertEqual(self.check()[0], 0)
        self.write(
            {
                "src/box/lid/lock.h": "int hl_lock(void);\n",
                "src/box/deep/lock.c": '#include "box/lid/lock.h"\n',
            }
        )
        self.refused("box/lid shows others 3 headers, hinge.h, lid.h, lock.h")
        self.write({"src/box/deep/lock.c": "", "src/box/deep/hinge.c": ""})
        self.refused("faces.txt: box/lid shows less than is listed")
        self.assertEqual(self.check("--shrink")[0], 0)
        self.assertNotIn("box/lid", (self.root / "faces.txt").read_text())
        self.assertEqual(self.check()[0], 0)

    def test_a_grant_that_nothing_uses_is_refused(self):
        self.write({"layers.txt": LAW.replace("box: base\n", "box: base os\n", 1)})
        self.refused("layers.txt:4: box names os and uses nothing of it")

    def test_a_wings_grant_that_nothing_uses_is_refused(self):
        self.write({"src/box/deep/deep.h": '#include "box/lid/lid.h"\n'})
        self.refused("layers.txt:6: box/deep names box and uses nothing of it")

    def test_a_call_through_the_public_header_uses_a_grant(self):
        self.write(
            {
                "layers.txt": LAW.replace("box: base\n", "box: base os\n", 1),
                "include/helios/os.h": "int hl_clock(void);\n",
                "src/box/clock.c": (
                    '#include "helios/os.h"\n\nstatic int now(void)\n{\n    return hl_clock();\n}\n'
                ),
            }
        )
        self.assertEqual(self.check()[0], 0)

    def test_a_line_names_only_what_stands_above_it(self):
        self.write({"layers.txt": LAW.replace("base:\nos: base\n", "os: base\nbase:\n")})
        code, text = self.check()
        self.assertEqual(code, 1)
        self.assertIn("layers.txt:2: os names base, which is not defined above it", text)

    def test_a_second_line_of_a_module_is_refused(self):
        self.write({"layers.txt": LAW + "os: base\n"})
        self.refused("layers.txt:8: os has a line already (line 3)")

    def test_a_wing_before_its_module_is_refused(self):
        self.write({"layers.txt": "# law\nbox/lid:\n" + LAW.replace("box/lid: box\n", "")})
        code, text = self.check()
        self.assertEqual(code, 1)
        self.assertIn("layers.txt:2: wing box/lid comes before its module", text)

    def test_a_module_that_is_granted_a_wing_of_its_own_is_refused(self):
        law = LAW.replace("box/deep:", "box/shed:\nbox/deep:", 1)
        self.write({"layers.txt": law + "box: base box/lid\n"})
        code, text = self.check()
        self.assertEqual(code, 1)
        self.assertIn("module box names box/lid, a wing of its own", text)

    def test_third_party_headers_stay_in_the_module_that_wraps_them(self):
        self.write({"src/box/db.c": "#include <sqlite3.h>\n"})
        self.refused("src/box/db.c:1: <sqlite3.h> belongs to store")

    def test_a_new_circle_is_refused(self):
        self.write(PAIR)
        self.refused("os/a.c and os/b.c call functions of each other")
        self.assertEqual(self.check("--shrink")[0], 1)  # which adds none
        self.refused("os/a.c and os/b.c call functions of each other")

    def test_a_listed_circle_passes_until_it_is_gone(self):
        self.write(PAIR | {"circles.txt": "# text\nos: 1\n  a.c b.c\n"})
        self.assertEqual(
            self.check(),
            (
                0,
                (
                    "layers: 13 files ok, 1 circles left (circles.txt), "
                    "0 wings of several headers (faces.txt)\n"
                ),
            ),
        )
        self.write({"src/os/b.c": '#include "os/a.h"\n\nint hl_b(void)\n{\n    return 1;\n}\n'})
        self.refused("circles.txt: os/a.c and os/b.c no longer call each other")
        self.assertEqual(self.check("--shrink")[0], 0)
        self.assertNotIn("a.c", (self.root / "circles.txt").read_text())
        self.assertEqual(self.check()[0], 0)

    def test_a_circle_of_three_files_is_refused(self):
        self.write(RING)
        self.refused("os/a.c, os/b.c and os/c.c call functions of each other in a circle")
        self.assertEqual(self.check("--shrink")[0], 1)  # which adds none

    def test_a_listed_circle_may_not_get_another_file_and_may_lose_one(self):
        four = RING | {
            "src/os/a.h": RING["src/os/a.h"] + "int hl_d(void);\n",
            "src/os/c.c": RING["src/os/c.c"].replace("hl_a()", "hl_d()"),
            "src/os/d.c": '#include "os/a.h"\n\nint hl_d(void)\n{\n    return hl_a();\n}\n',
        }
        self.write(four | {"circles.txt": "os: 1\n  a.c b.c c.c\n"})
        self.assertIn("os/a.c, os/b.c, os/c.c and os/d.c call functions", self.check()[1])
        self.write({"circles.txt": "os: 1\n  a.c b.c c.c d.c\n"})
        self.assertEqual(self.check()[0], 0)
        self.write(RING)
        self.refused(
            "circles.txt: os/a.c and os/b.c and os/c.c and os/d.c no longer call each other"
        )
        self.assertEqual(self.check("--shrink")[0], 0)
        self.assertIn("os: 1\n  a.c b.c c.c\n", (self.root / "circles.txt").read_text())

    def test_a_pair_within_a_listed_circle_is_a_circle_of_its_own(self):
        self.write(
            RING
            | {
                "circles.txt": "os: 1\n  a.c b.c c.c\n",
                "src/os/b.c": RING["src/os/b.c"].replace("hl_c()", "hl_c() + hl_a()"),
            }
        )
        self.refused("os/a.c and os/b.c call functions of each other")

    def test_the_list_of_circles_says_how_many_there_are(self):
        self.write(PAIR | {"circles.txt": "os: 2\n  a.c b.c\n"})
        self.refused("circles.txt:1: os is said to have 2 circles, and lists 1")

    def test_functions_of_one_file_are_not_those_of_another_with_the_same_name(self):
        self.write(
            PAIR
            | {
                "src/os/b.c": (
                    '#include "os/a.h"\n\n'
                    'static int hl_a(void)\n{\n'
                    '    return 1;\n}\n\n'
                    'int hl_b(void)\n{\n'
                    '    return hl_a();\n}\n'
                )
            }
        )
        self.assertEqual(self.check()[0], 0)


if __name__ == "__main__":
    unittest.main()
