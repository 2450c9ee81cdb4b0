"""Modules of the Python packages don't import each other in a circle, not even for types, and keep
the limits that C files have."""
import ast
import pathlib
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2] / "python"
PACKAGES = ("helios", "hybridps")
LINES_MAX, FUNCTION_LINES_MAX = 700, 70


def imports(path, names):
    """Of the modules `names` of its package, those that it imports anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module.split(".")[0]} if node.module else {a.name for a in node.names}
    return found & names


def circle(package):
    """Modules that lead back to the first of them; None if there are none."""
    files = {p.stem: p for p in sorted(package.glob("*.py"))}
    uses = {name: imports(path, set(files)) for name, path in files.items()}
    done = set()

    def visit(name, way):
        if name in way:
            return way[way.index(name):] + [name]
        if name in done:
            return None
        for other in sorted(uses[name]):
            found = visit(other, way + [name])
            if found:
                return found
        done.add(name)
        return None
    return next(filter(None, (visit(name, []) for name in files)), None)


class PythonImports(unittest.TestCase):
    def test_no_package_has_a_circle(self):
        for name in PACKAGES:
            with self.subTest(package=name):
                self.assertIsNone(circle(ROOT / name))

    def test_a_circle_is_found_through_types_and_plain_imports(self):
        with tempfile.TemporaryDirectory() as where:
            package = pathlib.Path(where)
            (package / "a.py").write_text("from . import b, x\n")
            (package / "b.py").write_text("from .c import thing\nimport os\n")
            (package / "c.py").write_text("if TYPE_CHECKING:\n    from .a import A\n")
            self.assertEqual(circle(package), ["a", "b", "c", "a"])
            (package / "c.py").write_text("from os import path\nimport a\n")
            self.assertIsNone(circle(package))

    def test_files_and_functions_are_short(self):
        for path in sorted(p for name in PACKAGES for p in (ROOT / name).glob("*.py")):
            text = path.read_text()
            self.assertLessEqual(len(text.splitlines()), LINES_MAX, path)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    self.assertLessEqual(node.end_lineno - node.lineno + 1, FUNCTION_LINES_MAX,
                                         f"{path}: {node.name}")


if __name__ == "__main__":
    unittest.main()
