#!/usr/bin/python3
"""Bytes of unknown peers on every port of the daemons: the daemons stay alive, do not spin,
and serve.

test_strangers.py [MESSAGES]: so many mutated messages to each port (100);
HELIOS_STRANGERS=MESSAGES does the same."""
import contextlib
import os
import pathlib
import random
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from support import checkpoints, strangers, wire  # noqa: E402
from support.cluster import alive, cluster, wait_for  # noqa: E402

LISTENS = "0A"
# Messages that once ended a daemon with a UCX listener or made it spin,
# and what other programs would send.
NOISES = (
    bytes(17),
    b"A" * 3000,
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HLT1" + bytes(92),
    b"\xff" * 65536,
)
STILL_SECONDS = 1.0
MESSAGES = int(os.environ.get("HELIOS_STRANGERS", "100"))


def sockets_of(pid):
    """Inodes of the sockets that the process has open."""
    links = []
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except OSError:  # closed in the meantime
            continue
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def ports_of(pid):
    """TCP ports where the process listens."""
    held, ports = sockets_of(pid), set()
    for table in ("tcp", "tcp6"):
        for line in (
            pathlib.Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        ):
            words = line.split()
            if words[3] == LISTENS and words[9] in held:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def cpu_seconds(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def send(port, noise, reset):
    """The daemon may do anything with the connection."""
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            s.sendall(noise)
        except (ConnectionResetError, BrokenPipeError):
            pass


def status_of(pid):
    """(megabytes of memory, open descriptors, threads)"""
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    words = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return (
        int(words["VmRSS"].split()[0]) / 1024,
        len(os.listdir(f"/proc/{pid}/fd")),
        int(words["Threads"]),
    )


class Strangers(unittest.TestCase):
    def test_bytes_of_strangers_on_every_port_leave_the_daemons_alive_still_and_serving(self):
        with cluster(nodes=2, tcp=True, secret="none", up=("--l2-size", "64MiB")) as c:
            directory, _ = checkpoints.llama(c.dir / "hf", layers=2, hidden=64, ffn=128, seed=5)
            c.json("model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1)
            pids = {name: c.pid(name) for name in ("l3d", "node-0", "node-1")}
            for name, pid in pids.items():
                ports = ports_of(pid)
                self.assertTrue(ports, name)
                for port in ports:
                    for noise in NOISES:
                        send(port, noise, reset=False)
                        send(port, noise, reset=True)
            for name, pid in pids.items():
                self.assertTrue(alive(pid), f"{name} has ended")
            wait_for("all daemons to be still", lambda: self.are_still(pids))
            out = c.dir / "pulled.safetensors"
            told = c.json(
                "pull", "--model", "toy", "--pp", 0, "--tp", 0, "--path", "net", "--out", out
            )
            self.assertEqual((told["path"], told["crcFailures"]), ("tcp", 0))
            for node in c.json("nodes")["items"]:
                self.assertEqual(node["state"], "ready", node)

    def test_mutated_messages_on_every_port_leave_the_daemons_alive_still_and_serving(self):
        with self.loaded(tcp=True, secret="none") as c:
            self.flood(c, {"rpc", "data", "migrate", "pool", "http"})
            out = c.dir / "pulled.safetensors"
            pulled = c.json(
                "pull", "--model", "toy", "--pp", 0, "--tp", 0, "--path", "net", "--out", out
            )
            self.assertEqual((pulled["path"], pulled["crcFailures"]), ("tcp", 0))

    def test_mutated_messages_in_front_of_the_greeting_of_a_secret_leave_the_daemons_so(self):
        with self.loaded(tcp=True) as c:
            self.flood(c, {"rpc", "data", "migrate"}, guarded=True)
            out = c.dir / "pulled.safetensors"
            pulled = c.json(
                "pull", "--model", "toy", "--pp", 0, "--tp", 0, "--path", "net", "--out", out
            )
            self.assertEqual((pulled["path"], pulled["crcFailures"]), ("tcp", 0))

    def test_mutated_messages_on_every_unix_socket_leave_the_daemons_so(self):
        with self.loaded() as c:
            self.flood(c, {"rpc", "pool"})
            pulled = c.json(
                "pull",
                "--model",
                "toy",
                "--pp",
                0,
                "--tp",
                0,
                "--out",
                c.dir / "pulled.safetensors",
            )
            self.assertEqual(pulled["crcFailures"], 0)

    @contextlib.contextmanager
    def loaded(self, **kwargs):
        """A cluster that has a model."""
        with cluster(
            nodes=2,
            up=("--l2-size", "64MiB"),
            env={"HELIOS_METRICS_LISTEN": "127.0.0.1:0"},
            **kwargs,
        ) as c:
            directory, _ = checkpoints.llama(c.dir / "hf", layers=2, hidden=64, ffn=128, seed=5)
            c.json("model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1)
            yield c

    def flood(self, c, kinds, guarded=False):
        """Mutated messages to all ports of these kinds at once, for one daemon of each sort."""
        seed = int(os.environ.get("HELIOS_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
        ports = [p for p in wire.ports(c.state) if p.daemon != "node-1" and p.kind in kinds]
        self.assertEqual({p.kind for p in ports}, kinds)
        pids = {name: c.pid(name) for name in ("controllerd", "l3d", "node-0", "node-1")}
        before = {name: status_of(pid) for name, pid in pids.items()}
        senders = [strangers.Sender(port, c.dir, MESSAGES, seed, guarded) for port in ports]
        for sender in senders:
            told = sender.result(60 + MESSAGES / 50)
            print(f"{sender.port.name:20} {told}", flush=True)
            self.assertEqual((told["messages"], told["not taken"]), (MESSAGES, 0), sender.port.name)
        for name, pid in pids.items():
            self.assertTrue(alive(pid), f"{name} has ended; seed {seed}")
        wait_for(f"all daemons to be still; seed {seed}", lambda: self.are_still(pids), 60)
        for name, pid in pids.items():
            for what, was, now in zip(
                ("MB", "descriptors", "threads"), before[name], status_of(pid)
            ):
                print(f"{name:20} {what:12} {was:8.0f} before {now:8.0f} after", flush=True)
        for port in ports:
            if not guarded:
                with wire.caller(port) as caller:
                    caller.call()
        states = {node["node"]["name"]: node["state"] for node in c.json("nodes")["items"]}
        self.assertEqual((states["node-0"], states["node-1"]), ("ready", "ready"))

    def are_still(self, pids):
        """Whether none used more than a tenth of a CPU for a second; their work is done by then."""
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(STILL_SECONDS)
        return all(
            cpu_seconds(pid) - before[name] < STILL_SECONDS / 10 for name, pid in pids.items()
        )


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdecimal():
        MESSAGES = int(sys.argv.pop(1))
    unittest.main()
