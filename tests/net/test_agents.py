"""Agents with L2 stores on two hosts: copies and migrations, each over its own plane, and the
effect of faults on them."""
import re
import threading
import time
import unittest

import hosts
from cluster import Cluster
from hosts import SECOND, SLACK, wait_for

MIB = 1 << 20
SLOW = "tbf rate 100mbit burst 64k latency 100ms"


class Agents(unittest.TestCase):
    def setUp(self):
        self.lab = self.enterContext(hosts.Lab())
        self.a, self.b = self.lab.a, self.lab.b
        self.world = Cluster(self.lab)
        self.world.import_model()
        self.agents = {host.name: self.world.start_agent(host) for host in self.lab.hosts}
        shards = self.world.helios(self.a, "shard", "ls", "--model", "m")["items"]
        self.shard = max(shards, key=lambda s: s["sizeBytes"])
        self.id, self.size = self.shard["id"], self.shard["sizeBytes"]

    def copy(self, target, *how, check=True):
        """Runs `helios shard copy`; returns the bytes that crossed each plane to its target."""
        host = self.a if target.startswith("l3") else {"A": self.a, "B": self.b}[target]
        before = {p: host.received(p) for p in hosts.PLANES}
        done = self.world.helios(
            self.a, "shard", "copy", self.id, "--to", target, *how, check=check
        )
        moved = {p: host.received(p) - before[p] for p in hosts.PLANES}
        return done, moved

    def holders(self):
        shown = self.world.helios(self.a, "shard", "show", self.id)
        return sorted(c["node"] for c in shown.get("copies", []) if c.get("tier") == "L2")

    def test_each_kind_of_copy_takes_its_own_plane(self):
        done, moved = self.copy("B")  # L3 on A to L2 on B: a read over the backbone
        self.assertGreater(moved["backbone"], self.size, done)
        self.assertLess(moved["migration"], 65536)
        self.assertLess(moved["management"], self.size // 4)
        self.world.helios(self.a, "shard", "drop", self.id, "--from", "B")
        self.copy("A")
        done, moved = self.copy("B", "--migrate")  # L2 on A to L2 on B
        self.assertGreater(moved["migration"], self.size, done)
        self.assertLess(moved["backbone"], 65536)
        self.assertEqual(self.holders(), ["A", "B"])
        self.world.helios(self.a, "shard", "drop", self.id, "--from", "A")
        self.world.helios(self.a, "shard", "drop", self.id, "--from", "l3")
        # Back from L2 on B to L3 on A: a write over the backbone.
        done, moved = self.copy("l3")
        self.assertGreater(moved["backbone"], self.size, done)
        self.assertLess(moved["migration"], 65536)

    def migrate_in_background(self):
        if (why := hosts.lacks(SLOW)) is not None:
            self.skipTest(why)
        self.copy("A")
        self.a.slow("migration", SLOW)
        start, result = self.b.received("migration"), {}
        thread = threading.Thread(
            target=lambda: result.update(
                done=self.copy("B", "--migrate", check=False), at=time.monotonic()
            )
        )
        thread.start()
        wait_for(
            "the migration to be under way", lambda: self.b.received("migration") - start > 2 * MIB
        )
        return thread, result

    def test_a_target_killed_in_a_migration_is_noticed_and_takes_it_later(self):
        thread, result = self.migrate_in_background()
        at = self.agents["B"].kill()
        thread.join(30)
        said = result["done"][0]
        self.assertIsInstance(said, str, said)
        print(
            f"noticed path=zmq-agent fault=kill seconds={result['at'] - at:.2f}"
            f" bar={SECOND}: {said.strip()}"
        )
        self.assertLess(result["at"] - at, SECOND + 2 * SLACK)
        self.a.slow("migration", "")
        self.agents["B"] = self.world.start_agent(self.b)
        wait_for(
            "the Controller to know it again",
            lambda: isinstance(self.copy("B", "--migrate", check=False)[0], dict),
        )
        self.assertEqual(self.holders(), ["A", "B"])

    def test_a_migration_network_that_goes_away_is_gone_round(self):
        thread, result = self.migrate_in_background()
        self.b.link("migration", "down")
        thread.join(60)
        done, moved = result["done"]
        # The copy fell back.
        self.assertEqual((done["path"], done["reason"]), ("ucx-tagged", "migration-net-down"))
        self.assertGreater(moved["backbone"], self.size)
        self.b.link("migration", "up")
        self.a.slow("migration", "")
        self.assertEqual(self.holders(), ["A", "B"])

    def test_a_migration_that_broke_off_goes_on_with_what_is_missing(self):
        thread, result = self.migrate_in_background()
        self.b.link("migration", "down")
        wait_for("the sender to notice", lambda: "trying the backbone" in self.agents["A"].said())
        self.b.link("migration", "up")
        self.a.slow("migration", "")
        thread.join(60)
        done, moved = result["done"]
        self.assertEqual(
            (done["path"], done["reason"]), ("zmq", "migration-net"), self.agents["A"].said()
        )
        self.assertLess(moved["backbone"], 65536)
        said = re.search(
            r"migration was continued .*had=(\d+) of=(\d+) sent=(\d+) status=OK",
            self.agents["A"].said(),
        )
        self.assertIsNotNone(said, self.agents["A"].said())
        had, total, sent = map(int, said.groups())
        self.assertGreaterEqual(had, 1)
        self.assertEqual(had + sent, total)
        self.assertEqual(self.holders(), ["A", "B"])
        print(
            "FAULT path=zmq-migrate fault=link-down result=resumed"
            f" had={had} sent={sent} of={total}"
        )


if __name__ == "__main__":
    hosts.main()
