#!/usr/bin/python3
"""The end-to-end tests with the daemons and commands of build-asan;
ranks and Python take the library of build.

    sanitized.py [NAME...]    NAME: save, for tests/e2e/test_save.py;
                              default: all that start a cluster

A sanitizer's report fails the test in whose time it came. The last line is "N passed, N failed".
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "tests" / "e2e"
MIXED = ROOT / "build-asan" / "mixed"
LIMIT_S = 1200


def mix():
    """A build folder of both: copies, for a daemon finds the library beside its own file."""
    shutil.rmtree(MIXED, ignore_errors=True)
    MIXED.mkdir()
    shutil.copytree(ROOT / "build-asan" / "bin", MIXED / "bin")
    shutil.copytree(ROOT / "build" / "lib", MIXED / "lib", symlinks=True)
    (MIXED / "tests").symlink_to(ROOT / "build" / "tests")


def names():
    return sorted(
        script.stem.removeprefix("test_")
        for script in SCRIPTS.glob("test_*.py")
        if "support.cluster" in script.read_text(encoding="utf-8")
    )


def run(name, reports):
    """Whether the test has passed; what it says otherwise is printed."""
    log = f"log_path={reports}/{name}:"
    env = {
        **os.environ,
        "HELIOS_BUILD": str(MIXED),
        "ASAN_OPTIONS": log + "detect_leaks=0:verify_asan_link_order=0",
        "UBSAN_OPTIONS": log + "print_stacktrace=1",
        "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}",
    }
    try:
        done = subprocess.run(
            ["/usr/bin/python3", SCRIPTS / f"test_{name}.py"],
            env=env,
            timeout=LIMIT_S,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        code, said = done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        code, said = None, (e.stdout or b"").decode(errors="replace")
    found = [
        report.read_text(errors="replace")
        for report in sorted(pathlib.Path(reports).glob(f"{name}.*"))
    ]
    passed = code in (0, 77) and not found
    print(f"{name}: {'skipped' if code == 77 else 'passed' if passed else 'FAILED'}", flush=True)
    if not passed:
        print(
            *found,
            said if code is not None else f"{said}\nno end within {LIMIT_S} s",
            sep="\n",
            flush=True,
        )
    return passed


def main(argv):
    mix()
    with tempfile.TemporaryDirectory() as reports:
        results = [run(name, reports) for name in argv[1:] or names()]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv))
