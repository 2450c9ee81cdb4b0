#!/usr/bin/python3
"""What a gang will read is on its nodes when its containers start,
and is fetched only as long as it is wanted."""
from __future__ import annotations

import os
import pathlib
import re
import signal
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support.cluster import wait_for  # noqa: E402
from support.store_case import StoreCase  # noqa: E402

QUICK = {
    "HELIOS_PLACEMENT_POLICY": "on",
    "HELIOS_PLACEMENT_PREFETCH_WAIT": "30s",
    "HELIOS_PLACEMENT_INTERVAL": "100ms",
    "HELIOS_PLACEMENT_GRACE": "100ms",
    "HELIOS_PLACEMENT_RETRY": "200ms",
    "HELIOS_NODE_LOST": "1s",
    "HELIOS_HEARTBEAT": "200ms",
    # on the pool's host its shards are near anyway
    "HELIOS_AGENT_HOST_ID": "elsewhere",
}

JOB = """
jobName: one
model: {name: m}
parallelism: {tensor_parallel_size: 1}
resources: {ranks_per_slot: 1}
command: [/bin/sh, -c, 'while [ ! -e %s ]; do sleep 0.05; done']
stopGrace: 500ms
nodeLostAfter: %s
onNodeLost: restart
"""


class Prefetch(StoreCase):
    def world(self, env=None):
        os.environ.update(HELIOS_STORE_SOCKET="", HELIOS_NODE="")
        self.start(env={**QUICK, **(env or {})})
        self.shards = self.c.json("shard", "ls")["items"]
        self.bytes = sum(s["sizeBytes"] for s in self.shards)

    def submit(self, lost_after="2s"):
        return self.c.submit(JOB % (self.c.dir / "stop", lost_after))

    def told(self, job, attempt):
        """Percent of its bytes that were near when all containers of the attempt ran."""
        event = wait_for(
            "the word of what was fetched",
            lambda: next(
                (
                    e
                    for e in self.c.job(job)["events"]
                    if e["kind"] == "prefetched" and e["attempt"] == attempt
                ),
                None,
            ),
        )
        return float(re.search(r"\(([\d.]+)%\)", event["text"]).group(1))

    def at(self, node):
        """Bytes of the model in the node's L2."""
        shown = self.c.json("shard", "ls")["items"]
        return sum(
            s["sizeBytes"]
            for s in shown
            if any((x["tier"], x["node"]) == ("L2", node) for x in s["copies"])
        )

    def moves(self):
        return [m for m in self.c.json("shard", "moves")["items"] if m["reason"] == "prefetch"]

    def node_of(self, job):
        return self.c.job(job)["plan"]["containers"][0]["node"]

    def test_a_gang_and_its_restart_on_another_node_find_what_they_read(self):
        self.world()
        self.assertEqual([self.at(n) for n in self.nodes], [0, 0])
        job = self.submit()
        self.c.wait_job(job, "running")
        first = self.node_of(job)
        self.assertGreaterEqual(self.told(job, 1), 95)
        self.assertEqual(self.at(first), self.bytes)
        other = next(n for n in self.nodes if n != first)
        self.assertEqual(self.at(other), 0)  # nothing was fetched in vain
        self.assertEqual({m["error"] for m in self.moves()}, {""})
        self.assertIn("fetched ahead", self.c.run("describe", job).stdout)
        self.c.kill(first)
        wait_for(
            "the second attempt",
            lambda: (d := self.c.job(job))["attempt"] == 2 and d["state"] == "running",
        )
        self.assertEqual(self.node_of(job), other)
        self.assertGreaterEqual(self.told(job, 2), 95)
        self.assertEqual(self.at(other), self.bytes)

    def test_a_spare_slot_gets_what_the_ranks_of_a_silent_server_read(self):
        self.world()
        job = self.c.submit(
            JOB % (self.c.dir / "stop", "5m") + "recovery: {mode: replace}\nspareSlots: 1\n"
        )
        self.c.wait_job(job, "running")
        first, spare = (c["node"] for c in self.c.job(job)["plan"]["containers"])
        self.assertGreaterEqual(self.told(job, 1), 95)
        self.assertEqual(self.at(spare), 0)  # not before it can be of use
        self.c.kill(first)
        wait_for("the shards on the spare's node", lambda: self.at(spare) == self.bytes)
        self.assertEqual((self.c.job(job)["attempt"], self.c.job(job)["state"]), (1, "running"))

    def test_moves_of_a_job_that_is_cancelled_are_cancelled(self):
        self.world(
            {"HELIOS_PLACEMENT_MOVES": "1", "HELIOS_COPY_TIMEOUT": "3s", "HELIOS_NODE_LOST": "60s"}
        )
        for node in self.nodes:
            self.c.kill(node, signal.SIGSTOP)
        try:
            job = self.submit(lost_after="2m")
            wait_for(
                "moves to wait", lambda: sum(m["phase"] == "waiting" for m in self.moves()) > 1
            )
            self.c.json("cancel", job)
            wait_for(
                "those that wait to be cancelled",
                lambda: not any(m["phase"] == "waiting" for m in self.moves()),
            )
            self.assertIn(
                "the move was undone: it was cancelled", {m["error"] for m in self.moves()}
            )
        finally:
            for node in self.nodes:
                self.c.kill(node, signal.SIGCONT)
        wait_for("the last one to end", lambda: all(m["phase"] == "ended" for m in self.moves()))
        self.passes(10)  # nothing is ordered again
        self.assertEqual({m["error"] == "" for m in self.moves()}, {False})
        wait_for("nothing to be left", lambda: [self.at(n) for n in self.nodes] == [0, 0])

    def test_what_was_fetched_and_never_read_leaves_with_its_job(self):
        self.world({"HELIOS_POLICY_RESIDENCE": "0"})
        job = self.submit()
        self.c.wait_job(job, "running")
        node = self.node_of(job)
        self.assertGreaterEqual(self.told(job, 1), 95)
        client = self.client(node, path="net")  # as a rank would
        read = max(client.request_shards("m", -1, 0, 0).shards, key=lambda s: s.size)
        bytes(client.map(read).buffer())
        client.close()
        wait_for(
            "the read to be told",
            lambda: sum(s["accesses"] for s in self.c.json("shard", "ls")["items"]) == 1,
        )
        self.c.json("cancel", job)
        wait_for("all but what was read to leave", lambda: self.at(node) == read.size)
        wait_for(
            "the moves to end",
            lambda: all(m["phase"] == "ended" for m in self.c.json("shard", "moves")["items"]),
        )
        self.assertIn(
            "prefetched in vain", {m["reason"] for m in self.c.json("shard", "moves")["items"]}
        )
        self.assertEqual(self.at(node), read.size)
        self.c.json("model", "verify", "m")

    def test_observing_says_what_would_travel_and_nothing_does(self):
        self.world({"HELIOS_PLACEMENT_POLICY": "observe"})
        job = self.submit()
        self.c.wait_job(job, "running")
        self.assertEqual((self.moves(), [self.at(n) for n in self.nodes]), ([], [0, 0]))
        log = (self.c.state / "log" / "controllerd.log").read_text()
        self.assertRegex(
            log, rf"gang would be prefetched job={job} attempt=1 bytes={self.bytes} local=0 "
        )

    def test_containers_wait_no_longer_than_they_are_to(self):
        self.world({"HELIOS_PLACEMENT_RATE": "1Kbit", "HELIOS_PLACEMENT_PREFETCH_WAIT": "2s"})
        begun = time.monotonic()
        job = self.submit()
        self.c.wait_job(job, "running", seconds=20)
        self.assertGreaterEqual(time.monotonic() - begun, 1.9)
        self.assertLess(self.told(job, 1), 95)  # the first one only


if __name__ == "__main__":
    unittest.main(verbosity=2)
