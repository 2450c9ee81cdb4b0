"""@overlap_comm: computes a function of rows in chunks, each communicated while the next is
computed.

    @overlap_comm(comm_op="allreduce")
    def forward(x, weight):
        return x @ weight           # the result is the sum over ranks

The result is bit-identical to running the same chunks one after the other (schedule="serial"). It
differs from the uncut call where a matrix product of fewer rows rounds differently.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Sequence

import torch
from torch.autograd.function import once_differentiable

from . import _cost
from ._comm import OPS, Carrier, Met, Pending, carrier_of
from ._given import flag, whole
from ._state import trial
from .errors import (DimensionError, DTypeError, LayoutError, MacoError, NotRowSeparableError,
                     NullInputError, ShapeMismatchError)

COMM_OPS = ("allreduce", "allgather", "reduce_scatter")
UNIT = 64  # rows computed together when bits must not depend on chunks
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass
class Overlap:
    """The options of overlap_comm."""

    comm_op: str = "allreduce"
    chunks: int | str = "auto"
    split_arg: int | str = 0
    split_dim: int = 0
    op: str = "sum"
    group: Any = None
    grad: str = "tp"
    check: bool = True
    schedule: str = "overlap"
    deterministic: bool = False
    name: str = "overlap_comm"
    decisions: dict[tuple, _cost.Decision] = field(default_factory=dict)
    seen: set[tuple] = field(default_factory=set)

    def __post_init__(self) -> None:
        for what, value, allowed in (("comm_op", self.comm_op, COMM_OPS), ("op", self.op, OPS),
                                     ("grad", self.grad, ("tp", "sum", "none")),
                                     ("schedule", self.schedule, ("overlap", "serial"))):
            if value not in allowed:
                raise MacoError(f"{what} is {value!r}", f"one of {', '.join(allowed)}")
        if self.deterministic and self.comm_op != "allreduce":
            raise MacoError(f"deterministic with {self.comm_op}", "only allreduce has it")
        if self.chunks != "auto":
            number = isinstance(self.chunks, int) and not isinstance(self.chunks, bool)
            if not number or self.chunks < 1:
                raise MacoError(f"chunks is {self.chunks!r}", "\"auto\", or a number from 1")
        if not isinstance(self.split_arg, (int, str)):
            raise MacoError(f"split_arg is {self.split_arg!r}", "an argument's number, or its name")
        self.split_dim = whole(self.split_dim, "split_dim")
        self.check = flag(self.check, "check")
        self.deterministic = flag(self.deterministic, "deterministic")

    def __deepcopy__(self, _: Any) -> "Overlap":
        """Groups can't be copied; a copy makes its choices again."""
        return replace(self, decisions={}, seen=set())


def overlap_comm(comm_op: str = "allreduce", chunks: int | str = "auto", split_arg: int | str = 0,
                 split_dim: int = 0, op: str = "sum", group: Any = None, grad: str = "tp",
                 check: bool = True, async_result: bool = False,
                 schedule: str = "overlap", deterministic: bool = False) -> Callable:
    """A decorator for functions with f(cat(x)) = cat(f(x)) that return one tensor.

    comm_op: "allreduce" and "reduce_scatter" apply to the result, "allgather" to the argument.
    chunks: "auto" measures once per shape, on all ranks together, and calls the function some
    twenty times for that. split_arg: the argument to cut (number or name), along split_dim, like
    the result. op: "sum", "avg", "min", "max", "prod". group: None = all of torch.distributed, one
    of its groups, or a hybridps.Group. grad: the backward of "allreduce" is the identity ("tp":
    what follows is the same on all ranks), or an all-reduce ("sum"); "reduce_scatter" and
    "allgather" are each other's backward; "none" raises if a gradient is requested. check: once per
    shape, compare the result of two pieces with the uncut one; check=False accepts functions that
    mix rows, or are random, and cuts them anyway. async_result: return an object whose ``wait()``
    returns the result. schedule: "serial" waits for each chunk, for comparison. deterministic
    ("allreduce"): the function gets UNIT rows at a time, so that the bits do not depend on the
    number of chunks if the group adds in rank order (hybridps.Group) or has two ranks. Raises
    NotRowSeparableError, OrderMismatchError, CollectiveFailedError, TimeoutError.
    """
    async_result = flag(async_result, "async_result")
    options = Overlap(comm_op, chunks, split_arg, split_dim, op, group, grad, check, schedule,
                      deterministic)

    def decorate(function: Callable) -> Callable:
        spec = replace(options, name=getattr(function, "__name__", "function"), decisions={},
                       seen=set())

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = start(spec, function, args, kwargs)
            return result if async_result else result.wait()
        wrapped.overlap = spec
        return wrapped
    return decorate


class Result:
    """A result that may still be in progress."""

    def __init__(self, finish: Callable[[], torch.Tensor]) -> None:
        self._finish: Callable[[], torch.Tensor] | None = finish
        self._value: torch.Tensor | None = None

    def wait(self) -> torch.Tensor:
        if self._finish is not None:
            finish, self._finish = self._finish, None
            self._value = finish()
        if self._value is None:
            raise MacoError("this result's collective has failed before", "see the first error")
        return self._value


def start(spec: Overlap, function: Callable, args: tuple, kwargs: dict[str, Any]) -> Result:
    """Compute all chunks; the last ones may still be communicated on return."""
    carrier = carrier_of(spec.group)
    args, kwargs, place = _placed(spec, function, args, kwargs)
    x = kwargs[place] if isinstance(place, str) else args[place]

    def call(part: torch.Tensor) -> torch.Tensor:
        if isinstance(place, str):
            return function(*args, **{**kwargs, place: part})
        return function(*args[:place], part, *args[place + 1:], **kwargs)
    if carrier.world == 1 and not spec.deterministic:
        value = call(x)
        return Result(lambda: value)
    dim = _split_dim(spec, x)
    rows = x.shape[dim]
    unit = UNIT if spec.deterministic else 1
    if spec.deterministic:
        call = _in_units(call, dim)
    if spec.comm_op == "reduce_scatter":
        if rows % carrier.world:
            raise DimensionError(f"{spec.name}: {rows} rows for {carrier.world} ranks",
                                 "reduce_scatter gives each rank as many rows")
        rows //= carrier.world
    run = _RUNS[spec.comm_op]
    key = (tuple(x.shape), x.dtype)
    met = _meet(spec, carrier, x, dim)
    if key in spec.seen:
        carrier = Met(carrier, met)  # the first chunk is computed meanwhile
    else:
        met()
        _prepare(spec, carrier, run, call, x, dim, rows)
    chunks = spec.decisions[key].chunks if spec.chunks == "auto" else spec.chunks
    return run(spec, carrier, call, x, dim, bounds(rows, chunks, unit), spec.schedule)


def _placed(spec: Overlap, function: Callable, args: tuple, kwargs: dict[str, Any]) -> \
        tuple[tuple, dict[str, Any], int | str]:
    """The arguments, and the position or name of the one that is cut, however it was passed."""
    wanted = spec.split_arg
    if isinstance(wanted, str) and wanted in kwargs:
        return args, kwargs, wanted
    if isinstance(wanted, int) and -len(args) <= wanted < len(args):
        return args, kwargs, wanted % len(args)
    with contextlib.suppress(TypeError, ValueError, LookupError):
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs)
        name = wanted if isinstance(wanted, str) else list(signature.parameters)[wanted]
        if name in bound.arguments:
            names = list(bound.arguments)[:len(bound.args)]
            return bound.args, bound.kwargs, names.index(name) if name in names else name
    raise NullInputError(f"{spec.name}: no argument {wanted!r} among {len(args)} and "
                         f"{list(kwargs)}", "split_arg: its number, or its name")


def bounds(rows: int, chunks: int, unit: int = 1) -> list[tuple[int, int]]:
    """(first, number) of each chunk, cut at multiples of unit; sizes differ by at most one unit."""
    units = -(-rows // unit)
    chunks = min(chunks, units)
    cuts = [min(rows, units * i // chunks * unit) for i in range(chunks + 1)]
    return [(a, b - a) for a, b in zip(cuts, cuts[1:])]


def _in_units(call: Callable, dim: int) -> Callable:
    def run(part: torch.Tensor) -> torch.Tensor:
        made = [call(piece) for piece in part.split(UNIT, dim)]
        return torch.cat(made, dim) if len(made) > 1 else made[0]
    return run


def _split_dim(spec: Overlap, x: Any) -> int:
    if not isinstance(x, torch.Tensor):
        raise DTypeError(f"{spec.name}: argument {spec.split_arg!r} is a {type(x).__name__}",
                         "split_arg says which tensor is cut")
    if x.layout is not torch.strided:
        raise LayoutError(f"{spec.name}: argument {spec.split_arg!r} is {x.layout}",
                          "a dense tensor can be cut: .to_dense()")
    if not -x.dim() <= spec.split_dim < x.dim() or x.shape[spec.split_dim] == 0:
        raise DimensionError(f"{spec.name}: a tensor of shape {tuple(x.shape)} has no rows along "
                             f"dimension {spec.split_dim}", "split_dim says where it is cut")
    return spec.split_dim % x.dim()


def _meet(spec: Overlap, carrier: Carrier, x: torch.Tensor, dim: int) -> Callable[[], None]:
    """Let all ranks announce what they are about to do; on a GPU, where this would block the
    caller, only the first time."""
    again = (tuple(x.shape), x.dtype) in spec.seen
    if again and carrier.device.type != "cpu":
        return lambda: None
    return carrier.meet(f"{'' if again else 'first '}{spec.comm_op} {spec.op} {spec.name} "
                        f"{tuple(x.shape)} {x.dtype} along {dim} in {spec.chunks} chunks")


def _prepare(spec: Overlap, carrier: Carrier, run: Callable, call: Callable, x: torch.Tensor,
             dim: int, rows: int) -> None:
    """Once per shape: check the function and choose the number of chunks."""
    key = (tuple(x.shape), x.dtype)
    with trial(), torch.random.fork_rng():
        if spec.check and spec.chunks != 1:
            _check(spec, carrier, call, x, dim)
        if spec.chunks == "auto":
            spec.decisions[key] = _measure(spec, carrier, run, call, x, dim, rows)
    spec.seen.add(key)


def _check(spec: Overlap, carrier: Carrier, call: Callable, x: torch.Tensor, dim: int) -> None:
    """Fail on all ranks if it fails on one, because the others would wait for that one."""
    good = _takes_rows_alone(spec, call, x, dim)
    if good and x.is_floating_point() and torch.equal(x, x.narrow(dim, 0, 1).expand_as(x)):
        # Identical rows (a first call with zeros) do not show mixing: try others of the same sign.
        with torch.no_grad():
            good = _takes_rows_alone(spec, call,
                                     x * (1 + torch.rand_like(x)) + (x == 0) * torch.rand_like(x),
                                     dim)
    bad, = carrier.largest([float(not good)])
    if bad:
        raise NotRowSeparableError(
            f"{spec.name}: cut along dimension {dim} it gives another result than uncut, for an "
            f"argument of shape {tuple(x.shape)}",
            "it must treat each row by itself: no norm, softmax or sum over rows, no dropout; "
            "check=False cuts it all the same")


def _takes_rows_alone(spec: Overlap, call: Callable, x: torch.Tensor, dim: int) -> bool:
    """Whether two pieces give the same result as the whole."""
    state = torch.get_rng_state()
    whole = _rows_of(spec, call(x), dim, x.shape[dim])
    torch.set_rng_state(state)
    parts = [call(x.narrow(dim, a, n)) for a, n in bounds(x.shape[dim], min(2, x.shape[dim]))]
    limit = TOLERANCE.get(whole.dtype, 0.0)
    try:
        again = torch.cat(parts, dim)
        return again.shape == whole.shape and torch.allclose(again, whole, limit, limit,
                                                             equal_nan=True)
    except (RuntimeError, IndexError):
        return False


def _measure(spec: Overlap, carrier: Carrier, run: Callable, call: Callable, x: torch.Tensor,
             dim: int, rows: int) -> _cost.Decision:
    like = x if spec.comm_op == "allgather" else call(x)
    data = like.detach().contiguous().clone()
    world = carrier.world
    if spec.comm_op == "allreduce":
        def comm() -> None:
            carrier.all_reduce(data, "max").wait()  # keeps values from growing
    elif spec.comm_op == "allgather":
        out = data.new_empty((world, *data.shape))

        def comm() -> None:
            carrier.all_gather(out, data).wait()
    else:
        apart = data.view(world, -1)
        out = apart.new_empty(apart.shape[1])

        def comm() -> None:
            carrier.reduce_scatter(out, apart, "max").wait()
    whole = x if spec.comm_op != "allgather" else torch.cat([x] * world, dim)
    unit = UNIT if spec.deterministic else 1

    def chunked(n: int, schedule: str) -> torch.Tensor:
        meets = n > 1 and carrier.device.type == "cpu"  # each call does this and pays for it
        on = Met(carrier, _meet(spec, carrier, x, dim)) if meets else carrier
        return run(spec, on, call, x, dim, bounds(rows, n, unit), schedule).wait()
    return _cost.decide(carrier, -(-rows // unit), lambda: call(whole), comm, chunked)


# ---- the three of them ----

def _rows_of(spec: Overlap, y: Any, dim: int, rows: int) -> torch.Tensor:
    if not isinstance(y, torch.Tensor):
        raise DTypeError(f"{spec.name} returned a {type(y).__name__}", "it must return one tensor")
    if y.dim() <= dim or y.shape[dim] != rows:
        raise ShapeMismatchError(f"{spec.name} made {tuple(y.shape)} of {rows} rows along "
                                 f"dimension {dim}", "the result has the rows of the argument")
    return y


def _differentiable(spec: Overlap, *tensors: torch.Tensor) -> bool:
    """Whether a gradient will be requested; raises if there is none."""
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        return False
    if spec.grad == "none":
        raise MacoError(f"{spec.name}: a gradient is asked for and grad is \"none\"",
                        "grad=\"tp\" or \"sum\", or torch.no_grad()")
    if spec.op not in ("sum", "avg") and spec.comm_op != "allgather":
        raise MacoError(f"{spec.name}: {spec.op} has no gradient", "op=\"sum\", or torch.no_grad()")
    return True


def _all_reduce(spec: Overlap, carrier: Carrier, call: Callable, x: torch.Tensor, dim: int,
                cuts: list[tuple[int, int]], schedule: str) -> Result:
    flight = _Flight(spec, carrier, dim, cuts, schedule)
    made = []
    for part, (_, rows) in zip(x.split([n for _, n in cuts], dim), cuts):
        y = _rows_of(spec, call(part), dim, rows)
        made.append(y)
        with torch.no_grad():
            piece = torch.empty_like(y, memory_format=torch.contiguous_format).copy_(y)
            flight.add(piece, carrier.all_reduce(piece, spec.op))
    return flight.result(made)


def _reduce_scatter(spec: Overlap, carrier: Carrier, call: Callable, x: torch.Tensor, dim: int,
                    cuts: list[tuple[int, int]], schedule: str) -> Result:
    world = carrier.world
    flight = _Flight(spec, carrier, dim, cuts, schedule)
    made = []
    # Rows belong to the ranks' shards in turn; a chunk takes some of each.
    shards = x.unflatten(dim, (world, x.shape[dim] // world)).split([n for _, n in cuts], dim + 1)
    for part, (_, rows) in zip(shards, cuts):
        y = _rows_of(spec, call(part.flatten(dim, dim + 1)), dim, world * rows)
        made.append(y)
        with torch.no_grad():
            apart = y.unflatten(dim, (world, rows)).movedim(dim, 0).contiguous()
            piece = torch.empty_like(apart[0])
            flight.add(piece, carrier.reduce_scatter(piece, apart, spec.op), apart)
    return flight.result(made)


def _all_gather(spec: Overlap, carrier: Carrier, call: Callable, x: torch.Tensor, dim: int,
                cuts: list[tuple[int, int]], schedule: str) -> Result:
    world = carrier.world
    gather = _Gather(carrier, dim, schedule)
    parts = x.split([n for _, n in cuts], dim)
    tokens = None
    if _differentiable(spec, x):
        tokens = _Gathered.apply(gather, *parts)
    else:
        gather.begin(parts)
    made = []
    for i, (_, rows) in enumerate(cuts):
        part = gather.arrive(i) if tokens is None else _Arrived.apply(gather, i, tokens[i])
        y = _rows_of(spec, call(part), dim, world * rows)
        made.append(y.unflatten(dim, (world, rows)))
    value = torch.cat(made, dim + 1).flatten(dim, dim + 1)
    return Result(lambda: value)


_RUNS = {"allreduce": _all_reduce, "reduce_scatter": _reduce_scatter, "allgather": _all_gather}


class _Flight:
    """Chunks of results in flight, and their gradients on the way back."""

    def __init__(self, spec: Overlap, carrier: Carrier, dim: int, cuts: list[tuple[int, int]],
                 schedule: str) -> None:
        self.spec, self.carrier, self.dim, self.cuts = spec, carrier, dim, cuts
        self.serial = schedule == "serial"
        self.pieces: list[torch.Tensor] = []
        self.pending: list[Pending] = []
        self.keep: list[torch.Tensor | None] = []  # kept until its collective has ended
        self.returning: dict[int, tuple[torch.Tensor, Pending]] = {}

    def add(self, piece: torch.Tensor, pending: Pending, keep: torch.Tensor | None = None) -> None:
        if self.serial:
            pending.wait()
        self.pieces.append(piece)
        self.pending.append(pending)
        self.keep.append(keep)

    def result(self, made: list[torch.Tensor]) -> Result:
        graph = _differentiable(self.spec, *made)
        if graph and self.returns:
            made = [_Returned.apply(self, i, y) for i, y in enumerate(made)]
        return Result(lambda: _Joined.apply(self, *made) if graph else self.finish())

    def finish(self) -> torch.Tensor:
        with torch.no_grad():
            for i, pending in enumerate(self.pending):
                try:
                    pending.wait()
                except DTypeError:  # in all chunks, on all ranks: the group is still usable
                    for other in self.pending[i + 1:]:
                        with contextlib.suppress(MacoError):
                            other.wait()
                    raise
            out = torch.cat(self.pieces, self.dim) if len(self.pieces) > 1 else self.pieces[0]
        self.pieces, self.pending, self.keep = [], [], []
        return out

    @property
    def returns(self) -> bool:
        """Whether gradients are communicated."""
        return self.spec.comm_op == "reduce_scatter" or self.spec.grad == "sum"

    def send_back(self, i: int, gradient: torch.Tensor) -> None:
        if self.spec.comm_op == "allreduce":
            # The gradient is a view of the whole one, which others may use.
            data = gradient.clone(memory_format=torch.contiguous_format)
            pending = self.carrier.all_reduce(data, self.spec.op)
        else:
            data = gradient.new_empty((self.carrier.world, *gradient.shape))
            pending = self.carrier.all_gather(data, gradient.contiguous())
        if self.serial:
            pending.wait()
        self.returning[i] = data, pending

    def take_back(self, i: int) -> torch.Tensor:
        data, pending = self.returning.pop(i)
        pending.wait()
        if self.spec.comm_op == "allreduce":
            return data
        if self.spec.op == "avg":
            data.div_(self.carrier.world)
        return data.movedim(0, self.dim).flatten(self.dim, self.dim + 1)


class _Joined(torch.autograd.Function):
    """Joins communicated chunks into one tensor."""

    @staticmethod
    def forward(ctx: Any, flight: _Flight, *made: torch.Tensor) -> torch.Tensor:
        ctx.flight = flight
        ctx.shapes = [y.shape for y in made]
        return flight.finish()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        flight = ctx.flight
        parts = gradient.split([n for _, n in flight.cuts], flight.dim)
        if not flight.returns:
            return (None, *parts)
        # Autograd runs the last chunk's graph first.
        for i in reversed(range(len(parts))):
            flight.send_back(i, parts[i])
        empty = gradient.new_zeros(())
        return (None, *(empty.expand(shape) for shape in ctx.shapes))


class _Returned(torch.autograd.Function):
    """Passes a computed chunk on; backward waits for its gradient."""

    @staticmethod
    def forward(ctx: Any, flight: _Flight, i: int, y: torch.Tensor) -> torch.Tensor:
        ctx.flight, ctx.i = flight, i
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: torch.Tensor) -> tuple:
        return None, None, ctx.flight.take_back(ctx.i)


class _Gather:
    """Chunks of an argument gathered from all ranks, and their gradients on the way back."""

    def __init__(self, carrier: Carrier, dim: int, schedule: str) -> None:
        self.carrier, self.dim, self.serial = carrier, dim, schedule == "serial"
        self.pending: list[Pending] = []
        self.wholes: list[torch.Tensor] = []  # rank by rank
        self.keep: list[torch.Tensor] = []
        self.returning: dict[int, tuple[torch.Tensor, torch.Tensor, Pending]] = {}

    @torch.no_grad()
    def begin(self, parts: Sequence[torch.Tensor]) -> None:
        world = self.carrier.world
        for part in parts:
            data = part.detach().contiguous()
            whole = data.new_empty((world * data.shape[0], *data.shape[1:]))
            pending = self.carrier.all_gather(whole.view(world, *data.shape), data)
            if self.serial:
                pending.wait()
            self.keep.append(data)
            self.wholes.append(whole)
            self.pending.append(pending)

    @torch.no_grad()
    def arrive(self, i: int) -> torch.Tensor:
        """A chunk's rows from all ranks."""
        self.pending[i].wait()
        whole, dim = self.wholes[i], self.dim
        self.wholes[i] = self.keep[i] = whole.new_empty(0)
        if dim != 0:
            apart = whole.unflatten(0, (self.carrier.world, -1))
            whole = apart.movedim(0, dim).flatten(dim, dim + 1)
        return whole

    def send_back(self, i: int, gradient: torch.Tensor) -> None:
        world, dim = self.carrier.world, self.dim
        apart = gradient.unflatten(dim, (world, gradient.shape[dim] // world))
        apart = apart.movedim(dim, 0).contiguous()
        mine = torch.empty_like(apart[0])
        pending = self.carrier.reduce_scatter(mine, apart, "sum")
        if self.serial:
            pending.wait()
        self.returning[i] = mine, apart, pending

    def take_back(self, i: int) -> torch.Tensor | None:
        if i not in self.returning:
            return None
        mine, _, pending = self.returning.pop(i)
        pending.wait()
        return mine


class _Gathered(torch.autograd.Function):
    """Begins gathering the chunks, each of which is represented by a token."""

    @staticmethod
    def forward(ctx: Any, gather: _Gather, *parts: torch.Tensor) -> tuple:
        ctx.gather = gather
        gather.begin(parts)
        return tuple(part.new_zeros(()) for part in parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *tokens: torch.Tensor) -> tuple:
        return (None, *(ctx.gather.take_back(i) for i in range(len(tokens))))


class _Arrived(torch.autograd.Function):
    """Turns a token into its chunk from all ranks; backward sends off the gradient."""

    @staticmethod
    def forward(ctx: Any, gather: _Gather, i: int, token: torch.Tensor) -> torch.Tensor:
        ctx.gather, ctx.i = gather, i
        return gather.arrive(i)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple:
        ctx.gather.send_back(ctx.i, gradient)
        return None, None, gradient.new_zeros(())
