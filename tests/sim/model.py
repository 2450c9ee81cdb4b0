"""Exhausts the model of a move (migration.pml) with spin, and has it find the rules that are left
out. `model.py [WORD]`: only runs whose name has that word. 77 = skipped: there is no spin.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).with_name("migration.pml")
MEMORY_KIB = 2 << 20
# What is explored. All assert that a move has ended where nothing can happen any more.
RUNS = {
    "failover": {"FAILOVERS": 1, "LOSSES": 1},
    "failover beside doubled orders": {"FAILOVERS": 1, "DOUBLES": 1},
    "a cancel before the copy and after the switch": {"FAILOVERS": 1, "CANCELS": 1},
    "the goal's host is lost": {"FAILOVERS": 1, "LOSE": 2},
    "the source's host is lost": {"FAILOVERS": 1, "LOSE": 1},
    "a drop is tried again": {"TRIES": 2, "LOSSES": 1, "DOUBLES": 1},
}
# that there are no cycles, so that each run comes to such an end
CLAIMS = {"every move ends": {"FAILOVERS": 1, "UNSURE": 0, "READS": 0}}
BROKEN = {
    "NO_CRC": "a copy is switched to whatever its bytes",
    "NO_ORDER": "orders are obeyed that are older than others, or of an old epoch",
    "NO_STOP": "a copy that was stopped still comes",
    "NO_GRACE": "a copy is dropped under its readers",
    "NO_SURE": "a switch that may have been committed is undone without the journal",
    "NO_END": "a Controller that has no answer asks for ever",
}


class Verifiers:
    """spin's programs for the model: what compiles them takes as long as a search,
    so all runs share them."""

    def __init__(self, where):
        self.where = where
        self.made = set()
        subprocess.run(["spin", "-a", MODEL], cwd=where, check=True, stdout=subprocess.DEVNULL)

    def program(self, claim):
        """NOCOMP: else each state is made shorter before it is looked up, a quarter of the search's
        instructions. The search for cycles ends without a word under it."""
        name = "cycles" if claim else "states"
        if name not in self.made:
            flags = ["-O0", "-DNP"] if claim else ["-O1", "-DSAFETY", "-DNOCOMP"]
            subprocess.run(
                ["cc", "-w", f"-DMEMLIM={MEMORY_KIB >> 10}", *flags, "-o", name, "pan.c"],
                cwd=self.where,
                check=True,
            )
            self.made.add(name)
        return [f"./{name}", "-m100000", *(["-l"] if claim else [])]

    def explore(self, bounds, claim):
        """(errors, states) of one run."""
        bounds = {"UNSURE": 1, "READS": 1, "TRIES": 1, **bounds}
        out = subprocess.run(
            self.program(claim),
            cwd=self.where,
            capture_output=True,
            text=True,
            check=False,
            env={k: str(v) for k, v in bounds.items()},
        ).stdout
        errors, states = re.search(r"errors: (\d+)", out), re.search(r"(\d+) states, stored", out)
        if (
            not errors
            or not states
            or "Search not completed" in out
            and errors[1] == "0"
            or "max search depth" in out
        ):
            raise SystemExit(f"model.py: spin did not exhaust the model ({bounds}):\n{out}")
        return int(errors[1]), int(states[1])


def explore_all(verifiers, word):
    failed = False
    for name, bounds in {**RUNS, **CLAIMS}.items():
        if word in name:
            errors, states = verifiers.explore(bounds, name in CLAIMS)
            failed |= errors > 0
            print(
                f"{'not ok' if errors else 'ok'} {name}: {states} states, {errors} errors",
                flush=True,
            )
    for rule, what in BROKEN.items():
        if word in rule:
            bounds = CLAIMS["every move ends"] if rule == "NO_END" else {"FAILOVERS": 1}
            errors, states = verifiers.explore({**bounds, rule: 1}, rule == "NO_END")
            failed |= errors == 0
            print(
                f"{'ok' if errors else 'not ok'} {rule} is found ({what}): {states} states",
                flush=True,
            )
    return failed


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if not shutil.which("spin"):
        print("skipped: spin is not installed; ./run deps test installs it")
        return 77
    with tempfile.TemporaryDirectory() as where:
        return int(explore_all(Verifiers(where), word))


sys.exit(main())
