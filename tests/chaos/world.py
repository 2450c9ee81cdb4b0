"""The cluster of a chaos run, what it has committed, and checks that all of it still holds."""
from __future__ import annotations

import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Iterator

import content
import poolfile
import sandbox

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, Cluster, alive  # noqa: E402

DAEMONS = ("controllerd", "l3d", "node-0", "node-1")
NODES = ("node-0", "node-1")
BASE = "base"  # the model that jobs write versions of
BASE_TP, BASE_PP = 1, 2
POOL_MIB, L2_MIB = 24, 8
SETTLE_S = 60.0  # a cluster without faults is healthy within this time, on a busy machine too
DESCRIPTORS = 24  # connections that come and go
AT_ONCE = 4  # parallel commands of a check, which mostly wait for processes and daemons
MODELS, VERSIONS = 4, 4  # how many are kept at the end of a round

JUMP = BUILD / "tests" / "libclock_jump.so"

GANG = """
jobName: healthy
parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 1, data_parallel_size: 1}
resources: {ranks_per_slot: 1}
restarts: 100
command: [sleep, '1000000']
"""


class Broken(AssertionError):
    """An invariant does not hold."""


class Absent(Exception):
    """There is nothing to work on right now."""


def rows(answer: Any) -> list[dict]:
    """The list in a printed answer, which is the list itself or has it as its only list."""
    return (
        answer
        if isinstance(answer, list)
        else next(v for v in answer.values() if isinstance(v, list))
    )


def until(what: str, condition: Callable[[], Any], seconds: float = SETTLE_S) -> Any:
    """Poll until condition() returns a true value;
    after the deadline Broken with `what` and the last value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Broken(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


class World:
    """One cluster: two nodes of two slots, a small pool above an archive,
    one gang that only waits."""

    def __init__(self, rng: random.Random, reason: str, log: Callable[[str], None]) -> None:
        self.rng, self.log, self.isolated = rng, log, not reason
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="helios-chaos-"))
        self.archive, self.clock = self.work / "archive", self.work / "clock"
        self.archive.mkdir()
        self.clock.write_bytes(bytes(8))
        self.truth: dict[tuple[str, int], content.Content] = {}
        # What a call whose answer was lost may have created: name -> expected content.
        self.maybe: dict[str, content.Content] = {}
        # For imported models: the tensor parallel size other than the imported one,
        # and the content there.
        self.other_size: dict[str, tuple[int, content.Content]] = {}
        self.job_gone = False  # a fault may restart the gang
        self.fault_may_begin = threading.Event()
        self.new_round()
        self.c = self._cluster()
        self.started = False

    def _cluster(self) -> Cluster:
        env = {
            "HELIOS_ARCHIVE_URL": f"dir:{self.archive}",
            "HELIOS_GC_INTERVAL": "500ms",
            "HELIOS_GC_GRACE": "2s",
            "HELIOS_L3_QUARANTINE": "100ms",
            "HELIOS_VERSIONS_KEEP": "0",
            "HELIOS_CHAOS_WORLD": str(self.work),
            "HELIOS_CLOCK_FILE": str(self.clock),
        }
        if JUMP.exists():
            env["LD_PRELOAD"] = str(JUMP)
        c = Cluster(tcp=True, size=f"{POOL_MIB}MiB", up=("--l2-size", f"{L2_MIB}MiB"), env=env)
        if self.isolated:
            sandbox.small_disk(c.dir, sandbox.STATE_MIB)
        return c

    def new_round(self) -> None:
        """Forgets what phases left to be completed."""
        self.patience = SETTLE_S
        self.job_name = ""
        self.must_have_said: list[tuple[str, str]] = []
        self.maybe_saved: dict[str, content.Content] = {}  # by seed, versions of BASE
        self.must_have_saved: set[str] = set()
        self.copied: list[str] = []
        self.resharded: list[str] = []  # models that are read at their other size, too
        self.killed: set[str] = set()  # daemons that the phase has killed
        self.fault_may_begin.clear()

    # ---- start and end ----

    def start(self) -> None:
        """Start it with a base model, one saved-over shape and the healthy gang;
        record the baselines."""
        self.c.up()
        self.started = True
        self.pool = pathlib.Path(self.c.info["pool"])
        self.has_clock = all(
            JUMP.name in pathlib.Path(f"/proc/{pid}/maps").read_text()
            for pid in self.pids().values()
        )
        directory, raw = self.checkpoint("base", 2)
        self.c.json("model", "import", directory, "--name", BASE, "--tp", BASE_TP, "--pp", BASE_PP)
        self.truth[BASE, 1] = content.imported(directory, raw, BASE_TP, BASE_PP)
        self.shapes = self.work / "shapes.json"
        self.shapes.write_text(json.dumps(self._shapes()))
        self.gang = self.c.json("submit", self.job_file(GANG))["id"]
        self._adopt_gang()
        self.verify_versions()
        self.base_shm = self._shm()
        self.base_processes = self._processes()
        self.base_fds = {d: len(self._fds(d)) for d in DAEMONS}

    def _shapes(self) -> dict[str, dict[str, list[int]]]:
        """The base model's, from its pulled header."""
        out = {}
        for pp, tp in self.truth[BASE, 1]:
            path = self.work / "shape"
            done = self.c.run("pull", "--model", BASE, "--pp", pp, "--tp", tp, "--out", path)
            if done.returncode != 0:
                raise Broken(f"the first pull: {done.stderr}")
            header, _ = checkpoints.read(path)
            out[f"{pp}/{tp}"] = {
                name: entry["shape"] for name, entry in header.items() if name != "__metadata__"
            }
        return out

    def close(self, keep: bool = False) -> None:
        if self.started:
            try:
                self.c.run("down", "--purge")
            except Exception as error:  # pylint: disable=broad-except
                self.log(f"helios down: {error}")
        for daemon in DAEMONS:
            pid = self._pid(daemon)
            if pid and alive(pid):
                os.kill(pid, 9)
        if keep:
            print(f"kept: {self.work} and {self.c.dir}")
            return
        if self.isolated:
            sandbox.release(self.c.dir)
        shutil.rmtree(self.c.dir, ignore_errors=True)
        shutil.rmtree(self.work, ignore_errors=True)

    # ---- what phases use ----

    def checkpoint(
        self, name: str, seed: int, hidden: int = 96
    ) -> tuple[pathlib.Path, dict[str, bytes]]:
        directory = self.work / f"checkpoint-{name}"
        shutil.rmtree(directory, ignore_errors=True)
        return checkpoints.llama(directory, layers=2, hidden=hidden, ffn=2 * hidden, seed=seed)

    def call(self, *args: object) -> tuple[bool, str]:
        """Runs the CLI as a user does: (whether it succeeded, stdout or its error).
        It must not crash or hang."""
        started = time.monotonic()
        try:
            done = self.c.run(*args)
        except subprocess.TimeoutExpired as error:
            raise Broken(f"helios {args[0]} had no answer for {error.timeout:.0f} s") from None
        took = time.monotonic() - started
        text = done.stdout if done.returncode == 0 else done.stderr.strip()
        brief = text.strip().splitlines()[-1][:160] if text.strip() else ""
        self.log(
            f"  helios {' '.join(map(str, args))}:"
            f" exit {done.returncode} after {took:.1f} s; {brief}"
        )
        if done.returncode < 0:
            raise Broken(f"helios {args[0]} ended by signal {-done.returncode}")
        if done.returncode and not text:
            raise Broken(f"helios {args[0]} failed without a word")
        return done.returncode == 0, text

    def job_file(self, text: str) -> pathlib.Path:
        """Not on the disk that gets filled."""
        path = self.work / "job.yaml"
        path.write_text(text)
        return path

    def pick(self) -> tuple[str, int]:
        return self.rng.choice(sorted(self.truth))

    def pull(
        self,
        model: str,
        version: int,
        place: tuple[int, int],
        want: content.Rank,
        path: str = "auto",
        tp_size: int = 0,
    ) -> str:
        """ "" if the rank's tensors were read and are right, else the CLI's error; Broken for wrong
        bytes. tp_size: 0 = that of the version."""
        size = ("--tp-size", tp_size) if tp_size else ()
        out = self.work / f"pulled-{threading.get_ident()}"
        ok, said = self.call(
            "pull",
            "--model",
            f"{model}@{version}",
            "--pp",
            place[0],
            "--tp",
            place[1],
            "--path",
            path,
            "--timeout",
            "20s",
            "--out",
            out,
            *size,
        )
        if not ok:
            return said
        wrong = content.difference(out, want)
        out.unlink()
        if wrong:
            raise Broken(f"wrong bytes: {model}@{version} pp {place[0]} tp {place[1]}: {wrong}")
        return ""

    def shards(self, model: str, version: int) -> list[dict]:
        """Its own shards: those of its cuts are never archived,
        and are evicted when space is needed."""
        found = rows(self.c.json("shard", "ls", "--model", f"{model}@{version}"))
        return [s for s in found if not s["id"].startswith(poolfile.DERIVED)]

    def archived(self) -> Iterator[pathlib.Path]:
        """Files of the archive that are not in its trash."""
        return (path for path in self.archive.rglob("*.safetensors") if "trash" not in str(path))

    def manifests(self) -> set[str]:
        """Ids that are in the pool or in the archive."""
        here = set(poolfile.sealed(self.pool)) | {path.stem for path in self.archived()}
        return {each for each in here if each.startswith(poolfile.MANIFEST)}

    # ---- health ----

    def _pid(self, daemon: str) -> int:
        try:
            return self.c.pid(daemon)
        except (OSError, KeyError, ValueError):
            return 0

    def pids(self) -> dict[str, int]:
        return {daemon: self._pid(daemon) for daemon in DAEMONS}

    def log_sizes(self) -> dict[str, int]:
        return {p.name: p.stat().st_size for p in self.c.state.glob("log/*.log")}

    def start_again(self) -> None:
        """Has missing daemons restarted."""
        end = time.monotonic() + SETTLE_S
        while (done := self.c.run("up")).returncode:
            self.log(f"  helios up: {done.stderr.strip()}")
            if time.monotonic() > end:
                raise Broken(f"helios up fails: {done.stderr.strip()}")
            time.sleep(0.3)

    def heal(self) -> None:
        """Waits until no fault is left: all daemons run and are healthy."""
        self.start_again()
        until("all nodes and the pool to be ready again", self._ready)

    def _ready(self) -> bool:
        nodes, info = self.c.run("nodes", "-o", "json"), self.c.run("info", "-o", "json")
        if nodes.returncode or info.returncode:
            return False
        states = {n["node"]["name"]: n["state"] for n in rows(json.loads(nodes.stdout))}
        return (
            all(states.get(n) == "ready" for n in NODES)
            and json.loads(info.stdout)["l3State"] == "ready"
        )

    # ---- invariants ----

    def check(self) -> None:
        """Everything that must hold between rounds."""
        self._settle_unknown()
        self.verify_versions()
        self._check_gang()
        self._check_leaks()

    def visible(self) -> set[tuple[str, int]]:
        seen = set()
        names = [model["name"] for model in rows(self.c.json("model", "ls"))]
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for name, model in zip(
                names, pool.map(lambda name: self.c.json("model", "show", name), names)
            ):
                seen.update((name, version["version"]) for version in model["versions"])
        return seen

    def _settle_unknown(self) -> None:
        """Settles what lost answers left open: it must be there as a whole or not at all."""
        seen = self.visible()
        for name, version in sorted(seen - set(self.truth)):
            if name in self.maybe:
                self.truth[name, version] = self.maybe[name]
            elif name == BASE and self.maybe_saved:
                self.truth[name, version] = self._which_save(version)
            else:
                raise Broken(f"{name}@{version} is visible and nobody committed it")
        lost = set(self.truth) - seen
        if lost:
            raise Broken(f"committed and no longer there: {sorted(lost)}")
        if self.must_have_saved:
            raise Broken(f"a job succeeded and its version is not there: {self.must_have_saved}")

    def _which_save(self, version: int) -> content.Content:
        """The save with the lost answer whose bytes the version has."""
        for seed, made in self.maybe_saved.items():
            place, want = next(iter(made.items()))
            try:
                if self.pull(BASE, version, place, want) == "":
                    self.must_have_saved.discard(seed)
                    return made
            except Broken:
                continue
        raise Broken(f"{BASE}@{version} holds what no job has saved")

    def verify_versions(self) -> None:
        """Compares every rank of every committed version with its expected content."""

        def verify(model: str, version: int, place: tuple[int, int], want: content.Rank) -> None:
            said = self.pull(model, version, place, want)
            if said:
                raise Broken(
                    f"{model}@{version} pp {place[0]} tp {place[1]} cannot be read"
                    f" without a fault: {said}"
                )

        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            jobs = [
                pool.submit(verify, *name, *rank)
                for name, places in sorted(self.truth.items())
                for rank in places.items()
            ]
            for job in jobs:
                job.result()

    def job_state(self, job: str) -> str:
        return self.c.job(job)["state"]

    def _gang(self) -> tuple[str, int, list[int]]:
        job = self.c.job(self.gang)
        return (
            job["state"],
            job["attempt"],
            [r["pid"] for k in job["containers"] for r in k["ranks"]],
        )

    def _adopt_gang(self) -> None:
        until(
            "the gang to run",
            lambda: self._gang()[0] == "running" and all(map(alive, self._gang()[2])),
        )
        self.gang_is = self._gang()
        self.job_gone = False

    def _check_gang(self) -> None:
        if self.job_gone:
            self._adopt_gang()
            return
        state, attempt, pids = self._gang()
        if (state, attempt, pids) != self.gang_is or not all(map(alive, pids)):
            raise Broken(
                f"the healthy gang was touched: {self.gang_is} became {(state, attempt, pids)}"
            )

    def trim(self) -> None:
        """Remove the oldest models and versions, so that a run can go on for long."""
        imported = sorted(
            {name for name, _ in self.truth if name != BASE}, key=lambda n: int(n.split("-")[1])
        )
        versions = sorted(version for name, version in self.truth if name == BASE)
        gone = imported[:-MODELS] + [f"{BASE}@{v}" for v in versions[1:][:-VERSIONS]]
        for name in gone:
            ok, said = self.call("model", "rm", name)
            if not ok:
                raise Broken(f"model rm {name}: {said}")
            model, _, version = name.partition("@")
            for key in [k for k in self.truth if k[0] == model and version in ("", str(k[1]))]:
                del self.truth[key]

    # ---- leaks ----

    def _shm(self) -> set[str]:
        if self.isolated:
            return set(os.listdir("/dev/shm"))
        return {n for n in os.listdir("/dev/shm") if n.startswith(self.pool.stem)}

    def _processes(self) -> collections.Counter:
        """Programs that belong to this world, by name."""
        mark, seen = str(self.work).encode(), collections.Counter()
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if (
                    not entry.name.isdecimal()
                    or int(entry.name) == os.getpid()
                    or not alive(int(entry.name))
                ):
                    continue
                if (
                    mark in (entry / "environ").read_bytes()
                    or str(self.c.dir).encode() in (entry / "cmdline").read_bytes()
                ):
                    seen[(entry / "comm").read_text().strip()] += 1
            except OSError:
                continue
        return seen

    def _fds(self, daemon: str) -> list[str]:
        try:
            return os.listdir(f"/proc/{self._pid(daemon)}/fd")
        except OSError:
            return []

    def _leaks(self) -> str:
        """ "" or the first leftover."""
        kept = self.manifests()
        if len(kept) != len(self.visible()):
            return f"{len(kept)} manifests of {len(self.visible())} visible versions"
        ids = {s["id"] for s in rows(self.c.json("shard", "ls"))} | kept
        extents = poolfile.entries(self.pool)
        nobodys = {e.id for e in extents if e.state == poolfile.SEALED} - ids
        if nobodys:
            return f"shards in the pool that no version has: {sorted(nobodys)[:4]}"
        held = [e.id for e in extents if e.state in (poolfile.WRITING, poolfile.LEASED)]
        if held:
            return f"extents that nobody writes any more: {held[:4]}"
        files = {path.stem for path in self.archived()}
        if files - ids:
            return f"archived shards that no version has: {sorted(files - ids)[:4]}"
        slots = {s["job"] for n in rows(self.c.json("nodes")) for s in n["slots"]} - {"", self.gang}
        if slots:
            return f"slots held by jobs that have ended: {slots}"
        for node in rows(self.c.json("store")):
            for tier in node["tiers"]:
                if tier["tier"] == "L2" and tier["usedBytes"] + tier["writingBytes"]:
                    return (
                        f"{tier['usedBytes'] + tier['writingBytes']} bytes in the L2"
                        f" of {node['node']}"
                    )
        if self._shm() - self.base_shm:
            return f"files in /dev/shm: {sorted(self._shm() - self.base_shm)}"
        if self._processes() - self.base_processes:
            return f"processes: {dict(self._processes() - self.base_processes)}"
        for daemon in DAEMONS:
            count = len(self._fds(daemon))
            if count > self.base_fds[daemon] + DESCRIPTORS:
                return f"{count} descriptors in {daemon}, {self.base_fds[daemon]} at the start"
        return ""

    def _check_leaks(self) -> None:
        end = time.monotonic() + self.patience
        while True:
            leak = self._leaks()
            if not leak:
                return
            if time.monotonic() > end:
                raise Broken(f"leaked: {leak}")
            time.sleep(0.2)
