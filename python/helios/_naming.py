"""Megatron-core's two namings for the norms of a layer and for experts; the tensors are the same.

``local`` (``--transformer-impl local``) names a norm after itself, ``te`` (Transformer Engine,
Megatron's default) after the linear layer that the norm is fused with::

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
    """Whether any of `names` differs between the two namings."""
    names = list(names)
    return any(old != new for naming in NAMINGS for old, new in rename(names, naming).items())


def naming_of(names: Iterable[str]) -> str:
    """The naming that `names` follow; "local" if they would be the same in both."""
    return "te" if any(old != new for old, new in rename(names, "local").items()) else "local"


def rename(names: Iterable[str], to: str) -> dict[str, str]:
    """Map each of `names` to its name under the naming `to`, "local" or "te".

    `names` must contain whole layers, because one name of a layer can show that the layer has
    experts or latent attention. Names of other tensors, and those that already follow `to`, stay
    unchanged, and so do prefixes before the layer (``model1.``, ``exp_avg.``). Raises
    InvalidArgument for any other `to`.
    """
    if to not in NAMINGS:
        raise InvalidArgument(f"naming {to!r} must be one of {', '.join(NAMINGS)}")
    names = list(names)
    return dict(zip(names, _abi.names_under(names, to))) if names else {}
