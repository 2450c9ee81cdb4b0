"""A tool of tools/ run on a tree of a few files, in which a test breaks one of its laws."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"


class ToolCase(unittest.TestCase):
    """`tool`: its file name; `tree`: texts of files by path, which are written to `root`."""

    tool = ""
    tree: dict[str, str] = {}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(self.tree)

    def write(self, files):
        for name, text in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def run_tool(self, *args, tool=None):
        return subprocess.run(
            [sys.executable, tool or TOOLS / self.tool, "--root", self.root, *args],
            capture_output=True,
            text=True,
            check=False,
        )

    def check(self, *args):
        """Its exit status and output; a crash of the tool fails the test."""
        done = self.run_tool(*args)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout
