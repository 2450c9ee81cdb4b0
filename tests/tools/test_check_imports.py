"""The law of tools/check_imports.py, kept and broken in packages of a few lines."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools/check_imports.py"
TREE = {
    "__init__.py": "from .a import thing\n",
    "a.py": "from . import b\n",
    "b.py": "from .c import thing\nimport os\n",
    "c.py": "import a\nfrom os import path\nfrom other.a import x\n",
}


class Imports(unittest.TestCase):
    def run_tool(self, files):
        with tempfile.TemporaryDirectory() as root:
            package = pathlib.Path(root, "python", "box")
            package.mkdir(parents=True)
            for name, text in files.items():
                (package / name).write_text(text)
            done = subprocess.run(
                [sys.executable, TOOL, "--root", root], capture_output=True, text=True, check=False
            )
        return done.returncode, done.stdout + done.stderr

    def test_modules_in_layers_pass(self):
        self.assertEqual(self.run_tool(TREE), (0, "imports: 1 Python packages ok\n"))

    def test_a_circle_is_found_however_it_is_hidden(self):
        for text in (
            "from . import a\n",
            "from .a import thing\n",
            "import box.a\n",
            "from box import a\n",
            "from box.a import thing\n",
            "def late():\n    from .a import thing\n    return thing\n",
            "if TYPE_CHECKING:\n    from .a import A\n",
        ):
            with self.subTest(text=text):
                code, output = self.run_tool({**TREE, "c.py": text})
                self.assertEqual(code, 1)
                self.assertIn(
                    "python/box: modules import each other in a circle: a -> b -> c -> a", output
                )

    def test_a_tree_without_packages_is_an_error(self):
        self.assertEqual(self.run_tool({})[0], 1)


if __name__ == "__main__":
    unittest.main()
