#!/usr/bin/python3
"""Commands that are started while the L3 daemon restarts: they wait for it if it can come back,
and say so."""
from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import dense_models, needs  # noqa: E402

needs.programs()

from support.cluster import HELIOS, cluster  # noqa: E402


class Away(unittest.TestCase):
    def commands(self, c):
        """Each reads or writes shards in L3. The file's name shows that it was done."""
        return {
            "pull": ("pull", "--model", "m", "--out", c.dir / "rank"),
            "export": ("model", "export", "m", "--format", "hf", "--out", c.dir / "hf"),
            "verify": ("model", "verify", "m"),
            "diff": ("model", "diff", "m", "m"),
            "reshard": ("model", "reshard", "m", "--tp-size", 2),
            "import": ("model", "import", c.dir / "llama", "--name", "other"),
        }

    @staticmethod
    def failed(name):
        """Exit status; for a comparison 1 is a result."""
        return 2 if name == "diff" else 1

    def begin(self, c, command, where):
        """Starts the command; returns once it says that it waits."""
        process = subprocess.Popen(
            [*map(str, (HELIOS, *where, *command, "-o", "json"))],
            env=c.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        said = process.stderr.readline()
        self.assertRegex(said, r"^helios: .*; trying again for up to 30 s\n$")
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, err), (0, "helios: connected again\n"))
        self.assertIsInstance(json.loads(out), dict)

    def fill(self, c):
        source, _ = dense_models.checkpoint(c.dir / "llama", "llama")
        c.json("model", "import", source, "--name", "m")

    def test_a_command_waits_for_what_the_supervisor_starts_again(self):
        with cluster(nodes=1, slots=1, supervise=True) as c:
            self.fill(c)
            supervisor = c.pid("supervisor")
            os.kill(supervisor, signal.SIGSTOP)
            self.addCleanup(
                lambda: os.path.exists(f"/proc/{supervisor}")
                and os.kill(supervisor, signal.SIGCONT)
            )
            c.kill("l3d")
            waiting = {
                name: self.begin(c, command, ("--state", c.state))
                for name, command in self.commands(c).items()
            }
            os.kill(supervisor, signal.SIGCONT)
            for name, process in waiting.items():
                with self.subTest(command=name):
                    self.finish(process)
            self.assertIn("other", [m["name"] for m in c.json("model", "ls")["items"]])

    def test_one_of_a_cluster_elsewhere_waits_while_the_controller_answers(self):
        with cluster(nodes=1, slots=1, tcp=True) as c:
            self.fill(c)
            c.kill("l3d")
            where = ("--controller", c.info["controller"])
            process, other = (
                self.begin(c, self.commands(c)[name], where) for name in ("pull", "import")
            )
            other.send_signal(signal.SIGINT)  # nothing runs that it could cancel: it ends at once
            out, err = other.communicate(timeout=20)
            self.assertEqual((other.returncode, out, err), (-signal.SIGINT, "", ""))
            c.up()
            self.finish(process)

    def test_the_wait_has_an_end(self):
        with cluster(nodes=1, slots=1, tcp=True) as c:
            self.fill(c)
            c.kill("l3d")
            for name in ("diff", "import"):  # the others wait as diff does
                with self.subTest(command=name):
                    command = self.commands(c)[name]
                    done = subprocess.run(
                        [
                            *map(
                                str,
                                (
                                    HELIOS,
                                    "--controller",
                                    c.info["controller"],
                                    "--rpc-timeout",
                                    "1s",
                                    *command,
                                ),
                            )
                        ],
                        env=c.env,
                        capture_output=True,
                        text=True,
                        timeout=60,
                        check=False,
                    )
                    self.assertEqual(done.returncode, self.failed(name), done)
                    first, last = done.stderr.splitlines()
                    self.assertIn("trying again for up to 3 s", first)
                    self.assertIn("gave up after 3 s", last)

    def test_nothing_waits_where_nothing_starts_it_again(self):
        with cluster(nodes=1, slots=1) as c:
            self.fill(c)
            c.kill("l3d")
            for name, command in self.commands(c).items():
                with self.subTest(command=name):
                    self.assertNotIn("trying again", c.refuse(*command, code=self.failed(name)))
            c.kill("controllerd")
            self.assertIn("`helios up` starts it", c.refuse(*self.commands(c)["pull"]))


if __name__ == "__main__":
    unittest.main()
