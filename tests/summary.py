#!/usr/bin/python3
"""What a run of ctest skipped and why, and the counts, from its log.

    summary.py [LOG]        LOG: build/Testing/Temporary/LastTest.log
    summary.py --seconds    writes tests/seconds.txt by that log

The last line is "N passed, N failed, N skipped".
A program that skipped only some of its cases has passed.
"""
import re
import sys

SECONDS = "tests/seconds.txt"
LOG = "build/Testing/Temporary/LastTest.log"
BEGIN = re.compile(r"^\d+/\d+ Test: (\S+)")
WHOLE = re.compile(r"^skipped: (.*)")
TOOK = re.compile(r"^Test time = +([\d.]+) sec")
LEAST_S = 3  # of a test that is worth a line
# Why the case of a C program was skipped that is named next.
REASON = re.compile(r"^\[  REASON  \] (.*)")
CASE = re.compile(r"^(\w+) \(.*\.\.\. skipped ['\"](.*)['\"]$|^\[  SKIPPED \] (?!\d+ test)(\w+)$")


class Test:
    def __init__(self, name):
        self.name, self.passed, self.why, self.cases, self.seconds = name, False, None, {}, 0.0


def read(lines):
    """A Test for each that the log tells of, in its order."""
    tests, reason = [], ""
    for line in lines:
        if found := BEGIN.match(line):
            tests.append(Test(found[1]))
        elif not tests:
            continue
        elif found := TOOK.match(line):
            tests[-1].seconds = float(found[1])
        elif found := WHOLE.match(line):
            tests[-1].why = found[1]
        elif found := REASON.match(line):
            reason = f": {found[1]}"
        elif found := CASE.match(line):
            name, why = found[1] or found[3], f": {found[2]}" if found[1] else reason
            tests[-1].cases.setdefault(name, why)  # a C program names its cases again at its end
            reason = ""
        elif line.startswith(("Test Passed.", "Test Pass Reason:")):
            tests[-1].passed = True
    return tests


def summary(tests):
    """Lines of text."""
    skipped = [t for t in tests if t.passed and t.why is not None]
    passed = [t for t in tests if t.passed and t.why is None]
    text = [f"skipped {t.name}: {t.why}" for t in skipped]
    text += [f"skipped in {t.name}: {case}{why}" for t in passed for case, why in t.cases.items()]
    text += [f"FAILED {t.name}" for t in tests if not t.passed]
    return text + [
        f"{len(passed)} passed, {len(tests) - len(passed) - len(skipped)} failed,"
        f" {len(skipped)} skipped"
    ]


def write_seconds(tests):
    """tests/seconds.txt, with the comment that it has."""
    with open(SECONDS, encoding="utf-8") as now:
        text = [line for line in now if line.startswith("#")]
    text += [
        f"{t.name} {t.seconds:.0f}\n"
        for t in sorted(tests, key=lambda t: (-t.seconds, t.name))
        if t.seconds >= LEAST_S
    ]
    with open(SECONDS, "w", encoding="utf-8") as out:
        out.writelines(text)


def main(argv):
    wants_seconds = argv[1:] == ["--seconds"]
    with open(
        argv[1] if len(argv) > 1 and not wants_seconds else LOG, encoding="utf-8", errors="replace"
    ) as log:
        tests = read(log.read().splitlines())
    if wants_seconds:
        write_seconds(tests)
    else:
        print("\n" + "\n".join(summary(tests)))


if __name__ == "__main__":
    main(sys.argv)
