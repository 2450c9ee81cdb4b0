"""A cluster whose daemons each believe they are on a host of their own, started and killed by this
process: traffic between them takes the networks. Every second of a daemon's absence is known."""
from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support.cluster import BUILD, HELIOS, ROOT, wait_for  # noqa: E402

NODES = ("node-0", "node-1")
DAEMONS = ("controller", "l3d", *NODES)
READY_S = 60.0
# From serving until the Controller knows what the daemon holds: its health gate can take this long.
REGISTER_S = 5.0
CALL_MS = 60000
# Said of the RPC port, and of the others.
IN_USE = re.compile("the address is in use|Address already in use")
# Additional time of each fsync of the Controller, so that phases that wait for it can be hit.
SYNC_MS = 15


class Refused(Exception):
    """A call that was answered with an error."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


class Calls:
    """Calls of one daemon, one after the other; each thread has its own."""

    def __init__(self, address: str, interface: str = "Controller") -> None:
        self.process = subprocess.Popen(
            [BUILD / "tests" / "rpc_lines", address, interface],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __call__(self, method: str, timeout_ms: int = CALL_MS, **params: Any) -> dict:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{method} {timeout_ms} {json.dumps(params)}\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if not answer["ok"]:
            raise Refused(answer["status"], answer["text"])
        return answer["result"]

    def close(self) -> None:
        self.process.communicate()


@dataclasses.dataclass
class Absence:
    began: float
    ended: float = float("inf")
    only: set[str] = dataclasses.field(default_factory=set)  # shards that no other daemon had then


class Daemon:
    def __init__(
        self,
        name: str,
        program: str,
        args: dict[str, str],
        directory: pathlib.Path,
        env: dict[str, str],
    ) -> None:
        self.name, self.program, self.args, self.env = name, program, args, env
        self.ready_file, self.log = directory / f"{name}.json", directory / f"{name}.log"
        self.process: subprocess.Popen | None = None
        self.ready: dict = {}
        self.absent: list[Absence] = []

    def start(self) -> None:
        """Waits until it serves at its former addresses.
        Called by the main thread, with which the daemon ends."""
        self.ready_file.unlink(missing_ok=True)
        self._spawn()
        self.ready = wait_for(f"{self.name} to serve", self._read_ready, READY_S)
        for flag, field in (
            ("--listen", "address"),
            ("--data-listen", "dataAddress"),
            ("--migrate-listen", "migrateAddress"),
        ):
            if self.ready.get(field):
                self.args[flag] = self.ready[field]
        if self.absent:
            self.absent[-1].ended = time.time() + REGISTER_S

    def _spawn(self) -> None:
        args = {**self.args, "--ready-file": str(self.ready_file)}
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            BUILD / "bin" / self.program,
            *(x for pair in args.items() for x in pair),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=self.env)

    def _read_ready(self) -> dict | None:
        if (
            self.process
            and self.process.poll() is not None
            and IN_USE.search(self.log.read_text()[-400:])
        ):
            time.sleep(0.5)  # a connection of another program uses the port for a while
            self._spawn()
        assert (
            self.process and self.process.poll() is None
        ), f"{self.name} ended: {self.log.read_text()[-2000:]}"
        with contextlib.suppress(FileNotFoundError):
            return json.loads(self.ready_file.read_text())
        return None

    def kill(self) -> None:
        assert self.process
        self.absent.append(Absence(time.time()))
        self.process.kill()
        self.process.wait()

    def was_absent(self, start: float, end: float, only_it_has: str = "") -> bool:
        """only_it_has: a shard; only absences count in which no other daemon had it."""
        return any(
            a.began < end and start < a.ended and (not only_it_has or only_it_has in a.only)
            for a in self.absent
        )


# Arguments of support.checkpoints.llama.
MODEL = {"layers": 12, "hidden": 384, "ffn": 768, "vocab": 1024}


class Apart:
    """The cluster, with the model m."""

    def __init__(
        self,
        l3: str = "192MiB",
        l2: str = "128MiB",
        model: dict[str, int] | None = None,
        sync_ms: int = SYNC_MS,
    ) -> None:
        self.sizes, self.model, self.sync_ms = {"l3": l3, "l2": l2}, model or MODEL, sync_ms
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-moves-"))
        self.shm = pathlib.Path("/dev/shm") / self.dir.name
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("HELIOS_")} | {
            "HELIOS_CONFIG": ""
        }
        self.daemons = {name: self._describe(name) for name in DAEMONS}
        self.shards: list[dict] = []
        self.lock = threading.Lock()

    def _describe(self, name: str) -> Daemon:
        env, listen = dict(self.env), {"--listen": "127.0.0.1:0"}
        if name == "l3d":
            return Daemon(
                name,
                "helios-l3d",
                {
                    **listen,
                    "--pool": f"{self.shm}.pool",
                    "--size": self.sizes["l3"],
                    "--quarantine": "100ms",
                    "--archive": f"dir:{self.dir}/archive",
                    "--archive-mode": "manual",
                    "--socket": f"{self.dir}/l3.sock",
                },
                self.dir,
                env,
            )
        if name == "controller":
            library = self.dir / "slow_disk.so"
            subprocess.run(
                ["cc", "-shared", "-fPIC", "-o", library, ROOT / "tests/support/slow_disk.c"],
                check=True,
            )
            (self.dir / "sync-ms").write_text(str(self.sync_ms))
            env |= {"LD_PRELOAD": str(library), "SLOW_DISK": str(self.dir / "sync-ms")}
            return Daemon(
                name,
                "helios-controller",
                {
                    **listen,
                    "--state": f"{self.dir}/controller",
                    "--gc-interval": "300ms",
                    "--heartbeat": "100ms",
                    "--node-lost": "1500ms",
                    "--placement-policy": "off",
                    "--placement-grace": "100ms",
                    "--placement-retry": "200ms",
                    "--placement-clean": "20s",
                    "--versions-keep": "0",
                },
                self.dir,
                env,
            )
        index = NODES.index(name)
        return Daemon(
            name,
            "helios-agent",
            {
                **listen,
                "--name": name,
                "--state": f"{self.dir}/{name}",
                "--share": f"{index}/2x1",
                "--rank-address": "127.0.0.1",
                "--l2-size": self.sizes["l2"],
                "--l2-pool": f"{self.shm}-{index}.l2",
                "--devices": "emu:64MiB",
                "--quarantine": "100ms",
                "--data-stall": "10s",
                "--host-id": f"machine-{index}",
            },
            self.dir,
            env,
        )

    # ---- its life ----

    def start(self) -> None:
        from support import checkpoints

        self.daemons["l3d"].start()
        self.daemons["controller"].args["--l3"] = self.daemons["l3d"].ready["address"]
        self.daemons["controller"].start()
        for name in NODES:
            self.daemons[name].args["--controller"] = self.address
            self.daemons[name].start()
        calls = Calls(self.address)
        wait_for(
            "the nodes",
            lambda: [n["state"] for n in calls("listNodes")["nodes"]] == ["ready"] * len(NODES),
        )
        source, _ = checkpoints.llama(self.dir / "hf", **self.model)
        self.cli("model", "import", source, "--name", "m", "--tp", "1", "--pp", "1")
        self.shards = calls("listShards", model="m", version=1, limit=100)["shards"]
        calls.close()

    @property
    def address(self) -> str:
        return self.daemons["controller"].ready["address"]

    def cli(self, *args: object) -> str:
        """Runs the CLI as a user does; returns its output."""
        command = [HELIOS, "--controller", self.address, *map(str, args)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.env, timeout=120, check=False
        )
        assert done.returncode == 0, f"helios {' '.join(map(str, args))}: {done.stderr}"
        return done.stdout

    def close(self, keep: bool) -> None:
        for daemon in self.daemons.values():
            if daemon.process and daemon.process.poll() is None:
                daemon.process.terminate()
        for daemon in self.daemons.values():
            if daemon.process:
                daemon.process.wait()
        for path in self.shm.parent.glob(self.shm.name + "*"):
            path.unlink()
        for node in NODES:  # what a killed Agent has left
            tail = f"-{zlib.crc32(str((self.dir / node).resolve()).encode()):08x}.chunks"
            for path in self.shm.parent.glob(f"helios-{os.getuid()}-{node}-*{tail}"):
                path.unlink()
        if not keep:
            shutil.rmtree(self.dir, ignore_errors=True)

    # ---- what holds ----

    def records(self) -> list[str]:
        """Keys of moves in the Controller's store."""
        import sqlite3

        with contextlib.closing(
            sqlite3.connect(f"file:{self.dir}/controller/controller.db?mode=ro", uri=True)
        ) as db:
            return [row[0] for row in db.execute("SELECT key FROM kv WHERE key LIKE 'move/%'")]

    def settle(self, calls: Calls) -> None:
        """Checks that no move is in flight or in the journal, every copy is good, and nodes hold
        what the Controller knows."""
        wait_for(
            "the nodes",
            lambda: [n["state"] for n in calls("listNodes")["nodes"]] == ["ready"] * len(NODES),
        )
        wait_for(
            "the moves to end",
            lambda: all(m["phase"] == "ended" for m in calls("listMoves")["moves"]),
            120,
        )
        wait_for("the journal of moves to be empty", lambda: not self.records())
        # A sweep may have missed what nodes are listing again.
        wait_for("the version to be whole", self._verified, 60)
        wait_for(
            "the stores to hold what the Controller knows",
            lambda: self._held() == self._known(calls),
        )

    def _verified(self) -> bool:
        try:
            self.cli("model", "verify", "m")
        except AssertionError as error:
            print(error, file=sys.stderr)
            return False
        return True

    def _known(self, calls: Calls) -> dict[tuple[str, str], int]:
        known = {(node, tier): 0 for node in NODES for tier in ("L1", "L2")}
        for shard in self.shards:
            for copy in calls("getShard", id=shard["id"])["shard"]["copies"]:
                if copy["node"]:
                    known[copy["node"], copy["tier"]] += 1
        return known

    def _held(self) -> dict[tuple[str, str], int]:
        held = {}
        for node in NODES:
            agent = Calls(self.daemons[node].ready["address"], "Agent")
            held |= {
                (node, tier["tier"]): tier["shards"]
                for tier in agent("storeInfo")["tiers"]
                if not tier["kind"]
            }
            agent.close()
        return held
