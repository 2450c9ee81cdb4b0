"""Megatron's split of a Hugging Face model, written as plainly as possible with torch.

The oracle of the end-to-end tests: it shares no code and no approach with
src/core/model/partition.c. It first builds the whole Megatron model (fused, padded), then cuts
every tensor by one rule per name.
"""
from __future__ import annotations

import torch

Tensors = dict[str, torch.Tensor]

LLAMA = ("llama", "mistral", "qwen2")


def _pad_vocabulary(weight: torch.Tensor, divisor: int, tp: int, pad: str) -> torch.Tensor:
    unit = (divisor or 128) * tp
    missing = -len(weight) % unit
    row = weight[-1:] if pad == "repeat" else torch.zeros_like(weight[-1:])
    return torch.cat([weight] + [row] * missing)


def _fuse_qkv(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int) -> torch.Tensor:
    """Per query group: its q heads, its k head, its v head. Works for weights and biases."""
    pieces = []
    for g in range(groups):
        for whole in (q, k, v):
            rows = len(whole) // groups
            pieces.append(whole[g * rows : (g + 1) * rows])
    return torch.cat(pieces)


def _llama_layer(hf: Tensors, config: dict, number: int) -> Tensors:
    p = f"model.layers.{number}."
    groups = config.get("num_key_value_heads") or config["num_attention_heads"]
    out = {
        "input_layernorm.weight": hf[p + "input_layernorm.weight"],
        "pre_mlp_layernorm.weight": hf[p + "post_attention_layernorm.weight"],
        "self_attention.linear_proj.weight": hf[p + "self_attn.o_proj.weight"],
        "mlp.linear_fc2.weight": hf[p + "mlp.down_proj.weight"],
    }
    for kind in ("weight", "bias"):
        q, k, v = (hf.get(f"{p}self_attn.{x}_proj.{kind}") for x in "qkv")
        if q is not None:
            out[f"self_attention.linear_qkv.{kind}"] = _fuse_qkv(q, k, v, groups)
    # Gate and up stay two matrices until they are split; see _cut.
    out["mlp.linear_fc1.weight"] = torch.stack(
        [hf[p + "mlp.gate_proj.weight"], hf[p + "mlp.up_proj.weight"]]
    )
    return out


def _gpt2_layer(hf: Tensors, config: dict, number: int) -> Tensors:
    p = f"h.{number}."
    out = {}
    for kind in ("weight", "bias"):

        def linear(name: str) -> torch.Tensor:
            tensor = hf[f"{p}{name}.{kind}"]
            return tensor.t() if kind == "weight" else tensor  # Conv1D keeps [in, out]

        q, k, v = linear("attn.c_attn").chunk(3)
        out[f"input_layernorm.{kind}"] = hf[f"{p}ln_1.{kind}"]
        out[f"pre_mlp_layernorm.{kind}"] = hf[f"{p}ln_2.{kind}"]
        out[f"self_attention.linear_qkv.{kind}"] = _fuse_qkv(q, k, v, config["n_head"])
        out[f"self_attention.linear_proj.{kind}"] = linear("attn.c_proj")
        out[f"mlp.linear_fc1.{kind}"] = linear("mlp.c_fc")
        out[f"mlp.linear_fc2.{kind}"] = linear("mlp.c_proj")
    return out


def _cut(name: str, tensor: torch.Tensor, tp: int, t: int) -> torch.Tensor:
    """The share of tensor-parallel rank t."""
    if "layernorm" in name or "layer_norm" in name:
        return tensor
    if "linear_fc1" in name and tensor.dim() == 3:  # [gate or up, rows, columns]
        return torch.cat([half.chunk(tp)[t] for half in tensor])
    if any(x in name for x in ("linear_qkv", "linear_fc1", "word_embeddings", "output_layer")):
        return tensor.chunk(tp)[t]
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return tensor.chunk(tp, dim=1)[t]
    return tensor


def stage_layers(
    layers: int, pp: int, first: int = 0, last: int = 0, chunks: int = 1
) -> list[list[list[int]]]:
    """[stage][chunk] -> global layer numbers, by dealing out layers one by one."""
    if chunks > 1:
        each = layers // pp // chunks
        order = [(stage, chunk) for chunk in range(chunks) for stage in range(pp)]
        counts = {key: each for key in order}
    else:
        order = [(stage, 0) for stage in range(pp)]
        counts = {key: 0 for key in order}
        free = list(order)
        for key, count in ((order[0], first), (order[-1], last)):
            if count:
                counts[key] = count
                free.remove(key)
        for key in free:
            counts[key] = (layers - first - last) // len(free)
    out: list[list[list[int]]] = [[[] for _ in range(chunks)] for _ in range(pp)]
    number = 0
    for stage, chunk in order:
        for _ in range(counts[stage, chunk]):
            out[stage][chunk].append(number)
            number += 1
    assert number == layers, (number, layers)
    return out


def _te_name(name: str) -> str:
    name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    return name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")


def slice_model(
    hf: Tensors,
    config: dict,
    tp: int,
    pp: int,
    divisor: int = 128,
    pad: str = "repeat",
    naming: str = "local",
    first: int = 0,
    last: int = 0,
    chunks: int = 1,
) -> dict[tuple[int, int], dict[str, Tensors]]:
    """{(pp rank, tp rank): {part: {Megatron name: tensor}}} of a Hugging Face model."""
    kind = config["model_type"]
    if kind == "gpt2":
        hf = {name.removeprefix("transformer."): tensor for name, tensor in hf.items()}
        layers, tied = config["n_layer"], True
        embedding, head, norm, layer = hf["wte.weight"], hf["wte.weight"], "ln_f", _gpt2_layer
    else:
        assert kind in LLAMA, kind
        layers, tied = config["num_hidden_layers"], bool(config.get("tie_word_embeddings"))
        embedding, norm, layer = hf["model.embed_tokens.weight"], "model.norm", _llama_layer
        head = embedding if tied else hf["lm_head.weight"]
    out = {}
    for p, runs in enumerate(stage_layers(layers, pp, first, last, chunks)):
        for t in range(tp):
            parts: dict[str, Tensors] = {}

            def put(part: str, name: str, tensor: torch.Tensor) -> None:
                cut = _cut(name, tensor, tp, t).contiguous()
                parts.setdefault(part, {})[name] = cut

            before = "model0." if chunks > 1 else ""
            if p == 0:
                put(
                    "embedding",
                    before + "embedding.word_embeddings.weight",
                    _pad_vocabulary(embedding, divisor, tp, pad),
                )
                if kind == "gpt2":
                    put(
                        "embedding",
                        before + "embedding.position_embeddings.weight",
                        hf["wpe.weight"],
                    )
            for chunk, numbers in enumerate(runs):
                prefix = f"model{chunk}." if chunks > 1 else ""
                for local, number in enumerate(numbers):
                    for name, tensor in layer(hf, config, number).items():
                        name = _te_name(name) if naming == "te" else name
                        put(f"layer-{number:04d}", f"{prefix}decoder.layers.{local}.{name}", tensor)
            if p == pp - 1:
                before = f"model{chunks - 1}." if chunks > 1 else ""
                for what in ("weight", "bias"):
                    if f"{norm}.{what}" in hf:
                        put("head", f"{before}decoder.final_layernorm.{what}", hf[f"{norm}.{what}"])
                if not tied or pp > 1:
                    put(
                        "head",
                        before + "output_layer.weight",
                        _pad_vocabulary(head, divisor, tp, pad),
                    )
            out[p, t] = parts
    return out
