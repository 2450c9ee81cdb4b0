#!/usr/bin/python3
"""A version leaves as a Hugging Face checkpoint: what was imported comes out bit for bit, whatever the split
it was sliced with, and what was trained can be imported again."""
from __future__ import annotations

import json
import pathlib
import random
import shutil
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.cluster import Cluster  # noqa: E402

import helios  # noqa: E402

H, HEADS, GROUPS, D, FFN, VOCAB, LAYERS = 32, 4, 2, 8, 48, 61, 4
SIZES = {"hidden_size": H, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
         "num_key_value_heads": GROUPS, "vocab_size": VOCAB, "max_position_embeddings": 64}
ATTENTION = {"self_attn.q_proj.weight": [HEADS * D, H], "self_attn.k_proj.weight": [GROUPS * D, H],
             "self_attn.v_proj.weight": [GROUPS * D, H], "self_attn.o_proj.weight": [H, HEADS * D]}
GATED = {"mlp.gate_proj.weight": [FFN, H], "mlp.up_proj.weight": [FFN, H], "mlp.down_proj.weight": [H, FFN]}
NORMS = {"input_layernorm.weight": [H], "post_attention_layernorm.weight": [H]}
BIASES = {"self_attn.q_proj.bias": [HEADS * D], "self_attn.k_proj.bias": [GROUPS * D], "self_attn.v_proj.bias": [GROUPS * D]}
QK_NORMS = {"self_attn.q_norm.weight": [D], "self_attn.k_norm.weight": [D]}
FOUR_NORMS = NORMS | {"pre_feedforward_layernorm.weight": [H], "post_feedforward_layernorm.weight": [H]}
PHI = {"self_attn.qkv_proj.weight": [(HEADS + 2 * GROUPS) * D, H], "self_attn.o_proj.weight": [H, HEADS * D],
       "mlp.gate_up_proj.weight": [2 * FFN, H], "mlp.down_proj.weight": [H, FFN]}
GPT2 = {"ln_1.weight": [H], "ln_1.bias": [H], "attn.c_attn.weight": [H, 3 * H], "attn.c_attn.bias": [3 * H],
        "attn.c_proj.weight": [H, H], "attn.c_proj.bias": [H], "ln_2.weight": [H], "ln_2.bias": [H],
        "mlp.c_fc.weight": [H, FFN], "mlp.c_fc.bias": [FFN], "mlp.c_proj.weight": [FFN, H], "mlp.c_proj.bias": [H]}
NEOX = {"input_layernorm.weight": [H], "input_layernorm.bias": [H], "post_attention_layernorm.weight": [H],
        "post_attention_layernorm.bias": [H], "attention.query_key_value.weight": [3 * H, H],
        "attention.query_key_value.bias": [3 * H], "attention.dense.weight": [H, H], "attention.dense.bias": [H],
        "mlp.dense_h_to_4h.weight": [FFN, H], "mlp.dense_h_to_4h.bias": [FFN], "mlp.dense_4h_to_h.weight": [H, FFN],
        "mlp.dense_4h_to_h.bias": [H]}

# family: (more of config.json, tensors of a layer, whether the head is tied)
LLAMA_LIKE = {
    "llama": ({}, ATTENTION | GATED | NORMS, False),
    "mistral": ({}, ATTENTION | GATED | NORMS, False),
    "qwen2": ({}, ATTENTION | GATED | NORMS | BIASES, True),
    "qwen3": ({"head_dim": D}, ATTENTION | GATED | NORMS | QK_NORMS, True),
    "gemma2": ({"head_dim": D}, ATTENTION | GATED | FOUR_NORMS, True),
    "gemma3_text": ({"head_dim": D}, ATTENTION | GATED | FOUR_NORMS | QK_NORMS, True),
    "phi3": ({}, PHI | NORMS, False),
}


def model(family):
    """(config.json, {name: shape})"""
    if family == "gpt2":
        config = {"model_type": "gpt2", "n_layer": LAYERS, "n_embd": H, "n_head": HEADS, "n_inner": FFN,
                  "vocab_size": VOCAB, "n_positions": 16}
        shapes = {"transformer.wte.weight": [VOCAB, H], "transformer.wpe.weight": [16, H],
                  "transformer.ln_f.weight": [H], "transformer.ln_f.bias": [H]}
        return config, shapes | {f"transformer.h.{i}.{n}": s for i in range(LAYERS) for n, s in GPT2.items()}
    if family == "gpt_neox":
        config = {"model_type": "gpt_neox", **SIZES, "tie_word_embeddings": False}
        shapes = {"gpt_neox.embed_in.weight": [VOCAB, H], "gpt_neox.final_layer_norm.weight": [H],
                  "gpt_neox.final_layer_norm.bias": [H], "embed_out.weight": [VOCAB, H]}
        return config, shapes | {f"gpt_neox.layers.{i}.{n}": s for i in range(LAYERS) for n, s in NEOX.items()}
    more, layer, tied = LLAMA_LIKE[family]
    config = {"model_type": family, **SIZES, "tie_word_embeddings": tied, "torch_dtype": "float32", **more}
    shapes = {"model.embed_tokens.weight": [VOCAB, H], "model.norm.weight": [H]}
    shapes |= {} if tied else {"lm_head.weight": [VOCAB, H]}
    return config, shapes | {f"model.layers.{i}.{n}": s for i in range(LAYERS) for n, s in layer.items()}


FAMILIES = [*LLAMA_LIKE, "gpt2", "gpt_neox"]
SPLITS = [("--tp", 1, "--pp", 1), ("--tp", 2, "--pp", 2), ("--tp", 4, "--pp", 1), ("--tp", 2, "--pp", 2, "--virtual-stages", 2)]


class Export(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Cluster(nodes=1, slots=1, size="256MiB")
        cls.addClassCleanup(shutil.rmtree, cls.c.dir, ignore_errors=True)
        cls.addClassCleanup(cls.c.run, "down")
        cls.c.up()
        cls.count = 0

    def checkpoint(self, family):
        """(directory, {name: bytes})"""
        config, shapes = model(family)
        home = self.c.dir / f"source-{family}"
        rng, tensors = random.Random(family), {}
        for name, shape in shapes.items():
            size = 4
            for extent in shape:
                size *= extent
            tensors[name] = (shape, rng.randbytes(size))
        if not home.exists():
            home.mkdir()
            checkpoints.write(home / "model.safetensors", tensors)
            (home / "config.json").write_text(json.dumps(config))
        return home, {name: data for name, (_, data) in tensors.items()}

    def load(self, source, *split):
        Export.count += 1
        name = f"m{Export.count}"
        self.c.json("model", "import", source, "--name", name, *split)
        return name

    def export(self, name):
        Export.count += 1
        out = self.c.dir / f"out-{Export.count}"
        said = self.c.json("model", "export", name, "--format", "hf", "--out", out)
        self.assertEqual(said["files"], 1)
        return out, *checkpoints.read(out / "model.safetensors")

    def test_every_dense_family_comes_out_as_it_came_in_from_every_split(self):
        for family in FAMILIES:
            source, tensors = self.checkpoint(family)
            config = json.loads((source / "config.json").read_text())
            for split in SPLITS:
                with self.subTest(family=family, split=split):
                    out, header, data = self.export(self.load(source, *split))
                    self.assertEqual(data.keys(), tensors.keys())
                    self.assertEqual([n for n in data if data[n] != tensors[n]], [])
                    self.assertEqual(header["__metadata__"], {"format": "pt"})
                    self.assertEqual(json.loads((out / "config.json").read_text()), config)

    def test_one_naming_becomes_the_other_as_the_import_writes_it(self):
        reader = helios.Session(self.c.info["controller"])
        self.addCleanup(reader.close, force=True)
        for family in FAMILIES:
            source, _ = self.checkpoint(family)
            stored = {naming: self.load(source, "--naming", naming) for naming in ("local", "te")}
            for naming, other in (("local", "te"), ("te", "local")):
                with self.subTest(family=family, to=naming):
                    own = reader.load_state_dict(stored[naming])
                    self.assertEqual(reader.load_state_dict(stored[other], naming=naming).keys(), own.keys())
                    file = self.c.dir / f"{family}-{naming}"
                    self.c.json("pull", "--model", stored[other], "--pp", 0, "--tp", 0, "--naming", naming, "--out", file)
                    self.assertEqual(checkpoints.read(file)[1].keys(), own.keys())

    def session(self, name, pp, tp):
        made = helios.Session(self.c.info["controller"], rank=helios.Rank(
            job="hf", model=name, pp=pp, tp=tp, pp_size=4, tp_size=2, world_size=8, global_rank=2 * pp + tp))
        self.addCleanup(made.close, force=True)
        return made

    @staticmethod
    def trained(name, tensor, pp):
        """Of a tied head that of the embedding; norms are the same on all tensor ranks."""
        name = name.replace("output_layer.", "embedding.word_embeddings.")
        value = random.Random(f"{name} {pp if 'layers' in name else 0}").uniform(-2, 2)
        return torch.full(tensor.shape, value, dtype=torch.bfloat16)

    def test_replicas_that_differ_are_refused_by_name(self):
        source, _ = self.checkpoint("qwen2")
        name = self.load(source, "--tp", 2, "--pp", 1)
        for part in ("final_layernorm", "output_layer"):  # of the vocabulary tp 1 has only padding
            for pp in range(4):
                for tp in range(2):
                    rank = self.session(name, pp, tp)
                    state = {n: t + (part in n and tp == 0) for n, t in rank.load_state_dict(version=1).items()}
                    saved = rank.save_state_dict(state, 5, strict=False)  # else the commit is refused
            self.assertTrue(saved.visible)
            text = self.c.refuse("model", "export", name, "--format", "hf", "--out", self.c.dir / "differ")
            self.assertIn({"final_layernorm": "norm.weight", "output_layer": "embed_tokens.weight"}[part], text)
            self.assertFalse((self.c.dir / "differ").exists())

    def test_what_was_trained_in_another_dtype_and_split_can_be_imported_again(self):
        source, _ = self.checkpoint("qwen2")
        name = self.load(source, "--tp", 2, "--pp", 1)
        for pp in range(4):
            for tp in range(2):
                rank = self.session(name, pp, tp)
                saved = rank.save_state_dict({n: self.trained(n, t, pp) for n, t in rank.load_state_dict(version=1).items()},
                                             3, any_dtype=True)
        self.assertTrue(saved.visible)
        out, header, _ = self.export(name)
        self.assertEqual({e["dtype"] for n, e in header.items() if n != "__metadata__"}, {"BF16"})
        self.assertEqual(json.loads((out / "config.json").read_text())["torch_dtype"], "bfloat16")
        again = self.load(out, "--tp", 2, "--pp", 4)
        reader = helios.Session(self.c.info["controller"])
        self.addCleanup(reader.close, force=True)
        for pp in range(4):
            for tp in range(2):
                a, b = (reader.load_state_dict(m, pp=pp, tp=tp) for m in (name, again))
                self.assertEqual(a.keys(), b.keys())
                for n in a:
                    if "word_embeddings" in n or "output_layer" in n:  # padding is made anew
                        rows = max(0, min(len(a[n]), VOCAB - tp * len(a[n])))
                        self.assertTrue(torch.equal(a[n][:rows], b[n][:rows]), n)
                    else:
                        self.assertTrue(torch.equal(a[n], b[n]), n)

    def test_what_makes_no_sense_is_refused(self):
        source, _ = self.checkpoint("llama")
        name = self.load(source, "--tp", 1, "--pp", 1)
        out = self.c.dir / "refused"
        for flag in (["--optimizer"], ["--naming", "te"], ["--tp-size", 2], ["--pp-size", 2]):
            text = self.c.run("model", "export", name, "--format", "hf", "--out", out, *flag)
            self.assertEqual(text.returncode, 2, flag)
            self.assertIn(flag[0], text.stderr)
        self.assertIn("version 9", self.c.refuse("model", "export", f"{name}@9", "--format", "hf", "--out", out))
        self.assertFalse(out.exists())

    def test_a_version_without_all_of_the_model_is_refused_by_name(self):
        source, _ = self.checkpoint("llama")
        name = self.load(source, "--tp", 1, "--pp", 1)
        one = helios.Session(self.c.info["controller"], rank=helios.Rank(job="part", model=name))
        self.addCleanup(one.close, force=True)
        state = one.load_state_dict()
        del state["decoder.layers.2.mlp.linear_fc2.weight"]
        one.save_state_dict(state, 1, strict=False)
        out = self.c.dir / "partial"
        self.assertIn("decoder.layers.2.mlp.linear_fc2.weight",
                      self.c.refuse("model", "export", name, "--format", "hf", "--out", out))
        self.assertFalse((out / "config.json").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
