"""Runs several tests that mostly wait at a time; the output of each is printed as a whole when it
has ended."""
from __future__ import annotations

import concurrent.futures
import threading
import unittest

TOLD = (
    "addSuccess addFailure addError addSkip"
    " addExpectedFailure addUnexpectedSuccess addSubTest".split()
)


class Recorder(unittest.TestResult):
    """The recorded result of one test, to be reported again."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        if name not in TOLD:
            return value

        def told(*args):
            self.calls.append((name, args))
            return value(*args)

        return told


class SideBySide(unittest.TestSuite):
    """Runs `at_once` tests at a time, in the order given. setUpClass of their classes runs before,
    in this thread."""

    def __init__(self, tests, at_once):
        super().__init__(tests)
        self.at_once, self.told = at_once, threading.Lock()

    def _run_one(self, test, result):
        own = Recorder()
        test.run(own)
        with self.told:
            result.startTest(test)
            for name, args in own.calls:
                getattr(result, name)(*args)
            result.stopTest(test)

    def run(self, result, debug=False):
        for kind in dict.fromkeys(type(test) for test in self):
            kind.setUpClass()
        with concurrent.futures.ThreadPoolExecutor(self.at_once) as pool:
            for done in [pool.submit(self._run_one, test, result) for test in self]:
                done.result()
        return result
