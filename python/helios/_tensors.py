"""torch tensors over mapped bytes and back. torch is imported on first use."""
from __future__ import annotations

import ctypes
import functools
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Mapping

from . import safetensors
from ._abi import Mapping as Mapped, TensorRef
from .errors import Corrupt, InvalidArgument, Unsupported

if TYPE_CHECKING:
    import torch


@functools.lru_cache(maxsize=None)
def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise Unsupported(f"torch cannot be imported by {sys.executable} ({error}): install it "
                          f"there ({sys.executable} -m pip install torch), or run the Python that "
                          "has it (Debian's python3-torch is for /usr/bin/python3)") from None
    return torch


# A torch that lacks the type returns the bytes as uint8.
_FLOAT8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}


@functools.lru_cache(maxsize=None)
def _dtypes() -> dict[str, Any]:
    t = _torch()
    known = {"F64": t.float64, "F32": t.float32, "F16": t.float16, "BF16": t.bfloat16,
             "I64": t.int64, "I32": t.int32, "I16": t.int16, "I8": t.int8, "U8": t.uint8,
             "BOOL": t.bool}
    return known | {name: getattr(t, attribute, t.uint8) for name, attribute in _FLOAT8.items()}


@functools.lru_cache(maxsize=None)
def _names() -> dict[Any, str]:
    return {dtype: name for name, dtype in reversed(_dtypes().items())}


def views(mapped: Mapped, where: str, copy: bool,
          origin: Mapping[str, str] | None = None) -> dict[str, "torch.Tensor"]:
    """The tensors of one mapped shard, in file order. Raises Corrupt if a ``helios.*`` entry of the
    shard's header differs from `origin`.

    They alias the mapping and keep it alive. With `copy` they are copies. A tensor that is not
    aligned to its element size is also copied; this never happens in shards that Helios wrote.
    """
    torch = _torch()
    buffer = mapped.buffer()
    length = int.from_bytes(ctypes.string_at(mapped.address, min(8, mapped.size)), "little")
    head = ctypes.string_at(mapped.address, min(8 + length, mapped.size))
    header = safetensors.parse_header(head, mapped.size, where)
    for key, value in (origin or {}).items():
        if header.metadata.get(key, value) != value:
            raise Corrupt(f"{where}: the shard's own header says {key} = {header.metadata[key]!r}, "
                          f"not {value!r}: the catalogue is wrong; use another version")
    out = {}
    for entry in sorted(header.entries.values(), key=lambda e: (e.begin, e.end)):
        dtype, width = _dtypes()[entry.dtype], safetensors.DTYPE_BYTES[entry.dtype]
        at, length = header.data_start + entry.begin, entry.end - entry.begin
        if length == 0:
            out[entry.name] = torch.empty(entry.shape, dtype=dtype)
            continue
        if (mapped.address + at) % width:
            source, at = bytearray(ctypes.string_at(mapped.address + at, length)), 0
        else:
            source = buffer
        flat = torch.frombuffer(source, dtype=dtype, count=length // width, offset=at)
        tensor = flat.view(entry.shape)
        out[entry.name] = tensor.clone() if copy and source is buffer else tensor
    return out


def from_bytes(data: bytes | bytearray) -> "torch.Tensor":
    """The bytes as a new U8 tensor."""
    torch = _torch()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else \
        torch.empty(0, dtype=torch.uint8)


def to_bytes(tensor: "torch.Tensor") -> bytes:
    """The bytes of a contiguous CPU tensor."""
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def torch_module() -> ModuleType:
    """torch; raises Unsupported if it can't be imported."""
    return _torch()


def concatenated(parts: list[Any]) -> "torch.Tensor":
    """Concatenate several vectors into one."""
    return _torch().cat(parts)


def check(name: str, tensor: Any) -> None:
    """Raises InvalidArgument when the value cannot be stored."""
    torch = _torch()
    is_tensor = isinstance(tensor, torch.Tensor)
    if is_tensor and torch.nn.parameter.is_lazy(tensor):
        raise InvalidArgument(f"parameter '{name}' of a lazy module has no shape yet: call the "
                              "module with a batch first")
    if not is_tensor and not all(
            hasattr(tensor, attribute) for attribute in ("read_into", "shape", "dtype")):
        raise InvalidArgument(f"'{name}' is a {type(tensor).__name__}, not a torch tensor")
    if tensor.dtype not in _names():
        raise InvalidArgument(f"tensor '{name}': Helios cannot store {tensor.dtype}")
    if is_tensor and tensor.is_nested:
        raise InvalidArgument(f"tensor '{name}': Helios cannot store a nested tensor: save the "
                              "tensors that .unbind() gives")
    if is_tensor and tensor.layout is not torch.strided:
        raise InvalidArgument(f"tensor '{name}': Helios cannot store {tensor.layout}, call "
                              ".to_dense() on it")
    if is_tensor and tensor.is_meta:
        raise InvalidArgument(f"tensor '{name}' has no data (device meta): load or initialize it "
                              "first")


def on_host(name: str, tensor: "torch.Tensor") -> "torch.Tensor":
    """The tensor's values as contiguous bytes in host memory. Raises InvalidArgument if the tensor
    has no memory."""
    # A lazy negative's bytes have the other sign.
    plain = tensor.detach().cpu().resolve_neg().contiguous()
    try:
        address = plain.data_ptr()
    except RuntimeError:  # a tensor inside vmap or grad of functorch
        address = 0
    if address == 0 and plain.numel() > 0:
        raise InvalidArgument(f"tensor '{name}' ({type(tensor).__name__}) has no memory of its "
                              "own: save the plain tensor that it stands for, or fill its storage "
                              "first")
    return plain


def refs(tensors: Mapping[str, "torch.Tensor"]) -> tuple[list[TensorRef], list[Any]]:
    """What the C ABI needs to write tensors, and the objects to keep until it has."""
    out, alive = [], []
    for name, tensor in tensors.items():
        check(name, tensor)
        read_into = getattr(tensor, "read_into", None)
        if read_into is not None:
            out.append(TensorRef(name, _names()[tensor.dtype], tuple(tensor.shape), 0, read_into))
            continue
        plain = on_host(name, tensor)
        alive.append(plain)
        out.append(TensorRef(name, _names()[plain.dtype], tuple(plain.shape), plain.data_ptr()))
    return out, alive
