"""Tests are functions with a sentence; they run in the order of registration. A test that hangs is
ended, and its place is printed."""
import collections
import pathlib
import signal
import time
import traceback

TAP = pathlib.Path("/job/out/tap")
TESTS = []
# Nothing takes this long, on any host.
HANGS = 900


class Skip(Exception):
    """Why a test cannot run here."""


def test(sentence):
    def register(function):
        TESTS.append((sentence, function))
        return function

    return register


class Notes:
    """What a test wants to have printed beside its result."""

    def __init__(self):
        self.lines = []

    def __call__(self, text):
        self.lines.extend(str(text).rstrip().splitlines())


def _hangs(_number, _frame):
    raise AssertionError(f"it still runs after {HANGS} s")


def _one(number, sentence, function, tap):
    """passed, skipped or failed"""
    notes = Notes()
    begin = time.monotonic()
    verdict, tail, result = "ok", "", "passed"
    signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(HANGS)
    try:
        function(notes)
    except Skip as why:
        tail, result = f" # SKIP {why}", "skipped"
    except BaseException:  # noqa: BLE001 - everything is a failure of this test alone
        verdict, result = "not ok", "failed"
        notes(traceback.format_exc())
    finally:
        signal.alarm(0)
    tap.write(
        f"{verdict} {number} - {sentence}{tail} ({time.monotonic() - begin:.1f} s)\n"
        if not tail
        else f"{verdict} {number} - {sentence}{tail}\n"
    )
    tap.writelines(f"#   {line}\n" for line in notes.lines)
    tap.flush()
    return result


def run(words):
    chosen = [
        (s, f) for s, f in TESTS if not words or any(w in s or w in f.__name__ for w in words)
    ]
    with open(TAP, "a", encoding="utf-8") as tap:
        tap.write(f"1..{len(chosen)}\n")
        results = [(_one(n, s, f, tap), s) for n, (s, f) in enumerate(chosen, 1)]
        count = collections.Counter(result for result, _ in results)
        tap.write(
            f"# {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped\n"
        )
        tap.writelines(f"# failed: {s}\n" for result, s in results if result == "failed")
    return 0 if count["passed"] and not count["failed"] else 1
