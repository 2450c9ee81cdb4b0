"""Modules of a Python package don't import each other in a circle,
not even inside a function or for types only.

`check_imports.py [--root ROOT]` looks at every package in ROOT/python.
"""
import argparse
import ast
import pathlib
import sys


def module_names(node, package):
    """Modules of the package that an import statement may name."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.level <= 1:
        parts = ([package] if node.level else []) + ([node.module] if node.module else [])
        home = ".".join(parts)
        names = [f"{home}.{alias.name}" for alias in node.names]
    else:
        names = []
    return {name.split(".")[1] for name in names if name.startswith(package + ".")}


def imports(path, package, modules):
    """Of the modules of its package, those that a file imports anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        found |= module_names(node, package)
    return found & modules


def find_circle(folder):
    """Modules that lead back to the first of them; None: there is no circle."""
    files = {path.stem: path for path in sorted(folder.glob("*.py"))}
    uses = {name: imports(path, folder.name, set(files)) for name, path in files.items()}
    done = set()

    def visit(name, way):
        if name in way:
            return way[way.index(name) :] + [name]
        if name in done:
            return None
        for other in sorted(uses[name]):
            found = visit(other, way + [name])
            if found:
                return found
        done.add(name)
        return None

    return next(filter(None, (visit(name, []) for name in files)), None)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    root = parser.parse_args().root
    packages = sorted(init.parent for init in root.glob("python/*/__init__.py"))
    circles = [(package.name, circle) for package in packages if (circle := find_circle(package))]
    for name, circle in circles:
        print(f"python/{name}: modules import each other in a circle: {' -> '.join(circle)}")
    if not packages:
        print(f"{root}/python has no packages")
    elif not circles:
        print(f"imports: {len(packages)} Python packages ok")
    sys.exit(1 if circles or not packages else 0)


if __name__ == "__main__":
    main()
