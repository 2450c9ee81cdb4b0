"""What a script of tests/e2e needs; if it is missing, prints what and exits with the status that
CTest counts as skipped.

Importing this makes python/, tests/ and tests/support/ importable, and leaves no bytecode in the
tree.
"""
import os
import pathlib
import sys
from types import ModuleType
from typing import NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "support")]
sys.dont_write_bytecode = True


def skip(why: str) -> NoReturn:
    print(f"skipped: {why}")
    sys.exit(77)


def torch() -> ModuleType:
    try:
        import torch as found
    except (
        ModuleNotFoundError
    ) as missing:  # a torch that is installed and can't be imported is a fault
        if missing.name != "torch":
            raise
        skip(f"torch is not installed ({missing})")
    return found


def command(script: object, *arguments: object) -> list[str]:
    """Command for a script that uses torch and need not be a process of its own from the start."""
    return [
        sys.executable,
        str(ROOT / "tests" / "support" / "with_torch.py"),
        str(script),
        *map(str, arguments),
    ]


def job_command(script: object) -> tuple[list[str], dict[str, str]]:
    """Command and environment of ranks that run this way. A rank's own process then only waits: for
    ranks whose pid, cgroup and signals the test does not check."""
    told = os.environ.get("TESTS_TORCH")
    if told is None:  # run by hand: each rank would start a process with torch of its own
        return [sys.executable, str(script)], {}
    return command(script), {"TESTS_TORCH": told}


def programs() -> None:
    """The build's helios, with its library set for this process."""
    helios = BUILD / "bin" / "helios"
    if not helios.exists():
        skip(f"{helios} is not built")
    os.environ["HELIOS_LIBRARY"] = str(BUILD / "lib" / "libhelios.so.0")
