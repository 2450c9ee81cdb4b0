#!/usr/bin/python3
"""More imports than the L3 daemon runs at a time: the others wait in order of arrival, report what
they wait for, can be cancelled, and give up at their deadline."""
from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import HELIOS, Cluster, wait_for  # noqa: E402
from support.terminal import on_terminal  # noqa: E402

AT_A_TIME = 4  # HL_IMPORT_PLACES without the cut's


class Queue(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = pathlib.Path(tempfile.mkdtemp(prefix="helios-queue-"))
        cls.addClassCleanup(shutil.rmtree, home, ignore_errors=True)
        library, cls.reads = home / "slow_disk.so", home / "ms"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", library, needs.ROOT / "tests/support/slow_disk.c"],
            check=True,
        )
        cls.reads.write_text("0")
        cls.c = Cluster.of_class(
            cls,
            nodes=1,
            slots=1,
            size="1GiB",
            env={"LD_PRELOAD": str(library), "SLOW_READS": str(cls.reads)},
        )
        cls.source, _ = checkpoints.llama(
            cls.c.dir / "llama", layers=8, hidden=512, ffn=1536, vocab=2048
        )

    @contextlib.contextmanager
    def slowed(self):
        """Makes each read of the L3 daemon slow."""
        self.reads.write_text("200")
        try:
            yield
        finally:
            self.reads.write_text("0")

    def start(self, name):
        command = [HELIOS, "--state", self.c.state, "model", "import", self.source, "--name", name]
        made = subprocess.Popen(
            [*map(str, command)],
            env=self.c.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(lambda: (made.kill(), made.communicate()))
        return made

    def states(self):
        return {m["name"]: m["state"] for m in self.c.json("model", "ls")["items"]}

    def test_the_fifth_import_waits_for_its_turn(self):
        with self.slowed():
            first = []
            for i in range(AT_A_TIME):
                first.append(self.start(f"m{i}"))
                wait_for("it to be listed", lambda i=i: f"m{i}" in self.states())
            others = [self.start("m4")]
            wait_for("the fifth to wait", lambda: self.states().get("m4") == "waiting")
            others.append(self.start("m5"))
            wait_for("the sixth to wait", lambda: self.states().get("m5") == "waiting")
            gone = self.start("gone")
            wait_for("the seventh to wait", lambda: self.states().get("gone") == "waiting")
            self.assertIn("waiting", self.c.run("model", "ls").stdout)
            text = self.c.refuse("model", "import", self.source, "--name", "now", "--wait", "0")
            self.assertRegex(text, "other imports are already waiting|are running already")
            done = self.c.run("model", "import", self.source, "--name", "late", "--wait", "300ms")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("waiting for m0 and ", done.stderr)
            self.assertIn("has not begun in 300 ms, because 'm0' and ", done.stderr)
            self.c.json("model", "cancel", "gone")
            self.assertIn("cancelled", gone.communicate(timeout=self.c.limit)[1])
        for import_ in (*first, *others):
            out, said = import_.communicate(timeout=self.c.limit)
            self.assertEqual(import_.returncode, 0, said)
            self.assertEqual("waiting for " in said, import_ in others, said)
        self.assertEqual(self.states(), {f"m{i}": "ready" for i in range(AT_A_TIME + 2)})
        log = (self.c.state / "log" / "controllerd.log").read_text()
        self.assertEqual(re.findall(r"import leaves the queue name=(\S+)", log), ["m4", "m5"])

    def strike_twice(self, program):
        """A second Ctrl-C after the first was handled, while no daemon answers."""
        status = pathlib.Path(f"/proc/{program.pid}/status")
        os.kill(self.c.pid("controllerd"), signal.SIGSTOP)
        self.addCleanup(os.kill, self.c.pid("controllerd"), signal.SIGCONT)
        program.send_signal(signal.SIGINT)
        wait_for(
            "the first to be taken",
            lambda: not int(re.search(r"ShdPnd:\s*(\w+)", status.read_text())[1], 16)
            & 1 << signal.SIGINT - 1,
        )
        program.send_signal(signal.SIGINT)

    def test_a_second_ctrl_c_ends_the_line_and_the_program(self):
        command = [
            HELIOS,
            "--state",
            self.c.state,
            "model",
            "import",
            self.source,
            "--name",
            "twice",
        ]
        with self.slowed():
            code, shown = on_terminal(
                command,
                env=self.c.env,
                stream="stderr",
                interrupt=b"importing [",
                strike=self.strike_twice,
            )
            os.kill(self.c.pid("controllerd"), signal.SIGCONT)
            self.c.run("model", "cancel", "twice")
        self.assertEqual(code, -signal.SIGINT, shown)
        self.assertRegex(shown, r"\r\x1b\[Kimporting \[[^\n]*\n$")
        self.assertNotIn("twice", self.states())


if __name__ == "__main__":
    unittest.main(verbosity=2)
