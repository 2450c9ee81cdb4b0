"""Laws of tools/tidy.py, broken in a repository of a few files."""
import pathlib
import subprocess
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent.parent)]
from support.tool_case import TOOLS, ToolCase  # noqa: E402

CONTRACT = "".join(
    f" * {word:9}none.\n" for word in ("Owns:", "Threads:", "Errors:", "Units:", "Limits:")
)
TREE = {
    "src/box/README.md": "# src/box\n\nStart with `box.h`.\n",
    "src/box/box.h": (
        f"/* box/box.h - a box.\n *\n{CONTRACT} */\n#ifndef BOX\n#define BOX\n#endif\n"
    ),
    "src/box/box.c": '#include "box/box.h"\n\nstatic int box_open(void)\n{\n    return 1;\n}\n',
    "cmd/README.md": "# cmd\n",
    "tools/make.py": "def make():\n    return 1\n",
    "names.txt": "# names\n",
}


class Tidy(ToolCase):
    tool, tree = "tidy.py", TREE

    def setUp(self):
        super().setUp()
        self.git("init", "-q")

    def git(self, *args):
        subprocess.run(
            ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args],
            cwd=self.root,
            check=True,
            capture_output=True,
        )

    def refuses(self, words, files, **kwargs):
        self.write(files)
        done = self.run_tool(**kwargs)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(words, done.stdout)

    def accepts(self, files):
        self.write(files)
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_tree_that_keeps_every_law_passes(self):
        self.accepts({})

    def test_lengths_of_c(self):
        body = "    hl_box();\n" * 69
        self.accepts({"src/box/long.c": f"void box_long(void)\n{{\n{body[:-14]}}}\n"})
        self.refuses(
            "function of 71 lines, at most 70",
            {"src/box/long.c": f"void box_long(void)\n{{\n{body}}}\n"},
        )
        self.refuses("101 columns", {"src/box/long.c": "/* " + "x" * 95 + " */\n"})
        self.refuses("701 lines, at most 700", {"src/box/long.c": "int a;\n" * 701})

    def test_lengths_of_python(self):
        self.refuses(
            "tools/make.py:1: function of 71 lines",
            {"tools/make.py": "def make():\n" + "    x = 1\n" * 70},
        )
        self.accepts({"tools/make.py": "x = '" + "y" * 94 + "'\n" + "x = 1\n" * 699})
        self.refuses("101 columns, at most 100", {"tools/make.py": "x = '" + "y" * 95 + "'\n"})
        self.refuses("701 lines, at most 700", {"tools/make.py": "x = 1\n" * 701})
        self.refuses("python/make.py: 701 lines", {"python/make.py": "x = 1\n" * 701})

    def test_a_header_without_a_contract(self):
        self.refuses(
            "no line that begins with 'Limits:'",
            {"src/box/box.h": TREE["src/box/box.h"].replace("Limits:", "Bounds:")},
        )

    def test_a_private_header_says_who_may_call_it(self):
        text = (
            "/* box/box_private.h - the parts of a box.\n *\n"
            " * Threads: any.\n */\n#ifndef P\n#define P\n#endif\n"
        )
        self.accepts({"src/box/box_private.h": text})
        self.refuses(
            "no line that begins with 'Threads:'",
            {"src/box/box_private.h": text.replace("Threads: any", "Any thread")},
        )

    def test_banned_calls_and_phrases(self):
        self.refuses(
            "strcpy is banned", {"src/box/box.c": "int box_copy(void)\n{\n    strcpy(a, b);\n}\n"}
        )
        self.refuses(
            "'memory is short' in a message",
            {"src/box/box.c": 'const char *t = "memory is short for a box";\n'},
        )
        self.refuses(
            "'whoever' in a message",
            {"src/box/box.c": 'const char *t = "whoever has the box may open it";\n'},
        )
        self.refuses(
            "'is no J' in a message", {"src/box/box.c": 'const char *t = "the box is no JSON";\n'}
        )

    def test_a_test_that_includes_a_source_of_the_product(self):
        self.accepts(
            {"tests/unit/box/test_lid.c": '#include "box/box.h"\n#include "unit/box/test_box.c"\n'}
        )
        self.refuses(
            "tests/unit/box/test_lid.c:1: a test includes a source",
            {"tests/unit/box/test_lid.c": '#include "box/box.c"\n'},
        )

    def test_a_comment_that_names_what_is_not_there(self):
        head = "int hl_lid(void);\n/* hl_lid, hl_api_lid, hl_lid_*, (box/box.h), (theirs/a.h) */\n"
        self.accepts({"src/box/a.c": head})
        words = "src/box/a.c: a comment names hl_lod, which is not there"
        self.refuses(words, {"src/box/a.c": head + "/* hl_lod */\n"})
        words = "src/box/a.c: a comment names box/lid.h, which is not there"
        self.refuses(words, {"src/box/a.c": head + "/* see box/lid.h */\n"})

    def test_lines_that_do_not_end_well(self):
        self.refuses("src/box/box.c:1: trailing space", {"src/box/box.c": "int a; \n"})
        self.refuses("src/box/box.c: no newline at the end", {"src/box/box.c": "int a;"})

    def test_a_comment_that_does_not_say_who(self):
        text = TREE["src/box/box.h"].replace("a box.", "a box; somebody else has the key.")
        self.refuses("src/box/box.h:1: 'somebody': say which process", {"src/box/box.h": text})
        self.refuses(
            "src/box/box.c:1: 'Whoever': say which process",
            {"src/box/box.c": "/* Whoever has the key. */\n"},
        )
        words = "python/box/lid.py:1: 'nobody': say which process"
        self.refuses(words, {"python/box/lid.py": "# nobody has the key\n"})

    def test_a_module_without_a_readme_or_with_a_long_one(self):
        self.refuses("src/lid/README.md is missing", {"src/lid/lid.c": "int lid;\n"})
        self.write({"src/lid/README.md": "# lid\n"})
        self.refuses("src/box/README.md: 31 lines, at most 30", {"src/box/README.md": "x\n" * 31})

    def test_a_readme_that_names_what_is_not_there(self):
        self.refuses(
            "src/box/README.md:3: lid.h is not there",
            {"src/box/README.md": "# src/box\n\nStart with `lid.h`.\n"},
        )
        self.accepts({"src/box/deep/lid.h": TREE["src/box/box.h"]})

    def test_prose_of_documents_wraps(self):
        long = "word " * 20 + "end\n"
        code = "`" + "word " * 20 + "`\n"
        self.accepts(
            {
                "docs/a.md": f"```\n{long}```\n\n    {long}\n| {long[:-1]} |\n{code}",
                "docs/config.md": long,
                "docs/a.zh.md": long,
            }
        )
        self.refuses("docs/b.md:3: 103 columns of prose", {"docs/b.md": f"# b\n\n{long}"})
        self.refuses("docs/c.md:1: 105 columns of prose", {"docs/c.md": f"- {long}"})

    def test_tables_and_lists_of_documents_keep_their_shape(self):
        table = "| a | b |\n| --- | --- |\n"
        self.accepts(
            {
                "docs/a.md": (
                    f"{table}| on\\|off | `x` |\n\n| one |\n\n- i + Sk - Sq. A row\n- An item.\n"
                )
            }
        )
        self.refuses(
            "docs/b.md:3: 3 cells in a table of 2", {"docs/b.md": f"{table}| on|off | x |\n"}
        )
        self.refuses(
            "docs/c.md:1: an item of a list begins in the middle",
            {"docs/c.md": "- One. - **Two.** Three.\n"},
        )

    def test_links_of_documents(self):
        page = (
            "# The box's `lid`, and more\n\n"
            "```\n"
            "# no heading, [no link](no.md)\n```\n\n"
            "`[no link](no.md)`\n"
        )
        self.accepts(
            {
                "docs/lid.md": (
                    page + "[here](#the-boxs-lid-and-more) [web](https://example.org/x)\n"
                ),
                "docs/a.md": "[lid](lid.md#the-boxs-lid-and-more), ![box](../src/box/box.h)\n",
            }
        )
        self.refuses(
            "docs/b.md:2: a link to lids.md, which is not there",
            {"docs/b.md": "# b\n[lid](lids.md)\n"},
        )
        self.refuses(
            "docs/c.md:1: a link to lid.md#no-heading: no heading",
            {"docs/c.md": "[lid](lid.md#no-heading)\n"},
        )

    def test_a_document_that_names_a_source_file(self):
        self.accepts({"docs/a.md": "| `box/box.h`, `src/box/box.c` | `theirs/main.c` |\n"})
        self.refuses("docs/b.md:1: box/lid.c is not there", {"docs/b.md": "| `box/lid.c` |\n"})

    def test_a_function_named_by_one_word(self):
        bad = {"src/box/box.c": "static int open(void)\n{\n    return 1;\n}\n"}
        self.refuses("box: 1 static functions are named by one word, names.txt allows 0", bad)
        self.accepts({"names.txt": "# names\nbox: 1\n"})

    def test_names_may_only_get_fewer(self):
        self.refuses("box has only 0 by now", {"names.txt": "# names\nbox: 2\n"})
        self.assertEqual(self.run_tool("--shrink").returncode, 0)
        self.assertEqual((self.root / "names.txt").read_text(), "# names\n")

    def test_subjects_of_commits(self):
        self.git("commit", "-q", "--allow-empty", "-m", "fixed everything.")
        first = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=self.root, check=True, capture_output=True, text=True
        ).stdout.strip()
        tool = self.root / "tidy_of_this_repository.py"
        text = (TOOLS / self.tool).read_text()
        since = next(line for line in text.splitlines() if line.startswith("SUBJECTS_SINCE"))
        tool.write_text(text.replace(since, f'SUBJECTS_SINCE = "{first}"'))
        self.assertEqual(self.run_tool(tool=tool).returncode, 0)
        for subject, words in (
            ("Open a box.", "ends with a full stop"),
            ("Opened a box", "'Opened' is not an imperative"),
            ("open a box", "'open' is not an imperative"),
            ("Open " + "x" * 68, "of 73 columns, at most 72"),
        ):
            self.git("commit", "-q", "--allow-empty", "-m", subject)
            self.refuses(words, {}, tool=tool)
            self.git("reset", "-q", "--soft", "HEAD~1")
        self.git("commit", "-q", "--allow-empty", "-m", "Embed a box")
        self.assertEqual(self.run_tool(tool=tool).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
