#!/usr/bin/python3
"""The fault matrix: which test shows what happens on which path under which fault.

    matrix.py [--full] [LOG]    a table made from the log of a ctest run
                                (build/Testing/Temporary/LastTest.log)

A test claims a cell by a line on stdout, printed after the last assertion that belongs to it:

    FAULT path=tcp-read fault=kill result=noticed-repaired

Exit status 1 if a claim names no path or fault of the matrix, or is made by a test that failed.
With --full, for a run of all tests, also if a cell is neither shown nor n/a; cells of tests that
were skipped here are reported and excused.
"""
import re
import sys

LOG = "build/Testing/Temporary/LastTest.log"
PATHS = ["shm", "tcp-read", "tcp-put", "zmq-migrate", "plank", "archive-dir"]
FAULTS = [
    "kill",
    "stop",
    "link-down",
    "slow-link",
    "corrupt",
    "full",
    "wrong-size",
    "duplicate",
    "reorder",
    "foreign",
]

NO_LINK = "no network on this path"
NO_FRAMES = "no messages on this path: memory is copied"
NOT_APPLICABLE = {
    ("shm", "link-down"): NO_LINK,
    ("shm", "slow-link"): NO_LINK,
    ("plank", "link-down"): NO_LINK + ": the legs beside it are rows of their own",
    ("plank", "slow-link"): "the slower leg sets the pace; the copy is the same",
    ("archive-dir", "link-down"): NO_LINK,
    ("archive-dir", "slow-link"): NO_LINK,
    ("shm", "duplicate"): NO_FRAMES,
    ("shm", "reorder"): NO_FRAMES,
    ("plank", "kill"): "both legs are in one process",
    ("plank", "stop"): "both legs are in one process",
    ("plank", "duplicate"): NO_FRAMES,
    ("plank", "reorder"): NO_FRAMES,
    ("plank", "foreign"): NO_FRAMES,
    ("archive-dir", "duplicate"): NO_FRAMES,
    ("archive-dir", "reorder"): NO_FRAMES,
    ("archive-dir", "stop"): "nobody is at the other end of a directory",
    ("tcp-read", "full"): "a read takes no room at the owner",
}

# Cells of a path may be missing if the tests of this name were skipped
# (no namespaces, no traffic control, no mount).
SKIPPABLE = {
    "tcp-read": "net_test_",
    "tcp-put": "net_test_",
    "zmq-migrate": "net_test_",
    "archive-dir": "mem_test_archive_dir",
}

CTEST = re.compile(r"^\d+/\d+ Test: (\S+)")
CASE = re.compile(r"^(?:\[ RUN +\] (\w+)|(test_\w+) \()")
SKIP = re.compile(r"\.\.\. skipped |^\[  SKIPPED \]|^skipped: ")
CLAIM = re.compile(r"FAULT path=(\S+) fault=(\S+) result=(\S+)")


def read(lines):
    """({(path, fault): [(result, test)]}, problems) of a ctest log."""
    cells, problems, pending = {}, [], []
    program = case = ""
    for line in lines:
        if found := CTEST.match(line):
            program, case, pending = found[1], "", []
        if found := CASE.match(line):
            case = found[1] or found[2]
        for path, fault, result in CLAIM.findall(line):
            test = f"{program}: {case}" if case else program
            if path not in PATHS or fault not in FAULTS:
                problems.append(
                    f"{test} claims path={path} fault={fault}, which is no cell of the matrix"
                )
            else:
                pending.append(((path, fault), (result, test)))
        if line.startswith("Test Passed."):
            for cell, claim in pending:
                if claim not in cells.setdefault(cell, []):
                    cells[cell].append(claim)
            pending = []
        elif line.startswith("Test Failed."):
            problems += [
                f"{test} failed: what it says of path={cell[0]} fault={cell[1]} does not count"
                for cell, (_, test) in pending
            ]
            pending = []
    return cells, problems


def skips(lines):
    """Names of the test programs that skipped something."""
    program, names = "", set()
    for line in lines:
        if found := CTEST.match(line):
            program = found[1]
        # Slow links show delay and loss without it, too.
        if SKIP.search(line) and "netem" not in line:
            names.add(program)
    return names


def open_cells(cells):
    return [
        (p, f)
        for p in PATHS
        for f in FAULTS
        if (p, f) not in NOT_APPLICABLE and (p, f) not in cells
    ]


def gaps(cells, skipped):
    """Cells that a full run should have shown."""
    return [
        f"path={path} fault={kind}: no test of this run shows it,"
        " and the matrix knows no reason why not"
        for path, kind in open_cells(cells)
        if path not in SKIPPABLE or not any(name.startswith(SKIPPABLE[path]) for name in skipped)
    ]


def table(cells):
    """Lines of text: a number for each test, the tests below,
    then what does not apply and what no test has shown."""
    tests = sorted({test for claims in cells.values() for _, test in claims})
    number = {test: i for i, test in enumerate(tests, 1)}
    rows = [["path", *FAULTS]]
    for path in PATHS:
        row = [path]
        for fault in FAULTS:
            claims = cells.get((path, fault), [])
            if claims:
                row.append(claims[0][0] + " " + ",".join(f"[{number[test]}]" for _, test in claims))
            else:
                row.append("n/a" if (path, fault) in NOT_APPLICABLE else "-")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    text = [
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    ]
    text.insert(1, "-+-".join("-" * width for width in widths))
    text += ["", *(f"[{number[test]}] {test}" for test in tests)]
    reasons = {}
    for cell, why in NOT_APPLICABLE.items():
        reasons.setdefault(why, []).append(" ".join(cell))
    text += ["", *(f"n/a {', '.join(which)}: {why}" for why, which in reasons.items())]
    if missing := open_cells(cells):
        text += ["", "-   not shown in this run: " + ", ".join(map(" ".join, missing))]
    return text


def main(argv):
    full = "--full" in argv
    paths = [a for a in argv[1:] if a != "--full"]
    with open(paths[0] if paths else LOG, encoding="utf-8", errors="replace") as log:
        lines = log.read().splitlines()
    cells, problems = read(lines)
    if cells:
        print("\nFault matrix: what each path does under each fault, and the test that shows it")
        print("(./run test makes it; after that python3 tests/net/matrix.py shows it again)\n")
        print("\n".join(table(cells)))
    if full:
        problems += gaps(cells, skips(lines))
    for problem in problems:
        print(f"matrix: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
