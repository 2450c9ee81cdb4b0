"""The two namings that Megatron-core has for the norms of a layer; the tensors are the same.

``local`` (``--transformer-impl local``) names a norm after the norm, ``te`` (Transformer Engine,
Megatron's default) after the linear that the norm is fused with::

    input_layernorm.weight     self_attention.linear_qkv.layer_norm_weight
    pre_mlp_layernorm.weight   mlp.linear_fc1.layer_norm_weight

and likewise ``bias``. In a layer with experts pre_mlp_layernorm has that name in both; in one with
latent attention input_layernorm has, and q_layernorm and kv_layernorm are fused with the projection
behind them. Experts are numbered from 0 in both::

    mlp.experts.local_experts.3.linear_fc1.weight   mlp.experts.linear_fc1.weight3

"""
from __future__ import annotations

import re
from typing import Iterable

from .errors import InvalidArgument

__all__ = ["NAMINGS", "differ", "naming_of", "rename"]

NAMINGS = ("local", "te")

_TE = {"input_layernorm": "self_attention.linear_qkv", "pre_mlp_layernorm": "mlp.linear_fc1",
       "self_attention.q_layernorm": "self_attention.linear_q_up_proj",
       "self_attention.kv_layernorm": "self_attention.linear_kv_up_proj"}
_LOCAL = {linear: norm for norm, linear in _TE.items()}
_LOCAL_NORM = re.compile(r"\.(input_layernorm|pre_mlp_layernorm|self_attention\.q_layernorm|"
                         r"self_attention\.kv_layernorm)\.(?=(?:weight|bias)(?:\.|$))")
_TE_NORM = re.compile(
    r"\.(self_attention\.linear_(?:qkv|q_up_proj|kv_up_proj)|mlp\.linear_fc1)\.layer_norm_"
    r"(?=(?:weight|bias)(?:\.|$))")
_LOCAL_EXPERT = re.compile(
    r"\.mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12]\.(?:weight|bias))(?=\.|$)")
_TE_EXPERT = re.compile(r"\.mlp\.experts\.(linear_fc[12]\.(?:weight|bias))(\d+)(?=\.|$)")
_VISION = re.compile(r"(?:^|\.)(?:vision_tower|vision_model|multi_modal_projector)\.")
_EXPERTS = re.compile(r"\.mlp\.(?:router|experts|shared_experts)\.")
_LATENT = re.compile(r"\.self_attention\.linear_kv_down_proj\.")


def differ(names: Iterable[str]) -> bool:
    """Has one of `names` another form under the other naming?"""
    forms = (_LOCAL_NORM, _TE_NORM, _LOCAL_EXPERT, _TE_EXPERT)
    return any(form.search(name) for name in names if not _VISION.search(name) for form in forms)


def _local(name: str) -> str:
    if _VISION.search(name):
        return name
    name = _TE_NORM.sub(lambda m: f".{_LOCAL[m[1]]}.", name, count=1)
    return _TE_EXPERT.sub(lambda m: f".mlp.experts.local_experts.{m[2]}.{m[1]}", name, count=1)


def _stays(norm: str, experts: bool, latent: bool) -> bool:
    """The norm has its local name under "te" too."""
    if norm == "pre_mlp_layernorm":
        return experts
    return latent if norm == "input_layernorm" else not latent


def naming_of(names: Iterable[str]) -> str:
    """The naming that some of `names` follow; "local" where they would be the same in both."""
    return "te" if any(_TE_NORM.search(name) and not _VISION.search(name) for name in names) else "local"


def rename(names: Iterable[str], to: str) -> dict[str, str]:
    """Each of `names` -> what it is called under the naming `to`, "local" or "te".

    `names` must hold whole layers: a layer has experts or latent attention if one of its names says so. Names of other
    tensors, and those that already follow `to`, stay as they are, and so does what stands before
    the layer (``model1.``, ``exp_avg.``). Raises InvalidArgument for another `to`.
    """
    if to not in NAMINGS:
        raise InvalidArgument(f"naming {to!r} must be one of {', '.join(NAMINGS)}")
    names = list(names)
    if to == "local":
        return {name: _local(name) for name in names}
    with_experts = {n[:m.start()] for n in names if (m := _EXPERTS.search(n))}
    latent = {n[:m.start()] for n in names if (m := _LATENT.search(n))}
    out = {}
    for name in names:
        if _VISION.search(name):
            out[name] = name
            continue
        norm = _LOCAL_NORM.search(name)
        out[name] = _LOCAL_EXPERT.sub(lambda m: f".mlp.experts.{m[2]}{m[1]}", name, count=1)
        if norm is not None:
            layer = name[:norm.start()]
            if not _stays(norm[1], layer in with_experts, layer in latent):
                out[name] = f"{layer}.{_TE[norm[1]]}.layer_norm_{name[norm.end():]}"
    return out
