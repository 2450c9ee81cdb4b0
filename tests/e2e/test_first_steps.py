#!/usr/bin/python3
"""README.md's tour and docs/first-steps.md, followed word for word by a user
with an empty home directory.

A fenced block of sh is run. A block after a line that ends with a file name in backquotes and a
colon is saved as that file. In README.md the indented blocks of its section "Five minutes" are run.
The only change: /tmp is a directory of the test."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HELIOS_BUILD", ROOT / "build"))
LIMIT_S = 300  # per page: beside other tests its four ranks mostly wait for each other
FENCED = re.compile(r"(?:`(?P<file>[\w.-]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.S)


def steps_of_page(text):
    """(file name or None, text) of each block to be saved or run."""
    for block in FENCED.finditer(text):
        if block["file"] or block["kind"] == "sh":
            yield block["file"], block["text"]


def steps_of_section(text, title):
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    for block in re.findall(r"(?m)(?:^    .*\n)+", section):
        yield None, re.sub(r"(?m)^    ", "", block)


class Follow(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="helios-steps-"))
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        (self.dir / "home").mkdir()
        (self.dir / "tmp").mkdir()
        for name in ("examples", "python"):
            (self.dir / name).symlink_to(ROOT / name)
        (self.dir / "build").symlink_to(BUILD)
        self.env = {
            "HOME": str(self.dir / "home"),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
        }
        self.addCleanup(
            subprocess.run,
            [BUILD / "bin/helios", "down", "--purge"],
            env=self.env,
            capture_output=True,
            timeout=60,
            check=False,
        )

    def follow(self, steps):
        """Saves the files, then runs all commands in one shell that stops at the first failure;
        returns their output."""
        script = ""
        for name, text in steps:
            text = text.replace("/tmp/", f"{self.dir}/tmp/")
            if name is not None:
                (self.dir / name).write_text(text, encoding="utf-8")
            else:
                script += "".join(f"{line}\n" for line in text.splitlines())
        done = subprocess.run(
            ["bash", "-e", "-x"],
            input=script,
            cwd=self.dir,
            env=self.env,
            text=True,
            timeout=LIMIT_S,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def test_the_tour_of_the_readme(self):
        steps = list(
            steps_of_section((ROOT / "README.md").read_text(encoding="utf-8"), "Five minutes")
        )
        self.assertGreater(len(steps), 2)
        said = self.follow(steps)
        for shown in (
            r"imported demo@1 as TP1 x PP1",
            r"demo-1: succeeded",
            r"exported demo@\d+ .* naming te",
            r"down: .*removed",
        ):
            self.assertRegex(said, shown)

    def test_the_first_steps(self):
        steps = list(steps_of_page((ROOT / "docs/first-steps.md").read_text(encoding="utf-8")))
        self.assertEqual([name for name, _ in steps if name], ["train.py", "job.yaml"])
        said = self.follow(steps)
        for shown in (
            r"version 1, from step 0",
            r"RuntimeError: a bug that strikes once",
            r"version 3, from step 20",
            r"first-1: succeeded, attempt 2",
            r"27 tensors of version 5",
            r"mp_rank_01_001",
            r"--transformer-impl transformer_engine",
            r"naming te, iteration 20",
            r"kept the pool",
            r"(?m)^step 40 loss",
        ):
            self.assertRegex(said, shown)


if __name__ == "__main__":
    unittest.main(verbosity=2)
