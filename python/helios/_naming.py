"""The two namings that Megatron-core has for the norms of a layer; the tensors are the same.

``local`` (``--transformer-impl local``) names a norm after the norm, ``te`` (Transformer Engine,
Megatron's default) after the linear that the norm is fused with::

    input_layernorm.weight     self_attention.linear_qkv.layer_norm_weight
    pre_mlp_layernorm.weight   mlp.linear_fc1.layer_norm_weight

and likewise ``bias``. In a layer with experts pre_mlp_layernorm has that name in both.
"""
from __future__ import annotations

import re
from typing import Iterable

from .errors import InvalidArgument

__all__ = ["NAMINGS", "differ", "naming_of", "rename"]

NAMINGS = ("local", "te")

_TE = {"input_layernorm": "self_attention.linear_qkv", "pre_mlp_layernorm": "mlp.linear_fc1"}
_LOCAL = {linear: norm for norm, linear in _TE.items()}
_LOCAL_NORM = re.compile(r"\.(input_layernorm|pre_mlp_layernorm)\.(?=(?:weight|bias)(?:\.|$))")
_TE_NORM = re.compile(
    r"\.(self_attention\.linear_qkv|mlp\.linear_fc1)\.layer_norm_(?=(?:weight|bias)(?:\.|$))")
_EXPERTS = re.compile(r"\.mlp\.(?:router|experts|shared_experts)\.")


def differ(names: Iterable[str]) -> bool:
    """Has one of `names` another form under the other naming?"""
    return any(_LOCAL_NORM.search(name) or _TE_NORM.search(name) for name in names)


def naming_of(names: Iterable[str]) -> str:
    """The naming that some of `names` follow; "local" where they would be the same in both."""
    return "te" if any(_TE_NORM.search(name) for name in names) else "local"


def rename(names: Iterable[str], to: str) -> dict[str, str]:
    """Each of `names` -> what it is called under the naming `to`, "local" or "te".

    `names` must hold whole layers: a layer has experts if one of its names says so. Names of other
    tensors, and those that already follow `to`, stay as they are, and so does what stands before
    the layer (``model1.``, ``exp_avg.``). Raises InvalidArgument for another `to`.
    """
    if to not in NAMINGS:
        raise InvalidArgument(f"naming {to!r} must be one of {', '.join(NAMINGS)}")
    names = list(names)
    if to == "local":
        return {n: _TE_NORM.sub(lambda m: f".{_LOCAL[m[1]]}.", n, count=1) for n in names}
    with_experts = {n[:m.start()] for n in names if (m := _EXPERTS.search(n))}
    out = {}
    for name in names:
        norm = _LOCAL_NORM.search(name)
        stays = norm is None or (norm[1] == "pre_mlp_layernorm"
                                 and name[:norm.start()] in with_experts)
        out[name] = name if stays else (
            f"{name[:norm.start()]}.{_TE[norm[1]]}.layer_norm_{name[norm.end():]}")
    return out
