"""Faults. begin() strikes, end() reverts the fault where that is possible."""
from __future__ import annotations

import contextlib
import os
import pathlib
import random
import resource
import signal
import struct
import subprocess
import threading
import time

import poolfile
import sandbox
from support.cluster import HELIOS
from world import BASE, DAEMONS, NODES, POOL_MIB, Absent, Broken, World

HOLD_S = 4.0  # longest duration of a shortage
HOUR_NS = 3600 * 10**9
# An Agent that is stopped for this long may be taken for lost (option node_lost: 5s).
NODE_LOST_S = 4.0


def kill(world: World, daemon: str) -> None:
    """The phase may have ended the daemon itself just now: then there is nothing to kill."""
    pid = world.pids()[daemon]
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Fault:
    """One strike. `excuses`: jobs of the round may fail with a reason;
    `kills`: daemons that may die."""

    excuses = False
    kills: tuple[str, ...] = ()
    name = ""

    def __init__(self, world: World, rng: random.Random, budget: float) -> None:
        self.world, self.rng, self.budget = world, rng, budget
        self.text = self.name
        self.choose()

    def choose(self) -> None:
        """Chooses the details before the phase begins.
        Raises Absent if the fault is not possible now."""

    def begin(self) -> None:
        raise NotImplementedError

    def hold(self, done: threading.Event) -> None:
        """Waits while the fault lasts; `done`: the phase has ended."""

    def end(self) -> None:
        pass


class Nothing(Fault):
    """The phase without a fault: also a measure for the others."""

    name = "none"

    def begin(self) -> None:
        pass


class Kill(Fault):
    name = "kill -9"

    def choose(self) -> None:
        self.daemon = self.rng.choice(DAEMONS)
        self.text, self.kills = f"kill -9 {self.daemon}", (self.daemon,)

    def begin(self) -> None:
        kill(self.world, self.daemon)

    def hold(self, done: threading.Event) -> None:
        done.wait(self.rng.uniform(0, 2))

    def end(self) -> None:
        self.world.start_again()


class Stop(Fault):
    name = "stop"

    def choose(self) -> None:
        self.daemon = self.rng.choice(DAEMONS)
        low, high = self.rng.choice(((1, 4), (4, 8), (8, 20)))
        self.seconds = min(self.rng.uniform(low, high), max(self.budget, 1.0))
        self.text, self.pid = f"stop {self.daemon} for {self.seconds:.1f} s", 0

    def begin(self) -> None:
        pid = self.world.pids()[self.daemon]
        with contextlib.suppress(ProcessLookupError):  # as in kill()
            if not pid:
                return
            os.kill(pid, signal.SIGSTOP)
            self.pid = pid
        if self.daemon in NODES and self.seconds > NODE_LOST_S:
            self.world.job_gone = True

    def hold(self, done: threading.Event) -> None:
        # Also after the phase has ended: the others see it stopped.
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            time.sleep(0.05)

    def end(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)


class FullDisk(Fault):
    name, excuses = "disk full", True

    def choose(self) -> None:
        if not self.world.isolated:
            raise Absent("no file system of its own")
        self.filler: pathlib.Path | None = None

    def place(self) -> pathlib.Path:
        return self.world.c.dir

    def begin(self) -> None:
        self.filler = sandbox.fill(self.place())

    def hold(self, done: threading.Event) -> None:
        done.wait(HOLD_S)

    def end(self) -> None:
        if self.filler:
            self.filler.unlink()


class FullShm(FullDisk):
    name = "shm full"

    def place(self) -> pathlib.Path:
        return pathlib.Path("/dev/shm")


class FullPool(Fault):
    """Another import, at the same time, of more than the pool can hold."""

    name = "pool full"
    NAME = "toobig-0"

    def choose(self) -> None:
        self.process: subprocess.Popen | None = None
        hidden = 64 * POOL_MIB  # layers of 4 * hidden^2 floats and more: several times the pool
        self.directory = self.world.work / "checkpoint-toobig"
        if not self.directory.exists():
            from support import checkpoints

            checkpoints.llama(
                self.directory, layers=1, hidden=hidden, ffn=hidden, heads=4, groups=2, seed=1
            )

    def begin(self) -> None:
        args = [
            HELIOS,
            "--state",
            self.world.c.state,
            "model",
            "import",
            self.directory,
            "--name",
            self.NAME,
        ]
        self.process = subprocess.Popen(
            args, env=self.world.c.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def end(self) -> None:
        if self.process is None:
            return
        _, said = self.process.communicate(timeout=60)
        self.world.log(
            "  the import of more than the pool holds:"
            f" exit {self.process.returncode}; {said.strip()}"
        )
        if self.process.returncode == 0:
            raise Broken("more was imported than the pool holds")


class Flip(Fault):
    """Flips a bit where a shard is stored; flips it back afterwards if the shard is still there."""

    def choose(self) -> None:
        here = poolfile.sealed(self.world.pool)
        kept = {path.stem: path for path in self.world.archived()}
        ids = sorted(set(here) & set(kept))
        if not ids:
            raise Absent("no shard is in the pool and in the archive")
        self.entry = here[self.rng.choice(ids)]
        self.bit, self.undo = self.rng.randrange(8), None
        self.path, self.at = self.where(kept[self.entry.id])
        self.text = f"{self.name} {self.entry.id}, byte {self.at} bit {self.bit}"

    def where(self, archived: pathlib.Path) -> tuple[pathlib.Path, int]:
        raise NotImplementedError

    def begin(self) -> None:
        try:
            self.undo = poolfile.flip(self.path, self.at, self.bit)
        except FileNotFoundError:  # removed in the meantime
            self.undo = None


class FlipData(Flip):
    """In the pool: a reader detects it, and the archive's copy replaces it. Never reverted."""

    name = "bit in pool"

    def where(self, archived: pathlib.Path) -> tuple[pathlib.Path, int]:
        return self.world.pool, self.entry.offset + self.rng.randrange(self.entry.size)


class FlipIndex(Flip):
    """In the index: detected at the daemon's next start at the latest, which drops the entry."""

    name, kills = "bit in index", ("l3d",)

    def hold(self, done: threading.Event) -> None:
        done.wait(self.rng.uniform(0, 1))

    def where(self, archived: pathlib.Path) -> tuple[pathlib.Path, int]:
        return self.world.pool, self.entry.at + self.rng.randrange(52)

    def end(self) -> None:
        kill(self.world, "l3d")
        self.world.start_again()


class FlipArchive(Flip):
    name = "bit in archive"

    def where(self, archived: pathlib.Path) -> tuple[pathlib.Path, int]:
        return archived, self.rng.randrange(archived.stat().st_size)

    def end(self) -> None:
        if self.undo and self.path.exists():
            poolfile.restore(self.path, self.at, *self.undo)


class Descriptors(Fault):
    """Leaves one daemon only a few new descriptors."""

    name, excuses = "descriptors", True

    def choose(self) -> None:
        self.daemon = self.rng.choice(DAEMONS)
        self.pid, self.text = 0, f"descriptors of {self.daemon}"

    def begin(self) -> None:
        pid = self.world.pids()[self.daemon]
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # as in kill()
            if not pid:
                return
            self.limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            room = len(os.listdir(f"/proc/{pid}/fd")) + self.rng.randrange(3)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (room, self.limits[1]))
            self.pid = pid

    def hold(self, done: threading.Event) -> None:
        done.wait(HOLD_S)

    def end(self) -> None:
        if self.pid:
            # A phase may have ended the daemon itself.
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self.pid, resource.RLIMIT_NOFILE, self.limits)


class Clock(Fault):
    """The wall clock of all daemons and ranks jumps and stays off."""

    name = "clock jump"

    def choose(self) -> None:
        if not self.world.has_clock:
            raise Absent("libclock_jump.so is not built, or not preloaded by the daemons")
        hours = self.rng.choice((-72, -1, 1, 24))
        self.by, self.text = hours * HOUR_NS, f"clock jumps by {hours} h"

    def begin(self) -> None:
        now = struct.unpack("<q", self.world.clock.read_bytes())[0]
        fd = os.open(self.world.clock, os.O_WRONLY)
        os.pwrite(fd, struct.pack("<q", now + self.by), 0)
        os.close(fd)


class PlantedByte(Nothing):
    """Breaks an invariant on purpose, so that the round has to fail: shows that the checks work."""

    name = "planted wrong byte"

    def begin(self) -> None:
        tensors = next(iter(self.world.truth[BASE, 1].values()))
        name = next(iter(tensors))
        tensors[name] = bytes([tensors[name][0] ^ 1]) + tensors[name][1:]


class PlantedLoss(Nothing):
    name = "planted loss"

    def begin(self) -> None:
        ok, said = self.world.call(
            "model", "rm", f"{BASE}@{max(v for n, v in self.world.truth if n == BASE)}"
        )
        assert ok, said


class PlantedLeak(Nothing):
    name = "planted leak"

    def begin(self) -> None:
        (pathlib.Path("/dev/shm") / f"{self.world.pool.stem}-leak").touch()

    def end(self) -> None:
        self.world.patience = 3.0


class PlantedTouch(Nothing):
    name = "planted gang kill"

    def begin(self) -> None:
        os.kill(self.world.gang_is[2][0], signal.SIGKILL)


FAULTS: dict[str, type[Fault]] = {
    f.name: f
    for f in (
        Nothing,
        Kill,
        Stop,
        FullDisk,
        FullShm,
        FullPool,
        FlipData,
        FlipIndex,
        FlipArchive,
        Descriptors,
        Clock,
    )
}
PLANTED: dict[str, type[Fault]] = {
    f.name: f for f in (PlantedByte, PlantedLoss, PlantedLeak, PlantedTouch)
}
