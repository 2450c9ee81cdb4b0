"""Methods that add a task and create its output. Each returns the task; ``.output`` is its
result."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

from ._abi import TaskType
from ._tensors import checked
from .errors import DimensionError, ShapeMismatchError


def _tensor(value: Any, what: str) -> torch.Tensor:
    return checked(value.output if hasattr(value, "outputs") else value, what)


def _like(t: torch.Tensor, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.empty(shape or t.shape, dtype=dtype or t.dtype, device=t.device)


class Builders:
    """A base of TaskGraph. ``out``: where the result goes; None = a new tensor. ``options``: name,
    priority, worker, cost, and group of collectives."""

    def add_task(self, type: TaskType, inputs: Sequence[Any], outputs: Sequence[Any],
                 **options: Any) -> Any:
        raise NotImplementedError

    def matmul(self, a: Any, b: Any, bias: Any = None, out: Any = None, **options: Any) -> Any:
        """alpha a b + beta out (+ bias)."""
        a, b = _tensor(a, "A of matmul"), _tensor(b, "B of matmul")
        if b.dim() != 2:
            raise DimensionError(f"B of matmul has shape {tuple(b.shape)}", "it is (K, N)")
        out = _like(a, *a.shape[:-1], b.shape[1]) if out is None else out
        return self.add_task(TaskType.MATMUL, [a, b, bias], [out], **options)

    def linear(self, x: Any, weight: Any, bias: Any = None, out: Any = None,
               **options: Any) -> Any:
        """x weight^T (+ bias)."""
        x, weight = _tensor(x, "X of linear"), _tensor(weight, "W of linear")
        if weight.dim() != 2:
            raise DimensionError(f"W of linear has shape {tuple(weight.shape)}", "it is (N, K)")
        out = _like(x, *x.shape[:-1], weight.shape[0]) if out is None else out
        return self.add_task(TaskType.LINEAR, [x, weight, bias], [out], **options)

    def attention(self, q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False,
                  scale: float | None = None, out: Any = None, lse: Any = None,
                  **options: Any) -> Any:
        """softmax(scale q k^T + mask) v; (batch, heads, sequence, width)."""
        q = _tensor(q, "Q of attention")
        outputs = [_like(q) if out is None else out] + ([] if lse is None else [lse])
        return self.add_task(TaskType.ATTENTION, [q, k, v, mask], outputs, causal=causal,
                             scale=scale, **options)

    def layernorm(self, x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
                  out: Any = None, **options: Any) -> Any:
        return self._rows(TaskType.LAYERNORM, [x, weight, bias], out, eps=eps, **options)

    def rmsnorm(self, x: Any, weight: Any = None, eps: float = 1e-6, out: Any = None,
                **options: Any) -> Any:
        return self._rows(TaskType.RMSNORM, [x, weight], out, eps=eps, **options)

    def gelu(self, x: Any, approximate: str = "none", out: Any = None, **options: Any) -> Any:
        return self._rows(TaskType.GELU, [x], out, approximate=approximate, **options)

    def silu(self, x: Any, out: Any = None, **options: Any) -> Any:
        return self._rows(TaskType.SILU, [x], out, **options)

    def softmax(self, x: Any, out: Any = None, **options: Any) -> Any:
        """Over the last dimension."""
        return self._rows(TaskType.SOFTMAX, [x], out, **options)

    def elementwise(self, op: str, a: Any, b: Any = None, alpha: float = 1.0, beta: float = 0.0,
                    out: Any = None, **options: Any) -> Any:
        """add, mul, sub; axpb: alpha a + beta; relu; cast, to the dtype of out; scale_add:
        alpha a + b. b may be one row that is used for all rows of a."""
        return self._rows(TaskType.ELEMENTWISE, [a] if b is None else [a, b], out, op=op,
                          alpha=alpha, beta=beta, **options)

    def _rows(self, type: TaskType, inputs: list[Any], out: Any, **options: Any) -> Any:
        x = inputs[0] = _tensor(inputs[0], f"X of {type.name}")
        return self.add_task(type, inputs, [_like(x) if out is None else out], **options)

    def copy(self, x: Any, out: Any = None, **options: Any) -> Any:
        x = _tensor(x, "X of copy")
        return self.add_task(TaskType.MEMCPY, [x], [_like(x) if out is None else out], **options)

    def fill(self, out: Any, byte: int = 0, **options: Any) -> Any:
        """Set every byte of out."""
        return self.add_task(TaskType.MEMSET, [], [out], value=byte, **options)

    def nop(self, **options: Any) -> Any:
        return self.add_task(TaskType.NOP, [], [], **options)

    def custom(self, function: Callable[[list[Any], list[Any]], Any], inputs: Sequence[Any] = (),
               outputs: Sequence[Any] = (), comm: bool = False, **options: Any) -> Any:
        """function(inputs, outputs) writes the outputs, in a worker, under torch.no_grad().
        comm=True: it runs in order with the group's collectives. execute() raises what it
        raises."""
        return self.add_task(TaskType.CUSTOM_COMM if comm else TaskType.CUSTOM_COMPUTE, inputs,
                             outputs, function=function, **options)

    # ---- collectives ----

    def allreduce(self, x: Any, op: str = "sum", out: Any = None, **options: Any) -> Any:
        """op: sum, avg, min, max, prod. out=x: in place."""
        x = _tensor(x, "X of allreduce")
        return self.add_task(TaskType.ALLREDUCE, [x], [_like(x) if out is None else out], op=op,
                             **options)

    def allgather(self, x: Any, out: Any = None, **options: Any) -> Any:
        """All ranks' x, concatenated along the first dimension."""
        x = _tensor(x, "X of allgather")
        if out is None:
            out = _like(x, self._world(options) * (x.shape[0] if x.dim() else 1), *x.shape[1:])
        return self.add_task(TaskType.ALLGATHER, [x], [out], **options)

    def reduce_scatter(self, x: Any, op: str = "sum", out: Any = None, **options: Any) -> Any:
        """This rank's part of the sum, along the first dimension."""
        x = _tensor(x, "X of reduce_scatter")
        if out is None:
            world = self._world(options)
            if not x.dim() or x.shape[0] % world:
                raise ShapeMismatchError(f"X of reduce_scatter has shape {tuple(x.shape)}",
                                         f"the first dimension must split into {world} parts, one "
                                         "for each rank")
            out = _like(x, x.shape[0] // world, *x.shape[1:])
        return self.add_task(TaskType.REDUCE_SCATTER, [x], [out], op=op, **options)

    def all_to_all(self, x: Any, out: Any = None, **options: Any) -> Any:
        """Part r of x goes to rank r; along the first dimension."""
        x = _tensor(x, "X of all_to_all")
        return self.add_task(TaskType.ALL_TO_ALL, [x], [_like(x) if out is None else out],
                             **options)

    def broadcast(self, x: Any, root: int = 0, out: Any = None, **options: Any) -> Any:
        x = _tensor(x, "X of broadcast")
        return self.add_task(TaskType.BROADCAST, [x], [_like(x) if out is None else out],
                             root=root, **options)

    def send(self, x: Any, peer: int, tag: int = 0, **options: Any) -> Any:
        """Wait for the other rank's recv: of two ranks that exchange data one receives first."""
        return self.add_task(TaskType.SEND, [x], [], peer=peer, tag=tag, **options)

    def recv(self, out: Any, peer: int, tag: int = 0, **options: Any) -> Any:
        return self.add_task(TaskType.RECV, [], [out], peer=peer, tag=tag, **options)

    def _world(self, options: dict[str, Any]) -> int:
        return self._groups.index(options.get("group"))[1]  # type: ignore[attr-defined]
