#!/usr/bin/python3
"""Saving on a real cluster: nothing is lost silently,
and nothing that does not fit the model becomes its newest version."""
from __future__ import annotations

import io
import os
import pathlib
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()
ROOT = needs.ROOT

from support import checkpoints  # noqa: E402
from support.cluster import wait_for  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

import helios  # noqa: E402
from helios import errors  # noqa: E402

PARAMETER = "decoder.layers.0.mlp.linear_fc1.weight"


def clones(state):
    return {name: tensor.clone() for name, tensor in state.items()}


def same(a, b):
    """Bit for bit: the checkpoints' bytes are random, and include NaNs."""
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


JOB = (
    "parallelism: {pipeline_parallel_size: 2, tensor_parallel_size: 1, data_parallel_size: 1}\n"
    "resources: {ranks_per_slot: 2}\n"
)


class Save(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 1, "size": "64MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.count = 0

    def setUp(self):
        Save.count += 1
        self.model = f"m{self.count}"
        source, _ = checkpoints.llama(self.c.dir / self.model, hidden=32, seed=self.count)
        self.c.json("model", "import", source, "--name", self.model, "--tp", 1, "--pp", 2)

    def session(self, pp=0, **place):
        dp, dp_size = place.get("dp", 0), place.get("dp_size", 1)
        place = {
            "job": "j",
            "model": self.model,
            "pp": pp,
            "pp_size": 2,
            "world_size": 2 * dp_size,
            "global_rank": 2 * dp + pp,
            **place,
        }
        return super().session(**place)

    def gang(self, **place):
        return [self.session(pp, **place) for pp in (0, 1)]

    def versions(self):
        """Of the model, oldest first: (number, state)."""
        shown = self.c.json("model", "show", self.model)["versions"]
        return [(v["version"], v["state"]) for v in reversed(shown)]

    def newest(self, pp, **kwargs):
        return self.session(
            pp, dp=kwargs.pop("rank_dp", 0), dp_size=kwargs.pop("dp_size", 1)
        ).load_state_dict(**kwargs)

    def test_a_second_save_at_a_step_keeps_the_second_weights_optimizer_state_and_meta(self):
        gang = self.gang()
        first = [clones(s.load_state_dict()) for s in gang]
        second = [{n: torch.zeros_like(t) for n, t in state.items()} for state in first]
        a = [s.save_state_dict(state, 5) for s, state in zip(gang, first)]
        b = [
            s.save_state_dict(
                state, 5, {"final": True}, {f"exp_avg.{n}": t for n, t in state.items()}
            )
            for s, state in zip(gang, second)
        ]
        self.assertEqual([s[:2] for s in a + b], [(2, False), (2, True), (3, False), (3, True)])
        for pp in (0, 1):
            stored = self.session(pp)
            kept = stored.load_state_dict()
            self.assertEqual(stored.meta(), {"final": True})
            for name, tensor in kept.items():
                self.assertTrue(same(tensor, second[pp][name]), name)
                self.assertFalse(same(tensor, first[pp][name]), name)
            moments = stored.load_state_dict(kind="optim")
            self.assertEqual(set(moments), {f"exp_avg.{n}" for n in kept})

    def test_ranks_that_are_one_save_apart_do_not_mix(self):
        fast, slow = self.gang()
        mine, theirs = clones(fast.load_state_dict()), clones(slow.load_state_dict())
        self.assertEqual([fast.save_state_dict(mine, 5).version for _ in range(2)], [2, 3])
        self.assertEqual(
            [slow.save_state_dict(theirs, 5)[:2] for _ in range(2)], [(2, True), (3, True)]
        )

    def test_two_processes_without_a_job_never_share_a_version(self):
        both = [
            helios.Session(self.c.info["controller"], rank=helios.Rank(model=self.model))
            for _ in range(2)
        ]
        state = clones(self.session().load_state_dict())
        opened = [s.client.version_open(self.model, "local", 0, 5, 0, 1, 2) for s in both]
        self.assertEqual(opened, [2, 3])
        for s, version in zip(both, opened):
            s.client.version_abandon(self.model, version, 0, "a test")
            self.assertEqual(s.save_state_dict(state, 5, strict=False).visible, True)
            s.close()

    def test_ranks_without_a_job_are_told_to_name_one(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "HELIOS_JOB"):
            self.session(job="").save_state_dict({}, 1)
        self.assertEqual(self.versions(), [(1, "visible")])

    def refused(self, state, pattern, **kwargs):
        with self.assertRaisesRegex(errors.InvalidArgument, pattern):
            self.session().save_state_dict(state, 9, **kwargs)
        self.assertNotIn("open", dict(self.versions()).values())

    def test_tensors_that_do_not_fit_the_model_never_become_visible(self):
        right = clones(self.session().load_state_dict())
        short = {n: t for n, t in right.items() if n != PARAMETER}
        self.refused({"lm_head": torch.zeros(3)}, "'lm_head'.*strict=False")
        self.refused(short, f"{PARAMETER}' .* is missing.*strict=False")
        self.refused(
            {**right, "decoder.layers.0.more": torch.zeros(3)}, "layers.0.more' .* not in the model"
        )
        self.refused(
            {**right, PARAMETER: right[PARAMETER].t().contiguous()}, f"{PARAMETER}' is .*expected"
        )
        self.refused(
            {**right, PARAMETER: right[PARAMETER].double()}, f"{PARAMETER}' is F64 .*any_dtype"
        )
        self.refused(
            right, "exp_avg.decoder.nothing", optim={"exp_avg.decoder.nothing": torch.zeros(1)}
        )
        newest = self.session().load_state_dict()
        self.assertEqual(set(newest), set(right))
        session = self.session()
        session.load_state_dict()
        self.assertEqual(session.version(), 1)

    def test_another_layout_can_be_meant(self):
        gang = self.gang()
        for session in gang:
            state = {n: t.double() for n, t in session.load_state_dict().items()}
            saved = session.save_state_dict(state, 1, any_dtype=True)
        self.assertTrue(saved.visible)
        gang[0].save_state_dict({"lm_head": torch.zeros(3)}, 2, strict=False)
        with self.assertRaisesRegex(errors.Conflict, "strict"):
            gang[1].save_state_dict({}, 2)
        self.assertTrue(gang[1].save_state_dict({}, 2, strict=False).visible)
        self.assertEqual(set(self.newest(0)), {"lm_head"})

    def test_a_failed_save_names_its_rank_to_the_others_and_leaves_no_shard(self):
        one, two = self.gang()
        right = [clones(s.load_state_dict()) for s in (one, two)]
        before = len(self.c.json("shard", "ls", "--model", self.model)["items"])
        two.save_state_dict(right[1], 3)
        with self.assertRaises(errors.InvalidArgument):
            one.save_state_dict({**right[0], PARAMETER: torch.zeros(2)}, 3)
        self.assertEqual(self.versions(), [(1, "visible")])
        self.assertEqual(len(self.c.json("shard", "ls", "--model", self.model)["items"]), before)

        with self.assertRaises(errors.InvalidArgument):
            one.save_state_dict({**right[0], PARAMETER: torch.zeros(2)}, 4)
        shown = self.c.json("model", "show", self.model)["versions"][0]
        self.assertEqual(shown["state"], "failed")
        self.assertIn("rank 0", shown["error"])
        with self.assertRaisesRegex(errors.Canceled, f"rank 0: InvalidArgument.*{PARAMETER}"):
            two.save_state_dict(right[1], 4)
        self.assertEqual(
            [s.save_state_dict(state, 4).visible for s, state in zip((one, two), right)],
            [False, True],
        )
        self.assertEqual([state for _, state in self.versions()], ["visible", "visible"])

    def test_a_save_into_a_full_pool_gives_back_what_it_had_put(self):
        def used():
            return next(
                t["usedBytes"]
                for n in self.c.json("store")["items"]
                for t in n["tiers"]
                if t["tier"] == "L3"
            )

        def visible():
            return sum(
                v["state"] == "visible"
                for m in self.c.json("model", "ls")["items"]
                for v in self.c.json("model", "show", m["name"])["versions"]
            )

        session = self.session()
        wait_for(
            "the manifests of what is there",
            lambda: self.c.json("info")["pool"]["manifests"] == visible(),
        )
        before = used()
        huge = {
            f"{part}.huge": torch.zeros(6 << 20)
            for part in ("embedding", "head", "decoder.layers.0")
        }
        # two parts of 24 MiB fit into the 64 MiB of the pool, the third does not
        for n in range(3):
            with self.assertRaises(errors.NoSpace):
                session.save_state_dict(huge, n, strict=False)
            wait_for("the shards to be freed", lambda: used() == before, 5)
            two = self.session(1)
            with self.assertRaisesRegex(errors.Canceled, "rank 0: NoSpace"):
                two.save_state_dict({}, n, strict=False)

    def test_a_value_that_cannot_be_stored_is_refused_before_a_version_is_begun(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "not a torch tensor"):
            self.session().save_state_dict({PARAMETER: "text"}, 3)
        self.assertEqual(self.versions(), [(1, "visible")])

    def test_a_commit_whose_answer_was_lost_is_a_success(self):
        one, two = self.gang()
        one.save_state_dict(clones(one.load_state_dict()), 3)
        commit = two.client.version_commit

        def lost(*args):
            two.client.version_commit = commit
            commit(*args)
            raise errors.Unavailable("the connection broke")

        two.client.version_commit = lost
        saved = two.save_state_dict(clones(two.load_state_dict()), 3)
        self.assertEqual(saved[:2], (2, True))
        self.assertEqual(self.versions()[-1], (2, "visible"))

    def test_an_interrupt_in_a_save_is_never_swallowed(self):
        one, two = self.gang()
        one.save_state_dict(clones(one.load_state_dict()), 3)
        commit = two.client.version_commit

        def interrupted(*args):
            commit(*args)
            raise KeyboardInterrupt

        two.client.version_commit = interrupted
        with self.assertRaises(KeyboardInterrupt):
            two.save_state_dict(clones(two.load_state_dict()), 3)

    def test_a_commit_of_other_shards_is_a_conflict_though_the_version_is_visible(self):
        one, two = self.gang()
        state = clones(two.load_state_dict())
        one.save_state_dict(clones(one.load_state_dict()), 3)
        saved = two.save_state_dict(state, 3)
        two.client.version_open = lambda *_: saved.version  # as if a begin had joined it
        with self.assertRaisesRegex(errors.Conflict, "rank 1 has committed"):
            two.save_state_dict(state, 3)

    def test_megatron_state_dicts_keep_their_blobs_and_lose_their_prefixes(self):
        blob = io.BytesIO()
        torch.save({"amax": torch.arange(3)}, blob)
        for session in self.gang():
            state = {f"module.module.{n}": t.clone() for n, t in session.load_state_dict().items()}
            moments = {f"exp_avg.{n}": t + 1 for n, t in state.items()}
            where = "module.module.decoder.layers.0.self_attention."
            state.update(
                {
                    f"{where}core_attention._extra_state": None,
                    f"{where}linear_qkv._extra_state": blob,
                    f"{where}linear_proj._extra_state": torch.arange(7, dtype=torch.uint8),
                }
            )
            saved = session.save_state_dict(state, 3, optim=moments)
        self.assertTrue(saved.visible)
        for pp in (0, 1):
            names = set(self.newest(pp, version=1))
            self.assertEqual(set(self.newest(pp)), names)
            self.assertEqual(set(self.newest(pp, kind="optim")), {f"exp_avg.{n}" for n in names})
            extra = self.newest(pp, kind="extra")
            qkv, proj = (
                f"decoder.layers.0.self_attention.linear_{n}._extra_state" for n in ("qkv", "proj")
            )
            self.assertEqual(set(extra), {qkv, proj})
            self.assertEqual(torch.load(extra[qkv])["amax"].tolist(), [0, 1, 2])
            self.assertEqual(extra[proj].tolist(), list(range(7)))
            self.assertEqual(
                set(self.newest(pp, kind="all")),
                names | {f"exp_avg.{n}" for n in names} | set(extra),
            )

    def test_two_names_that_differ_by_module_alone_are_refused(self):
        with self.assertRaisesRegex(errors.InvalidArgument, "both 'a' and 'module.a'"):
            self.session().save_state_dict({"a": torch.zeros(1), "module.a": torch.zeros(1)}, 1)

    def test_every_data_rank_gets_its_own_optimizer_state_back(self):
        for dp in (0, 1):
            for session in self.gang(dp=dp, dp_size=2):
                state = clones(session.load_state_dict())
                name = next(iter(state))
                saved = session.save_state_dict(
                    state, 3, optim={f"exp_avg.{name}": torch.full((4,), dp + 5.0)}
                )
        self.assertTrue(saved.visible)
        for dp in (0, 1):
            (tensor,) = self.newest(0, rank_dp=dp, dp_size=2, kind="optim").values()
            self.assertEqual(tensor.tolist(), [dp + 5.0] * 4)
            # requested by name, by a gang of one
            (tensor,) = self.newest(0, kind="optim", dp=dp).values()
            self.assertEqual(tensor.tolist(), [dp + 5.0] * 4)
        self.c.json(
            "pull",
            "--model",
            self.model,
            "--kind",
            "optim",
            "--dp",
            1,
            "--out",
            self.c.dir / "share",
        )
        for dp_size in (1, 4):
            with self.assertRaisesRegex(
                errors.InvalidArgument, f"2 data-parallel ranks.*has {dp_size}"
            ):
                self.newest(0, dp_size=dp_size, kind="optim")
        with self.assertRaisesRegex(errors.InvalidArgument, "data-parallel rank 2"):
            self.newest(0, kind="optim", dp=2)

    def test_what_data_rank_0_alone_saves_is_everyones(self):
        for dp in (0, 1):
            for session in self.gang(dp=dp, dp_size=2):
                state = clones(session.load_state_dict())
                optim = {f"exp_avg.{n}": t for n, t in state.items()}
                session.save_state_dict(state, 3, optim=optim if dp == 0 else None)
        for dp, dp_size in ((1, 2), (3, 4), (0, 1)):
            self.assertEqual(
                len(self.newest(0, rank_dp=dp, dp_size=dp_size, kind="optim")), len(self.newest(0))
            )
        pull = ("pull", "--model", self.model, "--out", self.c.dir / "whole", "--dp", 1)
        self.assertIn("leave --dp 1 out", self.c.refuse(*pull))
        self.assertIn(
            "--dp chooses optimizer state", self.c.refuse(*pull, "--kind", "model", code=2)
        )
        self.assertFalse((self.c.dir / "whole").exists())

    def test_the_layout_of_the_named_model_is_used_with_nothing_or_another_loaded(self):
        state = [self.newest(pp) for pp in (0, 1)]
        for loaded in (None, "other"):
            if loaded:  # has all of its layers but one in the first stage
                source, _ = checkpoints.llama(self.c.dir / f"other{self.count}", hidden=32, seed=9)
                self.c.json(
                    "model",
                    "import",
                    source,
                    "--name",
                    f"other{self.count}",
                    "--tp",
                    1,
                    "--pp",
                    2,
                    "--first-stage-layers",
                    1,
                )
            for pp in (0, 1):
                session = self.session(pp, model="", attempt=2 if loaded else 1)
                if loaded:
                    session.load_state_dict(f"other{self.count}")
                saved = session.save_state_dict(state[pp], 3, model=self.model)
            self.assertTrue(saved.visible)

    def test_a_rank_that_is_killed_in_a_save_leaves_no_version_when_its_job_ends(self):
        program = self.c.dir / "killed.py"
        program.write_text(
            textwrap.dedent(
                """
            import os, signal
            import helios
            state = helios.load_state_dict()
            client = helios.session().client
            if helios.rank().pp == 1:
                client.version_commit = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            helios.save_state_dict(state, 7)
            signal.pause()
            """
            )
        )
        job = self.c.submit(
            f"jobName: killed\nmodel: {{name: {self.model}}}\n{JOB}command: [{sys.executable},"
            f" {program}]\nenv: {{PYTHONPATH: {ROOT / 'python'}, HELIOS_LIBRARY:"
            f" {os.environ['HELIOS_LIBRARY']}}}\n"
        )
        ended = self.c.wait_job(job, "failed", "succeeded")
        self.assertEqual(ended["state"], "failed", ended["reason"])
        self.assertIn("signal 9", ended["reason"])
        wait_for("the version to be closed", lambda: self.versions() == [(1, "visible")])

    def test_a_model_is_not_removed_from_under_a_job(self):
        job = self.c.submit(
            f"jobName: sleeps\nmodel: {{name: {self.model}}}\ncommand: [/bin/sleep, '60']\n{JOB}"
        )
        self.c.wait_job(job, "running")
        for what in (self.model, f"{self.model}@1"):
            said = self.c.refuse("model", "rm", what)
            self.assertIn(job, said)
            self.assertIn("--force", said)
        self.assertGreater(self.c.json("model", "rm", self.model, "--force")["bytes"], 0)
        self.c.run("cancel", job)
        self.c.wait_job(job, "cancelled")


if __name__ == "__main__":
    unittest.main(verbosity=2)
