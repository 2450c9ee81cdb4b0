"""Tests of a file side by side, in threads: for those that mostly wait, and each of which has a world of its own.

    side_by_side.main()      # instead of unittest.main()

A test that uses what belongs to the process (signals, the current directory, os.environ) does not belong here."""
from __future__ import annotations

import concurrent.futures
import os
import sys
import traceback
import unittest

AT_ONCE = 6


def each(suite):
    """The single tests of a suite of suites."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def run_one(test):
    """Its own result, so that no two threads write to one."""
    result = unittest.TestResult()
    try:
        test.run(result)
    except BaseException:  # the thread would take it along  # noqa: B902
        result.addError(test, sys.exc_info())
        traceback.print_exc()
    return result


def tell(test, result):
    """What the runner of unittest says, when it is over."""
    skipped = [why for _, why in result.skipped]
    word = "ok" if result.wasSuccessful() and not skipped else f"skipped '{skipped[0]}'" if skipped else "FAIL"
    lines = [f"{test} ... {word}", *(text for _, text in result.failures + result.errors)]
    print("\n".join(lines), file=sys.stderr, flush=True)


def main(at_once=AT_ONCE):
    """The tests of the program, or those that are named on its command line; it exits."""
    loader = unittest.TestLoader()
    module = sys.modules["__main__"]
    names = [a for a in sys.argv[1:] if not a.startswith("-")]
    tests = list(each(loader.loadTestsFromNames(names, module) if names else loader.loadTestsFromModule(module)))
    good = True
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        running = {pool.submit(run_one, test): test for test in tests}
        for done in concurrent.futures.as_completed(running):
            tell(running[done], done.result())
            good &= done.result().wasSuccessful()
    print(f"Ran {len(tests)} tests, {at_once} at a time: {'OK' if good else 'FAILED'}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(0 if good and tests else 1)  # a thread that hangs was told of; it must not hold up the end
