"""A pool and an archive belong to one cluster: a Controller with another or an old catalogue
removes nothing from them."""
import json
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import checkpoints  # noqa: E402
from support.cluster import BUILD, cluster, wait_for  # noqa: E402

CLAIM_AT, CLAIM_SIZE = 88, 40  # in a pool's superblock: docs/formats.md, src/mem/pool/layout.h
SWEEPS = 4  # so many by the wrong Controller's own log


class Claim(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="helios-e2e-claim-")
        self.archive = pathlib.Path(self.tmp.name) / "archive"
        self.env = {
            "HELIOS_ARCHIVE_URL": f"dir:{self.archive}",
            "HELIOS_GC_INTERVAL": "200ms",
            "HELIOS_GC_GRACE": "200ms",
            "HELIOS_L3_QUARANTINE": "100ms",
            "HELIOS_LOG_LEVEL": "debug",
        }

    def tearDown(self):
        self.tmp.cleanup()

    def files(self):
        return sorted(p.name for p in self.archive.glob("??/*.safetensors"))

    def trash(self):
        return sorted(p.name for p in self.archive.glob("trash/*.safetensors"))

    def load(self, c, name, seed=1):
        source, _ = checkpoints.llama(c.dir / f"checkpoint-{name}", hidden=64, seed=seed)
        c.json("model", "import", source, "--name", name, "--tp", 2, "--pp", 2)
        shards = c.json("shard", "ls", "--model", name)["items"]
        wait_for(
            "all shards to be archived",
            lambda: {f"{s['id']}.safetensors" for s in shards} <= set(self.files()),
        )
        models = len(c.json("model", "ls")["items"])
        wait_for(
            "their manifests to be archived",
            lambda: sum(f.startswith("6d616e6966657374") for f in self.files()) == models,
        )
        return shards

    def stream(self, c, name):
        path = c.dir / "pulled"
        done = c.run("pull", "--model", name, "--pp", 0, "--tp", 1, "--out", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path.read_bytes()

    def in_pool(self, c):
        return c.json("info")["pool"]["shards"]

    def wait_sweeps(self, log, begun=0):
        wait_for(
            f"{SWEEPS} sweeps in {log}",
            lambda: len(re.findall("sweep ended", log.read_text()[begun:])) >= SWEEPS,
        )

    def restart_controller(self, c, change):
        """Down, `change` the Controller's files, up: pool and archive stay unchanged."""
        c.json("down", "--keep")
        state = c.state / "controller"
        change(state)
        log = c.state / "log" / "controllerd.log"
        begun = len(log.read_text()) if log.exists() else 0
        up = c.run(*c.up_args)
        self.assertEqual(up.returncode, 0, up.stderr)
        return log, begun, up.stderr

    def assert_refused(self, c, words):
        info = c.json("info")
        self.assertEqual(info["claim"], "refused")
        self.assertIn(words, info["l3State"])
        self.assertIn("helios recover", info["l3State"])
        shown = c.run("info").stdout
        self.assertIn(words, shown)
        self.assertIn(info["cluster"], shown)
        source, _ = checkpoints.llama(c.dir / "checkpoint-more", hidden=64, seed=9)
        self.assertIn(
            words, c.refuse("model", "import", source, "--name", "more", "--tp", 1, "--pp", 1)
        )

    def test_a_lost_state_takes_nothing_out_of_pool_and_archive(self):
        with cluster(env=self.env) as c:
            shards = self.load(c, "m")
            before, kept = self.stream(c, "m"), c.dir / "kept"
            files = self.files()
            log, begun, said = self.restart_controller(c, lambda state: shutil.move(state, kept))
            self.assertIn("frees nothing in the pool", said)
            self.wait_sweeps(log, begun)
            self.assertEqual(
                (self.files(), self.trash(), self.in_pool(c)), (files, [], len(shards))
            )
            self.assert_refused(c, "belongs to cluster")
            self.assertEqual(
                len(
                    re.findall(
                        r"\berror\b.*changes nothing in pool and archive", log.read_text()[begun:]
                    )
                ),
                1,
            )

            def put_back(state):
                shutil.rmtree(state)
                shutil.move(kept, state)

            log, begun, said = self.restart_controller(c, put_back)
            self.assertEqual(said, "")
            self.wait_sweeps(log, begun)
            self.assertEqual((self.files(), self.stream(c, "m")), (files, before))
            self.assertEqual(c.json("info")["claim"], "ok")
            c.json("model", "rm", "m")
            wait_for("the removed model to leave the archive", lambda: not self.files())
            self.assertEqual(self.trash(), [])

    def test_a_second_controller_can_do_nothing_to_the_pool(self):
        with cluster(env=self.env) as c:
            shards = self.load(c, "m")
            files, l3 = self.files(), c.json("info")["l3Address"]
            log = c.dir / "other.log"
            with open(log, "wb") as out:
                other = subprocess.Popen(
                    [
                        BUILD / "bin" / "helios-controller",
                        "--l3",
                        l3,
                        "--state",
                        c.dir / "other",
                        "--listen",
                        "127.0.0.1:0",
                    ],
                    env=c.env,
                    stdout=out,
                    stderr=out,
                )
            try:
                self.wait_sweeps(log)
            finally:
                other.send_signal(signal.SIGTERM)
                self.assertEqual(other.wait(30), 0)
            self.assertEqual(
                (self.files(), self.trash(), self.in_pool(c)), (files, [], len(shards))
            )
            self.assertIn("belongs to cluster", log.read_text())
            self.assertEqual(c.json("info")["claim"], "ok")
            self.assertEqual({s["state"] for s in c.json("shard", "ls")["items"]}, {"sealed"})

    def test_an_old_copy_of_the_catalogue_does_not_free_what_came_later(self):
        with cluster(env=self.env) as c:
            self.load(c, "old")
            copy = c.dir / "controller.db"
            with sqlite3.connect(c.state / "controller" / "controller.db") as db, sqlite3.connect(
                copy
            ) as to:
                db.backup(to)
            self.load(c, "new", seed=2)
            files, pooled = self.files(), self.in_pool(c)

            def restore(state):
                for path in state.glob("controller.db*"):
                    path.unlink()
                shutil.copy(copy, state / "controller.db")

            log, begun, _ = self.restart_controller(c, restore)
            self.wait_sweeps(log, begun)
            self.assertEqual((self.files(), self.trash(), self.in_pool(c)), (files, [], pooled))
            self.assert_refused(c, "knows revision")
            self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["old"])
            self.stream(c, "old")  # what it knows is served
            self.assertIn("knows revision", c.refuse("model", "rm", "old"))

    def test_an_old_copy_is_known_by_the_archive_alone(self):
        with cluster(env=self.env) as c:
            self.load(c, "old")
            copy = c.dir / "controller.db"
            with sqlite3.connect(c.state / "controller" / "controller.db") as db, sqlite3.connect(
                copy
            ) as to:
                db.backup(to)
            self.load(c, "new", seed=2)
            files, pool = self.files(), pathlib.Path(c.info["pool"])

            def restore(state):
                for path in state.glob("controller.db*"):
                    path.unlink()
                shutil.copy(copy, state / "controller.db")
                pool.unlink()  # as a reboot does

            log, begun, _ = self.restart_controller(c, restore)
            self.wait_sweeps(log, begun)
            self.assertEqual((self.files(), self.trash()), (files, []))
            self.assert_refused(c, "the archive knows revision")

    def forget_owner(self, c):
        """Pool and archive as an older release without claims leaves them."""
        with open(c.info["pool"], "r+b") as pool:
            pool.seek(CLAIM_AT)
            pool.write(bytes(CLAIM_SIZE))
        (self.archive / "helios-cluster.json").unlink()

    def test_what_an_earlier_release_has_left_is_adopted_by_who_knows_its_shards(self):
        with cluster(env=self.env) as c:
            shards = self.load(c, "m")
            before, files = self.stream(c, "m"), self.files()
            log, begun, _ = self.restart_controller(c, lambda _: self.forget_owner(c))
            wait_for("the adoption", lambda: c.json("info")["claim"] == "ok")
            self.wait_sweeps(log, begun)
            self.assertEqual((self.files(), self.trash(), self.stream(c, "m")), (files, [], before))
            self.assertEqual(
                json.loads((self.archive / "helios-cluster.json").read_text())["cluster"],
                c.json("info")["cluster"],
            )

            def lose(state):
                shutil.rmtree(state)
                self.forget_owner(c)

            log, begun, _ = self.restart_controller(c, lose)
            self.wait_sweeps(log, begun)
            self.assertEqual(
                (self.files(), self.trash(), self.in_pool(c)), (files, [], len(shards))
            )
            self.assert_refused(c, "never claimed")

    def test_an_orphan_goes_to_the_trash_and_leaves_it_after_its_time(self):
        with cluster(env=dict(self.env, HELIOS_ARCHIVE_TRASH_KEEP="3s")) as c:
            shards = self.load(c, "m")
            files = self.files()
            # a foreign file is an orphan of the archive once the archive has seen it,
            # which is at its start
            orphan = "0123456789abcdef0123456789abcdef"

            def add(_):
                (self.archive / "01").mkdir(exist_ok=True)
                shutil.copy(
                    next(self.archive.glob(f"??/{shards[0]['id']}.safetensors")),
                    self.archive / "01" / f"{orphan}.safetensors",
                )

            self.restart_controller(c, add)
            wait_for(
                "the orphan in the trash", lambda: any(orphan in name for name in self.trash())
            )
            self.assertEqual(self.files(), files)
            moved = (
                r"warn.*moved to the archive's trash"
                rf" id={orphan} place=dir:{self.archive}/trash/\d+-{orphan}"
            )
            wait_for(
                "l3d to say where it is",
                lambda: re.search(moved, (c.state / "log" / "l3d.log").read_text()),
            )
            wait_for("the trash to be empty", lambda: self.trash() == [])
            self.assertEqual(self.files(), files)
            wait_for(
                "l3d to say so", lambda: "for good" in (c.state / "log" / "l3d.log").read_text()
            )


if __name__ == "__main__":
    unittest.main(verbosity=2)
