"""The Controller's state is lost: pool and archive contain everything that makes the versions,
and `helios recover` brings them back."""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / d) for d in ("python", "tests")]
sys.dont_write_bytecode = True


class Stub(types.ModuleType):
    """A save needs only torch's dtype names."""

    Tensor = type("Tensor", (), {})

    def __getattr__(self, name):
        return f"torch.{name}"


sys.modules.setdefault("torch", Stub("torch"))

from support import checkpoints  # noqa: E402
from support.cluster import BUILD, cluster, wait_for  # noqa: E402

os.environ["HELIOS_LIBRARY"] = str(BUILD / "lib" / "libhelios.so.0")

import helios  # noqa: E402

MANIFEST = "6d616e6966657374"  # prefix of the ids of manifests


class Filled:
    """A tensor whose bytes are all the same."""

    dtype = "torch.float32"

    def __init__(self, shape, byte):
        self.shape, self.byte = tuple(shape), byte

    def read_into(self, address, size):
        ctypes.memset(address, self.byte, size)


class Recover(unittest.TestCase):
    def setUp(self):
        self.tmp = tempfile.TemporaryDirectory(prefix="helios-e2e-recover-")
        self.addCleanup(self.tmp.cleanup)
        self.archive = pathlib.Path(self.tmp.name) / "archive"
        self.env = {
            "HELIOS_GC_INTERVAL": "200ms",
            "HELIOS_GC_GRACE": "30s",
            "HELIOS_L3_QUARANTINE": "100ms",
            "HELIOS_LOG_LEVEL": "debug",
        }
        self.archived = dict(self.env, HELIOS_ARCHIVE_URL=f"dir:{self.archive}")

    def files(self, manifests=False):
        return sorted(
            p.stem
            for p in self.archive.glob("??/*.safetensors")
            if p.stem.startswith(MANIFEST) == manifests
        )

    def load(self, c, name, seed=1):
        source, _ = checkpoints.llama(c.dir / f"checkpoint-{name}", hidden=32, seed=seed)
        c.json("model", "import", source, "--name", name, "--tp", 1, "--pp", 2)

    def save(self, c, model, step, byte):
        """Both ranks save: all weights are `byte`."""
        numbers = set()
        for pp in (0, 1):
            path = c.dir / "shapes"
            done = c.run("pull", "--model", f"{model}@1", "--pp", pp, "--tp", 0, "--out", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            header, _ = checkpoints.read(path)
            rank = helios.Rank(job="j", model=model, pp=pp, pp_size=2, world_size=2, global_rank=pp)
            with helios.Session(c.info["controller"], rank=rank) as s:
                state = {
                    n: Filled(t["shape"], byte) for n, t in header.items() if n != "__metadata__"
                }
                numbers.add(s.save_state_dict(state, step, {"step": step, "seed": byte}).version)
        self.assertEqual(len(numbers), 1)
        return numbers.pop()

    def wait_manifests(self, c, count):
        """Waits until all shards and `count` manifests are stored."""
        if "HELIOS_ARCHIVE_URL" in c.env:
            ids = {s["id"] for s in c.json("shard", "ls")["items"]}
            wait_for(
                "everything to be archived",
                lambda: ids <= set(self.files()) and len(self.files(manifests=True)) == count,
            )
        else:
            log = c.state / "log" / "controllerd.log"
            text = log.read_text()
            wait_for(
                "a sweep after the last commit",
                lambda: len(re.findall("sweep ended", log.read_text()[len(text) :])) >= 2,
            )

    def seen(self, c):
        """Everything that users see of the models, and the bytes of every rank's stream."""
        shown = {}
        for m in c.json("model", "ls")["items"]:
            name = m["name"]
            shown[name] = c.json("model", "show", name)
            shown[name, "shards"] = sorted(
                (s["id"], s["sizeBytes"], s["crc32"], s["part"], s["pp"], s["tp"], s["state"])
                for s in c.json("shard", "ls", "--model", name)["items"]
            )
            for version in [v["version"] for v in shown[name]["versions"]] + [None]:
                for pp in (0, 1):
                    path = c.dir / "pulled"
                    done = c.run(
                        "pull",
                        "--model",
                        name + (f"@{version}" if version else ""),
                        "--pp",
                        pp,
                        "--tp",
                        0,
                        "--out",
                        path,
                    )
                    self.assertEqual(done.returncode, 0, done.stderr)
                    shown[name, version, pp] = hashlib.sha256(path.read_bytes()).hexdigest()
        return shown

    def restart(self, c, change):
        c.json("down", "--keep")
        change(c.state / "controller")
        done = c.run(*c.up_args, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        c.info = c.json("info") | {"controller": json.loads(done.stdout)["controller"]}

    @staticmethod
    def forget(state):
        for path in state.glob("controller.db*"):
            path.unlink()

    def lose_and_recover(self, env, change):
        """An import and two saves; `change`, recover, and everything is as before."""
        with cluster(env=env) as c:
            self.load(c, "m")
            self.assertEqual([self.save(c, "m", 10, 1), self.save(c, "m", 20, 2)], [2, 3])
            self.wait_manifests(c, 3)
            before, pool = self.seen(c), pathlib.Path(c.info["pool"])
            cluster_id, shards = c.json("info")["cluster"], len(c.json("shard", "ls")["items"])
            self.restart(c, lambda state: change(state, pool))
            self.assertEqual(c.json("info")["claim"], "refused")
            self.assertEqual(c.json("model", "ls")["items"], [])
            dry = c.json("recover", "--dry-run")
            self.assertEqual((dry["restored"], dry["restoredShards"], dry["left"]), (3, shards, []))
            self.assertEqual(
                [(v["version"], v["state"]) for v in dry["versions"]],
                [(1, "restored"), (2, "restored"), (3, "restored")],
            )
            self.assertEqual(
                (c.json("info")["claim"], c.json("model", "ls")["items"]), ("refused", [])
            )
            done = c.json("recover")
            self.assertEqual(
                (done["claim"], done["cluster"], done["restored"]), ("ok", cluster_id, 3)
            )
            self.assertEqual(self.seen(c), before)
            log = c.state / "log" / "controllerd.log"
            begun = len(log.read_text())
            wait_for("sweeps", lambda: len(re.findall("sweep ended", log.read_text()[begun:])) >= 4)
            self.assertEqual(self.seen(c), before)
            c.kill("controllerd")  # its new identity is durable
            self.assertEqual(c.run(*c.up_args).returncode, 0)
            wait_for("the claim", lambda: c.json("info")["claim"] != "unknown")
            self.assertEqual(
                (c.json("info")["claim"], c.json("info")["cluster"]), ("ok", cluster_id)
            )
            self.assertIn("nothing to recover", c.refuse("recover"))
            self.assertEqual(c.json("recover", "--dry-run")["known"], 3)
            self.assertEqual(self.save(c, "m", 30, 3), 4)
            newest = c.json("model", "show", "m")
            self.assertEqual(
                (newest["latest"], newest["versions"][0]["meta"]), (4, {"step": 30, "seed": 3})
            )

    def test_from_pool_and_archive(self):
        self.lose_and_recover(self.archived, lambda state, pool: self.forget(state))

    def test_from_the_pool_alone(self):
        self.lose_and_recover(self.env, lambda state, pool: self.forget(state))

    def test_from_the_archive_alone_after_a_reboot(self):
        def reboot(state, pool):
            self.forget(state)
            pool.unlink()

        self.lose_and_recover(self.archived, reboot)

    def test_an_old_copy_of_the_catalogue_gets_what_came_later(self):
        with cluster(env=self.env) as c:
            self.load(c, "m")
            self.save(c, "m", 10, 1)
            copy = c.dir / "controller.db"
            with sqlite3.connect(c.state / "controller" / "controller.db") as db, sqlite3.connect(
                copy
            ) as to:
                db.backup(to)
            self.save(c, "m", 20, 2)
            self.load(c, "other", seed=2)
            self.wait_manifests(c, 4)
            before = self.seen(c)

            def roll_back(state):
                self.forget(state)
                shutil.copy(copy, state / "controller.db")

            self.restart(c, roll_back)
            done = c.json("recover")
            self.assertEqual(
                (
                    done["claim"],
                    done["known"],
                    [(v["model"], v["version"]) for v in done["versions"]],
                ),
                ("ok", 2, [("m", 3), ("other", 1)]),
            )
            self.assertEqual(self.seen(c), before)

    def test_a_removed_version_does_not_come_back(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.load(c, "gone", seed=2)
            self.save(c, "m", 10, 1)
            self.wait_manifests(c, 3)
            c.json("model", "rm", "gone")
            c.json("model", "rm", "m@2", "--force")
            wait_for("one manifest to be left", lambda: len(self.files(manifests=True)) == 1)
            wait_for(
                "its shards alone", lambda: len(self.files()) == len(c.json("shard", "ls")["items"])
            )
            before = self.seen(c)
            self.restart(c, self.forget)
            self.assertEqual(c.json("recover")["restored"], 1)
            self.assertEqual(self.seen(c), before)

    def test_what_no_version_holds_is_named_and_given_up_on_order_only(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            self.load(c, "lost", seed=2)
            self.wait_manifests(c, 2)
            lost = {s["id"] for s in c.json("shard", "ls", "--model", "lost")["items"]}
            size = len(self.files())

            def damage(state):  # one version's manifest is missing everywhere
                self.forget(state)
                pathlib.Path(c.info["pool"]).unlink()
                for path in self.archive.glob(f"??/{MANIFEST}*.safetensors"):
                    if b'"name":"lost"' in path.read_bytes():
                        path.unlink()

            self.restart(c, damage)
            shown = c.run("recover")
            self.assertEqual(shown.returncode, 1)
            self.assertIn("--discard", shown.stderr)
            self.assertRegex(shown.stdout, r"m@1 .*restored")
            self.assertIn("no manifest names them", shown.stdout)
            self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["m"])
            self.assertEqual((len(self.files()), c.json("info")["claim"]), (size, "refused"))
            c.kill("controllerd")  # its present catalogue is not taken for the newest
            self.assertEqual(c.run(*c.up_args).returncode, 0)
            self.assertEqual((len(self.files()), c.json("info")["claim"]), (size, "refused"))
            given = c.json("recover", "--discard")
            self.assertEqual(
                (given["claim"], sum(x["shards"] for x in given["left"])), ("ok", len(lost))
            )
            wait_for("the rest in the trash", lambda: not lost & set(self.files()))
            self.assertEqual(
                {p.stem.split("-")[1] for p in self.archive.glob("trash/*.safetensors")}, lost
            )
            self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["m"])

    def test_derived_shards_are_dropped_and_keep_nothing_from_being_claimed(self):
        with cluster(env=self.env) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            own = {s["id"] for s in c.json("shard", "ls")["items"]}
            c.json("model", "reshard", "m", "--tp-size", 2)
            self.restart(c, self.forget)
            done = c.json("recover")
            self.assertEqual((done["claim"], done["restored"], done["left"]), ("ok", 1, []))
            (version,) = c.json("model", "show", "m")["versions"]
            self.assertEqual(version["cuts"], [])
            self.assertEqual({s["id"] for s in c.json("shard", "ls")["items"]}, own)
            wait_for(
                "no shard but the version's", lambda: c.json("info")["pool"]["shards"] == len(own)
            )
            self.assertGreater(c.json("model", "reshard", "m", "--tp-size", 2)["shards"], 0)

    def test_a_shard_in_the_trash_that_a_manifest_names_comes_back(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            before = self.seen(c)
            shard = c.json("shard", "ls")["items"][0]["id"]

            def trash(state):
                self.forget(state)
                pathlib.Path(c.info["pool"]).unlink()
                (self.archive / "trash").mkdir(exist_ok=True)
                (self.archive / shard[:2] / f"{shard}.safetensors").rename(
                    self.archive / "trash" / f"{time.time_ns() // 1000000:013d}-{shard}.safetensors"
                )

            self.restart(c, trash)
            dry = c.json("recover", "--dry-run")
            self.assertEqual((dry["restored"], dry["untrashed"]), (1, 0))
            self.assertEqual(len(list(self.archive.glob("trash/*.safetensors"))), 1)
            done = c.json("recover")
            self.assertEqual((done["claim"], done["restored"], done["untrashed"]), ("ok", 1, 1))
            self.assertEqual(list(self.archive.glob("trash/*.safetensors")), [])
            self.assertEqual(self.seen(c), before)

    def test_a_version_with_a_damaged_or_missing_shard_is_skipped_and_named(self):
        with cluster(env=self.archived) as c:
            for seed, name in enumerate(("good", "gone", "short"), 1):
                self.load(c, name, seed)
            self.wait_manifests(c, 3)
            first = {
                name: c.json("shard", "ls", "--model", name)["items"][0]["id"]
                for name in ("gone", "short")
            }

            def damage(state):
                self.forget(state)
                pathlib.Path(c.info["pool"]).unlink()
                (self.archive / first["gone"][:2] / f"{first['gone']}.safetensors").unlink()
                path = self.archive / first["short"][:2] / f"{first['short']}.safetensors"
                raw = bytearray(path.read_bytes())
                at = raw.index(b'"crc32.') + raw[raw.index(b'"crc32.') :].index(b'":"') + 3
                raw[at] = ord("0") if raw[at] != ord("0") else ord("1")
                path.write_bytes(raw)

            self.restart(c, damage)
            found = {v["model"]: v for v in c.json("recover", "--dry-run")["versions"]}
            self.assertEqual(
                {m: v["state"] for m, v in found.items()},
                {"good": "restored", "gone": "skipped", "short": "skipped"},
            )
            self.assertIn("neither in the pool nor in the archive", found["gone"]["reason"])
            self.assertRegex(found["short"]["reason"], rf"shard {first['short']} .*has CRC")
            self.assertEqual(c.run("recover").returncode, 1)
            self.assertEqual([m["name"] for m in c.json("model", "ls")["items"]], ["good"])

    def test_an_old_copy_that_got_only_a_part_back_stays_refused(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            copy = c.dir / "controller.db"
            with sqlite3.connect(c.state / "controller" / "controller.db") as db, sqlite3.connect(
                copy
            ) as to:
                db.backup(to)
            self.load(c, "back", seed=2)
            self.load(c, "lost", seed=3)
            self.wait_manifests(c, 3)
            files = self.files()

            def damage(state):
                self.forget(state)
                shutil.copy(copy, state / "controller.db")
                pathlib.Path(c.info["pool"]).unlink()
                for path in self.archive.glob(f"??/{MANIFEST}*.safetensors"):
                    if b'"name":"lost"' in path.read_bytes():
                        path.unlink()

            self.restart(c, damage)
            self.assertEqual(c.run("recover").returncode, 1)
            self.assertEqual({m["name"] for m in c.json("model", "ls")["items"]}, {"m", "back"})
            for _ in range(2):  # each start tells L3 which revision it has seen
                c.kill("controllerd")
                self.assertEqual(c.run(*c.up_args).returncode, 0)
                self.assertEqual((c.json("info")["claim"], self.files()), ("refused", files))
            self.assertEqual(c.json("recover", "--discard")["claim"], "ok")
            self.assertEqual({m["name"] for m in c.json("model", "ls")["items"]}, {"m", "back"})

    def test_discard_restores_nothing(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            shards = set(self.files())
            self.restart(c, self.forget)
            dry = c.json("recover", "--dry-run", "--discard")
            self.assertEqual(
                (dry["restored"], sum(x["shards"] for x in dry["left"]), c.json("info")["claim"]),
                (0, len(shards), "refused"),
            )
            self.assertEqual(c.json("recover", "--discard")["claim"], "ok")
            wait_for(
                "all of it in the trash",
                lambda: not self.files() and not self.files(manifests=True),
            )
            trash = {p.stem.split("-")[1] for p in self.archive.glob("trash/*.safetensors")}
            self.assertEqual({t for t in trash if not t.startswith(MANIFEST)}, shards)
            self.assertEqual(c.json("model", "ls")["items"], [])
            wait_for("the pool to be empty", lambda: c.json("info")["pool"]["usedBytes"] == 0)

    def test_a_lost_manifest_is_written_again(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            (kept,) = self.files(manifests=True)

            def lose(_):
                pathlib.Path(c.info["pool"]).unlink()
                (self.archive / kept[:2] / f"{kept}.safetensors").unlink()

            self.restart(c, lose)
            wait_for(
                "the manifest to be archived again", lambda: self.files(manifests=True) == [kept]
            )
            self.assertNotIn(
                "missing from the pool", (c.state / "log" / "controllerd.log").read_text()
            )

    def test_killed_in_the_middle_it_is_done_again(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.save(c, "m", 10, 1)
            self.wait_manifests(c, 2)
            before = self.seen(c)
            self.restart(c, self.forget)
            for _ in range(6):  # at whatever point it is
                running = subprocess.Popen(
                    [BUILD / "bin" / "helios", "--state", c.state, "recover"],
                    env=c.env,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                c.kill("controllerd", signal.SIGKILL)
                running.wait(30)
                c.run("down", "--keep")
                self.assertEqual(c.run(*c.up_args).returncode, 0)
            if c.json("info")["claim"] == "refused":
                c.json("recover")
            self.assertEqual(c.json("info")["claim"], "ok")
            self.assertEqual(self.seen(c), before)

    def test_another_clusters_archive_is_refused_and_taken_over(self):
        with cluster(env=self.archived) as c:
            self.load(c, "m")
            self.wait_manifests(c, 1)
            before, first = self.seen(c), c.json("info")["cluster"]
        with cluster(env=self.archived) as c:
            self.assertEqual(c.json("info")["claim"], "refused")
            self.assertIn("belongs to cluster", c.refuse("model", "rm", "m"))
            self.assertEqual(c.json("recover")["cluster"], first)
            self.assertEqual(self.seen(c), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
