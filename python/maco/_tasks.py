"""What each type of task takes, from tensors to the numbers of maco.h. Everything is checked here,
before anything runs; the library checks its input once more."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

import torch

from . import _abi
from ._abi import TaskType
from ._given import flag, real, whole
from ._tensors import (DTYPES, FLOATS, LARGEST, Matrix, checked, dense, matrix, same_dtype,
                       same_shape)
from .errors import DimensionError, DTypeError, NullInputError, ShapeMismatchError


@dataclass
class Numbers:
    """A task's dims and aux, and the number of its dtype."""

    dims: Sequence[int]
    aux: Sequence[float] = ()
    dtype: int = _abi.F32


@dataclass
class Call:
    """A task as it was requested."""

    type: TaskType
    what: str
    inputs: list[torch.Tensor | None]
    outputs: list[torch.Tensor]
    attributes: dict[str, Any] = field(default_factory=dict)
    rank: int = 0
    world: int = 1

    def take(self, name: str, default: Any) -> Any:
        return self.attributes.pop(name, default)

    def real(self, name: str, default: float) -> float:
        return real(self.take(name, default), f"{name} of {self.what}")

    def whole(self, name: str, default: int) -> int:
        return whole(self.take(name, default), f"{name} of {self.what}")

    def tensors(self) -> list[torch.Tensor]:
        return [t for t in (*self.inputs, *self.outputs) if t is not None]

    def input(self, i: int) -> torch.Tensor | None:
        return self.inputs[i] if i < len(self.inputs) else None


# inputs: least, most; outputs: least, most
_COUNTS = {
    TaskType.NOP: (0, 0, 0, 0), TaskType.MATMUL: (2, 3, 1, 1), TaskType.LINEAR: (2, 3, 1, 1),
    TaskType.ATTENTION: (3, 4, 1, 2), TaskType.LAYERNORM: (1, 3, 1, 1),
    TaskType.RMSNORM: (1, 2, 1, 1), TaskType.GELU: (1, 1, 1, 1), TaskType.SILU: (1, 1, 1, 1),
    TaskType.SOFTMAX: (1, 1, 1, 1), TaskType.ELEMENTWISE: (1, 2, 1, 1),
    TaskType.ALLREDUCE: (1, 1, 1, 1), TaskType.ALLGATHER: (1, 1, 1, 1),
    TaskType.REDUCE_SCATTER: (1, 1, 1, 1), TaskType.ALL_TO_ALL: (1, 1, 1, 1),
    TaskType.SEND: (1, 1, 0, 0), TaskType.RECV: (0, 0, 1, 1), TaskType.BROADCAST: (1, 1, 1, 1),
    TaskType.MEMCPY: (1, 1, 1, 1), TaskType.MEMSET: (0, 0, 1, 1),
}


def check_tensors(call: Call) -> None:
    """Check that there are as many as the type takes, and that a task can use each."""
    least_in, most_in, least_out, most_out = _COUNTS[call.type]
    while call.inputs and call.inputs[-1] is None and len(call.inputs) > least_in:
        call.inputs.pop()
    for given, least, most, kind in ((len(call.inputs), least_in, most_in, "input"),
                                     (len(call.outputs), least_out, most_out, "output")):
        if not least <= given <= most:
            raise NullInputError(f"{call.what} has {given} {kind}s",
                                 f"it takes {least} to {most}")
    for i, value in enumerate(call.inputs):
        if value is not None or i < least_in:
            checked(value, f"input {i} of {call.what}")
    for i, value in enumerate(call.outputs):
        check_output(value, f"output {i} of {call.what}")


def check_output(value: Any, what: str) -> None:
    t = checked(value, what)
    if t.requires_grad and torch.is_grad_enabled():
        raise DTypeError(f"{what} requires grad, and tasks do not support autograd",
                         "write into a tensor that does not, under torch.no_grad(); "
                         "maco.overlap_comm and MacoOptimizer train")


def _matmul(call: Call) -> Numbers:
    a, b, bias = call.inputs[0], call.inputs[1], call.input(2)
    c = call.outputs[0]
    for name, t in (("A", a), ("B", b)):
        if t.dim() < 2 or (name == "B" and t.dim() != 2):
            raise DimensionError(f"{name} of {call.what} has shape {tuple(t.shape)}",
                                 "A is (..., M, K) and B (K, N)")
    ma = matrix(a, f"A of {call.what}", transposable=a.dim() == 2)
    mb = matrix(b, f"B of {call.what}", transposable=True)
    mc = matrix(c, f"C of {call.what}")
    if ma.cols != mb.rows or (mc.rows, mc.cols) != (ma.rows, mb.cols):
        raise ShapeMismatchError(
            f"{call.what}: A {tuple(a.shape)}, B {tuple(b.shape)}, C {tuple(c.shape)}",
            "A is (M, K), B (K, N) and C (M, N)")
    _check_vector(call, bias, mb.cols, "bias")
    return Numbers((ma.rows, mb.cols, ma.cols, ma.ld, mb.ld, mc.ld, int(ma.transposed),
                    int(mb.transposed)),
                   (call.real("alpha", 1.0), call.real("beta", 0.0)),
                   same_dtype(call.tensors(), FLOATS, call.what))


def _check_vector(call: Call, t: torch.Tensor | None, size: int, name: str) -> None:
    if t is None:
        return
    if t.numel() != size or t.shape[-1] not in (size, 1) and t.dim() == 1:
        raise ShapeMismatchError(f"{name} of {call.what} has shape {tuple(t.shape)}",
                                 f"it has {size} elements")
    dense(t, f"{name} of {call.what}")


def _linear(call: Call) -> Numbers:
    x, w, bias, y = call.inputs[0], call.inputs[1], call.input(2), call.outputs[0]
    if w.dim() != 2:
        raise DimensionError(f"W of {call.what} has shape {tuple(w.shape)}", "W is (N, K)")
    mx, mw, my = (matrix(t, f"{name} of {call.what}") for name, t in
                  (("X", x), ("W", w), ("Y", y)))
    if mx.cols != mw.cols or (my.rows, my.cols) != (mx.rows, mw.rows):
        raise ShapeMismatchError(
            f"{call.what}: X {tuple(x.shape)}, W {tuple(w.shape)}, Y {tuple(y.shape)}",
            "X is (..., K), W (N, K) and Y (..., N)")
    _check_vector(call, bias, mw.rows, "bias")
    return Numbers((mx.rows, mw.rows, mx.cols, mx.ld, mw.ld, my.ld), (),
                   same_dtype(call.tensors(), FLOATS, call.what))


def _attention(call: Call) -> Numbers:
    q, k, v, mask = call.inputs[0], call.inputs[1], call.inputs[2], call.input(3)
    out, lse = call.outputs[0], call.outputs[1] if len(call.outputs) > 1 else None
    for name, t in (("Q", q), ("K", k), ("V", v), ("O", out)):
        if t.dim() != 4:
            raise DimensionError(f"{name} of {call.what} has shape {tuple(t.shape)}",
                                 "(batch, heads, sequence, width)")
        dense(t, f"{name} of {call.what}")
    same_shape(k, v, f"K and V of {call.what}")
    same_shape(q, out, f"Q and O of {call.what}")
    (b, hq, sq, d), (bk, hkv, sk, dk) = q.shape, k.shape
    if (b, d) != (bk, dk):
        raise ShapeMismatchError(f"{call.what}: Q {tuple(q.shape)} and K {tuple(k.shape)}",
                                 "only their heads and sequence may differ")
    if mask is not None and tuple(dense(mask, f"mask of {call.what}").shape) != (sq, sk):
        raise ShapeMismatchError(f"mask of {call.what} has shape {tuple(mask.shape)}",
                                 f"it is ({sq}, {sk}), and is added to the scores")
    if lse is not None:
        if lse.dtype != torch.float32:
            raise DTypeError(f"lse of {call.what} is of {lse.dtype}", "it is float32")
        if tuple(dense(lse, f"lse of {call.what}").shape) != (b, hq, sq):
            raise ShapeMismatchError(f"lse of {call.what} has shape {tuple(lse.shape)}",
                                     f"it is ({b}, {hq}, {sq})")
    scale = call.take("scale", None)
    used = [t for t in (q, k, v, mask, out) if t is not None]
    causal = flag(call.take("causal", False), f"causal of {call.what}")
    return Numbers((b, hq, hkv, sq, sk, d, int(causal)),
                   (1 / math.sqrt(d) if scale is None else real(scale, f"scale of {call.what}"),),
                   same_dtype(used, FLOATS, call.what))


def _rows(call: Call, trailing: int = 1) -> tuple[Matrix, Matrix]:
    x, y = call.inputs[0], call.outputs[0]
    same_shape(x, y, f"X and Y of {call.what}")
    return (matrix(x, f"X of {call.what}", trailing), matrix(y, f"Y of {call.what}", trailing))


def _norm(call: Call) -> Numbers:
    gamma = call.input(1)
    trailing = call.whole("trailing", max(gamma.dim(), 1) if gamma is not None else 1)
    mx, my = _rows(call, trailing)
    for i, name in ((1, "gamma"), (2, "beta")):
        _check_vector(call, call.input(i), mx.cols, name)
    return Numbers((mx.rows, mx.cols, mx.ld, my.ld), (call.real("eps", 1e-5),),
                   same_dtype(call.tensors(), FLOATS, call.what))


def _unary(call: Call) -> Numbers:
    mx, my = _rows(call)
    dims = [mx.rows, mx.cols, mx.ld, my.ld]
    if call.type is TaskType.GELU:
        kind = call.take("approximate", "none")
        if kind not in ("none", "tanh"):
            raise DimensionError(f"{call.what}: approximate is {kind!r}", "\"none\" or \"tanh\"")
        dims.append(int(kind == "tanh"))
    return Numbers(dims, (), same_dtype(call.tensors(), FLOATS, call.what))


def _ldb(call: Call, a: torch.Tensor, b: torch.Tensor) -> int:
    """The row stride of b; 0: b is one row that is used for all rows of a."""
    if b.shape != a.shape and (b.numel() == a.shape[-1] == b.shape[-1] or
                               b.dim() == a.dim() and b.numel() == 1 == a.shape[-1]):
        dense(b, f"B of {call.what}")
        return 0
    same_shape(a, b, f"A and B of {call.what}")
    return matrix(b, f"B of {call.what}").ld


def _elementwise(call: Call) -> Numbers:
    op = call.take("op", "add" if len(call.inputs) == 2 else None)
    if op not in _abi.ELEMENTWISE:
        raise DimensionError(f"{call.what}: op is {op!r}",
                             "it is one of " + ", ".join(_abi.ELEMENTWISE))
    two = op in ("add", "mul", "sub", "scale_add")
    if two != (call.input(1) is not None):
        raise NullInputError(f"{call.what}: {op} has {len(call.inputs)} inputs",
                             f"it takes {2 if two else 1}")
    ma, my = _rows(call)
    ldb = _ldb(call, call.inputs[0], call.inputs[1]) if two else 0
    out = same_dtype(call.outputs, FLOATS, f"Y of {call.what}")
    return Numbers((ma.rows, ma.cols, ma.ld, ldb, my.ld, _abi.ELEMENTWISE.index(op), out),
                   (call.real("alpha", 1.0), call.real("beta", 0.0)),
                   same_dtype([t for t in call.inputs if t is not None], FLOATS, call.what))


def _collective(call: Call) -> Numbers:
    x = call.inputs[0] if call.inputs else call.outputs[0]
    y = call.outputs[0] if call.outputs else x
    for name, t in (("X", x), ("Y", y)):
        dense(t, f"{name} of {call.what}")
    world, n, m = call.world, x.numel(), y.numel()
    wanted = {TaskType.ALLGATHER: n * world, TaskType.REDUCE_SCATTER: n // world}
    if m != wanted.get(call.type, n) or \
            call.type is TaskType.REDUCE_SCATTER and n % world:
        raise ShapeMismatchError(
            f"{call.what}: X {tuple(x.shape)} and Y {tuple(y.shape)} on {world} ranks",
            {TaskType.ALLGATHER: "Y holds every rank's X",
             TaskType.REDUCE_SCATTER: "X holds every rank's Y"}.get(call.type,
                                                                    "they are as large"))
    if call.type is TaskType.ALL_TO_ALL and n % world:
        raise ShapeMismatchError(f"{call.what}: {n} elements for {world} ranks",
                                 "each rank gets as many")
    count = m if call.type is TaskType.REDUCE_SCATTER else \
        n // world if call.type is TaskType.ALL_TO_ALL else n
    op = call.take("op", "sum")
    if op not in _abi.REDUCE:
        raise DimensionError(f"{call.what}: op is {op!r}",
                             "it is one of " + ", ".join(_abi.REDUCE))
    peer = call.whole("root" if call.type is TaskType.BROADCAST else "peer", 0)
    if not 0 <= peer < world:
        raise DimensionError(f"{call.what}: rank {peer} of {world}", "a rank of the group")
    low, high = count & 0xFFFFFFFF, count >> 32
    return Numbers((low - (1 << 32) if low > LARGEST else low, high, _abi.REDUCE.index(op), peer,
                    call.whole("tag", 0), world), (),
                   same_dtype(call.tensors(), tuple(DTYPES), call.what))


def _bytes(t: torch.Tensor, what: str) -> Matrix:
    m = matrix(t, what, trailing=_dense_tail(t))
    size = t.element_size()
    if max(m.cols, m.ld) * size > LARGEST:
        raise DimensionError(f"{what} has rows of {m.cols * size} bytes", "less than 2^31")
    return Matrix(m.rows, m.cols * size, m.ld * size)


def _dense_tail(t: torch.Tensor) -> int:
    """How many of the last dimensions are contiguous, at least one."""
    expected, n = 1, 0
    for size, stride in reversed(list(zip(t.shape, t.stride()))):
        if size != 1 and stride != expected:
            break
        expected *= size
        n += 1
    return max(n, 1)


def _copy(call: Call) -> Numbers:
    x, y = call.inputs[0], call.outputs[0]
    same_dtype([x, y], tuple(DTYPES), call.what)
    same_shape(x, y, f"X and Y of {call.what}")
    tail = min(_dense_tail(x), _dense_tail(y))
    mx, my = (matrix(t, f"{n} of {call.what}", tail) for n, t in (("X", x), ("Y", y)))
    size = x.element_size()
    if max(mx.cols, mx.ld, my.ld) * size > LARGEST:
        raise DimensionError(f"{call.what} has rows of {mx.cols * size} bytes", "less than 2^31")
    return Numbers((mx.rows, mx.cols * size, mx.ld * size, my.ld * size), (), _abi.U8)


def _set(call: Call) -> Numbers:
    value = call.take("value", 0)
    if not isinstance(value, int) or not 0 <= value <= 255:
        raise DimensionError(f"{call.what}: value is {value!r}", "one byte, 0 to 255")
    m = _bytes(call.outputs[0], f"Y of {call.what}")
    return Numbers((m.rows, m.cols, 0, m.ld, value), (), _abi.U8)


_NUMBERS: dict[TaskType, Callable[[Call], Numbers]] = {
    TaskType.NOP: lambda call: Numbers(()),
    TaskType.MATMUL: _matmul, TaskType.LINEAR: _linear, TaskType.ATTENTION: _attention,
    TaskType.LAYERNORM: _norm, TaskType.RMSNORM: _norm, TaskType.GELU: _unary,
    TaskType.SILU: _unary, TaskType.SOFTMAX: _unary, TaskType.ELEMENTWISE: _elementwise,
    TaskType.MEMCPY: _copy, TaskType.MEMSET: _set,
    **{t: _collective for t in TaskType if t.is_comm and t is not TaskType.CUSTOM_COMM},
}


def numbers(call: Call) -> Numbers:
    """Check the task and raise what is wrong with it; attributes that its type lacks are
    refused."""
    check_tensors(call)
    out = _NUMBERS[call.type](call)
    if call.attributes:
        raise DimensionError(f"{call.what} has no {', '.join(sorted(call.attributes))}",
                             f"attributes are those that {call.type.name} has in maco.h")
    return out
