#!/usr/bin/python3
"""Exporting a version as a Hugging Face checkpoint: what was imported comes out bit for bit,
whatever the split, and what was trained can be imported again."""
from __future__ import annotations

import json
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints, dense_models  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.dense_models import FAMILIES, VOCAB  # noqa: E402

import helios  # noqa: E402

SPLITS = [
    ("--tp", 1, "--pp", 1),
    ("--tp", 2, "--pp", 2),
    ("--tp", 4, "--pp", 1),
    ("--tp", 2, "--pp", 2, "--virtual-stages", 2),
]


class Export(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster.of_class(cls, nodes=1, slots=1, size="256MiB")

    def checkpoint(self, family):
        """(directory, {name: bytes})"""
        return dense_models.checkpoint(self.c.dir / f"source-{family}", family)

    def export(self, name):
        out = self.c.export(name)
        return out, *checkpoints.read(out / "model.safetensors")

    def test_every_dense_family_comes_out_as_it_came_in_from_every_split(self):
        for family in FAMILIES:
            source, tensors = self.checkpoint(family)
            config = json.loads((source / "config.json").read_text())
            for split in SPLITS:
                with self.subTest(family=family, split=split):
                    out, header, data = self.export(self.c.take(source, *split))
                    self.assertEqual(data.keys(), tensors.keys())
                    self.assertEqual([n for n in data if data[n] != tensors[n]], [])
                    self.assertEqual(header["__metadata__"], {"format": "pt"})
                    self.assertEqual(json.loads((out / "config.json").read_text()), config)

    def test_a_tied_model_that_has_its_head_alone_is_one_with_its_embedding_alone(self):
        source, _ = checkpoints.llama(self.c.dir / "tied-llama")
        header, data = checkpoints.read(source / "model.safetensors")
        config = {**json.loads((source / "config.json").read_text()), "tie_word_embeddings": True}
        (source / "config.json").write_text(json.dumps(config))
        tensors = {
            name: (header[name]["shape"], data[name])
            for name in data
            if name != "model.embed_tokens.weight"
        }
        checkpoints.write(source / "model.safetensors", tensors)
        for split in SPLITS[:2]:
            with self.subTest(split=split):
                _, _, got = self.export(self.c.take(source, *split))
                want = {name: bytes_ for name, (_, bytes_) in tensors.items()}
                want["model.embed_tokens.weight"] = want.pop("lm_head.weight")
                self.assertEqual(got, want)

    def test_one_naming_becomes_the_other_as_the_import_writes_it(self):
        reader = helios.Session(self.c.info["controller"])
        self.addCleanup(reader.close, force=True)
        for family in FAMILIES:
            source, _ = self.checkpoint(family)
            stored = {naming: self.c.take(source, "--naming", naming) for naming in ("local", "te")}
            for naming, other in (("local", "te"), ("te", "local")):
                with self.subTest(family=family, to=naming):
                    own = reader.load_state_dict(stored[naming])
                    self.assertEqual(
                        reader.load_state_dict(stored[other], naming=naming).keys(), own.keys()
                    )
                    file = self.c.dir / f"{family}-{naming}"
                    self.c.json(
                        "pull",
                        "--model",
                        stored[other],
                        "--pp",
                        0,
                        "--tp",
                        0,
                        "--naming",
                        naming,
                        "--out",
                        file,
                    )
                    self.assertEqual(checkpoints.read(file)[1].keys(), own.keys())

    def session(self, name, pp, tp):
        made = helios.Session(
            self.c.info["controller"],
            rank=helios.Rank(
                job="hf",
                model=name,
                pp=pp,
                tp=tp,
                pp_size=4,
                tp_size=2,
                world_size=8,
                global_rank=2 * pp + tp,
            ),
        )
        self.addCleanup(made.close, force=True)
        return made

    @staticmethod
    def trained(name, tensor, pp):
        """With a tied head, the embedding's; norms are the same on all tensor ranks."""
        name = name.replace("output_layer.", "embedding.word_embeddings.")
        value = random.Random(f"{name} {pp if 'layers' in name else 0}").uniform(-2, 2)
        return torch.full(tensor.shape, value, dtype=torch.bfloat16)

    def test_replicas_that_differ_are_refused_by_name(self):
        source, _ = self.checkpoint("qwen2")
        name = self.c.take(source, "--tp", 2, "--pp", 1)
        for part in ("final_layernorm", "output_layer"):  # tp 1 has only padding of the vocabulary
            for pp in range(4):
                for tp in range(2):
                    rank = self.session(name, pp, tp)
                    state = {
                        n: t + (part in n and tp == 0)
                        for n, t in rank.load_state_dict(version=1).items()
                    }
                    # otherwise the commit is refused
                    saved = rank.save_state_dict(state, 5, strict=False)
            self.assertTrue(saved.visible)
            text = self.c.refuse(
                "model", "export", name, "--format", "hf", "--out", self.c.dir / "differ"
            )
            self.assertIn(
                {"final_layernorm": "norm.weight", "output_layer": "embed_tokens.weight"}[part],
                text,
            )
            self.assertFalse((self.c.dir / "differ").exists())

    def test_what_was_trained_in_another_dtype_and_split_can_be_imported_again(self):
        source, _ = self.checkpoint("qwen2")
        name = self.c.take(source, "--tp", 2, "--pp", 1)
        for pp in range(4):
            for tp in range(2):
                rank = self.session(name, pp, tp)
                saved = rank.save_state_dict(
                    {n: self.trained(n, t, pp) for n, t in rank.load_state_dict(version=1).items()},
                    3,
                    any_dtype=True,
                )
        self.assertTrue(saved.visible)
        out, header, _ = self.export(name)
        self.assertEqual({e["dtype"] for n, e in header.items() if n != "__metadata__"}, {"BF16"})
        self.assertEqual(json.loads((out / "config.json").read_text())["torch_dtype"], "bfloat16")
        again = self.c.take(out, "--tp", 2, "--pp", 4)
        reader = helios.Session(self.c.info["controller"])
        self.addCleanup(reader.close, force=True)
        for pp in range(4):
            for tp in range(2):
                a, b = (reader.load_state_dict(m, pp=pp, tp=tp) for m in (name, again))
                self.assertEqual(a.keys(), b.keys())
                for n in a:
                    if "word_embeddings" in n or "output_layer" in n:  # padding is generated again
                        rows = max(0, min(len(a[n]), VOCAB - tp * len(a[n])))
                        self.assertTrue(torch.equal(a[n][:rows], b[n][:rows]), n)
                    else:
                        self.assertTrue(torch.equal(a[n], b[n]), n)

    def test_what_makes_no_sense_is_refused(self):
        source, _ = self.checkpoint("llama")
        name = self.c.take(source, "--tp", 1, "--pp", 1)
        out = self.c.dir / "refused"
        self.assertIn(
            "has no optimizer state",
            self.c.refuse("model", "export", name, "--format", "hf", "--out", out, "--optimizer"),
        )
        for flag in (["--naming", "te"], ["--tp-size", 2], ["--pp-size", 2]):
            text = self.c.run("model", "export", name, "--format", "hf", "--out", out, *flag)
            self.assertEqual(text.returncode, 2, flag)
            self.assertIn(flag[0], text.stderr)
        self.assertIn(
            "version 9",
            self.c.refuse("model", "export", f"{name}@9", "--format", "hf", "--out", out),
        )
        self.assertFalse(out.exists())

    def gang(self, name, job, optim, dp_size=1, **how):
        """The version that 2 x 2 x dp ranks save, with the state that `optim` computes
        from (rank, parameters)."""
        for pp, tp, dp in ((p, t, d) for p in range(2) for t in range(2) for d in range(dp_size)):
            rank = helios.Rank(
                job=job,
                model=name,
                pp=pp,
                tp=tp,
                dp=dp,
                pp_size=2,
                tp_size=2,
                dp_size=dp_size,
                world_size=4 * dp_size,
                global_rank=(pp * 2 + tp) * dp_size + dp,
            )
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                state = me.load_state_dict(version=1)
                saved = me.save_state_dict(state, 1, optim=optim(rank, state), **how)
        self.assertTrue(saved.visible)
        return f"{name}@{saved.version}"

    def test_optimizer_state_has_the_names_and_shapes_of_the_checkpoint(self):
        # halves of each tensor's elements, as a distributed optimizer divides them
        def halves(rank, state):
            half = {
                n: slice(rank.dp * t.numel() // 2, (rank.dp + 1) * t.numel() // 2)
                for n, t in state.items()
            }
            return {
                f"exp_avg.{n}": helios.Piece(-t.reshape(-1)[half[n]], t.shape, half[n].start)
                for n, t in state.items()
            }

        def whole(rank, state):
            return {f"exp_avg.{n}": -t for n, t in state.items()}

        for family, dp_size, optim in (
            ("qwen2", 1, whole),
            ("gpt2", 2, halves),
            ("phi3", 2, halves),
        ):
            with self.subTest(family, dp=dp_size):
                source, tensors = self.checkpoint(family)
                saved = self.gang(self.c.take(source), f"state-{family}", optim, dp_size)
                out = self.c.dir / f"state-{family}"
                said = self.c.json(
                    "model", "export", saved, "--format", "hf", "--out", out, "--optimizer"
                )
                self.assertEqual((said["optimizer"], said["files"]), (len(tensors), 2))
                _, data = checkpoints.read(out / "optimizer" / "optimizer.safetensors")
                self.assertEqual(data.keys(), {f"exp_avg.{n}" for n in tensors})
                wrong = [
                    n
                    for n, raw in tensors.items()
                    # the sign of an F32 is its last bit
                    if not torch.equal(
                        torch.frombuffer(bytearray(data[f"exp_avg.{n}"]), dtype=torch.int32)
                        ^ -(1 << 31),
                        torch.frombuffer(bytearray(raw), dtype=torch.int32),
                    )
                ]
                self.assertEqual(wrong, [])
                self.assertEqual(checkpoints.read(out / "model.safetensors")[1], tensors)
                again = self.c.refuse("model", "export", saved, "--format", "hf", "--out", out)
                self.assertIn("has config.json of another checkpoint; --replace", again)
                self.c.take(out)  # a checkpoint still

    def test_state_that_ranks_hold_differently_is_refused_by_name(self):
        def differing(rank, state):
            return {
                f"exp_avg.{n}": -t + (rank.tp if n == "decoder.final_layernorm.weight" else 0)
                for n, t in state.items()
            }

        source, _ = self.checkpoint("qwen2")
        # otherwise the commit is refused
        saved = self.gang(self.c.take(source), "stale", differing, strict=False)
        for form in ("hf", "safetensors", "torch"):
            out = self.c.dir / f"stale-{form}"
            text = self.c.refuse(
                "model", "export", saved, "--format", form, "--out", out, "--optimizer"
            )
            self.assertRegex(
                text, r"replicas differ in .* of tensor 'exp_avg\.model\.norm\.weight'"
            )
            self.assertFalse(out.exists())
            self.c.json("model", "export", saved, "--format", form, "--out", out)

    def test_state_without_a_global_name_is_refused(self):
        source, _ = self.checkpoint("llama")
        saved = self.gang(
            self.c.take(source),
            "odd",
            lambda rank, state: {f"norm.{n}": t.flatten()[:1] for n, t in state.items()},
        )
        text = self.c.refuse(
            "model", "export", saved, "--format", "hf", "--out", self.c.dir / "odd", "--optimizer"
        )
        self.assertIn("optimizer tensor 'norm.", text)
        self.assertFalse((self.c.dir / "odd").exists())

    def test_what_is_left_out_is_what_is_there(self):
        source, _ = self.checkpoint("llama")
        name = self.c.take(source, "--tp", 1, "--pp", 1)
        one = helios.Session(
            self.c.info["controller"], rank=helios.Rank(job="left-out", model=name)
        )
        self.addCleanup(one.close, force=True)
        state = one.load_state_dict()
        one.save_state_dict(state, 1, optim={f"exp_avg.{n}": t for n, t in state.items()})
        for version, kinds in ((1, ["tokenizer"]), (2, ["optimizer", "tokenizer"])):
            said = self.c.json(
                "model",
                "export",
                f"{name}@{version}",
                "--format",
                "hf",
                "--out",
                self.c.dir / f"left-{version}",
            )
            self.assertEqual([text.split()[0] for text in said["leftOut"]], kinds)
            self.assertEqual(said["config"], "config.json")
        text = self.c.run(
            "model",
            "export",
            f"{name}@1",
            "--format",
            "hf",
            "--replace",
            "--out",
            self.c.dir / "left-1",
        ).stdout
        self.assertNotIn("optimizer", text)

    def test_a_version_without_all_of_the_model_is_refused_by_name(self):
        source, _ = self.checkpoint("llama")
        name = self.c.take(source, "--tp", 1, "--pp", 1)
        one = helios.Session(self.c.info["controller"], rank=helios.Rank(job="part", model=name))
        self.addCleanup(one.close, force=True)
        state = one.load_state_dict()
        del state["decoder.layers.2.mlp.linear_fc2.weight"]
        one.save_state_dict(state, 1, strict=False)
        out = self.c.dir / "partial"
        self.assertIn(
            "decoder.layers.2.mlp.linear_fc2.weight",
            self.c.refuse("model", "export", name, "--format", "hf", "--out", out),
        )
        self.assertFalse((out / "config.json").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
