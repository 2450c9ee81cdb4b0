#!/usr/bin/python3
"""HybridPS in a job: ranks find the node's table and L3 by their environment, their chunks are among the node's tiers,
what the host has no room for lies in L3, and a rank that is killed leaves nothing anywhere."""
import os
import signal
import unittest

from support.cluster import cluster, wait_for

CHUNK = 1 << 20
RANK = """
import os, sys, time
from hybridps import _abi
pool = _abi.Pool("emu:2MiB", "lru", "copy", 1 << 20, 3 << 20, None, 0)
ids = [pool.add(f"t{i}", _abi.PARAM, 1 << 20) for i in range(10)]
pool.layout()
for place in (_abi.HOST, _abi.DEVICE):
    for i in ids:
        group = _abi.Group([i], place, True)
        pool.access(group)
        pool.release(group)
print("pid", os.getpid(), "spilled", pool.stats()["spilled"], flush=True)
time.sleep(120)
"""


class Platform(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(nodes=1, slots=1, size="64MiB", up=["--l2-size", "8MiB", "--devices", "emu:4MiB"])
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        (cls.c.dir / "rank.py").write_text(RANK)

    def tiers(self):
        return {(n["node"], t["name"]): t for n in self.c.json("store") for t in n["tiers"]}

    def start(self):
        """A running rank: its pid, and what it has spilled."""
        job = self.c.submit("jobName: chunks\nrestarts: 0\n"
                            "parallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1, data_parallel_size: 1}\n"
                            f"command: [/usr/bin/python3, {self.c.dir}/rank.py]\n")
        words = wait_for("the rank", lambda: (t := self.c.log(job)).endswith("\n") and t.split(), 60)
        self.assertEqual(words[0], "pid", words)
        return job, int(words[1]), int(words[3])

    def test_chunks_are_among_the_tiers_until_the_rank_is_killed(self):
        empty = self.tiers()
        self.assertNotIn(("node-0", "chunks"), empty)
        job, pid, spilled = self.start()
        self.assertGreater(spilled, 0)
        tiers = self.tiers()
        device, host = tiers["node-0", "chunks:0"], tiers["node-0", "chunks"]
        self.assertEqual((device["tier"], host["tier"]), ("L1", "L2"))
        self.assertEqual(device["usedBytes"], 2 * CHUNK)
        self.assertEqual(host["usedBytes"], 3 * CHUNK)
        self.assertEqual(host["processes"], [{"pid": pid, "usedBytes": 3 * CHUNK}])
        self.assertEqual(host["kind"], "chunks")
        self.assertEqual(spilled % CHUNK, 0)
        lying = tiers["", "pool"]["usedBytes"] - empty["", "pool"]["usedBytes"]
        self.assertGreaterEqual(lying, spilled)
        self.assertLess(lying, spilled + 10 * (128 << 10))
        self.assertEqual(tiers["", "pool"]["shards"], empty["", "pool"]["shards"])  # nobody finds them

        self.assertRegex(self.c.run("store").stdout, rf"pid {pid} +- +3\.0 MiB")
        wait_for("the heartbeat", lambda: "2.0 MiB+3.0 MiB" in self.c.run("nodes").stdout, 10)
        metrics = self.c.run("metrics", "node-0").stdout
        self.assertIn('helios_tier_bytes{tier="L2",name="chunks",state="used"} 3145728', metrics)
        self.assertIn('helios_tier_bytes{tier="L1",name="chunks:0",state="used"} 2097152', metrics)
        self.assertIn(f'helios_chunk_bytes{{tier="L2",name="chunks",pid="{pid}"}} 3145728', metrics)

        os.kill(pid, signal.SIGKILL)
        self.c.wait_job(job, "failed")
        after = wait_for("what it had to be given back",
                         lambda: ("node-0", "chunks") not in (t := self.tiers()) and t, 10)
        self.assertEqual(after["", "pool"]["usedBytes"], empty["", "pool"]["usedBytes"])
        self.assertNotIn("helios_chunk_bytes{", self.c.run("metrics", "node-0").stdout)

    def test_the_agent_and_l3_may_be_restarted_under_a_rank(self):
        job, pid, spilled = self.start()
        self.c.kill("node-0")
        self.c.kill("l3d")
        self.c.up()
        tiers = wait_for("the rank's chunks again", lambda: ("node-0", "chunks") in (t := self.tiers()) and t, 20)
        self.assertEqual(tiers["node-0", "chunks"]["processes"][0]["pid"], pid)
        self.assertGreaterEqual(tiers["", "pool"]["usedBytes"], spilled)
        self.c.run("cancel", job)
        self.c.wait_job(job, "cancelled")
        wait_for("the pool to be empty", lambda: self.tiers()["", "pool"]["usedBytes"] == 0, 15)


if __name__ == "__main__":
    unittest.main()
