"""A tiny Mixtral checkpoint of whole numbers. Standard library only."""
import json
import math
import random
import struct

from support import checkpoints

HIDDEN, HEADS, GROUPS, HEAD, EXPERTS, WIDTH, VOCAB, LAYERS = 8, 4, 2, 4, 4, 16, 10, 4
CONFIG = {
    "model_type": "mixtral",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS,
    "head_dim": HEAD,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "num_local_experts": EXPERTS,
}
LAYER = {
    "self_attn.q_proj.weight": [HEADS * HEAD, HIDDEN],
    "self_attn.k_proj.weight": [GROUPS * HEAD, HIDDEN],
    "self_attn.v_proj.weight": [GROUPS * HEAD, HIDDEN],
    "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD],
    "input_layernorm.weight": [HIDDEN],
    "post_attention_layernorm.weight": [HIDDEN],
    "block_sparse_moe.gate.weight": [EXPERTS, HIDDEN],
    **{
        f"block_sparse_moe.experts.{e}.{w}.weight": (
            [HIDDEN, WIDTH] if w == "w2" else [WIDTH, HIDDEN]
        )
        for e in range(EXPERTS)
        for w in ("w1", "w2", "w3")
    },
}


def checkpoint(home):
    """Creates the directory; returns it with (shape, numbers) of each tensor; all numbers fit a
    float."""
    shapes = {
        "model.embed_tokens.weight": [VOCAB, HIDDEN],
        "model.norm.weight": [HIDDEN],
        "lm_head.weight": [VOCAB, HIDDEN],
    }
    shapes |= {
        f"model.layers.{i}.{name}": shape for i in range(LAYERS) for name, shape in LAYER.items()
    }
    rng = random.Random(7)
    tensors = {
        name: (shape, [rng.randrange(1 << 20) for _ in range(math.prod(shape))])
        for name, shape in shapes.items()
    }
    home.mkdir()
    checkpoints.write(
        home / "model.safetensors",
        {n: (shape, struct.pack(f"<{len(data)}f", *data)) for n, (shape, data) in tensors.items()},
    )
    (home / "config.json").write_text(json.dumps(CONFIG))
    return home, tensors
