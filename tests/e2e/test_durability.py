#!/usr/bin/python3
"""A save is answered once its shards are in as many failure domains as versions.durability says,
and they stay so."""
from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True

from support.cluster import BUILD, wait_for  # noqa: E402
from support.store_case import StoreCase  # noqa: E402

os.environ.setdefault("HELIOS_LIBRARY", str(BUILD / "lib" / "libhelios.so.0"))
from helios import _abi, errors  # noqa: E402

QUICK = {
    "HELIOS_GC_INTERVAL": "200ms",
    "HELIOS_NODE_LOST": "1s",
    "HELIOS_HEARTBEAT": "200ms",
    "HELIOS_NODES_LOST_AFTER": "2s",
    "HELIOS_COPY_TIMEOUT": "3s",
}
# for both nodes: a failure domain other than the pool's
ELSEWHERE = {"HELIOS_AGENT_HOST_ID": "elsewhere"}
BYTES = 3 << 20


class Durability(StoreCase):
    def world(self, durability, env=None, supervise=False):
        os.environ.update(HELIOS_STORE_SOCKET="", HELIOS_NODE="")
        self.start(
            supervise=supervise,
            env={**QUICK, "HELIOS_VERSIONS_DURABILITY": durability, **(env or {})},
        )

    def archive(self, mode):
        directory = tempfile.TemporaryDirectory(prefix="helios-archive-")
        self.addCleanup(directory.cleanup)
        self.files = pathlib.Path(directory.name) / "archive"
        return {"HELIOS_ARCHIVE_URL": f"dir:{self.files}", "HELIOS_ARCHIVE_MODE": mode}

    def put(self, rank, world=1, step=7):
        """A version with one part of this rank that was put and not committed; its client,
        number and shard."""
        client = self.client()
        number = client.version_open("m", "", 0, step, rank, world, _abi.LAYOUT_UNCHECKED)
        memory = ctypes.create_string_buffer(os.urandom(BYTES), BYTES)
        shard = client.version_put(
            "m",
            number,
            0,
            0,
            f"part-{rank}",
            [_abi.TensorRef("x", "U8", (BYTES,), ctypes.addressof(memory))],
        )
        return client, number, f"{shard.id[0]:016x}{shard.id[1]:016x}"

    def copies(self, shard):
        return {
            (x["tier"], x["node"])
            for x in self.c.json("shard", "show", shard)["copies"]
            if not x["kept"]
        }

    def version(self, number):
        return next(
            v for v in self.c.json("model", "show", "m")["versions"] if v["version"] == number
        )

    def newest(self):
        return self.c.json("model", "show", "m")["latest"]

    @contextlib.contextmanager
    def stopped(self, *daemons):
        for daemon in daemons:
            self.c.kill(daemon, signal.SIGSTOP)
        try:
            yield
        finally:
            for daemon in daemons:
                self.c.kill(daemon, signal.SIGCONT)

    def commit_beside(self, client, number):
        said = []

        def commit():
            try:
                said.append(client.version_commit("m", number, 0, None))
            except errors.HeliosError as e:
                said.append(e)

        thread = threading.Thread(target=commit)
        thread.start()
        self.addCleanup(thread.join)
        return thread, said

    def test_with_two_another_host_has_it_when_the_save_is_answered(self):
        self.world("two", env=ELSEWHERE)
        client, number, shard = self.put(0)
        self.assertTrue(client.version_commit("m", number, 0, None))
        tiers = self.copies(shard)
        self.assertIn(("L3", ""), tiers)
        holder = next(node for tier, node in tiers if tier == "L2")
        shown = self.version(number)
        self.assertEqual(
            (shown["durability"], shown["lackingShards"], shown["lacking"]), ("two", 0, "")
        )
        self.assertEqual(
            {tier for s in self.c.json("shard", "ls")["items"] for tier, _ in self.copies(s["id"])},
            {"L2", "L3"},
        )
        self.assertIn(
            "too few failure domains", self.c.refuse("shard", "drop", shard, "--from", holder)
        )
        self.assertIn(
            "too few failure domains", self.c.refuse("shard", "move", shard, "--tier", "l3")
        )
        other = next(n for n in self.nodes if n != holder)
        # it is equally safe there
        self.c.json("shard", "move", shard, "--node", other, "--tier", "l2")
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", other)})
        self.c.json("model", "verify", f"m@{number}")

    def test_it_is_changed_while_the_controller_runs(self):
        self.world("pool", env=ELSEWHERE)
        client, number, shard = self.put(0)
        self.assertTrue(client.version_commit("m", number, 0, None))
        self.assertEqual(self.copies(shard), {("L3", "")})
        self.assertIn("L3 has no archive", self.c.refuse("conf", "versions.durability=archive"))
        self.assertIn(
            "must be pool, two or archive", self.c.refuse("conf", "versions.durability=three")
        )
        self.assertEqual(self.version(number)["durability"], "pool")
        self.c.run("conf", "versions.durability=two")
        wait_for("a copy on another host", lambda: len(self.copies(shard)) == 2)
        wait_for("nothing to be lacking", lambda: not self.version(number)["lackingShards"])
        client, number, shard = self.put(0, step=8)
        self.assertTrue(client.version_commit("m", number, 0, None))
        self.assertEqual(len(self.copies(shard)), 2)
        self.assertIn("set at run time", self.c.run("conf", "versions.durability").stdout)

    def test_a_lost_holder_is_told_and_replaced(self):
        self.world("two", env=ELSEWHERE)
        client, number, shard = self.put(0)
        self.assertTrue(client.version_commit("m", number, 0, None))
        holder = next(node for tier, node in self.copies(shard) if tier == "L2")
        other = next(n for n in self.nodes if n != holder)
        self.c.kill(holder)
        lacking = wait_for(
            "it to be told", lambda: (v := self.version(number))["lackingShards"] and v
        )
        self.assertIn(
            "is in L3, and it has to be on another host or in the archive too", lacking["lacking"]
        )
        self.assertIn("in too few failure domains", self.c.run("model", "show", "m").stdout)
        wait_for(
            "the metric",
            lambda: 'helios_durability_lacking_shards 0'
            not in self.c.run("metrics", "controller").stdout,
        )
        wait_for("a copy elsewhere", lambda: ("L2", other) in self.copies(shard))
        wait_for("nothing to be lacking", lambda: not self.version(number)["lackingShards"])
        wait_for(
            "the metric",
            lambda: 'helios_durability_lacking_shards 0'
            in self.c.run("metrics", "controller").stdout,
        )

    def test_a_pool_that_has_lost_everything_gets_it_back(self):
        self.world("two", env=ELSEWHERE)
        client, number, shard = self.put(0)
        self.assertTrue(client.version_commit("m", number, 0, None))
        client.close()
        self.c.kill("l3d")
        pathlib.Path(self.c.info["pool"]).unlink()
        self.c.up()
        wait_for(
            "it to be in the pool again",
            lambda: self.c.json("info")["pool"]["shards"]
            == len(self.c.json("shard", "ls")["items"]),
        )
        wait_for("nothing to be lacking", lambda: not self.version(number)["lackingShards"])
        self.assertIn(("L3", ""), self.copies(shard))
        self.c.json("model", "verify", f"m@{number}")

    def test_a_node_that_comes_back_in_time_is_not_replaced(self):
        self.world("two", env={**ELSEWHERE, "HELIOS_NODES_LOST_AFTER": "60s"})
        client, number, shard = self.put(0)
        self.assertTrue(client.version_commit("m", number, 0, None))
        holder = next(node for tier, node in self.copies(shard) if tier == "L2")
        self.c.kill(holder)
        wait_for("it to be told", lambda: self.version(number)["lackingShards"])
        self.sweeps(5)
        self.assertEqual(self.copies(shard), {("L3", "")})
        self.c.up()
        wait_for("its copy to count again", lambda: not self.version(number)["lackingShards"])
        self.assertEqual(self.copies(shard), {("L3", ""), ("L2", holder)})

    def test_with_archive_all_of_it_is_archived_when_the_save_is_answered(self):
        self.world("archive", env=self.archive("manual"))
        client, number, shard = self.put(0)
        self.assertFalse(list(self.files.rglob(f"{shard}*")))
        self.assertTrue(client.version_commit("m", number, 0, None))
        self.assertEqual([f.stat().st_size > BYTES for f in self.files.rglob(f"{shard}*")], [True])
        self.assertEqual(self.version(number)["lackingShards"], 0)
        for s in self.c.json("shard", "ls")["items"]:  # also of the import
            self.assertTrue(list(self.files.rglob(f"{s['id']}*")), s["part"])
        self.assertIn(
            "too few failure domains", self.c.refuse("shard", "drop", shard, "--from", "l4")
        )

    def test_a_save_is_hidden_while_its_copy_is_made_and_over_a_restart_of_the_controller(self):
        self.world("two", env=ELSEWHERE, supervise=True)
        client, number, shard = self.put(0)
        with self.stopped(*self.nodes):
            thread, said = self.commit_beside(client, number)
            self.sweeps(10)
            self.assertEqual((said, self.newest(), self.version(number)["state"]), ([], 1, "open"))
            self.c.kill("controllerd")
            wait_for("the Controller to be back", lambda: self.c.run("nodes").returncode == 0)
            self.sweeps(5)
            self.assertEqual((said, self.newest(), self.version(number)["state"]), ([], 1, "open"))
        thread.join()
        self.assertEqual((said, self.newest()), ([True], number))
        self.assertTrue([node for tier, node in self.copies(shard) if tier == "L2"])

    def test_a_save_without_another_host_fails_in_time_and_says_what_is_missing(self):
        self.world("two", env={**ELSEWHERE, "HELIOS_VERSIONS_DURABILITY_TIMEOUT": "2s"})
        client, number, shard = self.put(0)
        with self.stopped(*self.nodes):
            with self.assertRaises(errors.HeliosError) as failed:
                client.version_commit("m", number, 0, None)
            self.assertRegex(
                str(failed.exception),
                rf"{shard}.*is in L3, and it has to be on another host or in the archive too",
            )
            self.assertEqual((self.newest(), self.version(number)["state"]), (1, "open"))
        wait_for(
            "the nodes", lambda: all(n["state"] == "ready" for n in self.c.json("nodes")["items"])
        )
        self.assertTrue(client.version_commit("m", number, 0, None))  # the same commit again

    def test_what_can_not_be_safe_enough_here_is_refused_at_once(self):
        os.environ.update(HELIOS_STORE_SOCKET="", HELIOS_NODE="")
        self.start()  # one host, no archive
        self.c.run("down", "--keep")
        self.c.env["HELIOS_VERSIONS_DURABILITY"] = "two"
        self.c.up()
        wait_for(
            "the nodes", lambda: all(n["state"] == "ready" for n in self.c.json("nodes")["items"])
        )
        with self.assertRaises(errors.HeliosError) as failed:
            self.put(0)
        self.assertIn("there is one failure domain", str(failed.exception))
        self.assertIn("versions.durability=pool", str(failed.exception))
        self.assertEqual([v["version"] for v in self.c.json("model", "show", "m")["versions"]], [1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
