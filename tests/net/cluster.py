"""The real daemons on two hosts: Controller and L3 on A, ranks on B."""
import json
import os
import sys

import hosts
from hosts import BUILD, ROOT, wait_for

sys.path.insert(0, str(ROOT / "tests"))
from support import checkpoints  # noqa: E402

MIB = 1 << 20
PEER = BUILD / "tests" / "net_peer"


class Cluster:
    def __init__(self, lab, size="192MiB"):
        self.lab, self.a, self.b, self.size = lab, lab.a, lab.b, size
        self.l3_calls = None
        self.l3 = self.start_l3()
        state = lab.dir / "controller"
        self.controller = self._daemon(
            self.a, "helios-controller", "--state", state, "--l3", self.l3.ready["address"]
        )
        self.address = self.controller.ready["address"]

    def _daemon(self, host, program, *args):
        ready = self.lab.dir / f"{program}-{host.name}.json"
        ready.unlink(missing_ok=True)
        process = host.start(
            BUILD / "bin" / program,
            *host.planes(),
            "--ready-file",
            ready,
            "--log-level",
            "info",
            *args,
        )
        wait_for(
            f"{program} on {host.name} to be ready\n{process.said()}",
            lambda: process.popen.poll() is not None or ready.exists() and ready.stat().st_size > 0,
        )
        assert process.popen.poll() is None, process.said()
        process.ready = json.loads(ready.read_text())
        return process

    def start_l3(self, port=7402, data_port=7403):
        """Again after it died: the same pool, the same addresses."""
        return self._daemon(
            self.a,
            "helios-l3d",
            "--pool",
            self.a.dir / "pool",
            "--socket",
            self.a.dir / "l3.sock",
            "--size",
            self.size,
            "--listen",
            f"{self.a.ip('management')}:{port}",
            "--data-listen",
            f"{self.a.ip('backbone')}:{data_port}",
            "--quarantine",
            "100ms",
        )

    def start_agent(self, host, l2_size="128MiB"):
        """An Agent with an L2 of its own; the Controller knows it by the host's name. Hosts on one
        kernel share its identity, so they are told apart."""
        state = self.lab.dir / f"agent-{host.name}"
        agent = self._daemon(
            host,
            "helios-agent",
            "--name",
            host.name,
            "--host-id",
            f"host-{host.name}",
            "--state",
            state,
            "--controller",
            self.address,
            "--l2-size",
            l2_size,
            "--l2-pool",
            host.dir / "l2",
            "--quarantine",
            "100ms",
            "--listen",
            f"{host.ip('management')}:7404",
        )
        wait_for(
            f"{host.name} to be a node",
            lambda: any(
                n["node"]["name"] == host.name and n["state"] == "ready"
                for n in self.helios(self.a, "nodes")["items"]
            ),
        )
        return agent

    def helios(self, host, *args, check=True, timeout=60):
        """Runs the CLI on a host; returns its parsed JSON."""
        done = host.run(
            "helios",
            "--controller",
            self.address,
            *args,
            "-o",
            "json",
            check=check,
            timeout=timeout,
        )
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    def make_model(self, name="m", hidden=1024, ffn=2048, layers=2, vocab=1000):
        directory, _ = checkpoints.llama(
            self.lab.dir / name, layers=layers, hidden=hidden, ffn=ffn, vocab=vocab, heads=8
        )
        return directory

    def import_model(self, name="m", **shape):
        self.helios(
            self.a,
            "model",
            "import",
            self.make_model(name, **shape),
            "--name",
            name,
            "--tp",
            "1",
            "--pp",
            "1",
        )

    def caller(self, host, address, interface):
        """Calls methods of api/v1/helios.capnp: caller.ask("METHOD {params}")."""
        return host.start(PEER, "rpc", address, interface, stdin=True)

    def pool(self):
        """As reported by the L3 daemon itself; the Controller's answer is a second old."""
        if self.l3_calls is None:
            self.l3_calls = self.caller(self.a, self.l3.ready["address"], "L3")
        answer = self.l3_calls.ask("poolInfo")
        assert "pool" in answer, answer
        return answer["pool"]

    def used(self):
        """(bytes used, shards), once the quarantine is empty."""
        pool = wait_for(
            "the quarantine to be empty", lambda: (p := self.pool())["quarantinedBytes"] == 0 and p
        )
        return pool["usedBytes"], pool["shards"]

    def rank(self, host, path="auto", timeout_ms=0, l3=""):
        env = dict(
            os.environ,
            HELIOS_LIBRARY=str(BUILD / "lib" / "libhelios.so.0"),
            PYTHONPATH=str(ROOT / "python"),
        )
        process = host.start(
            "/usr/bin/python3",
            ROOT / "tests" / "net" / "rank.py",
            self.address,
            l3,
            path,
            timeout_ms,
            stdin=True,
            env=env,
        )
        process.line()
        return process


def ids(listing):
    return [shard[:2] for shard in listing["shards"]]


def crcs(listing):
    return [shard[3] for shard in listing["shards"]]
