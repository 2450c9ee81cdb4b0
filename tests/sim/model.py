"""Exhausts the model of a move (migration.pml) with spin, and has it find the rules that are left out. `model.py [WORD]`: only
runs whose name has that word. 77 = skipped: there is no spin.
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODEL = pathlib.Path(__file__).with_name("migration.pml")
MEMORY_KIB = 2 << 20
# what is explored; that a move has ended where nothing can happen any more is asserted in all of them
RUNS = {
    "failover": "-DFAILOVERS=1 -DLOSSES=1 -DDOUBLES=0 -DUNSURE=1",
    "failover beside doubled orders": "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=1 -DUNSURE=1",
    "a cancel before the copy and after the switch": "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=0 -DUNSURE=1 -DCANCELS=1",
    "the goal's host is lost": "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=0 -DUNSURE=1 -DLOSE=2",
    "the source's host is lost": "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=0 -DUNSURE=1 -DLOSE=1",
    "a drop is tried again": "-DFAILOVERS=0 -DTRIES=2 -DLOSSES=1 -DDOUBLES=1 -DUNSURE=1",
}
# that there are no cycles, so that each run comes to such an end
CLAIMS = {"every move ends": "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=0 -DUNSURE=0 -DREADS=0"}
SMALL = "-DFAILOVERS=1 -DLOSSES=0 -DDOUBLES=0 -DUNSURE=1"
BROKEN = {
    "NO_CRC": "a copy is switched to whatever its bytes",
    "NO_ORDER": "orders are obeyed that are older than others, or of an old epoch",
    "NO_STOP": "a copy that was stopped still comes",
    "NO_GRACE": "a copy is dropped under its readers",
    "NO_SURE": "a switch that may have been committed is undone without the journal",
    "NO_END": "a Controller that has no answer asks for ever",
}


def explore(defines, claim, big=False):
    """(errors, states) of one run, in a directory of its own."""
    with tempfile.TemporaryDirectory() as where:
        subprocess.run(["spin", *defines, "-a", MODEL], cwd=where, check=True, stdout=subprocess.DEVNULL)
        # NOCOMP: else each state is made shorter before it is looked up, a quarter of the search's instructions. The search for
        # cycles ends without a word under it.
        flags = ["-DNP"] if claim else ["-DSAFETY", "-DNOCOMP"]
        subprocess.run(["cc", "-O1" if big else "-O0", "-w", f"-DMEMLIM={MEMORY_KIB >> 10}", *flags, "-o", "pan", "pan.c"],
                       cwd=where, check=True)
        out = subprocess.run(["./pan", "-m100000", *(["-l"] if claim else [])], cwd=where,
                             capture_output=True, text=True, check=False).stdout
    errors, states = re.search(r"errors: (\d+)", out), re.search(r"(\d+) states, stored", out)
    if not errors or not states or "Search not completed" in out and errors[1] == "0" or "max search depth" in out:
        raise SystemExit(f"model.py: spin did not exhaust the model ({' '.join(defines)}):\n{out}")
    return int(errors[1]), int(states[1])


def main():
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if not shutil.which("spin"):
        print("skipped: spin is not installed; ./run deps test installs it")
        return 77
    failed = False
    for name, defines in {**RUNS, **CLAIMS}.items():
        if word in name:
            errors, states = explore(defines.split(), name in CLAIMS, name in RUNS)
            failed |= errors > 0
            print(f"{'not ok' if errors else 'ok'} {name}: {states} states, {errors} errors", flush=True)
    for rule, what in BROKEN.items():
        if word in rule:
            small = CLAIMS["every move ends"] if rule == "NO_END" else SMALL
            errors, states = explore(["-D" + rule, *small.split()], rule == "NO_END")
            failed |= errors == 0
            print(f"{'ok' if errors else 'not ok'} {rule} is found ({what}): {states} states", flush=True)
    return int(failed)


sys.exit(main())
