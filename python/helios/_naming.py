"""The two namings that Megatron-core has for the norms of a layer and for experts; the tensors are the same.

``local`` (``--transformer-impl local``) names a norm after the norm, ``te`` (Transformer Engine,
Megatron's default) after the linear that the norm is fused with::

    input_layernorm.weight     self_attention.linear_qkv.layer_norm_weight
    pre_mlp_layernorm.weight   mlp.linear_fc1.layer_norm_weight

libhelios knows which name is which (core/model/naming.h).
"""
from __future__ import annotations

from typing import Iterable

from . import _abi
from .errors import InvalidArgument

__all__ = ["NAMINGS", "differ", "naming_of", "rename"]

NAMINGS = ("local", "te")


def differ(names: Iterable[str]) -> bool:
    """Has one of `names` another form under one of the namings?"""
    names = list(names)
    return any(old != new for naming in NAMINGS for old, new in rename(names, naming).items())


def naming_of(names: Iterable[str]) -> str:
    """The naming that some of `names` follow; "local" where they would be the same in both."""
    return "te" if any(old != new for old, new in rename(names, "local").items()) else "local"


def rename(names: Iterable[str], to: str) -> dict[str, str]:
    """Each of `names` -> what it is called under the naming `to`, "local" or "te".

    `names` must hold whole layers: a layer has experts or latent attention if one of its names says so. Names of other
    tensors, and those that already follow `to`, stay as they are, and so does what stands before
    the layer (``model1.``, ``exp_avg.``). Raises InvalidArgument for another `to`.
    """
    if to not in NAMINGS:
        raise InvalidArgument(f"naming {to!r} must be one of {', '.join(NAMINGS)}")
    names = list(names)
    return dict(zip(names, _abi.names_under(names, to))) if names else {}
