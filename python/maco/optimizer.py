"""MacoOptimizer finds adjacent computation and communication in a model and overlaps them.

    optimizer = MacoOptimizer(model, example_inputs=(x,))
    model = optimizer.optimize()
    print(optimizer.report())

The model is traced (see _capture.py). Linear layers whose output is summed over ranks or scattered,
and gathers before a linear layer, are computed in chunks. A sum that is not needed at once is
waited for where it is needed. What gains less than 3 % is left alone. Everything else stays
unchanged: the signature, the parameters, the keys of state_dict, the gradients.
"""
from __future__ import annotations

import copy
import functools
import inspect
import statistics
import time
import types
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator

import torch
from torch import fx, nn

from hybridps._tensors import tensors_of

from . import _cost, _dynamo, _match
from ._capture import Collective, Site, Untraceable, capture
from ._comm import carrier_of
from ._given import flag
from ._state import Guards, Kept, has_hooks, trial
from .decorators import TOLERANCE, Overlap, start
from .errors import MacoError, NothingToOptimizeError, NullInputError, SelfCheckError
from .functional import same

NOT_RUN = "not measured: it has not run"


def mark(module: nn.Module, comm_op: str = "allreduce", **options: Any) -> nn.Module:
    """Declare that a module's forward treats rows independently and that its result has to be
    reduced: MacoOptimizer overlaps both. options: those of overlap_comm. Returns the module."""
    if not isinstance(module, nn.Module):
        raise NullInputError(f"module is {module!r:.40}", "pass a torch.nn.Module")
    module._maco_mark = Overlap(comm_op, **options)
    return module


@dataclass
class Candidate:
    """A place where overlap is possible. gain: measured share of its computation and communication
    time that is saved. plain and overlapped: seconds when run one after the other, and as it runs
    now; at_best: the longer of computing and communicating, which are timed apart from these and on
    a busy machine may come out longer than both together: then as it runs now. All 0: not
    measured."""

    kind: str
    where: str
    taken: bool
    reason: str
    chunks: int = 1
    gain: float = 0.0
    plain: float = 0.0
    overlapped: float = 0.0
    at_best: float = 0.0

    def tell(self, best: _cost.Decision) -> None:
        """Record what was measured."""
        self.taken, self.chunks, self.gain, self.reason = \
            best.chunks > 1, best.chunks, best.gain, best.reason
        self.plain = best.plain
        self.overlapped = best.overlapped if self.taken else best.plain
        self.at_best = min(max(best.compute, best.comm), self.overlapped)


class Report(list):
    """The candidates, in the order of the model."""

    @property
    def speedup(self) -> float:
        """Over everything that was measured: the time one after the other divided by the current
        time. 1 if nothing was measured."""
        overlapped = sum(c.overlapped for c in self)
        return sum(c.plain for c in self) / overlapped if overlapped > 0 else 1.0

    def __str__(self) -> str:
        if not self:
            return "no collective was found"
        lines = []
        for c in self:
            lines.append(f"{'taken' if c.taken else 'left ':5}  {c.kind:24} {c.where}: {c.reason}")
        plain, now, best = (sum(getattr(c, name) for c in self)
                            for name in ("plain", "overlapped", "at_best"))
        if plain > 0:
            lines.append(f"all     {self.speedup:.2f} x: {plain * 1e3:.3g} ms one after the other, "
                         f"{now * 1e3:.3g} ms as it runs now; with everything hidden that can be, "
                         f"{best * 1e3:.3g} ms, {plain / best:.2f} x")
        else:
            lines.append("all     nothing was measured")
        return "\n".join(lines)


def _forward_of(collective: Collective) -> Collective:
    return replace(collective, grad="tp", stopped=False)


class Pair:
    """A product and its collective, in chunks."""

    def __init__(self, match: _match.Match, choices: "_Choices") -> None:
        c = match.collective
        self.candidate = Candidate(match.kind, match.where, False, NOT_RUN)
        self.left = False  # measured, and not worth it
        self.function, self.collective = match.product.function, c
        self.spec = Overlap(c.kind, choices.chunks, 0, c.dim, c.op,
                            c.group if c.group is not None else choices.group, c.grad,
                            check=False, deterministic=choices.deterministic, name=match.where)

    def stands_for(self, match: _match.Match) -> bool:
        """Whether the match is this pair: graphs with and without gradients share measurements."""
        return match.product is not None and match.product.function is self.function and \
            _forward_of(match.collective) == _forward_of(self.collective)

    def of(self, collective: Collective) -> Callable:
        """The function for a graph, with the gradient that the collective has there."""
        return functools.partial(self._run, replace(self.spec, grad=collective.grad),
                                 collective.stops)

    def _run(self, spec: Overlap, stops: bool, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        lead = x.shape[:-1]
        if rest[0].dim() != 2:  # a batch of matrices can't be cut by rows
            self.candidate.reason = "the second factor is not a matrix"
            return start(replace(spec, chunks=1), self.function, (x, *rest), {}).wait()
        if spec.comm_op != "allreduce" and spec.split_dim % x.dim() == x.dim() - 1:
            self.candidate.reason = "columns are not rows: they can't be cut"
            return self._columns(spec, stops, x, *rest)
        if spec.comm_op == "allreduce" and not x.numel():  # on all ranks
            return self.function(x, *rest)
        flat = spec.comm_op == "allreduce" and x.dim() != 2  # any shape can be seen as rows
        if flat:
            x = x.reshape(-1, x.shape[-1])
        if stops and spec.comm_op == "allgather":
            x = x.detach()
        stops = stops and spec.comm_op == "reduce_scatter"
        with torch.set_grad_enabled(torch.is_grad_enabled() and not stops):
            y = start(spec, self.function, (x, *rest), {}).wait()
        self._tell()
        return y.reshape(*lead, y.shape[-1]) if flat else y

    def _columns(self, spec: Overlap, stops: bool, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Communicate along the last dimension."""
        spec, gathers = replace(spec, chunks=1), spec.comm_op == "allgather"
        y = x if gathers else self.function(x, *rest)
        y = start(spec, same, (y.detach() if stops else y,), {}).wait()
        return self.function(y, *rest) if gathers else y

    def _tell(self) -> None:
        c = self.candidate
        if isinstance(self.spec.chunks, int):
            c.taken, c.chunks = True, self.spec.chunks
            c.reason = f"{c.chunks} chunks, as requested"
        elif self.spec.decisions:
            best = max(self.spec.decisions.values(), key=lambda d: d.gain)
            c.tell(best)
        elif carrier_of(self.spec.group).world == 1:
            c.reason = "one rank has nothing to wait for"


class Late:
    """A sum that is waited for only where it is needed."""

    def __init__(self, match: _match.Match, group: Any) -> None:
        c = match.collective
        self.collective = c
        self.group = c.group if c.group is not None else group
        self.candidate = Candidate(match.kind, match.where, False, NOT_RUN)
        self.late, self.left = True, False
        self.spans: list[float] | None = None  # seconds of each run while it is measured
        self.begun = 0.0

    def stands_for(self, match: _match.Match) -> bool:
        return match.product is None and \
            _forward_of(match.collective) == _forward_of(self.collective)

    def begin(self, grad: str, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        self.begun = time.perf_counter()
        if self.collective.in_place:
            pending = carrier_of(self.group).all_reduce(x.detach(), self.collective.op)
        else:
            spec = Overlap("allreduce", 1, 0, 0, self.collective.op, self.group, grad,
                           name=self.candidate.where)
            pending = start(spec, same, (x,), {})
        if not self.late:
            pending.wait()
        return x, pending

    def end(self, handle: tuple[torch.Tensor, Any]) -> torch.Tensor:
        x, pending = handle
        value = pending.wait()
        if self.spans is not None:
            self.spans.append(time.perf_counter() - self.begun)
        elif self.candidate.reason == NOT_RUN and carrier_of(self.group).world > 1:
            self.candidate.taken, self.candidate.reason = True, \
                "waited for at its first use; what that gains is measured with example_inputs alone"
        return x if self.collective.in_place else value


# ---- graphs ----

class _Rewriter:
    """Replaces what was found by steps, one after the other."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.now: dict[fx.Node, fx.Node] = {}  # the replacement of a removed node

    def _value(self, item: Any) -> Any:
        if isinstance(item, tuple) and item[:1] == ("attr",):
            return self.graph.get_attr(item[1])
        while item in self.now:
            item = self.now[item]
        return item

    def _call(self, function: Callable, label: str, *args: Any) -> fx.Node:
        return self.graph.call_function(Site(function, label, None), args)

    def _replace(self, node: fx.Node, by: fx.Node, but: tuple[fx.Node, ...]) -> None:
        node.replace_all_uses_with(by, delete_user_cb=lambda user: user not in but)
        self.now[node] = by

    def _erase(self, *nodes: fx.Node) -> None:
        """Erase the nodes, and the empty tensors that only they used."""
        for node in nodes:
            inputs = node.all_input_nodes
            self.graph.erase_node(node)
            for other in inputs:
                if not other.users and other.target in _match.EMPTY:
                    self.graph.erase_node(other)

    def pair(self, match: _match.Match, pair: Pair) -> None:
        product, comm = match.product, match.comm
        gathers = match.collective.kind == "allgather"
        with self.graph.inserting_before(product.node if gathers else comm):
            x = comm.args[-1] if gathers else self._value(product.x)
            new = self._call(pair.of(match.collective), "maco_pair", x,
                             *(self._value(r) for r in product.rest))
        gone = [product.node, comm]
        if match.collective.in_place and match.collective.kind == "reduce_scatter":
            gone.append(comm.args[0])
        for node in gone:
            self._replace(node, new, (new, comm))
        self._erase(*((product.node, *match.drop) if gathers else (comm, product.node)))

    def late(self, match: _match.Match, late: Late) -> None:
        comm, source = match.comm, match.comm.args[-1]
        with self.graph.inserting_before(comm):
            begin = functools.partial(late.begin, match.collective.grad)
            handle = self._call(begin, "maco_begin", source)
        users = set(comm.users)
        if match.collective.in_place:
            users |= set(source.users) - {handle, comm}
        first = next(node for node in self.graph.nodes if node in users)
        with self.graph.inserting_before(first):
            value = self._call(late.end, "maco_end", handle)
        self._replace(comm, value, ())
        if match.collective.in_place:
            self._replace(source, value, (handle, comm))
        self._erase(comm)


@dataclass(frozen=True)
class _Choices:
    """The user's choices."""

    group: Any = None
    chunks: int | str = "auto"
    deterministic: bool = False

    def __deepcopy__(self, _: Any) -> "_Choices":
        return self  # groups can't be copied


class _Cut:
    """What was found in one module, and its replacement."""

    def __init__(self, choices: _Choices, module: nn.Module, path: str) -> None:
        self.choices, self.module, self.path = choices, module, path
        self.steps: dict[str, Pair | Late] = {}  # by location; the same in all graphs of the module
        self.refusals: dict[str, _match.Refusal] = {}

    def __getstate__(self) -> dict[str, Any]:
        """A copy has its own graphs and makes its choices again."""
        return {"choices": self.choices, "module": self.module, "path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def cut(self, captured: fx.GraphModule, root: nn.Module) -> None:
        """Rewrites the graph."""
        rewriter = _Rewriter(captured.graph)
        for found in _match.find(captured, root):
            if isinstance(found, _match.Refusal):
                self.refusals.setdefault(found.where, found)
            else:
                self._add(rewriter, found)
        captured.graph.lint()
        captured.recompile()

    def _add(self, rewriter: _Rewriter, match: _match.Match) -> None:
        step, place, number = self.steps.get(match.where), match.where, 1
        while step is not None and not step.stands_for(match):  # of another path through forward
            number += 1
            match.where = f"{place} ({number})"
            step = self.steps.get(match.where)
        if step is not None and step.left:
            return
        late = match.kind == "independent"
        if self.choices.deterministic and not late and match.collective.kind != "allreduce":
            self.refusals[match.where] = _match.Refusal(match.kind, match.where,
                                                        "deterministic: only sums are cut")
            return
        if step is None:
            step = Late(match, self.choices.group) if late else \
                Pair(match, self.choices)
            self.steps[match.where] = step
        (rewriter.late if late else rewriter.pair)(match, step)

    def drop(self) -> None:
        """Undo the steps that are not taken."""
        for step in self.steps.values():
            step.left = not step.candidate.taken


class _Compiled(_Cut):
    """The forward of a module whose graphs torch.compile finds (torch 2)."""

    def __init__(self, choices: _Choices, module: nn.Module, path: str) -> None:
        super().__init__(choices, module, path)
        self.graphs = _dynamo.Graphs(lambda graph: self.cut(graph, graph))
        self.compiled: Callable | None = None  # can't be copied

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(type(self.module).forward.__get__(self.module))

    def drop(self) -> None:
        super().drop()
        self.graphs.stale()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.compiled is None:
            self.compiled = _dynamo.compiled(self.module, self.graphs, self._stumbled)
        return self.compiled(*args, **kwargs)

    def _stumbled(self, where: str, why: str) -> None:
        self.refusals.setdefault(where, _match.Refusal(
            "function", where, f"torch.compile fails with it, and it runs as it is: {why}"))


def _constants(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Arguments that choose a path through forward: None, True and False, and the absence of
    variadic ones."""
    return {name: value for name, value in bound.arguments.items()
            if value is None or isinstance(value, bool) or
            _various(bound.signature.parameters[name]) and not value}


def _various(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


class _Forward(_Cut):
    """The forward of an optimized module: one graph per path through it."""

    MOST = 16  # number of paths that are kept

    def __init__(self, choices: _Choices, module: nn.Module, path: str) -> None:
        super().__init__(choices, module, path)
        self.signature = inspect.signature(types.MethodType(type(module).forward, module))
        self.runs: list[tuple[dict[str, Any], Guards, Callable | None]] = []

    @property
    def __signature__(self) -> inspect.Signature:
        return self.signature

    def build(self, fixed: dict[str, Any]) -> Callable:
        """Build the graph for the path that these arguments and the current module take. Raises
        Untraceable."""
        mine = self.module.__dict__.pop("forward", None)
        guards = Guards(self.module)
        run = None
        try:
            _traceable(self.module)
            captured = capture(self.module, fixed, guards)
            self.cut(captured, self.module)
            run = type(captured).forward
        finally:
            if mine is not None:
                self.module.__dict__["forward"] = mine
            self.runs = [*self.runs[-self.MOST + 1:], (fixed, guards, run)]
        return run

    def drop(self) -> None:
        super().drop()
        if any(step.left for step in self.steps.values()):
            self.runs = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        run = self._run(_constants(bound))
        if run is None:
            return type(self.module).forward(self.module, *args, **kwargs)
        return run(self.module, **{name: value for name, value in bound.arguments.items()
                                   if not _various(bound.signature.parameters[name])})

    def _run(self, fixed: dict[str, Any]) -> Callable | None:
        """The graph to run; None: forward itself."""
        for known, guards, run in self.runs:
            if known == fixed and guards.hold():
                return run
        try:
            return self.build(fixed)
        except Untraceable as error:
            where = self.path or type(self.module).__name__
            self.refusals[where] = _match.Refusal("module", where, f"{error}; such calls stay as "
                                                  "they are")
            return None


def _traceable(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if name and has_hooks(child):
            leaf = type(child).__module__.startswith("torch.nn")
            if not leaf:  # a leaf is called as a module, with its hooks
                raise Untraceable(f"{name} has hooks, which a graph of it would not call")


def _copy_tree(module: nn.Module, memo: dict[int, nn.Module]) -> nn.Module:
    """A copy of the modules that shares parameters and buffers."""
    if id(module) not in memo:
        made = memo[id(module)] = copy.copy(module)
        made.__dict__["_modules"] = type(module._modules)(
            (name, child and _copy_tree(child, memo)) for name, child in module._modules.items())
        if isinstance(made.__dict__.get("forward"), (_Forward, _Compiled, _Marked)):
            del made.__dict__["forward"]  # from an earlier optimization
    return memo[id(module)]


class _Marked:
    """The forward of a marked module."""

    def __init__(self, spec: Overlap, module: nn.Module, plain: Callable | None) -> None:
        self.spec, self.module, self.plain = spec, module, plain

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.plain or type(self.module).forward.__get__(self.module))

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        plain = self.plain or functools.partial(type(self.module).forward, self.module)
        return start(self.spec, plain, args, kwargs).wait()


def _marked_in(module: nn.Module) -> list[tuple[str, Any]]:
    return [(name, child) for name, child in module.named_modules()
            if hasattr(child, "_maco_mark")]


def _reduce(child: nn.Module, spec: Overlap) -> None:
    child.__dict__["forward"] = _Marked(spec, child, child.__dict__.get("forward"))


# ---- the optimizer ----

class MacoOptimizer:
    """example_inputs: the arguments of a call of the model (a tuple; a single tensor; or a dict of
    named arguments). With them everything is measured, and checked once, in optimize(), which all
    ranks call together; without, each shape is measured at its first use. group: for collectives
    that name none. chunks: "auto", or a number. strict: raise NothingToOptimizeError if nothing can
    be overlapped. deterministic: bits do not depend on the number of chunks (see overlap_comm);
    only sums are overlapped then."""

    def __init__(self, model: nn.Module, example_inputs: Any = None, group: Any = None,
                 chunks: int | str = "auto", strict: bool = False,
                 deterministic: bool = False) -> None:
        if not isinstance(model, nn.Module):
            raise MacoError(f"a {type(model).__name__} is not a module", "pass a torch.nn.Module")
        Overlap("allreduce", chunks)  # raises if chunks is invalid
        self.example = _example(example_inputs)
        if group is not None:
            carrier_of(group)  # raises if it is invalid
        self.model, self.strict = model, flag(strict, "strict")
        self.choices = _Choices(group, chunks, flag(deterministic, "deterministic"))
        self._forwards: list[_Cut] = []
        self._others: list[Candidate] = []
        self._marked: list[tuple[str, Overlap]] = []

    def optimize(self) -> nn.Module:
        """The optimized model, which shares the original's parameters."""
        self._forwards, self._others = [], []
        made = _copy_tree(self.model, {})
        self._mark(made)
        self._trace(made, "")
        if self.example is not None:
            self._measure(made)
            self._check(made)
        if self.strict and not any(c.taken for c in self.report()) and \
                (self.example is not None or not any(True for _ in self._steps())):
            raise NothingToOptimizeError("nothing in the model could be overlapped:\n" +
                                         str(self.report()), "see the reasons")
        return made

    def report(self) -> Report:
        """Every collective that was found, and why it is or is not overlapped."""
        out = Report(self._others)
        for name, spec in self._marked:
            best = max(spec.decisions.values(), key=lambda d: d.gain, default=None)
            out.append(Candidate(f"marked {spec.comm_op}", name, True, "as it was marked"))
            if best is not None:
                out[-1].tell(best)
        for forward in self._forwards:
            where = f"{forward.path}: " if forward.path else ""
            out += [Candidate(r.kind, where + r.where, False, r.reason)
                    for r in forward.refusals.values()]
            out += [replace(s.candidate, where=where + s.candidate.where)
                    for s in forward.steps.values()]
        return out

    def _mark(self, module: nn.Module) -> None:
        self._marked = [(name, child._maco_mark) for name, child in _marked_in(module)]
        for _, child in _marked_in(module):
            _reduce(child, child._maco_mark)

    def _trace(self, module: nn.Module, path: str) -> None:
        """Trace the whole module, or those parts that can be traced."""
        if hasattr(module, "_maco_mark"):
            return
        if "forward" in module.__dict__:
            self._others.append(Candidate("module", path or type(module).__name__, False,
                                          "another forward has replaced its own"))
            return
        forward = _Forward(self.choices, module, path)
        try:
            forward.build(self._way(forward))
            others = [r for r in forward.refusals.values() if r.kind == "function"]
            if others and _dynamo.usable():  # it sees what they do
                raise Untraceable(f"{others[0].where}: {others[0].reason}")
        except Untraceable as error:
            compiles = _dynamo.usable()
            how = "torch.compile finds its graphs" if compiles else \
                "its parts are looked at one by one"
            self._others.append(Candidate("module", path or type(module).__name__, False,
                                          f"{error}; {how}"))
            if compiles:
                compiled = module.__dict__["forward"] = _Compiled(self.choices, module, path)
                self._forwards.append(compiled)
                return
            for name, child in module.named_children():
                if next(child.children(), None) is not None or \
                        not type(child).__module__.startswith("torch.nn"):
                    self._trace(child, f"{path}.{name}" if path else name)
            return
        if forward.steps or forward.refusals:
            module.__dict__["forward"] = forward
            self._forwards.append(forward)

    def _way(self, forward: _Forward) -> dict[str, Any]:
        """The path of the example, or that of a call with only the required arguments."""
        if self.example is None or forward.path:
            bound = forward.signature.bind_partial()
            bound.apply_defaults()
            return _constants(bound)
        try:
            bound = forward.signature.bind(*self.example[0], **self.example[1])
        except TypeError as error:
            raise NullInputError(f"example_inputs are not those of {type(self.model).__name__}: "
                                 f"{error}", "the arguments of a call of it") from None
        bound.apply_defaults()
        return _constants(bound)

    def _steps(self) -> Iterator[Pair | Late]:
        for forward in self._forwards:
            yield from forward.steps.values()

    @trial()
    def _run(self, module: nn.Module) -> Any:
        """The example's result. Buffers, counters and generators are restored afterwards."""
        kept = Kept(module)
        try:
            args, kwargs = self.example
            return module(*args, **kwargs)
        finally:
            kept.restore()

    def _measure(self, made: nn.Module) -> None:
        """Measure, and undo what gains too little."""
        self._run(made)
        lates = [s for s in self._steps() if isinstance(s, Late)]
        for late in lates:
            self._measure_late(made, late)
        for forward in self._forwards:
            forward.drop()

    def _measure_late(self, made: nn.Module, late: Late) -> None:
        carrier = carrier_of(late.group)
        if carrier.world == 1:
            late.candidate.reason = "one rank has nothing to wait for"
            return
        taken = {}
        for late.late in (False, True):
            late.spans = []
            for _ in range(_cost.REPEATS + 1):
                carrier.largest([0.0])
                self._run(made)
            if not late.spans:
                late.spans = None
                late.candidate.reason = "the example does not reach it"
                return
            taken[late.late] = statistics.median(late.spans[1:])
        serial, overlapped = carrier.largest([taken[False], taken[True]])
        late.spans = None
        gain = 1 - overlapped / serial if serial > 0 else 0.0
        late.candidate.taken = gain >= _cost.LEAST_GAIN
        late.candidate.gain = max(gain, 0.0) if late.candidate.taken else 0.0
        late.candidate.plain = serial
        late.candidate.overlapped = overlapped if late.candidate.taken else serial
        late.candidate.at_best = min(overlapped, serial)  # what runs during the wait is unknown
        late.candidate.reason = f"waiting later gains {gain * 100:.1f} %" + (
            "" if late.candidate.taken else f", less than {_cost.LEAST_GAIN * 100:.0f} %")

    def _check(self, made: nn.Module) -> None:
        """Compare both models on one batch. Marked modules are reduced in one piece."""
        plain = _copy_tree(self.model, {}) if self._marked else self.model
        for _, child in _marked_in(plain):
            _reduce(child, replace(child._maco_mark, chunks=1, decisions={}, seen=set()))
        expected = self._run(plain)
        for i, (a, b) in enumerate(zip(tensors_of(expected), tensors_of(self._run(made)))):
            limit = TOLERANCE.get(a.dtype, 0.0)
            scale = float(a.abs().max()) if a.numel() and a.is_floating_point() else 0.0
            if a.shape != b.shape or not torch.allclose(a, b, limit, limit * max(scale, 1.0),
                                                        equal_nan=True):
                raise SelfCheckError(
                    f"output {i} of the optimized {type(self.model).__name__} differs from the "
                    "original's", "report it with the model; do the ranks have the same inputs?")


def _example(given: Any) -> tuple[tuple, dict[str, Any]] | None:
    """Positional and named arguments."""
    if given is None:
        return None
    if isinstance(given, torch.Tensor):
        return (given,), {}
    if isinstance(given, dict):
        return (), given
    if isinstance(given, (tuple, list)):
        return tuple(given), {}
    raise NullInputError(f"example_inputs are a {type(given).__name__}",
                         "a tensor, a tuple of arguments, or a dict of named ones")
