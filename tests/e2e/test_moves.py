#!/usr/bin/python3
"""Shards move between daemons that each believe they are on a host of their own: over ZeroMQ, over
the backbone and through the archive. The version that runs for hours is `./run chaos moves`."""
from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

CHAOS = pathlib.Path(__file__).resolve().parent.parent / "chaos"
sys.path[:0] = [str(CHAOS), str(CHAOS.parent), str(CHAOS.parent.parent / "python")]
sys.dont_write_bytecode = True

from apart import BUILD, Apart, Calls, Refused  # noqa: E402
from support.cluster import wait_for  # noqa: E402

MOVES, KILLS = 200, 14


def nice_threads(pid, nice):
    """How many threads of the process have that nice value."""
    stats = [
        t.read_text().rpartition(")")[2].split()
        for t in pathlib.Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return sum(int(fields[16]) == nice for fields in stats)


class Moves(unittest.TestCase):
    def check_priorities(self, world):
        """Copying threads (2), the receiver of migrations (1) and libzmq's threads there (its
        reaper and agent.migrate_io_threads) have a lower priority; in L3 those that fetch and
        archive (2 each); in the Controller none."""
        self.assertEqual(nice_threads(world.daemons["node-0"].process.pid, 10), 5)
        self.assertEqual(nice_threads(world.daemons["l3d"].process.pid, 10), 4)
        self.assertEqual(nice_threads(world.daemons["controller"].process.pid, 10), 0)

    def check_rates(self, calls, shard):
        """The pool's reader, ZeroMQ and the backbone keep to the rate:
        all but the last piece is paid for before that is sent."""
        rate, size = 2_000_000, int(shard["sizeBytes"])
        least = (size - (1 << 20)) / rate - 0.02
        self.assertGreater(least, 0.2)
        for node, tier in (("node-0", "L2"), ("node-1", "L2"), ("", "L3")):
            if tier == "L3":
                calls("dropCopy", id=shard["id"], node="", tier="L3")
            move = calls("moveShard", id=shard["id"], node=node, tier=tier, bytesPerS=rate)["move"]
            self.assertGreater(move["seconds"], least, (node, tier))
        for params, status in (
            ({"node": "node-0", "tier": "L2", "bytesPerS": 999_999}, "EINVAL"),
            ({"node": "", "tier": "L4", "bytesPerS": rate}, "EUNSUPPORTED"),
        ):
            with self.assertRaises(Refused) as refused:
                calls("moveShard", id=shard["id"], **params)
            self.assertEqual(refused.exception.status, status, str(refused.exception))

    def test_readers_see_no_wrong_byte_and_no_failure_when_daemons_are_killed_in_every_phase(self):
        done = subprocess.run(
            [
                sys.executable,
                CHAOS / "moves.py",
                str(MOVES),
                str(KILLS),
                "--minutes",
                "5",
                "--seed",
                "19",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])
        met = set()
        for phase in (
            "decided",
            "copying",
            "switching",
            "cleaning",
            "reverting",
            "undoing",
            "ending",
        ):
            kills = re.search(rf"^{phase} +(\d+) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
            met |= {phase} if any(map(int, kills.groups())) else set()
        # which ones depends on the machine's speed; a long run meets all
        self.assertGreaterEqual(len(met), 4, met)
        count = dict(re.findall(r"^([a-zA-Z0-9 ,]+?) +(\d+)$", done.stdout, re.MULTILINE))
        self.assertGreaterEqual(int(count["moves"]), MOVES)
        self.assertGreaterEqual(int(count["kills"]), KILLS)
        self.assertGreater(int(count["reads"]), MOVES)
        self.assertEqual((count["wrong reads"], count["failed reads"]), ("0", "0"))

    def test_a_copy_that_runs_is_broken_off_when_its_move_is_cancelled(self):
        world = Apart()
        self.addCleanup(world.close, False)
        world.daemons["controller"].args["--node-lost"] = "60s"  # the stopped node is not given up
        world.start()
        calls, mover = Calls(world.address), Calls(world.address)
        self.addCleanup(calls.close)
        self.addCleanup(mover.close)
        shard, said = world.shards[0]["id"], []
        calls("moveShard", id=shard, node="node-0", tier="L2")
        placement = calls("shardPlacement", id=shard)["placement"]
        self.assertEqual(placement["moves"], 1)
        self.assertGreater(placement["fluidity"], 0)
        self.check_priorities(world)
        self.check_rates(calls, max(world.shards, key=lambda s: int(s["sizeBytes"])))

        def move():
            try:
                mover("moveShard", id=shard, node="node-1", tier="L2")
            except Refused as error:
                said.append(str(error))

        def phase():
            return next(m["phase"] for m in calls("listMoves")["moves"] if m["shard"] == shard)

        node = world.daemons["node-1"].process.pid
        os.kill(node, signal.SIGSTOP)
        thread = threading.Thread(target=move)
        try:
            thread.start()
            wait_for("the copy", lambda: phase() == "copying")
            calls("cancelMove", id=shard)
            # the target's node has not answered
            wait_for("the end of the copy", lambda: phase() == "undoing", 8)
        finally:
            os.kill(node, signal.SIGCONT)
        thread.join()
        self.assertIn("it was cancelled", said[0])
        self.assertRegex(world.daemons["node-0"].log.read_text(), "copy is stopped id=" + shard)
        copies = {(c["tier"], c["node"]) for c in calls("getShard", id=shard)["shard"]["copies"]}
        self.assertEqual(copies, {("L3", ""), ("L2", "node-0")})
        world.settle(calls)

    def test_a_shard_that_only_a_node_holds_is_read_while_others_start_again(self):
        world = Apart()
        self.addCleanup(world.close, False)
        world.start()
        calls = Calls(world.address)
        self.addCleanup(calls.close)
        shard = world.shards[1]["id"]
        calls("moveShard", id=shard, node="node-0", tier="L2")
        calls("dropCopy", id=shard, node="", tier="L3")
        os.environ.update(
            HELIOS_LIBRARY=str(BUILD / "lib" / "libhelios.so.0"),
            HELIOS_NODE="",
            HELIOS_STORE_SOCKET="",
            HELIOS_CONFIG="",
        )
        from helios import _abi  # the library is known by now

        # far from all copies, and beside L3
        readers = [_abi.Client(world.address, path=path) for path in ("net", "auto")]
        views = [
            (
                c,
                next(
                    s
                    for s in c.request_shards("m", -1, 0, 0).shards
                    if f"{s.id[0]:016x}{s.id[1]:016x}" == shard
                ),
            )
            for c in readers
        ]
        good = [bytes(c.map(s).buffer()) for c, s in views]
        for away in (["controller"], ["l3d"], ["l3d", "controller"]):
            with self.subTest(away=away):
                for name in away:
                    world.daemons[name].kill()
                with concurrent.futures.ThreadPoolExecutor() as pool:
                    reads = [
                        pool.submit(lambda v: bytes(v[0].map(v[1]).buffer()), view)
                        for view in views
                    ]
                    time.sleep(1)  # meanwhile they find only node-0
                    for name in away:
                        world.daemons[name].start()
                    self.assertEqual([r.result() for r in reads], good)
        world.settle(calls)
        self.check_lost(world, calls, shard, views)
        for reader in readers:
            reader.close()

    def check_lost(self, world, calls, shard, views):
        """The only holder has lost it, and the Controller knows: a reader is told so,
        and does not wait."""
        world.daemons["node-0"].kill()
        pathlib.Path(world.daemons["node-0"].args["--l2-pool"]).unlink()
        world.daemons["node-0"].start()
        wait_for("the shard to be gone", lambda: calls("getShard", id=shard)["shard"].get("gone"))
        for client, view in views:
            with self.assertRaisesRegex(
                Exception, "is lost: none of the pools, archives and nodes"
            ):
                client.map(view).buffer()


if __name__ == "__main__":
    unittest.main(verbosity=2)
