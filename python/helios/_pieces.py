"""Pieces of optimizer state: the elements of a parameter's state that one data-parallel rank holds.

A piece is stored as a vector whose name says where it begins and the shape of the whole:
``exp_avg.decoder.layers.0.mlp.linear_fc1.weight.at128of64x32``.
"""
from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

from . import _arguments, _tensors
from .errors import Corrupt, InvalidArgument, NotFound

if TYPE_CHECKING:
    import torch

__all__ = ["Piece", "is_piece", "joined", "of_one", "plain", "stored"]

_SUFFIX = re.compile(r"\.at(0|[1-9]\d*)of((?:(?:0|[1-9]\d*)(?:x(?:0|[1-9]\d*))*)?)$")


@dataclass(frozen=True)
class Piece:
    """Elements [start, start + tensor.numel()) of state that has `shape` on this tensor rank.

    Elements are counted in the order of ``contiguous()``. `shape` is the parameter's. Raises
    InvalidArgument unless this is a valid range of a tensor that can be stored.
    """

    tensor: "torch.Tensor"
    shape: tuple[int, ...]
    start: int

    def __post_init__(self) -> None:
        torch = _tensors.torch_module()
        if not isinstance(self.tensor, torch.Tensor):
            raise InvalidArgument(f"Piece: {_arguments.told('tensor', self.tensor)} must be a "
                                  "torch tensor")
        _tensors.check("Piece", self.tensor)
        if not isinstance(self.shape, (tuple, list)):
            raise InvalidArgument(f"Piece: {_arguments.told('shape', self.shape)} must be that of "
                                  "the parameter, a tuple of sizes")
        shape = tuple(_arguments.integer("Piece: size in shape", size, 0, _arguments.INT64_MAX)
                      for size in self.shape)
        start = _arguments.integer("Piece: start", self.start, 0, _arguments.INT64_MAX)
        count = self.tensor.numel()
        if start + count > math.prod(shape):
            raise InvalidArgument(f"Piece: {count} elements from {start} on are not in a tensor of "
                                  f"shape {list(shape)}, which has {math.prod(shape)}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "start", start)


def is_piece(name: str) -> bool:
    """Whether a stored tensor's name is that of a piece."""
    return _SUFFIX.search(name) is not None


def plain(name: str) -> str:
    """The name of the state that a stored tensor holds, whole or as a piece."""
    return _SUFFIX.sub("", name)


def stored(values: Mapping[str, Any]) -> dict[str, Any]:
    """State in stored form: pieces become vectors whose names give their position."""
    out = {}
    for name, value in values.items():
        if isinstance(value, Piece):
            if value.tensor.numel() == 0:
                continue
            name = f"{name}.at{value.start}of{'x'.join(map(str, value.shape))}"
            value = value.tensor.detach().reshape(-1)
        out[name] = value
    return out


def of_one(values: dict[str, Any]) -> dict[str, Any]:
    """Stored state that no other data rank has a share of: a piece may be a whole tensor."""
    out = {}
    for name, value in values.items():
        match = _SUFFIX.search(name)
        if match is not None:
            shape = [int(n) for n in match[2].split("x") if n]
            if value.numel() != math.prod(shape):
                return values
            name, value = plain(name), value.view(shape)
        out[name] = value
    return out


class _Held(NamedTuple):
    start: int
    end: int
    shape: tuple[int, ...]
    flat: Any


def _held(name: str, tensor: Any) -> _Held:
    match = _SUFFIX.search(name)
    if match is None:
        return _Held(0, tensor.numel(), tuple(tensor.shape), tensor.reshape(-1))
    start = int(match[1])
    return _Held(start, start + tensor.numel(), tuple(int(n) for n in match[2].split("x") if n),
                 tensor.reshape(-1))


def _check(name: str, held: list[_Held], where: str) -> int:
    """Number of elements of the state. Raises Corrupt unless the pieces cover each exactly once."""
    at, shape = 0, held[0].shape
    for piece in held:
        if piece.shape != shape:
            raise Corrupt(f"{where}: the pieces of '{name}' are of shapes {list(shape)} and "
                          f"{list(piece.shape)}; use another version")
        if piece.start != at:
            low, high = sorted((at, piece.start))
            raise Corrupt(f"{where}: elements [{low}, {high}) of '{name}' are in "
                          f"{'no piece' if piece.start > at else 'several pieces'}; use another "
                          "version")
        at = piece.end
    if at != math.prod(shape):
        raise Corrupt(f"{where}: elements [{at}, {math.prod(shape)}) of '{name}' are in no piece; "
                      "use another version")
    return at


def _take(held: list[_Held], low: int, high: int) -> "torch.Tensor":
    """Elements [low, high), as a view if one piece has all of them."""
    parts = [piece.flat[max(low, piece.start) - piece.start:min(high, piece.end) - piece.start]
             for piece in held if piece.start < high and piece.end > low]
    if len(parts) == 1:
        return parts[0]
    return _tensors.concatenated(parts) if parts else held[0].flat[:0]


def _parameter(name: str, ranges: Mapping[str, Any]) -> str | None:
    """The parameter in `ranges` whose name is the end of the state's name."""
    tail = name
    while tail and tail not in ranges:
        tail = tail.partition(".")[2]
    return tail or None


def joined(tensors: Mapping[str, Any], ranges: Mapping[str, tuple[int, int]] | None,
           where: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Join pieces into whole tensors. With `ranges` {parameter: (start, end)}: only those elements
    of the state of these parameters, as vectors. `model`: the model's tensors, which are returned
    beside them."""
    groups: dict[str, list[_Held]] = {}
    for name, tensor in tensors.items():
        if ranges is None and not is_piece(name):
            continue
        groups.setdefault(plain(name), []).append(_held(name, tensor))
    out = {} if ranges is not None else {name: t for name, t in tensors.items()
                                         if not is_piece(name)}
    found = set()
    for name, held in groups.items():
        held.sort(key=lambda piece: (piece.start, piece.end))
        count = _check(name, held, where)
        if ranges is None:
            if name in out or name in model:
                raise Corrupt(f"{where}: '{name}' is stored both whole and in pieces; use another "
                              "version")
            out[name] = _take(held, 0, count).view(held[0].shape)
            continue
        parameter = _parameter(name, ranges)
        if parameter is None:
            continue
        low, high = ranges[parameter]
        if not 0 <= low <= high <= count:
            raise InvalidArgument(f"ranges: '{parameter}' has elements [0, {count}), not [{low}, "
                                  f"{high})")
        found.add(parameter)
        out[name] = _take(held, low, high)
    missing = set(ranges or ()) - found
    if missing:
        raise NotFound(f"{where} has no optimizer state of '{min(missing)}'")
    return out
