"""The tiers as a user sees them: helios store, shard show, shard copy, shard drop."""
import pathlib
import unittest

from support import checkpoints
from support.cluster import cluster


class Tiers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = cluster(
            nodes=2,
            slots=1,
            size="64MiB",
            up=["--l2-size", "32MiB", "--devices", "emu:8MiB,emu:4MiB"],
        )
        cls.c = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        checkpoints.llama(cls.c.dir / "toy")
        cls.c.json("model", "import", cls.c.dir / "toy", "--name", "toy", "--tp", 2, "--pp", 1)
        cls.shards = cls.c.json("shard", "ls")["items"]

    def copies(self, shard):
        shown = self.c.json("shard", "show", shard)
        return {(x["tier"], x["node"], x["device"]) for x in shown["copies"] if not x["kept"]}

    def test_store_lists_every_tier_with_its_quota(self):
        seen = {
            (n["node"], t["tier"], t["name"]): t
            for n in self.c.json("store")["items"]
            for t in n["tiers"]
        }
        for node in ("node-0", "node-1"):
            self.assertEqual(seen[node, "L2", "host"]["quotaBytes"], 32 << 20)
            self.assertEqual(seen[node, "L1", "emu:0"]["quotaBytes"], 8 << 20)
            self.assertEqual(seen[node, "L1", "emu:1"]["quotaBytes"], 4 << 20)
        only = self.c.json("store", "node-1")["items"]
        self.assertEqual([n["node"] for n in only], ["node-1"])
        self.assertIn("node-9", self.c.refuse("store", "node-9"))
        self.assertIn("emu:1", self.c.run("store").stdout)

    def test_a_copy_is_made_shown_and_dropped(self):
        s = self.shards[0]
        made = self.c.json("shard", "copy", s["id"], "--to", "node-0")
        self.assertEqual((made["tier"], made["node"], made["path"]), ("L2", "node-0", "mapped"))
        self.assertEqual(made["crc32"], s["crc32"])
        made = self.c.json("shard", "copy", s["id"], "--to", "node-0:l1:emu:1")
        self.assertEqual((made["tier"], made["device"]), ("L1", "emu:1"))
        self.assertEqual(
            self.copies(s["id"]), {("L3", "", ""), ("L2", "node-0", ""), ("L1", "node-0", "emu:1")}
        )
        shown = self.c.json("shard", "show", s["id"])
        routes = {(r["node"], r["target"], r["source"]): r for r in shown["routes"]}
        self.assertEqual(routes["node-1", "L2", "L2 of node-0"]["path"], "mapped")
        self.assertEqual(routes["node-0", "L1", "L3"]["path"], "local-copy")
        self.assertIn("one host", routes["node-0", "L1", "L3"]["text"])
        self.c.json("shard", "drop", s["id"], "--from", "node-0:l1:emu:1")
        self.c.json("shard", "drop", s["id"], "--from", "node-0")
        self.assertEqual(self.copies(s["id"]), {("L3", "", "")})

    def test_a_copy_that_did_not_use_the_migration_network_says_why(self):
        short = self.shards[3]["id"][:8]
        self.c.json("shard", "copy", short, "--to", "node-0")
        done = self.c.run("shard", "copy", short, "--to", "node-1", "--migrate")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(
            done.stdout,
            r"^L2 of node-1: .* by mapped .*\nthe migration network was not used: .* host.*\n$",
        )
        for node in ("node-0", "node-1"):
            self.assertEqual(self.c.run("shard", "drop", short, "--from", node).stdout, "dropped\n")
        self.assertEqual(self.copies(short), {("L3", "", "")})

    def test_columns_are_called_what_json_calls_them(self):
        header = self.c.run("store").stdout.splitlines()[0].split()
        tier = self.c.json("store")["items"][0]["tiers"][0]
        self.assertIn("QUARANTINED", header)
        self.assertIn("quarantinedBytes", tier)
        # but not whether a slot is taken
        self.assertIn("HOST CPU", self.c.run("nodes").stdout.splitlines()[0])
        info = dict(line.split(None, 1) for line in self.c.run("info").stdout.splitlines())
        self.assertEqual((info["nodes"], info["models"], info["jobs"].isdigit()), ("2", "1", True))

    def test_a_key_names_a_shard(self):
        s = self.shards[1]
        key = f"{s['model']}@{s['version']}/pp{s['pp']}/tp{s['tp']}/{s['part']}"
        self.assertEqual(self.c.json("shard", "show", key)["id"], s["id"])
        self.assertIn("toy@1/pp9", self.c.refuse("shard", "show", "toy@1/pp9/tp0/embedding"))

    def test_the_last_copy_stays_and_a_shard_that_only_an_l2_has_is_shown_and_read(self):
        s = self.shards[2]
        self.assertIn("last readable copy", self.c.refuse("shard", "drop", s["id"], "--from", "l3"))
        self.c.json("shard", "copy", s["id"], "--to", "node-1:l2")
        self.c.json("shard", "drop", s["id"], "--from", "l3")
        self.assertIn(
            "last readable copy", self.c.refuse("shard", "drop", s["id"], "--from", "node-1")
        )
        self.assertEqual(self.copies(s["id"]), {("L2", "node-1", "")})
        self.assertIn("not in the pool", self.c.run("shard", "show", s["id"]).stdout)
        found = self.c.json("model", "verify", "toy")
        self.assertEqual((found["ok"], found["archived"], found["onNodes"]), (True, 0, 1))
        self.assertIn("on nodes    1 of them", self.c.run("model", "verify", "toy").stdout)
        # without data ports only processes of that node can read it
        self.assertIn(
            "only in the L2 of node node-1",
            self.c.refuse("shard", "get", s["id"], "--out", self.c.dir / "no"),
        )
        self.assertEqual(self.c.json("shard", "copy", s["id"], "--to", "l3")["tier"], "L3")
        self.assertEqual(self.copies(s["id"]), {("L3", "", ""), ("L2", "node-1", "")})

    def test_wrong_places_are_refused_with_one_sentence(self):
        s = self.shards[3]
        self.assertIn("node-7", self.c.refuse("shard", "copy", s["id"], "--to", "node-7"))
        self.assertIn("emu:9", self.c.refuse("shard", "copy", s["id"], "--to", "node-0:l1:emu:9"))
        self.assertIn("--to", self.c.refuse("shard", "copy", s["id"], code=2))
        self.assertIn(
            "8Mbit",
            self.c.refuse(
                "shard", "move", s["id"], "--node", "node-0", "--tier", "l2", "--rate", 1
            ),
        )
        self.assertIn("names no shard", self.c.refuse("shard", "moves", "--cancel", "", code=2))
        self.assertIn(
            "l1 and l2", self.c.refuse("shard", "copy", s["id"], "--to", "node-0:l5", code=2)
        )
        self.assertIn(
            "exclude",
            self.c.refuse(
                "shard", "copy", s["id"], "--to", "node-0", "--write", "--migrate", code=2
            ),
        )

    def test_a_rank_is_told_its_nodes_store(self):
        job = self.c.submit(
            "jobName: teller\nparallelism: {pipeline_parallel_size: 1, tensor_parallel_size: 1,"
            " data_parallel_size: 1}\ncommand: [/bin/sh, -c, 'test -S $HELIOS_STORE_SOCKET && echo"
            " it is $HELIOS_STORE_SOCKET']\n"
        )
        self.c.wait_job(job, "succeeded")
        self.assertRegex(self.c.log(job), r"it is /dev/shm/.*node-[01]\.l2\.sock")

    def test_nodes_show_their_tiers(self):
        text = self.c.run("nodes").stdout
        self.assertIn("/32.0 MiB", text)
        self.assertIn("/12.0 MiB", text)


class Down(unittest.TestCase):
    def test_down_leaves_no_l2_behind_and_keep_does(self):
        with cluster(nodes=1, slots=1, size="64MiB", up=["--l2-size", "8MiB"]) as c:
            l2 = pathlib.Path(c.info["pool"].removesuffix(".pool") + "-node-0.l2")
            self.assertTrue(l2.exists())
            c.down("--keep")
            self.assertTrue(l2.exists())
            c.up()
            c.down()
            self.assertFalse(l2.exists())


class WithoutMemory(unittest.TestCase):
    """A cluster as a plain `helios up` starts it: its nodes have neither L1 nor L2."""

    def test_a_move_to_memory_that_a_node_lacks_ends_at_once_and_leaves_the_shard_free(self):
        with cluster(nodes=1, slots=1, size="64MiB") as c:
            checkpoints.llama(c.dir / "toy")
            c.json("model", "import", c.dir / "toy", "--name", "toy", "--tp", 1, "--pp", 1)
            shard = c.json("shard", "ls")["items"][0]["id"]
            for tier, flag in (("l1", "--devices"), ("l2", "--l2-size")):
                # the command waits for the end of the move, which takes no time of its own
                said = c.refuse("shard", "move", shard, "--node", "node-0", "--tier", tier)
                why = f"node node-0 has no {tier.upper()}; start its agent with {flag}"
                self.assertIn("the move was undone: " + why, said)
            ended = c.json("shard", "moves")["items"]
            self.assertEqual([m["phase"] for m in ended], ["ended", "ended"])
            self.assertIn("has no L2", ended[0]["error"])


if __name__ == "__main__":
    unittest.main()
