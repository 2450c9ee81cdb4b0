"""Models outlive memory: write-behind, a pool that a reboot deletes,
a pool smaller than the models."""
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "chaos")]
import poolfile  # noqa: E402
from apart import Calls  # noqa: E402
from support import checkpoints  # noqa: E402
from support.cluster import cluster, wait_for  # noqa: E402


MANIFEST = "6d616e6966657374"  # prefix of the ids of manifests


def files(archive):
    """Of shards."""
    return sorted(p for p in archive.glob("??/*.safetensors") if not p.name.startswith(MANIFEST))


def manifests(archive):
    return sorted(archive.glob(f"??/{MANIFEST}*.safetensors"))


def pulled(c, model, tp=2, pp=2):
    out = {}
    for p in range(pp):
        for t in range(tp):
            path = c.dir / f"pulled-{p}-{t}"
            done = c.run("pull", "--model", model, "--pp", p, "--tp", t, "--out", path)
            assert done.returncode == 0, done.stderr
            out[p, t] = path.read_bytes()
            path.unlink()
    return out


class Archive(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="helios-e2e-archive-")
        self.archive = pathlib.Path(self.tmp.name) / "archive"
        self.env = {
            "HELIOS_ARCHIVE_URL": f"dir:{self.archive}",
            "HELIOS_GC_INTERVAL": "200ms",
            "HELIOS_L3_QUARANTINE": "100ms",
        }

    def tearDown(self):
        self.tmp.cleanup()

    def load(self, c, name, seed, hidden=64):
        source, _ = checkpoints.llama(c.dir / f"checkpoint-{name}", hidden=hidden, seed=seed)
        return c.json("model", "import", source, "--name", name, "--tp", 2, "--pp", 2)

    def wait_archived(self, c, count):
        """Waits for so many shards, and the manifest of each version."""
        wait_for(f"{count} shards in the archive", lambda: len(files(self.archive)) == count)
        versions = sum(
            len(c.json("model", "show", m["name"])["versions"])
            for m in c.json("model", "ls")["items"]
        )
        wait_for(
            f"{versions} manifests in the archive", lambda: len(manifests(self.archive)) == versions
        )

    def test_store_tells_the_limits_of_the_pool_and_the_archive(self):
        with cluster(
            env=dict(
                self.env, HELIOS_ARCHIVE_QUOTA="96MiB", HELIOS_TIER_HIGH="80", HELIOS_TIER_LOW="50"
            )
        ) as c:
            self.load(c, "m", 1)
            shards = c.json("shard", "ls", "--model", "m")["items"]
            self.wait_archived(c, len(shards))
            total = sum(s["sizeBytes"] for s in shards) + sum(
                p.stat().st_size for p in manifests(self.archive)
            )

            def rows():
                return {
                    t["tier"]: t
                    for n in c.json("store")["items"]
                    if n["node"] == ""
                    for t in n["tiers"]
                }

            wait_for(
                "the archive to have ended its puts", lambda: rows()["L4"]["writingBytes"] == 0
            )
            seen = rows()
            self.assertEqual(
                (seen["L3"]["quotaBytes"], seen["L3"]["highBytes"], seen["L3"]["lowBytes"]),
                (128 << 20, (128 << 20) * 80 // 100, 64 << 20),
            )
            self.assertEqual(
                (seen["L3"]["writingBytes"], seen["L3"]["shards"], seen["L3"]["pressure"]),
                (0, len(shards), "low"),
            )
            self.assertEqual(
                (
                    seen["L4"]["quotaBytes"],
                    seen["L4"]["usedBytes"],
                    seen["L4"]["shards"],
                    seen["L4"]["backing"],
                ),
                (96 << 20, total, len(shards), "dir"),
            )
            text = next(line for line in c.run("store").stdout.splitlines() if " L4 " in line)
            self.assertIn("96.0 MiB", text)
            self.assertRegex(text, r"- +-")  # no watermarks: nothing is evicted from it

    def test_after_a_reboot_every_archived_model_is_served(self):
        with cluster(env=self.env) as c:
            self.load(c, "kept", 1)
            shards = c.json("shard", "ls", "--model", "kept")["items"]
            self.wait_archived(c, len(shards))  # without a request
            before = pulled(c, "kept")
            pool = pathlib.Path(c.info["pool"])
            c.json("down", "--keep")
            pool.unlink()  # as a reboot does
            c.up()
            self.assertEqual(pulled(c, "kept"), before)
            # archived shards are never lost, and removed models leave nothing behind
            again = c.json("shard", "ls", "--model", "kept")["items"]
            self.assertEqual({s["state"] for s in again}, {"sealed"})
            c.json("model", "rm", "kept")
            self.wait_archived(c, 0)

    def test_what_is_taken_out_of_the_archive_is_archived_again(self):
        with cluster(env=self.env) as c:
            self.load(c, "m", 1)
            shards = c.json("shard", "ls", "--model", "m")["items"]
            self.wait_archived(c, len(shards))
            before = pulled(c, "m")
            for entry in self.archive.iterdir():  # the owner's record, too
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            self.wait_archived(c, len(shards))
            wait_for(
                "the archive to have its owner again", (self.archive / "helios-cluster.json").exists
            )
            self.assertGreaterEqual(
                self.metric(c, 'helios_fault_total{cause="missing",path="archive"}'), len(shards)
            )
            pool = pathlib.Path(c.info["pool"])
            c.json("down", "--keep")
            pool.unlink()  # as a reboot does
            c.up()
            self.assertEqual(pulled(c, "m"), before)

    def test_an_archived_file_of_other_bytes_is_no_copy_for_which_the_pool_s_is_dropped(self):
        with cluster(env=dict(self.env, HELIOS_ARCHIVE_MODE="manual")) as c:
            self.load(c, "m", 1)
            shard = c.json("shard", "ls", "--model", "m")["items"][0]["id"]
            c.json("shard", "copy", shard, "--to", "l4")
            c.json("down", "--keep")
            path = self.archive / shard[:2] / f"{shard}.safetensors"
            raw = path.read_bytes()
            # the new file is as an earlier release has stored it: without a checksum beside it
            path.unlink()
            self.assertIn(b"helios.part", raw)
            path.write_bytes(raw.replace(b"helios.part", b"helios.port", 1))
            c.up()
            self.assertIn("L3 keeps its copy", c.refuse("shard", "drop", shard, "--from", "l3"))
            self.assertIn("L3", {x["tier"] for x in c.json("shard", "show", shard)["copies"]})

    def test_a_pool_that_starts_empty_is_warmed_before_anybody_reads(self):
        self.env["HELIOS_PLACEMENT_WARM"] = "true"
        with cluster(env=self.env) as c:
            for i, name in enumerate(("one", "two")):
                self.load(c, name, i)
            ids = {s["id"] for s in c.json("shard", "ls")["items"]}
            self.wait_archived(c, len(ids))
            before = {name: pulled(c, name) for name in ("one", "two")}
            pool = pathlib.Path(c.info["pool"])
            c.json("down", "--keep")
            pool.unlink()  # as a reboot does
            c.up()
            wait_for(
                "the pool to have all shards",
                lambda: ids <= poolfile.sealed(pathlib.Path(c.info["pool"])).keys(),
            )
            wait_for(
                "the loads to be counted",
                lambda: self.metric(c, "helios_pool_warmed_total", "controller") == len(ids),
            )
            moves = [
                m for m in c.json("shard", "moves")["items"] if m["reason"] == "pool is warmed"
            ]
            self.assertEqual(
                {(m["fromTier"], m["tier"], m["keepSource"], m["error"]) for m in moves},
                {("L4", "L3", True, "")},
            )
            self.assertLessEqual({m["shard"] for m in moves}, ids)
            self.assertEqual(len(files(self.archive)), len(ids))
            self.assertEqual({name: pulled(c, name) for name in ("one", "two")}, before)

    def test_verify_reads_the_archived_copy_too(self):
        with cluster(env=self.env) as c:
            self.load(c, "m", 1)
            shards = c.json("shard", "ls", "--model", "m")["items"]
            self.wait_archived(c, len(shards))
            one = shards[0]["id"]
            verified = wait_for(
                "both copies to be known",
                lambda: [
                    v
                    for v in [c.json("shard", "show", one, "--verify")["verify"]]
                    if len(v["copies"]) == 2
                ],
            )[0]
            self.assertTrue(verified["ok"])
            self.assertEqual({x["tier"] for x in verified["copies"]}, {"L3", "L4"})
            path = next(f for f in files(self.archive) if one in f.name)
            raw = bytearray(path.read_bytes())
            raw[-1] ^= 1
            path.write_bytes(raw)
            shown = c.run("shard", "show", one, "--verify")
            self.assertNotEqual(shown.returncode, 0)
            self.assertIn("L4 (as a whole)", shown.stderr)
            self.assertIn("verified    L4: bad", shown.stdout)
            self.assertIn("verified    L3: ok, every chunk", shown.stdout)

    def test_a_pool_smaller_than_the_models_serves_them_all(self):
        with cluster(env=self.env, size="2MiB") as c:
            names = [f"model-{i}" for i in range(4)]
            count = 0
            for i, name in enumerate(names):
                self.load(c, name, i, hidden=192)
                count += len(c.json("shard", "ls", "--model", name)["items"])
            self.wait_archived(c, count)
            capacity = c.json("info")["pool"]["capacityBytes"]
            self.assertGreater(sum(f.stat().st_size for f in files(self.archive)), capacity)
            first = {name: pulled(c, name) for name in names}
            for name in reversed(names):
                self.assertEqual(pulled(c, name), first[name])
            self.assertEqual(len({v[0, 0] for v in first.values()}), len(names))
            for name in names:
                states = {s["state"] for s in c.json("shard", "ls", "--model", name)["items"]}
                self.assertEqual(states, {"sealed"})

    def metric(self, c, name, daemon="l3"):
        return sum(
            float(x)
            for x in re.findall(
                rf"^{re.escape(name)} (\S+)$", c.run("metrics", daemon).stdout, re.M
            )
        )

    def pooled(self, c, model):
        """How many of its shards are in the pool."""
        shards = c.json("shard", "ls", "--model", model)["items"]
        return sum(
            "L3" in {x["tier"] for x in c.json("shard", "show", s["id"])["copies"]} for s in shards
        )

    def test_the_controller_says_which_version_leaves_a_full_pool(self):
        # three models of one size; the pool has room for two and a quarter.
        # L3 itself does not see reads through the mapping
        size = checkpoints.llama(self.archive.parent / "probe", hidden=384, ffn=768)[0]
        bytes_ = sum(f.stat().st_size for f in size.glob("*.safetensors"))
        pool = f"{(bytes_ * 9 // 4 >> 20) + 1}MiB"
        env = dict(
            self.env,
            HELIOS_PLACEMENT_INTERVAL="100ms",
            HELIOS_TIER_LOW="70",
            HELIOS_ARCHIVE_HOLD="0",
        )
        with cluster(env=env, size=pool) as c:
            for i, name in enumerate(("used", "unused")):
                source, _ = checkpoints.llama(c.dir / name, hidden=384, ffn=768, seed=i)
                c.json("model", "import", source, "--name", name, "--tp", 1, "--pp", 2)
            shards = {
                m: len(c.json("shard", "ls", "--model", m)["items"]) for m in ("used", "unused")
            }
            self.wait_archived(c, sum(shards.values()))
            pulled(c, "used", tp=1)  # and reported when the process ended
            said = self.metric(c, "helios_pool_orders_total")
            wait_for(
                "the order after it", lambda: self.metric(c, "helios_pool_orders_total") >= said + 3
            )
            source, _ = checkpoints.llama(c.dir / "third", hidden=384, ffn=768, seed=3)
            c.json("model", "import", source, "--name", "third", "--tp", 1, "--pp", 2)
            self.assertGreater(self.metric(c, 'helios_pool_evicted_total{by="order"}'), 0)
            self.assertEqual(self.metric(c, 'helios_pool_evicted_total{by="use"}'), 0)
            wait_for("the sweep to miss them", lambda: self.pooled(c, "unused") < shards["unused"])
            self.assertEqual(self.pooled(c, "used"), shards["used"])
            self.without_controller(c)

    def without_controller(self, c):
        """Once its last order has expired, the shards least recently requested
        from L3 are evicted first."""
        ids = {
            m: {s["id"] for s in c.json("shard", "ls", "--model", m)["items"]}
            for m in ("used", "unused", "third")
        }
        others, pool, asked = ids["unused"] | ids["third"], pathlib.Path(c.info["pool"]), {}
        l3 = Calls(c.info["l3"], "L3")
        self.addCleanup(l3.close)

        def evicted(by):
            return int(
                re.search(
                    rf'^helios_pool_evicted_total{{by="{by}"}} (\d+)$', l3("metrics")["text"], re.M
                )[1]
            )

        def load():
            """True once something was evicted by use, and nothing by the order."""
            before, by_order, by_use = (
                poolfile.sealed(pool).keys() & others,
                evicted("order"),
                evicted("use"),
            )
            shard = min(others - before, key=lambda x: asked.get(x, 0))
            l3("touch", ids=sorted(ids["used"]))
            l3("locate", ids=[shard])
            after = poolfile.sealed(pool).keys()
            if evicted("order") == by_order and evicted("use") > by_use:
                self.assertLessEqual(ids["used"], after)
                self.assertLessEqual(
                    max(asked.get(x, 0) for x in before - after),
                    min(asked.get(x, 0) for x in before & after),
                )
                return True
            asked[shard] = max(asked.values(), default=0) + 1
            return False

        c.kill("controllerd")
        wait_for("the order to run out", load)

    def test_orphans_in_the_archive_are_swept(self):
        with cluster(env=self.env) as c:
            self.load(c, "kept", 1)
            n = len(c.json("shard", "ls", "--model", "kept")["items"])
            self.wait_archived(c, n)
            orphan = files(self.archive)[0]
            name = "0123456789abcdef0123456789abcdef.safetensors"
            c.json("down", "--keep")
            (self.archive / "01").mkdir(exist_ok=True)
            (self.archive / "01" / name).write_bytes(orphan.read_bytes())
            c.up()
            wait_for("the orphan to go", lambda: not (self.archive / "01" / name).exists())
            self.assertEqual(len(files(self.archive)), n)
            trashed = list((self.archive / "trash").iterdir())
            self.assertEqual([f.name.split("-")[1] for f in trashed], [name])
            self.assertEqual(trashed[0].read_bytes(), orphan.read_bytes())


if __name__ == "__main__":
    unittest.main()
