#!/usr/bin/python3
"""Checkpoints as Megatron-LM writes them, beside the Hugging Face checkpoint of the same model.

    megatron_checkpoints.py DIR [FAMILY ...]

DIR/FAMILY/hf is the original; DIR/FAMILY/torch-* and DIR/FAMILY/dist-* are the same model at
several splits, in Megatron's formats `torch` and `torch_dist`. The model is written down once with
Megatron's rules, fused and whole, and then cut by one rule per tensor; nothing here knows how
Helios does it. Exit status 77: torch is missing.

For some families they also hold optimizer state (torch-*, dist-state-*). Each element of state is a
function of its parameter's element, so that state can be fused and cut as parameters are.
DIR/FAMILY/state/KIND is the Hugging Face checkpoint of all state of one kind.
"""
import argparse
import http
import json
import pathlib
import pickle
import struct
import sys

try:
    import torch
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    sys.exit(77)

import torch_files

VOCAB, HIDDEN, HEADS, GROUPS, FFN, LAYERS, EXPERTS, MOE_FFN = 61, 32, 4, 2, 48, 4, 4, 16
DTYPE = torch.bfloat16
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


# The state of a parameter's element; where there is an FP32 copy, its bits differ from the
# parameter's.
KINDS = {
    "exp_avg": lambda t: t.float() * 3 + 1,
    "exp_avg_sq": lambda t: t.float() ** 2 + 2,
    "param": lambda t: t.float() * 1.0001,
}
STEP = 19  # of the optimizer; one step was skipped
WITH_STATE = ("llama", "qwen2", "gpt2", "mixtral", "deepseek_v3_mtp")


def rand(*shape, dtype=DTYPE):
    return torch.randn(*shape).to(dtype)


def raw(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(
        struct.pack("<Q", len(text)) + text + b"".join(raw(tensor) for tensor in tensors.values())
    )


class Model:
    """hf: the Hugging Face tensors. The others: {Megatron's name under the local spec: (whole
    tensor, rule)}."""

    def __init__(self, config, args):
        self.config, self.hf = config, {}
        self.embedding, self.head = {}, {}
        self.layers = [{} for _ in range(LAYERS)]
        self.experts = [[] for _ in range(LAYERS)]  # of each layer, each expert
        # layers that predict more tokens: (tensors beside the layer, the layer, its experts)
        self.mtp = []
        self.tied = self.with_state = False
        self.own_config = False  # args do not tell which family it is
        self.args = {
            "num_layers": LAYERS,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "ffn_hidden_size": FFN,
            "max_position_embeddings": 64,
            "norm_epsilon": 1e-6,
            "bf16": True,
            "fp16": False,
            "untie_embeddings_and_output_weights": True,
            **args,
        }

    def take(self, name, *shape, dtype=DTYPE):
        self.hf[name] = rand(*shape, dtype=dtype)
        return self.hf[name]

    def whole(self, *args, **kwargs):
        return self.take(*args, **kwargs), "whole"

    def rows(self, *args):
        return self.take(*args), "rows"

    def columns(self, *args):
        return self.take(*args), "columns"

    def tie(self):
        self.tied = True
        self.args["untie_embeddings_and_output_weights"] = False


def by_group(q, k, v, groups):
    """Rows of each query group: its q heads, its k head, its v head."""
    parts = [whole.reshape(groups, -1, *whole.shape[1:]) for whole in (q, k, v)]
    return torch.cat(parts, 1).reshape(-1, *q.shape[1:])


def ends(m, embed, norm, head, biases=False):
    m.embedding["embedding.word_embeddings.weight"] = m.take(embed, VOCAB, HIDDEN), "vocab"
    m.head["decoder.final_layernorm.weight"] = m.whole(norm + ".weight", HIDDEN)
    if biases:
        m.head["decoder.final_layernorm.bias"] = m.whole(norm + ".bias", HIDDEN)
    if head and not m.tied:
        m.head["output_layer.weight"] = m.take(head, VOCAB, HIDDEN), "vocab"


def attention(m, p, out, dim, bias=False, norms=False, groups=GROUPS):
    rows = {"q": HEADS * dim, "k": groups * dim, "v": groups * dim}
    w = [m.take(f"{p}self_attn.{x}_proj.weight", n, HIDDEN) for x, n in rows.items()]
    out["self_attention.linear_qkv.weight"] = by_group(*w, groups), "rows"
    if bias:
        b = [m.take(f"{p}self_attn.{x}_proj.bias", n) for x, n in rows.items()]
        out["self_attention.linear_qkv.bias"] = by_group(*b, groups), "rows"
    for x in "qk" if norms else "":
        out[f"self_attention.{x}_layernorm.weight"] = m.whole(f"{p}self_attn.{x}_norm.weight", dim)
    out["self_attention.linear_proj.weight"] = m.columns(
        p + "self_attn.o_proj.weight", HIDDEN, HEADS * dim
    )


def gated(m, hf, names, ffn):
    pair = torch.stack([m.take(f"{hf}{names[i]}.weight", ffn, HIDDEN) for i in range(2)])
    return {
        "linear_fc1.weight": (pair, "pairs"),
        "linear_fc2.weight": (m.take(f"{hf}{names[2]}.weight", HIDDEN, ffn), "columns"),
    }


PLAIN = ("gate_proj", "up_proj", "down_proj")


def mlp(m, hf, prefix, out, ffn):
    for name, value in gated(m, hf, PLAIN, ffn).items():
        out[prefix + name] = value


def rope_args(**more):
    return {
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "swiglu": True,
        "rotary_base": 10000,
        "group_query_attention": True,
        "num_query_groups": GROUPS,
        "add_bias_linear": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        **more,
    }


def rope_config(kind, **more):
    return {
        "model_type": kind,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        **more,
    }


def llama(kind="llama", tied=False, dim=8, bias=False, norms=False):
    more = {"attention_bias": False} if kind != "qwen2" else {}
    m = Model(
        rope_config(kind, tie_word_embeddings=tied, head_dim=dim, **more),
        rope_args(kv_channels=dim, add_qkv_bias=bias, qk_layernorm=norms),
    )
    if tied:
        m.tie()
    ends(m, "model.embed_tokens.weight", "model.norm", "lm_head.weight")
    for i, out in enumerate(m.layers):
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        attention(m, p, out, dim, bias, norms)
        out["pre_mlp_layernorm.weight"] = m.whole(p + "post_attention_layernorm.weight", HIDDEN)
        mlp(m, p + "mlp.", "mlp.", out, FFN)
    return m


def gemma():
    m = Model(
        rope_config("gemma2", head_dim=8, tie_word_embeddings=True),
        rope_args(kv_channels=8, swiglu=False),
    )
    m.tie()
    m.own_config = True
    ends(m, "model.embed_tokens.weight", "model.norm", None)
    for i, out in enumerate(m.layers):
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        attention(m, p, out, 8)
        out["self_attention.linear_proj.post_layernorm.weight"] = m.whole(
            p + "post_attention_layernorm.weight", HIDDEN
        )
        out["pre_mlp_layernorm.weight"] = m.whole(p + "pre_feedforward_layernorm.weight", HIDDEN)
        mlp(m, p + "mlp.", "mlp.", out, FFN)
        out["mlp.linear_fc2.post_layernorm.weight"] = m.whole(
            p + "post_feedforward_layernorm.weight", HIDDEN
        )
    return m


def gpt2():
    m = Model(
        {
            "model_type": "gpt2",
            "n_embd": HIDDEN,
            "n_layer": LAYERS,
            "n_head": HEADS,
            "n_positions": 64,
            "n_inner": FFN,
            "vocab_size": VOCAB,
            "layer_norm_epsilon": 1e-5,
        },
        {
            "position_embedding_type": "learned_absolute",
            "normalization": "LayerNorm",
            "swiglu": False,
            "add_bias_linear": True,
            "num_query_groups": 1,
            "group_query_attention": False,
        },
    )
    m.tie()
    ends(m, "wte.weight", "ln_f", None, biases=True)
    m.embedding["embedding.position_embeddings.weight"] = m.whole("wpe.weight", 64, HIDDEN)
    for i, out in enumerate(m.layers):
        p = f"h.{i}."
        for kind, shape in (("weight", (HIDDEN,)), ("bias", (HIDDEN,))):
            out["input_layernorm." + kind] = m.whole(f"{p}ln_1.{kind}", *shape)
            out["pre_mlp_layernorm." + kind] = m.whole(f"{p}ln_2.{kind}", *shape)
        q, k, v = m.take(p + "attn.c_attn.weight", HIDDEN, 3 * HIDDEN).t().chunk(3)
        out["self_attention.linear_qkv.weight"] = by_group(q, k, v, HEADS), "rows"
        q, k, v = m.take(p + "attn.c_attn.bias", 3 * HIDDEN).chunk(3)
        out["self_attention.linear_qkv.bias"] = by_group(q, k, v, HEADS), "rows"
        out["self_attention.linear_proj.weight"] = (
            m.take(p + "attn.c_proj.weight", HIDDEN, HIDDEN).t(),
            "columns",
        )
        out["self_attention.linear_proj.bias"] = m.whole(p + "attn.c_proj.bias", HIDDEN)
        out["mlp.linear_fc1.weight"] = m.take(p + "mlp.c_fc.weight", HIDDEN, FFN).t(), "rows"
        out["mlp.linear_fc1.bias"] = m.rows(p + "mlp.c_fc.bias", FFN)
        out["mlp.linear_fc2.weight"] = m.take(p + "mlp.c_proj.weight", FFN, HIDDEN).t(), "columns"
        out["mlp.linear_fc2.bias"] = m.whole(p + "mlp.c_proj.bias", HIDDEN)
    return m


def neox():
    m = Model(
        {
            "model_type": "gpt_neox",
            "hidden_size": HIDDEN,
            "intermediate_size": FFN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "vocab_size": VOCAB,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
        },
        {
            "position_embedding_type": "rope",
            "normalization": "LayerNorm",
            "swiglu": False,
            "add_bias_linear": True,
        },
    )
    ends(
        m, "gpt_neox.embed_in.weight", "gpt_neox.final_layer_norm", "embed_out.weight", biases=True
    )
    for i, out in enumerate(m.layers):
        p = f"gpt_neox.layers.{i}."
        for kind in ("weight", "bias"):
            tail = (HIDDEN,) if kind == "weight" else ()
            out["input_layernorm." + kind] = m.whole(f"{p}input_layernorm.{kind}", HIDDEN)
            out["pre_mlp_layernorm." + kind] = m.whole(
                f"{p}post_attention_layernorm.{kind}", HIDDEN
            )
            # Already ordered by head: q, k, v of the first head, of the second, ...
            out["self_attention.linear_qkv." + kind] = m.rows(
                f"{p}attention.query_key_value.{kind}", 3 * HIDDEN, *tail
            )
            out["mlp.linear_fc1." + kind] = m.rows(f"{p}mlp.dense_h_to_4h.{kind}", FFN, *tail)
        out["self_attention.linear_proj.weight"] = m.columns(
            p + "attention.dense.weight", HIDDEN, HIDDEN
        )
        out["self_attention.linear_proj.bias"] = m.whole(p + "attention.dense.bias", HIDDEN)
        out["mlp.linear_fc2.weight"] = m.columns(p + "mlp.dense_4h_to_h.weight", HIDDEN, FFN)
        out["mlp.linear_fc2.bias"] = m.whole(p + "mlp.dense_4h_to_h.bias", HIDDEN)
    return m


def moe_args(**more):
    return rope_args(
        num_experts=EXPERTS,
        moe_ffn_hidden_size=MOE_FFN,
        moe_router_topk=2,
        moe_layer_freq=1,
        moe_shared_expert_intermediate_size=None,
        moe_router_enable_expert_bias=False,
        **more,
    )


def mixtral():
    m = Model(
        rope_config(
            "mixtral", intermediate_size=MOE_FFN, num_local_experts=EXPERTS, num_experts_per_tok=2
        ),
        moe_args(kv_channels=8),
    )
    ends(m, "model.embed_tokens.weight", "model.norm", "lm_head.weight")
    for i, out in enumerate(m.layers):
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        attention(m, p, out, 8)
        out["pre_mlp_layernorm.weight"] = m.whole(p + "post_attention_layernorm.weight", HIDDEN)
        out["mlp.router.weight"] = m.whole(p + "block_sparse_moe.gate.weight", EXPERTS, HIDDEN)
        m.experts[i] = [
            gated(m, f"{p}block_sparse_moe.experts.{e}.", ("w1", "w3", "w2"), MOE_FFN)
            for e in range(EXPERTS)
        ]
    return m


def qwen_moe(kind):
    new, dense = kind == "qwen3_moe", [1] if kind == "qwen3_moe" else []
    freq = [0 if i in dense else 1 for i in range(LAYERS)] if dense else 1
    config = rope_config(
        kind,
        moe_intermediate_size=MOE_FFN,
        num_experts=EXPERTS,
        mlp_only_layers=dense,
        decoder_sparse_step=1,
        head_dim=8,
        num_experts_per_tok=2,
        norm_topk_prob=True,
    )
    args = moe_args(kv_channels=8)
    args.update(qk_layernorm=new, add_qkv_bias=not new, moe_layer_freq=freq)
    if not new:
        config["shared_expert_intermediate_size"] = 2 * MOE_FFN
        args.update(moe_shared_expert_intermediate_size=2 * MOE_FFN, moe_shared_expert_gate=True)
    m = Model(config, args)
    ends(m, "model.embed_tokens.weight", "model.norm", "lm_head.weight")
    for i, out in enumerate(m.layers):
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        attention(m, p, out, 8, bias=not new, norms=new)
        out["pre_mlp_layernorm.weight"] = m.whole(p + "post_attention_layernorm.weight", HIDDEN)
        if i in dense:
            mlp(m, p + "mlp.", "mlp.", out, FFN)
            continue
        out["mlp.router.weight"] = m.whole(p + "mlp.gate.weight", EXPERTS, HIDDEN)
        m.experts[i] = [gated(m, f"{p}mlp.experts.{e}.", PLAIN, MOE_FFN) for e in range(EXPERTS)]
        if not new:
            mlp(m, p + "mlp.shared_expert.", "mlp.shared_experts.", out, 2 * MOE_FFN)
            out["mlp.shared_experts.gate_weight"] = m.whole(
                p + "mlp.shared_expert_gate.weight", 1, HIDDEN
            )
    return m


def more_tokens(m, head, layer):
    """A layer that predicts one more token, with the tensors beside it; Hugging Face repeats
    embedding and head in it."""
    p, out = f"model.layers.{LAYERS}.", {}
    beside = {
        name + ".weight": (m.take(p + name + ".weight", HIDDEN), "whole")
        for name in ("enorm", "hnorm")
    }
    beside["eh_proj.weight"] = m.rows(p + "eh_proj.weight", HIDDEN, 2 * HIDDEN)
    beside["final_layernorm.weight"] = m.whole(p + "shared_head.norm.weight", HIDDEN)
    m.hf[p + "embed_tokens.weight"] = m.hf["model.embed_tokens.weight"]
    m.hf[p + "shared_head.head.weight"] = m.hf[head]
    m.mtp.append((beside, out, layer(LAYERS, out)))
    m.config["num_nextn_predict_layers"] = m.args["mtp_num_layers"] = 1


def glm(kind="glm4_moe"):
    m = Model(
        rope_config(
            kind,
            head_dim=8,
            moe_intermediate_size=MOE_FFN,
            n_routed_experts=EXPERTS,
            n_shared_experts=1,
            first_k_dense_replace=1,
            use_qk_norm=True,
            attention_bias=True,
            num_experts_per_tok=2,
            partial_rotary_factor=0.5,
        ),
        moe_args(kv_channels=8),
    )
    m.args.update(
        moe_layer_freq=[0] + [1] * (LAYERS - 1),
        moe_shared_expert_intermediate_size=MOE_FFN,
        qk_layernorm=True,
        add_qkv_bias=True,
        moe_router_enable_expert_bias=True,
    )
    ends(m, "model.embed_tokens.weight", "model.norm", "lm_head.weight")

    def layer(i, out):
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        attention(m, p, out, 8, bias=True, norms=True)
        out["pre_mlp_layernorm.weight"] = m.whole(p + "post_attention_layernorm.weight", HIDDEN)
        return routed(m, p, i, out, True)

    m.experts = [layer(i, out) for i, out in enumerate(m.layers)]
    more_tokens(m, "lm_head.weight", layer)
    return m


def routed(m, p, i, out, bias):
    """The first layer is dense; the others have experts, and one shared by all tokens."""
    if i == 0:
        mlp(m, p + "mlp.", "mlp.", out, FFN)
        return []
    out["mlp.router.weight"] = m.whole(p + "mlp.gate.weight", EXPERTS, HIDDEN)
    if bias:
        out["mlp.router.expert_bias"] = m.whole(
            p + "mlp.gate.e_score_correction_bias", EXPERTS, dtype=torch.float32
        )
    experts = [gated(m, f"{p}mlp.experts.{e}.", PLAIN, MOE_FFN) for e in range(EXPERTS)]
    mlp(m, p + "mlp.shared_experts.", "mlp.shared_experts.", out, MOE_FFN)
    return experts


def deepseek(kind, mtp=False):
    v3, q_lora, kv_lora, nope, rope, v_dim = kind == "deepseek_v3", 24, 16, 8, 4, 6
    config = rope_config(
        kind,
        num_key_value_heads=HEADS,
        moe_intermediate_size=MOE_FFN,
        n_routed_experts=EXPERTS,
        n_shared_experts=1,
        first_k_dense_replace=1,
        kv_lora_rank=kv_lora,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=v_dim,
        q_lora_rank=q_lora if v3 else None,
        num_experts_per_tok=2,
        n_group=2 if v3 else 1,
        topk_group=1,
        routed_scaling_factor=2.5,
        norm_topk_prob=v3,
    )
    if v3:
        config.update(
            scoring_func="sigmoid",
            rope_scaling={
                "type": "yarn",
                "factor": 40.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "original_max_position_embeddings": 4096,
            },
        )
    args = moe_args(
        multi_latent_attention=True,
        q_lora_rank=q_lora if v3 else None,
        kv_lora_rank=kv_lora,
        qk_head_dim=nope,
        qk_pos_emb_head_dim=rope,
        v_head_dim=v_dim,
    )
    args.update(
        moe_layer_freq=[0] + [1] * (LAYERS - 1),
        moe_shared_expert_intermediate_size=MOE_FFN,
        qk_layernorm=True,
        moe_router_enable_expert_bias=v3,
        group_query_attention=False,
        num_query_groups=1,
    )
    m = Model(config, args)
    ends(m, "model.embed_tokens.weight", "model.norm", "lm_head.weight")

    def layer(i, out):
        p, a = f"model.layers.{i}.", "self_attention."
        s = p + "self_attn."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        rows = HEADS * (nope + rope)
        if v3:
            out[a + "linear_q_down_proj.weight"] = m.whole(s + "q_a_proj.weight", q_lora, HIDDEN)
            out[a + "q_layernorm.weight"] = m.whole(s + "q_a_layernorm.weight", q_lora)
            out[a + "linear_q_up_proj.weight"] = m.rows(s + "q_b_proj.weight", rows, q_lora)
        else:
            out[a + "linear_q_proj.weight"] = m.rows(s + "q_proj.weight", rows, HIDDEN)
        out[a + "linear_kv_down_proj.weight"] = m.whole(
            s + "kv_a_proj_with_mqa.weight", kv_lora + rope, HIDDEN
        )
        out[a + "kv_layernorm.weight"] = m.whole(s + "kv_a_layernorm.weight", kv_lora)
        out[a + "linear_kv_up_proj.weight"] = m.rows(
            s + "kv_b_proj.weight", HEADS * (nope + v_dim), kv_lora
        )
        out[a + "linear_proj.weight"] = m.columns(s + "o_proj.weight", HIDDEN, HEADS * v_dim)
        out["pre_mlp_layernorm.weight"] = m.whole(p + "post_attention_layernorm.weight", HIDDEN)
        return routed(m, p, i, out, v3)

    m.experts = [layer(i, out) for i, out in enumerate(m.layers)]
    if mtp:
        more_tokens(m, "lm_head.weight", layer)
    return m


FAMILIES = {
    "llama": llama,
    "qwen2": lambda: llama("qwen2", tied=True, bias=True),
    "qwen3": lambda: llama("qwen3", dim=16, norms=True),
    "gemma2": gemma,
    "gpt2": gpt2,
    "gpt_neox": neox,
    "mixtral": mixtral,
    "qwen2_moe": lambda: qwen_moe("qwen2_moe"),
    "qwen3_moe": lambda: qwen_moe("qwen3_moe"),
    "deepseek_v2": lambda: deepseek("deepseek_v2"),
    "deepseek_v3": lambda: deepseek("deepseek_v3"),
    "deepseek_v3_mtp": lambda: deepseek("deepseek_v3", mtp=True),
    "glm4_moe": glm,
}


# ---- cutting ----


def padded(tensor, rows):
    """The padding of a trained embedding has arbitrary contents."""
    return torch.cat([tensor, rand(rows - len(tensor), *tensor.shape[1:])])


def cut(value, ranks, rank):
    tensor, rule = value
    if rule == "whole":
        return tensor.contiguous()
    if rule == "pairs":
        return torch.cat([half.chunk(ranks)[rank] for half in tensor]).contiguous()
    return tensor.chunk(ranks, dim=1 if rule == "columns" else 0)[rank].clone(
        memory_format=torch.contiguous_format
    )


def te_name(name, latent, experts):
    """Transformer Engine fuses a norm with the linear layer after it, if there is one."""
    if not latent:
        name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    else:
        name = name.replace("q_layernorm.", "linear_q_up_proj.layer_norm_").replace(
            "kv_layernorm.", "linear_kv_up_proj.layer_norm_"
        )
    if not experts:
        name = name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
    return name


def with_padding(m, unit):
    rows = -(-VOCAB // unit) * unit
    embedding, head = dict(m.embedding), dict(m.head)
    word, rule = embedding["embedding.word_embeddings.weight"]
    embedding["embedding.word_embeddings.weight"] = padded(word, rows), rule
    if "output_layer.weight" in head:
        head["output_layer.weight"] = padded(head["output_layer.weight"][0], rows), rule
    return embedding, head, rows


def namespace(m, split, rows, **more):
    given = dict(
        m.args,
        tensor_model_parallel_size=split["tp"],
        pipeline_model_parallel_size=split["pp"],
        expert_model_parallel_size=split["ep"],
        expert_tensor_parallel_size=split["etp"],
        padded_vocab_size=rows,
        vocab_size=VOCAB,
        make_vocab_size_divisible_by=split["unit"] // split["tp"],
        params_dtype=DTYPE,
        virtual_pipeline_model_parallel_size=split["vp"] if split["vp"] > 1 else None,
        decoder_first_pipeline_num_layers=None,
        decoder_last_pipeline_num_layers=None,
        attention_backend=http.HTTPStatus.OK,  # an enum of another module
        moe_router_load_balancing_type=["aux_loss"],
        rank=0,
        **more,
    )
    given.setdefault("mtp_num_layers", None)
    return argparse.Namespace(**given)


def split_of(**more):
    split = {
        "tp": 1,
        "pp": 1,
        "ep": 1,
        "etp": None,
        "vp": 1,
        "te": True,
        "unit": 0,
        "singles": False,
        "own": False,
        **more,
    }
    split["unit"] = split["unit"] or 8 * split["tp"]
    return split


def write_config(m, directory):
    if m.own_config:
        (directory / "config.json").write_text(json.dumps(m.config))


# ---- optimizer state ----


def trained(name):
    return "_extra_state" not in name and "expert_bias" not in name


def group_of(name, tensor, experts):
    """(experts, weight decay): how Megatron sorts parameters into groups. Experts have groups of
    their own if they are not on every rank."""
    return experts and ".mlp.experts." in name, tensor.dim() > 1 and not name.endswith(".bias")


def adam(named, number, fp32_main=True):
    """State of torch.optim.Adam for the (name, parameter) pairs of each group, numbered from 0 as
    in state_dict()."""
    state, groups, main = {}, [], []
    for (experts, decays), members in named.items():
        first = len(state)
        for _, tensor in members:
            state[len(state)] = {kind: KINDS[kind](tensor) for kind in ("exp_avg", "exp_avg_sq")}
            if number:
                state[len(state) - 1]["step"] = torch.tensor(float(STEP))
        groups.append(
            {
                "lr": 1e-4,
                "wd_mult": 1.0 if decays else 0.0,
                "lr_mult": 1.0,
                "is_expert_parallel": experts,
                "is_decoupled_lr": False,
                "betas": (0.9, 0.95),
                "step": STEP,
                "params": list(range(first, len(state))),
            }
        )
        main.append([torch.nn.Parameter(KINDS["param"](tensor)) for _, tensor in members])
    inner = {"state": state, "param_groups": groups}
    return {"optimizer": inner, "fp32_from_fp16_params": main} if fp32_main else inner


def optimizer_of(chunks, split):
    """What Float16OptimizerWithFloat16Params saves, or for FP32 parameters FP32Optimizer. With EP >
    1 there is another one for experts."""
    named = {}
    for chunk in chunks:
        for name, tensor in chunk.items():
            if tensor is not None and trained(name):
                named.setdefault(group_of(name, tensor, split["ep"] > 1), []).append((name, tensor))
    fp32 = all(tensor.dtype == torch.float32 for members in named.values() for _, tensor in members)
    each = [
        {key: members for key, members in named.items() if key[0] == experts}
        for experts in (False, True)
    ]
    each = [adam(groups, number=split["te"], fp32_main=not fp32) for groups in each if groups]
    return each if len(each) > 1 else each[0]


def write_states(m, directory):
    for kind, of in KINDS.items():
        (directory / kind).mkdir(parents=True)
        (directory / kind / "config.json").write_text(json.dumps(m.config))
        write_safetensors(
            directory / kind / "model.safetensors",
            {name: of(tensor) for name, tensor in m.hf.items()},
        )


# ---- torch ----


def add_layer(state, prefix, layer, experts, split, place):
    """Adds a layer of one rank; place is (tp, ep). In Megatron's modules the shared experts come
    after the others."""
    (tp, ep), etp, te = place, split["etp"] or split["tp"], split["te"]
    shared = {
        name: cut(value, split["tp"], tp)
        for name, value in layer.items()
        if "shared_experts" in name
    }
    for name, value in layer.items():
        if te:
            name = te_name(name, "self_attention.linear_kv_down_proj.weight" in layer, experts)
        if name not in shared:
            state[prefix + name] = cut(value, split["tp"], tp)
    count = len(experts) // split["ep"]
    for i, expert in enumerate(experts[ep * count : (ep + 1) * count]):
        for name, value in expert.items():
            name = f"mlp.experts.{name}{i}" if te else f"mlp.experts.local_experts.{i}.{name}"
            state[prefix + name] = cut(value, etp, tp % etp)
    state.update({prefix + name: part for name, part in shared.items()})
    state[prefix + "self_attention._extra_state"] = None


def add_more_tokens(m, state, split, place, embedding):
    """On the last stage, which then has the embedding, too. Newer versions name the layer
    mtp_model_layer."""
    for i, (beside, layer, experts) in enumerate(m.mtp):
        for name, value in beside.items():
            state[f"mtp.layers.{i}.{name}"] = cut(value, split["tp"], place[0])
        inner = "mtp_model_layer" if split["te"] else "transformer_layer"
        add_layer(state, f"mtp.layers.{i}.{inner}.", layer, experts, split, place)
    if m.mtp and split["pp"] > 1:
        name = "embedding.word_embeddings.weight"
        state[name] = cut(embedding[name], split["tp"], place[0])


def rank_state(m, split, place, embedding, head):
    """The chunks of one rank; place is (pp, tp, ep)."""
    (pp, tp, ep), chunks = place, split["vp"]
    each = LAYERS // split["pp"] // chunks
    state = [{} for _ in range(chunks)]
    if pp == 0:
        for name, value in embedding.items():
            state[0][name] = cut(value, split["tp"], tp)
    for chunk in range(chunks):
        for local in range(each):
            number = (chunk * split["pp"] + pp) * each + local
            layer, experts, prefix = m.layers[number], m.experts[number], f"decoder.layers.{local}."
            add_layer(state[chunk], prefix, layer, experts, split, (tp, ep))
    if pp == split["pp"] - 1:
        for name, value in head.items():
            state[-1][name] = cut(value, split["tp"], tp)
        if m.tied and split["pp"] > 1:
            state[-1]["output_layer.weight"] = cut(
                embedding["embedding.word_embeddings.weight"], split["tp"], tp
            )
        add_more_tokens(m, state[-1], split, (tp, ep), embedding)
    return state


def write_torch(m, directory, folder="iter_0000010", iteration=10, **given):
    split = split_of(**given)
    embedding, head, rows = with_padding(m, split["unit"])
    args = namespace(m, split, rows)
    etp = split["etp"] or split["tp"]
    replicas = max(1, etp * split["ep"] // split["tp"])
    # Megatron counts ranks tp first, then dp
    places = {
        (pp, tp, (tp + split["tp"] * dp) // etp % split["ep"])
        for pp in range(split["pp"])
        for tp in range(split["tp"])
        for dp in range(replicas)
    }
    for pp, tp, ep in sorted(places):
        name = (
            f"mp_rank_{tp:02}"
            + (f"_{pp:03}" if split["pp"] > 1 else "")
            + (f"_{ep:03}" if split["ep"] > 1 else "")
        )
        state = rank_state(m, split, (pp, tp, ep), embedding, head)
        chunks = (
            {"model": state[0]}
            if len(state) == 1
            else {f"model{i}": part for i, part in enumerate(state)}
        )
        into = directory / folder / name
        into.mkdir(parents=True)
        torch.save(
            {
                "args": args,
                "checkpoint_version": 3.0,
                "iteration": iteration,
                **chunks,
                "optimizer": (
                    optimizer_of(state, split) if m.with_state else {"param_groups": [{"lr": 1e-4}]}
                ),
                "opt_param_scheduler": {"max_lr": 1e-4},
                "rng_state": [{"cpu": torch.get_rng_state()}],
            },
            into / "model_optim_rng.pt",
        )
    (directory / "latest_checkpointed_iteration.txt").write_text(
        "release" if folder == "release" else str(iteration)
    )
    write_config(m, directory)


# ---- torch_dist ----

# ShardedObjects
OBJECTS = (
    "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_4",
    "rng_state/shard_0.0_1.1",
)


class Dcp:
    """The folder of a PyTorch distributed checkpoint, written rank by rank with torch 2's class
    names. Megatron-core 0.15 has its own Metadata; earlier versions put mcore_data into torch's."""

    def __init__(self, directory, mcore=False):
        checkpoint = "torch.distributed.checkpoint"
        metadata, filesystem = f"{checkpoint}.metadata", f"{checkpoint}.filesystem"
        strategies = "megatron.core.dist_checkpointing.strategies.torch"
        torch_files.modules(checkpoint, metadata, filesystem, "megatron", strategies)
        self.chunk = torch_files.fake(metadata, "ChunkStorageMetadata", "offsets", "sizes")
        self.info = torch_files.fake(
            metadata, "TensorStorageMetadata", "properties", "size", "chunks"
        )
        self.bytes = torch_files.fake(metadata, "BytesStorageMetadata")
        self.properties = torch_files.fake(metadata, "TensorProperties", "dtype", "requires_grad")
        self.properties.__getstate__ = lambda it: (
            it.dtype,
            torch.strided,
            it.requires_grad,
            torch_files.Colour.RED,
            False,
        )
        self.properties.__setstate__ = lambda it, state: it.__dict__.update(
            dtype=state[0], requires_grad=state[2]
        )
        self.index = torch_files.fake(metadata, "MetadataIndex", "fqn", "offset", "index")
        self.place = torch_files.fake(
            filesystem, "_StorageInfo", "relative_path", "offset", "length"
        )
        self.storage_meta = torch_files.fake(metadata, "StorageMeta", "checkpoint_id", "save_id")
        self.metadata = torch_files.fake(
            *(strategies, "MCoreMetadata") if mcore else (metadata, "Metadata"),
            *("state_dict_metadata", "planner_data", "storage_data"),
            *("storage_meta", "version", "mcore_data"),
        )
        self.directory, self.files, self.members, self.places = directory, {}, {}, {}

    def put(self, rank, name, whole, begin, tensor):
        """Rank `rank` writes the piece of `name`, of shape `whole`, that begins there; the first
        rank to write it counts."""
        info = self.members.setdefault(
            name, self.info(self.properties(tensor.dtype, False), torch.Size(whole), [])
        )
        begin = torch.Size(begin)
        if any(chunk.offsets == begin for chunk in info.chunks):
            return
        self.places[self.index(name, begin, len(info.chunks))] = self.save(
            rank, tensor.contiguous().clone()
        )
        info.chunks.append(self.chunk(begin, torch.Size(tensor.shape)))

    def save(self, rank, value):
        if rank not in self.files:
            self.files[rank] = open(self.directory / f"__{rank}_0.distcp", "wb")
        file = self.files[rank]
        at = file.tell()
        torch.save(value, file)
        return self.place(f"__{rank}_0.distcp", at, file.tell() - at)

    def close(self):
        for name in OBJECTS:
            self.members[name] = self.bytes()
            self.places[self.index(name, None, None)] = self.save(0, [None])
        for file in self.files.values():
            file.close()
        mcore_data = {
            name: {"nd_reformulated_orig_global_shape": info.size}
            for name, info in self.members.items()
            if name not in OBJECTS
        }
        meta = self.storage_meta(None, "id")
        made = self.metadata(self.members, None, self.places, meta, "1.0.0", mcore_data)
        (self.directory / ".metadata").write_bytes(pickle.dumps(made))


class OwnDcp:
    """The same with torch's own writer, as Megatron calls it: a ShardedTensor for each name. One
    process holds all shards."""

    def __init__(self, directory):
        self.directory, self.shards = directory, {}

    def put(self, _rank, name, whole, begin, tensor):
        _, pieces = self.shards.setdefault(name, (whole, {}))
        pieces.setdefault(tuple(begin), tensor.contiguous().clone())

    def sharded(self, whole, pieces):
        from torch.distributed._shard.metadata import ShardMetadata
        from torch.distributed._shard.sharded_tensor import (
            Shard,
            ShardedTensor,
            ShardedTensorMetadata,
            TensorProperties,
        )

        cut = [
            ShardMetadata(list(begin), list(tensor.shape), "rank:0/cpu")
            for begin, tensor in pieces.items()
        ]
        properties = TensorProperties(dtype=next(iter(pieces.values())).dtype)
        return ShardedTensor._init_from_local_shards_and_global_metadata(
            [Shard(tensor, it) for it, tensor in zip(cut, pieces.values())],
            ShardedTensorMetadata(
                shards_metadata=cut, size=torch.Size(whole), tensor_properties=properties
            ),
        )

    def close(self):
        checkpoint = torch_files.own_checkpoint()
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
        state = {name: self.sharded(*value) for name, value in self.shards.items()}
        state.update({name: [None] for name in OBJECTS})
        checkpoint.save_state_dict(
            state,
            checkpoint.FileSystemWriter(self.directory, single_file_per_rank=True),
            no_dist=True,
        )
        torch.distributed.destroy_process_group()


class WithState:
    """Each parameter's state beside it: with its shape, as `fully_reshardable` and other optimizers
    save it, or `flat`, as fully_sharded_model_space did: a block of the parameter as a vector,
    divided roughly in halves between two data ranks."""

    def __init__(self, out, flat, main="param", chained=""):
        self.out, self.flat, self.main, self.chained = out, flat, main, chained

    def put(self, rank, name, whole, begin, tensor):
        self.out.put(rank, name, whole, begin, tensor)
        for kind, of in KINDS.items():
            key = f"{self.chained}optimizer.state.{self.main if kind == 'param' else kind}.{name}"
            if not trained(name) or (kind == "param" and tensor.dtype == torch.float32):
                continue
            if not self.flat:
                self.out.put(rank, key, whole, begin, of(tensor))
                continue
            blocks = [n // size for n, size in zip(whole, tensor.shape)]
            at = [b // size for b, size in zip(begin, tensor.shape)]
            vector, half = of(tensor).reshape(*[1] * tensor.dim(), -1), tensor.numel() * 3 // 7
            for low, high in ((0, half), (half, tensor.numel())):
                if low < high:
                    shape, piece = (*blocks, tensor.numel()), vector[..., low:high]
                    self.out.put(rank + 100 * (low > 0), key, shape, (*at, low), piece)

    def close(self):
        self.out.close()


def put_cut(out, rank, name, value, share, axes=(), where=(), singles=False):
    """A rank's share (ranks, number); the axes of layers and experts are in front of the matrix.
    Gate and up of linear_fc1 are two pieces, or two tensors if each tensor is of one layer and
    expert."""
    (tensor, rule), (ranks, number) = value, share
    halves = tensor if rule == "pairs" else [tensor]
    for i, half in enumerate(halves):
        part = cut((half, "rows" if rule == "pairs" else rule), ranks, number)
        at, whole = [0] * part.dim(), list(half.shape)
        if rule == "columns":
            at[1] = number * part.shape[1]
        elif rule != "whole":
            at[0] = number * part.shape[0]
        if rule == "pairs" and not singles:
            at[0] += i * len(half)
            whole[0] *= 2
        half_name = name + ("_w", "_v")[i] if rule == "pairs" and singles else name
        piece = part.reshape(*[1] * len(axes), *part.shape)
        out.put(rank, half_name, (*axes, *whole), (*where, *at), piece)


def put_layer(out, rank, prefix, layer, experts, split, t, axis=None):
    """`axis`: (layers, this layer) in front of each tensor; without it the number is in the
    prefix."""
    axes, where = ((axis[0],), (axis[1],)) if axis else ((), ())
    etp, singles = split["etp"] or split["tp"], split["singles"]
    latent = "self_attention.linear_kv_down_proj.weight" in layer
    for name, value in layer.items():
        # The local spec maps its names to those of Transformer Engine, even where that has a norm
        # of its own.
        name = te_name(name, latent, experts if split["te"] else [])
        put_cut(out, rank, prefix + name, value, (split["tp"], t), axes, where, singles)
    for e, expert in enumerate(experts):
        for name, value in expert.items():
            share = (etp, t % etp)
            if singles:
                name = f"{prefix}mlp.experts.experts.{e}.{name}"
                put_cut(out, rank, name, value, share, axes, where, True)
            else:
                name = f"{prefix}mlp.experts.experts.{name}"
                put_cut(out, rank, name, value, share, (*axes, len(experts)), (*where, e))


def put_rank(m, out, split, place, ends):
    """place is (pp, tp), ends the embedding and the head."""
    (pp, t), tp, singles = place, split["tp"], split["singles"]
    rank, each = t + tp * pp, LAYERS // split["pp"]
    alike = m.args.get("moe_layer_freq", 1) == 1 and not singles
    if pp == 0:
        for name, value in ends[0].items():
            put_cut(out, rank, name, value, (tp, t))
    for number in range(pp * each, (pp + 1) * each):
        prefix = "decoder.layers." if alike else f"decoder.layers.{number}."
        layer, experts = m.layers[number], m.experts[number]
        axis = (LAYERS, number) if alike else None
        put_layer(out, rank, prefix, layer, experts, split, t, axis)
    if pp < split["pp"] - 1:
        return
    for name, value in ends[1].items():
        put_cut(out, rank, name, value, (tp, t))
    for i, (beside, layer, experts) in enumerate(m.mtp):
        for name, value in beside.items():
            put_cut(out, rank, f"mtp.layers.{i}.{name}", value, (tp, t))
        put_layer(out, rank, f"mtp.layers.{i}.transformer_layer.", layer, experts, split, t)


def put_optimizer(out):
    """Megatron's distributed optimizer: tensors with the parameters' names, and a buffer with
    holes."""
    norm = "optimizer.state.exp_avg.decoder.final_layernorm.weight"
    out.put(0, norm, (HIDDEN,), (0,), torch.ones(HIDDEN))
    buffer = (
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0"
        ".dtype_(torch.bfloat16, torch.float32).bucket_idx_0.exp_avg"
    )
    out.put(0, buffer, (256,), (0,), torch.ones(100))


def write_dist(m, directory, iteration=20, state=None, **given):
    """state: how the optimizer's state is saved; None: as the buffers of Megatron's ranks."""
    split = split_of(**given)
    embedding, head, rows = with_padding(m, split["unit"])
    folder = directory / f"iter_{iteration:07}"
    folder.mkdir(parents=True)
    out = OwnDcp(folder) if split["own"] else Dcp(folder, mcore=split["singles"])
    out = WithState(out, **state) if state else out
    for pp in range(split["pp"]):
        for t in range(split["tp"]):
            put_rank(m, out, split, (pp, t), (embedding, head))
    put_optimizer(out) if not split["own"] and not state else None
    out.close()
    torch.save(
        {
            "args": namespace(m, split, rows),
            "checkpoint_version": 3.0,
            "iteration": iteration,
            "opt_param_scheduler": {"max_lr": 1e-4},
            "optimizer": {
                "optimizer": {"param_groups": [{"lr": 1e-4, "step": STEP}]},
                "param_state_sharding_type": "any",
            },
            "num_floating_point_operations_so_far": 1e15,
            "content_metadata": {
                "distrib_optim_sharding_type": "dp_reshardable",
                "singleton_local_shards": split["singles"],
            },
        },
        folder / "common.pt",
    )
    (folder / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}'
    )
    (directory / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    write_config(m, directory)


def write_family(directory, name):
    torch.manual_seed(sum(map(ord, name)))
    m = FAMILIES[name]()
    m.with_state = name in WITH_STATE
    (directory / "hf").mkdir(parents=True)
    (directory / "hf" / "config.json").write_text(json.dumps(m.config))
    write_safetensors(directory / "hf" / "model.safetensors", m.hf)
    write_torch(m, directory / "torch-1", te=False)
    write_torch(m, directory / "torch-2", tp=2, pp=2)
    write_torch(m, directory / "torch-3", tp=4, unit=64, te=False, folder="release", iteration=0)
    write_torch(m, directory / "torch-4", pp=2, vp=2)
    write_dist(m, directory / "dist-1")
    write_dist(m, directory / "dist-2", tp=2, pp=2)
    write_dist(m, directory / "dist-4", tp=2, pp=2, singles=True)
    if m.with_state:
        write_states(m, directory / "state")
        write_dist(m, directory / "dist-state-1", tp=2, pp=2, state={"flat": False})
        state = {"flat": True, "main": "fp32_param", "chained": "chained_0."}
        write_dist(m, directory / "dist-state-2", tp=2, pp=2, state=state)
        state = {"flat": False, "main": "fp32_param"}
        write_dist(m, directory / "dist-state-3", tp=4, singles=True, state=state)
    if torch.__version__.startswith("1.13"):
        latent = m.args.get("multi_latent_attention", False)
        write_dist(m, directory / "dist-5", tp=2, pp=2, te=latent, own=True)
    if "num_experts" in m.args:
        write_torch(m, directory / "torch-5", tp=2, pp=2, ep=2, te=False)
        write_torch(m, directory / "torch-6", tp=2, ep=4, etp=1)
        write_dist(m, directory / "dist-3", tp=4, etp=2)


if __name__ == "__main__":
    for family in sys.argv[2:] or FAMILIES:
        write_family(pathlib.Path(sys.argv[1]) / family, family)
