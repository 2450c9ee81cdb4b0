"""Each law of tools/check_options.py, broken in a tree of a few files."""
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support.tool_case import ToolCase  # noqa: E402

TREE = {
    "src/conf/conf.c": "\n",
    "src/box/conf.c": """#define AT(field) HL_OPTION_FIELD(struct hl_box_conf, field)
static const struct hl_option box_options[] = {
    {"box.size", "--box-size", "1", "How large a box is.", HL_OPT_INT, 0, 9, NULL, AT(size)},
};
#undef AT
""",
    "src/box/box.c": "int hl_box(const struct hl_box_conf *conf)\n{\n    return conf->size;\n}\n",
    "src/program/conf.c": (
        "static const struct hl_conf_slice slices[] = {SLICE(hl_box_rows, box, HL_L3D)};\n"
    ),
    "src/program/daemon.c": "\n",
    "cmd/helios-l3d.c": "int main(void)\n{\n    return hl_box(&conf.box);\n}\n",
    "src/agent/env.c": "set_rows(env, &hl_box_rows, a);\n",
    "src/client/client.c": "{{&hl_box_rows, &c->box}};\n",
}


class Options(ToolCase):
    tool, tree = "check_options.py", TREE

    def refused(self, words, name, before, after):
        self.write({name: TREE[name].replace(before, after)})
        code, text = self.check()
        self.assertEqual((code, len(text.splitlines())), (1, 1), text)
        self.assertIn(words, text)

    def test_a_tree_that_keeps_the_laws_passes(self):
        self.assertEqual(self.check(), (0, "options: 1 rows in 1 slices ok\n"))

    def test_a_row_whose_field_is_not_read_is_refused(self):
        self.refused("box.size", "src/box/box.c", "conf->size", "1")

    def test_a_row_that_is_not_understood_is_refused(self):
        self.refused(
            "src/box/conf.c: 0 rows are understood of 1", "src/box/conf.c", '"--box-size"', "FLAG"
        )

    def test_a_program_that_takes_flags_and_does_not_read_them_is_refused(self):
        self.refused(
            "hl_box_rows: cmd/helios-l3d.c takes their flags",
            "cmd/helios-l3d.c",
            "&conf.box",
            "NULL",
        )

    def test_what_ranks_are_told_and_do_not_read_is_refused(self):
        self.refused("hl_box_rows: told to ranks", "src/client/client.c", "&hl_box_rows", "NULL")

    def test_what_ranks_read_and_are_not_told_is_refused(self):
        self.refused("hl_box_rows: told to ranks", "src/agent/env.c", "&hl_box_rows", "NULL")


if __name__ == "__main__":
    unittest.main()
