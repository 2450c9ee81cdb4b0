"""What is saved of a state dict: which values, under which names, in which parts.

Rules, for every state dict of PyTorch, Megatron and Transformer Engine:

- A tensor is saved under its name. Leading ``module.`` (DDP, Float16Module) are dropped from it,
  also after the state's own prefix (``exp_avg.module.decoder…``).
- ``None`` is skipped: modules use it to say that they have no extra state.
- Extra state (a name that ends with ``_extra_state``) and ``BytesIO`` or ``bytes`` values are
  opaque blobs: they are stored next to the model's tensors, and ``load_state_dict(kind="extra")``
  returns them.
"""
from __future__ import annotations

import io
import re
from typing import Any, Mapping

from . import _arguments, _pieces, _tensors
from .errors import InvalidArgument

EXTRA = "extra-"  # prefix of the parts that hold opaque blobs
OPTIM = "optim-"  # prefix of the parts that hold optimizer state
BYTES = ":bytes"  # a blob of bytes, stored as U8 under its name with this suffix

_SHARE = re.compile(r"optim-dp(\d+)of(\d+)-")
_WRAPPED = "module."


def plain(name: str) -> str:
    """The name without leading ``module.``."""
    while name.startswith(_WRAPPED):
        name = name.removeprefix(_WRAPPED)
    return name


def _unwrapped(values: Mapping[str, Any], what: str, rename: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name, value in values.items():
        _arguments.text(f"{what}: name", name)
        if value is None:
            continue
        new = rename(name)
        if not new:
            raise InvalidArgument(f"{what} has a tensor under {name!r}, which is not a name")
        if new in out:
            raise InvalidArgument(f"{what} has both '{origin[new]}' and '{name}', which are one "
                                  "tensor without their 'module.' prefixes")
        out[new], origin[new] = value, name
    return out


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tensors, blobs) of a model's state dict under plain names; checks that all can be stored."""
    tensors: dict[str, Any] = {}
    blobs: dict[str, Any] = {}
    for name, value in _unwrapped(state, "the state", plain).items():
        if isinstance(value, io.BytesIO):
            value = value.getvalue()
        if isinstance(value, (bytes, bytearray)):
            name, value = name + BYTES, _tensors.from_bytes(value)
            blobs[name] = value
        elif name.endswith("_extra_state"):
            blobs[name] = value
        else:
            tensors[name] = value
        _tensors.check(name, value)
    return tensors, blobs


def of_optimizer(optim: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Optimizer state in stored form, under plain names; `parameters`: those of the same call."""
    known = {plain(name) for name in parameters}

    def rename(name: str) -> str:
        at = 0
        while True:
            tail = name[at:]
            if tail.startswith(_WRAPPED) and (tail in parameters or not known or
                                              plain(tail) in known):
                return name[:at] + plain(tail)
            dot = name.find(".", at)
            if tail in known or dot < 0:
                return name
            at = dot + 1

    out = _pieces.stored(_unwrapped(optim, "optim", rename))
    for name, value in out.items():
        _tensors.check(name, value)
    return out


def blob(name: str, tensor: Any) -> tuple[str, Any]:
    """Restore a stored blob: (name, tensor) or (name, BytesIO)."""
    if not name.endswith(BYTES):
        return name, tensor
    return name.removesuffix(BYTES), io.BytesIO(_tensors.to_bytes(tensor))


def share(dp: int, dp_size: int) -> str:
    """Prefix of the parts with the optimizer state of one data-parallel rank. Rank 0's applies to
    all ranks if no other rank has any."""
    return OPTIM if dp == 0 else f"{OPTIM}dp{dp}of{dp_size}-"


def is_share(part: str) -> bool:
    """Whether the part holds a share that only one data-parallel rank has."""
    return _SHARE.match(part) is not None


def owner(part: str) -> str:
    """The part that optimizer state belongs to: "layer-0003" of "optim-dp1of2-layer-0003"."""
    return _SHARE.sub("", part, count=1).removeprefix(OPTIM)


def select_share(parts: list[str], dp: int, dp_size: int | None, where: str) -> str:
    """Prefix of the optimizer parts for data rank `dp`; `dp_size` None: the one it was saved with.

    Raises InvalidArgument when several ranks' shares were saved and this gang has a different size.
    """
    found = [match for match in map(_SHARE.match, parts) if match]
    if not found:
        return OPTIM
    sizes = {int(match[2]) for match in found}
    if len(sizes) > 1 or (dp_size is not None and sizes != {dp_size}):
        raise InvalidArgument(
            f"{where}: the optimizer state was saved in shares of {max(sizes)} data-parallel "
            f"ranks, and this gang has {dp_size}: pass dp=0 to dp={max(sizes) - 1} for one share "
            "each")
    prefix = share(dp, sizes.pop())
    if dp and not any(part.startswith(prefix) for part in parts):
        raise InvalidArgument(f"{where}: data-parallel rank {dp} has no optimizer state")
    return prefix


def names_expert(name: str) -> bool:
    """Whether it is the name of an expert's tensor, or of state of one."""
    return ".mlp.experts." in name


def has_experts(part: str) -> bool:
    """Whether the part holds experts, or their state or blobs."""
    return re.search(r"(?:^|-)experts-\d+$", part) is not None


def is_chosen(part: str, kind: str, optim_prefix: str) -> bool:
    """Whether the part holds what load_state_dict(kind=…) requests."""
    if part.startswith(EXTRA):
        return kind in ("extra", "all")
    if not part.startswith(OPTIM):
        return kind in ("model", "all")
    shared = _SHARE.match(part)
    return kind in ("optim", "all") and (shared[0] if shared else OPTIM) == optim_prefix
