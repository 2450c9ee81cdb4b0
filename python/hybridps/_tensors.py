"""Torch tensors over addresses of a pool: no copy.

A view is made once and stays valid, because a chunk has one address in each place for its whole
life. Where the chunk is absent, touching the view faults, which the library serves.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import weakref
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.utils.dlpack

from . import _abi


# By address: all live views share one object, which therefore lives until the last view is gone.
_memories: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


class _DLManaged(ctypes.Structure):
    """DLPack's DLManagedTensor, of one dimension. torch trusts its device; other ways ask the
    driver about the address, which fails while nothing is mapped there."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("size", ctypes.c_int64)]  # size: the shape


_CUDA, _UNSIGNED = 2, 1  # kDLCUDA, kDLUInt
_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def _device_bytes(address: int, size: int, device: str) -> torch.Tensor:
    """Bytes at a CUDA address, whether or not memory is mapped there."""
    at = _libc.malloc(ctypes.sizeof(_DLManaged))
    if not at:
        raise MemoryError
    managed = _DLManaged.from_address(at)
    managed.__init__(address, _CUDA, torch.device(device).index, 1, _UNSIGNED, 8, 1,
                     at + _DLManaged.size.offset,
                     None, 0, None, ctypes.cast(_libc.free, ctypes.c_void_p).value, size)
    return torch.utils.dlpack.from_dlpack(_new_capsule(at, b"dltensor", None))


def view(address: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype,
         cuda: str | None = None, home: Any = None) -> torch.Tensor:
    """A tensor at ``address``; its strides leave no holes. home: kept alive as long as this tensor,
    or any other that shows the same memory; ``memory_at`` the address tells whether it still is."""
    if torch.is_inference_mode_enabled():  # it outlives its first user
        with torch.inference_mode(False):
            return view(address, shape, stride, dtype, cuda, home)
    count = math.prod(shape)
    size = count * _size_of(dtype)
    if cuda:
        flat = _device_bytes(address, size, cuda).view(dtype)
        return flat.as_strided(shape, stride)
    memory = _memories.get(address)
    if memory is None or memory.home is not home or len(memory) != size:
        memory = _memories[address] = (ctypes.c_char * size).from_address(address)
        memory.home = home
    return torch.frombuffer(memory, dtype=dtype, count=count).as_strided(shape, stride)


def memory_at(address: int) -> Callable[[], Any]:
    """A callable that returns something as long as a tensor or array shows memory from view()."""
    memory = _memories.get(address)
    if memory is None:
        return _nothing
    return weakref.ref(memory)


@contextlib.contextmanager
def forgotten(*addresses: int) -> Iterator[list[int]]:
    """Views that are made within share no memory object with earlier ones. Yields a list that then
    has the addresses of which earlier views are still alive, and whose object counts again."""
    before = {address: memory_at(address) for address in addresses}
    for address in addresses:
        _memories.pop(address, None)
    alive: list[int] = []
    yield alive
    for address, memory in before.items():
        found = memory()
        if found is not None:
            _memories[address] = found
            alive.append(address)


def _nothing() -> None:
    pass


@functools.lru_cache(maxsize=None)
def _size_of(dtype: torch.dtype) -> int:
    return torch.empty(0, dtype=dtype).element_size()


def is_at(value: Any, host: torch.Tensor) -> bool:
    """Whether the value shows host's memory in the same way as host."""
    return (isinstance(value, torch.Tensor) and value.data_ptr() == host.data_ptr() and
            value.dtype == host.dtype and value.stride() == host.stride())


def moved(value: torch.Tensor, host: torch.Tensor) -> torch.Tensor:
    """Make a user's tensor, whose values host has, show host: everyone who kept the tensor sees
    what is written there."""
    if type(value) is not torch.Tensor or value.device != host.device or value.is_inference():
        return host.detach()
    value.data = host
    return value


def is_dense(t: torch.Tensor) -> bool:
    """Whether it occupies exactly numel elements of memory, in any order of dimensions."""
    expected = 1
    for size, stride in sorted(zip(t.shape, t.stride()), key=lambda d: (d[1], d[0])):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def in_same_memory(tensors: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Two dense tensors that overlap; those without memory never do."""
    def place(i: int) -> int:
        return tensors[i].data_ptr()
    there = sorted(filter(place, range(len(tensors))), key=place)
    for one, other in zip(there, there[1:]):
        if place(one) + tensors[one].numel() * tensors[one].element_size() > place(other):
            return one, other
    return None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """Every tensor in nested tuples, lists, dicts and dataclass objects."""
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
    """Exclude a function, and all it calls, from torch.compile: a graph would contain the
    parameters' places at the time of tracing."""
    compiler = getattr(torch, "compiler", None)  # torch 2.1
    return function if compiler is None else compiler.disable(function)


def kind_of_state(name: str) -> int:
    """The kind of chunks for optimizer state of that name."""
    return {"exp_avg": _abi.MOMENTUM, "momentum_buffer": _abi.MOMENTUM,
            "exp_avg_sq": _abi.VARIANCE}.get(name, _abi.OTHER)
