#!/usr/bin/python3
"""Who can reach a cluster on one machine: its own user and root, at Unix sockets.
Ports are open only if requested."""
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import time
import unittest
import uuid

from support.cluster import BUILD, HELIOS, cluster, wait_for

STRANGER = "nobody"
KNOCK = """
import socket, sys
for _ in range(30):
    with socket.socket(socket.AF_UNIX, getattr(socket, "SOCK_" + sys.argv[1])) as s:
        s.settimeout(10)
        s.connect(sys.argv[2])
        try:
            s.send(b"x" * 64)
            if s.recv(64):
                sys.exit(3)
        except ConnectionError:
            pass
"""


def listening(pids):
    """Lines of `ss` about TCP and UDP ports of these processes."""
    shown = subprocess.run(["ss", "-lntup"], capture_output=True, text=True, check=True).stdout
    return [
        line
        for line in shown.splitlines()
        if set(map(int, re.findall(r"pid=(\d+)", line))) & set(pids)
    ]


def as_stranger(*command):
    return subprocess.run(
        [
            "setpriv",
            "--reuid",
            STRANGER,
            "--regid",
            "nogroup",
            "--clear-groups",
            *map(str, command),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={"PATH": os.environ["PATH"], "HELIOS_CONFIG": "", "HOME": "/"},
    )


def readable_program(into):
    """A copy of the command line that another user may run."""
    program = pathlib.Path(into) / "helios"
    shutil.copy(HELIOS, program)
    program.chmod(0o755)
    return program


class Doors(unittest.TestCase):
    def pids(self, c):
        doc = json.loads((c.state / "cluster.json").read_text())
        return [
            entry["pid"] for entry in doc.values() if isinstance(entry, dict) and "pid" in entry
        ]

    def test_no_port_is_open_and_nobody_else_may_enter_the_directory(self):
        with cluster(up=("--l2-size", "16MiB")) as c:
            self.assertEqual(listening(self.pids(c)), [])
            self.assertEqual(stat.S_IMODE(os.stat(c.state).st_mode), 0o700)
            self.assertEqual(stat.S_IMODE(os.stat(c.state / "run").st_mode), 0o700)
            self.assertEqual(stat.S_IMODE(os.stat(c.state / "agents" / "node-0").st_mode), 0o700)
            self.assertTrue(c.json("info")["l3Address"].startswith(f"unix:{c.state}/run/"))

    def test_ports_are_open_where_an_address_is_asked_for(self):
        with cluster(nodes=1, tcp=True, secret=None) as c:
            self.assertGreater(len(listening(self.pids(c))), 2)

    def test_a_running_cluster_is_not_said_to_serve_where_it_does_not(self):
        with cluster(nodes=1) as c:
            said = c.refuse(*c.up_args, "--address", "127.0.0.1")
            self.assertIn("the running cluster serves on Unix sockets", said)
            c.down("--keep")
            served = [c.json("up", "--address", "127.0.0.1")["controller"]]
            served.append(c.json("info")["l3Address"])
            for address in served:
                self.assertRegex(address, r"^127\.0\.0\.1:\d+$")

    def knock_often(self, c, kind, path, log, refusal):
        """Nobody has been refused there before. Each connection is closed,
        and at most one a second is logged."""
        log, began = c.state / "log" / log, time.monotonic()
        done = as_stranger("/usr/bin/python3", "-c", KNOCK, kind, c.state / "run" / path)
        self.assertEqual(done.returncode, 0, done.stderr)
        wait_for(f"{log} to say who was refused", lambda: refusal in log.read_text())
        self.assertLessEqual(log.read_text().count(refusal), 1 + int(time.monotonic() - began))

    @unittest.skipUnless(os.geteuid() == 0, "another user's process is started by root only")
    def test_another_users_process_is_refused_at_every_socket_even_where_files_let_it_through(self):
        with cluster(nodes=1, slots=1, up=("--l2-size", "16MiB")) as c:
            program = readable_program(c.dir)
            denied = as_stranger(program, "--state", c.state, "info")
            self.assertNotEqual(denied.returncode, 0)
            # directory permissions are opened: the daemons themselves must refuse
            for path in (c.dir, c.state, c.state / "run", *(c.state / "run").iterdir()):
                path.chmod(0o777)
            self.knock_often(
                c, "SEQPACKET", "l3.sock", "l3d.log", "pool socket: client refused: process"
            )
            self.knock_often(
                c, "STREAM", "controllerd.sock", "controllerd.log", "a connection was refused"
            )
            for name in ("controllerd", "l3d", "node-0"):
                with self.subTest(name):
                    done = as_stranger(
                        program, "--controller", f"unix:{c.state}/run/{name}.sock", "info"
                    )
                    self.assertEqual(done.returncode, 1, done.stdout)
                    log = c.state / "log" / f"{name}.log"
                    wait_for(
                        f"{name} to say whom it has refused",
                        lambda: "a connection was refused" in log.read_text(),
                    )
            self.assertEqual(c.json("info")["l3State"], "ready")  # its own user is served


class Secret(unittest.TestCase):
    """If there are ports, each protocol demands the cluster's secret."""

    @classmethod
    def setUpClass(cls):
        cls.c = cls.enterClassContext(
            cluster(nodes=1, slots=1, tcp=True, secret=None, up=("--l2-size", "16MiB"))
        )
        cls.doc = json.loads((cls.c.state / "cluster.json").read_text())
        cls.wrong = cls.c.dir / "wrong"
        cls.wrong.write_text("not the secret of this cluster\n")
        cls.wrong.chmod(0o600)

    def peer(self, secret, *args, stdin=""):
        """Runs tests/net_peer with this secret file ("" = none); returns its status."""
        done = subprocess.run(
            [BUILD / "tests" / "net_peer", *map(str, args)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "HELIOS_AUTH_SECRET_FILE": str(secret)},
        )
        self.assertTrue(done.stdout, done.stderr)
        return {"status": "OK", "error": "", **json.loads(done.stdout.splitlines()[-1])}

    def refused(self, *args, stdin=""):
        self.assertEqual(self.peer(self.doc["secretFile"], *args, stdin=stdin)["status"], "OK")
        for secret in ("", self.wrong):
            with self.subTest(secret=secret):
                said = self.peer(secret, *args, stdin=stdin)
                self.assertNotEqual(said["status"], "OK", said)

    def test_the_file_is_private(self):
        self.assertEqual(stat.S_IMODE(os.stat(self.doc["secretFile"]).st_mode), 0o600)

    def test_rpc_says_what_is_missing_and_counts_it(self):
        for daemon, interface, method in (
            ("controllerd", "Controller", "clusterInfo"),
            ("l3d", "L3", "poolInfo"),
            ("node-0", "Agent", "info"),
        ):
            with self.subTest(daemon):
                self.refused(
                    "rpc", self.doc[daemon]["address"], interface, stdin=f"{method} {{}}\n"
                )
                said = self.peer(
                    "", "rpc", self.doc[daemon]["address"], interface, stdin=f"{method} {{}}\n"
                )
                self.assertEqual(said["status"], "EPERM")
                self.assertIn(
                    "the server wants the cluster's secret: set auth.secret_file", said["error"]
                )
                wrong = self.peer(
                    self.wrong,
                    "rpc",
                    self.doc[daemon]["address"],
                    interface,
                    stdin=f"{method} {{}}\n",
                )
                self.assertIn("does not know this cluster's secret", wrong["error"])
                log = (self.c.state / "log" / f"{daemon}.log").read_text()
                self.assertIn("a connection was refused", log)

    def test_the_data_port_wants_it(self):
        self.refused("get", self.doc["l3d"]["dataAddress"], 4096, 5000, 1)
        self.refused("put", self.doc["l3d"]["dataAddress"], 4096, 5000)

    def test_migrations_want_it(self):
        self.refused(
            "send",
            self.doc["node-0"]["migrateAddress"],
            256 << 10,
            uuid.uuid4().hex,
            256 << 10,
            1000,
            3000,
            "off",
        )
        counted = re.compile(
            r'^helios_fault_total{cause="no-secret",path="zmq"} [1-9]', re.MULTILINE
        )
        wait_for(
            "node-0 to count whom it has refused",
            lambda: counted.search(self.c.run("metrics", "node-0").stdout),
        )
        self.assertIn(
            "the peer does not know the cluster's secret",
            (self.c.state / "log" / "node-0.log").read_text(),
        )

    def test_ranks_are_told(self):
        job = self.c.submit(
            "jobName: told\nparallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, "
            "data_parallel_size: 1}\nresources: {ranks_per_slot: 1}\n"
            "command: [/usr/bin/python3, -c, 'import helios; helios.init(); print(\"in\")']\n"
        )
        done = self.c.wait_job(job, "succeeded", "failed")
        self.assertEqual(done["state"], "succeeded", self.c.log(job))


if __name__ == "__main__":
    unittest.main(verbosity=2)
