#!/usr/bin/python3
"""Checkpoints as they are published, with tensors besides the model's: each is imported, read at
another layout and exported, tensor by tensor; or it is refused by name."""
from __future__ import annotations

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support import checkpoints  # noqa: E402
from support.dense_models import (  # noqa: E402
    ATTENTION,
    D,
    FFN,
    FOUR_NORMS,
    GATED,
    GPT2,
    GROUPS,
    H,
    HEADS,
    NEOX,
    NORMS,
    QK_NORMS,
    VOCAB,
)
from support.published import E, LAYERS, SIZES, PublishedCase, ends, layers  # noqa: E402

import helios  # noqa: E402

LLAMA = ATTENTION | GATED | NORMS
GEMMA3 = LLAMA | FOUR_NORMS | QK_NORMS
LLAMA4 = (
    ATTENTION
    | NORMS
    | {
        "feed_forward.router.weight": [E, H],
        "feed_forward.experts.gate_up_proj": [E, H, 2 * FFN],
        "feed_forward.experts.down_proj": [E, FFN, H],
        "feed_forward.shared_expert.gate_proj.weight": [FFN, H],
        "feed_forward.shared_expert.up_proj.weight": [FFN, H],
        "feed_forward.shared_expert.down_proj.weight": [H, FFN],
    }
)
OSS = (
    ATTENTION
    | NORMS
    | {
        "self_attn.q_proj.bias": [HEADS * D],
        "self_attn.k_proj.bias": [GROUPS * D],
        "self_attn.v_proj.bias": [GROUPS * D],
        "self_attn.o_proj.bias": [H],
        "self_attn.sinks": [HEADS],
        "mlp.router.weight": [E, H],
        "mlp.router.bias": [E],
        "mlp.experts.gate_up_proj_blocks": ("U8", [E, 2 * FFN, H // 32, 16]),
        "mlp.experts.gate_up_proj_scales": ("U8", [E, 2 * FFN, H // 32]),
        "mlp.experts.gate_up_proj_bias": [E, 2 * FFN],
        "mlp.experts.down_proj_blocks": ("U8", [E, H, FFN // 32, 16]),
        "mlp.experts.down_proj_scales": ("U8", [E, H, FFN // 32]),
        "mlp.experts.down_proj_bias": [E, H],
    }
)
VISION = {
    "patch_embedding.weight": [6, 3, 2, 2],
    "encoder.layers.0.self_attn.q_proj.weight": [6, 6],
    "encoder.layers.0.mlp.fc1.bias": [12],
    "layers.0.input_layernorm.weight": [6],
}


class Published(PublishedCase):
    def test_gpt2_without_a_prefix_and_with_masks(self):
        config = {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": LAYERS,
            "n_embd": H,
            "n_head": HEADS,
            "n_inner": FFN,
            "vocab_size": VOCAB,
            "n_positions": 16,
            "n_ctx": 16,
        }
        masks = layers("h.", {"attn.bias": [1, 1, 16, 16]})
        rest = {
            "wte.weight": [VOCAB, H],
            "wpe.weight": [16, H],
            "ln_f.weight": [H],
            "ln_f.bias": [H],
        } | layers("h.", GPT2)
        self.check(config, rest | masks, dtype="F32", dropped=masks)
        under = {
            f"transformer.{n}": s
            for n, s in (rest | masks | layers("h.", {"attn.masked_bias": []})).items()
        }
        self.check(
            config,
            under | {"lm_head.weight": [VOCAB, H]},
            dtype="F32",
            dropped=[
                n
                for n in under
                if "attn." in n and n.split(".")[-1] in ("bias", "masked_bias") and ".c_" not in n
            ],
            same=[("lm_head.weight", "transformer.wte.weight")],
        )

    def test_rotary_tables(self):
        tables = layers("model.layers.", {"self_attn.rotary_emb.inv_freq": ("F32", [D // 2])})
        self.check(
            {"model_type": "llama", **SIZES},
            ends() | layers("model.layers.", LLAMA) | tables,
            dropped=tables,
        )
        masks = layers(
            "gpt_neox.layers.",
            {
                "attention.bias": ("BOOL", [1, 1, 16, 16]),
                "attention.masked_bias": [],
                "attention.rotary_emb.inv_freq": ("F32", [2]),
            },
        )
        rest = {
            "gpt_neox.embed_in.weight": [VOCAB, H],
            "gpt_neox.final_layer_norm.weight": [H],
            "gpt_neox.final_layer_norm.bias": [H],
            "embed_out.weight": [VOCAB, H],
        } | layers("gpt_neox.layers.", NEOX)
        self.check({"model_type": "gpt_neox", **SIZES}, rest | masks, dtype="F16", dropped=masks)

    def test_a_tied_head_that_is_there(self):
        for kind, layer in (("llama", LLAMA), ("gemma3_text", GEMMA3)):
            self.check(
                {"model_type": kind, **SIZES, "tie_word_embeddings": True},
                ends() | layers("model.layers.", layer),
                same=[("lm_head.weight", "model.embed_tokens.weight")],
            )

    def test_a_tied_head_that_differs_is_refused_by_name(self):
        home, _ = self.write(
            {"model_type": "llama", **SIZES, "tie_word_embeddings": True},
            ends() | layers("model.layers.", LLAMA),
        )
        text = self.c.refuse("model", "import", home, "--name", "differs")
        self.assertIn("lm_head.weight", text)
        self.assertIn("tie_word_embeddings", text)

    def test_a_class_in_place_of_the_type(self):
        self.check(
            {"architectures": ["MistralForCausalLM"], **SIZES},
            ends() | layers("model.layers.", LLAMA),
        )

    def test_norms_and_heads_of_other_dtypes(self):
        mixed = {
            n: ("F32", s) if "norm" in n else ("F16", s) if "lm_head" in n else s
            for n, s in (ends() | layers("model.layers.", LLAMA)).items()
        }
        self.check({"model_type": "llama", **SIZES}, mixed)

    def test_files_that_the_index_does_not_name(self):
        home, tensors = self.write(
            {"model_type": "mistral", **SIZES}, ends() | layers("model.layers.", LLAMA)
        )
        names = sorted(tensors)
        halves = [names[::2], names[1::2]]
        (home / "model.safetensors").rename(home / "consolidated.safetensors")
        for i, half in enumerate(halves):
            checkpoints.write_mixed(
                home / f"model-0000{i + 1}-of-00002.safetensors", {n: tensors[n] for n in half}
            )
        (home / "model.safetensors.index.json").write_text(
            json.dumps(
                {
                    "metadata": {"total_size": 1},
                    "weight_map": {
                        n: f"model-0000{i + 1}-of-00002.safetensors"
                        for i, half in enumerate(halves)
                        for n in half
                    },
                }
            )
        )
        (home / "original").mkdir()
        (home / "original" / "consolidated.00.pth").write_bytes(b"no checkpoint")
        (home / "tokenizer.json").write_text("{}")
        got, _ = self.exported(self.c.take(home, "--tp", 2))
        self.assertEqual(got, tensors)

    def test_experts_of_gpt_oss_in_mxfp4(self):
        config = {
            "model_type": "gpt_oss",
            "architectures": ["GptOssForCausalLM"],
            **SIZES,
            "num_local_experts": E,
            "attention_bias": True,
            "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
        }
        self.check(config, ends() | layers("model.layers.", OSS), experts=True)

    def test_deepseek_v3_in_fp8_with_its_layer_that_predicts_one_more_token(self):
        # Blocks and heads are a sixteenth: kv_a_proj_with_mqa has 4.5 blocks of rows and a head of
        # q_b_proj 1.5, as published.
        low = {
            "self_attn.q_a_proj.weight": [16, H],
            "self_attn.q_a_layernorm.weight": [16],
            "self_attn.q_b_proj.weight": [HEADS * 12, 16],
            "self_attn.kv_a_proj_with_mqa.weight": [36, H],
            "self_attn.kv_a_layernorm.weight": [32],
            "self_attn.kv_b_proj.weight": [HEADS * 16, 32],
            "self_attn.o_proj.weight": [H, HEADS * 8],
        } | NORMS
        ffn = 16
        matrices = {
            "gate_proj.weight": [ffn, H],
            "up_proj.weight": [ffn, H],
            "down_proj.weight": [H, ffn],
        }
        moe = {
            f"mlp.{at}.{n}": s
            for at in [*(f"experts.{e}" for e in range(E)), "shared_experts"]
            for n, s in matrices.items()
        }
        moe |= {"mlp.gate.weight": [E, H], "mlp.gate.e_score_correction_bias": ("F32", [E])}
        mtp = {
            "enorm.weight": [H],
            "hnorm.weight": [H],
            "eh_proj.weight": [H, 2 * H],
            "shared_head.norm.weight": [H],
        }
        shapes = ends() | {f"model.layers.0.{n}": s for n, s in (low | GATED).items()}
        shapes |= {f"model.layers.{i}.{n}": s for i in (1, 2) for n, s in (low | moe).items()}
        shapes |= {f"model.layers.2.{n}": s for n, s in mtp.items()}
        for name in [
            n
            for n in shapes
            if n.endswith(("_proj.weight", "_with_mqa.weight")) and "eh_proj" not in n
        ]:
            rows, cols = shapes[name]
            shapes[name] = ("F8_E4M3", [rows, cols])
            shapes[name + "_scale_inv"] = ("F32", [-(-rows // 8), -(-cols // 8)])
        config = {
            "model_type": "deepseek_v3",
            **{k: v for k, v in SIZES.items() if k != "head_dim"},
            "moe_intermediate_size": ffn,
            "n_routed_experts": E,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "num_nextn_predict_layers": 1,
            "quantization_config": {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "weight_block_size": [8, 8],
            },
        }
        self.check(
            config,
            shapes,
            experts=True,
            same=[
                ("model.layers.2.embed_tokens.weight", "model.embed_tokens.weight"),
                ("model.layers.2.shared_head.head.weight", "lm_head.weight"),
            ],
        )

    def test_text_models_inside_others(self):
        nested = {
            "model_type": "gemma3",
            "architectures": ["Gemma3ForConditionalGeneration"],
            "text_config": {"model_type": "gemma3_text", **SIZES},
            "vision_config": {"model_type": "siglip_vision_model"},
        }
        for body, under in (("language_model.model.", ""), ("model.language_model.", "model.")):
            vision = {f"{under}vision_tower.vision_model.{n}": s for n, s in VISION.items()}
            vision |= {f"{under}multi_modal_projector.mm_input_projection_weight": [6, H]}
            self.check(nested, ends(body, tied=True) | layers(body + "layers.", GEMMA3) | vision)
        llama4 = {
            "model_type": "llama4",
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": {
                "model_type": "llama4_text",
                **SIZES,
                "intermediate_size_mlp": FFN,
                "num_local_experts": E,
                "interleave_moe_layer_step": 1,
            },
            "vision_config": {"model_type": "llama4_vision_model"},
        }
        vision = {f"vision_model.{n}": s for n, s in VISION.items()} | {
            "multi_modal_projector.linear_1.weight": [H, 6]
        }
        self.check(
            llama4,
            ends("language_model.model.", "language_model.")
            | layers("language_model.model.layers.", LLAMA4)
            | vision,
            experts=True,
        )

    def test_a_vision_part_is_whole_on_every_rank_of_the_first_stage_and_is_saved_there(self):
        config = {"model_type": "gemma3", "text_config": SIZES}
        vision = {f"vision_tower.vision_model.{n}": s for n, s in VISION.items()}
        home, tensors = self.write(
            config,
            ends("language_model.model.", tied=True)
            | layers("language_model.model.layers.", GEMMA3)
            | vision,
        )
        name = self.c.take(home, "--tp", 2, "--pp", 2, "--naming", "te")
        for pp, tp in ((p, t) for p in range(2) for t in range(2)):
            rank = helios.Rank(
                job="vision",
                model=name,
                pp=pp,
                tp=tp,
                pp_size=2,
                tp_size=2,
                world_size=4,
                global_rank=2 * pp + tp,
            )
            with helios.Session(self.c.info["controller"], rank=rank) as me:
                state = me.load_state_dict(naming="local")
                self.assertEqual(
                    {n for n in state if n in vision}, set(vision) if pp == 0 else set()
                )
                for n in (n for n in state if n in vision):
                    self.assertEqual(
                        state[n].contiguous().view(torch.uint8).numpy().tobytes(), tensors[n][2]
                    )
                saved = me.save_state_dict(
                    {n: t + 1 if n in vision else t for n, t in state.items()}, step=1
                )
        self.assertTrue(saved.visible)
        said = self.c.json("model", "verify", f"{name}@2")
        self.assertTrue(said["proved"], said)
        got, _ = self.exported(name)
        self.assertEqual({n for n in got if got[n] != tensors[n]}, set(vision))
        with helios.Session(self.c.info["controller"]) as me:
            cut = me.load_state_dict(name, pp=0, tp=3, tp_size=4, pp_size=1)
        self.assertEqual({n for n in cut if n in vision}, set(vision))


if __name__ == "__main__":
    unittest.main(verbosity=2)
