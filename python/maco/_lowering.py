"""Lowers functions of torch to tasks. Each lowering takes the function's own arguments. A MacoError
or TypeError from it means that this call can't become tasks, and nothing of it stays in the
graph."""
from __future__ import annotations

import contextlib
import itertools
import re
from dataclasses import dataclass
from typing import Any, Callable, Iterator

import torch

from ._tensors import matrix
from .errors import LayoutError, UnsupportedError

MOST_PIECES = 256  # maximum number of tasks that one function may become


@dataclass
class Lowered:
    """Where the tasks go, and the tensor or tensors that they make."""

    graph: Any
    function: str
    out: Any

    @property
    def name(self) -> str:
        return f"{self.function.strip('_')} {len(self.graph.tasks)}"

    def copy(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Copy tensors of any strides, piece by piece if necessary."""
        try:
            self.graph.copy(x, out=out, name=self.name)
        except LayoutError:
            for one, other in _pieces(x, out):
                self.copy(one, other)

    def contiguous(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_contiguous():
            return x
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        self.copy(x, out)
        return out

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """x itself if its rows are evenly spaced, else a copy."""
        return x if _even(x) else self.contiguous(x)

    @contextlib.contextmanager
    def target(self) -> Iterator[torch.Tensor]:
        """A tensor that a row task can write; afterwards it is copied to where torch put its
        result."""
        if _even(self.out):
            yield self.out
            return
        made = torch.empty_like(self.out, memory_format=torch.contiguous_format)
        yield made
        self.copy(made, self.out)


def _even(t: torch.Tensor) -> bool:
    try:
        matrix(t, "it")
        return True
    except LayoutError:
        return False


def _pieces(*tensors: torch.Tensor) -> Any:
    """Split tensors along the shortest dimension except the last."""
    sizes = [(n, d) for d, n in enumerate(tensors[0].shape[:-1]) if n > 1]
    if not sizes or min(sizes)[0] > MOST_PIECES:
        raise LayoutError(f"strides {', '.join(str(t.stride()) for t in tensors)}")
    return zip(*(t.unbind(min(sizes)[1]) for t in tensors))


LOWERINGS: dict[str, Callable[..., None]] = {}


def lowers(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def put(function: Callable[..., None]) -> Callable[..., None]:
        LOWERINGS.update((n, function) for n in names)
        return function
    return put


def _refuse(why: str) -> None:
    raise UnsupportedError(why)


# ---- products ----

@lowers("linear")
def _linear(to: Lowered, input: Any, weight: Any, bias: Any = None) -> None:
    with to.target() as out:
        to.graph.linear(to.rows(input), weight, bias, out=out, name=to.name)


@lowers("matmul", "mm", "bmm", "rmatmul")
def _matmul(to: Lowered, a: Any, b: Any) -> None:
    if to.function == "__rmatmul__":
        a, b = b, a
    if a.dim() < 2 or b.dim() < 2:
        _refuse("a factor is a vector")
    if b.dim() == 2:
        a = a if a.dim() == 2 else to.rows(a)
        with to.target() as out:
            to.graph.matmul(a, b, out=out, name=to.name)
        return
    batch = to.out.shape[:-2]
    if batch.numel() > MOST_PIECES:
        _refuse(f"{batch.numel()} products")
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    for i in itertools.product(*map(range, batch)):
        to.graph.matmul(a[i], b[i], out=to.out[i], name=to.name)


@lowers("addmm")
def _addmm(to: Lowered, bias: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> None:
    if bias.dim() != 1 or beta != 1 or alpha != 1:
        _refuse("it adds more than a row")
    to.graph.matmul(a, b, bias, out=to.out, name=to.name)


# ---- attention ----

@lowers("scaled_dot_product_attention")
def _attention(to: Lowered, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
               *more: Any, is_causal: bool = False, need_attn_weights: bool = False,
               scale: float | None = None, enable_gqa: bool = False) -> None:
    if to.function.startswith("_"):  # torch 1.13: (..., need_attn_weights, is_causal)
        given = dict(zip(("need_attn_weights", "is_causal"), more))
        need_attn_weights = given.get("need_attn_weights", need_attn_weights)
        is_causal = given.get("is_causal", is_causal)
    elif more:
        is_causal = more[0]
    if need_attn_weights or dropout_p:
        _refuse("it returns weights, or drops some")
    if is_causal and q.shape[-2] != k.shape[-2]:
        _refuse("causal from the first key on")
    attn_mask = _same_for_all(attn_mask)
    if attn_mask is not None and (attn_mask.dtype == torch.bool or attn_mask.dim() != 2):
        _refuse(f"a mask of {attn_mask.dtype} with {attn_mask.dim()} dimensions")
    out = to.out[0] if isinstance(to.out, (tuple, list)) else to.out
    q, k, v, whole = (t if t.dim() == 4 else t.unsqueeze(0) for t in (q, k, v, out))
    target = whole if whole.is_contiguous() else \
        torch.empty_like(whole, memory_format=torch.contiguous_format)
    to.graph.attention(to.contiguous(q), to.contiguous(k), to.contiguous(v), attn_mask,
                       bool(is_causal), scale, out=target, name=to.name)
    if target is not whole:
        to.copy(target, whole)


def _same_for_all(mask: Any) -> Any:
    """The mask, if it is the same for all batches and heads."""
    while mask is not None and mask.dim() > 2 and (mask.shape[0] == 1 or mask.stride(0) == 0):
        mask = mask[0]
    return mask


# ---- rows ----

@lowers("layer_norm")
def _layer_norm(to: Lowered, x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None,
                eps: float = 1e-5, cudnn_enable: bool = True) -> None:
    if weight is None and bias is not None:
        _refuse("a bias without a weight")
    with to.target() as out:
        to.graph.layernorm(to.rows(x), weight, bias, eps, out=out, name=to.name,
                           trailing=len(normalized_shape))


@lowers("rms_norm")
def _rms_norm(to: Lowered, x: Any, normalized_shape: Any, weight: Any = None,
              eps: float | None = None) -> None:
    with to.target() as out:
        to.graph.rmsnorm(to.rows(x), weight, torch.finfo(x.dtype).eps if eps is None else eps,
                         out=out, trailing=len(normalized_shape), name=to.name)


def rms_norm_of(module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
    """(x, weight, eps) if the call is one of a user-defined RMSNorm."""
    if not re.search("rms_?norm$", type(module).__name__, re.I) or kwargs or len(args) != 1:
        return None
    weight = getattr(module, "weight", None)
    eps = next((getattr(module, n) for n in ("eps", "variance_epsilon", "epsilon")
                if isinstance(getattr(module, n, None), float)), None)
    x = args[0]
    if not isinstance(weight, torch.Tensor) or eps is None or not isinstance(x, torch.Tensor) or \
            weight.dim() != 1 or not x.dim() or x.shape[-1] != weight.numel():
        return None
    return x, weight, eps


@lowers("gelu")
def _gelu(to: Lowered, x: Any, approximate: str = "none") -> None:
    with to.target() as out:
        to.graph.gelu(to.rows(x), approximate, out=out, name=to.name)


@lowers("silu")
def _silu(to: Lowered, x: Any) -> None:
    with to.target() as out:
        to.graph.silu(to.rows(x), out=out, name=to.name)


@lowers("softmax")
def _softmax(to: Lowered, x: Any, dim: int | None = None, dtype: Any = None,
             **_: Any) -> None:
    if dim is None or dim % x.dim() != x.dim() - 1 or dtype not in (None, x.dtype):
        _refuse("it is not over the last dimension")
    with to.target() as out:
        to.graph.softmax(to.rows(x), out=out, name=to.name)


# ---- element by element ----

def _flat(to: Lowered, *inputs: torch.Tensor) -> tuple[Lowered, list[torch.Tensor]]:
    """The view for elementwise functions: dimensions in the memory order of the result."""
    order = sorted(range(to.out.dim()), key=lambda d: -to.out.stride(d))
    if to.out.permute(order).is_contiguous():
        return Lowered(to.graph, to.function, to.out.permute(order)), \
            [t.permute(order) if t.dim() == to.out.dim() else t for t in inputs]
    return to, list(inputs)


def _line(to: Lowered, x: torch.Tensor, alpha: float, beta: float, op: str = "axpb") -> None:
    to, (x,) = _flat(to, x)
    with to.target() as out:
        to.graph.elementwise(op, to.rows(x), alpha=alpha, beta=beta, out=out, name=to.name)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _both(to: Lowered, op: str, a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> None:
    """Combine two tensors of equal shape, or with one broadcast over the other."""
    if a.shape == b.shape == to.out.shape:
        to, (a, b) = _flat(to, a, b)
        with to.target() as out:
            to.graph.elementwise(op, to.rows(a), to.rows(b), alpha=alpha, out=out, name=to.name)
        return
    if a.shape != to.out.shape:
        if op == "sub" or op == "scale_add" or b.shape != to.out.shape:
            _refuse(f"{tuple(a.shape)} and {tuple(b.shape)} are spread over each other")
        a, b = b, a
    _spread(to, op, to.rows(a), b.expand_as(a), alpha, to.out)


def _spread(to: Lowered, op: str, a: torch.Tensor, b: torch.Tensor, alpha: float,
            out: torch.Tensor) -> None:
    """The same when b repeats along some dimensions."""
    leading = b.dim() - 1
    if b.stride(-1) != 0 or b.shape[-1] == 1:
        if all(b.stride(d) == 0 or b.shape[d] == 1 for d in range(leading)):
            b = b[(0,) * leading]
        try:
            to.graph.elementwise(op, a, b, alpha=alpha, out=out, name=to.name)
            return
        except LayoutError:
            pass
    for one in _pieces(a, b, out):
        _spread(to, op, one[0], one[1], alpha, one[2])


@lowers("add", "radd", "iadd")
def _add(to: Lowered, a: Any, b: Any, *, alpha: float = 1) -> None:
    if _number(b):
        _line(to, a, 1.0, b * alpha)
    elif alpha == 1:
        _both(to, "add", a, b)
    else:
        _both(to, "scale_add", b, a, alpha)


@lowers("sub", "isub")
def _sub(to: Lowered, a: Any, b: Any, *, alpha: float = 1) -> None:
    if _number(b):
        _line(to, a, 1.0, -b * alpha)
    elif alpha != 1:
        _refuse("it scales what it subtracts")
    else:
        _both(to, "sub", a, b)


@lowers("rsub")
def _rsub(to: Lowered, a: Any, b: Any, *, alpha: float = 1) -> None:
    if not _number(b) or alpha != 1:
        _refuse("it subtracts from a tensor")
    _line(to, a, -1.0, b)


@lowers("mul", "rmul", "imul", "multiply")
def _mul(to: Lowered, a: Any, b: Any) -> None:
    if _number(b):
        _line(to, a, b, 0.0)
    else:
        _both(to, "mul", a, b)


@lowers("div", "truediv", "itruediv", "divide")
def _div(to: Lowered, a: Any, b: Any, *, rounding_mode: Any = None) -> None:
    if not _number(b) or not b or rounding_mode is not None:
        _refuse("it divides by a tensor, or rounds")
    _line(to, a, 1 / b, 0.0)


@lowers("neg")
def _neg(to: Lowered, a: Any) -> None:
    _line(to, a, -1.0, 0.0)


@lowers("square")
def _square(to: Lowered, a: Any) -> None:
    _both(to, "mul", a, a)


@lowers("pow", "ipow")
def _pow(to: Lowered, a: Any, exponent: Any) -> None:
    if not _number(exponent) or exponent != 2:
        _refuse("a power other than 2")
    _both(to, "mul", a, a)


@lowers("relu")
def _relu(to: Lowered, a: Any) -> None:
    _line(to, a, 1.0, 0.0, "relu")


# ---- copies ----

@lowers("contiguous", "clone")
def _clone(to: Lowered, x: Any, **_: Any) -> None:
    to.copy(x, to.out)


@lowers("reshape", "flatten")
def _reshape(to: Lowered, x: Any, *_: Any, **__: Any) -> None:
    to.copy(x, to.out.view(x.shape))


@lowers("to", "float", "half", "bfloat16", "type_as")
def _cast(to: Lowered, x: Any, *_: Any, **__: Any) -> None:
    if x.dtype == to.out.dtype:
        to.copy(x, to.out)
    else:
        _line(to, x, 1.0, 0.0, "cast")


@lowers("cat", "concat", "concatenate")
def _cat(to: Lowered, tensors: Any, dim: int = 0) -> None:
    at = 0
    for part in tensors:
        if part.numel():
            to.copy(part, to.out.narrow(dim, at, part.shape[dim]))
            at += part.shape[dim]


@lowers("stack")
def _stack(to: Lowered, tensors: Any, dim: int = 0) -> None:
    for i, part in enumerate(tensors):
        to.copy(part, to.out.select(dim, i))
