"""Collectives that run while the caller computes.

A carrier starts a collective and returns a ``Pending``; ``wait`` waits for its end. All ranks of a
group start the same collectives in the same order. torch.distributed has its own threads (or
streams); HybridPS's groups get one proxy thread here, which runs one collective after the other.
"""
from __future__ import annotations

import datetime
import hashlib
import queue
import threading
from typing import Any, Callable, NoReturn, Protocol, Sequence

import torch
import torch.distributed as dist

from .errors import (CollectiveFailedError, DTypeError, MacoError, NullInputError,
                     OrderMismatchError,
                     TimeoutError)

_NAMES = {"avg": "mean"}  # of hybridps.Group
OPS = ("sum", "avg", "min", "max", "prod")
TIMEOUT = 300.0  # seconds


class Pending(Protocol):
    def wait(self) -> None:
        """Wait for the result. A second call returns at once."""


class Carrier:
    """Collectives on contiguous tensors. Raises CollectiveFailedError, TimeoutError."""

    rank: int
    world: int

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        """In place."""
        raise NotImplementedError

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        """out: (world, *tensor.shape)."""
        raise NotImplementedError

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> Pending:
        """tensor: (world, *out.shape); out: rank's row of the sum."""
        raise NotImplementedError

    def meet(self, what: str) -> Callable[[], None]:
        """Announce in a few bytes what this rank is about to do. The returned function waits for
        the others and raises OrderMismatchError if they differ: in gloo, different sizes would end
        the process."""
        number = int.from_bytes(hashlib.blake2b(what.encode(), digest_size=8).digest(), "big",
                                signed=True)
        mine = torch.tensor([number], device=self.device)
        out = torch.empty((self.world, 1), dtype=torch.int64, device=self.device)
        pending = self.all_gather(out, mine)

        def end() -> None:
            pending.wait()
            if bool((out != number).any()):
                self._differ(what)
        return end

    def _differ(self, what: str) -> NoReturn:
        """Raise an error that names what the other ranks announced."""
        said = torch.zeros(256, dtype=torch.uint8)
        text = what.encode()[:256]
        said[:len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        said = said.to(self.device)
        out = torch.empty((self.world, 256), dtype=torch.uint8, device=said.device)
        self.all_gather(out, said).wait()
        words = [bytes(row.tolist()).rstrip(b"\0").decode("utf-8", "replace") for row in out]
        for rank, word in enumerate(words):
            if word != words[0]:
                raise OrderMismatchError(
                    f"rank 0 is about to do \"{words[0]}\" and rank {rank} \"{word}\"",
                    "all ranks run the same model with inputs of the same shape")
        raise OrderMismatchError(f"the ranks are about to do something other than \"{what}\" each",
                                 "all ranks run the same model with inputs of the same shape")

    def largest(self, values: Sequence[float]) -> list[float]:
        """The maximum of each value over all ranks, from which all ranks can decide the same."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.all_reduce(tensor, "max").wait()
        return tensor.tolist()

    @property
    def device(self) -> torch.device:
        """The device for the carrier's own small tensors."""
        return torch.device("cpu")


class _Done:
    def wait(self) -> None:
        pass


class Alone(Carrier):
    """The only rank."""

    rank, world = 0, 1

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        return _Done()

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        out[0].copy_(tensor)
        return _Done()

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> Pending:
        out.copy_(tensor[0])
        return _Done()


class Met(Carrier):
    """A carrier whose first collective waits for ``met``."""

    def __init__(self, carrier: Carrier, met: Callable[[], None]) -> None:
        self.carrier, self.met = carrier, [met]
        self.rank, self.world = carrier.rank, carrier.world

    def _ready(self) -> Carrier:
        while self.met:
            self.met.pop()()
        return self.carrier

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        return self._ready().all_reduce(tensor, op)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        return self._ready().all_gather(out, tensor)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> Pending:
        return self._ready().reduce_scatter(out, tensor, op)

    @property
    def device(self) -> torch.device:
        return self.carrier.device


# ---- torch.distributed ----

class _Waiting:
    """A torch Work, and what is left to do after it."""

    def __init__(self, what: str, work: Any, timeout: float,
                 after: Callable[[], Any] | None = None) -> None:
        self.what, self.work, self.timeout, self.after = what, work, timeout, after

    def wait(self) -> None:
        work, self.work = self.work, None
        if work is None:
            return
        try:
            work.wait(datetime.timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise _failure(self.what, error) from error
        if self.after is not None:
            self.after()


def _failure(what: str, error: BaseException) -> MacoError:
    text = f"{what}: {error}"
    if "nvalid scalar type" in text:
        return DTypeError(text, "gloo has no such type: float32, or a hybridps.Group")
    if "imed out" in text or "imeout" in text:
        return TimeoutError(text, "a rank is missing, or does something else")
    return CollectiveFailedError(text, "see what the other ranks say: one of them has ended")


class Torch(Carrier):
    """torch.distributed, or one of its groups."""

    def __init__(self, group: Any = None, timeout: float = TIMEOUT) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.backend = dist.get_backend(group)

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if self.backend == "nccl" else "cpu")

    def _start(self, what: str, call: Callable[..., Any], *args: Any,
               after: Callable[[], Any] | None = None, **options: Any) -> Pending:
        try:
            work = call(*args, group=self.group, async_op=True, **options)
        except RuntimeError as error:
            raise _failure(what, error) from error
        return _Waiting(what, work, self.timeout, after)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        mean = op == "avg"
        kind = getattr(dist.ReduceOp, {"avg": "SUM", "prod": "PRODUCT"}.get(op, op.upper()))
        return self._start("all-reduce", dist.all_reduce, tensor, op=kind,
                           after=(lambda: tensor.div_(self.world)) if mean else None)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        if self.backend == "gloo" and out.is_inference():  # gloo's threads can't write these
            with torch.inference_mode(False):
                plain = torch.empty_like(out, memory_format=torch.contiguous_format)
            return self._start("all-gather", dist.all_gather, list(plain.unbind(0)), tensor,
                               after=lambda: out.copy_(plain))
        if self.backend == "gloo":
            return self._start("all-gather", dist.all_gather, list(out.unbind(0)), tensor)
        whole = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
        return self._start("all-gather", whole, out.view(-1, *tensor.shape[1:]), tensor)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> Pending:
        if self.backend == "gloo":  # gloo has none
            whole = tensor.clone()
            pending = self.all_reduce(whole, op)
            pending.after = _both(pending.after, lambda: out.copy_(whole[self.rank]))
            return pending
        kind = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(op, op.upper()))
        scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
        return self._start("reduce-scatter", scatter, out, tensor.view(-1, *out.shape[1:]), op=kind)


def _both(first: Callable[[], Any] | None, second: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        if first is not None:
            first()
        second()
    return run


# ---- HybridPS's groups ----

class _Turn:
    """One collective of a proxy."""

    def __init__(self, what: str, run: Callable[[], None], timeout: float) -> None:
        self.what, self.run, self.timeout = what, run, timeout
        self.done = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        if not self.done.wait(self.timeout):
            raise TimeoutError(f"{self.what}: not done after {self.timeout:g} s",
                               "a rank is missing, or does something else")
        if self.error is not None:
            raise _failure(self.what, self.error) from self.error


class Proxy(Carrier):
    """A hybridps.Group: it waits in C, without the GIL."""

    def __init__(self, group: Any, timeout: float = TIMEOUT) -> None:
        self.group, self.timeout = group, timeout
        self.rank, self.world = group.rank, group.world
        self.turns: queue.SimpleQueue[_Turn | None] = queue.SimpleQueue()  # None: the end
        self.thread: threading.Thread | None = None

    def _start(self, what: str, run: Callable[[], None]) -> Pending:
        if self.thread is None or not self.thread.is_alive():  # a forked child has no thread
            self.turns = queue.SimpleQueue()
            self.thread = threading.Thread(target=_serve, args=(self.turns,), daemon=True,
                                           name="maco-proxy")
            self.thread.start()
        turn = _Turn(what, run, self.timeout)
        self.turns.put(turn)
        return turn

    def __del__(self) -> None:
        self.turns.put(None)

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Pending:
        def run() -> None:
            if tensor.is_cuda:
                tensor.copy_(self.group.allreduce(tensor, _NAMES.get(op, op), "maco"))
            else:
                self.group.allreduce_(tensor, _NAMES.get(op, op), "maco")
        return self._start("all-reduce", run)

    def all_gather(self, out: torch.Tensor, tensor: torch.Tensor) -> Pending:
        def run() -> None:
            for row, part in zip(out, self.group.allgather(tensor, "maco")):
                row.copy_(part)
        return self._start("all-gather", run)

    def reduce_scatter(self, out: torch.Tensor, tensor: torch.Tensor, op: str = "sum") -> Pending:
        return self._start("reduce-scatter", lambda: out.copy_(
            self.group.reduce_scatter(tensor, _NAMES.get(op, op), "maco")[0]))


def _serve(turns: "queue.SimpleQueue[_Turn | None]") -> None:
    broken: BaseException | None = None
    while (turn := turns.get()) is not None:
        try:
            if broken is not None:  # a group is lost after its first failure
                raise broken
            with torch.no_grad():
                turn.run()
        except BaseException as error:
            broken = turn.error = error
        turn.done.set()
        del turn  # it refers to the group, which may be dropped


def _torch(group: Any) -> Torch:
    try:
        if dist.get_rank(group) >= 0:
            return Torch(group)
    except Exception as error:  # dist raises many kinds
        raise NullInputError(f"group is {group!r}: {error}", "a group of torch.distributed, or a "
                             "hybridps.Group") from None
    raise NullInputError("this process is not a rank of the group", "only its ranks call this")


def initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def unknown_group(group: Any) -> NullInputError:
    return NullInputError(f"group is {group!r}, and torch.distributed is not initialized",
                          "a hybridps.Group, or one of torch.distributed's after its "
                          "init_process_group()")


_carriers: dict[int, tuple[Any, Carrier]] = {}  # of groups of torch.distributed


def carrier_of(group: Any = None) -> Carrier:
    """group: a Carrier, a hybridps.Group, a group of torch.distributed; None: all of its ranks, or
    this rank alone if it is not initialized."""
    if isinstance(group, Carrier):
        return group
    if group is None and not initialized():
        return Alone()
    if hasattr(group, "allgather") and hasattr(group, "share"):
        kept = group.__dict__  # not in a table, so that the group can be dropped
        if "_maco_carrier" not in kept:
            kept["_maco_carrier"] = Proxy(group)
        return kept["_maco_carrier"]
    if not initialized():
        raise unknown_group(group)
    known = _carriers.get(id(group))
    if known is None or known[0] is not group or group is None:
        known = _carriers[id(group)] = (group, _torch(group))
    return known[1]
