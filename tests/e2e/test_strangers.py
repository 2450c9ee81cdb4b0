#!/usr/bin/python3
"""Bytes of strangers on every TCP port of the daemons: they live, do not spin, and serve."""
import os
import pathlib
import socket
import struct
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from support import checkpoints  # noqa: E402
from support.cluster import alive, cluster, wait_for  # noqa: E402

LISTENS = "0A"
# What ended a daemon that listened by UCX, what made it spin, and what other programs would send.
NOISES = (bytes(17), b"A" * 3000, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HLT1" + bytes(92), b"\xff" * 65536)
STILL_SECONDS = 1.0


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


class Strangers(unittest.TestCase):
    def test_bytes_of_strangers_on_every_port_leave_the_daemons_alive_still_and_serving(self):
        with cluster(nodes=2, up=("--l2-size", "64MiB")) as c:
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

    def are_still(self, pids):
        """Whether none used more than a tenth of a processor for a second; what they had to do is done by then."""
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        time.sleep(STILL_SECONDS)
        return all(cpu_seconds(pid) - before[name] < STILL_SECONDS / 10 for name, pid in pids.items())


if __name__ == "__main__":
    unittest.main()
