#!/usr/bin/python3
"""Incomplete data is never served as if it were whole: versions with lost shards, edited records of
the catalogue, archived copies that have changed."""
from __future__ import annotations

import pathlib
import sqlite3
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import cluster, wait_for  # noqa: E402

import helios  # noqa: E402
from helios import _tensors, errors  # noqa: E402

SWEEP = {"HELIOS_GC_INTERVAL": "200ms", "HELIOS_L3_QUARANTINE": "100ms"}


def load(c, name="m"):
    source, _ = checkpoints.llama(c.dir / f"checkpoint-{name}", hidden=32, seed=1)
    return c.json("model", "import", source, "--name", name, "--tp", 1, "--pp", 2)


def edit(c, change, *values):
    """Runs SQL on the Controller's store while it is down; changes one record."""
    c.json("down", "--keep")
    with sqlite3.connect(c.state / "controller" / "controller.db") as db:
        assert db.execute(change, values).rowcount == 1
    db.close()
    c.up()


def shown(c, number, model="m"):
    return next(v for v in c.json("model", "show", model)["versions"] if v["version"] == number)


def shards(c, **where):
    return [
        s
        for s in c.json("shard", "ls", "--model", "m")["items"]
        if all(s[k] == v for k, v in where.items())
    ]


def replace(c, key, old, new):
    """Replaces a text in a record of the Controller's store."""
    value = f"replace(CAST(value AS TEXT), '{old}', '{new}')"
    edit(c, f"UPDATE kv SET value = CAST({value} AS BLOB) WHERE key = ?", key)


class Whole(unittest.TestCase):
    def session(self, c, pp=0):
        made = helios.Session(
            c.info["controller"],
            rank=helios.Rank(job="j", model="m", pp=pp, pp_size=2, world_size=2, global_rank=pp),
        )
        self.addCleanup(made.close, force=True)
        return made

    def save(self, c):
        gang = [self.session(c, pp) for pp in (0, 1)]
        states = [{n: t.clone() for n, t in s.load_state_dict().items()} for s in gang]
        return [s.save_state_dict(state, step=1) for s, state in zip(gang, states)][-1].version

    def test_a_version_with_a_lost_shard_is_passed_over_and_that_is_said(self):
        with cluster(nodes=1, slots=1, size="64MiB", env=SWEEP) as c:
            load(c)
            self.assertEqual(self.save(c), 2)
            done = c.run("pull", "--model", "m@2", "--pp", 1, "--out", c.dir / "two")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("pulled m@2 pp1", done.stderr)
            c.json("shard", "rm", shards(c, version=2, pp=1)[0]["id"], "--force")
            wait_for("the shard to be missed", lambda: shown(c, 2)["lostShards"] == 1)
            self.assertEqual(c.json("model", "show", "m")["latest"], 1)
            table = next(
                x
                for x in c.run("model", "show", "m").stdout.splitlines()
                if x.lstrip().startswith("2 ")
            )
            self.assertIn("damaged", table)
            lost = f"version 2: 1 of its {shown(c, 2)['shards']} shards are lost"

            told = c.json("pull", "--model", "m", "--pp", 0, "--out", c.dir / "newest")
            self.assertEqual((told["version"], told["skipped"]), (1, lost))
            done = c.run("pull", "--model", "m", "--pp", 0, "--out", c.dir / "newest")
            self.assertIn(lost, done.stderr)
            self.assertIn("pulled m@1 pp0", done.stderr)
            self.assertIn(
                "is lost", c.refuse("pull", "--model", "m@2", "--pp", 1, "--out", c.dir / "lost")
            )
            self.assertFalse((c.dir / "lost").exists())
            self.assertEqual(self.session(c, 1).client.request_shards("m", -1, 1, 0).version, 1)
            with self.assertRaisesRegex(errors.HeliosError, "is lost"):
                self.session(c, 1).client.request_shards("m", 2, 1, 0)

            self.assertEqual(self.save(c), 3)  # on top of what was resumed
            self.assertEqual(c.json("model", "show", "m")["latest"], 3)

    def test_the_last_commit_waits_for_a_pool_that_is_being_started_again(self):
        with cluster(nodes=1, slots=1, size="64MiB", supervise=True) as c:
            load(c)
            gang = [self.session(c, pp) for pp in (0, 1)]
            states = [{n: t.clone() for n, t in s.load_state_dict().items()} for s in gang]
            killed = []
            commit = gang[1].client.version_commit

            def commit_after_death(*args):
                c.kill("l3d")
                killed.append(True)
                return commit(*args)

            gang[0].save_state_dict(states[0], step=1)
            gang[1].client.version_commit = commit_after_death
            saved = gang[1].save_state_dict(states[1], step=1)
            self.assertEqual((saved.version, saved.visible, killed), (2, True, [True]))
            self.assertEqual(c.json("model", "show", "m")["latest"], 2)

    def test_a_record_in_which_a_digit_has_changed_costs_its_version_and_no_rank_gets_wrong_bytes(
        self,
    ):
        with cluster(nodes=1, slots=1, size="64MiB", env=SWEEP) as c:
            load(c)
            load(c, "other")
            one = shards(c, version=1, pp=0)[0]
            key = f"shard/m/0000000001/{one['id']}"
            replace(c, key, '"pp":0', '"pp":1')
            for pp in (0, 1):
                self.assertIn(
                    "records of 1 of its",
                    c.refuse("pull", "--model", "m", "--pp", pp, "--out", c.dir / "x"),
                )
                self.assertIn(
                    "can't be read",
                    c.refuse("pull", "--model", "m@1", "--pp", pp, "--out", c.dir / "x"),
                )
            self.assertFalse((c.dir / "x").exists())
            self.assertTrue(c.json("info")["damagedRecords"][0].startswith(key))
            self.assertIn(key, c.run("info").stdout)
            self.assertEqual(
                c.run("pull", "--model", "other", "--pp", 0, "--out", c.dir / "y").returncode, 0
            )
            # the same with the record's checksum removed: it parses,
            # and differs from what was stored
            edit(
                c,
                "UPDATE kv SET value = CAST(substr(CAST(value AS TEXT), 16) AS BLOB) WHERE key = ?",
                key,
            )
            for pp in (0, 1):
                self.assertIn(
                    "differ from those that were stored",
                    c.refuse("pull", "--model", "m", "--pp", pp, "--out", c.dir / "x"),
                )
            self.assertEqual(len(c.json("info")["damagedRecords"]), 1)
            # a record of a release without checksums leaves only the shard's
            # own header to compare with
            edit(
                c,
                (
                    "UPDATE kv SET value = CAST(json_remove(substr(CAST(value AS TEXT), 16),"
                    " '$.shardsSum') AS BLOB) WHERE key = ?"
                ),
                "version/m/0000000001",
            )
            for command in (
                ("pull", "--model", "m", "--pp", 1),
                ("model", "export", "m", "--format", "safetensors"),
            ):
                self.assertIn(
                    "the shard's own header says helios.pp = '0', not '1'",
                    c.refuse(*command, "--out", c.dir / "x"),
                )
            with self.assertRaisesRegex(errors.Corrupt, "helios.pp = '0', not '1'"):
                self.session(c, 1).load_state_dict()
            # repaired, it is whole again
            replace(c, key, '"pp":1', '"pp":0')
            self.assertEqual(
                c.run("pull", "--model", "m", "--pp", 0, "--out", c.dir / "z").returncode, 0
            )
            self.assertEqual(c.json("info")["damagedRecords"], [])

    def test_an_archived_copy_that_has_changed_is_written_again_or_counted_as_lost(self):
        with tempfile.TemporaryDirectory(prefix="helios-e2e-whole-") as tmp:
            env = dict(SWEEP, HELIOS_ARCHIVE_URL=f"dir:{tmp}")
            with cluster(nodes=1, slots=1, size="64MiB", env=env) as c:
                load(c)
                one = shards(c, version=1, pp=0)[0]["id"]
                path = pathlib.Path(tmp) / one[:2] / f"{one}.safetensors"
                wait_for(
                    "the copy in the archive",
                    lambda: len(c.json("shard", "show", one, "--verify")["verify"]["copies"]) == 2,
                )
                good = path.read_bytes()

                def spoil():
                    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

                spoil()
                self.assertIn("L4", c.refuse("shard", "show", one, "--verify"))
                # the damaged file is removed before a new one replaces it
                wait_for(
                    "the copy to be written again",
                    lambda: path.exists() and path.read_bytes() == good,
                )
                wait_for(
                    "both copies to be good",
                    lambda: (lambda v: v["ok"] and len(v["copies"]) == 2)(
                        c.json("shard", "show", one, "--verify")["verify"]
                    ),
                )

                spoil()
                c.json("shard", "rm", one, "--force")
                self.assertIn(
                    "the bytes have CRC",
                    c.refuse("pull", "--model", "m", "--pp", 0, "--out", c.dir / "x"),
                )
                wait_for(
                    "the shard to be lost",
                    lambda: {s["id"]: s["state"] for s in shards(c)}[one] == "lost",
                )
                self.assertIn(
                    "is lost", c.refuse("pull", "--model", "m@1", "--pp", 0, "--out", c.dir / "x")
                )

    def test_a_shard_whose_own_header_names_another_place_is_refused(self):
        with cluster(nodes=1, slots=1, size="64MiB", env=SWEEP) as c:
            load(c)
            client = self.session(c).client
            shard = client.request_shards("m", -1, 0, 0).shards[0]
            mapped = client.map(shard)
            said = {
                "helios.model": "m",
                "helios.version": "1",
                "helios.pp": "0",
                "helios.tp": "0",
                "helios.part": shard.part,
            }
            self.assertTrue(_tensors.views(mapped, "here", True, said))
            for key in said:
                with self.assertRaisesRegex(errors.Corrupt, f"{key} = '{said[key]}', not 'x'"):
                    _tensors.views(mapped, "here", True, dict(said, **{key: "x"}))


if __name__ == "__main__":
    unittest.main(verbosity=2)
