#!/usr/bin/python3
"""Bytes of strangers on every port of the daemons: they live, do not spin, and serve.

test_strangers.py [MESSAGES]: so many mutated messages to each port (100); HELIOS_STRANGERS=MESSAGES does the same."""
import array
import collections
import multiprocessing
import os
import pathlib
import random
import socket
import struct
import sys
import time
import unittest
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from support import checkpoints, wire  # noqa: E402
from support.cluster import alive, cluster, wait_for  # noqa: E402

LISTENS = "0A"
# What ended a daemon that listened by UCX, what made it spin, and what other programs would send.
NOISES = (bytes(17), b"A" * 3000, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HLT1" + bytes(92), b"\xff" * 65536)
STILL_SECONDS = 1.0
MESSAGES = int(os.environ.get("HELIOS_STRANGERS", "100"))
# Connections of one sender that wait for the daemon to close them.
WINDOW = 24
PATIENCE = 2.0
NUMBERS = (0, 1, 2, 3, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
# Not the names of what the cluster has: whoever may call may also remove it.
WORDS = ("", "0", "-1", "stranger", "x" * 4096, "f" * 32, "0" * 32, "../..", "/", "dir:/nowhere", "127.0.0.1:1", "%n%s", "{}", "a: [b",
         "name: x\nreplicas: 1\n", "\u00e9\u4e2d")


def sockets_of(pid):
    """Inodes of the sockets that the process holds."""
    links = []
    for fd in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(os.readlink(fd))
        except OSError:  # closed meanwhile
            continue
    return {link[8:-1] for link in links if link.startswith("socket:[")}


def ports_of(pid):
    """TCP ports where the process listens."""
    held, ports = sockets_of(pid), set()
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and words[9] in held:
                ports.add(int(words[1].rsplit(":", 1)[1], 16))
    return ports


def cpu_seconds(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def send(port, noise, reset):
    """Whatever the daemon does with the connection is fine."""
    with socket.create_connection(("127.0.0.1", port), 10) as s:
        if reset:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            s.sendall(noise)
        except (ConnectionResetError, BrokenPipeError):
            pass


class Sender:
    """Mutated messages to one port: each the first on a connection of its own, or the first after a greeting."""

    def __init__(self, port, seed):
        self.port, self.rng = port, random.Random(f"{seed}/{port.name}")
        self.waiting = collections.deque()
        self.told = collections.Counter()

    def mutated(self, message, checksums=()):
        """Some bytes or words changed, cut, or repeated; mostly with (start, end) sums put right, so that the rest is read."""
        rng, out = self.rng, bytearray(message)
        for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
            at = rng.randrange(len(out))
            match rng.randrange(6):
                case 0:
                    out[at] ^= 1 << rng.randrange(8)
                case 1:
                    out[at] = rng.randrange(256)
                case 2 | 3 if len(out) >= 8:
                    word = at // 4 * 4
                    out[word:word + 4] = struct.pack("<I", rng.choice(NUMBERS))[:len(out) - word]
                case 4 if rng.random() < 0.2:
                    del out[max(1, at):]
                case 5 if rng.random() < 0.2:
                    out[at:at] = out[at:at + rng.randrange(64)]
        if rng.random() < 0.8:
            for start, end in checksums:
                if len(out) >= end + 4:
                    struct.pack_into("<I", out, end, zlib.crc32(out[start:end]))
        return bytes(out)

    def message_rpc(self):
        interface, methods, _ = self.port.interface
        asked = wire.call(1, interface, self.rng.randrange(methods + 1), wire.parameters(self.rng, WORDS))
        if self.rng.random() < 0.1:
            return [self.mutated(wire.bootstrap(0)), asked]
        return [wire.bootstrap(0), self.mutated(asked)]

    def message_data(self):
        rng, hello = self.rng, wire.data_message(1, payload=bytes(wire.DATA_KEY))
        if rng.random() < 0.2:
            return [self.mutated(hello, [(0, 60)])]
        size = rng.choice((1, 64, 4096, 1 << 20))
        after = rng.choice((wire.data_message(3, 1, rng.choice((0, 1 << 40)), size), wire.data_message(6, 1, 0, size, crc=7),
                            wire.data_message(10, 1, payload=rng.randbytes(rng.choice((8, 40, 200)))), wire.data_message(12, 1)))
        return [hello, self.mutated(after, [(0, 60)])]

    def message_migrate(self):
        rng = self.rng
        if rng.random() < 0.2:
            return [self.mutated(wire.ZMTP_GREETING), wire.ZMTP_READY]
        if rng.random() < 0.1:
            return [wire.ZMTP_GREETING, self.mutated(wire.ZMTP_READY)]
        frame = self.mutated(wire.migrate_message(rng.choice((1, 2, 3, 4, 11)), rng.choice((1, rng.getrandbits(60))), 1 << 20, 1 << 20, 1,
                                                  0, rng.choice((0, 64))), [(0, 92)])
        parts = wire.zmtp(frame, more=True) + wire.zmtp(rng.randbytes(64)) if rng.random() < 0.5 else wire.zmtp(frame)
        return [wire.ZMTP_GREETING, wire.ZMTP_READY, parts if rng.random() < 0.8 else self.mutated(parts)]

    def message_pool(self):
        """SOCK_SEQPACKET: each of the list is a packet; some bring a descriptor."""
        rng = self.rng
        asked = wire.pool_message(rng.randrange(10), 2, rng.choice((0, 1, rng.getrandbits(60))), rng.choice((0, 1, 4096)),
                                  rng.choice((0, 1, 4096, 1 << 62)))
        if rng.random() < 0.1:
            return [self.mutated(wire.pool_message(1)), asked]
        return [wire.pool_message(1), self.mutated(asked)]

    def message_http(self):
        rng = self.rng
        return [self.mutated(f"{rng.choice(('GET', 'HEAD', 'POST'))} /{rng.choice(('metrics', 'healthz', 'x' * 300))} HTTP/1.1\r\nHost: x"
                             f"\r\nContent-Length: {rng.choice(('0', '-1', '9' * 30))}\r\n\r\n".encode())]

    def one(self):
        """One message is one connection, which the daemon may answer, refuse or close."""
        message = getattr(self, f"message_{self.port.kind}")()
        try:
            s = self.port.connect()
        except OSError as error:
            self.told[f"not taken: {type(error).__name__}"] += 1
            return
        self.waiting.append(s)
        try:
            if self.port.kind == "pool":
                for packet in message:
                    control = []
                    if self.rng.random() < 0.2:
                        control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.memory()]))]
                    s.sendmsg([packet], control)
            else:
                s.sendall(b"".join(message))
            s.shutdown(socket.SHUT_WR)
        except OSError:  # closed already
            pass
        if len(self.waiting) > WINDOW:
            self.end_oldest()

    def memory(self):
        if not hasattr(self, "memfd"):
            self.memfd = os.memfd_create("strangers", os.MFD_ALLOW_SEALING)
            os.ftruncate(self.memfd, 4096)
        return self.memfd

    def end_oldest(self):
        """Read to its end, so that the daemon was not stopped by ours."""
        with self.waiting.popleft() as s:
            s.settimeout(PATIENCE)
            try:
                while s.recv(65536):
                    pass
                self.told["closed"] += 1
            except TimeoutError:
                self.told["left open"] += 1
            except OSError:
                self.told["reset"] += 1

    def send(self, count):
        for _ in range(count):
            self.one()
        while self.waiting:
            self.end_oldest()
        return self.told


def send_mutated(port, count, seed, out):
    begun = time.monotonic()
    told = Sender(port, seed).send(count)
    out.put((port.name, sum(told.values()), dict(told), time.monotonic() - begun))


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
            told = c.json("pull", "--model", "toy", "--pp", 0, "--tp", 0, "--path", "net", "--out", out)
            self.assertEqual((told["path"], told["crcFailures"]), ("tcp", 0))
            for node in c.json("nodes")["items"]:
                self.assertEqual(node["state"], "ready", node)

    def test_mutated_messages_on_every_port_leave_the_daemons_alive_still_and_serving(self):
        seed = int(os.environ.get("HELIOS_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
        with cluster(nodes=2, tcp=True, secret="none", up=("--l2-size", "64MiB"), env={"HELIOS_METRICS_LISTEN": "127.0.0.1:0"}) as c:
            directory, _ = checkpoints.llama(c.dir / "hf", layers=2, hidden=64, ffn=128, seed=5)
            c.json("model", "import", directory, "--name", "toy", "--tp", 1, "--pp", 1)
            ports = [p for p in wire.ports(c.state) if p.daemon != "node-1"]
            self.assertEqual({p.kind for p in ports}, {"rpc", "data", "migrate", "pool", "http"})
            pids = {name: c.pid(name) for name in ("controllerd", "l3d", "node-0", "node-1")}
            results = multiprocessing.Queue()
            senders = [multiprocessing.Process(target=send_mutated, args=(p, MESSAGES, seed, results)) for p in ports]
            for sender in senders:
                sender.start()
            told = [results.get(timeout=60 + MESSAGES) for _ in senders]
            for sender in senders:
                sender.join(60)
            for name, count, ends, seconds in sorted(told):
                print(f"{name:20} {count:9} messages {seconds:7.1f} s  {ends}", flush=True)
                self.assertEqual(count, MESSAGES, name)
            for name, pid in pids.items():
                self.assertTrue(alive(pid), f"{name} has ended; seed {seed}")
            wait_for(f"all daemons to be still; seed {seed}", lambda: self.are_still(pids))
            for port in ports:
                with wire.caller(port) as caller:
                    caller.call()
            out = c.dir / "pulled.safetensors"
            pulled = c.json("pull", "--model", "toy", "--pp", 0, "--tp", 0, "--path", "net", "--out", out)
            self.assertEqual((pulled["path"], pulled["crcFailures"]), ("tcp", 0))
            states = {node["node"]["name"]: node["state"] for node in c.json("nodes")["items"]}
            self.assertEqual((states["node-0"], states["node-1"]), ("ready", "ready"))

    def are_still(self, pids):
        """Whether none used more than a tenth of a processor for a second; what they had to do is done by then."""
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(STILL_SECONDS)
        return all(cpu_seconds(pid) - before[name] < STILL_SECONDS / 10 for name, pid in pids.items())


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].isdecimal():
        MESSAGES = int(sys.argv.pop(1))
    unittest.main()
