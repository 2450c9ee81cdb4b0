"""What a task needs to know about a tensor: rows, columns, strides, bytes; and what is refused."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Sequence

import torch

from . import _abi
from .errors import (DeviceError, DimensionError, DTypeError, LayoutError, NullInputError,
                     ShapeMismatchError)

DTYPES = {torch.float32: _abi.F32, torch.float16: _abi.F16, torch.bfloat16: _abi.BF16,
          torch.float64: _abi.F64, torch.int32: _abi.I32, torch.int64: _abi.I64,
          torch.uint8: _abi.U8}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
LARGEST = 2**31 - 1


def checked(value: Any, what: str) -> torch.Tensor:
    """Check that it is a strided tensor with elements."""
    if value is None:
        raise NullInputError(f"{what} is None", "give a tensor")
    if not isinstance(value, torch.Tensor):
        raise NullInputError(f"{what} is a {type(value).__name__}", "give a tensor")
    if value.layout is not torch.strided or value.device.type == "meta":
        raise LayoutError(f"{what} has no memory of its own ({value.layout}, {value.device})",
                          "give a dense tensor")
    if value.numel() == 0:
        raise DimensionError(f"{what} has no elements: {tuple(value.shape)}",
                             "leave the task out")
    if value.is_conj() or value.is_neg():
        raise LayoutError(f"{what} is a lazy conjugate or negative", "resolve it first")
    return value


@dataclass(frozen=True)
class Matrix:
    """rows x cols elements, with ld elements from one row to the next. Transposed: memory holds
    cols x rows."""

    rows: int
    cols: int
    ld: int
    transposed: bool = False


def matrix(t: torch.Tensor, what: str, trailing: int = 1, transposable: bool = False) -> Matrix:
    """The last ``trailing`` dimensions are the columns. Raises LayoutError if strides can't express
    it."""
    split = max(t.dim() - trailing, 0)
    rows, cols = math.prod(t.shape[:split]), math.prod(t.shape[split:])
    if max(rows, cols) > LARGEST:
        raise DimensionError(f"{what} has {rows} rows of {cols}",
                             "a matrix has less than 2^31 of each")
    step, even = _step(t, 0, split), _step(t, split, t.dim())
    if (even == 1 or cols == 1) and (step is not None) and (rows == 1 or step >= cols):
        return Matrix(rows, cols, _ld(step if rows > 1 else cols, what))
    if transposable and (step == 1 or rows == 1) and even is not None and even >= rows:
        return Matrix(rows, cols, _ld(even, what), True)
    raise LayoutError(f"{what} has strides {t.stride()} for its shape {tuple(t.shape)}",
                      "rows must be evenly spaced in memory: .contiguous()")


def _ld(step: int, what: str) -> int:
    if step > LARGEST:
        raise LayoutError(f"{what} has {step} elements from row to row", "less than 2^31")
    return step


def _step(t: torch.Tensor, first: int, last: int) -> int | None:
    """Elements from one index to the next, with these dimensions taken as one; None: it varies; 1
    if there is only one index."""
    step = expected = 0
    for size, stride in reversed(list(zip(t.shape[first:last], t.stride()[first:last]))):
        if size == 1:
            continue
        if step == 0:
            step, expected = stride, stride * size
            if stride == 0:
                return None
        elif stride != expected:
            return None
        else:
            expected *= size
    return step or 1


def dense(t: torch.Tensor, what: str) -> torch.Tensor:
    if not t.is_contiguous():
        raise LayoutError(f"{what} has strides {t.stride()} for its shape {tuple(t.shape)}",
                          "it must be contiguous: .contiguous()")
    return t


def extent(t: torch.Tensor) -> tuple[int, int]:
    """The first byte, and the number of bytes to the last one."""
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride()))
    return t.data_ptr(), (last + 1) * t.element_size()


def same_shape(a: torch.Tensor, b: torch.Tensor, what: str) -> None:
    if a.shape != b.shape:
        raise ShapeMismatchError(f"{what}: {tuple(a.shape)} and {tuple(b.shape)}",
                                 "their shapes must be equal")


def same_dtype(tensors: Sequence[torch.Tensor], allowed: Sequence[torch.dtype], what: str) -> int:
    """Check that all have the same dtype; returns its number."""
    kinds = {t.dtype for t in tensors}
    if len(kinds) > 1:
        raise DTypeError(f"{what}: tensors of {', '.join(sorted(map(str, kinds)))}",
                         "all of one task have the same dtype")
    kind = kinds.pop() if kinds else torch.float32
    if kind not in allowed:
        raise DTypeError(f"{what} is of {kind}",
                         f"it can be {', '.join(str(k)[6:] for k in allowed)}")
    return DTYPES[kind]


def one_device(tensors: Sequence[torch.Tensor], device: torch.device, what: str) -> None:
    for t in tensors:
        if t.device != device:
            raise DeviceError(f"{what}: a tensor is on {t.device}, the graph on {device}",
                              f".to(\"{device}\"), or another graph")
