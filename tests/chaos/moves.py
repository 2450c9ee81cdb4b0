#!/usr/bin/python3
"""./run chaos moves [MOVES [KILLS]]: shards move through all tiers and networks of a real cluster,
whose daemons are killed in every phase of a move, while processes read all shards and compare every
byte.

Ends after so many moves and kills, or when the time is over. With --progress FILE it continues from
what an earlier run wrote there. Status 1: wrong bytes, a read that failed while a holder was
present, something left over.
"""
from __future__ import annotations

import argparse
import collections
import contextlib
import json
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from apart import BUILD, DAEMONS, NODES, Apart, Calls, Refused  # noqa: E402

MOVERS = 16
PHASES = ("decided", "copying", "switching", "cleaning", "reverting", "undoing", "ending")
ROLES = ("source", "target", "l3d", "controller")
PLACES = [*((node, tier) for node in NODES for tier in ("L1", "L2")), ("", "L3"), ("", "L4")]
READERS = {"on node-0": "node-0", "on node-1": "node-1", "far from all": "", "beside L3": "l3d"}
CLEAN = "8s"  # a copy that can't be dropped by then stays: the only other one is in device memory
REST_S = 120.0  # until the moves in flight have ended
SEEK_S = 4.0  # how long to look for a move in a wanted phase
# A phase can be hit this many times more often than the rarest one, per second of looking for that.
AHEAD_PER_S = 1.0
# 24 shards of 1.4 MiB, two of 6 MiB.
MODEL = {"layers": 24, "hidden": 192, "ffn": 384, "vocab": 8192}
COPIES_S = 30.0  # time for the Controller to say where the copies of a shard are
SETTLE_KILLS = 50  # everything is checked after so many kills
DROPS = 0.2  # share of the orders that drop the copy in L3, if there is another one
LONG_ABSENCE = 0.1  # share of the kills after which the daemon stays away until it is given up


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run chaos moves",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "moves", type=int, nargs="?", default=10000, help="how many are made (10000)"
    )
    parser.add_argument(
        "kills", type=int, nargs="?", default=1000, help="how many daemons are killed (1000)"
    )
    parser.add_argument(
        "--minutes", type=float, default=120, help="the run ends then at the latest"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="chooses moves and moments; random if not given"
    )
    parser.add_argument(
        "--progress", type=pathlib.Path, help="file in which numbers are kept from run to run"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep logs and state of a run that failed"
    )
    return parser.parse_args()


class Numbers:
    """What was done, in this run and earlier ones."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self.path, self.lock = path, threading.Lock()
        self.count: collections.Counter = collections.Counter()
        self.failures: list[str] = []
        if path and path.exists():
            kept = json.loads(path.read_text())
            self.count.update(kept["count"])
            self.failures = kept["failures"]

    def add(self, what: str, n: int = 1) -> None:
        with self.lock:
            self.count[what] += n

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.add(f"ms of {what}", int(1e3 * (time.monotonic() - began)))

    def fail(self, text: str) -> None:
        print(f"FAILED: {text}", flush=True)
        with self.lock:
            self.failures.append(text)

    def save(self) -> None:
        if self.path:
            with self.lock:
                text = json.dumps({"count": dict(self.count), "failures": self.failures}, indent=1)
            fresh = self.path.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(self.path)


class Readers:
    """Reading processes, and the judgement of their failures."""

    def __init__(self, world: Apart, numbers: Numbers) -> None:
        self.world, self.numbers = world, numbers
        self.processes: list[subprocess.Popen] = []
        self.threads: list[threading.Thread] = []
        self.ready = threading.Semaphore(0)

    def start(self) -> None:
        good = self.world.dir / "good"
        good.mkdir()
        for shard in self.world.shards:
            self.world.cli("shard", "get", shard["id"], "--out", good / shard["id"])
        for name, where in READERS.items():
            env = dict(
                self.world.env,
                HELIOS_LIBRARY=str(BUILD / "lib" / "libhelios.so.0"),
                HELIOS_NODE="",
                HELIOS_STORE_SOCKET="",
            )
            if where in NODES:
                env |= {
                    "HELIOS_NODE": where,
                    "HELIOS_STORE_SOCKET": self.world.daemons[where].ready["storeSocket"],
                }
            command = [
                sys.executable,
                HERE / "move_reader.py",
                self.world.address,
                good,
                "auto" if where == "l3d" else "net",
            ]
            process = subprocess.Popen(
                command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            self.processes.append(process)
            self.threads.append(threading.Thread(target=self._listen, args=(name, process)))
            self.threads[-1].start()
        for _ in self.processes:
            if not self.ready.acquire(timeout=60):
                raise RuntimeError("a reader did not start")

    def _listen(self, name: str, process: subprocess.Popen) -> None:
        assert process.stdout
        ended = False
        for line in process.stdout:
            said = json.loads(line)
            if "ready" in said:
                self.ready.release()
            elif "reads" in said:
                ended = True
                self.numbers.add("reads", said["reads"])
                with self.numbers.lock:
                    self.numbers.count["slowest read, ms"] = max(
                        self.numbers.count["slowest read, ms"], int(said["slowest"] * 1e3)
                    )
            elif said["wrong"]:
                self.numbers.add("wrong reads")
                self.numbers.fail(f"reader {name}: wrong bytes of {said['shard']}")
            else:
                self._failed(name, said)
        if not ended:
            self.numbers.fail(f"reader {name} ended by itself")

    def _failed(self, name: str, said: dict) -> None:
        """Excused if the only daemon that holds the shard was absent,
        by what was known then or is known now."""
        shard, span = said["shard"], (said["began"], said["ended"])
        holders = {copy["node"] or "l3d" for copy in self._copies(shard)}
        only = holders.pop() if len(holders) == 1 else ""
        if (only and self.world.daemons[only].was_absent(*span)) or any(
            d.was_absent(*span, shard) for d in self.world.daemons.values()
        ):
            self.numbers.add("failed reads, only holder dead")
            return
        self.numbers.add("failed reads")
        self.numbers.fail(
            f"reader {name}: {said['shard']} after {said['ended'] - said['began']:.1f} s:"
            f" {said['error']}"
        )

    def _copies(self, shard: str) -> list[dict]:
        """Waits until the Controller knows of one."""
        calls, end = Calls(self.world.address), time.monotonic() + COPIES_S
        try:
            while True:
                with contextlib.suppress(Refused):
                    copies = calls("getShard", 5000, id=shard)["shard"]["copies"]
                    if copies:
                        return copies
                if time.monotonic() > end:
                    return []
                time.sleep(0.1)
        finally:
            calls.close()

    def stop(self) -> None:
        for process in self.processes:
            assert process.stdin
            process.stdin.close()
        for process in self.processes:
            process.wait()
        for thread in self.threads:
            thread.join()


class Movers:
    """Threads that move random shards to random places."""

    def __init__(self, world: Apart, numbers: Numbers, seed: int) -> None:
        self.world, self.numbers, self.seed = world, numbers, seed
        self.go, self.end = threading.Event(), threading.Event()
        self.idle = threading.Semaphore(0)
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(MOVERS)]
        self.go.set()
        for thread in self.threads:
            thread.start()

    def _run(self, number: int) -> None:
        rng, calls = random.Random(f"{self.seed}/{number}"), Calls(self.world.address)
        while not self.end.is_set():
            if not self.go.is_set():
                self.idle.release()
                self.go.wait()
                continue
            node, tier = rng.choice(PLACES)
            try:
                if rng.random() < DROPS:  # otherwise L3 keeps what nodes load
                    calls("dropCopy", id=rng.choice(self.world.shards)["id"], node="", tier="L3")
                    self.numbers.add("drops of L3's copy")
                move = calls(
                    "moveShard", id=rng.choice(self.world.shards)["id"], node=node, tier=tier
                )["move"]
                self.numbers.add("moves")
                self.numbers.add(f"moves, {move['fromTier']} to {move['tier']}")
            except Refused as error:
                self._refused(error)
        calls.close()

    def _refused(self, error: Refused) -> None:
        text = str(error)
        if "the move was undone" in text:
            self.numbers.add("moves cancelled" if "it was cancelled" in text else "moves undone")
            return
        self.numbers.add("orders refused or not answered")
        time.sleep(0.02)

    def rest(self) -> None:
        self.go.clear()
        for _ in self.threads:
            if not self.idle.acquire(timeout=REST_S):
                raise RuntimeError(f"a move has not ended within {REST_S:.0f} s")

    def stop(self) -> None:
        self.end.set()
        self.go.set()
        for thread in self.threads:
            thread.join()


class Killer:
    """In the main thread: kills the daemon of a role while a move is in a phase,
    and starts it again."""

    def __init__(self, world: Apart, numbers: Numbers, seed: int) -> None:
        self.world, self.numbers = world, numbers
        self.rng, self.calls = random.Random(f"{seed}/kills"), Calls(world.address)
        self.pairs = [(phase, role) for phase in PHASES for role in ROLES]
        self.missed: collections.Counter = collections.Counter()

    def tried(self, pair: tuple[str, str]) -> int:
        """A daemon that did not come up in time counts as if it had been hit."""
        return self.numbers.count[f"kill/{pair[0]}/{pair[1]}"] + self.missed[pair]

    def score(self, pair: tuple[str, str]) -> float:
        """Rare phases first, and in a phase rare roles."""
        return sum(self.tried((pair[0], role)) for role in ROLES) + self.tried(pair) / len(PHASES)

    def flying(self) -> list[dict]:
        try:
            return [m for m in self.calls("listMoves", 2000)["moves"] if m["phase"] != "ended"]
        except Refused:
            return []

    @staticmethod
    def ends(move: dict) -> tuple[str, str]:
        return move["fromNode"] or "l3d", move["node"] or "l3d"

    def victim(self, move: dict, role: str) -> str:
        """ "": the move has no such end."""
        source, target = self.ends(move)
        if role == "controller":
            return role
        if role == "l3d":
            return role if role in (source, target) else ""
        at = source if role == "source" else target
        return at if at in NODES else ""

    def present(self, moves: list[dict]) -> dict[tuple[str, str], str]:
        """Which pairs can be hit now, and the daemon of each."""
        return {
            (move["phase"], role): daemon
            for move in moves
            for role in ROLES
            if move["phase"] in PHASES and (daemon := self.victim(move, role))
        }

    def seek(self) -> tuple[tuple[str, str], str] | None:
        """The pair of phase and role to hit, and its daemon:
        the rarest pair, or another one if that takes long."""
        began = time.monotonic()
        rarest = min(self.pairs, key=lambda pair: (self.score(pair), self.rng.random()))
        while time.monotonic() < began + SEEK_S:
            moves = self.flying()
            most = self.score(rarest) + AHEAD_PER_S * (time.monotonic() - began)
            found = {
                pair: daemon
                for pair, daemon in self.present(moves).items()
                if self.score(pair) <= most
            }
            if found:
                pair = min(found, key=lambda pair: (self.score(pair), self.rng.random()))
                self.missed[rarest] += pair != rarest
                return pair, found[pair]
            if rarest[0] in ("reverting", "undoing"):
                self.cancel(
                    [
                        m
                        for m in moves
                        if m["phase"] in ("copying", "switching", "cleaning")
                        and self.victim(m, rarest[1])
                    ]
                )
            time.sleep(0.001)
        self.missed[rarest] += 1
        return None

    def cancel(self, moves: list[dict]) -> None:
        """Cancels one of them; if it has ended or can't be cancelled, that is not an error."""
        if moves:
            move = self.rng.choice(moves)
            try:
                self.calls("cancelMove", 2000, id=move["id"])
                self.numbers.add(f"cancels, {move['phase']}")
            except Refused:
                pass

    def kill(self) -> bool:
        """Makes one more kill; False: no move was in a wanted phase in time."""
        with self.numbers.timed("seeking"):
            hit = self.seek()
        if hit is None:
            return False
        (phase, role), daemon = hit
        self.world.daemons[daemon].kill()
        if daemon != "controller":
            self.world.daemons[daemon].absent[-1].only = self.only_at(daemon)
        self.numbers.add(f"kill/{phase}/{role}")
        self.numbers.add("kills")
        self.numbers.add(f"kills of {daemon}")
        with self.numbers.timed("absences"):
            time.sleep(2.0 if self.rng.random() < LONG_ABSENCE else self.rng.uniform(0, 0.3))
        with self.numbers.timed("starts"):
            self.world.daemons[daemon].start()
        return True

    def only_at(self, daemon: str) -> set[str]:
        """The shards that no other daemon has: none can appear elsewhere until it is back."""
        only = set()
        for shard in self.world.shards:
            with contextlib.suppress(Refused):
                copies = self.calls("getShard", 2000, id=shard["id"])["shard"]["copies"]
                only |= (
                    {shard["id"]}
                    if {copy["node"] or "l3d" for copy in copies} == {daemon}
                    else set()
                )
        return only

    def cancel_any(self) -> None:
        """Cancels a move in any phase."""
        self.cancel(self.flying())


class Run:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.numbers = args, Numbers(args.progress)
        self.seed = args.seed if args.seed is not None else random.SystemRandom().randrange(1 << 31)
        self.end = time.monotonic() + args.minutes * 60
        self.world = Apart(l3="160MiB", l2="96MiB", model=MODEL)
        self.world.daemons["controller"].args |= {
            "--placement-moves": str(2 * MOVERS),
            "--placement-moves-per-node": str(MOVERS),
            "--placement-clean": CLEAN,
        }

    def done(self) -> bool:
        count = self.numbers.count
        return (
            bool(self.numbers.failures)
            or time.monotonic() > self.end
            or (count["moves"] >= self.args.moves and count["kills"] >= self.args.kills)
        )

    def settle(self, movers: Movers, calls: Calls) -> None:
        with self.numbers.timed("rests"):
            movers.rest()
        with self.numbers.timed("settling"):
            self.world.settle(calls)
        self.numbers.save()
        count = self.numbers.count
        print(
            (
                f"{count['moves']} moves, {count['moves undone']} undone,"
                f" {count['moves cancelled']} cancelled, {count['kills']} kills: all is whole"
            ),
            flush=True,
        )

    def strike(self, killer: Killer) -> None:
        """Spreads kills over the moves; cancels some moves in between."""
        count, args = self.numbers.count, self.args
        due = (
            args.kills
            if count["moves"] >= args.moves
            else args.kills * count["moves"] // max(args.moves, 1)
        )
        if count["kills"] < due:
            killer.kill()
        else:
            killer.cancel_any()
            time.sleep(0.05)

    def play(self) -> None:
        self.world.start()
        readers, calls = Readers(self.world, self.numbers), Calls(self.world.address)
        readers.start()
        movers, killer = Movers(self.world, self.numbers, self.seed), Killer(
            self.world, self.numbers, self.seed
        )
        settled = self.numbers.count["kills"]
        try:
            while not self.done():
                self.strike(killer)
                if self.numbers.count["kills"] >= settled + SETTLE_KILLS:
                    settled = self.numbers.count["kills"]
                    self.settle(movers, calls)
                    movers.go.set()
            self.settle(movers, calls)
        finally:
            movers.stop()
            readers.stop()

    def main(self) -> int:
        print(
            (
                f"chaos moves: seed {self.seed}, {self.args.moves} moves, {self.args.kills} kills,"
                f" at most {self.args.minutes:g} minutes"
            ),
            flush=True,
        )
        try:
            self.play()
        except (AssertionError, Refused, RuntimeError) as error:
            self.numbers.fail(f"{type(error).__name__}: {error}")
        finally:
            self.numbers.save()
            self.world.close(self.args.keep and bool(self.numbers.failures))
            self.table()
        return 1 if self.numbers.failures else 0

    def table(self) -> None:
        count = self.numbers.count
        print(f"\n{'kills':12}" + "".join(f"{role:>12}" for role in ROLES))
        for phase in PHASES:
            print(f"{phase:12}" + "".join(f"{count[f'kill/{phase}/{role}']:12}" for role in ROLES))
        for name in ("failed reads", "failed reads, only holder dead", "wrong reads"):
            count[name] += 0
        for name in sorted(n for n in count if not n.startswith("kill/")):
            print(f"{name:34}{count[name]:10}")
        print(
            f"{len(self.numbers.failures)} failures; seed {self.seed}; daemons:"
            f" {', '.join(DAEMONS)}"
        )


if __name__ == "__main__":
    sys.exit(Run(arguments()).main())
