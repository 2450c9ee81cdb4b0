#!/usr/bin/python3
"""HybridPS processes are asked for the memory that a node's tiers are short of, as long as they are
and a Controller says so."""
import os
import pathlib
import signal
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
from support import needs  # noqa: E402
from support.cluster import BUILD, cluster, wait_for  # noqa: E402

needs.torch()
os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from hybridps.manager import Manager  # noqa: E402

MIB = 1 << 20
L1, L2 = 4 * MIB, 8 * MIB
GOAL = 0.6  # between the watermarks

RANK = """
import os, time
print(os.environ["HYBRIDPS_MANAGER"], flush=True)
time.sleep(600)
"""


class ChunkRequests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(
            nodes=1,
            slots=1,
            size="64MiB",
            up=["--l2-size", f"{L2}", "--devices", f"emu:{L1}"],
            env={
                "HELIOS_PLACEMENT_POLICY": "on",
                "HELIOS_POLICY_HIGH_PCT": "70",
                "HELIOS_POLICY_LOW_PCT": "50",
                "HELIOS_NODE_LOST": "2s",
            },
        )
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        (cls.c.dir / "rank.py").write_text(RANK)
        job = cls.c.submit(
            "jobName: table\nrestarts: 0\n"
            "parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, "
            "data_parallel_size: 1}\n"
            f"command: [/usr/bin/python3, {cls.c.dir}/rank.py]\n"
        )
        cls.table = wait_for(
            "the rank", lambda: (t := cls.c.log(job)).endswith("\n") and t.strip(), 60
        )

    def setUp(self):
        self.few = Manager(self.table)  # keeps the tiers of chunks in the list
        self.addCleanup(self.few.close)
        self.few.add(4096)
        self.few.add(4096, 0)

    def hold(self, size, device):
        """A process that has so many bytes of chunks; returns what ends it."""
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                manager = Manager(self.table)
                manager.add(size, device)
                os.write(write, b"holds")
                signal.pause()
            finally:
                os._exit(1)
        os.close(write)
        ended = []

        def end():
            if not ended:
                ended.append(pid)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

        self.addCleanup(end)
        with os.fdopen(read, "rb", buffering=0) as said:
            self.assertEqual(said.read(5), b"holds")
        return end

    def tier(self, name):
        nodes = [n for n in self.c.json("store")["items"] if n["node"] == "node-0"]
        return next((t for n in nodes for t in n["tiers"] if t["name"] == name), None)

    def asked(self, name="chunks:0"):
        return self.tier(name)["askedBytes"]

    def logged(self, text):
        return (self.c.state / "log" / "node-0.log").read_text().count(text)

    def test_a_process_is_asked_while_its_tier_is_above_its_watermark(self):
        self.assertEqual((self.asked("chunks:0"), self.asked("chunks")), (0, 0))
        end = self.hold(int(L1 * 0.8), 0)
        asked = wait_for("the request", self.asked)
        self.assertAlmostEqual(asked, L1 * GOAL, delta=1)
        self.assertEqual(self.asked("chunks"), 0)
        self.assertRegex(self.c.run("store").stdout, r"ASKED")
        self.assertIn(
            f'helios_chunks_asked_bytes{{tier="L1",name="chunks:0"}} {asked}',
            self.c.run("metrics", "node-0").stdout,
        )
        self.c.json("conf", "placement.policy=observe")
        wait_for("it to be withdrawn", lambda: self.asked() == 0)
        self.c.json("conf", "placement.policy=on")
        wait_for("the request again", self.asked)
        ended = self.logged("are no longer asked")
        end()
        wait_for("its end", lambda: self.asked() == 0)
        wait_for("it in the log", lambda: self.logged("are no longer asked") == ended + 1)

    def test_chunks_in_host_memory_are_not_asked(self):
        end = self.hold(int(L2 * 0.9), -1)
        self.hold(int(L1 * 0.8), 0)
        wait_for("the request for the device", self.asked)
        self.assertEqual(self.asked("chunks"), 0)
        end()

    def test_a_request_ends_with_its_agent_or_its_controller(self):
        self.hold(int(L1 * 0.8), 0)
        wait_for("the request", self.asked)
        begun, ended = self.logged("processes are asked"), self.logged("are no longer asked")
        self.c.kill("controllerd")
        wait_for("it to be withdrawn", lambda: self.logged("are no longer asked") > ended)
        self.c.up()
        wait_for(
            "the request again", lambda: self.logged("processes are asked") > begun and self.asked()
        )
        self.c.kill("node-0", signal.SIGKILL)
        self.c.up()
        wait_for("the request of the new Agent", lambda: self.tier("chunks:0") and self.asked())


if __name__ == "__main__":
    unittest.main()
