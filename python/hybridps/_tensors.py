"""Torch tensors over addresses of a pool: no copy.

A view is made once and stays right for ever, as a chunk has one address in each place for all its
life; where the chunk is not, touching the view is a fault, which the library serves.
"""
from __future__ import annotations

import ctypes
import functools
import math
import weakref
from typing import Any, Callable, Sequence

import torch

from . import _abi


# By id(tensor), of those that view() has made. Not in an attribute: torch pickles what a tensor has.
_memories: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _DeviceBytes:
    """What torch.as_tensor needs to see device memory of CUDA."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "version": 2,
                                         "data": (address, False), "strides": None}


def view(address: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
         cuda: str | None = None, home: Any = None) -> torch.Tensor:
    """A tensor at ``address``; its strides leave no holes. home: lives as long as it, or any other
    that shows the same memory; ``memory_of`` the result tells how long that is."""
    if torch.is_inference_mode_enabled():  # it outlives its first user
        with torch.inference_mode(False):
            return view(address, shape, stride, dtype, cuda, home)
    count = math.prod(shape)
    size = count * _size_of(dtype)
    if cuda:
        flat = torch.as_tensor(_DeviceBytes(address, size), device=cuda).view(dtype)
        return flat.as_strided(shape, stride)
    memory = (ctypes.c_char * size).from_address(address)
    memory.home = home
    out = torch.frombuffer(memory, dtype=dtype, count=count).as_strided(shape, stride)
    _memories[id(out)] = memory
    return out


def memory_of(made: torch.Tensor) -> weakref.ref[Any]:
    """What is alive as long as a tensor or array shows the memory of what view() has made."""
    return weakref.ref(_memories[id(made)])


@functools.lru_cache(maxsize=None)
def _size_of(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def is_dense(t: torch.Tensor) -> bool:
    """Whether numel elements in memory hold it, in whatever order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(t.shape, t.stride()), key=lambda d: (d[1], d[0])):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def in_same_memory(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Which two overlap, of dense ones; those without memory don't."""
    def place(i: int) -> int:
        return tensors[i].data_ptr()
    there = sorted(filter(place, range(len(tensors))), key=place)
    for one, other in zip(there, there[1:]):
        if place(one) + tensors[one].numel() * tensors[one].element_size() > place(other):
            return one, other
    return None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and objects that are dataclasses."""
    found: list[torch.Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _collect(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            _collect(getattr(value, name), found)


def uncompiled(function: Callable) -> Callable:
    """torch.compile leaves it, and all that it calls, as it is: a graph would know the places where
    parameters are when it is made."""
    compiler = getattr(torch, "compiler", None)  # torch 2.1
    return function if compiler is None else compiler.disable(function)


def kind_of_state(name: str) -> int:
    """The kind of chunks an optimizer's state of that name lies in."""
    return {"exp_avg": _abi.MOMENTUM, "momentum_buffer": _abi.MOMENTUM,
            "exp_avg_sq": _abi.VARIANCE}.get(name, _abi.OTHER)
