#!/usr/bin/python3
"""A model that was imported for some number of pipeline stages is read, trained and
saved under others, with real daemons: the same bytes as a fresh import for those stages,
and no shard is copied."""
from __future__ import annotations

import itertools
import json
import pathlib
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

from helios import errors, safetensors  # noqa: E402

LAYERS = 4
# name: (pp, virtual stages, layers of the first stage, of the last one)
SPLITS = {
    "one": (1, 1, 0, 0),
    "two": (2, 1, 0, 0),
    "four": (4, 1, 0, 0),
    "chunks": (2, 2, 0, 0),
    "uneven": (2, 1, 1, 3),
}


def same(a, b):
    """Bit for bit: the checkpoints' bytes are random, and include NaNs."""
    return a.keys() == b.keys() and all(
        x.dtype == b[n].dtype and torch.equal(x.view(torch.uint8), b[n].view(torch.uint8))
        for n, x in a.items()
    )


class Split(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 2, "size": "128MiB"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.source, _ = checkpoints.llama(cls.c.dir / "llama", layers=LAYERS, hidden=32, seed=1)
        for name, (pp, chunks, first, last) in SPLITS.items():
            more = ["--first-stage-layers", first, "--last-stage-layers", last] if first else []
            cls.c.json(
                "model",
                "import",
                cls.source,
                "--name",
                name,
                "--tp",
                2,
                "--pp",
                pp,
                *(["--virtual-stages", chunks] if chunks > 1 else []),
                *more,
            )

    def shards(self):
        """Ids of all stored shards; a copy for another split would be one more."""
        return {shard["id"] for shard in self.c.json("shard", "ls")["items"]}

    def test_every_split_reads_what_an_import_for_it_would_have_made(self):
        session, before = self.session(), self.shards()
        for stored, wanted in itertools.permutations(["one", "two", "four", "chunks", "uneven"], 2):
            if wanted == "uneven":  # a reader can express only the import's own
                continue
            pp_size, chunks, _, _ = SPLITS[wanted]
            # the same number of stages: the import's own
            if stored == "uneven" and wanted == "two":
                wanted = "uneven"
            for pp, tp in itertools.product(range(pp_size), range(2)):
                with self.subTest(stored=stored, wanted=wanted, pp=pp, tp=tp):
                    got = session.load_state_dict(
                        f"{stored}@1", pp=pp, tp=tp, pp_size=pp_size, virtual_stages=chunks
                    )
                    self.assertTrue(same(got, session.load_state_dict(f"{wanted}@1", pp=pp, tp=tp)))
        self.assertEqual(self.shards(), before)

    def test_without_sizes_the_version_is_read_as_it_is(self):
        session = self.session()
        self.assertTrue(
            same(
                session.load_state_dict("four@1", pp=3, tp=1),
                session.load_state_dict("four@1", pp=3, tp=1, pp_size=4),
            )
        )
        with self.assertRaisesRegex(errors.NotFound, "TP2 x PP4"):
            session.load_state_dict("four@1", pp=4, tp=0)

    def test_what_does_not_work_out_is_refused_with_the_arithmetic(self):
        session = self.session()
        with self.assertRaisesRegex(errors.InvalidArgument, "4 layers over 3 stages"):
            session.load_state_dict("one", pp_size=3)
        with self.assertRaisesRegex(errors.NotFound, "TP2 x PP2"):
            session.load_state_dict("one", pp=2, pp_size=2)
        with self.assertRaisesRegex(errors.InvalidArgument, "pp_size=0"):
            session.load_state_dict("one", pp_size=0)

    def gang(self, model, pp_size):
        return [
            self.session(
                job="split",
                model=model,
                pp=pp,
                tp=tp,
                pp_size=pp_size,
                tp_size=2,
                world_size=2 * pp_size,
                global_rank=2 * pp + tp,
            )
            for pp in range(pp_size)
            for tp in range(2)
        ]

    def test_a_save_of_other_stages_comes_back_under_every_split(self):
        self.c.json("model", "import", self.source, "--name", "saved", "--tp", 2, "--pp", 1)
        expected, states = {}, {}
        for rank in self.gang("saved", 4):
            state = {
                n: t.clone().view(torch.int32).add_(1).view(torch.float32)
                for n, t in rank.load_state_dict().items()
            }
            moments = {f"exp_avg.{n}": t.clone() for n, t in state.items()}
            expected[rank.rank.pp, rank.rank.tp] = state
            states[rank] = (state, moments)
        for rank, (state, moments) in states.items():
            saved = rank.save_state_dict(state, 7, optim=moments)
        self.assertTrue(saved.visible)
        for rank in self.gang("saved", 4):
            self.assertTrue(same(rank.load_state_dict(), expected[rank.rank.pp, rank.rank.tp]))
            self.assertEqual(rank.version(), saved.version)
        reader = self.session()
        for tp in range(2):  # two stages of four: layer 1 of stage 0 is layer 0 of stage 1
            got = reader.load_state_dict("saved", pp=0, tp=tp, pp_size=2)
            name = "decoder.layers.{}.mlp.linear_fc1.weight"
            self.assertTrue(
                same({"w": got[name.format(1)]}, {"w": expected[1, tp][name.format(0)]})
            )
            optim = reader.load_state_dict("saved", pp=1, tp=tp, pp_size=2, kind="optim")
            self.assertTrue(
                same(
                    {"w": optim["exp_avg." + name.format(1)]},
                    {"w": expected[3, tp][name.format(0)]},
                )
            )
        shown = self.c.json("model", "show", "saved")["versions"]
        self.assertEqual({v["version"]: v["split"]["pp"] for v in shown}, {1: 1, saved.version: 4})

    def test_a_save_without_a_load_finds_the_layers_of_the_stages_it_names(self):
        self.c.json("model", "import", self.source, "--name", "unloaded", "--tp", 2, "--pp", 1)
        for pp_size, chunks in ((4, 1), (2, 2)):
            reader, states, number = self.session(), {}, 0
            for pp, tp in itertools.product(range(pp_size), range(2)):
                states[pp, tp] = reader.load_state_dict(
                    "unloaded@1", pp=pp, tp=tp, pp_size=pp_size, virtual_stages=chunks
                )
            for (pp, tp), state in states.items():
                rank = self.session(
                    pp=pp,
                    tp=tp,
                    world_size=2 * pp_size,
                    global_rank=2 * pp + tp,
                    job=f"unloaded-{pp_size}",
                )
                saved = rank.save_state_dict(
                    state, 1, model="unloaded", tp_size=2, pp_size=pp_size, virtual_stages=chunks
                )
                number = saved.version
            self.assertTrue(saved.visible)
            for tp in range(2):  # all layers at once, as imported
                sizes = {"tp": tp, "pp": 0, "pp_size": 1, "virtual_stages": 1}
                self.assertTrue(
                    same(
                        reader.load_state_dict(f"unloaded@{number}", **sizes),
                        reader.load_state_dict("unloaded@1", **sizes),
                    )
                )

    def test_pulled_and_exported_files_are_those_of_an_import_for_the_split(self):
        for name, wanted in (("one", "four"), ("four", "one"), ("uneven", "chunks")):
            pp_size, chunks, _, _ = SPLITS[wanted]
            sizes = ["--pp-size", pp_size, "--virtual-stages", chunks]
            for how in ("safetensors", "torch"):
                with self.subTest(name=name, wanted=wanted, how=how):
                    trees = [self.export(f"{name}@1", how, *sizes), self.export(f"{wanted}@1", how)]
                    self.assertEqual(
                        *({p.relative_to(tree) for p in tree.rglob("*")} for tree in trees)
                    )
                    for path in (p for p in trees[0].rglob("*") if p.is_file()):
                        other = trees[1] / path.relative_to(trees[0])
                        if how == "torch":
                            self.assert_same_torch(path, other)
                        else:
                            self.assertEqual(self.tensors(path), self.tensors(other))
        out = self.c.dir / "pulled"
        self.c.json("pull", "--model", "one@1", "--pp", 2, "--tp", 1, "--pp-size", 4, "--out", out)
        self.assertEqual(
            self.tensors(out),
            self.tensors(self.export("four@1", "safetensors") / "mp_rank_01_002.safetensors"),
        )

    def export(self, model, how, *more):
        Split.exports = getattr(Split, "exports", 0) + 1
        out = self.c.dir / f"export-{Split.exports}"
        self.c.json("model", "export", model, "--format", how, "--out", out, *more)
        return out

    @staticmethod
    def tensors(path):
        header = safetensors.read_header(path)
        data = pathlib.Path(path).read_bytes()
        return {
            e.name: (
                e.dtype,
                e.shape,
                data[header.data_start + e.begin : header.data_start + e.end],
            )
            for e in header.entries.values()
        }

    def assert_same_torch(self, path, other):
        if path.suffix != ".pt":
            self.assertEqual(path.read_bytes(), other.read_bytes())
            return
        a, b = torch.load(path), torch.load(other)
        self.assertEqual(a.keys(), b.keys())
        for key in a:
            if key.startswith("model"):
                self.assertTrue(same(a[key], b[key]))
            elif key == "args":
                self.assertEqual(vars(a[key]), vars(b[key]))
            else:
                self.assertEqual(a[key], b[key])

    def test_a_job_has_its_own_number_of_stages(self):
        script = self.c.dir / "rank.py"
        script.write_text(
            textwrap.dedent(
                """
            import helios
            helios.init()
            me, state = helios.rank(), helios.load_state_dict()
            layers = {n.split(".")[2] for n in state if n.startswith("decoder.layers.")}
            assert layers == {"0", "1"}, layers
            assert ("output_layer.weight" in state) == (me.pp == 1), sorted(state)
            saved = helios.save_state_dict(state, step=1)
            print("rank", me.global_rank, "saved", saved.version, flush=True)
        """
            )
        )
        command, env = needs.job_command(script)
        text = textwrap.dedent(
            f"""
            jobName: other-stages
            model: {{name: four}}
            command: {json.dumps(command)}
            env: {json.dumps(env)}
            parallelism:
              pipeline_parallel_size: 2
              tensor_parallel_size: 2
              data_parallel_size: 1
            resources: {{ranks_per_slot: 2}}
        """
        )
        job = self.c.submit(text)
        self.c.wait_job(job, "succeeded")
        shown = self.c.json("model", "show", "four")["versions"]
        self.assertEqual([v["split"]["pp"] for v in shown], [2, 4])
        with self.assertRaisesRegex(AssertionError, "tp 3 does not divide"):
            self.c.submit(text.replace("tensor_parallel_size: 2", "tensor_parallel_size: 3"))

    def test_a_job_has_its_own_tensor_parallel_size(self):
        script = self.c.dir / "tp.py"
        script.write_text(
            textwrap.dedent(
                """
            import helios
            helios.init()
            state = helios.load_state_dict()
            assert "output_layer.weight" in state, sorted(state)
            helios.save_state_dict(state, step=1)
        """
            )
        )
        self.c.json("model", "import", self.source, "--name", "whole", "--tp", 1, "--pp", 1)
        command, env = needs.job_command(script)
        job = self.c.submit(
            textwrap.dedent(
                f"""
            jobName: other-size
            model: {{name: whole}}
            command: {json.dumps(command)}
            env: {json.dumps(env)}
            parallelism:
              pipeline_parallel_size: 1
              tensor_parallel_size: 4
              data_parallel_size: 1
            resources: {{ranks_per_slot: 2}}
        """
            )
        )
        self.c.wait_job(job, "succeeded")
        trained, imported = self.c.json("model", "show", "whole")["versions"]
        self.assertEqual((trained["split"]["tp"], imported["split"]["tp"]), (4, 1))
        session = self.session()
        self.assertTrue(
            same(session.load_state_dict("whole@2", tp_size=1), session.load_state_dict("whole@1"))
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
