"""Checks layers.txt: a file may use headers and functions only of its own module or wing, and of
those that the line of its module or wing names.

A module is a folder of src, or cmd. A wing is a folder of a module that has its own line, such as
`maco/plan: maco/graph`: it may use what its module's line names, and of its own module only the
wings that its line names. What else is an error: a private header (*_private.h) that another wing
or module includes, or a test that is neither one of its module's unit tests nor a fuzzer; a grant
that nothing uses; a wing that shows more than one header to others, unless faces.txt lists them; a
circle, files of a module whose calls lead back to the first of them, which circles.txt does not
list. Both lists may only shrink: an entry that no longer holds is an error, too, until
`check_layers.py --shrink` has taken it out.
"""
import argparse
import pathlib
import re
import sys

# The modules that may include a third-party header, because they wrap it.
FENCE = {
    "sqlite3.h": {"store"},
    "uv.h": {"os", "l3d", "controller", "agent", "mem", "hw"},
    "yaml.h": {"conf"},
    "ucp/": {"net"},
    "uct/": {"net"},
    "ucs/": {"net"},
    "capnp/": {"rpc"},
    "kj/": {"rpc"},
    "hwloc.h": {"hw"},
    "zmq.h": {"net"},
    "isa-l.h": {"base"},
    "zlib.h": {"base"},
}
SOURCES = (".c", ".h", ".cpp", ".cu", ".cuh")
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
NOT_CODE = re.compile(
    r'/\*.*?\*/|//[^\n]*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|^\s*#\s*include[^\n]*',
    re.DOTALL | re.MULTILINE,
)
# A definition: something at the first column, a name, parameters without a semicolon,
# and a brace at the first column.
FUNCTION = re.compile(r"^([A-Za-z_][^;{}()=]*?)\b([A-Za-z_]\w*)\(([^;{}]*)\)\s*\n\{", re.MULTILINE)
NAME = re.compile(r"(?<![.\w])(?<!->)[A-Za-z_]\w*")

HEAD = (
    "# Circles: files of a module whose calls lead back to the first of them: two that call"
    " functions of each other, or more of\n"
    "# which each reaches every other one. New circles, and more files in one, are refused.\n"
    "# `tools/check_layers.py --shrink` removes entries that no longer apply. A module's name is"
    " followed by its number of circles.\n"
)
FACES_HEAD = (
    "# Wings of which other wings and modules use more than one header. New ones are refused.\n"
    "# `tools/check_layers.py --shrink` removes entries that no longer apply.\n"
)


def module_of(unit):
    return unit.partition("/")[0]


class Law:
    def __init__(self, text, errors):
        self.errors = errors
        self.named = {}  # module or wing: what its line names
        self.line = {}
        for number, line in enumerate(text.splitlines(), 1):
            if line and not line.startswith("#"):
                self._add(number, line)
        self.used = {name: set() for name in self.named}
        self.faces = {}  # wing: its headers that others include

    def _add(self, number, line):
        name, _, deps = line.partition(":")
        where = f"layers.txt:{number}"
        if name in self.named:
            self.errors.append(f"{where}: {name} has a line already (line {self.line[name]})")
        if (
            "/" in name
            and name.rpartition("/")[0] not in self.named
            and module_of(name) not in self.named
        ):
            self.errors.append(f"{where}: wing {name} comes before its module")
        for dep in deps.split():
            if dep not in self.named:
                self.errors.append(f"{where}: {name} names {dep}, which is not defined above it")
            elif "/" not in name and module_of(dep) == name:
                self.errors.append(f"{where}: module {name} names {dep}, a wing of its own")
        self.named[name] = deps.split()
        self.line[name] = number

    def unit_of(self, path):
        """The wing or module that a path below src belongs to, or None."""
        parts = path.split("/")[:-1]
        for length in range(len(parts), 0, -1):
            if "/".join(parts[:length]) in self.named:
                return "/".join(parts[:length])
        return None

    def has_wings(self, module):
        return any(name.startswith(module + "/") for name in self.named)

    def allows(self, unit, target):
        """Whether a file of `unit` may include a header of `target`. Marks the grants that allow it
        as used."""
        if unit == target:
            return True
        module, allowed = module_of(unit), False
        for owner in {unit, module}:
            for grant in {target, module_of(target)}:
                # The name of another module grants all of its wings, that of the own module only
                # its root.
                if grant in self.named[owner] and (grant == target or module_of(target) != module):
                    self.used[owner].add(grant)
                    allowed = True
        return allowed

    def check_used(self):
        for name, deps in self.named.items():
            for dep in deps:
                if dep not in self.used[name]:
                    self.errors.append(
                        f"layers.txt:{self.line[name]}: {name} names {dep} and uses nothing of it"
                    )


class File:
    def __init__(self, root, path):
        self.where = path.relative_to(root).as_posix()
        self.below = self.where[len("src/") :] if self.where.startswith("src/") else self.where
        self.text = path.read_text()
        code = NOT_CODE.sub(" ", self.text) if path.suffix in (".c", ".cpp") else ""
        found = [(m[2], bool(re.search(r"\bstatic\b", m[1]))) for m in FUNCTION.finditer(code)]
        self.own = {name for name, _ in found}  # functions that it defines
        self.public = {
            name
            for name, static in found
            if not static and (path.suffix == ".c" or name.startswith("hl_"))
        }
        self.uses = set(NAME.findall(re.sub(r"\b(struct|enum|union)\s+\w+", "", code))) - self.own

    def includes(self):
        for match in INCLUDE.finditer(self.text):
            yield self.text.count("\n", 0, match.start(1 if match[1] else 2)) + 1, match[1], match[
                2
            ]


def check_file(law, f, errors):
    unit = law.unit_of(f.below)
    if unit is None:
        errors.append(f"{f.where}: module {module_of(f.below)} is not in layers.txt")
        return
    folder = f.below.rpartition("/")[0]
    if folder != unit and law.has_wings(module_of(unit)):
        errors.append(
            f"{f.where}: folder {folder} has no line in layers.txt,"
            f" where {module_of(unit)} has wings"
        )
    for number, own, third in f.includes():
        own = f"cmd/{own}" if own and own.startswith("cli/") else own
        target = law.unit_of(own) if own else None
        if target and not law.allows(unit, target):
            errors.append(f"{f.where}:{number}: {unit} may not use {target} (layers.txt)")
        if target and own.endswith("_private.h") and target != unit:
            errors.append(f"{f.where}:{number}: {own} is private to {target}")
        elif target and "/" in target and target != unit:
            law.faces.setdefault(target, set()).add(own.rpartition("/")[2])
        for prefix, modules in FENCE.items():
            if third and third.startswith(prefix) and module_of(unit) not in modules:
                errors.append(
                    f"{f.where}:{number}: <{third}> belongs to {', '.join(sorted(modules))}"
                )


def check_tests(root, law, errors):
    """Tests of other modules, and of whole programs, use what everyone may."""
    for path in sorted(p for p in (root / "tests").rglob("*") if p.suffix in SOURCES):
        where = path.relative_to(root).as_posix()
        for match in INCLUDE.finditer(path.read_text()):
            own = match[1] or ""
            target = law.unit_of(f"cmd/{own}" if own.startswith("cli/") else own)
            if not own.endswith("_private.h") or target is None:
                continue
            if not where.startswith((f"tests/unit/{module_of(target)}/", "tests/fuzz/")):
                errors.append(f"{where}: {own} is private to {target} and its unit tests")


def find_calls(root, files):
    """(file that uses a function, file that defines it, function), of functions that a header
    declares. Names that several modules define are left out, but within one of them."""
    headers = [f.text for f in files if f.where.endswith(".h")] + [
        p.read_text() for p in sorted((root / "include").rglob("*.h"))
    ]
    declared = {
        m[1] for text in headers for m in re.finditer(r"\b(\w+)\(", NOT_CODE.sub(" ", text))
    } - {"__attribute__"}
    defined = {}
    for f in files:
        for name in f.public & declared:
            defined.setdefault(name, set()).add(f)
    calls = []
    for caller in files:
        for name in sorted(caller.uses & defined.keys()):
            near = {f for f in defined[name] if module_of(f.below) == module_of(caller.below)}
            callees = near or defined[name]
            if len({module_of(f.below) for f in callees}) == 1:
                calls += [(caller, callee, name) for callee in callees if callee is not caller]
    return calls


def check_calls(law, calls, errors):
    """What a file declares through include/helios instead of a module's header,
    it uses all the same."""
    for caller, callee, name in calls:
        unit, target = law.unit_of(caller.below), law.unit_of(callee.below)
        if unit and target and not law.allows(unit, target):
            errors.append(f"{caller.where}: {unit} may not call {name} of {target} (layers.txt)")


def find_circles(calls):
    """Sets of a module's files: two that use functions of each other,
    and all that reach each other over more files."""
    uses = {}
    for a, b, _ in calls:
        if module_of(a.below) == module_of(b.below):
            uses.setdefault(a.below, set()).add(b.below)
    pairs = {frozenset((a, b)) for a, used in uses.items() for b in used if a in uses.get(b, ())}
    reach = {a: reached_from(a, uses) for a in uses}
    rings = {frozenset(b for b in reach[a] if a in reach.get(b, ())) for a in uses}
    return pairs | {ring for ring in rings if len(ring) > 2}


def reached_from(start, uses):
    seen, left = set(), [start]
    while left:
        new = uses.get(left.pop(), set()) - seen
        seen |= new
        left += new
    return seen


def read_circles(path, errors):
    listed, module, count = set(), None, 0
    said = {}
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], 1):
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            module, _, count = line.partition(":")
            said[module] = (number, int(count))
        else:
            listed.add(frozenset(f"{module}/{name}" for name in line.split()))
    for module, (number, count) in said.items():
        have = sum(module_of(min(circle)) == module for circle in listed)
        if have != count:
            errors.append(
                f"{path.name}:{number}: {module} is said to have {count} circles, and lists {have}"
            )
    return listed


def write_circles(path, circles):
    text = HEAD
    for module in sorted({module_of(min(circle)) for circle in circles}):
        rows = sorted(sorted(circle) for circle in circles if module_of(min(circle)) == module)
        text += f"{module}: {len(rows)}\n"
        text += "".join(
            "  " + " ".join(name.partition("/")[2] for name in row) + "\n" for row in rows
        )
    path.write_text(text)


def is_listed(circle, listed):
    """A listed circle of several files may lose some of them; a pair needs an entry of its own."""
    return circle in listed or len(circle) > 2 and any(circle < other for other in listed)


def check_circles(root, calls, shrink, errors):
    path = root / "circles.txt"
    stand, listed = find_circles(calls), read_circles(path, errors)
    for circle in sorted(map(sorted, stand)):
        if not is_listed(frozenset(circle), listed):
            whom = "each other" if len(circle) == 2 else "each other in a circle"
            errors.append(
                f"{', '.join(circle[:-1])} and {circle[-1]} call functions of {whom}: "
                "move what both need below them, or pass it in"
            )
    if shrink:
        write_circles(path, {circle for circle in stand if is_listed(circle, listed)})
    else:
        for circle in sorted(map(sorted, listed - stand)):
            errors.append(
                f"circles.txt: {' and '.join(circle)} no longer call each other: run"
                " tools/check_layers.py --shrink"
            )
    return len(stand)


def check_faces(root, law, shrink, errors):
    """Others use one header of a wing; faces.txt lists the wings of which they use more."""
    path = root / "faces.txt"
    lines = [
        line
        for line in (path.read_text().splitlines() if path.exists() else [])
        if line and not line.startswith("#")
    ]
    listed = {
        wing: set(names.split()) for wing, _, names in (line.partition(":") for line in lines)
    }
    stand = {wing: names for wing, names in law.faces.items() if len(names) > 1}
    for wing in sorted(stand):
        if stand[wing] - listed.get(wing, set()):
            errors.append(
                f"{wing} shows others {len(stand[wing])} headers, {', '.join(sorted(stand[wing]))}:"
                " leave one, or part the wing"
            )
    left = {wing: names & stand.get(wing, set()) for wing, names in listed.items()}
    if shrink:
        text = "".join(
            f"{wing}: {' '.join(sorted(left[wing]))}\n" for wing in sorted(left) if left[wing]
        )
        path.write_text(FACES_HEAD + text)
    else:
        for wing in sorted(wing for wing in listed if left[wing] != listed[wing]):
            errors.append(
                f"faces.txt: {wing} shows less than is listed: run tools/check_layers.py --shrink"
            )
    return len(stand)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shrink",
        action="store_true",
        help="remove entries that no longer apply from circles.txt and faces.txt",
    )
    parser.add_argument(
        "--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent
    )
    options = parser.parse_args()
    root, errors = options.root, []
    law = Law((root / "layers.txt").read_text(), errors)
    files = [
        File(root, f)
        for d in ("src", "cmd")
        for f in sorted((root / d).rglob("*"))
        if f.suffix in SOURCES
    ]
    for f in files:
        check_file(law, f, errors)
    check_tests(root, law, errors)
    calls = find_calls(root, files)
    check_calls(law, calls, errors)
    law.check_used()
    circles = check_circles(root, calls, options.shrink, errors)
    wide = check_faces(root, law, options.shrink, errors)
    print(
        "\n".join(errors)
        if errors
        else (
            f"layers: {len(files)} files ok, {circles} circles left (circles.txt), "
            f"{wide} wings of several headers (faces.txt)"
        )
    )
    sys.exit(1 if errors else 0)


main()
