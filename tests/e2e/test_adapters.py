#!/usr/bin/python3
"""Adapters as PEFT writes them with options other than the defaults: each is imported beside its
base at two layouts, read at the other one and exported bit for bit; or it is refused with a text
that names the tensor and the remedy."""
from __future__ import annotations

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from support import needs  # noqa: E402

torch = needs.torch()
needs.programs()

from support.dense_models import (  # noqa: E402
    ATTENTION,
    BIASES,
    FFN,
    FOUR_NORMS,
    GATED,
    H,
    NORMS,
    PHI,
    QK_NORMS,
    VOCAB,
)
from support.published import E, SIZES, PublishedCase, ends, layers  # noqa: E402

import helios  # noqa: E402

LLAMA = ATTENTION | GATED | NORMS
UNDER = "base_model.model."
FILES = {"file": "adapter_model.safetensors", "config_file": "adapter_config.json"}
PEFT = {
    "peft_type": "LORA",
    "r": 4,
    "lora_alpha": 8,
    "target_modules": "all-linear",
    "use_rslora": True,
    "bias": "none",
    "rank_pattern": {"down_proj": 2},
    "alpha_pattern": {"down_proj": 16},
    "base_model_name_or_path": "someone/tiny",
}
EXPERTS = {
    f"block_sparse_moe.experts.{e}.{n}.weight": s
    for e in range(E)
    for n, s in (("w1", [FFN, H]), ("w2", [H, FFN]), ("w3", [FFN, H]))
}
MIXTRAL = ATTENTION | NORMS | {"block_sparse_moe.gate.weight": [E, H]} | EXPERTS


def adapted(shapes, names, rank=4, more=()):
    """A and B of each matrix whose name ends with one of `names`;
    more: (ending, shape of its outputs) beside them."""
    out = {}
    for name, shape in shapes.items():
        if not any(name.endswith(f"{n}.weight") for n in names):
            continue
        at, r = UNDER + name.removesuffix(".weight"), (
            2 if "down_proj" in name or ".w2" in name else rank
        )
        out |= {f"{at}.lora_A.weight": [r, shape[1]], f"{at}.lora_B.weight": [shape[0], r]}
        out |= {f"{at}.{ending}": of(shape[0]) for ending, of in more}
    return out


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Adapters(PublishedCase):
    def bases(self, config, shapes, *more):
        home, _ = self.write(config, shapes)
        return self.c.take(home), self.c.take(home, "--tp", 2, "--pp", 2, *more)

    def adapter(self, shapes, same=(), **config):
        return self.write(PEFT | config, shapes, "F32", same, **FILES)

    def check_adapter(self, bases, shapes, experts=False, same=(), **config):
        home, tensors = self.adapter(shapes, same, **config)
        one, two = (self.c.take(home, "--base", base) for base in bases)
        for name in (one, two):
            self.same_out(name, tensors, PEFT | config, **FILES)
        self.same_ranks(one, two, experts)
        return one

    def refused(self, base, shapes, *says, **config):
        home, _ = self.adapter(shapes, **config)
        text = self.c.refuse("model", "import", home, "--name", "refused", "--base", base)
        for part in says:
            self.assertIn(part, text)

    def test_beside_llama(self):
        shapes = ends() | layers("model.layers.", LLAMA)
        bases = self.bases({"model_type": "llama", **SIZES}, shapes)
        vectors = [("lora_magnitude_vector", lambda n: [n])]
        dora = self.check_adapter(bases, adapted(shapes, LINEAR, more=vectors), use_dora=True)
        with helios.Session(self.c.info["controller"]) as me:
            state = me.load_state_dict(dora, pp=0, tp=1, tp_size=2, pp_size=1)
        self.assertEqual(
            tuple(
                state["decoder.layers.1.mlp.linear_fc1.adapter.adapter_up.weight_magnitude"].shape
            ),
            (FFN // 2,),
        )
        self.check_adapter(
            bases, adapted(shapes, LINEAR, more=[("lora_B.bias", lambda n: [n])]), lora_bias=True
        )
        self.check_adapter(
            bases,
            {n: s for n, s in adapted(shapes, LINEAR).items() if "layers.1." in n},
            layers_to_transform=[1],
        )
        self.check_adapter(bases, adapted(shapes, (*LINEAR, "lm_head")))
        whole = {
            UNDER + n: s
            for n, s in shapes.items()
            if "embed_tokens" in n or "lm_head" in n or "norm" in n
        }
        self.check_adapter(
            bases,
            adapted(shapes, LINEAR) | whole,
            modules_to_save=["embed_tokens", "lm_head", "norm"],
        )
        self.check_adapter(bases, {n: s for n, s in whole.items() if "embed_tokens" in n})

    def test_beside_a_base_with_a_tied_head_and_biases(self):
        shapes = ends(tied=True) | layers("model.layers.", LLAMA | BIASES)
        bases = self.bases({"model_type": "qwen2", **SIZES, "tie_word_embeddings": True}, shapes)
        whole = {UNDER + "model.embed_tokens.weight": [VOCAB, H]}
        biases = {UNDER + n: s for n, s in shapes.items() if n.endswith("bias")}
        self.check_adapter(bases, adapted(shapes, LINEAR) | whole | biases, bias="lora_only")
        self.check_adapter(
            bases, adapted(shapes, LINEAR) | whole, same=[(UNDER + "lm_head.weight", *whole)]
        )
        self.refused(
            bases[0],
            adapted(shapes, LINEAR) | {UNDER + "lm_head.weight": [VOCAB, H]},
            "base_model.model.lm_head.weight",
            "head is its embedding",
            "merge_and_unload",
        )
        some = {n: s for n, s in biases.items() if "k_proj" not in n}
        self.refused(
            bases[0],
            adapted(shapes, LINEAR) | some,
            "self_attn.k_proj.bias', but others that are fused with it",
        )

    def test_beside_fused_matrices(self):
        shapes = ends() | layers("model.layers.", PHI | NORMS)
        bases = self.bases({"model_type": "phi3", **SIZES}, shapes)
        self.check_adapter(
            bases,
            adapted(
                shapes,
                ("qkv_proj", "gate_up_proj", "down_proj"),
                more=[("lora_magnitude_vector", lambda n: [n])],
            ),
            use_dora=True,
        )

    def test_beside_experts(self):
        shapes = ends() | layers("model.layers.", MIXTRAL)
        bases = self.bases(
            {"model_type": "mixtral", **SIZES, "num_local_experts": E},
            shapes,
            "--ep",
            2,
            "--etp",
            1,
        )
        names = (*LINEAR, "w1", "w2", "w3", "gate")
        self.check_adapter(bases, adapted(shapes, names), experts=True)
        self.refused(
            bases[0],
            {
                n: s
                for n, s in adapted(shapes, names).items()
                if "experts.3.w1" not in n or "layers.1" not in n
            },
            "'model.layers.1.block_sparse_moe.experts.3.w1.weight'",
            "adapted in the same way",
            "merge_and_unload",
        )

    def test_under_the_names_of_another_class_than_the_bases_files(self):
        layer = ATTENTION | GATED | FOUR_NORMS | QK_NORMS
        shapes = ends("language_model.model.", tied=True) | layers(
            "language_model.model.layers.", layer
        )
        bases = self.bases({"model_type": "gemma3", "text_config": SIZES}, shapes)
        for body in ("language_model.model.", "model.language_model.", "model."):
            self.check_adapter(bases, adapted(layers(f"{body}layers.", layer), LINEAR))
        self.refused(
            bases[0],
            adapted(layers("language_model.model.layers.", layer), LINEAR)
            | adapted(
                {"vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight": [6, 6]},
                LINEAR,
            ),
            "vision part",
            "merge_and_unload",
        )

    def test_what_can_not_be_sliced_is_refused_with_what_to_do(self):
        shapes = ends() | layers("model.layers.", LLAMA)
        home, _ = self.write({"model_type": "llama", **SIZES}, shapes)
        base, lora = self.c.take(home), adapted(shapes, LINEAR)
        merge = "merge_and_unload"
        embedding = {
            UNDER + "model.embed_tokens.lora_embedding_A": [4, VOCAB],
            UNDER + "model.embed_tokens.lora_embedding_B": [H, 4],
        }
        self.refused(
            base,
            lora | embedding,
            "embed_tokens.lora_embedding_A' is an adapter of an embedding",
            merge,
        )
        self.refused(
            base,
            lora | {UNDER + "model.embed_tokens.weight": [VOCAB + 3, H]},
            "has shape [64,32], the base's has [61,32]",
            merge,
        )
        self.refused(
            base,
            lora | {UNDER + "score.weight": [2, H]},
            "'base_model.model.score.weight' is not a LoRA tensor",
            "remove it",
        )
        self.refused(base, lora, "'layer_replication'", merge, layer_replication=[[0, 1], [0, 2]])
        self.refused(
            base, lora, "'target_parameters'", merge, target_parameters=["mlp.experts.gate_up_proj"]
        )
        self.refused(
            base,
            {n: s for n, s in lora.items() if "q_proj.lora_A" not in n},
            "lacks its other half",
            "q_proj.lora_A.weight' is missing",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
