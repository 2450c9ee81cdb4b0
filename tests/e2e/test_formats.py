#!/usr/bin/python3
"""Quantized models and adapters: imported, read by every rank, and exported bit for bit."""
from __future__ import annotations

import json
import pathlib
import random
import struct
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.model_case import ModelCase  # noqa: E402

import helios  # noqa: E402

H, HEADS, GROUPS, D, FFN, VOCAB, LAYERS = 32, 4, 2, 8, 48, 61, 2
CONFIG = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "torch_dtype": "bfloat16",
}
MATRICES = {
    "self_attn.q_proj": (HEADS * D, H),
    "self_attn.k_proj": (GROUPS * D, H),
    "self_attn.v_proj": (GROUPS * D, H),
    "self_attn.o_proj": (H, HEADS * D),
    "mlp.gate_proj": (FFN, H),
    "mlp.up_proj": (FFN, H),
    "mlp.down_proj": (H, FFN),
}
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U8": 1}

# format: (quantization_config, [(ending, dtype, shape of a matrix of rows and columns)])
FORMATS = {
    "blocks": (
        {"quant_method": "fp8", "weight_block_size": [8, 8]},
        [
            ("weight", "F8_E4M3", lambda r, c: [r, c]),
            ("weight_scale_inv", "F32", lambda r, c: [r // 8, c // 8]),
        ],
    ),
    "rows": (
        {"quant_method": "compressed-tensors"},
        [("weight", "F8_E5M2", lambda r, c: [r, c]), ("weight_scale", "BF16", lambda r, c: [r, 1])],
    ),
    "one number": (
        {"quant_method": "modelopt"},
        [
            ("weight", "F8_E4M3", lambda r, c: [r, c]),
            ("weight_scale", "F32", lambda r, c: []),
            ("input_scale", "F32", lambda r, c: []),
        ],
    ),
    "NVFP4": (
        {"quant_method": "modelopt"},
        [
            ("weight", "U8", lambda r, c: [r, c // 2]),
            ("weight_scale", "F8_E4M3", lambda r, c: [r, c // 8]),
            ("weight_scale_2", "F32", lambda r, c: []),
        ],
    ),
    "MXFP4": (
        {"quant_method": "compressed-tensors"},
        [
            ("weight_packed", "U8", lambda r, c: [r, c // 2]),
            ("weight_scale", "U8", lambda r, c: [r, c // 8]),
        ],
    ),
}


def write(path, tensors):
    """tensors: {name: (dtype, shape, bytes)}"""
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())
    )


def tensor(rng, dtype, shape):
    size = BYTES[dtype]
    for extent in shape:
        size *= extent
    return dtype, shape, rng.randbytes(size)


def model(seed, parts):
    rng = random.Random(seed)
    out = {
        "model.embed_tokens.weight": tensor(rng, "BF16", [VOCAB, H]),
        "lm_head.weight": tensor(rng, "BF16", [VOCAB, H]),
        "model.norm.weight": tensor(rng, "BF16", [H]),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{at}{norm}.weight"] = tensor(rng, "BF16", [H])
        for name, (rows, cols) in MATRICES.items():
            for ending, dtype, shape in parts:
                out[f"{at}{name}.{ending}"] = tensor(rng, dtype, shape(rows, cols))
    return out


def rows(data, width, first, end):
    return data[first * width : end * width]


class Models(ModelCase):
    CLUSTER = {"nodes": 1, "slots": 1, "size": "256MiB"}
    count = 0

    def directory(self, config, tensors, file="model.safetensors", config_file="config.json"):
        Models.count += 1
        home = self.c.dir / f"source-{Models.count}"
        home.mkdir()
        write(home / file, tensors)
        (home / config_file).write_text(json.dumps(config))
        return home

    def load(self, source, *flags):
        Models.count += 1
        name = f"m{Models.count}"
        self.c.json("model", "import", source, "--name", name, *flags)
        return name

    def same_out(self, name, tensors, file="model.safetensors"):
        """The directory of an export whose file holds `tensors`."""
        Models.count += 1
        out = self.c.dir / f"out-{Models.count}"
        self.c.json("model", "export", name, "--format", "hf", "--out", out)
        header, data = checkpoints.read(out / file)
        self.assertEqual(data.keys(), tensors.keys())
        for tensor_name, (dtype, shape, raw) in tensors.items():
            self.assertEqual(
                (header[tensor_name]["dtype"], header[tensor_name]["shape"]),
                (dtype, shape),
                tensor_name,
            )
            self.assertEqual(data[tensor_name], raw, tensor_name)
        return out

    def rank(self, name, pp, tp, **sizes):
        session = helios.Session(self.c.info["controller"])
        self.addCleanup(session.close, force=True)
        return {
            n: (
                bytes(t.contiguous().view(torch.uint8).flatten().tolist())
                if t.dim()
                else bytes(t.reshape(1).view(torch.uint8).tolist())
            )
            for n, t in session.load_state_dict(name, pp=pp, tp=tp, **sizes).items()
        }


class Formats(Models):
    def test_every_format_comes_out_as_it_came_in_from_every_split(self):
        for title, (quantization, parts) in FORMATS.items():
            tensors, config = model(title, parts), CONFIG | {"quantization_config": quantization}
            source = self.directory(config, tensors)
            for tp, pp in ((1, 1), (2, 1), (2, 2)):
                with self.subTest(format=title, tp=tp, pp=pp):
                    out = self.same_out(self.load(source, "--tp", tp, "--pp", pp), tensors)
                    self.assertEqual(json.loads((out / "config.json").read_text()), config)

    def test_a_rank_has_the_scales_of_its_rows(self):
        quantization, parts = FORMATS["blocks"]
        tensors = model("rank", parts)
        name = self.load(
            self.directory(CONFIG | {"quantization_config": quantization}, tensors),
            "--tp",
            2,
            "--pp",
            1,
        )
        for tp in range(2):
            got = self.rank(name, 0, tp)
            for ending, width, unit in (("weight", H, 1), ("weight_scale_inv", H // 8 * 4, 8)):
                gate, up = (
                    tensors[f"model.layers.1.mlp.{n}_proj.{ending}"][2] for n in ("gate", "up")
                )
                first, end = tp * FFN // 2 // unit, (tp + 1) * FFN // 2 // unit
                self.assertEqual(
                    got[f"decoder.layers.1.mlp.linear_fc1.{ending}"],
                    rows(gate, width, first, end) + rows(up, width, first, end),
                )
                q, k, v = (tensors[f"model.layers.1.self_attn.{n}_proj.{ending}"][2] for n in "qkv")
                head = D // unit  # group tp: two q heads, its k head, its v head
                self.assertEqual(
                    got[f"decoder.layers.1.self_attention.linear_qkv.{ending}"],
                    rows(q, width, 2 * tp * head, 2 * (tp + 1) * head)
                    + rows(k, width, tp * head, (tp + 1) * head)
                    + rows(v, width, tp * head, (tp + 1) * head),
                )

    def test_what_does_not_fit_is_refused_by_name(self):
        quantization, parts = FORMATS["blocks"]
        config, tensors = CONFIG | {"quantization_config": quantization}, model("bad", parts)
        scale = "model.layers.1.mlp.down_proj.weight_scale_inv"

        def refused(changed, *flags, config=config):
            source = self.directory(config, changed)
            return self.c.refuse("model", "import", source, "--name", "refused", *flags)

        self.assertIn(
            f"'{scale[:-10]}' is F8_E4M3 and has no scale",
            refused({n: t for n, t in tensors.items() if n != scale}),
        )
        self.assertIn(
            f"scale '{scale}' has shape [4,5]",
            refused(tensors | {scale: tensor(random.Random(1), "F32", [4, 5])}),
        )
        stray = "model.layers.1.mlp.x_proj.weight_scale"
        self.assertIn(
            f"scale '{stray}' has no weight",
            refused(tensors | {stray: tensor(random.Random(1), "F32", [])}),
        )
        self.assertIn("tp 4 cuts the 48 rows", text := refused(tensors, "--tp", 4))
        self.assertIn("use tp 1, 2", text)
        self.assertIn(
            "'gptq' can't be sliced",
            refused(tensors, config=CONFIG | {"quantization_config": {"quant_method": "gptq"}}),
        )
        self.assertNotIn("refused", self.c.run("model", "ls").stdout)


RANK = 4
PEFT = {
    "peft_type": "LORA",
    "base_model_name_or_path": "someone/tiny",
    "r": RANK,
    "lora_alpha": 8,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
}


def adapter(seed, layers=LAYERS, hidden=H):
    rng, out = random.Random(seed), {}
    for layer in range(layers):
        for name, (outputs, inputs) in MATRICES.items():
            at = f"base_model.model.model.layers.{layer}.{name}"
            out[f"{at}.lora_A.weight"] = tensor(
                rng, "F32", [RANK, hidden if inputs == H else inputs]
            )
            out[f"{at}.lora_B.weight"] = tensor(rng, "F32", [outputs, RANK])
    return out


class Adapters(Models):
    def peft(self, tensors, config=PEFT):
        return self.directory(config, tensors, "adapter_model.safetensors", "adapter_config.json")

    def base(self, *split):
        return self.load(
            self.directory(CONFIG, model("base", [("weight", "BF16", lambda r, c: [r, c])])), *split
        )

    def test_an_adapter_is_split_as_its_base_and_comes_out_as_it_came_in(self):
        tensors = adapter("lora")
        source = self.peft(tensors)
        for tp, pp in ((1, 1), (2, 1), (2, 2)):
            with self.subTest(tp=tp, pp=pp):
                base = self.base("--tp", tp, "--pp", pp)
                name = self.load(source, "--base", base)
                shown = self.c.json("model", "show", name)
                self.assertEqual((shown["tp"], shown["pp"]), (tp, pp))
                out = self.same_out(name, tensors, "adapter_model.safetensors")
                self.assertEqual(json.loads((out / "adapter_config.json").read_text()), PEFT)
                self.assertEqual(
                    sorted(f.name for f in out.iterdir()),
                    ["adapter_config.json", "adapter_model.safetensors"],
                )

    def test_a_rank_has_a_and_b_of_its_slice_of_the_base(self):
        tensors = adapter("lora")
        name = self.load(self.peft(tensors), "--base", self.base("--tp", 2, "--pp", 2))

        def half(module, letter):
            return tensors[f"base_model.model.model.layers.1.{module}.lora_{letter}.weight"][2]

        for tp in range(2):
            got = {n: t for n, t in self.rank(name, 1, tp).items()}
            for module, hf, outputs in (
                ("self_attention.linear_qkv.adapter.adapter_q", "self_attn.q_proj", HEADS * D),
                ("self_attention.linear_qkv.adapter.adapter_v", "self_attn.v_proj", GROUPS * D),
                ("mlp.linear_fc1.adapter.adapter_up", "mlp.up_proj", FFN),
            ):
                at = f"decoder.layers.0.{module}"
                self.assertEqual(got[f"{at}.linear_in.weight"], half(hf, "A"))
                self.assertEqual(
                    got[f"{at}.linear_out.weight"],
                    rows(half(hf, "B"), 4 * RANK, tp * outputs // 2, (tp + 1) * outputs // 2),
                )
            at, a = "decoder.layers.0.mlp.linear_fc2.adapter", half("mlp.down_proj", "A")
            self.assertEqual(got[f"{at}.linear_out.weight"], half("mlp.down_proj", "B"))
            self.assertEqual(
                got[f"{at}.linear_in.weight"],
                b"".join(
                    rows(a[4 * FFN * r :], 4, tp * FFN // 2, (tp + 1) * FFN // 2)
                    for r in range(RANK)
                ),
            )

    def test_an_adapter_is_read_at_any_layout(self):
        source = self.peft(adapter("lora"))
        stored = self.load(source, "--base", self.base())
        for tp, pp in ((1, 2), (2, 1), (2, 2)):
            fresh = self.load(source, "--base", self.base("--tp", tp, "--pp", pp))
            for rank in range(tp * pp):
                at = (rank // tp, rank % tp)
                with self.subTest(tp=tp, pp=pp, rank=rank):
                    self.assertEqual(
                        self.rank(stored, *at, tp_size=tp, pp_size=pp), self.rank(fresh, *at)
                    )

    def test_an_adapter_has_the_sizes_of_its_base(self):
        source, base = self.peft(adapter("lora")), self.base()
        text = self.c.refuse(
            "model", "import", source, "--name", "sized", "--base", base, "--tp", 2
        )
        self.assertIn("an adapter has the layout of its base", text)

    def test_an_adapter_is_no_checkpoint_of_megatron(self):
        name = self.load(self.peft(adapter("lora")), "--base", self.base())
        text = self.c.refuse(
            "model", "export", name, "--format", "torch", "--out", self.c.dir / "megatron"
        )
        self.assertIn("is a LoRA adapter without its base, which Megatron can't load", text)

    def test_the_base_that_the_adapter_names_needs_no_flag(self):
        tensors, base = adapter("lora"), self.base("--tp", 2)
        source = self.peft(tensors, PEFT | {"base_model_name_or_path": f"/models/{base}"})
        said = self.c.json("model", "import", source, "--name", "named")
        self.assertEqual(said["tp"], 2)
        self.same_out("named", tensors, "adapter_model.safetensors")

    def test_an_adapter_for_another_base_is_refused_by_name(self):
        base, source = self.base(), self.peft(adapter("lora"))

        def refused(directory, *flags):
            return self.c.refuse("model", "import", directory, "--name", "refused", *flags)

        self.assertIn(
            "is a LoRA adapter", text := refused(self.peft(adapter("lora"), {"peft_type": "LORA"}))
        )
        self.assertIn("--base", text)
        for flags, name in ((), "tiny"), (("--base", "nobody"), "nobody"):
            self.assertIn(
                (
                    "the base of the adapter, named by --base or else by adapter_config.json:"
                    f" model '{name}' does not exist"
                ),
                refused(source, *flags),
            )
        self.assertIn(
            "no matrix 'model.layers.2.",
            refused(self.peft(adapter("deep", layers=3)), "--base", base),
        )
        self.assertIn(
            "has shape [4,40]", refused(self.peft(adapter("wide", hidden=40)), "--base", base)
        )
        self.assertIn(
            "'IA3'",
            refused(self.peft(adapter("lora"), PEFT | {"peft_type": "IA3"}), "--base", base),
        )
        self.assertIn(
            "adapter itself", refused(source, "--base", self.load(source, "--base", base))
        )
        plain = self.directory(CONFIG, model("base", [("weight", "BF16", lambda r, c: [r, c])]))
        self.assertIn("holds no adapter_config.json", refused(plain, "--base", base))


if __name__ == "__main__":
    unittest.main(verbosity=2)
