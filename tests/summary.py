#!/usr/bin/python3
"""What a run of ctest skipped and why, and the counts, from its log.

    summary.py [LOG]    LOG: build/Testing/Temporary/LastTest.log

The last line is "N passed, N failed, N skipped". A program that skipped only some of its cases has passed.
"""
import re
import sys

LOG = "build/Testing/Temporary/LastTest.log"
BEGIN = re.compile(r"^\d+/\d+ Test: (\S+)")
WHOLE = re.compile(r"^skipped: (.*)")
CASE = re.compile(r"^(\w+) \(.*\.\.\. skipped ['\"](.*)['\"]$|^\[  SKIPPED \] (?!\d+ test)(\w+)$")


class Test:
    def __init__(self, name):
        self.name, self.passed, self.why, self.cases = name, False, None, []


def read(lines):
    """A Test for each that the log tells of, in its order."""
    tests = []
    for line in lines:
        if found := BEGIN.match(line):
            tests.append(Test(found[1]))
        elif not tests:
            continue
        elif found := WHOLE.match(line):
            tests[-1].why = found[1]
        elif found := CASE.match(line):
            case = f"{found[1]}: {found[2]}" if found[1] else found[3]
            if case not in tests[-1].cases:
                tests[-1].cases.append(case)
        elif line.startswith(("Test Passed.", "Test Pass Reason:")):
            tests[-1].passed = True
    return tests


def summary(tests):
    """Lines of text."""
    skipped = [t for t in tests if t.passed and t.why is not None]
    passed = [t for t in tests if t.passed and t.why is None]
    text = [f"skipped {t.name}: {t.why}" for t in skipped]
    text += [f"skipped in {t.name}: {case}" for t in passed for case in t.cases]
    text += [f"FAILED {t.name}" for t in tests if not t.passed]
    return text + [f"{len(passed)} passed, {len(tests) - len(passed) - len(skipped)} failed, {len(skipped)} skipped"]


def main(argv):
    with open(argv[1] if len(argv) > 1 else LOG, encoding="utf-8", errors="replace") as log:
        print("\n" + "\n".join(summary(read(log.read().splitlines()))))


if __name__ == "__main__":
    main(sys.argv)
