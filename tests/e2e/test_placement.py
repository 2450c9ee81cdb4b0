#!/usr/bin/python3
"""Shards are placed by who reads them, and readers do not notice a move,
whichever daemon dies meanwhile."""
from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support.cluster import BUILD, wait_for  # noqa: E402
from support.store_case import StoreCase  # noqa: E402

os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from helios import _abi  # noqa: E402

QUICK = {
    "HELIOS_PLACEMENT_INTERVAL": "100ms",
    "HELIOS_PLACEMENT_GRACE": "100ms",
    "HELIOS_PLACEMENT_RETRY": "200ms",
    "HELIOS_POLICY_RESIDENCE": "0",
    "HELIOS_PLACEMENT_KEEP_USE": "100ms",
}
MOVES = 200
MOVERS = 4


class Placement(StoreCase):
    def world(self, env=None, supervise=False, up=()):
        # of the command line: it is no reader
        os.environ.update(HELIOS_STORE_SOCKET="", HELIOS_NODE="")
        self.start(up, supervise=supervise, env={**QUICK, **(env or {})})
        self.shards = self.c.json("shard", "ls")["items"]

    def read(self, node, times):
        """Reads all shards in a process of that node, which reports its reads when it ends."""
        client = self.client(node, path="net")
        for shard in client.request_shards("m", -1, 0, 0).shards:
            for _ in range(times):
                bytes(client.map(shard).buffer())
        client.close()

    def placement(self, shard):
        return self.c.json("shard", "show", shard["id"])["placement"]

    def copies(self, shard):
        return {
            (x["tier"], x["node"])
            for x in self.c.json("shard", "show", shard["id"])["copies"]
            if not x["kept"]
        }

    def listed(self, shard):
        return next(s for s in self.c.json("shard", "ls")["items"] if s["id"] == shard["id"])

    def conf(self, *options):
        for option in options:
            self.c.json("conf", option)

    def test_observing_shows_what_would_move_and_moves_nothing(self):
        self.world(env={"HELIOS_PLANE_BACKBONE_RATE": "1Kbit"})
        shard = max(self.shards, key=lambda s: s["sizeBytes"])
        self.read("node-1", 30)
        seen = wait_for(
            "a decision",
            lambda: (p := self.placement(shard))["decision"]["reason"]
            and p["accesses"] == 30
            and p,
        )
        self.assertEqual(seen["decision"]["reason"], "goes to its latest reader")
        self.assertEqual((seen["decision"]["tier"], seen["decision"]["node"]), ("L2", "node-1"))
        self.assertFalse(seen["decision"]["carriedOut"])
        self.assertGreater(seen["decision"]["gainSeconds"], seen["decision"]["costSeconds"])
        self.assertEqual((seen["state"], seen["tier"], seen["accesses"]), ("created", "L3", 30))
        self.assertEqual(
            [(r["node"], round(r["accesses"])) for r in seen["readers"]], [("node-1", 30)]
        )
        # alpha * 30 / 300 + beta * exp(-age / 120), read lately
        self.assertAlmostEqual(seen["heat"], 0.7 * 30 / 300 + 0.3, delta=0.1)
        self.assertEqual(self.copies(shard), {("L3", "")})
        self.assertEqual(self.c.json("shard", "moves")["items"], [])
        self.assertIn(
            "would go to L2 of node-1: goes to its latest reader (accesses 30, needed 1)",
            self.c.run("shard", "show", shard["id"]).stdout,
        )
        # the decision does not depend on it
        self.assertEqual(seen["decision"]["backbonePercent"], -1)
        # the lines of L3 and of the nodes are set to a thousand bits a second:
        # heartbeats alone exceed that
        moves = wait_for(
            "the use of the backbone",
            lambda: (m := self.c.json("shard", "moves"))["backbonePercent"] > 0 and m,
        )
        self.assertGreater(moves["backbonePercent"], 90)
        # doubled by its one move: 30 reads would be enough if the backbone did not double it again
        self.conf("policy.migrate_base=12")
        self.c.json("shard", "move", shard["id"], "--node", "node-0", "--tier", "l2")
        wait_for("it to be active", lambda: self.placement(shard)["state"] == "active")
        self.assertEqual(self.placement(shard)["decision"]["reason"], "")
        self.conf("policy.migrate_base=5")
        decision = wait_for(
            "a decision", lambda: (d := self.placement(shard)["decision"])["reason"] and d
        )
        self.assertEqual(
            (decision["tier"], decision["node"], decision["value"]), ("L2", "node-1", 30)
        )
        raised = 5 * (1 + decision["backbonePercent"] / 100)
        self.assertAlmostEqual(
            decision["limit"], raised * (1 + self.placement(shard)["fluidity"]), delta=0.1
        )
        self.assertRegex(
            self.c.run("shard", "show", shard["id"]).stdout, r"the backbone was \d+ % busy"
        )

    def test_a_shard_goes_to_its_reader_and_leaves_when_it_cools(self):
        self.world(env={"HELIOS_PLACEMENT_POLICY": "on", "HELIOS_POLICY_LOW_PCT": "0"})
        self.read("node-1", 30)
        for shard in self.shards:
            wait_for("a copy at its reader", lambda s=shard: ("L2", "node-1") in self.copies(s))
        shard = self.shards[0]
        warm = wait_for(
            "it to be active", lambda: (p := self.placement(shard))["state"] == "active" and p
        )
        self.assertEqual([x["to"] for x in reversed(warm["changes"])], ["preheat", "active"])
        # accesses that were reported by then
        self.assertIn(warm["changes"][1]["value"], range(2, 31))
        # what a node loads stays in L3
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", "node-1")})
        pinned = self.shards[1]
        self.c.json("shard", "pin", pinned["id"])
        self.conf("policy.window=1s", "policy.tau=1s", "policy.residence=1s")
        wait_for("it to be in L3 only", lambda: self.copies(shard) == {("L3", "")})
        cold = wait_for(
            "the end of its move",
            lambda: (p := self.placement(shard))["state"] == "archived in L3" and p,
        )
        self.assertEqual(
            [x["reason"] for x in reversed(cold["changes"])][-3:],
            ["heat is low", "stays cool", "copy is verified and in force"],
        )
        self.assertIn(("L2", "node-1"), self.copies(pinned))
        self.assertIn("pinned", self.c.refuse("shard", "move", pinned["id"], "--tier", "l3"))
        self.c.json("shard", "unpin", pinned["id"])
        wait_for("the other one to follow", lambda: self.copies(pinned) == {("L3", "")})

    def test_what_nobody_reads_leaves_memory_and_comes_back_when_it_is_read(self):
        archive = tempfile.TemporaryDirectory(prefix="helios-archive-")
        self.addCleanup(archive.cleanup)
        self.world(
            env={
                "HELIOS_PLACEMENT_POLICY": "on",
                "HELIOS_POLICY_LOW_PCT": "0",
                "HELIOS_GC_INTERVAL": "200ms",
                "HELIOS_ARCHIVE_URL": f"dir:{archive.name}/archive",
            }
        )
        shard = self.shards[0]
        wait_for("it to be archived", lambda: ("L4", "") in self.copies(shard))
        self.read("node-1", 30)
        wait_for("a copy at its reader", lambda: ("L2", "node-1") in self.copies(shard))
        self.conf("policy.window=1s", "policy.tau=1s", "policy.archive=1s")
        wait_for(
            "it to be in the archive only",
            lambda: self.placement(shard)["state"] == "expired to L4",
        )
        wait_for("its copy to be no more read", lambda: self.copies(shard) == {("L4", "")})
        wait_for(
            "it to leave the pool",
            lambda: "not in the pool"
            in self.c.run("shard", "show", shard["id"], "--verify").stdout,
        )
        self.assertEqual(self.copies(shard), {("L4", "")})  # showing it has moved nothing
        self.assertEqual([x["tier"] for x in self.listed(shard)["copies"]], ["L4"])
        gone = self.placement(shard)
        self.assertEqual(gone["changes"][0]["reason"], "is not read any more")
        self.assertGreaterEqual(gone["changes"][0]["value"], 1)  # seconds idle, of at least
        self.assertEqual(gone["changes"][0]["limit"], 1)
        self.conf("policy.window=5m", "policy.tau=2m", "policy.archive=1h")
        self.read("node-0", 30)
        back = wait_for(
            "it to be active", lambda: (p := self.placement(shard))["state"] == "active" and p
        )
        self.assertEqual((back["tier"], back["node"]), ("L2", "node-0"))
        self.assertIn("is read again", [x["reason"] for x in back["changes"]])
        self.c.json("model", "verify", "m")

    def test_a_node_that_comes_and_goes_gets_no_shard_until_it_stays(self):
        self.world(
            env={"HELIOS_PLACEMENT_POLICY": "on", "HELIOS_POLICY_LOW_PCT": "0"}, supervise=False
        )

        def incarnations():
            return {
                n["node"]["incarnation"]
                for n in self.c.json("nodes")["items"]
                if n["state"] == "ready"
            }

        for _ in range(2):
            before = incarnations()
            self.c.kill("node-1")
            self.c.up()
            wait_for("the node", lambda: len(incarnations() - before) == 1)
        self.nodes = {n["node"]["name"]: n["node"] for n in self.c.json("nodes")["items"]}
        self.read("node-1", 30)
        shard = self.shards[0]
        wait_for("the reads to be known", lambda: self.placement(shard)["accesses"] == 30)
        self.passes(10)
        self.assertEqual(self.c.json("shard", "moves")["items"], [])
        self.assertEqual(self.copies(shard), {("L3", "")})
        self.conf("policy.flap=0")
        self.read("node-1", 1)
        wait_for("a copy at its reader", lambda: ("L2", "node-1") in self.copies(shard))

    def test_above_its_watermark_l1_gives_up_the_shard_of_least_stability(self):
        self.world(
            env={
                "HELIOS_PLACEMENT_POLICY": "on",
                "HELIOS_POLICY_LOW_PCT": "0",
                "HELIOS_POLICY_MIGRATE_BASE": "1000",
            }
        )
        by_size = sorted(self.shards, key=lambda s: s["sizeBytes"])[-2:]
        often, seldom = by_size
        for shard in by_size:
            self.c.json("shard", "move", shard["id"], "--node", "node-0", "--tier", "l1")
        client = self.client("node-0", path="net")
        listed = {
            f"{s.id[0]:016x}{s.id[1]:016x}": s for s in client.request_shards("m", -1, 0, 0).shards
        }
        for times, shard in ((40, often), (4, seldom)):
            for _ in range(times):
                bytes(client.map(listed[shard["id"]]).buffer())
        client.close()
        for shard in by_size:
            wait_for("both to be active", lambda s=shard: self.placement(s)["state"] == "active")
        self.assertGreater(self.placement(often)["stability"], self.placement(seldom)["stability"])
        l1 = next(
            t
            for s in self.c.json("store", "node-0")["items"]
            for t in s["tiers"]
            if t["tier"] == "L1" and not t["kind"]
        )
        # without that one it is below
        high = 100 * (l1["usedBytes"] - seldom["sizeBytes"] / 2) / l1["quotaBytes"]
        self.conf(f"policy.high_pct={high:.6f}")
        wait_for("the one to leave L1", lambda: ("L1", "node-0") not in self.copies(seldom))
        gone = wait_for(
            "the end of its move",
            lambda: (p := self.placement(seldom))
            and "old copy is gone" in [x["reason"] for x in p["changes"]]
            and p,
        )
        self.assertEqual((gone["tier"], gone["node"]), ("L2", "node-0"))
        self.assertIn(gone["state"], ("stable warm in L2", "active"))
        self.assertIn("L1 is above its high watermark", [x["reason"] for x in gone["changes"]])
        self.assertIn(("L1", "node-0"), self.copies(often))

    def test_options_change_while_the_controller_runs_and_bad_ones_are_refused(self):
        self.world()
        self.conf("policy.alpha=0.9", "placement.policy=off")
        shown = {
            o["name"]: o
            for o in self.c.json("conf", "policy")["items"]
            + self.c.json("conf", "placement")["items"]
        }
        self.assertEqual(
            (shown["policy.alpha"]["value"], shown["policy.alpha"]["origin"]),
            ("0.9", "set at run time"),
        )
        self.assertEqual(shown["placement.policy"]["value"], "off")
        for bad, said in (
            ("policy.window=nan", "policy.window"),
            ("policy.beta=nan", "policy.beta"),
            ("policy.high_pct=101", "1 to 100"),
            ("policy.low_pct=90", "policy.low_pct 90 is not below policy.high_pct 85"),
            ("placement.policy=maybe", "off|observe|on"),
            ("l3.size=1GiB", "can't be changed"),
            ("policy=1", "can't be changed"),
        ):
            self.assertIn(said, self.c.refuse("conf", bad))
        lines = (self.c.state / "log" / "controllerd.log").read_text().splitlines()
        for name in ("policy.window", "policy.beta", "policy.high_pct", "policy.low_pct"):
            self.assertEqual(
                len([x for x in lines if f"option is not changed name={name} " in x]), 1
            )
        self.assertIn(
            "no option 'policy.hihg_pct'; did you mean 'policy.high_pct'",
            self.c.refuse("conf", "policy.hihg_pct=80", code=2),
        )
        self.assertEqual(self.c.json("conf", "policy.low_pct")["items"][0]["value"], "70")

    def test_an_option_that_lacks_an_archive_says_so_when_it_is_set_and_in_the_log(self):
        self.world()
        vain = "placement.warm has no effect: helios-l3d has no archive"
        wait_for(
            "the warning, once L3 is known",
            lambda: vain in self.c.run("conf", "placement.warm=true").stderr,
        )
        wait_for(
            "it in the log", lambda: vain in (self.c.state / "log" / "controllerd.log").read_text()
        )
        self.assertEqual(self.c.run("conf", "placement.warm=false").stderr, "")

    def test_pins_and_uses_outlive_the_controller_and_end_with_their_version(self):
        self.world()
        shard = self.shards[0]
        self.assertTrue(self.c.json("shard", "pin", shard["id"])["changed"])
        self.assertFalse(self.c.json("shard", "pin", shard["id"])["changed"])
        self.assertTrue(self.c.json("model", "pin", "m@1")["changed"])
        self.read("node-1", 30)
        wait_for("the reads", lambda: self.placement(shard)["accesses"] == 30)
        before = self.placement(shard)
        wait_for("its record", lambda: sum(self.use(shard)["slices"]) == 30)
        self.c.kill("controllerd")
        self.c.up()
        again = wait_for(
            "the shard", lambda: self.c.json("shard", "show", shard["id"]).get("placement")
        )
        self.assertEqual((again["pinned"], again["pinnedVersion"]), (True, True))
        self.assertEqual(
            (again["accesses"], again["lastAccessMs"] // 10000),
            (30, before["lastAccessMs"] // 10000),
        )
        self.assertEqual(
            [(r["node"], round(r["accesses"])) for r in again["readers"]], [("node-1", 30)]
        )
        self.assertGreater(again["heat"], 0.7 * 30 / 300)
        self.c.json("model", "unpin", "m@1")
        wait_for("its own pin only", lambda: not self.placement(shard)["pinnedVersion"])
        self.assertTrue(self.placement(shard)["pinned"])
        self.assertFalse(self.placement(self.shards[1])["pinned"])
        self.assertEqual(self.records("pin/"), [f"pin/shard/{shard['id']}"])
        self.c.json("model", "rm", "m")
        wait_for("its pin to go", lambda: not self.records("pin/"))
        wait_for("the uses of its shards to go", lambda: not self.records("use/"))

    def test_what_was_answered_is_in_force_before_the_next_pass(self):
        self.world(env={"HELIOS_PLACEMENT_INTERVAL": "1h", "HELIOS_PLACEMENT_GRACE": "0"})
        shard = self.shards[0]
        there = ("--node", "node-0", "--tier", "l2")
        for kind, name in (("shard", shard["id"]), ("model", "m@1")):
            self.c.json(kind, "pin", name)
            self.assertIn(
                f"helios {kind} unpin", self.c.refuse("shard", "move", shard["id"], *there)
            )
            self.c.json(kind, "unpin", name)
            self.assertFalse(self.placement(shard)["pinned"])
        self.c.json("node", "drain", "node-0")
        self.assertIn(
            "node-0 takes no new containers or shards: it is drained",
            self.c.refuse("shard", "move", shard["id"], *there),
        )
        self.c.json("node", "undrain", "node-0")
        self.c.json("shard", "move", shard["id"], *there)
        self.assertIn(("L2", "node-0"), self.copies(shard))

    def test_a_move_that_is_cancelled_after_the_switch_goes_back(self):
        self.world(env={"HELIOS_PLACEMENT_GRACE": "30s"})
        shard = self.shards[0]
        self.c.json("shard", "move", shard["id"], "--node", "node-0", "--tier", "l2")
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", "node-0")})
        said = []
        mover = threading.Thread(
            target=lambda: said.append(
                self.c.run("shard", "move", shard["id"], "--node", "node-1", "--tier", "l2")
            )
        )
        mover.start()
        move = wait_for(
            "the switch",
            lambda: [m for m in self.c.json("shard", "moves")["items"] if m["phase"] == "cleaning"],
        )[0]
        self.assertEqual(
            (move["shard"], move["fromNode"], move["node"], move["reason"]),
            (shard["id"], "node-0", "node-1", "ordered"),
        )
        # the old copy is there, and not offered
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", "node-1")})
        self.assertIn(
            "is already being moved", self.c.refuse("shard", "move", shard["id"], "--tier", "l3")
        )
        # each would rely on the other
        self.assertIn(
            "is being moved; wait", self.c.refuse("shard", "drop", shard["id"], "--from", "l3")
        )
        self.conf("placement.grace=0")  # of the way back
        self.c.json("shard", "moves", "--cancel", shard["id"])
        mover.join()
        self.assertEqual(said[0].returncode, 1)
        self.assertIn("it was cancelled", said[0].stderr)
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", "node-0")})
        self.verify_whole()
        self.assertIn("no move in flight", self.c.refuse("shard", "moves", "--cancel", shard["id"]))

    def test_a_move_that_waited_says_that_its_goal_is_drained_now(self):
        self.world(env={"HELIOS_PLACEMENT_MOVES": "1"})
        first, second = self.shards[:2]
        there = ("--node", "node-1", "--tier", "l2")
        self.c.kill("node-1", signal.SIGSTOP)
        try:
            in_flight = self.c.start("shard", "move", first["id"], *there)
            wait_for(
                "one in flight",
                lambda: any(
                    m["phase"] == "copying" for m in self.c.json("shard", "moves")["items"]
                ),
            )
            waits = self.c.start("shard", "move", second["id"], *there)
            wait_for(
                "one that waits",
                lambda: any(
                    m["phase"] == "waiting" for m in self.c.json("shard", "moves")["items"]
                ),
            )
            self.c.json("node", "drain", "node-1")
        finally:
            self.c.kill("node-1", signal.SIGCONT)
        in_flight.communicate()
        self.assertIn("drained", waits.communicate()[1])
        self.assertIn(
            "drained",
            [
                m["error"]
                for m in self.c.json("shard", "moves")["items"]
                if m["shard"] == second["id"]
            ][0],
        )
        self.assertEqual(self.copies(second), {("L3", "")})

    def test_the_policys_moves_keep_to_their_rate(self):
        self.world(
            env={
                "HELIOS_PLACEMENT_POLICY": "on",
                "HELIOS_POLICY_LOW_PCT": "0",
                "HELIOS_PLACEMENT_RATE": "1Kbit",
            }
        )
        self.read("node-1", 30)
        # the first may exceed what is saved up; the next waits, for minutes,
        # until its bytes are paid back
        wait_for(
            "one move",
            lambda: any(m["phase"] == "ended" for m in self.c.json("shard", "moves")["items"]),
        )
        self.passes(10)
        self.assertEqual(len(self.c.json("shard", "moves")["items"]), 1)
        self.conf("placement.rate=0")
        for shard in self.shards:
            wait_for("the others to follow", lambda s=shard: ("L2", "node-1") in self.copies(s))

    def test_the_policys_moves_rest_while_a_save_commits_and_ordered_ones_do_not(self):
        self.world(env={"HELIOS_PLACEMENT_POLICY": "on", "HELIOS_POLICY_LOW_PCT": "0"})
        rank = self.client("node-0", path="net")
        version = rank.version_open("m", "", 0, 7, 0, 2, _abi.LAYOUT_UNCHECKED)
        rank.version_commit("m", version, 0, None)
        wait_for("the rest", lambda: self.c.json("shard", "moves")["rest"] == "a save commits")
        self.assertIn(
            "moves of the policy are paused: a save commits", self.c.run("shard", "moves").stdout
        )
        self.read("node-1", 30)
        self.passes(10)
        self.assertEqual(self.c.json("shard", "moves")["items"], [])
        ordered, other = self.shards[:2]
        self.c.json("shard", "move", ordered["id"], "--node", "node-0", "--tier", "l2")
        self.assertEqual(self.copies(other), {("L3", "")})
        rank.version_abandon("m", version, 1, "it was a test")
        wait_for("the policy's move", lambda: ("L2", "node-1") in self.copies(other))
        self.assertEqual(self.c.json("shard", "moves")["rest"], "")

    # ---- moves while others read, and while daemons die

    def places(self):
        return [
            ("--node", "node-0", "--tier", "l2"),
            ("--node", "node-1", "--tier", "l2"),
            ("--tier", "l3"),
            ("--node", "node-0", "--tier", "l1"),
            ("--node", "node-1", "--tier", "l1"),
        ]

    def move_some(self, count, seed, done, stop=None):
        """Moves random shards to random places; `done` gets the command's output."""
        dice = random.Random(seed)
        for _ in range(count):
            if stop is not None and stop.is_set():
                return
            said = self.c.run(
                "shard", "move", dice.choice(self.shards)["id"], *dice.choice(self.places())
            )
            done.append(said)

    def start_movers(self, count, stop=None):
        done = []
        movers = [
            threading.Thread(target=self.move_some, args=(count, i, done, stop))
            for i in range(MOVERS)
        ]
        for m in movers:
            m.start()
        return movers, done

    def records(self, prefix):
        """Their keys in the Controller's store."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.c.state}/controller/controller.db?mode=ro", uri=True)
        ) as db:
            return [
                row[0] for row in db.execute("SELECT key FROM kv WHERE key LIKE ?", (prefix + "%",))
            ]

    def use(self, shard):
        """The recorded use in the store."""
        with contextlib.closing(
            sqlite3.connect(f"file:{self.c.state}/controller/controller.db?mode=ro", uri=True)
        ) as db:
            found = db.execute(
                "SELECT value FROM kv WHERE key = ?", (f"use/{shard['id']}",)
            ).fetchone()
            # behind its checksum
            return json.loads(bytes(found[0]).split(b" ", 1)[1]) if found else {"slices": []}

    def verify_whole(self):
        """Every offered copy is good, and nothing is in flight or left over."""
        wait_for(
            "the moves to end",
            lambda: all(m["phase"] == "ended" for m in self.c.json("shard", "moves")["items"]),
        )
        wait_for("the journal of moves to be empty", lambda: not self.records("move/"))
        self.c.json("model", "verify", "m")

        def same():
            told = self.c.json("store")["items"]
            have = {
                (s["node"], t["tier"]): t["shards"]
                for s in told
                for t in s["tiers"]
                if s["node"] and not t.get("kind")
            }
            known = {}
            for shard in self.shards:
                for place in self.copies(shard):
                    if place[1]:
                        known[(place[1], place[0])] = known.get((place[1], place[0]), 0) + 1
            return all(have[k] == known.get(k, 0) for k in have)

        wait_for("the stores to hold what the Controller knows", same)

    def test_who_reads_during_many_moves_sees_no_wrong_byte_and_no_failure(self):
        self.world()
        readers, stop, failed, reads = [], threading.Event(), [], [0]
        clients = [
            (self.client("node-0", path="net")),
            (self.client("node-1", path="net")),
            self.client(path="net"),
        ]

        def read(client):
            listed = client.request_shards("m", -1, 0, 0).shards
            good = {s.id: bytes(client.map(s).buffer()) for s in listed}
            while not stop.is_set():
                for s in listed:
                    try:
                        if bytes(client.map(s).buffer()) != good[s.id]:
                            failed.append(f"wrong bytes of {s.id}")
                    except OSError as e:
                        failed.append(str(e))
                    reads[0] += 1

        for client in clients:
            readers.append(threading.Thread(target=read, args=(client,)))
            readers[-1].start()
        movers, done = self.start_movers(MOVES // MOVERS)
        for t in movers:
            t.join()
        stop.set()
        for t in readers:
            t.join()
        self.assertEqual(failed, [])
        self.assertGreater(reads[0], MOVES)
        moved = sum(d.returncode == 0 for d in done)
        self.assertGreater(moved, MOVES // 4)
        for d in done:
            if d.returncode != 0:
                self.assertRegex(
                    d.stderr,
                    "is already there|is already being moved|being dropped|no room|is full|fit",
                    d.stderr,
                )
        self.verify_whole()

    def test_kills_in_the_middle_of_moves_lose_nothing_and_leave_nothing(self):
        self.world(supervise=True)
        dice, stop = random.Random(19), threading.Event()
        movers, done = self.start_movers(1 << 20, stop)
        for daemon in ("controllerd", "l3d", "node-0", "controllerd", "node-1", "controllerd"):
            time.sleep(dice.uniform(0.3, 1.0))
            self.c.kill(daemon)
            wait_for(f"{daemon} to be back", lambda: self.c.run("nodes").returncode == 0)
        stop.set()
        for t in movers:
            t.join()
        wait_for(
            "the nodes", lambda: all(n["state"] == "ready" for n in self.c.json("nodes")["items"])
        )
        self.assertGreater(sum(d.returncode == 0 for d in done), 0)
        self.verify_whole()
        self.assertEqual(
            {s["id"] for s in self.c.json("shard", "ls")["items"]}, {s["id"] for s in self.shards}
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
