"""A cluster of one node whose processes a test kills, and checks of what they leave in the pool."""
from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import unittest

from . import needs
from .cluster import HELIOS, Cluster

sys.path.insert(0, str(needs.ROOT / "tests" / "chaos"))

import poolfile  # noqa: E402


class KillCase(unittest.TestCase):
    SIZE = "512MiB"
    GRACE = "0"  # how long the sweep leaves unknown shards alone

    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(
            nodes=1,
            slots=1,
            size=cls.SIZE,
            tcp=True,
            env={"HELIOS_GC_GRACE": cls.GRACE, "HELIOS_GC_INTERVAL": "200ms"},
        )
        cls.addClassCleanup(shutil.rmtree, cls.c.dir, ignore_errors=True)
        cls.addClassCleanup(cls.c.run, "down", "--purge")
        cls.c.up()
        cls.pool = pathlib.Path(cls.c.info["pool"])

    def helios(self, *args):
        """Starts a command that runs beside the test."""
        return self.start(str(HELIOS), "--state", str(self.c.state), *map(str, args))

    def python(self, code, *args):
        """Starts a program that uses libhelios and torch."""
        return self.start(*needs.command("-c", code, *args))

    def start(self, *command):
        env = {
            **self.c.env,
            "PYTHONPATH": str(needs.ROOT / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def finish(self, processes):
        """Exit codes and output."""
        return [
            (p.returncode, *said)
            for p, said in [(p, p.communicate(timeout=self.c.limit)) for p in processes]
        ]

    def known(self):
        """Ids of the catalogue's shards."""
        return {s["id"] for s in self.c.json("shard", "ls")["items"]}

    def orphans(self):
        """Shards in the pool that the catalogue does not know, or that are not whole."""
        known = self.known()
        return [
            e
            for e in poolfile.entries(self.pool)
            if not e.id.startswith(poolfile.MANIFEST)
            and (
                e.state in (poolfile.WRITING, poolfile.LEASED)
                or (e.state == poolfile.SEALED and e.id not in known)
            )
        ]
