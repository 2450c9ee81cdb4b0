#!/usr/bin/python3
"""./run chaos MINUTES [--seed N]: a real cluster under random faults, checked after each of them.

A round is a phase (import, pull, save ...) and a fault that strikes at a random moment of it.
Afterwards the cluster must heal, every committed version must have the bytes that an independent
computation gives, nothing may be half visible or left over, and a gang that the fault does not
concern must run on. Each pair of phase and fault comes once before any pair is repeated.
"""
from __future__ import annotations

import argparse
import collections
import pathlib
import random
import sys
import threading
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import sandbox  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("minutes", type=float, help="how long; the last round is completed")
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="chooses phases, faults and bytes; random if not given",
    )
    parser.add_argument(
        "--rounds", type=int, default=0, help="end after this many rounds at the latest"
    )
    parser.add_argument("--phase", action="append", help="only this phase; may be repeated")
    parser.add_argument("--fault", action="append", help="only this fault; may be repeated")
    parser.add_argument(
        "--keep", action="store_true", help="keep the directories of a failed round"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="after a failure go on with a new cluster"
    )
    return parser.parse_args()


def tail(path: pathlib.Path, start: int) -> str:
    """The log from `start` on, at most its last 16 KiB."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - 16384))
        return file.read().decode(errors="replace")


class Round:
    """A phase in this thread, a fault in another."""

    def __init__(self, run: "Run", number: int, phase: str, fault: str) -> None:
        self.run, self.world, self.number, self.phase = run, run.world, number, phase
        self.rng = random.Random(f"{run.seed}/{number}")
        self.fault = run.faults[fault](run.world, self.rng, run.left() * 0.2)
        self.done = threading.Event()
        self.hit = False
        self.errors: list[BaseException] = []
        self.began = time.monotonic()

    def strike(self) -> None:
        try:
            if self.phase in self.run.waits:
                self.world.fault_may_begin.wait(30)
                self.began = time.monotonic()
            typical = self.run.typical.get(self.phase, 0.3)
            self.done.wait(self.rng.uniform(0, 0.8 * typical))
            self.hit = not self.done.is_set()
            self.run.log(f"  * {self.fault.text}{'' if self.hit else ' (the phase had ended)'}")
            self.fault.begin()
            try:
                self.fault.hold(self.done)
            finally:
                self.fault.end()
            self.run.log(f"  * end of {self.fault.text}")
        except BaseException as error:  # pylint: disable=broad-except
            self.errors.append(error)

    def play(self) -> str:
        """Returns how the phase ended; Broken if an invariant does not hold."""
        world, before = self.world, self.world.pids()
        for daemon, pid in before.items():
            if not self.run.world_module.alive(pid):
                raise self.run.world_module.Broken(f"{daemon} ended by itself before the round")
        striker = threading.Thread(target=self.strike)
        striker.start()
        try:
            outcome = self.run.phases[self.phase](world, self.rng, self.number)
        finally:
            took = time.monotonic() - self.began
            self.done.set()
            world.fault_may_begin.set()
            striker.join()
        if self.errors:
            raise self.errors[0]
        if self.fault.name == "none":
            old = self.run.typical.get(self.phase, took)
            self.run.typical[self.phase] = (old + took) / 2
        self.run.after(self, before)
        return outcome


class Run:
    def __init__(self, args: argparse.Namespace, reason: str) -> None:
        import faults
        import phases
        import world

        self.world_module, self.phases_module = world, phases
        self.args, self.reason = args, reason
        self.seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
        self.phases, self.waits, self.faults = (
            phases.PHASES,
            phases.WAITS,
            {**faults.FAULTS, **faults.PLANTED},
        )
        self.usual = list(faults.FAULTS)
        for what, names, known in (
            ("phase", args.phase, self.phases),
            ("fault", args.fault, self.faults),
        ):
            for name in names or ():
                if name not in known:
                    raise SystemExit(
                        f"chaos: unknown {what} '{name}'; there are: {', '.join(known)}"
                    )
        self.rng = random.Random(self.seed)
        self.typical: dict[str, float] = {}
        self.log_sizes: dict[str, int] = {}  # at the end of the last round
        self.lines: list[str] = []
        self.table: collections.Counter = collections.Counter()
        self.skipped: dict[str, str] = {}
        self.failures = 0
        self.world = None
        self.begun = time.monotonic()

    def left(self) -> float:
        return self.begun + self.args.minutes * 60 - time.monotonic()

    def log(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.begun:8.2f} {text}")

    def deck(self):
        """An endless sequence of pairs of phase and fault, each once before any is repeated; first
        every phase without a fault."""
        phases, faults = self.args.phase or list(self.phases), self.args.fault or self.usual
        if not self.args.fault:
            yield from ((phase, "none") for phase in phases)
        while True:
            pairs = [(p, f) for p in phases for f in faults]
            self.rng.shuffle(pairs)
            yield from pairs

    def after(self, played: Round, before: dict[str, int]) -> None:
        """After the fault: the cluster heals, the phase's work is completed,
        everything is checked."""
        now = self.world.pids()
        alive = self.world_module.alive
        for daemon, pid in before.items():
            if (
                daemon not in played.fault.kills
                and daemon not in self.world.killed
                and (now[daemon] != pid or not alive(pid))
            ):
                raise self.world_module.Broken(
                    f"{daemon} ended by itself; the fault was: {played.fault.text}"
                )
        self.world.heal()
        self.phases_module.finish(self.world, played.fault.excuses)
        self.world.check()
        self.world.trim()

    def one(self, number: int, phase: str, fault: str) -> bool:
        """True if the round was run and all invariants hold."""
        self.lines.clear()
        self.world.new_round()
        self.log(f"round {number}: {phase} x {fault}")
        started = time.monotonic()
        try:
            played = Round(self, number, phase, fault)
            outcome = played.play()
        except self.world_module.Absent as error:
            self.skipped[fault] = str(error)
            time.sleep(0.1)
            return True
        except Exception as error:  # pylint: disable=broad-except
            self.table[fault, phase, "FAILED"] += 1
            self.failed(number, phase, fault, error)
            return False
        self.log_sizes = self.world.log_sizes()
        self.table[fault, phase, outcome] += 1
        self.table[fault, phase, "hit"] += played.hit
        print(
            (
                f"round {number:4}  {phase:8} {played.fault.text:45.45} {outcome:8}"
                f" {'hit ' if played.hit else 'late'} {time.monotonic() - started:5.1f} s"
            ),
            flush=True,
        )
        return True

    def failed(self, number: int, phase: str, fault: str, error: BaseException) -> None:
        self.failures += 1
        print(
            f"\nFAILED in round {number} ({phase} x {fault}) of seed {self.seed}:"
            f" {type(error).__name__}: {error}"
        )
        print("\n".join(self.lines))
        for path in sorted(self.world.c.state.glob("log/*.log")):
            print(f"--- {path.name}\n" + tail(path, self.log_sizes.get(path.name, 0)))
        sys.stdout.flush()

    def renew(self) -> None:
        if self.world is not None:
            self.world.close(self.args.keep and self.failures > 0)
        self.log_sizes = {}  # a failure in the first round shows the logs of the start, too
        self.world = self.world_module.World(
            random.Random(self.rng.random()), self.reason, self.log
        )
        self.world.start()

    def play(self) -> int:
        print(
            f"chaos: seed {self.seed}, {self.args.minutes:g} minutes"
            + (f"; no sandbox: {self.reason}" if self.reason else ""),
            flush=True,
        )
        holds = False  # all processes and files of the cluster
        try:
            for number, (phase, fault) in enumerate(self.deck(), 1):
                if self.left() <= 0 or (self.args.rounds and number > self.args.rounds):
                    break
                if not holds:
                    self.renew()
                holds = self.one(number, phase, fault)
                if not holds and not self.args.keep_going:
                    break
        finally:
            if self.world is not None:
                self.world.close(self.args.keep and self.failures > 0)
            self.summary()
        if not self.table:
            print("chaos: no round was played")
        return 1 if self.failures or not self.table else 0

    def summary(self) -> None:
        """Fault x phase: rounds that ended ok / refused or failed with a reason;
        * when no strike came in time."""
        columns = [p for p in self.phases if any(key[1] == p for key in self.table)]
        print(f"\n{'fault':16}" + "".join(f"{c:>20}" for c in columns))
        total = collections.Counter()
        for fault in self.faults:
            cells = []
            for phase in columns:
                cell = {o: n for (f, p, o), n in self.table.items() if (f, p) == (fault, phase)}
                total.update(cell)
                hit = cell.pop("hit", 0)
                text = " ".join(f"{n} {o}" for o, n in sorted(cell.items()))
                cells.append(f"{text + ('*' if cell and not hit else '') or '-':>20}")
            if any(c.strip() != "-" for c in cells):
                print(f"{fault:16}" + "".join(cells))
        hits = total.pop("hit", 0)
        print(
            f"rounds {sum(total.values())}, in time {hits}, failed {total['FAILED']}; * the fault"
            f" came too late; seed {self.seed}"
        )
        for fault, why in self.skipped.items():
            print(f"skipped: {fault}: {why}")


def main() -> int:
    args = arguments()
    return Run(args, sandbox.enter()).play()


if __name__ == "__main__":
    sys.exit(main())
