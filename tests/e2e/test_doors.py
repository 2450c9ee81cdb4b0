#!/usr/bin/python3
"""Who reaches a cluster on one machine: its own user and root, at Unix sockets; and nobody through a port, unless one is
asked for."""
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import unittest

from support.cluster import HELIOS, cluster, wait_for

STRANGER = "nobody"


def listening(pids):
    """Lines of `ss` about TCP and UDP ports of these processes."""
    shown = subprocess.run(["ss", "-lntup"], capture_output=True, text=True, check=True).stdout
    return [line for line in shown.splitlines() if set(map(int, re.findall(r"pid=(\d+)", line))) & set(pids)]


def as_stranger(*command):
    return subprocess.run(["setpriv", "--reuid", STRANGER, "--regid", "nogroup", "--clear-groups", *map(str, command)],
                          capture_output=True, text=True, timeout=60, check=False, cwd="/",
                          env={"PATH": os.environ["PATH"], "HELIOS_CONFIG": "", "HOME": "/"})


def readable_program(into):
    """A copy of the command line that a stranger may run."""
    program = pathlib.Path(into) / "helios"
    shutil.copy(HELIOS, program)
    program.chmod(0o755)
    return program


class Doors(unittest.TestCase):
    def pids(self, c):
        doc = json.loads((c.state / "cluster.json").read_text())
        return [entry["pid"] for entry in doc.values() if isinstance(entry, dict) and "pid" in entry]

    def test_no_port_is_open_and_nobody_else_may_enter_the_directory(self):
        with cluster(up=("--l2-size", "16MiB")) as c:
            self.assertEqual(listening(self.pids(c)), [])
            self.assertEqual(stat.S_IMODE(os.stat(c.state).st_mode), 0o700)
            self.assertEqual(stat.S_IMODE(os.stat(c.state / "run").st_mode), 0o700)
            self.assertTrue(c.json("info")["l3Address"].startswith(f"unix:{c.state}/run/"))

    def test_ports_are_open_where_an_address_is_asked_for(self):
        with cluster(nodes=1, tcp=True) as c:
            self.assertGreater(len(listening(self.pids(c))), 2)

    def test_a_running_cluster_is_not_said_to_serve_where_it_does_not(self):
        with cluster(nodes=1) as c:
            said = c.refuse(*c.up_args, "--address", "127.0.0.1")
            self.assertIn("the running cluster serves on Unix sockets", said)

    @unittest.skipUnless(os.geteuid() == 0, "another user's process is started by root only")
    def test_another_users_process_is_refused_at_every_socket_even_where_files_let_it_through(self):
        with cluster(nodes=1, slots=1, up=("--l2-size", "16MiB")) as c:
            program = readable_program(c.dir)
            denied = as_stranger(program, "--state", c.state, "info")
            self.assertNotEqual(denied.returncode, 0)
            # the directory does not help now: the daemons themselves must refuse
            for path in (c.dir, c.state, c.state / "run", *(c.state / "run").iterdir()):
                path.chmod(0o777)
            for name in ("controllerd", "l3d", "node-0"):
                with self.subTest(name):
                    done = as_stranger(program, "--controller", f"unix:{c.state}/run/{name}.sock", "info")
                    self.assertEqual(done.returncode, 1, done.stdout)
                    log = c.state / "log" / f"{name}.log"
                    wait_for(f"{name} to say whom it has refused", lambda: "a connection was refused" in log.read_text())
            knock = ("import socket,sys; s=socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1]); "
                     "s.send(b'x'*64); sys.exit(0 if s.recv(64) == b'' else 3)")
            done = as_stranger("/usr/bin/python3", "-c", knock, c.state / "run" / "l3.sock")
            log = c.state / "log" / "l3d.log"
            wait_for("l3d to say whom it has refused", lambda: "pool socket: client refused: process" in log.read_text())
            self.assertNotEqual(done.returncode, 3, done.stderr)
            self.assertEqual(c.json("info")["l3State"], "ready")  # its own user is served


if __name__ == "__main__":
    unittest.main(verbosity=2)
