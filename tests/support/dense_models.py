"""Tiny Hugging Face checkpoints of every dense family, from tables of their tensors. Standard
library only."""
import json
import random

from support import checkpoints

H, HEADS, GROUPS, D, FFN, VOCAB, LAYERS = 32, 4, 2, 8, 128, 61, 4
SIZES = {
    "hidden_size": H,
    "intermediate_size": FFN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
}
ATTENTION = {
    "self_attn.q_proj.weight": [HEADS * D, H],
    "self_attn.k_proj.weight": [GROUPS * D, H],
    "self_attn.v_proj.weight": [GROUPS * D, H],
    "self_attn.o_proj.weight": [H, HEADS * D],
}
GATED = {
    "mlp.gate_proj.weight": [FFN, H],
    "mlp.up_proj.weight": [FFN, H],
    "mlp.down_proj.weight": [H, FFN],
}
NORMS = {"input_layernorm.weight": [H], "post_attention_layernorm.weight": [H]}
BIASES = {
    "self_attn.q_proj.bias": [HEADS * D],
    "self_attn.k_proj.bias": [GROUPS * D],
    "self_attn.v_proj.bias": [GROUPS * D],
}
QK_NORMS = {"self_attn.q_norm.weight": [D], "self_attn.k_norm.weight": [D]}
FOUR_NORMS = NORMS | {
    "pre_feedforward_layernorm.weight": [H],
    "post_feedforward_layernorm.weight": [H],
}
PHI = {
    "self_attn.qkv_proj.weight": [(HEADS + 2 * GROUPS) * D, H],
    "self_attn.o_proj.weight": [H, HEADS * D],
    "mlp.gate_up_proj.weight": [2 * FFN, H],
    "mlp.down_proj.weight": [H, FFN],
}
GPT2 = {
    "ln_1.weight": [H],
    "ln_1.bias": [H],
    "attn.c_attn.weight": [H, 3 * H],
    "attn.c_attn.bias": [3 * H],
    "attn.c_proj.weight": [H, H],
    "attn.c_proj.bias": [H],
    "ln_2.weight": [H],
    "ln_2.bias": [H],
    "mlp.c_fc.weight": [H, FFN],
    "mlp.c_fc.bias": [FFN],
    "mlp.c_proj.weight": [FFN, H],
    "mlp.c_proj.bias": [H],
}
NEOX = {
    "input_layernorm.weight": [H],
    "input_layernorm.bias": [H],
    "post_attention_layernorm.weight": [H],
    "post_attention_layernorm.bias": [H],
    "attention.query_key_value.weight": [3 * H, H],
    "attention.query_key_value.bias": [3 * H],
    "attention.dense.weight": [H, H],
    "attention.dense.bias": [H],
    "mlp.dense_h_to_4h.weight": [FFN, H],
    "mlp.dense_h_to_4h.bias": [FFN],
    "mlp.dense_4h_to_h.weight": [H, FFN],
    "mlp.dense_4h_to_h.bias": [H],
}

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


def plain_model(family):
    if family == "gpt2":
        config = {
            "model_type": "gpt2",
            "n_layer": LAYERS,
            "n_embd": H,
            "n_head": HEADS,
            "n_inner": FFN,
            "vocab_size": VOCAB,
            "n_positions": 16,
        }
        shapes = {
            "transformer.wte.weight": [VOCAB, H],
            "transformer.wpe.weight": [16, H],
            "transformer.ln_f.weight": [H],
            "transformer.ln_f.bias": [H],
        }
        return config, shapes | {
            f"transformer.h.{i}.{n}": s for i in range(LAYERS) for n, s in GPT2.items()
        }
    if family == "gpt_neox":
        config = {"model_type": "gpt_neox", **SIZES, "tie_word_embeddings": False}
        shapes = {
            "gpt_neox.embed_in.weight": [VOCAB, H],
            "gpt_neox.final_layer_norm.weight": [H],
            "gpt_neox.final_layer_norm.bias": [H],
            "embed_out.weight": [VOCAB, H],
        }
        return config, shapes | {
            f"gpt_neox.layers.{i}.{n}": s for i in range(LAYERS) for n, s in NEOX.items()
        }
    more, layer, tied = LLAMA_LIKE[family]
    config = {
        "model_type": family,
        **SIZES,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        **more,
    }
    shapes = {"model.embed_tokens.weight": [VOCAB, H], "model.norm.weight": [H]}
    shapes |= {} if tied else {"lm_head.weight": [VOCAB, H]}
    return config, shapes | {
        f"model.layers.{i}.{n}": s for i in range(LAYERS) for n, s in layer.items()
    }


def model(family):
    """(config.json, {name: shape}). `family` can have a suffix: "llama/tied", "qwen2/untied",
    "mistral/1" (query groups)."""
    family, _, more = family.partition("/")
    config, shapes = plain_model(family)
    if more.isdecimal():
        config["num_key_value_heads"] = int(more)
        narrow = [int(more) * D]
        shapes |= {
            n: narrow + s[1:] for n, s in shapes.items() if ".k_proj." in n or ".v_proj." in n
        }
    elif more:
        config["tie_word_embeddings"] = more == "tied"
        shapes.pop("lm_head.weight", None)
        shapes |= {} if more == "tied" else {"lm_head.weight": [VOCAB, H]}
    return config, shapes


FAMILIES = [*LLAMA_LIKE, "gpt2", "gpt_neox"]
VARIANTS = ["llama/tied", "mistral/1", "llama/4", "qwen2/untied"]


def checkpoint(home, family):
    """The directory, created if missing, and the bytes of each tensor."""
    config, shapes = model(family)
    rng, tensors = random.Random(family), {}
    for name, shape in shapes.items():
        size = 4
        for extent in shape:
            size *= extent
        tensors[name] = (shape, rng.randbytes(size))
    if not home.exists():
        home.mkdir(parents=True)
        checkpoints.write(home / "model.safetensors", tensors)
        (home / "config.json").write_text(json.dumps(config))
    return home, {name: data for name, (_, data) in tensors.items()}
