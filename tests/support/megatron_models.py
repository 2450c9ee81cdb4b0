"""Tiny models of every family for megatron_checkpoints.py: the tensors of Hugging Face, and the
same fused as Megatron-LM has them."""
import json
import struct

import torch

VOCAB, HIDDEN, HEADS, GROUPS, FFN, LAYERS, EXPERTS, MOE_FFN = 61, 32, 4, 2, 48, 4, 4, 16
DTYPE = torch.bfloat16
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}


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


def latent_attention(m, s, out, v3, sizes):
    q_lora, kv_lora, nope, rope, v_dim = sizes
    a, rows = "self_attention.", HEADS * (nope + rope)
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


def deepseek(kind, mtp=False):
    v3, sizes = kind == "deepseek_v3", (24, 16, 8, 4, 6)
    q_lora, kv_lora, nope, rope, v_dim = sizes
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
        p = f"model.layers.{i}."
        out["input_layernorm.weight"] = m.whole(p + "input_layernorm.weight", HIDDEN)
        latent_attention(m, p + "self_attn.", out, v3, sizes)
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
