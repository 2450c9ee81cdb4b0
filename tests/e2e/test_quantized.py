#!/usr/bin/python3
"""Quantized checkpoints as libraries write them: each is imported at two layouts, read at the other
one and exported bit for bit; or it is refused with a text that names the tensor and the remedy, and
imported with --unsliced."""
from __future__ import annotations

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support.dense_models import (  # noqa: E402
    ATTENTION,
    FFN,
    FOUR_NORMS,
    GATED,
    GROUPS,
    H,
    NORMS,
    QK_NORMS,
)
from support.published import E, SIZES, PublishedCase, ends, flat, layers  # noqa: E402

import helios  # noqa: E402

LLAMA, QWEN3 = ATTENTION | GATED | NORMS, ATTENTION | GATED | NORMS | QK_NORMS
LINEAR = "_proj.weight"


def moe(under, names, width=FFN):
    """One tensor for each expert and matrix; names of gate, up, down."""
    gate, up, down = names
    return {
        f"{under}{e}.{n}.weight": s
        for e in range(E)
        for n, s in ((gate, [width, H]), (up, [width, H]), (down, [H, width]))
    }


def quantized(shapes, parts, keep=lambda name: False, ends_with=LINEAR):
    """Every linear layer of two dimensions as in `parts`: [(ending instead of weight, dtype,
    shape of rows and columns)]."""
    out = {}
    for name, shape in shapes.items():
        if not name.endswith(ends_with) or keep(name):
            out[name] = shape
            continue
        for ending, dtype, of in parts:
            out[name.removesuffix("weight") + ending] = (dtype, of(*shape))
    return out


def blocks(dtype="F32", scale="weight_scale_inv", size=8):
    return [
        ("weight", "F8_E4M3", lambda r, c: [r, c]),
        (scale, dtype, lambda r, c: [-(-r // size), -(-c // size)]),
    ]


ROWS = [("weight", "F8_E4M3", lambda r, c: [r, c]), ("weight_scale", "BF16", lambda r, c: [r, 1])]
NUMBERS = [
    ("weight", "F8_E4M3", lambda r, c: [r, c]),
    ("weight_scale", "F32", lambda r, c: []),
    ("input_scale", "F32", lambda r, c: []),
]
NVFP4 = [
    ("weight_packed", "U8", lambda r, c: [r, c // 2]),
    ("weight_scale", "F8_E4M3", lambda r, c: [r, c // 16]),
    ("weight_global_scale", "F32", lambda r, c: [1]),
    ("input_global_scale", "F32", lambda r, c: [1]),
]
INT4 = [
    ("weight_packed", "I32", lambda r, c: [r, c // 8]),
    ("weight_scale", "BF16", lambda r, c: [r, c // 16]),
    ("weight_shape", "I64", lambda r, c: [2]),
]
GPTQ = [
    ("qweight", "I32", lambda r, c: [c // 8, r]),
    ("qzeros", "I32", lambda r, c: [c // 16, r // 8]),
    ("scales", "F16", lambda r, c: [c // 16, r]),
    ("g_idx", "I32", lambda r, c: [c]),
]


def config(kind, method, **more):
    return {"model_type": kind, **SIZES, **more, "quantization_config": {"quant_method": method}}


def with_blocks(kind, **more):
    return {
        **config(kind, "fp8", **more),
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [8, 8],
            "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn.o_proj"],
        },
    }


class Quantized(PublishedCase):
    def test_fp8_of_fbgemm_with_the_bound_of_its_inputs(self):
        parts = [
            *ROWS[:1],
            ("weight_scale", "F32", lambda r, c: [r, 1]),
            ("input_scale_ub", "F32", lambda r, c: [1]),
        ]
        self.check(
            config("llama", "fbgemm_fp8"),
            ends() | layers("model.layers.", quantized(LLAMA, parts, lambda n: "self_attn" in n)),
        )

    def test_fp8_in_blocks_with_modules_that_were_left_out(self):
        shapes = quantized(
            layers("model.layers.", QWEN3),
            blocks("BF16"),
            lambda n: n == "model.layers.0.self_attn.o_proj.weight",
        )
        self.check(with_blocks("qwen3"), ends() | shapes)
        self.check(with_blocks("qwen3", tie_word_embeddings=True), ends(tied=True) | shapes)

    def test_blocks_that_are_said_of_the_text_model_only(self):
        inner = {k: v for k, v in with_blocks("gemma3_text").items()}
        shapes = quantized(ATTENTION | GATED | FOUR_NORMS | QK_NORMS, blocks())
        self.check(
            {"model_type": "gemma3", "text_config": inner},
            ends("language_model.model.", tied=True)
            | layers("language_model.model.layers.", shapes),
        )

    def pairs(self, state, weight, rows):
        """Rows of (bytes, scales) of a matrix: each row with its scales."""
        w, scale = flat(state[weight]).reshape(state[weight].shape), state[weight + "_scale_inv"]
        return [
            (w[r].numpy().tobytes(), flat(scale[r // rows]).numpy().tobytes())
            for r in range(w.shape[0])
        ]

    def test_blocks_that_end_inside_heads_and_gates(self):
        # Heads have 8 rows and blocks 12: in QKV a scale covers 4 rows; in gate and up,
        # of 128 rows each, too.
        said = {
            **config("llama", "fp8"),
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [12, 4]},
        }
        parts = [
            ("weight", "F8_E4M3", lambda r, c: [r, c]),
            ("weight_scale_inv", "F32", lambda r, c: [-(-r // 12), -(-c // 4)]),
        ]
        one = self.check(said, ends() | layers("model.layers.", quantized(LLAMA, parts)))
        with helios.Session(self.c.info["controller"]) as me:
            state = me.load_state_dict(one, pp=0, tp=1, tp_size=2, pp_size=1)
            whole = me.load_state_dict(
                self.c.take(self.c.dir / f"source-{self.count}", "--unsliced"), pp=0, tp=0
            )
        matrices = {
            n: self.pairs(whole, f"model.layers.1.{n}_proj.weight", 12)
            for n in ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
        }
        q, k, v, gate, up = matrices.values()
        self.assertEqual(
            self.pairs(state, "decoder.layers.1.self_attention.linear_qkv.weight", 4),
            q[16:] + k[8:] + v[8:],
        )
        self.assertEqual(
            self.pairs(state, "decoder.layers.1.mlp.linear_fc1.weight", 4), gate[64:] + up[64:]
        )
        self.assertTrue(self.c.json("model", "show", one)["versions"][0]["proved"])

    def test_half_a_block_at_the_end_of_gate(self):
        # As in DeepSeek-V2-Lite: 85.5 blocks of 128 rows.
        # No even division falls on a block boundary.
        width, said = 84, with_blocks("llama", intermediate_size=84)
        mlp = {
            "mlp.gate_proj.weight": [width, H],
            "mlp.up_proj.weight": [width, H],
            "mlp.down_proj.weight": [H, width],
        }
        home, tensors = self.refused(
            said,
            ends() | layers("model.layers.", quantized(ATTENTION | NORMS | mlp, blocks())),
            "tp 2 cuts the 84 ",
            "blocks of ",
            "use tp 1",
            tp=2,
        )
        self.same_out(self.c.take(home, "--pp", 2), tensors, said)

    def test_scales_of_a_quantized_cache(self):
        own = {"self_attn.k_proj.k_scale": ("F32", []), "self_attn.v_proj.v_scale": ("F32", [])}
        one = self.check(
            config("llama", "modelopt"),
            ends() | layers("model.layers.", quantized(LLAMA, NUMBERS) | own),
        )
        # only the cache is quantized
        self.check({"model_type": "llama", **SIZES}, ends() | layers("model.layers.", LLAMA | own))
        more = {
            f"self_attn.{n}_proj.{end}": ("F32", [])
            for n, end in (
                ("q", "q_scale"),
                ("q", "output_scale"),
                ("v", "output_scale"),
                ("o", "output_scale"),
            )
        }
        more |= {
            f"{n}_proj.act_scale": ("F32", [1])
            for n in (
                "self_attn.q",
                "self_attn.k",
                "self_attn.v",
                "self_attn.o",
                "mlp.gate",
                "mlp.up",
                "mlp.down",
            )
        }
        self.check(
            config("llama", "fp8"),
            ends() | layers("model.layers.", quantized(LLAMA, NUMBERS) | own | more),
        )
        beside = {f"self_attn.{n}_scale": ("BF16", [1]) for n in ("q", "k", "v", "prob")}
        self.check(
            config("qwen3", "compressed-tensors"),
            ends() | layers("model.layers.", quantized(QWEN3, ROWS) | beside),
        )
        with helios.Session(self.c.info["controller"]) as me:
            state = me.load_state_dict(one, pp=1, tp=1, pp_size=2, tp_size=2)
        self.assertEqual(
            {n for n in state if n.endswith(("k_scale", "v_scale"))},
            {f"decoder.layers.0.self_attention.linear_qkv.{n}_scale" for n in "kv"},
        )

    def test_fp8_with_one_number_and_with_experts(self):
        layer = (
            ATTENTION
            | NORMS
            | {"block_sparse_moe.gate.weight": [E, H]}
            | moe("block_sparse_moe.experts.", ("w1", "w3", "w2"))
        )
        shapes = quantized(layer, NUMBERS, lambda n: "gate" in n or "norm" in n, "weight")
        self.check(
            config("mixtral", "fp8", num_local_experts=E),
            ends() | layers("model.layers.", shapes),
            experts=True,
        )

    def test_qwen3_moe_in_blocks(self):
        layer = (
            QWEN3
            | {"mlp.gate.weight": [E, H]}
            | moe("mlp.experts.", ("gate_proj", "up_proj", "down_proj"), 16)
        )
        layer = {
            n: s
            for n, s in layer.items()
            if not n.startswith("mlp.") or "mlp.gate." in n or "experts" in n
        }
        self.check(
            with_blocks("qwen3_moe", num_experts=E, moe_intermediate_size=16),
            ends() | layers("model.layers.", quantized(layer, blocks())),
            experts=True,
        )

    def test_nvfp4_of_compressed_tensors(self):
        self.check(
            config("llama", "compressed-tensors"),
            ends() | layers("model.layers.", quantized(LLAMA, NVFP4)),
        )

    LLAMA4 = {"num_local_experts": E, "interleave_moe_layer_step": 1, "intermediate_size_mlp": FFN}
    SHARED = (
        ATTENTION
        | NORMS
        | {
            "feed_forward.router.weight": [E, H],
            "feed_forward.shared_expert.gate_proj.weight": [FFN, H],
            "feed_forward.shared_expert.up_proj.weight": [FFN, H],
            "feed_forward.shared_expert.down_proj.weight": [H, FFN],
        }
    )

    def llama4(self, layer, method):
        body = "language_model.model."
        return (
            {
                "model_type": "llama4",
                "text_config": {**SIZES, **self.LLAMA4},
                "quantization_config": {"quant_method": method},
            },
            ends(body, "language_model.") | layers(body + "layers.", layer),
        )

    def test_llama4_with_experts_one_by_one(self):
        layer = self.SHARED | moe("feed_forward.experts.", ("gate_proj", "up_proj", "down_proj"))
        self.check(*self.llama4(layer, "compressed-tensors"), experts=True)
        kept = ("self_attn", "router", "norm")
        self.check(
            *self.llama4(
                quantized(layer, ROWS, lambda n: any(k in n for k in kept)), "compressed-tensors"
            ),
            experts=True,
        )
        self.check(
            *self.llama4(
                quantized(layer, NVFP4, lambda n: any(k in n for k in kept)), "compressed-tensors"
            ),
            experts=True,
        )

    def test_llama4_with_all_experts_in_one(self):
        at = "feed_forward.experts."
        for dtype, per, scales in (
            (
                "U8",
                2,
                {
                    "weight_scale": ("F8_E4M3", lambda i, o: [E, i // 16, o]),
                    "weight_scale_2": ("F32", lambda i, o: []),
                    "input_scale": ("F32", lambda i, o: []),
                },
            ),
            (
                "F8_E4M3",
                1,
                {"weight_scale": ("F32", lambda i, o: []), "input_scale": ("F32", lambda i, o: [])},
            ),
            (
                "F8_E4M3",
                1,
                {
                    "weight_scale": ("F32", lambda i, o: [E]),
                    "input_scale": ("F32", lambda i, o: [1]),
                },
            ),
            ("F8_E4M3", 1, {"scale": ("F32", lambda i, o: [E, 1, o])}),
        ):
            layer = dict(self.SHARED)
            for name, inside, out in (("gate_up_proj", H, 2 * FFN), ("down_proj", FFN, H)):
                layer[at + name] = (dtype, [E, inside // per, out])
                layer |= {
                    f"{at}{name}_{n}": (d, shape(inside, out)) for n, (d, shape) in scales.items()
                }
            with self.subTest(dtype=dtype, scales=list(scales)):
                self.check(*self.llama4(layer, "modelopt"), experts=True)

    def refused(self, config_, shapes, *says, tp=1):
        home, tensors = self.write(config_, shapes)
        text = self.c.refuse("model", "import", home, "--name", "refused", "--tp", tp)
        for part in says:
            self.assertIn(part, text)
        self.assertNotIn("refused", self.c.run("model", "ls").stdout)
        return home, tensors

    def test_what_can_not_be_sliced_is_refused_and_taken_unsliced(self):
        for title, config_, parts, says in (
            (
                "INT4",
                config("llama", "compressed-tensors"),
                INT4,
                (".weight_packed' has dtype I32", "--unsliced"),
            ),
            ("GPTQ", config("llama", "gptq"), GPTQ, ("'gptq' can't be sliced", "--unsliced")),
        ):
            with self.subTest(title):
                shapes = ends() | layers("model.layers.", quantized(LLAMA, parts))
                home, tensors = self.refused(config_, shapes, *says)
                name = self.c.take(home, "--unsliced")
                self.same_out(name, tensors, config_)
                self.assertIn(
                    "--unsliced", self.c.json("model", "show", name)["config"]["unslicedBecause"]
                )
                with helios.Session(self.c.info["controller"]) as me:
                    state = me.load_state_dict(name, pp=1, tp=1, tp_size=2, pp_size=2)
                self.assertEqual(
                    {n: flat(t).numpy().tobytes() for n, t in state.items()},
                    {n: data for n, (_, _, data) in tensors.items()},
                )

    def test_scales_that_stand_for_nothing_are_refused_by_name(self):
        heads = {"self_attn.k_scale": ("F32", [GROUPS])}
        self.refused(
            config("llama", "compressed-tensors"),
            ends() | layers("model.layers.", LLAMA | heads),
            "scale 'model.layers.0.self_attn.k_scale' has shape [2]",
            "--unsliced",
        )
        lost = quantized(layers("model.layers.", LLAMA), NUMBERS)
        del lost["model.layers.1.self_attn.q_proj.input_scale"]
        self.refused(
            config("llama", "modelopt"),
            ends() | lost,
            "scale 'model.layers.1.self_attn.q_proj.input_scale' is missing",
            "incomplete",
        )
        at = "language_model.model.layers.0.feed_forward.experts.gate_up_proj"
        layer = self.SHARED | {
            "feed_forward.experts.gate_up_proj": ("F8_E4M3", [E, H, 2 * FFN]),
            "feed_forward.experts.gate_up_proj_weight_scale": ("F32", [E, 3, 2 * FFN]),
            "feed_forward.experts.down_proj": [E, FFN, H],
        }
        self.refused(
            *self.llama4(layer, "modelopt"),
            f"scale '{at}_weight_scale' has shape [4,3,256]",
            "--unsliced",
        )

    def test_a_checkpoint_is_unsliced_only_where_it_can_be(self):
        home, tensors = self.write(
            {"model_type": "llama", **SIZES}, ends() | layers("model.layers.", LLAMA)
        )
        name = self.c.take(home, "--unsliced")
        self.same_out(name, tensors, {"model_type": "llama"})
        text = self.c.refuse("model", "import", home, "--name", "sliced", "--unsliced", "--tp", 2)
        self.assertIn("'tp' does not apply", text)
        (home / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        self.assertIn(
            "leave --unsliced out",
            self.c.refuse("model", "import", home, "--name", "adapter", "--unsliced"),
        )

    def test_hf_quant_config_comes_out_again(self):
        said = {
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
        }
        home, tensors = self.write(
            {"model_type": "llama", **SIZES},
            ends() | layers("model.layers.", quantized(LLAMA, NUMBERS)),
        )
        (home / "hf_quant_config.json").write_text(json.dumps(said))
        for flags in (("--tp", 2), ("--unsliced",)):
            out = self.c.export(self.c.take(home, *flags))
            self.assertEqual(json.loads((out / "hf_quant_config.json").read_text()), said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
